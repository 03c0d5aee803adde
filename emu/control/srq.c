/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared receive queues. */
#include <urcu-qsbr.h>

#include "control.h"

/* The actual size for a number of WRs asked for, and the depth of the ring. */
static void srq_set_size(struct srq *srq, const struct ibv_device_attr *limits, uint32_t max_wr)
{
	uint32_t most = (uint32_t)limits->max_srq_wr;

	srq->depth = round_up_pow2(max_wr);
	srq->max_wr = srq->depth < most ? srq->depth : most;
}

/*
 * Makes the ring memory, with as many slots as the SRQ can ever have: pages that were never used
 * cost nothing.
 */
static int srq_create_rings(struct client *c, struct host_srq *srq, struct message *m)
{
	const uint32_t slots = round_up_pow2((uint32_t)c->device->dev.attr.max_srq_wr);
	const size_t index_offset = sizeof(struct vernic_srq_ring);
	const size_t wqe_offset =
		round_up(index_offset + slots * sizeof(uint32_t), VERNIC_CACHELINE);
	uint8_t *base;
	int err;

	err = ring_memory_create(&srq->memory, "vernic-srq",
				 wqe_offset + (size_t)slots * srq->srq.stride, m);
	if (err != 0)
		return err;
	base = srq->memory.base;
	srq->srq.ring = srq->memory.base;
	srq->srq.index = (_Atomic uint32_t *)(base + index_offset);
	srq->srq.wqe = base + wqe_offset;
	srq->srq.slot_mask = slots - 1;
	m->reply->create_srq.slots = slots;
	m->reply->create_srq.index_offset = (uint32_t)index_offset;
	m->reply->create_srq.wqe_offset = (uint32_t)wqe_offset;
	m->reply->create_srq.size = srq->memory.size;
	return 0;
}

/*
 * Ties a XRC SRQ to its domain and CQ, and lets requests find it.
 * @return 0, -EINVAL, -ENOMEM
 */
static int srq_join_domain(struct client *c, struct host_srq *srq, const struct vernic_request *req)
{
	struct xrcd_open *xrcd = handle_get(&c->xrcds, req->create_srq.xrcd);
	struct host_cq *cq = handle_get(&c->cqs, req->create_srq.cq);
	int err;

	if (req->create_srq.xrcd == UINT32_MAX)
		return 0;
	if (xrcd == NULL || cq == NULL)
		return -EINVAL;
	srq->srq.xrcd = &xrcd->xrcd->xrcd;
	srq->srq.cq = &cq->cq;
	err = xrc_table_add(c->device->dev.xrcs, &srq->srq);
	if (err != 0)
		return err;
	srq->xrcd = xrcd;
	srq->cq = cq;
	xrcd->users++;
	atomic_fetch_add(&cq->cq.users, 1);
	return 0;
}

/* No worker finds it any more when this returns. */
static void srq_leave_domain(struct client *c, struct host_srq *srq)
{
	if (srq->xrcd == NULL)
		return;
	xrc_table_remove(c->device->dev.xrcs, &srq->srq);
	synchronize_rcu();
	srq->xrcd->users--;
	atomic_fetch_sub(&srq->cq->cq.users, 1);
}

/* ibv_create_srq(3), ibv_create_srq_ex(3); srq_limit is ignored, as the page says */
int handle_create_srq(struct client *c, struct message *m)
{
	const struct ibv_device_attr *limits = &c->device->dev.attr;
	struct ibv_srq_attr attr = m->req->create_srq.attr;
	struct pd *pd = handle_get(&c->shared->pds, m->req->create_srq.pd);
	struct host_srq *srq;
	int err;

	if (pd == NULL || attr.max_wr < 1 || attr.max_wr > (uint32_t)limits->max_srq_wr ||
	    attr.max_sge > (uint32_t)limits->max_srq_sge)
		return -EINVAL;
	if (attr.max_sge == 0)
		attr.max_sge = 1;
	if (c->device->srqs >= (uint32_t)limits->max_srq)
		return -ENOMEM;
	srq = alloc_lines(sizeof(*srq));
	if (srq == NULL)
		return -ENOMEM;
	err = handle_add(&c->srqs, srq, UINT32_MAX - 1, &srq->srq.handle);
	if (err != 0)
		goto fail;
	srq->srq.dev = &c->device->dev;
	srq->srq.client = c;
	srq->srq.pd = pd;
	srq->srq.stride = (uint32_t)sizeof(struct vernic_recv_wqe) +
			  attr.max_sge * (uint32_t)sizeof(struct vernic_sge);
	srq->srq.max_sge = attr.max_sge;
	srq_set_size(&srq->srq, limits, attr.max_wr);
	err = srq_create_rings(c, srq, m);
	if (err != 0)
		goto fail_handle;
	pthread_spin_init(&srq->srq.lock, PTHREAD_PROCESS_PRIVATE);
	err = srq_join_domain(c, srq, m->req);
	if (err != 0)
		goto fail_memory;
	srq_write_post_faults(c, srq);
	atomic_fetch_add(&pd->users, 1);
	c->device->srqs++;
	m->reply->handle = srq->srq.handle;
	m->reply->create_srq.depth = srq->srq.depth;
	m->reply->create_srq.max_wr = srq->srq.max_wr;
	m->reply->create_srq.max_sge = attr.max_sge;
	m->reply->create_srq.stride = srq->srq.stride;
	m->reply->create_srq.srq_num = srq->xrcd != NULL ? srq->srq.number : srq->srq.handle;
	return 0;
fail_memory:
	pthread_spin_destroy(&srq->srq.lock);
	ring_memory_destroy(&srq->memory);
fail_handle:
	handle_remove(&c->srqs, srq->srq.handle);
fail:
	free(srq);
	return err;
}

