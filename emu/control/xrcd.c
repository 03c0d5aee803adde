/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Extended reliable connections: domains, and target QPs.
 *
 * Both are shared: a domain by all who open the same file, a target QP by all who have it open.
 * Each of them has a handle of its own, and the last one closed ends what it stands for.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"

/* ---- domains ------------------------------------------------------------------------------ */

/* @return the domain of a file on the client's device, or NULL */
static struct host_xrcd *xrcd_find(struct client *c, const struct stat *st)
{
	struct host_xrcd *x;

	cds_list_for_each_entry (x, &c->server->xrcds, node) {
		if (x->xrcd.dev == &c->device->dev && x->fd >= 0 && x->dev == st->st_dev &&
		    x->ino == st->st_ino)
			return x;
	}
	return NULL;
}

/*
 * Makes a descriptor that holds a file's inode and nothing else. The client's own would keep its
 * locks; of a connection it would keep the end from us.
 * @return it, or a negative errno
 */
static int xrcd_hold_file(int fd)
{
	char path[64];
	int held;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	held = open(path, O_PATH | O_CLOEXEC);
	return held < 0 ? -errno : held;
}

/* Makes a domain that nobody has open yet. @fd: its file, or -1. @return NULL and *err */
static struct host_xrcd *xrcd_create(struct client *c, int fd, const struct stat *st, int *err)
{
	struct host_xrcd *x = calloc(1, sizeof(*x));
	int held = fd >= 0 ? xrcd_hold_file(fd) : -1;

	*err = fd >= 0 && held < 0 ? held : x == NULL ? -ENOMEM : 0;
	if (*err != 0) {
		if (held >= 0)
			close(held);
		free(x);
		return NULL;
	}
	x->xrcd.dev = &c->device->dev;
	x->fd = held;
	x->dev = st->st_dev;
	x->ino = st->st_ino;
	CDS_INIT_LIST_HEAD(&x->targets);
	cds_list_add_tail(&x->node, &c->server->xrcds);
	return x;
}

/* One handle less. */
static void xrcd_put(struct host_xrcd *x)
{
	if (--x->opens != 0)
		return;
	cds_list_del(&x->node);
	if (x->fd >= 0)
		close(x->fd);
	free(x);
}

/* ibv_open_xrcd(3) */
int handle_open_xrcd(struct client *c, struct message *m)
{
	uint32_t oflags = m->req->open_xrcd.oflags;
	int fd = m->in_count > 0 ? m->in[0] : -1;
	struct host_xrcd *x = NULL;
	struct xrcd_open *open;
	struct stat st = {0};
	int err;

	if (!device_has(&c->device->dev, DEVICE_XRC))
		return -EOPNOTSUPP;
	if (fd >= 0) {
		if (fstat(fd, &st) != 0)
			return -errno;
		if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
			return -EINVAL;
		x = xrcd_find(c, &st);
		if (x != NULL && (oflags & O_EXCL) != 0)
			return -EINVAL;
	}
	if (x == NULL && (oflags & O_CREAT) == 0)
		return -EAGAIN;
	open = calloc(1, sizeof(*open));
	if (open == NULL)
		return -ENOMEM;
	err = handle_add(&c->xrcds, open, UINT32_MAX - 1, &m->reply->handle);
	if (err != 0)
		goto fail;
	if (x == NULL) {
		x = xrcd_create(c, fd, &st, &err);
		if (x == NULL)
			goto fail_handle;
	}
	x->opens++;
	open->xrcd = x;
	return 0;
fail_handle:
	handle_remove(&c->xrcds, m->reply->handle);
fail:
	free(open);
	return err;
}

/* Nothing was made with the handle, or is any more. */
static void xrcd_close(struct client *c, struct xrcd_open *open, uint32_t handle)
{
	handle_remove(&c->xrcds, handle);
	xrcd_put(open->xrcd);
	free(open);
}

/* ibv_close_xrcd(3). @return EBUSY while QPs or SRQs use it */
int handle_close_xrcd(struct client *c, struct message *m)
{
	struct xrcd_open *open = handle_get(&c->xrcds, m->req->handle);

	if (open == NULL)
		return -EINVAL;
	if (open->users != 0)
		return -EBUSY;
	xrcd_close(c, open, m->req->handle);
	return 0;
}

void client_close_xrcds(struct client *c)
{
	for (uint32_t h = 0; h < c->xrcds.used; h++) {
		struct xrcd_open *open = handle_get(&c->xrcds, h);

		if (open != NULL)
			xrcd_close(c, open, h);
	}
}

/* ---- target QPs, on the worker's thread ---------------------------------------------------- */

struct target_call {
	struct worker *worker;
	struct qp *qp;
	const struct qp_params *params;
	struct qp_opener *opener;
};

/* Makes the QP, open once. @return 0 or a negative errno */
static int target_create_call(void *arg)
{
	struct target_call *call = arg;
	int err = qp_create(worker_engine(call->worker), call->params, &call->qp);

	if (err == 0)
		cds_list_add_tail(&call->opener->node, &call->qp->openers);
	return err;
}

