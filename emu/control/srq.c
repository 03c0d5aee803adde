/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared receive queues. */
#include "control.h"

/* ibv_create_srq(3); srq_limit is ignored, as the page says */
int handle_create_srq(struct client *c, struct message *m)
{
	const struct ibv_device_attr *limits = &c->device->dev.attr;
	struct ibv_srq_attr attr = m->req->create_srq.attr;
	struct pd *pd = handle_get(&c->shared->pds, m->req->create_srq.pd);
	uint32_t depth, stride;
	size_t index_offset, wqe_offset;
	struct host_srq *srq;
	uint8_t *base;
	int err;

	if (pd == NULL || attr.max_wr < 1 || attr.max_wr > (uint32_t)limits->max_srq_wr ||
	    attr.max_sge > (uint32_t)limits->max_srq_sge)
		return -EINVAL;
	if (attr.max_sge == 0)
		attr.max_sge = 1;
	if (c->device->srqs >= (uint32_t)limits->max_srq)
		return -ENOMEM;
	depth = round_up_pow2(attr.max_wr);
	stride = (uint32_t)sizeof(struct vernic_recv_wqe) +
		 attr.max_sge * (uint32_t)sizeof(struct vernic_sge);
	index_offset = sizeof(struct vernic_srq_ring);
	wqe_offset = round_up(index_offset + depth * sizeof(uint32_t), VERNIC_CACHELINE);
	srq = calloc(1, sizeof(*srq));
	if (srq == NULL)
		return -ENOMEM;
	err = handle_add(&c->srqs, srq, UINT32_MAX - 1, &srq->srq.handle);
	if (err != 0)
		goto fail;
	err = ring_memory_create(&srq->memory, "vernic-srq", wqe_offset + (size_t)depth * stride,
				 m);
	if (err != 0)
		goto fail_handle;
	base = srq->memory.base;
	srq->srq.dev = &c->device->dev;
	srq->srq.client = c;
	srq->srq.pd = pd;
	srq->srq.ring = srq->memory.base;
	srq->srq.index = (_Atomic uint32_t *)(base + index_offset);
	srq->srq.wqe = base + wqe_offset;
	srq->srq.depth = depth;
	srq->srq.stride = stride;
	srq->srq.max_sge = attr.max_sge;
	srq->srq.max_wr = depth < (uint32_t)limits->max_srq_wr ? depth
							       : (uint32_t)limits->max_srq_wr;
	pthread_spin_init(&srq->srq.lock, PTHREAD_PROCESS_PRIVATE);
	srq_write_post_faults(c, srq);
	atomic_fetch_add(&pd->users, 1);
	c->device->srqs++;
	m->reply->handle = srq->srq.handle;
	m->reply->create_srq.depth = depth;
	m->reply->create_srq.max_wr = srq->srq.max_wr;
	m->reply->create_srq.max_sge = attr.max_sge;
	m->reply->create_srq.stride = stride;
	m->reply->create_srq.index_offset = (uint32_t)index_offset;
	m->reply->create_srq.wqe_offset = (uint32_t)wqe_offset;
	m->reply->create_srq.size = srq->memory.size;
	m->reply->create_srq.srq_num = srq->srq.handle;
	return 0;
fail_handle:
	handle_remove(&c->srqs, srq->srq.handle);
fail:
	free(srq);
	return err;
}

/* ibv_modify_srq(3): the limit only; the size is fixed (IBV_DEVICE_SRQ_RESIZE is not set). */
int handle_modify_srq(struct client *c, struct message *m)
{
	struct host_srq *srq = handle_get(&c->srqs, m->req->handle);
	uint32_t mask = m->req->modify_srq.attr_mask;
	uint32_t limit = m->req->modify_srq.attr.srq_limit;

	if (srq == NULL || (mask & ~(uint32_t)(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0)
		return -EINVAL;
	if ((mask & IBV_SRQ_MAX_WR) != 0)
		return -EOPNOTSUPP;
	if ((mask & IBV_SRQ_LIMIT) == 0)
		return 0;
	if (limit > srq->srq.max_wr)
		return -EINVAL;
	pthread_spin_lock(&srq->srq.lock);
	srq->srq.limit = limit;
	pthread_spin_unlock(&srq->srq.lock);
	return 0;
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

/* Its QPs are gone, and with them every worker's interest. */
static void srq_destroy(struct client *c, struct host_srq *srq)
{
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
