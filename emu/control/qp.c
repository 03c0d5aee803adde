/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Queue pairs. The control thread checks, makes the rings and keeps the books; the QP itself is
 * made, changed and destroyed on its worker's thread.
 */
#include <string.h>

#include "control.h"

/* Slots are aligned so that no WQE shares a cache line with another one. */
#define QP_SLOT_ALIGN VERNIC_CACHELINE

/* Where things lie in a QP's ring memory. */
struct qp_layout {
	uint32_t sq_depth, rq_depth;   /* slots */
	uint32_t sq_stride, rq_stride; /* bytes */
	size_t sq_offset, rq_offset;   /* bytes */
	uint32_t sq_data;	       /* bytes */
	size_t size;		       /* bytes */
};

/*
 * Checks the capabilities asked for and makes them the actual ones.
 * @return 0 or -EINVAL
 */
static int qp_check_cap(const struct device *dev, struct ibv_qp_cap *cap, bool no_rq)
{
	const struct ibv_device_attr *limits = &dev->attr;
	uint32_t max_wr = (uint32_t)limits->max_qp_wr;
	uint32_t max_sge = (uint32_t)limits->max_sge;
	uint32_t depth;

	if (cap->max_send_wr > max_wr || cap->max_send_sge > max_sge ||
	    cap->max_inline_data > dev->max_inline)
		return -EINVAL;
	depth = round_up_pow2(cap->max_send_wr);
	cap->max_send_wr = depth < max_wr ? depth : max_wr;
	/* The room is there in any case: small payloads are copied. */
	if (cap->max_inline_data < VERNIC_COPY_MAX)
		cap->max_inline_data = VERNIC_COPY_MAX;
	if (cap->max_inline_data > dev->max_inline)
		cap->max_inline_data = dev->max_inline;
	if (no_rq) {
		/* Ignored, whatever they are. */
		cap->max_recv_wr = 0;
		cap->max_recv_sge = 0;
		return 0;
	}
	if (cap->max_recv_wr > max_wr || cap->max_recv_sge > max_sge)
		return -EINVAL;
	depth = round_up_pow2(cap->max_recv_wr);
	cap->max_recv_wr = depth < max_wr ? depth : max_wr;
	if (cap->max_recv_sge == 0)
		cap->max_recv_sge = 1;
	return 0;
}

/* Lays the rings out for actual capabilities. */
static void qp_lay_out(struct qp_layout *l, const struct ibv_qp_cap *cap, bool no_rq)
{
	const uint32_t sge = sizeof(struct vernic_sge);

	l->sq_depth = round_up_pow2(cap->max_send_wr);
	l->sq_data = (uint32_t)round_up(cap->max_inline_data, sizeof(struct vernic_sge));
	if (l->sq_data < VERNIC_COPY_MAX)
		l->sq_data = VERNIC_COPY_MAX;
	l->sq_stride = (uint32_t)round_up(sizeof(struct vernic_send_wqe) + cap->max_send_sge * sge +
						  l->sq_data,
					  QP_SLOT_ALIGN);
	l->sq_offset = round_up(sizeof(struct vernic_qp_ring), QP_SLOT_ALIGN);
	l->rq_offset = l->sq_offset + (size_t)l->sq_depth * l->sq_stride;
	l->rq_depth = no_rq ? 0 : round_up_pow2(cap->max_recv_wr);
	l->rq_stride = no_rq ? 0
			     : (uint32_t)sizeof(struct vernic_recv_wqe) + cap->max_recv_sge * sge;
	l->size = l->rq_offset + (size_t)l->rq_depth * l->rq_stride;
}

/* ---- on the worker's thread --------------------------------------------------------------- */

struct qp_call {
	struct worker *worker;
	struct qp *qp;
	struct doorbell_set *set;
	/* create */
	const struct qp_params *params;
	/* modify, query, destroy */
	struct ibv_qp_attr attr;
	uint32_t attr_mask;
	uint32_t max_burst;
	/* results */
	uint32_t qpn;
	uint32_t state;
	uint32_t srq_slot;
};

