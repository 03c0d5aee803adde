/* SPDX-License-Identifier: BSD-2-Clause */
/* Completion channels and completion queues. */
#include <fcntl.h>
#include <unistd.h>

#include <urcu-qsbr.h>

#include "control.h"

/* ibv_create_comp_channel(3): the client gets the reading end of a pipe. */
int handle_create_channel(struct client *c, struct message *m)
{
	struct channel *ch = calloc(1, sizeof(*ch));
	int fds[2], err;

	if (ch == NULL)
		return -ENOMEM;
	if (pipe2(fds, O_CLOEXEC) != 0) {
		err = -errno;
		goto fail;
	}
	/* Our end only: whether the client's blocks is the program's choice. */
	if (fcntl(fds[1], F_SETFL, O_NONBLOCK) != 0) {
		err = -errno;
		goto fail_pipe;
	}
	err = handle_add(&c->channels, ch, UINT32_MAX - 1, &m->reply->handle);
	if (err != 0)
		goto fail_pipe;
	ch->fd = fds[1];
	message_add_fd(m, fds[0]);
	return 0;
fail_pipe:
	close(fds[0]);
	close(fds[1]);
fail:
	free(ch);
	return err;
}

/* No CQ uses it any more. */
static void channel_destroy(struct client *c, struct channel *ch, uint32_t handle)
{
	handle_remove(&c->channels, handle);
	close(ch->fd);
	free(ch);
}

/* ibv_destroy_comp_channel(3). @return EBUSY while CQs use it */
int handle_destroy_channel(struct client *c, struct message *m)
{
	struct channel *ch = handle_get(&c->channels, m->req->handle);

	if (ch == NULL)
		return -EINVAL;
	if (ch->users != 0)
		return -EBUSY;
	channel_destroy(c, ch, m->req->handle);
	return 0;
}

void client_close_channels(struct client *c)
{
	for (uint32_t h = 0; h < c->channels.used; h++) {
		struct channel *ch = handle_get(&c->channels, h);

		if (ch != NULL)
			channel_destroy(c, ch, h);
	}
}

void client_cq_event(struct cq *cq)
{
	struct channel *ch = cq->channel;
	uint32_t handle = cq->handle;

	if (ch == NULL || atomic_exchange(&cq->ring->event_pending, 1) != 0)
		return;
	/*
	 * A CQ has one event in the pipe at most, so a full pipe means more CQs than it has room
	 * for; EPIPE, that the client is going.
	 */
	if (write(ch->fd, &handle, sizeof(handle)) != sizeof(handle))
		vernic_store_release(&cq->ring->event_pending, 0);
}

/* ibv_create_cq(3) */
int handle_create_cq(struct client *c, struct message *m)
{
	uint32_t cqe = m->req->create_cq.cqe;
	uint32_t max = (uint32_t)c->device->dev.attr.max_cqe;
	uint32_t depth;
	struct channel *ch = NULL;
	struct host_cq *cq;
	int err;

	if (cqe < 1 || cqe > max)
		return -EINVAL;
	if (m->req->create_cq.channel != UINT32_MAX) {
		ch = handle_get(&c->channels, m->req->create_cq.channel);
		if (ch == NULL)
			return -EINVAL;
	}
	if (c->device->cqs >= (uint32_t)c->device->dev.attr.max_cq)
		return -ENOMEM;
	cq = alloc_lines(sizeof(*cq));
	if (cq == NULL)
		return -ENOMEM;
	err = handle_add(&c->cqs, cq, UINT32_MAX - 1, &cq->cq.handle);
	if (err != 0)
		goto fail;
	depth = round_up_pow2(cqe);
	err = ring_memory_create(&cq->memory, "vernic-cq",
				 VERNIC_CQE_OFFSET + (size_t)depth * sizeof(struct vernic_cqe), m);
	if (err != 0)
		goto fail_handle;
	cq_init(&cq->cq, cq->memory.base, depth);
	cq->cq.ignore_overrun = m->req->create_cq.ignore_overrun != 0;
	cq->cq.dev = &c->device->dev;
	cq->cq.client = c;
	cq->cq.channel = ch;
	if (ch != NULL)
		ch->users++;
	c->device->cqs++;
	m->reply->handle = cq->cq.handle;
	m->reply->create_cq.depth = depth;
	m->reply->create_cq.cqe = depth < max ? depth : max;
	m->reply->create_cq.size = cq->memory.size;
	return 0;
fail_handle:
	handle_remove(&c->cqs, cq->cq.handle);
fail:
	free(cq);
	return err;
}

/* For a round trip to a worker. @return 0 */
static int nothing_call(void *arg)
{
	return 0;
}

/* Waits until the workers have looked at every doorbell that was rung so far. */
static void let_workers_settle(const struct host *host)
{
	for (unsigned int i = 0; i < host->workers; i++) {
		/* Mail is read first in a round: the second time, a round lies between. */
		worker_call(host->worker[i], nothing_call, NULL);
		worker_call(host->worker[i], nothing_call, NULL);
	}
}

