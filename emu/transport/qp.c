/* SPDX-License-Identifier: BSD-2-Clause */
/* Queue pairs: their life, their attributes, and how they end in error. */
#include "internal.h"

#include <stdlib.h>

/* Sets the state, for us and for the client. */
static void set_state(struct qp *qp, enum ibv_qp_state state)
{
	qp->state = state;
	qp->attr.qp_state = state;
	vernic_store_release(&qp->p.ring->state, state);
	/* The client posts a receive, then looks at the state; we set it, then look at the RQ. */
	vernic_full_barrier();
}

unsigned int qp_service(const struct qp *qp)
{
	switch (qp->p.type) {
	case IBV_QPT_RC:
		return WIRE_RC;
	case IBV_QPT_UC:
		return WIRE_UC;
	case IBV_QPT_XRC_SEND:
	case IBV_QPT_XRC_RECV:
		return WIRE_XRC;
	default:
		return WIRE_UD;
	}
}

void qp_fill_cqe(struct qp *qp, struct vernic_cqe *cqe)
{
	/* data[] and lap stay as they are: one is copied in where needed, the other cq_push's. */
	memset(cqe, 0, offsetof(struct vernic_cqe, lap));
	cqe->timestamp = qp->engine->now;
	cqe->qp_index = qp->p.index;
	cqe->qp_num = qp->qpn;
}

void qp_fill_train(struct qp *qp, struct train *t, unsigned int kind)
{
	*t = (struct train){
		.path = &qp->path,
		.src_qpn = qp->qpn,
		.dst_qpn = qp->attr.dest_qp_num,
		.service = qp_service(qp),
		.kind = kind,
		.pkey = 0xffff,
		.count = 1,
		.mtu = qp->mtu,
		.ecn = qp->p.type == IBV_QPT_UD ? qp->path.traffic_class & ECN_MASK : ECN_ECT0,
	};
}

int qp_create(struct engine *e, const struct qp_params *params, struct qp **out)
{
	struct qp *qp = alloc_lines(sizeof(*qp));
	int err = -ENOMEM;

	if (!qp)
		return -ENOMEM;
	qp->p = *params;
	qp->xrc_target = params->type == IBV_QPT_XRC_RECV;
	qp->reliable = params->type == IBV_QPT_RC || params->type == IBV_QPT_XRC_SEND ||
		       qp->xrc_target;
	qp->engine = e;
	qp->timer.fire = requester_timer;
	CDS_INIT_LIST_HEAD(&qp->openers);
	qp->req.entry = calloc(params->sq_depth, sizeof(*qp->req.entry));
	qp->resp.wqe = calloc(1, sizeof(*qp->resp.wqe));
	if (!qp->req.entry || !qp->resp.wqe)
		goto fail;
	err = engine_add_qp(e, qp);
	if (err)
		goto fail;
	set_state(qp, IBV_QPS_RESET);
	*out = qp;
	return 0;
fail:
	free(qp->req.entry);
	free(qp->resp.wqe);
	free(qp);
	return err;
}

/* Nothing of the QP is held back any more. */
static void release(struct qp *qp)
{
	if (qp->engine->faults)
		qp->engine->ops->fault_release(qp->engine, qp);
}

void qp_destroy(struct qp *qp)
{
	/* No operation may name the QP when it is freed. */
	dma_flush(qp->engine->dma);
	release(qp);
	responder_return_wqe(qp);
	congestion_detach(qp);
	pacer_set(qp, 0, 0);
	engine_unlink(qp->engine, qp);
	engine_remove_qp(qp->engine, qp);
	free(qp->req.entry);
	free(qp->resp.wqe);
	free(qp->resp.job);
	free(qp);
}

uint32_t qp_take_srq_slot(struct qp *qp)
{
	if (!qp->p.srq || !qp->resp.have_wqe)
		return VERNIC_NO_SLOT;
	qp->resp.have_wqe = false;
	return qp->resp.wqe->slot;
}

/* Everything as after qp_create(), queues emptied without CQEs. */
static void reset(struct qp *qp)
{
	responder_return_wqe(qp);
	congestion_detach(qp);
	pacer_set(qp, 0, 0);
	engine_unlink(qp->engine, qp);
	qp->epoch++;
	memset(&qp->attr, 0, sizeof(qp->attr));
	memset(&qp->path, 0, sizeof(qp->path));
	qp->flushing = qp->last_wqe_event = qp->sqd_event = qp->established = false;
	requester_reset(qp);
	responder_reset(qp);
	vernic_store_release(&qp->p.ring->sq_prod, 0);
	vernic_store_release(&qp->p.ring->rq_prod, 0);
	set_state(qp, IBV_QPS_RESET);
}