/* Makes the QP and lets its doorbell find it. @return 0, or a negative errno */
static int qp_create_call(void *arg)
{
	struct qp_call *call = arg;
	uint32_t index = call->params->index;
	struct qp ***row = &call->set->row[index / 64];
	int err;

	if (*row == NULL)
		*row = calloc(64, sizeof(**row));
	if (*row == NULL)
		return -ENOMEM;
	err = qp_create(worker_engine(call->worker), call->params, &call->qp);
	if (err != 0)
		return err;
	(*row)[index % 64] = call->qp;
	if (call->set->words < index / 4096 + 1)
		call->set->words = index / 4096 + 1;
	call->qpn = call->qp->qpn;
	return 0;
}

/* Modifies it. @return 0, or a negative errno; the state after it is set in any case */
static int qp_modify_call(void *arg)
{
	struct qp_call *call = arg;
	int err;

	err = qp_modify(call->qp, &call->attr, (int)call->attr_mask);
	if (err == 0 && call->attr_mask & IBV_QP_RATE_LIMIT && call->max_burst != 0)
		pacer_set(call->qp, call->attr.rate_limit, call->max_burst);
	call->srq_slot = VERNIC_NO_SLOT;
	if (call->qp->state == IBV_QPS_RESET)
		call->srq_slot = qp_take_srq_slot(call->qp);
	call->state = call->qp->state;
	return err;
}

/* Reads its attributes. @return 0 */
static int qp_query_call(void *arg)
{
	struct qp_call *call = arg;

	qp_query(call->qp, &call->attr);
	return 0;
}

/* Takes it from its doorbell and destroys it. @return 0 */
static int qp_destroy_call(void *arg)
{
	struct qp_call *call = arg;
	uint32_t index = call->qp->p.index;

	call->set->row[index / 64][index % 64] = NULL;
	call->srq_slot = qp_take_srq_slot(call->qp);
	qp_destroy(call->qp);
	return 0;
}

/* ---- on the control thread ---------------------------------------------------------------- */

/* @return 0 where the type can be had, with or without a SRQ; EOPNOTSUPP, EINVAL */
static int qp_check_type(const struct device *dev, uint32_t type, bool srq)
{
	switch (type) {
	case IBV_QPT_RC:
	case IBV_QPT_UD:
		return 0;
	case IBV_QPT_UC:
		return srq ? -EINVAL : 0;
	case IBV_QPT_RAW_PACKET:
		return srq ? -EINVAL : -EOPNOTSUPP;
	case IBV_QPT_XRC_SEND:
		if (!device_has(dev, DEVICE_XRC))
			return -EOPNOTSUPP;
		return srq ? -EINVAL : 0;
	case IBV_QPT_DRIVER:
		return -EOPNOTSUPP;
	default:
		return -EINVAL;
	}
}

/*
 * A QP never gets what it sends to a group itself, whether it asks for that or not; the other flags
 * are for raw packets, InfiniBand ports, and adapters that write to memory by PCI.
 * @return 0; EOPNOTSUPP; EINVAL: unknown, or not of this type
 */
static int qp_check_flags(const struct device *dev, uint32_t type, uint32_t flags)
{
	const uint32_t known = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB | IBV_QP_CREATE_SCATTER_FCS |
			       IBV_QP_CREATE_CVLAN_STRIPPING | IBV_QP_CREATE_SOURCE_QPN |
			       IBV_QP_CREATE_PCI_WRITE_END_PADDING;

	if (flags & ~known)
		return -EINVAL;
	if (flags & ~(uint32_t)IBV_QP_CREATE_BLOCK_SELF_MCAST_LB ||
	    (flags && !device_has(dev, DEVICE_BLOCK_LOOPBACK)))
		return -EOPNOTSUPP;
	return flags && type != IBV_QPT_UD ? -EINVAL : 0;
}

/* Counts a QP as a user of what it is made on, or no more. */
static void qp_count_uses(struct host_qp *qp, uint32_t n)
{
	atomic_fetch_add(&qp->pd->users, n);
	atomic_fetch_add(&qp->send_cq->cq.users, n);
	atomic_fetch_add(&qp->recv_cq->cq.users, n);
	if (qp->srq != NULL)
		atomic_fetch_add(&qp->srq->srq.users, n);
}