/*
 * Changes the depth of a SRQ's ring, under its lock. The client posts nothing meanwhile.
 * @slot: room for what is posted now
 * @return 0, or -EINVAL: what is posted does not fit
 */
static int srq_resize(struct srq *srq, const struct ibv_device_attr *limits, uint32_t max_wr,
		      uint32_t *slot)
{
	uint32_t waiting = vernic_load_acquire(&srq->ring->prod) - srq->cons;
	uint32_t old_depth = srq->depth;

	if (waiting > old_depth || waiting > max_wr)
		return -EINVAL;
	srq_set_size(srq, limits, max_wr);
	for (uint32_t i = 0; i < waiting; i++)
		slot[i] = vernic_load_relaxed(&srq->index[(srq->cons + i) & (old_depth - 1)]);
	for (uint32_t i = 0; i < waiting; i++)
		atomic_store_explicit(&srq->index[(srq->cons + i) & (srq->depth - 1)], slot[i],
				      memory_order_relaxed);
	return 0;
}

/* ibv_modify_srq(3) */
int handle_modify_srq(struct client *c, struct message *m)
{
	const struct ibv_device_attr *limits = &c->device->dev.attr;
	struct host_srq *srq = handle_get(&c->srqs, m->req->handle);
	uint32_t mask = m->req->modify_srq.attr_mask;
	uint32_t max_wr = m->req->modify_srq.attr.max_wr;
	uint32_t limit = m->req->modify_srq.attr.srq_limit;
	uint32_t *slot;
	int err = 0;

	if (srq == NULL || (mask & ~(uint32_t)(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0)
		return -EINVAL;
	if ((mask & IBV_SRQ_MAX_WR) != 0 && !device_has(&c->device->dev, DEVICE_SRQ_RESIZE))
		return -EOPNOTSUPP;
	if ((mask & IBV_SRQ_MAX_WR) == 0)
		max_wr = srq->srq.max_wr;
	if (max_wr < 1 || max_wr > (uint32_t)limits->max_srq_wr ||
	    ((mask & IBV_SRQ_LIMIT) != 0 && limit > max_wr))
		return -EINVAL;
	slot = calloc(srq->srq.depth, sizeof(*slot));
	if (slot == NULL)
		return -ENOMEM;
	pthread_spin_lock(&srq->srq.lock);
	if ((mask & IBV_SRQ_MAX_WR) != 0)
		err = srq_resize(&srq->srq, limits, max_wr, slot);
	if (err == 0 && (mask & IBV_SRQ_LIMIT) != 0)
		srq->srq.limit = limit;
	pthread_spin_unlock(&srq->srq.lock);
	free(slot);
	m->reply->modify_srq.depth = srq->srq.depth;
	m->reply->modify_srq.max_wr = srq->srq.max_wr;
	return err;
}

/* ibv_query_srq(3) */
int handle_query_srq(struct client *c, struct message *m)
{
	struct host_srq *srq = handle_get(&c->srqs, m->req->handle);
	struct ibv_srq_attr *attr = &m->reply->query_srq;

	if (srq == NULL)
		return -EINVAL;
	attr->max_wr = srq->srq.max_wr;
	attr->max_sge = srq->srq.max_sge;
	pthread_spin_lock(&srq->srq.lock);
	attr->srq_limit = srq->srq.limit;
	pthread_spin_unlock(&srq->srq.lock);
	return 0;
}

/* Its QPs are gone, and with them every worker's interest, but for that in a XRC SRQ. */
static void srq_destroy(struct client *c, struct host_srq *srq)
{
	srq_leave_domain(c, srq);
	srq_collect_post_faults(c, srq);
	handle_remove(&c->srqs, srq->srq.handle);
	atomic_fetch_sub(&srq->srq.pd->users, 1);
	c->device->srqs--;
	pthread_spin_destroy(&srq->srq.lock);
	ring_memory_destroy(&srq->memory);
	free(srq);
}

/* ibv_destroy_srq(3). @return EBUSY while QPs use it */
int handle_destroy_srq(struct client *c, struct message *m)
{
	struct host_srq *srq = handle_get(&c->srqs, m->req->handle);

	if (srq == NULL)
		return -EINVAL;
	if (atomic_load(&srq->srq.users) != 0)
		return -EBUSY;
	srq_destroy(c, srq);
	return 0;
}

void client_close_srqs(struct client *c)
{
	for (uint32_t h = 0; h < c->srqs.used; h++) {
		struct host_srq *srq = handle_get(&c->srqs, h);

		if (srq != NULL)
			srq_destroy(c, srq);
	}
}