/* ibv_resize_cq(3). @return EINVAL where it would not hold what waits to be polled */
int handle_resize_cq(struct client *c, struct message *m)
{
	struct host_cq *cq = handle_get(&c->cqs, m->req->handle);
	uint32_t cqe = m->req->resize_cq.cqe;
	uint32_t max = (uint32_t)c->device->dev.attr.max_cqe;
	struct ring_memory cqes;
	uint32_t depth, index;
	int err;

	if (cq == NULL || cqe < 1 || cqe > max)
		return -EINVAL;
	/* A program that has just posted counts on the CQEs of that. */
	let_workers_settle(c->host);
	depth = round_up_pow2(cqe);
	err = ring_memory_create(&cqes, "vernic-cqes", (size_t)depth * sizeof(struct vernic_cqe),
				 m);
	if (err != 0)
		return err;
	err = cq_resize(&cq->cq, cqes.base, depth, cqe, &index);
	if (err != 0) {
		ring_memory_destroy(&cqes);
		return err;
	}
	/* Whoever published before did so under the CQ's lock, and is through. */
	if (cq->cqes.base != NULL)
		ring_memory_destroy(&cq->cqes);
	cq->cqes = cqes;
	m->reply->resize_cq.depth = depth;
	m->reply->resize_cq.cqe = depth < max ? depth : max;
	m->reply->resize_cq.index = index;
	m->reply->resize_cq.size = cqes.size;
	return 0;
}

/* ---- moderation ---------------------------------------------------------------------------- */

struct moderate_call {
	struct worker *worker;
	struct cq *cq;
};

/* On the worker's thread. @return 0 or -ENOMEM */
static int moderate_call(void *arg)
{
	struct moderate_call *call = arg;

	return cq_moderate(worker_engine(call->worker), call->cq);
}

/* @return 0 */
static int end_moderation_call(void *arg)
{
	struct moderate_call *call = arg;

	cq_end_moderation(worker_engine(call->worker), call->cq);
	return 0;
}

/* ibv_modify_cq(3) */
int handle_modify_cq(struct client *c, struct message *m)
{
	struct host_cq *cq = handle_get(&c->cqs, m->req->handle);
	uint32_t count = m->req->modify_cq.count, period = m->req->modify_cq.period;
	struct cq_moderation *moderation;
	int err = 0;

	if (cq == NULL || m->req->modify_cq.attr_mask != IBV_CQ_ATTR_MODERATE ||
	    count > UINT16_MAX || period > UINT16_MAX)
		return -EINVAL;
	moderation = atomic_load(&cq->cq.moderation);
	if (moderation == NULL) {
		moderation = calloc(1, sizeof(*moderation));
		if (moderation == NULL)
			return -ENOMEM;
		atomic_store(&cq->cq.moderation, moderation);
	}
	/* An event that waits for one CQE, or for no time, waits for nothing. */
	atomic_store(&moderation->period, 0);
	atomic_store(&moderation->count, count);
	for (unsigned int i = 0; i < c->host->workers && err == 0; i++) {
		struct moderate_call call = {.worker = c->host->worker[i], .cq = &cq->cq};

		err = worker_call(call.worker, moderate_call, &call);
	}
	if (err == 0)
		atomic_store(&moderation->period, (uint64_t)period * 1000);
	return err;
}

/* No worker has a timer of it any more. */
static void moderation_destroy(struct client *c, struct cq *cq)
{
	if (atomic_load(&cq->moderation) == NULL)
		return;
	for (unsigned int i = 0; i < c->host->workers; i++) {
		struct moderate_call call = {.worker = c->host->worker[i], .cq = cq};

		worker_call(call.worker, end_moderation_call, &call);
	}
	free(atomic_load(&cq->moderation));
}

/* ---- destroying ---------------------------------------------------------------------------- */

/* Frees a CQ that no worker knows any more. */
static void cq_free(struct client *c, struct host_cq *cq)
{
	moderation_destroy(c, &cq->cq);
	pthread_spin_destroy(&cq->cq.lock);
	ring_memory_destroy(&cq->memory);
	if (cq->cqes.base != NULL)
		ring_memory_destroy(&cq->cqes);
	free(cq);
}

/* Takes a CQ off the books; a worker may have it on its list to notify until its round is over. */
static void cq_unlink(struct client *c, struct host_cq *cq)
{
	struct channel *ch = cq->cq.channel;

	if (ch != NULL)
		ch->users--;
	handle_remove(&c->cqs, cq->cq.handle);
	c->device->cqs--;
}

/* ibv_destroy_cq(3). @return EBUSY while QPs use it */
int handle_destroy_cq(struct client *c, struct message *m)
{
	struct host_cq *cq = handle_get(&c->cqs, m->req->handle);

	if (cq == NULL)
		return -EINVAL;
	if (atomic_load(&cq->cq.users) != 0)
		return -EBUSY;
	cq_unlink(c, cq);
	synchronize_rcu();
	cq_free(c, cq);
	return 0;
}

void client_close_cqs(struct client *c)
{
	if (c->cqs.count == 0)
		return;
	synchronize_rcu();
	for (uint32_t h = 0; h < c->cqs.used; h++) {
		struct host_cq *cq = handle_get(&c->cqs, h);

		if (cq == NULL)
			continue;
		cq_unlink(c, cq);
		cq_free(c, cq);
	}
}