/* Makes the path of the address vector in qp->attr. */
static void apply_path(struct qp *qp)
{
	const struct ibv_ah_attr *ah = &qp->attr.ah_attr;

	qp->path = (struct path){
		.flow_label = ah->grh.flow_label & 0xfffff,
		.hop_limit = ah->grh.hop_limit,
		.traffic_class = ah->grh.traffic_class,
		.sgid_index = ah->grh.sgid_index,
	};
	memcpy(qp->path.dgid, ah->grh.dgid.raw, 16);
	/* It was there when the call was checked, in this round. */
	memcpy(qp->path.sgid, qp->p.dev->gids[ah->grh.sgid_index].raw, 16);
	qp->engine->ops->route(qp->engine, qp->p.dev, &qp->path);
	congestion_attach(qp);
}

/* Takes over the attributes of a modify call that was checked. */
static void apply(struct qp *qp, const struct ibv_qp_attr *a, int mask)
{
	struct ibv_qp_attr *to = &qp->attr;

	if (mask & IBV_QP_PORT)
		to->port_num = a->port_num;
	if (mask & IBV_QP_PKEY_INDEX)
		to->pkey_index = a->pkey_index;
	if (mask & IBV_QP_ACCESS_FLAGS)
		to->qp_access_flags = a->qp_access_flags;
	if (mask & IBV_QP_QKEY)
		to->qkey = a->qkey;
	if (mask & IBV_QP_PATH_MTU) {
		to->path_mtu = a->path_mtu;
		qp->mtu = 128u << a->path_mtu;
	}
	if (mask & IBV_QP_DEST_QPN)
		to->dest_qp_num = a->dest_qp_num;
	if (mask & IBV_QP_RQ_PSN)
		to->rq_psn = a->rq_psn & PSN_MASK;
	if (mask & IBV_QP_SQ_PSN)
		to->sq_psn = a->sq_psn & PSN_MASK;
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
		to->max_rd_atomic = a->max_rd_atomic;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
		to->max_dest_rd_atomic = a->max_dest_rd_atomic;
	if (mask & IBV_QP_MIN_RNR_TIMER)
		to->min_rnr_timer = a->min_rnr_timer;
	if (mask & IBV_QP_TIMEOUT)
		to->timeout = a->timeout;
	if (mask & IBV_QP_RETRY_CNT)
		qp->req.retry_left = to->retry_cnt = a->retry_cnt;
	if (mask & IBV_QP_RNR_RETRY)
		qp->req.rnr_left = to->rnr_retry = a->rnr_retry;
	if (mask & IBV_QP_RATE_LIMIT)
		to->rate_limit = a->rate_limit;
	if (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY)
		qp->sqd_event = a->en_sqd_async_notify != 0;
	if (mask & IBV_QP_AV) {
		to->ah_attr = a->ah_attr;
		apply_path(qp);
	}
}

int qp_modify(struct qp *qp, const struct ibv_qp_attr *attr, int attr_mask)
{
	enum ibv_qp_state from = qp->state, next;
	int err;

	attr_mask = qp_state_mask(qp, attr_mask);
	err = qp_state_check(qp, attr, attr_mask, &next);
	if (err)
		return err;
	if (next == IBV_QPS_RESET && attr_mask & IBV_QP_STATE) {
		/* What was received before the command is reported before it. */
		dma_flush(qp->engine->dma);
		release(qp);
		reset(qp);
		return 0;
	}
	if (next == IBV_QPS_ERR && attr_mask & IBV_QP_STATE) {
		if (from != IBV_QPS_ERR)
			qp_error(qp, -1);
		return 0;
	}
	if (attr_mask & IBV_QP_RATE_LIMIT) {
		err = pacer_set(qp, attr->rate_limit, 0);
		if (err)
			return err;
	}
	apply(qp, attr, attr_mask);
	if (next == from)
		return 0;
	if (next == IBV_QPS_RTR) {
		if (qp->p.type == IBV_QPT_UD)
			qp->mtu = 128u << qp->p.dev->port_attr.active_mtu;
		responder_start(qp);
	}
	if (next == IBV_QPS_RTS && from == IBV_QPS_RTR)
		requester_start(qp);
	set_state(qp, next);
	/* Work posted meanwhile, or a queue that is drained already. */
	if (next == IBV_QPS_RTS || next == IBV_QPS_SQD)
		engine_schedule(qp->engine, qp);
	return 0;
}