/* Opens it once more. @return 0 */
static int target_open_call(void *arg)
{
	struct target_call *call = arg;

	cds_list_add_tail(&call->opener->node, &call->qp->openers);
	return 0;
}

/* Closes it; nobody has it open any more: destroys it. @return 0 */
static int target_close_call(void *arg)
{
	struct target_call *call = arg;

	cds_list_del(&call->opener->node);
	if (cds_list_empty(&call->qp->openers))
		qp_destroy(call->qp);
	return 0;
}

/* ---- target QPs, on the control thread ----------------------------------------------------- */

/* Gives a client a handle for a target QP; the reply says what it is. @return NULL and *err */
static struct host_qp *target_handle(struct client *c, struct message *m, struct xrcd_open *xrcd,
				     int *err)
{
	struct host_qp *qp = calloc(1, sizeof(*qp));

	*err = -ENOMEM;
	if (qp == NULL)
		return NULL;
	*err = handle_add(&c->qps, qp, VERNIC_MAX_CONTEXT_QP, &m->reply->handle);
	if (*err != 0) {
		free(qp);
		return NULL;
	}
	qp->xrcd = xrcd;
	qp->opener = (struct qp_opener){.client = c, .index = m->reply->handle};
	return qp;
}

/* The handle is good: the target is open once more. */
static void target_opened(struct message *m, struct host_qp *qp, struct xrc_target *t)
{
	qp->target = t;
	qp->qp = t->qp;
	qp->qpn = t->qpn;
	qp->worker = t->worker;
	t->opens++;
	qp->xrcd->users++;
	m->reply->create_qp.qp_num = t->qpn;
	m->reply->create_qp.qp_index = qp->opener.index;
	m->reply->create_qp.worker = t->worker_index;
}

/* ibv_create_qp_ex(3), IBV_QPT_XRC_RECV */
int target_create(struct client *c, struct message *m)
{
	struct xrcd_open *xrcd = handle_get(&c->xrcds, m->req->create_qp.xrcd);
	struct qp_params params;
	struct target_call call;
	struct xrc_target *t;
	struct host_qp *qp;
	int err = -ENOMEM;

	if (xrcd == NULL)
		return -EINVAL;
	if (c->device->qps >= (uint32_t)c->device->dev.attr.max_qp)
		return -ENOMEM;
	t = calloc(1, sizeof(*t));
	if (t == NULL)
		return -ENOMEM;
	t->ring = aligned_alloc(VERNIC_CACHELINE, sizeof(*t->ring));
	if (t->ring == NULL)
		goto fail;
	*t->ring = (struct vernic_qp_ring){0};
	qp = target_handle(c, m, xrcd, &err);
	if (qp == NULL)
		goto fail;
	t->worker_index = c->host->next_worker;
	c->host->next_worker = (t->worker_index + 1) % c->host->workers;
	t->worker = c->host->worker[t->worker_index];
	/* Its send queue is one slot that nothing is ever put into. */
	params = (struct qp_params){
		.dev = &c->device->dev,
		.xrcd = &xrcd->xrcd->xrcd,
		.type = IBV_QPT_XRC_RECV,
		.ring = t->ring,
		.sq_depth = 1,
	};
	call = (struct target_call){.worker = t->worker, .params = &params, .opener = &qp->opener};
	err = worker_call(t->worker, target_create_call, &call);
	if (err != 0)
		goto fail_handle;
	t->qp = call.qp;
	t->qpn = call.qp->qpn;
	cds_list_add_tail(&t->node, &xrcd->xrcd->targets);
	c->device->qps++;
	target_opened(m, qp, t);
	return 0;
fail_handle:
	handle_remove(&c->qps, m->reply->handle);
	free(qp);
fail:
	free(t->ring);
	free(t);
	return err;
}

/* ibv_open_qp(3) */
int handle_open_qp(struct client *c, struct message *m)
{
	struct xrcd_open *xrcd = handle_get(&c->xrcds, m->req->open_qp.xrcd);
	struct xrc_target *found = NULL, *t;
	struct target_call call;
	struct host_qp *qp;
	int err;

	if (xrcd == NULL)
		return -EINVAL;
	cds_list_for_each_entry (t, &xrcd->xrcd->targets, node) {
		if (t->qpn == m->req->open_qp.qp_num)
			found = t;
	}
	if (found == NULL)
		return -EINVAL;
	qp = target_handle(c, m, xrcd, &err);
	if (qp == NULL)
		return err;
	call = (struct target_call){.qp = found->qp, .opener = &qp->opener};
	worker_call(found->worker, target_open_call, &call);
	target_opened(m, qp, found);
	return 0;
}

void target_close(struct client *c, struct host_qp *qp, uint32_t index)
{
	struct target_call call = {.qp = qp->qp, .opener = &qp->opener};
	struct xrc_target *t = qp->target;

	worker_call(t->worker, target_close_call, &call);
	handle_remove(&c->qps, index);
	qp->xrcd->users--;
	free(qp);
	if (--t->opens != 0)
		return;
	cds_list_del(&t->node);
	c->device->qps--;
	free(t->ring);
	free(t);
}