/* What the transport is told of a new QP. @qp: complete but for the QP itself */
static struct qp_params qp_describe(struct client *c, const struct host_qp *qp, uint32_t type,
				    uint32_t index, const struct qp_layout *l)
{
	uint8_t *base = qp->memory.base;

	return (struct qp_params){
		.dev = &c->device->dev,
		.pd = qp->pd,
		.send_cq = &qp->send_cq->cq,
		.recv_cq = &qp->recv_cq->cq,
		.srq = qp->srq != NULL ? &qp->srq->srq : NULL,
		.client = c,
		.type = (enum ibv_qp_type)type,
		.sq_sig_all = qp->sq_sig_all,
		.index = index,
		.cap = qp->cap,
		.ring = qp->memory.base,
		.sq = base + l->sq_offset,
		.rq = base + l->rq_offset,
		.sq_depth = l->sq_depth,
		.rq_depth = l->rq_depth,
		.sq_stride = l->sq_stride,
		.rq_stride = l->rq_stride,
		.sq_data = l->sq_data,
	};
}

/* What the client is told of it, but for its numbers. */
static void qp_fill_reply(struct vernic_reply *reply, const struct host_qp *qp,
			  const struct qp_layout *l)
{
	reply->create_qp.sq_depth = l->sq_depth;
	reply->create_qp.rq_depth = l->rq_depth;
	reply->create_qp.sq_stride = l->sq_stride;
	reply->create_qp.rq_stride = l->rq_stride;
	reply->create_qp.sq_offset = (uint32_t)l->sq_offset;
	reply->create_qp.rq_offset = (uint32_t)l->rq_offset;
	reply->create_qp.sq_data = l->sq_data;
	reply->create_qp.cap = qp->cap;
	reply->create_qp.size = qp->memory.size;
}

/* ibv_create_qp(3) */
int handle_create_qp(struct client *c, struct message *m)
{
	struct ibv_qp_cap cap = m->req->create_qp.cap;
	struct pd *pd = handle_get(&c->shared->pds, m->req->create_qp.pd);
	struct host_cq *send_cq = handle_get(&c->cqs, m->req->create_qp.send_cq);
	struct host_cq *recv_cq = handle_get(&c->cqs, m->req->create_qp.recv_cq);
	uint32_t type = m->req->create_qp.qp_type;
	bool no_rq = m->req->create_qp.srq != UINT32_MAX || type == IBV_QPT_XRC_SEND;
	struct host_srq *srq = NULL;
	struct qp_params params;
	struct qp_layout layout;
	struct qp_call call;
	struct host_qp *qp;
	unsigned int worker;
	uint32_t index;
	int err;

	err = qp_check_flags(&c->device->dev, type, m->req->create_qp.create_flags);
	if (err != 0)
		return err;
	if (type == IBV_QPT_XRC_RECV)
		return target_create(c, m);
	if (m->req->create_qp.srq != UINT32_MAX) {
		srq = handle_get(&c->srqs, m->req->create_qp.srq);
		if (srq == NULL || srq->xrcd != NULL)
			return -EINVAL;
	}
	if (type == IBV_QPT_XRC_SEND)
		recv_cq = send_cq; /* it receives nothing */
	err = qp_check_type(&c->device->dev, type, srq != NULL);
	if (err != 0)
		return err;
	if (pd == NULL || send_cq == NULL || recv_cq == NULL)
		return -EINVAL;
	err = qp_check_cap(&c->device->dev, &cap, no_rq);
	if (err != 0)
		return err;
	if (c->device->qps >= (uint32_t)c->device->dev.attr.max_qp)
		return -ENOMEM;
	qp = calloc(1, sizeof(*qp));
	if (qp == NULL)
		return -ENOMEM;
	err = handle_add(&c->qps, qp, VERNIC_MAX_CONTEXT_QP, &index);
	if (err != 0)
		goto fail;
	qp_lay_out(&layout, &cap, no_rq);
	err = ring_memory_create(&qp->memory, "vernic-qp", layout.size, m);
	if (err != 0)
		goto fail_handle;
	worker = c->host->next_worker;
	c->host->next_worker = (worker + 1) % c->host->workers;
	qp->worker = c->host->worker[worker];
	qp->pd = pd;
	qp->send_cq = send_cq;
	qp->recv_cq = recv_cq;
	qp->srq = srq;
	qp->cap = cap;
	qp->sq_sig_all = m->req->create_qp.sq_sig_all != 0;
	qp->type = type;
	params = qp_describe(c, qp, type, index, &layout);
	call = (struct qp_call){.worker = qp->worker, .set = c->set[worker], .params = &params};
	err = worker_call(qp->worker, qp_create_call, &call);
	if (err != 0)
		goto fail_memory;
	qp->qp = call.qp;
	qp->qpn = call.qpn;
	qp_write_post_faults(c, qp);
	qp_count_uses(qp, 1);
	c->device->qps++;
	m->reply->handle = index;
	m->reply->create_qp.qp_num = call.qpn;
	m->reply->create_qp.qp_index = index;
	m->reply->create_qp.worker = worker;
	qp_fill_reply(m->reply, qp, &layout);
	return 0;
fail_memory:
	ring_memory_destroy(&qp->memory);
fail_handle:
	handle_remove(&c->qps, index);
fail:
	free(qp);
	return err;
}

