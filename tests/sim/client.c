/* SPDX-License-Identifier: BSD-2-Clause */
/* The simulator's verbs client: posts WQEs and polls CQEs by the rules of ring.h. */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* ---- completion queues ------------------------------------------------------------------- */

/* Makes a CQ. @depth: CQEs, a power of two. @return 0 or -ENOMEM */
int client_create_cq(struct host *h, struct client_cq *cq, uint32_t depth)
{
	size_t size = round_up(VERNIC_CQE_OFFSET + depth * sizeof(struct vernic_cqe), 64);
	void *memory = aligned_alloc(64, size);

	if (!memory)
		return -ENOMEM;
	memset(memory, 0, size);
	memset(cq, 0, sizeof(*cq));
	cq->cq.dev = &h->dev;
	cq_init(&cq->cq, memory, depth);
	return 0;
}

void client_destroy_cq(struct client_cq *cq)
{
	free(cq->cq.ring);
	cq->cq.ring = NULL;
}

/* @return the CQE at an index, or NULL if there is none yet */
static struct vernic_cqe *cqe_at(struct client_cq *cq, uint32_t index)
{
	struct vernic_cqe *slot = &cq->cq.cqe[index & (cq->cq.depth - 1)];

	return vernic_load_acquire(&slot->lap) == (index >> cq->cq.shift) + 1 ? slot : NULL;
}

bool client_poll(struct client_cq *cq, struct vernic_cqe *cqe)
{
	const struct vernic_cqe *slot;

	do {
		slot = cqe_at(cq, cq->cons);
		if (!slot)
			return false;
		*cqe = *slot;
		vernic_store_release(&cq->cq.ring->cons, ++cq->cons);
	} while (cqe->queue == VERNIC_CQE_NONE);
	return true;
}

void client_arm(struct client_cq *cq, uint64_t how)
{
	atomic_store(&cq->cq.ring->arm, how | cq->cons);
	vernic_full_barrier();
}

void client_clean_cq(struct client_cq *cq, uint32_t qp_index, struct client_srq *srq)
{
	struct vernic_cqe *cqe;

	for (uint32_t i = cq->cons; (cqe = cqe_at(cq, i)) != NULL; i++) {
		if (cqe->qp_index != qp_index || cqe->queue == VERNIC_CQE_NONE)
			continue;
		if (cqe->queue == VERNIC_CQE_SRQ)
			client_release_slot(srq, cqe->wqe);
		cqe->queue = VERNIC_CQE_NONE;
	}
}

void client_clean_xrc(struct client_cq *cq, uint32_t qpn, struct client_srq *srq)
{
	struct vernic_cqe *cqe;

	for (uint32_t i = cq->cons; (cqe = cqe_at(cq, i)) != NULL; i++) {
		if (cqe->qp_num != qpn ||
		    (cqe->queue != VERNIC_CQE_XRC_SRQ && cqe->queue != VERNIC_CQE_XRC_SLOT))
			continue;
		client_release_slot(srq, cqe->wqe);
		cqe->queue = VERNIC_CQE_NONE;
	}
}

/* ---- shared receive queues ----------------------------------------------------------------- */

int client_create_srq(struct host *h, struct client_srq *srq)
{
	size_t sges = CLIENT_MAX_SGE * sizeof(struct vernic_sge);
	size_t stride = round_up(sizeof(struct vernic_recv_wqe) + sges, 16);
	size_t index = sizeof(struct vernic_srq_ring);
	size_t wqe = round_up(index + SRQ_DEPTH * sizeof(uint32_t), VERNIC_CACHELINE);
	size_t size = round_up(wqe + SRQ_DEPTH * stride, VERNIC_CACHELINE);

	srq->memory = aligned_alloc(VERNIC_CACHELINE, size);
	if (!srq->memory)
		return -ENOMEM;
	memset(srq->memory, 0, size);
	srq->host = h;
	srq->srq = (struct srq){
		.dev = &h->dev,
		.pd = &h->pd,
		.handle = SRQ_HANDLE,
		.ring = srq->memory,
		.index = (_Atomic uint32_t *)((char *)srq->memory + index),
		.wqe = (uint8_t *)srq->memory + wqe,
		.depth = SRQ_DEPTH,
		.slot_mask = SRQ_DEPTH - 1,
		.stride = (uint32_t)stride,
		.max_sge = CLIENT_MAX_SGE,
		.max_wr = SRQ_DEPTH,
	};
	pthread_spin_init(&srq->srq.lock, PTHREAD_PROCESS_PRIVATE);
	for (uint32_t i = 0; i < SRQ_DEPTH; i++)
		srq->free[i] = i * 7 % SRQ_DEPTH; /* in no order */
	srq->free_count = SRQ_DEPTH;
	return 0;
}

void client_destroy_srq(struct client_srq *srq)
{
	free(srq->memory);
	srq->memory = NULL;
}

