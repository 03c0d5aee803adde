/* SPDX-License-Identifier: BSD-2-Clause */
/* The engine: QP numbers, queues of work, and the round that drains them. */
#include "internal.h"

#include <stdlib.h>

/* Passes over run queue, dma and ACKs before the host gets to look at its doorbells again. */
#define ENGINE_PASSES 4

int engine_init(struct engine *e, const struct engine_ops *ops, void *host, uint32_t worker,
		struct dma *dma)
{
	*e = (struct engine){
		.ops = ops, .host = host, .worker = worker, .dma = dma, .next_slot = 1};
	CDS_INIT_LIST_HEAD(&e->run);
	CDS_INIT_LIST_HEAD(&e->acks);
	e->qps = calloc(ENGINE_MAX_QP, sizeof(*e->qps));
	e->generation = calloc(ENGINE_MAX_QP, sizeof(*e->generation));
	if (!e->qps || !e->generation) {
		engine_fini(e);
		return -ENOMEM;
	}
	return 0;
}

void engine_fini(struct engine *e)
{
	free(e->qps);
	free(e->generation);
	free(e->dirty);
	timer_heap_free(&e->timers);
}

int engine_add_qp(struct engine *e, struct qp *qp)
{
	/*
	 * Slots are used in turn, so a number comes back as late as possible; slot 0 never is, so
	 * that no QPN is 0 or 1.
	 */
	for (uint32_t tries = 0; tries < ENGINE_MAX_QP; tries++) {
		uint32_t slot = e->next_slot;

		e->next_slot = slot + 1 < ENGINE_MAX_QP ? slot + 1 : 1;
		if (e->qps[slot])
			continue;
		if (timer_heap_reserve(&e->timers, e->qp_count + 1))
			return -ENOMEM;
		e->qps[slot] = qp;
		e->qp_count++;
		qp->qpn = QPN_MAKE(e->generation[slot], slot, e->worker);
		e->generation[slot]++;
		return 0;
	}
	return -ENOMEM;
}

void engine_remove_qp(struct engine *e, struct qp *qp)
{
	e->qps[QPN_SLOT(qp->qpn)] = NULL;
	e->qp_count--;
}

struct qp *engine_find_qp(struct engine *e, uint32_t qpn)
{
	struct qp *qp = e->qps[QPN_SLOT(qpn)];

	return qp && qp->qpn == qpn ? qp : NULL;
}

void engine_schedule(struct engine *e, struct qp *qp)
{
	if (!qp->queued) {
		qp->queued = true;
		cds_list_add_tail(&qp->run_node, &e->run);
	}
}

void engine_unlink(struct engine *e, struct qp *qp)
{
	if (qp->queued)
		cds_list_del(&qp->run_node);
	if (qp->resp.ack_linked)
		cds_list_del(&qp->ack_node);
	qp->queued = false;
	qp->resp.ack_linked = false;
	timer_disarm(&e->timers, &qp->timer);
}

void engine_doorbell(struct engine *e, struct qp *qp)
{
	switch (qp->state) {
	case IBV_QPS_RTS:
		engine_schedule(e, qp);
		break;
	case IBV_QPS_ERR:
	case IBV_QPS_SQE:
		qp_flush(qp);
		break;
	default:
		break;
	}
}

/*
 * Whether a train belongs to its QP: service, partition and, for connected services, the peer's
 * addresses (IBTA 9.6.1); within this daemon its QP number too, which no packet carries.
 */
static bool train_is_for(const struct qp *qp, const struct train *t)
{
	if (!qp_receives(qp) || t->service != qp_service(qp))
		return false;
	if ((t->pkey & 0x7fff) != 0x7fff)
		return false;
	if (qp->p.type == IBV_QPT_UD) {
		for (unsigned int i = 0; i < qp->p.dev->gid_count; i++)
			if (!memcmp(qp->p.dev->gids[i].raw, t->path->dgid, 16))
				return true;
		return false;
	}
	/* Where the sender is known, a stranger cannot speak for the peer. */
	if (t->src_qpn && t->src_qpn != qp->attr.dest_qp_num)
		return false;
	return !memcmp(qp->path.dgid, t->path->sgid, 16) &&
	       !memcmp(qp->path.sgid, t->path->dgid, 16);
}

void engine_rx(struct engine *e, const struct train *received)
{
	struct train t = *received; /* the handlers cut it as they go */
	struct qp *qp = engine_find_qp(e, t.dst_qpn);

	e->counters.rx_packets += t.count;
	if (!qp || !train_is_for(qp, &t)) {
		e->counters.rx_dropped += t.count;
		return;
	}
	if (qp->state == IBV_QPS_RTR && !qp->established && qp->p.type != IBV_QPT_UD) {
		qp->established = true;
		e->ops->qp_event(e, qp, IBV_EVENT_COMM_EST);
	}
	switch (t.kind) {
	case KIND_ACK:
	case KIND_ATOMIC_ACK:
	case KIND_READ_RESPONSE:
		if (qp->p.type == IBV_QPT_RC && qp_sends(qp))
			completer_rx(qp, &t);
		else
			e->counters.rx_dropped += t.count;
		break;
	default:
		if (qp->p.type == IBV_QPT_UD)
			ud_rx(qp, &t);
		else
			responder_rx(qp, &t);
		break;
	}
}

/* Lets each QP of the run queue do a share of its work; who has more comes again. */
static void run_queues(struct engine *e)
{
	struct cds_list_head batch;

	CDS_INIT_LIST_HEAD(&batch);
	cds_list_splice(&e->run, &batch);
	CDS_INIT_LIST_HEAD(&e->run);
	while (!cds_list_empty(&batch)) {
		struct qp *qp = cds_list_first_entry(&batch, struct qp, run_node);
		bool more;

		cds_list_del(&qp->run_node);
		qp->queued = false;
		more = responder_run(qp);
		more |= qp->p.type == IBV_QPT_UD ? ud_run(qp) : requester_run(qp);
		if (more)
			engine_schedule(e, qp);
	}
}

/* Sends the ACK or NAK of each QP that owes one. */
static void send_acks(struct engine *e)
{
	struct cds_list_head batch;

	CDS_INIT_LIST_HEAD(&batch);
	cds_list_splice(&e->acks, &batch);
	CDS_INIT_LIST_HEAD(&e->acks);
	while (!cds_list_empty(&batch)) {
		struct qp *qp = cds_list_first_entry(&batch, struct qp, ack_node);

		cds_list_del(&qp->ack_node);
		qp->resp.ack_linked = false;
		responder_acknowledge(qp);
	}
}

bool engine_run(struct engine *e)
{
	timer_run(&e->timers, e->now);
	for (int pass = 0; pass < ENGINE_PASSES; pass++) {
		run_queues(e);
		dma_flush(e->dma);
		send_acks(e);
		dma_flush(e->dma);
		if (cds_list_empty(&e->run) && cds_list_empty(&e->acks))
			break;
	}
	engine_notify_cqs(e);
	return !cds_list_empty(&e->run) || !cds_list_empty(&e->acks);
}