/* ibv_modify_qp(3), ibv_modify_qp_rate_limit(3); masks and values are the transport's to check */
int handle_modify_qp(struct client *c, struct message *m)
{
	struct host_qp *qp = handle_get(&c->qps, m->req->handle);
	struct qp_call call;
	int err;

	if (qp == NULL)
		return -EINVAL;
	if (m->req->modify_qp.attr_mask & IBV_QP_RATE_LIMIT &&
	    !device_has(&c->device->dev, DEVICE_PACING))
		return -EOPNOTSUPP;
	call = (struct qp_call){
		.worker = qp->worker,
		.qp = qp->qp,
		.attr = m->req->modify_qp.attr,
		.attr_mask = m->req->modify_qp.attr_mask,
		.max_burst = m->req->modify_qp.max_burst,
	};
	err = worker_call(qp->worker, qp_modify_call, &call);
	m->reply->modify_qp.state = call.state;
	m->reply->modify_qp.srq_slot = call.srq_slot;
	return err;
}

/* ibv_query_qp(3) */
int handle_query_qp(struct client *c, struct message *m)
{
	struct host_qp *qp = handle_get(&c->qps, m->req->handle);
	struct qp_call call;
	int err;

	if (qp == NULL)
		return -EINVAL;
	call = (struct qp_call){.worker = qp->worker, .qp = qp->qp};
	err = worker_call(qp->worker, qp_query_call, &call);
	m->reply->query_qp.attr = call.attr;
	m->reply->query_qp.cap = qp->cap;
	m->reply->query_qp.sq_sig_all = qp->sq_sig_all;
	return err;
}

/* Destroys a QP. @return the SRQ slot it held, or VERNIC_NO_SLOT */
static uint32_t qp_remove(struct client *c, struct host_qp *qp, uint32_t index)
{
	struct qp_call call = {.worker = qp->worker, .qp = qp->qp};

	if (qp->target != NULL) {
		target_close(c, qp, index);
		return VERNIC_NO_SLOT;
	}
	for (unsigned int i = 0; i < c->host->workers; i++) {
		if (c->host->worker[i] == qp->worker)
			call.set = c->set[i];
	}
	worker_call(qp->worker, qp_destroy_call, &call);
	qp_collect_post_faults(c, qp);
	qp_count_uses(qp, (uint32_t)-1);
	handle_remove(&c->qps, index);
	c->device->qps--;
	ring_memory_destroy(&qp->memory);
	free(qp);
	return call.srq_slot;
}

/* ibv_destroy_qp(3). @return EBUSY while it is attached to a multicast group */
int handle_destroy_qp(struct client *c, struct message *m)
{
	struct host_qp *qp = handle_get(&c->qps, m->req->handle);

	if (qp == NULL)
		return -EINVAL;
	if (qp->groups != 0)
		return -EBUSY;
	m->reply->modify_qp.srq_slot = qp_remove(c, qp, m->req->handle);
	m->reply->modify_qp.state = IBV_QPS_RESET;
	return 0;
}

void client_close_qps(struct client *c)
{
	for (uint32_t h = 0; h < c->qps.used; h++) {
		struct host_qp *qp = handle_get(&c->qps, h);

		if (qp == NULL)
			continue;
		mcast_leave_all(c, qp);
		qp_remove(c, qp, h);
	}
}
