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

bool client_poll(struct client_cq *cq, struct vernic_cqe *cqe)
{
	const struct vernic_cqe *slot = &cq->cq.cqe[cq->cons & (cq->cq.depth - 1)];

	if (vernic_load_acquire(&slot->lap) != (cq->cons >> cq->cq.shift) + 1)
		return false;
	*cqe = *slot;
	vernic_store_release(&cq->cq.ring->cons, ++cq->cons);
	return true;
}

void client_arm(struct client_cq *cq, uint64_t how)
{
	atomic_store(&cq->cq.ring->arm, how | cq->cons);
	vernic_full_barrier();
}

/* Makes a QP and its rings. @return 0 or a negative errno */
int client_create_qp(struct host *h, struct client_qp *qp, enum ibv_qp_type type,
		     struct client_cq *send_cq, struct client_cq *recv_cq, uint32_t sq_depth,
		     uint32_t rq_depth, bool sig_all, uint32_t index)
{
	size_t sges = CLIENT_MAX_SGE * sizeof(struct vernic_sge);
	size_t sq_offset = sizeof(struct vernic_qp_ring), rq_offset, size;

	*qp = (struct client_qp){
		.host = h,
		.p =
			{
				.dev = &h->dev,
				.pd = &h->pd,
				.send_cq = &send_cq->cq,
				.recv_cq = &recv_cq->cq,
				.type = type,
				.sq_sig_all = sig_all,
				.index = index,
				.cap =
					{
						.max_send_wr = sq_depth,
						.max_recv_wr = rq_depth,
						.max_send_sge = CLIENT_MAX_SGE,
						.max_recv_sge = CLIENT_MAX_SGE,
						.max_inline_data = CLIENT_SQ_DATA,
					},
				.sq_depth = sq_depth,
				.rq_depth = rq_depth,
				.sq_data = CLIENT_SQ_DATA,
			},
	};
	qp->p.sq_stride = (uint32_t)round_up(sizeof(struct vernic_send_wqe) + sges + CLIENT_SQ_DATA,
					     VERNIC_CACHELINE);
	qp->p.rq_stride =
		(uint32_t)round_up(sizeof(struct vernic_recv_wqe) + sges, VERNIC_CACHELINE);
	rq_offset = sq_offset + (size_t)sq_depth * qp->p.sq_stride;
	size = round_up(rq_offset + (size_t)rq_depth * qp->p.rq_stride, VERNIC_CACHELINE);
	qp->memory = aligned_alloc(VERNIC_CACHELINE, size);
	if (!qp->memory)
		return -ENOMEM;
	memset(qp->memory, 0, size);
	qp->p.ring = (struct vernic_qp_ring *)qp->memory;
	qp->p.sq = qp->memory + sq_offset;
	qp->p.rq = qp->memory + rq_offset;
	return qp_create(&h->engine, &qp->p, &qp->qp);
}

void client_destroy_qp(struct client_qp *qp)
{
	if (qp->qp)
		qp_destroy(qp->qp);
	free(qp->memory);
	*qp = (struct client_qp){0};
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
	struct host *h = qp->host;

	h->engine.now = h->world->now;
	engine_doorbell(&h->engine, qp->qp);
	host_kick(h);
}