uint32_t client_post_srq(struct client_srq *srq, uint64_t wr_id, const struct vernic_sge *sge,
			 uint32_t num_sge)
{
	uint32_t slot = srq->free[--srq->free_count];
	uint8_t *p = srq->srq.wqe + (size_t)slot * srq->srq.stride;
	struct vernic_recv_wqe wqe = {.wr_id = wr_id, .num_sge = num_sge};

	memcpy(p, &wqe, sizeof(wqe));
	memcpy(p + sizeof(wqe), sge, num_sge * sizeof(*sge));
	atomic_store_explicit(&srq->srq.index[srq->prod % SRQ_DEPTH], slot, memory_order_relaxed);
	vernic_store_release(&srq->srq.ring->prod, ++srq->prod);
	return slot;
}

void client_release_slot(struct client_srq *srq, uint32_t slot)
{
	struct receive *rv = &srq->recv[slot];

	if (!rv->in_use) {
		world_fail(srq->host->world, "SRQ slot %u comes back twice", slot);
		return;
	}
	/* What a message that never ended left there is right, and must not change any more. */
	buffer_copy(&rv->buffer, srq->host->mm.model, srq->host->mm.mem);
	rv->in_use = false;
	srq->free[srq->free_count++] = slot;
}

/* ---- queue pairs --------------------------------------------------------------------------- */

int client_create_qp(struct client_qp *qp)
{
	size_t sges = CLIENT_MAX_SGE * sizeof(struct vernic_sge);
	size_t sq_offset = sizeof(struct vernic_qp_ring), rq_offset, size;
	struct qp_params *p = &qp->p;

	p->cap = (struct ibv_qp_cap){
		.max_send_wr = p->sq_depth,
		.max_recv_wr = p->rq_depth,
		.max_send_sge = CLIENT_MAX_SGE,
		.max_recv_sge = CLIENT_MAX_SGE,
		.max_inline_data = CLIENT_SQ_DATA,
	};
	p->sq_data = CLIENT_SQ_DATA;
	p->sq_stride = (uint32_t)round_up(sizeof(struct vernic_send_wqe) + sges + CLIENT_SQ_DATA,
					  VERNIC_CACHELINE);
	p->rq_stride = (uint32_t)round_up(sizeof(struct vernic_recv_wqe) + sges, VERNIC_CACHELINE);
	rq_offset = sq_offset + (size_t)p->sq_depth * p->sq_stride;
	size = round_up(rq_offset + (size_t)p->rq_depth * p->rq_stride, VERNIC_CACHELINE);
	qp->memory = aligned_alloc(VERNIC_CACHELINE, size);
	if (!qp->memory)
		return -ENOMEM;
	memset(qp->memory, 0, size);
	p->ring = (struct vernic_qp_ring *)qp->memory;
	p->sq = qp->memory + sq_offset;
	p->rq = qp->memory + rq_offset;
	qp->sq_prod = qp->sq_cons = qp->rq_prod = qp->rq_cons = 0;
	return qp_create(&qp->worker->engine, p, &qp->qp);
}

void client_destroy_qp(struct client_qp *qp)
{
	if (qp->qp)
		qp_destroy(qp->qp);
	free(qp->memory);
	qp->qp = NULL;
	qp->memory = NULL;
}

void client_reset_qp(struct client_qp *qp)
{
	qp->sq_prod = qp->sq_cons = qp->rq_prod = qp->rq_cons = 0;
}

void client_post_send(struct client_qp *qp, const struct vernic_send_wqe *wqe,
		      const struct vernic_sge *sge, const void *data, uint32_t len)
{
	uint8_t *slot = qp->p.sq + (size_t)(qp->sq_prod % qp->p.sq_depth) * qp->p.sq_stride;

	memcpy(slot, wqe, sizeof(*wqe));
	memcpy(slot + sizeof(*wqe), sge, wqe->num_sge * sizeof(*sge));
	if (data)
		memcpy(slot + qp->p.sq_stride - qp->p.sq_data, data, len);
	vernic_store_release(&qp->p.ring->sq_prod, ++qp->sq_prod);
}

void client_post_recv(struct client_qp *qp, uint64_t wr_id, const struct vernic_sge *sge,
		      uint32_t num_sge)
{
	uint8_t *slot = qp->p.rq + (size_t)(qp->rq_prod % qp->p.rq_depth) * qp->p.rq_stride;
	struct vernic_recv_wqe wqe = {.wr_id = wr_id, .num_sge = num_sge};

	memcpy(slot, &wqe, sizeof(wqe));
	memcpy(slot + sizeof(wqe), sge, num_sge * sizeof(*sge));
	vernic_store_release(&qp->p.ring->rq_prod, ++qp->rq_prod);
}

void client_doorbell(struct client_qp *qp)
{
	struct engine *e = &qp->worker->engine;

	e->now = qp->worker->host->world->now;
	engine_doorbell(e, qp->qp);
	worker_kick(qp->worker);
}