void qp_query(const struct qp *qp, struct ibv_qp_attr *attr)
{
	*attr = qp->attr;
	attr->qp_state = qp->state;
	attr->cur_qp_state = qp->state;
	attr->path_mig_state = IBV_MIG_MIGRATED;
	attr->cap = qp->p.cap;
	attr->sq_draining = qp->state == IBV_QPS_SQD && qp->req.una != qp->req.begun;
	attr->en_sqd_async_notify = qp->sqd_event;
	/* RESET, INIT: the port is known once it was given. */
	if (qp->state >= IBV_QPS_RTR) {
		attr->rq_psn = qp->resp.epsn;
		if (qp->state >= IBV_QPS_RTS)
			attr->sq_psn = qp->req.psn;
	}
}

void qp_publish(struct qp *qp, struct cq *cq, const struct vernic_cqe *cqe, bool solicited)
{
	if (!cq_push(qp->engine, cq, cqe, solicited))
		qp_error(qp, IBV_EVENT_QP_FATAL);
}

void qp_complete(struct qp *qp, struct cq *cq, struct vernic_cqe *cqe, bool solicited)
{
	struct qp_counters *c = &qp->counters;
	struct engine *e = qp->engine;

	c->completions++;
	if (cqe->status != IBV_WC_SUCCESS) {
		bool flushed = cqe->status == IBV_WC_WR_FLUSH_ERR;

		if (cqe->queue == VERNIC_CQE_SQ) {
			c->req_cqe_error++;
			c->req_cqe_flush_error += flushed;
		} else {
			c->resp_cqe_error++;
			c->resp_cqe_flush_error += flushed;
		}
	} else if (cqe->queue != VERNIC_CQE_SQ) {
		c->rdma_recvs++;
	}
	/* That of a XRC SRQ is not held back: its CQ may go before the QP does. */
	if (!e->faults || cqe->queue == VERNIC_CQE_XRC_SRQ ||
	    !e->ops->fault_cqe(e, qp, cq, cqe, solicited))
		qp_publish(qp, cq, cqe, solicited);
}

/* Everything accepted before the error was placed and reported: now the rest is flushed. */
static void flush_done(struct dma *dma, struct dma_op *op, int error)
{
	struct qp *qp = op->qp;
	struct requester *r = &qp->req;
	uint32_t prod, left;

	if (op->epoch != qp->epoch)
		return;
	qp->flushing = false;
	/* Of SQE, and the QP went to ERR meanwhile: the flush of that comes behind what it
	 * accepted. */
	if (qp->state != (enum ibv_qp_state)op->arg[0])
		return;
	prod = vernic_load_acquire(&qp->p.ring->sq_prod);
	left = prod - r->una;
	for (left = left <= qp->p.sq_depth ? left : qp->p.sq_depth; left; left--) {
		const uint8_t *slot =
			qp->p.sq + (size_t)(r->una & (qp->p.sq_depth - 1)) * qp->p.sq_stride;
		struct vernic_cqe cqe;

		qp_fill_cqe(qp, &cqe);
		memcpy(&cqe.wr_id, slot + offsetof(struct vernic_send_wqe, wr_id),
		       sizeof(cqe.wr_id));
		cqe.queue = VERNIC_CQE_SQ;
		cqe.wqe = r->una++;
		cqe.status = r->fail_status ? r->fail_status : IBV_WC_WR_FLUSH_ERR;
		r->fail_status = IBV_WC_SUCCESS;
		qp_complete(qp, qp->p.send_cq, &cqe, true);
	}
	r->next = r->begun = r->posted = r->una;
	r->rd_entries = 0;
	r->psn = r->una_psn = r->send_psn = r->max_psn;
	r->rd_head = r->rd_tail;
	r->rnr_wait = false;
	if (qp->state == IBV_QPS_ERR)
		responder_flush(qp);
}

void qp_flush(struct qp *qp)
{
	struct dma_op *op;

	if (qp->flushing)
		return;
	qp->flushing = true;
	op = dma_submit(qp->engine->dma);
	op->done = flush_done;
	op->qp = qp;
	op->epoch = qp->epoch;
	op->arg[0] = qp->state;
}

void qp_error(struct qp *qp, int event)
{
	if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_RESET)
		return;
	set_state(qp, IBV_QPS_ERR);
	timer_disarm(&qp->engine->timers, &qp->timer);
	congestion_detach(qp);
	qp->flushing = false; /* one of SQE does not do */
	qp_flush(qp);
	if (event >= 0)
		qp->engine->ops->qp_event(qp->engine, qp, (enum ibv_event_type)event);
}

void qp_sq_error(struct qp *qp)
{
	if (!qp_sends(qp))
		return;
	set_state(qp, IBV_QPS_SQE);
	qp_flush(qp);
}
