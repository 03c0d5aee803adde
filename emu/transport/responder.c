/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The responder of RC, UC and XRC.
 *
 * Theory of operation
 * -------------------
 * A train is checked as a whole, in the order of the specification (IBTA 9.6, 9.7.4): PSN,
 * operation sequence, length, rights, receive WQE. What passes moves epsn on and is queued as a dma
 * operation; responder_done() then reports it: CQE, and the ACK that is owed. A train that was
 * partly received before, or whose last packet must wait for a receive, is cut.
 *
 * ACKs and NAKs are owed, not sent: one goes out per QP and round, for the newest PSN in place, and
 * behind the READ and atomic responses that come before it. READs and atomics become jobs, answered
 * in order by responder_run().
 *
 * A duplicate is answered without a second effect: a SEND or WRITE with the newest ACK, a READ by
 * reading again, an atomic from the stored result (IBTA 9.7.4.4, 9.4.5).
 *
 * A FLUSH and an ATOMIC WRITE are jobs like READs and atomics, with an answer that has no data.
 * What came before is in place when the job's dma operation is done.
 *
 * The target QP of a XRC connection has no receive queue, CQ and PD of its own: each request names
 * a SRQ of the QP's domain, and those are that SRQ's (IBTA A14). The SRQ may go at any time, so it
 * is looked up for each train, and what is kept of it is its number.
 */
#include "internal.h"

#include <stdlib.h>

/* arg[] of a responder's dma operation. */
enum { ARG_PSN, ARG_COUNT, ARG_MSN, ARG_FLAGS, ARG_JOB };
enum { DONE_ACK = 1, DONE_CQE = 2, DONE_SOLICITED = 4 };

static void responder_done(struct dma *dma, struct dma_op *op, int error);

/* @return the SRQ receives come from; NULL: the QP's RQ */
static struct srq *recv_srq(const struct qp *qp)
{
	return qp_is_xrc_target(qp) ? qp->resp.srq : qp->p.srq;
}

/* @return where receives complete */
static struct cq *recv_cq(const struct qp *qp)
{
	return qp_is_xrc_target(qp) ? qp->resp.srq->cq : qp->p.recv_cq;
}

/* @return the PD that rkeys must be of; XRC: NULL if the SRQ is gone */
static const struct pd *remote_pd(const struct qp *qp)
{
	if (!qp_is_xrc_target(qp))
		return qp->p.pd;
	return qp->resp.srq ? qp->resp.srq->pd : NULL;
}

/* Resolves what the peer names by a rkey. @return 0, or a negative errno: it may not have that */
static int resolve_rkey(const struct qp *qp, uint32_t rkey, uint64_t va, uint64_t len,
			uint32_t access, struct dma_segment *seg)
{
	const struct pd *pd = remote_pd(qp);

	return pd ? rkey_resolve(pd, qp->qpn, rkey, va, len, access, seg) : -EINVAL;
}

/* XRC: looks up the SRQ of a train. One of another domain is none (check_xrceth() tells). */
static void find_srq(struct qp *qp, uint32_t number)
{
	struct srq *srq;

	if (!qp_is_xrc_target(qp))
		return;
	srq = xrc_table_find(qp->p.dev->xrcs, number);
	if (srq && srq->xrcd != qp->p.xrcd && !MUTATION(xrc_domain_ignored))
		srq = NULL;
	qp->resp.srq = srq;
}

void responder_return_wqe(struct qp *qp)
{
	struct vernic_cqe cqe;

	if (!qp_is_xrc_target(qp) || !qp->resp.have_wqe)
		return;
	qp->resp.have_wqe = false;
	if (MUTATION(xrc_slot_lost))
		return;
	find_srq(qp, qp->resp.wqe_srqn);
	if (!qp->resp.srq)
		return;
	responder_fill_cqe(qp, &cqe);
	cqe.queue = VERNIC_CQE_XRC_SLOT;
	cq_push(qp->engine, recv_cq(qp), &cqe, false);
}

void responder_reset(struct qp *qp)
{
	struct recv_wqe *wqe = qp->resp.wqe;
	struct response_job *job = qp->resp.job;
	/* A SRQ's WQE stays taken: qp_take_srq_slot() gives it back. */
	bool have_wqe = qp->p.srq && qp->resp.have_wqe;

	qp->resp = (struct responder){.wqe = wqe, .job = job, .have_wqe = have_wqe};
}

void responder_start(struct qp *qp)
{
	struct responder *r = &qp->resp;

	r->epsn = qp->attr.rq_psn;
	r->ack_psn = r->acked_psn = psn_add(r->epsn, PSN_MASK);
	for (uint32_t i = 0; i < VERNIC_MAX_RD_ATOMIC; i++)
		r->atomic[i].psn = UINT32_MAX;
}

/* ---- answers owed -------------------------------------------------------------------------- */

/* An ACK goes out at the end of the round. */
static void owe_ack(struct qp *qp)
{
	struct responder *r = &qp->resp;

	r->ack_owed = true;
	if (!r->ack_linked) {
		r->ack_linked = true;
		cds_list_add_tail(&qp->ack_node, &qp->engine->acks);
	}
}

/* A NAK for the PSN expected goes out, instead of the ACK. */
static void owe_nak(struct qp *qp, uint8_t syndrome)
{
	struct responder *r = &qp->resp;

	r->nak = syndrome;
	r->nak_psn = r->epsn;
	r->nak_sent = true;
	owe_ack(qp);
}

/* Whether READs and atomics accepted are answered: those in front of a refused request are, too. */
static bool answers(const struct qp *qp)
{
	return qp_receives(qp) ||
	       (qp->state == IBV_QPS_ERR && qp->resp.refused && !MUTATION(closed_before_answers));
}

/*
 * Which PSN an ACK is for: the newest in place. But not that of a READ or atomic, which its own
 * answer acknowledges: were that lost, an ACK would tell the requester that none is to come
 * (Linux's rxe takes it so). Nor, for a duplicate, one behind a READ or atomic that follows the
 * duplicate: a requester that sends all of it again has no answer of that yet, and would begin once
 * more.
 * @return whether one is due
 */
static bool ack_due(const struct responder *r, uint32_t *psn)
{
	*psn = r->ack_psn;
	if (!r->rd_any)
		return true;
	if (psn_diff(r->ack_psn, r->rd_psn) > 0 &&
	    (r->ack_fresh || psn_diff(r->dup_psn, r->rd_psn) > 0))
		return true;
	*psn = r->dup_psn;
	return r->dup_owed;
}

bool responder_may_hold(const struct qp *qp)
{
	const struct responder *r = &qp->resp;

	return qp->path.route == ROUTE_UDP && !r->nak && !r->dup_owed &&
	       r->job_head == r->job_tail && psn_diff(r->ack_psn, r->acked_psn) == 1;
}

void responder_acknowledge(struct qp *qp)
{
	struct responder *r = &qp->resp;
	struct train t;
	bool due;

	if (!r->ack_owed || qp->state == IBV_QPS_RESET)
		return;
	if (r->job_head != r->job_tail && answers(qp))
		return; /* responder_run() sends it behind the responses */
	r->ack_owed = false;
	qp_fill_train(qp, &t, KIND_ACK);
	t.first = t.last = true;
	t.mtu = 0;
	/* What a sequence or RNR NAK asks for may have arrived meanwhile. */
	if (r->nak_psn != r->epsn &&
	    (r->nak == (AETH_NAK | NAK_PSN_SEQUENCE) || AETH_CLASS(r->nak) == AETH_RNR_NAK))
		r->nak = 0;
	if (r->nak) {
		t.psn = r->nak_psn;
		t.aeth.syndrome = r->nak;
		if (AETH_CLASS(r->nak) == AETH_RNR_NAK)
			qp->counters.send_rnr_err++;
		due = true;
	} else {
		due = ack_due(r, &t.psn);
		t.aeth.syndrome = AETH_ACK | AETH_NO_CREDITS;
	}
	t.aeth.msn = r->ack_msn;
	r->acked_psn = r->ack_psn;
	r->nak = 0;
	r->ack_fresh = r->dup_owed = false;
	if (due)
		engine_tx(qp, &t);
}

/* ---- receive WQEs -------------------------------------------------------------------------- */

/* @return the receive WQE at an index of the RQ, in shared memory */
static const uint8_t *rq_slot(const struct qp *qp, uint32_t index)
{
	return qp->p.rq + (size_t)(index & (qp->p.rq_depth - 1)) * qp->p.rq_stride;
}

/* Takes the next WQE of the RQ. @return false if there is none, or the index is nonsense */
static bool rq_take(struct qp *qp)
{
	struct responder *r = &qp->resp;
	struct vernic_recv_wqe head;
	const uint8_t *p;

	if (r->rq_posted == r->rq_cons) {
		uint32_t prod = vernic_load_acquire(&qp->p.ring->rq_prod);

		if (prod == r->rq_cons || prod - r->rq_cons > qp->p.rq_depth)
			return false;
		r->rq_posted = prod;
	}
	p = rq_slot(qp, r->rq_cons);
	copy_out(&head, p, sizeof(head));
	r->wqe->wr_id = head.wr_id;
	r->wqe->slot = r->rq_cons++;
	if (r->rq_posted != r->rq_cons)
		__builtin_prefetch(rq_slot(qp, r->rq_cons)); /* as prefetch_wqe() */
	r->wqe->num_sge = head.num_sge <= qp->p.cap.max_recv_sge ? head.num_sge : 0;
	copy_out(r->wqe->sge, p + sizeof(head), r->wqe->num_sge * sizeof(r->wqe->sge[0]));
	return true;
}

bool responder_take_wqe(struct qp *qp)
{
	struct responder *r = &qp->resp;
	struct srq *srq = recv_srq(qp);

	/* It is gone, which nobody has found yet: a fault answers before any check. */
	if (qp_is_xrc_target(qp) && !srq)
		return false;
	/* Kept since a train that was not accepted, and this one is for another SRQ. */
	if (qp_is_xrc_target(qp) && r->have_wqe && r->wqe_srqn != srq->number) {
		responder_return_wqe(qp);
		r->srq = srq;
	}
	if (r->have_wqe)
		return true;
	r->have_wqe = srq ? srq_take(qp->engine, srq, r->wqe) : rq_take(qp);
	r->wqe_srqn = srq ? srq->number : 0;
	return r->have_wqe;
}

void responder_fill_cqe(struct qp *qp, struct vernic_cqe *cqe)
{
	qp_fill_cqe(qp, cqe);
	cqe->wr_id = qp->resp.wqe->wr_id;
	cqe->wqe = qp->resp.wqe->slot;
	cqe->queue = qp->p.srq ? VERNIC_CQE_SRQ : VERNIC_CQE_RQ;
	if (qp_is_xrc_target(qp)) {
		cqe->queue = VERNIC_CQE_XRC_SRQ;
		cqe->qp_index = qp->resp.srq->handle;
	}
}

int responder_resolve(struct qp *qp, uint32_t offset, uint32_t len, struct dma_list *list)
{
	const struct srq *srq = recv_srq(qp);
	const struct pd *pd = srq ? srq->pd : qp->p.pd;
	const struct recv_wqe *wqe = qp->resp.wqe;

	return sge_resolve(qp->engine->dma, pd, wqe->sge, wqe->num_sge, offset, len,
			   IBV_ACCESS_LOCAL_WRITE, list);
}

/* Completes the WQE taken with a flush error. */
static void flush_one(struct qp *qp)
{
	struct vernic_cqe cqe;

	responder_fill_cqe(qp, &cqe);
	cqe.status = IBV_WC_WR_FLUSH_ERR;
	qp->resp.have_wqe = false;
	qp_complete(qp, recv_cq(qp), &cqe, true);
}

void responder_flush(struct qp *qp)
{
	struct responder *r = &qp->resp;

	if (MUTATION(receive_lost))
		r->have_wqe = false;
	if (qp_is_xrc_target(qp)) {
		/* The SRQ's other receives are none of this QP's. */
		find_srq(qp, r->wqe_srqn);
		if (r->have_wqe && r->srq)
			flush_one(qp);
		r->have_wqe = false;
		r->kind = KIND_NONE;
		return;
	}
	if (r->have_wqe)
		flush_one(qp);
	r->kind = KIND_NONE;
	if (!qp->p.srq) {
		/* What is posted meanwhile rings the doorbell; a client cannot keep us here. */
		for (uint32_t left = qp->p.rq_depth; left && responder_take_wqe(qp); left--)
			flush_one(qp);
		return;
	}
	if (!qp->last_wqe_event) {
		qp->last_wqe_event = true;
		qp->engine->ops->qp_event(qp->engine, qp, IBV_EVENT_QP_LAST_WQE_REACHED);
	}
}

/* ---- dma done -------------------------------------------------------------------------------- */

/* Everything up to psn is in place, and may be acknowledged. */
static void in_place(struct qp *qp, uint32_t psn, uint32_t msn)
{
	struct responder *r = &qp->resp;

	if (psn_diff(psn, r->ack_psn) > 0) {
		r->ack_psn = psn;
		r->ack_msn = msn;
		/* Long ago: before PSNs wrap and it seems to be ahead. */
		if (psn_diff(psn, r->rd_psn) > 1 << 20)
			r->rd_any = false;
	}
}

/* Memory that was registered could not be reached: the connection ends. */
static void memory_failed(struct qp *qp, uint32_t psn)
{
	qp->resp.failed = true;
	qp->resp.refused = false;
	if (qp_is_reliable(qp)) {
		owe_nak(qp, AETH_NAK | NAK_REMOTE_OPERATION);
		qp->resp.nak_psn = psn;
	}
	qp_error(qp, -1);
}

/* dma_op.done of a train: its bytes are in place, or could not be written. */
static void responder_done(struct dma *dma, struct dma_op *op, int error)
{
	struct qp *qp = op->qp;
	struct responder *r = &qp->resp;
	uint32_t flags = op->arg[ARG_FLAGS];

	if (op->epoch != qp->epoch)
		return;
	if (error && !r->failed) {
		memory_failed(qp, psn_add(op->arg[ARG_PSN], 1 - op->arg[ARG_COUNT]));
		op->cqe.status = IBV_WC_LOC_PROT_ERR;
	} else if (r->failed) {
		op->cqe.status = IBV_WC_WR_FLUSH_ERR;
	}
	if (flags & DONE_CQE)
		qp_complete(qp, op->ctx, &op->cqe,
			    flags & DONE_SOLICITED || op->cqe.status != IBV_WC_SUCCESS);
	if (r->failed || !qp_is_reliable(qp))
		return;
	in_place(qp, op->arg[ARG_PSN], op->arg[ARG_MSN]);
	if (flags & DONE_ACK) {
		r->ack_fresh = true;
		owe_ack(qp);
	}
}

/* A dma operation that will report: the submitter fills in lists and CQE. */
static struct dma_op *submit(struct qp *qp, uint32_t psn, uint32_t count, uint32_t flags)
{
	struct dma_op *op = dma_submit(qp->engine->dma);

	op->done = responder_done;
	op->qp = qp;
	op->epoch = qp->epoch;
	op->arg[ARG_PSN] = psn;
	op->arg[ARG_COUNT] = count;
	op->arg[ARG_MSN] = qp->resp.msn;
	op->arg[ARG_FLAGS] = flags;
	if (flags & DONE_CQE)
		op->ctx = recv_cq(qp);
	return op;
}

/* Fails the receive taken, behind everything before it, and the connection with it. */
static void fail_recv(struct qp *qp, enum ibv_wc_status status, enum aeth_nak nak, int event)
{
	struct responder *r = &qp->resp;
	struct dma_op *op = submit(qp, r->ack_psn, 1, DONE_CQE | DONE_SOLICITED);

	qp->counters.resp_local_length_error += status == IBV_WC_LOC_LEN_ERR;
	qp->counters.resp_remote_access_errors += nak == NAK_REMOTE_ACCESS;
	responder_fill_cqe(qp, &op->cqe);
	op->cqe.status = status;
	r->have_wqe = false;
	if (qp_is_reliable(qp)) {
		r->refused = true;
		owe_nak(qp, AETH_NAK | nak);
	}
	qp_error(qp, event);
}

/*
 * Ends the connection with a NAK (class B and C errors, IBTA 9.9.3), behind the answers of what was
 * accepted before; UC drops the message.
 */
static void refuse(struct qp *qp, enum aeth_nak code, int event)
{
	qp->counters.resp_remote_access_errors += code == NAK_REMOTE_ACCESS;
	if (!qp_is_reliable(qp)) {
		qp->resp.kind = KIND_NONE;
		return;
	}
	qp->resp.refused = true;
	owe_nak(qp, AETH_NAK | code);
	qp_error(qp, event);
}

/* No receive is posted: RNR NAK; UC drops the message. */
static void not_ready(struct qp *qp)
{
	qp->counters.out_of_buffer++;
	if (qp_is_reliable(qp))
		owe_nak(qp, AETH_RNR_NAK | qp->attr.min_rnr_timer);
	else
		qp->resp.kind = KIND_NONE;
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Fails the receive a message has taken if a fault wants it. @return whether it did */
static bool fault_recv(struct qp *qp)
{
	enum ibv_wc_status status;

	if (!qp->engine->faults)
		return false;
	status = qp->engine->ops->fault_recv(qp->engine, qp);
	switch (status) {
	case IBV_WC_SUCCESS:
		return false;
	case IBV_WC_LOC_LEN_ERR:
		fail_recv(qp, status, NAK_INVALID_REQUEST, -1);
		return true;
	case IBV_WC_LOC_ACCESS_ERR:
		fail_recv(qp, status, NAK_REMOTE_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
		return true;
	default:
		fail_recv(qp, status, NAK_REMOTE_OPERATION, -1);
		return true;
	}
}

/*
 * Answers the packet expected next by a NAK. What that does here is what the error it reports
 * does (IBTA 9.9.3.1): an access or request error is an event, and an operation that failed fails
 * its receive if it has one.
 */
static void fault_nak(struct qp *qp, unsigned int kind, uint8_t syndrome)
{
	if (AETH_CLASS(syndrome) == AETH_RNR_NAK) {
		not_ready(qp);
		return;
	}
	switch (AETH_VALUE(syndrome)) {
	case NAK_PSN_SEQUENCE:
		owe_nak(qp, syndrome);
		break;
	case NAK_REMOTE_ACCESS:
		refuse(qp, NAK_REMOTE_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
		break;
	case NAK_REMOTE_OPERATION:
		if (kind == KIND_SEND && responder_take_wqe(qp))
			fail_recv(qp, IBV_WC_LOC_QP_OP_ERR, NAK_REMOTE_OPERATION, -1);
		else
			refuse(qp, NAK_REMOTE_OPERATION, IBV_EVENT_QP_FATAL);
		break;
	default:
		refuse(qp, (enum aeth_nak)AETH_VALUE(syndrome), IBV_EVENT_QP_REQ_ERR);
		break;
	}
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* A job is waiting that will answer psn anyway. */
static bool job_pending(const struct qp *qp, uint32_t psn)
{
	const struct responder *r = &qp->resp;

	for (uint32_t i = r->job_head; i != r->job_tail; i++) {
		const struct response_job *job = &r->job[i % RESPONDER_JOBS];
		int32_t offset = psn_diff(psn, job->psn);

		if (!MUTATION(answered_twice) && offset >= 0 &&
		    (uint32_t)offset < packets_of(job->length, qp->mtu) &&
		    job->sent <= (uint32_t)offset * qp->mtu)
			return true;
	}
	return false;
}

/* @return a new job at the tail, for the request of a train, or NULL if there is no room */
static struct response_job *job_add(struct qp *qp, const struct train *t)
{
	struct responder *r = &qp->resp;
	struct response_job *job;

	if (!r->job)
		r->job = calloc(RESPONDER_JOBS, sizeof(*r->job));
	if (!r->job || r->job_tail - r->job_head == RESPONDER_JOBS)
		return NULL;
	job = &r->job[r->job_tail++ % RESPONDER_JOBS];
	*job = (struct response_job){
		.kind = t->kind,
		.psn = t->psn,
		.msn = r->msn,
		.va = t->reth.va,
		.rkey = t->reth.rkey,
		.xrc_srqn = t->xrc_srqn,
		.ready = t->kind == KIND_READ_REQUEST,
	};
	engine_schedule(qp->engine, qp);
	return job;
}

/* Answers a READ again (IBTA 9.7.4.4). What it may not read any more it does not get. */
static void replay_read(struct qp *qp, const struct train *t)
{
	struct dma_segment seg;
	struct response_job *job;

	if (job_pending(qp, t->psn) || t->reth.length > VERNIC_MAX_MSG_SIZE ||
	    (t->reth.length && resolve_rkey(qp, t->reth.rkey, t->reth.va, t->reth.length,
					    IBV_ACCESS_REMOTE_READ, &seg)))
		return;
	job = job_add(qp, t);
	if (!job)
		return;
	job->length = t->reth.length;
}

/* Answers a FLUSH or ATOMIC WRITE again: what it asked for is done, and is not done twice. */
static void replay_placed(struct qp *qp, const struct train *t)
{
	struct response_job *job;

	if (job_pending(qp, t->psn))
		return;
	if (t->kind == KIND_ATOMIC_WRITE && MUTATION(atomic_write_twice)) {
		struct dma_op *op = dma_submit(qp->engine->dma);

		op->src = t->payload;
		op->dst = (struct dma_list){.seg = dma_segments(qp->engine->dma, 1),
					    .count = 1,
					    .len = ATOMIC_WRITE_LEN};
		if (t->payload.len != ATOMIC_WRITE_LEN ||
		    resolve_rkey(qp, t->reth.rkey, t->reth.va, ATOMIC_WRITE_LEN,
				 IBV_ACCESS_REMOTE_WRITE, op->dst.seg))
			op->src = op->dst = (struct dma_list){0};
	}
	job = job_add(qp, t);
	if (job)
		job->ready = true;
}

/* A duplicate of an atomic: the stored result, if it is still there, and nothing done twice. */
static void replay_atomic(struct qp *qp, const struct train *t)
{
	struct responder *r = &qp->resp;

	if (job_pending(qp, t->psn))
		return;
	if (MUTATION(atomic_twice)) {
		struct dma_segment seg;

		if (!resolve_rkey(qp, t->reth.rkey, t->reth.va, 8, IBV_ACCESS_REMOTE_ATOMIC, &seg))
			dma_write_now(qp->engine->dma, seg.mm, seg.addr, &t->atomic.swap_add, 8);
	}
	for (uint32_t i = 0; i < VERNIC_MAX_RD_ATOMIC; i++) {
		struct response_job *job;

		if (r->atomic[i].psn != t->psn)
			continue;
		job = job_add(qp, t);
		if (!job)
			return;
		job->ready = true;
		job->orig = r->atomic[i].orig;
		return;
	}
}

/* Cuts the first n packets off a train. */
static void trim_front(struct qp *qp, struct train *t, uint32_t n)
{
	t->payload =
		dma_slice(qp->engine->dma, &t->payload, n * qp->mtu, t->payload.len - n * qp->mtu);
	t->psn = psn_add(t->psn, n);
	t->count -= n;
	t->first = false;
}

/* Leaves the first n packets of a train, which are not all of them. */
static void trim_end(struct qp *qp, struct train *t, uint32_t n)
{
	t->last = t->imm = t->inv = t->solicited = false;
	t->count = n;
	t->payload = dma_slice(qp->engine->dma, &t->payload, 0, n * qp->mtu);
}

/* PSN of an RC request (IBTA 9.7.4.1). @return whether it is the expected one */
static bool check_psn(struct qp *qp, struct train *t)
{
	struct responder *r = &qp->resp;
	int32_t diff = psn_diff(t->psn, r->epsn);

	if (diff == 0) {
		r->nak_sent = false;
		return true;
	}
	if (diff > 0) {
		qp->counters.out_of_sequence += t->count;
		if (!r->nak_sent && !MUTATION(nak_never_sent)) {
			qp->counters.out_of_seq_request++;
			owe_nak(qp, AETH_NAK | NAK_PSN_SEQUENCE);
		}
		return false;
	}
	/* Of a train only those before the one expected. */
	qp->counters.duplicate_request += t->count < (uint32_t)-diff ? t->count : (uint32_t)-diff;
	switch (t->kind) {
	case KIND_READ_REQUEST:
		replay_read(qp, t);
		return false;
	case KIND_COMPARE_SWAP:
	case KIND_FETCH_ADD:
		replay_atomic(qp, t);
		return false;
	case KIND_FLUSH:
	case KIND_ATOMIC_WRITE:
		replay_placed(qp, t);
		return false;
	default:
		break;
	}
	if (diff + (int32_t)t->count <= 0) {
		uint32_t last = psn_add(t->psn, t->count - 1);

		if (!r->dup_owed || psn_diff(last, r->dup_psn) > 0)
			r->dup_psn = last;
		r->dup_owed = true;
		owe_ack(qp);
		return false;
	}
	if (t->payload.len < (uint32_t)-diff * qp->mtu)
		return false;
	trim_front(qp, t, (uint32_t)-diff);
	r->nak_sent = false;
	return true;
}

/* UC: a lost packet ends its message; the next first packet begins a new one (IBTA 9.8.2.2). */
static bool check_psn_uc(struct qp *qp, const struct train *t)
{
	struct responder *r = &qp->resp;

	if (t->psn != r->epsn)
		r->kind = KIND_NONE;
	if (t->first)
		r->kind = KIND_NONE;
	r->epsn = t->psn;
	if (t->first || r->kind != KIND_NONE)
		return true;
	r->epsn = psn_add(t->psn, t->count);
	return false;
}

/* The place of a packet in its message (IBTA 9.7.4.1.3). */
static bool check_op_seq(const struct qp *qp, const struct train *t)
{
	const struct responder *r = &qp->resp;

	if (qp->p.type == IBV_QPT_UC && MUTATION(uc_op_seq_ignored))
		return true;
	return r->kind == KIND_NONE ? t->first : !t->first && t->kind == r->kind;
}

/* Every packet but the last has the path MTU, the last 1 byte up to it (IBTA 9.7.4.1.6). */
static bool check_length(const struct qp *qp, const struct train *t)
{
	uint64_t full = (uint64_t)t->count * qp->mtu;

	if (t->count > 1 && t->mtu != qp->mtu)
		return false;
	if (!t->last)
		return t->payload.len == full;
	if (t->first && t->count == 1)
		return t->payload.len <= full;
	return t->payload.len > full - qp->mtu && t->payload.len <= full;
}

/*
 * The XRCETH names a SRQ of this domain, the same in all packets of a message (IBTA A14). That
 * holds for READs and WRITEs too: the SRQ says whose memory they are for.
 */
static bool check_xrceth(struct qp *qp, const struct train *t)
{
	struct responder *r = &qp->resp;

	if (!r->srq && xrc_table_find(qp->p.dev->xrcs, t->xrc_srqn)) {
		refuse(qp, NAK_REMOTE_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
		return false;
	}
	if (!r->srq || (!t->first && t->xrc_srqn != r->xrc_srqn)) {
		refuse(qp, NAK_INVALID_REQUEST, IBV_EVENT_QP_ACCESS_ERR);
		return false;
	}
	r->xrc_srqn = t->xrc_srqn;
	return true;
}

/* ---- requests -------------------------------------------------------------------------------- */

/*
 * Accepts a train of a SEND or WRITE: its bytes go to dst. With the last packet the message is
 * whole, and with have_wqe its receive is completed.
 */
static void accept(struct qp *qp, const struct train *t, const struct dma_list *dst)
{
	struct responder *r = &qp->resp;
	bool complete = t->last && r->have_wqe && (t->kind == KIND_SEND || t->imm);
	uint32_t flags = (t->ackreq ? DONE_ACK : 0) | (complete ? DONE_CQE : 0) |
			 (t->solicited ? DONE_SOLICITED : 0);
	struct dma_op *op;

	qp->counters.rx_write_requests += t->kind == KIND_WRITE && t->first;
	r->epsn = psn_add(t->psn, t->count);
	r->kind = t->last ? KIND_NONE : t->kind;
	r->offset += t->payload.len;
	if (t->last)
		r->msn = (r->msn + 1) & 0xffffff;
	op = submit(qp, psn_add(r->epsn, PSN_MASK), t->count, flags);
	if (complete) {
		responder_fill_cqe(qp, &op->cqe);
		op->cqe.status = IBV_WC_SUCCESS;
		op->cqe.opcode = t->kind == KIND_SEND ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
		op->cqe.byte_len = r->offset;
		op->cqe.wc_flags = t->imm ? IBV_WC_WITH_IMM : t->inv ? IBV_WC_WITH_INV : 0;
		op->cqe.imm = t->imm || t->inv ? t->imm_data : 0;
		op->cqe.src_qp = qp->attr.dest_qp_num;
		r->have_wqe = false;
		if (t->kind == KIND_SEND && t->first &&
		    t->payload.len <= cq_data_room(recv_cq(qp)) && list_is_local(&t->payload) &&
		    list_is_placeable(dst)) {
			list_copy(op->cqe.data, &t->payload);
			op->cqe.data_len = (uint8_t)t->payload.len;
			return;
		}
	}
	op->src = t->payload;
	op->dst = *dst;
	if (MUTATION(ack_too_early) && flags & DONE_ACK) {
		in_place(qp, psn_add(r->epsn, PSN_MASK), r->msn);
		owe_ack(qp);
		responder_acknowledge(qp);
	}
}

/* Ends the binding of a window as a SEND asks for. @return whether it could */
static bool invalidate(struct qp *qp, uint32_t rkey)
{
	return MUTATION(invalidate_forgotten) || mw_invalidate(remote_pd(qp), qp->qpn, rkey) == 0;
}

/* A train of SEND packets. */
static void send_rx(struct qp *qp, const struct train *t)
{
	struct responder *r = &qp->resp;
	struct dma_list dst;
	int err;

	if (t->first) {
		if (!responder_take_wqe(qp)) {
			not_ready(qp);
			return;
		}
		if (fault_recv(qp))
			return;
		r->offset = 0;
	}
	/* Beyond that offset and byte_len might wrap: SGEs may claim any length. */
	if (t->payload.len > VERNIC_MAX_MSG_SIZE - r->offset)
		err = -EMSGSIZE;
	else
		err = responder_resolve(qp, r->offset, t->payload.len, &dst);
	if (err == -EMSGSIZE)
		fail_recv(qp, IBV_WC_LOC_LEN_ERR, NAK_INVALID_REQUEST, -1);
	else if (err)
		fail_recv(qp, IBV_WC_LOC_PROT_ERR, NAK_REMOTE_OPERATION, -1);
	else if (t->inv && !invalidate(qp, t->imm_data))
		fail_recv(qp, IBV_WC_LOC_ACCESS_ERR, NAK_REMOTE_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
	else
		accept(qp, t, &dst);
}

/* A WRITE's rkey does not allow it. A receive that its immediate was for fails too. */
static void write_denied(struct qp *qp, const struct train *t)
{
	if (qp_is_reliable(qp) && t->imm && responder_take_wqe(qp))
		fail_recv(qp, IBV_WC_LOC_ACCESS_ERR, NAK_REMOTE_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
	else
		refuse(qp, NAK_REMOTE_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
}

/* A train of RDMA WRITE packets. */
static void write_rx(struct qp *qp, struct train *t)
{
	struct responder *r = &qp->resp;
	struct dma_segment *seg = dma_segments(qp->engine->dma, 1);
	struct dma_list dst = {0};
	bool starved = false;

	if (t->first) {
		if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)) {
			refuse(qp, NAK_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
			return;
		}
		if (t->reth.length && resolve_rkey(qp, t->reth.rkey, t->reth.va, t->reth.length,
						   IBV_ACCESS_REMOTE_WRITE, seg)) {
			write_denied(qp, t);
			return;
		}
		r->va = t->reth.va;
		r->rkey = t->reth.rkey;
		r->length = t->reth.length;
		r->offset = 0;
	}
	if (r->length > VERNIC_MAX_MSG_SIZE || t->payload.len > r->length - r->offset ||
	    (t->last && t->payload.len != r->length - r->offset)) {
		refuse(qp, NAK_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
		return;
	}
	if (t->imm && !responder_take_wqe(qp)) {
		if (t->count == 1 || !qp_is_reliable(qp)) {
			not_ready(qp);
			return;
		}
		/* All but the last packet can be taken. */
		starved = true;
		trim_end(qp, t, t->count - 1);
	} else if (t->imm && fault_recv(qp)) {
		return;
	}
	if (t->payload.len) {
		dst = (struct dma_list){.seg = seg, .count = 1, .len = t->payload.len};
		if (t->first) {
			seg->len = dst.len; /* of the message, which was checked as a whole */
		} else if (resolve_rkey(qp, r->rkey, r->va + r->offset, dst.len,
					IBV_ACCESS_REMOTE_WRITE, seg)) {
			write_denied(qp, t);
			return;
		}
	}
	accept(qp, t, &dst);
	if (starved)
		not_ready(qp);
}

/* What has an answer of its own: how many may be waiting for their answer (IBTA 9.7.4.1.5). */
static bool check_rd_depth(struct qp *qp)
{
	if (qp->resp.job_fresh < qp->attr.max_dest_rd_atomic)
		return true;
	refuse(qp, NAK_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
	return false;
}

/* Accepts what has an answer, and takes packets PSNs. @return its job, or NULL: drop it */
static struct response_job *accept_job(struct qp *qp, const struct train *t, uint32_t packets)
{
	struct responder *r = &qp->resp;
	struct response_job *job = job_add(qp, t);

	if (!job)
		return NULL;
	r->msn = (r->msn + 1) & 0xffffff;
	r->job_fresh++;
	r->epsn = psn_add(t->psn, packets);
	r->rd_any = true;
	r->rd_psn = psn_add(r->epsn, PSN_MASK);
	qp->counters.rx_read_requests += t->kind == KIND_READ_REQUEST;
	qp->counters.rx_atomic_requests += kind_is_atomic(t->kind);
	qp->counters.rx_write_requests += t->kind == KIND_ATOMIC_WRITE;
	job->fresh = true;
	job->msn = r->msn;
	return job;
}

/* A READ request. */
static void read_rx(struct qp *qp, const struct train *t)
{
	struct dma_segment seg;
	struct response_job *job;

	if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_READ) ||
	    t->reth.length > VERNIC_MAX_MSG_SIZE) {
		refuse(qp, NAK_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
		return;
	}
	if (t->reth.length && resolve_rkey(qp, t->reth.rkey, t->reth.va, t->reth.length,
					   IBV_ACCESS_REMOTE_READ, &seg)) {
		refuse(qp, NAK_REMOTE_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
		return;
	}
	if (!check_rd_depth(qp))
		return;
	job = accept_job(qp, t, packets_of(t->reth.length, qp->mtu));
	if (job)
		job->length = t->reth.length;
}

/* @return the job of an operation, or NULL: the QP answers no more */
static struct response_job *done_job(struct dma_op *op)
{
	struct qp *qp = op->qp;

	if (op->epoch != qp->epoch || qp->resp.failed || !answers(qp))
		return NULL;
	return &qp->resp.job[op->arg[ARG_JOB] % RESPONDER_JOBS];
}

/* Everything before the atomic is in place, nothing behind it has started. */
static void atomic_done(struct dma *dma, struct dma_op *op, int error)
{
	struct response_job *job = done_job(op);
	struct qp *qp = op->qp;
	struct responder *r = &qp->resp;
	uint64_t value, orig;
	int err;

	if (!job)
		return;
	pthread_mutex_lock(&qp->p.dev->atomic_lock);
	err = dma_read_now(dma, job->seg.mm, job->seg.addr, &orig, sizeof(orig));
	if (!err) {
		value = job->kind == KIND_FETCH_ADD ? orig + job->swap_add
			: orig == job->compare	    ? job->swap_add
						    : orig;
		err = dma_write_now(dma, job->seg.mm, job->seg.addr, &value, sizeof(value));
	}
	pthread_mutex_unlock(&qp->p.dev->atomic_lock);
	if (err) {
		memory_failed(qp, job->psn);
		return;
	}
	job->orig = orig;
	job->ready = true;
	r->atomic[r->atomic_next++ % VERNIC_MAX_RD_ATOMIC] =
		(struct atomic_result){.psn = job->psn, .orig = orig};
	engine_schedule(qp->engine, qp);
}

/* @return the operation that completes the newest job: done() comes when all before is in place */
static struct dma_op *submit_job(struct qp *qp, void (*done)(struct dma *, struct dma_op *, int))
{
	struct dma_op *op = dma_submit(qp->engine->dma);

	op->done = done;
	op->qp = qp;
	op->epoch = qp->epoch;
	op->arg[ARG_JOB] = qp->resp.job_tail - 1;
	return op;
}

/* An atomic request. It is done by atomic_done(). */
static void atomic_rx(struct qp *qp, const struct train *t)
{
	struct dma_segment seg;
	struct response_job *job;

	if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) || t->reth.va % 8) {
		refuse(qp, NAK_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
		return;
	}
	if (resolve_rkey(qp, t->reth.rkey, t->reth.va, 8, IBV_ACCESS_REMOTE_ATOMIC, &seg)) {
		refuse(qp, NAK_REMOTE_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
		return;
	}
	if (!check_rd_depth(qp))
		return;
	job = accept_job(qp, t, 1);
	if (!job)
		return;
	job->swap_add = t->atomic.swap_add;
	job->compare = t->atomic.compare;
	job->seg = seg;
	submit_job(qp, atomic_done)->barrier = true;
}

/* Everything before the ATOMIC WRITE is in place; its 8 bytes, at op->ctx, are written at once. */
static void atomic_write_done(struct dma *dma, struct dma_op *op, int error)
{
	struct response_job *job = done_job(op);
	struct qp *qp = op->qp;
	int err = error;

	if (!job)
		return;
	if (!err) {
		pthread_mutex_lock(&qp->p.dev->atomic_lock);
		err = dma_write_now(dma, job->seg.mm, job->seg.addr, op->ctx, ATOMIC_WRITE_LEN);
		pthread_mutex_unlock(&qp->p.dev->atomic_lock);
	}
	if (err) {
		memory_failed(qp, job->psn);
		return;
	}
	job->ready = true;
	engine_schedule(qp->engine, qp);
}

/* An ATOMIC WRITE: 8 aligned bytes that nobody sees half written (IBTA A19). */
static void atomic_write_rx(struct qp *qp, const struct train *t)
{
	struct dma *dma = qp->engine->dma;
	struct dma_segment seg;
	struct response_job *job;
	struct dma_op *op;

	if (!device_has(qp->p.dev, DEVICE_FLUSH) ||
	    !(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) || t->reth.va % 8 ||
	    t->reth.length != ATOMIC_WRITE_LEN || t->payload.len != ATOMIC_WRITE_LEN) {
		refuse(qp, NAK_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
		return;
	}
	if (resolve_rkey(qp, t->reth.rkey, t->reth.va, ATOMIC_WRITE_LEN, IBV_ACCESS_REMOTE_WRITE,
			 &seg)) {
		refuse(qp, NAK_REMOTE_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
		return;
	}
	if (!check_rd_depth(qp))
		return;
	job = accept_job(qp, t, 1);
	if (!job)
		return;
	job->seg = seg;
	op = submit_job(qp, atomic_write_done);
	op->barrier = true;
	op->ctx = dma_scratch(dma, ATOMIC_WRITE_LEN);
	op->src = t->payload;
	op->dst = dma_local(dma, op->ctx, ATOMIC_WRITE_LEN);
}

/* Everything before the FLUSH is in place: that is all there is to do. */
static void flush_placed(struct dma *dma, struct dma_op *op, int error)
{
	struct response_job *job = done_job(op);
	struct qp *qp = op->qp;

	if (!job)
		return;
	job->ready = true;
	engine_schedule(qp->engine, qp);
}

/* @return whether a rkey may be flushed as a FLUSH says */
static bool check_flush(struct qp *qp, const struct train *t, uint32_t access)
{
	const struct pd *pd = remote_pd(qp);
	uint64_t va = t->reth.va, length = t->reth.length;
	struct dma_segment seg;

	/* All of a MR, wherever that is. */
	if (t->flush.level == VERNIC_FLUSH_MR) {
		const struct mr *mr = mr_table_find(pd->dev->mrs, t->reth.rkey);

		va = mr ? mr->iova : 0;
		length = 0;
	}
	return !mr_resolve(pd, t->reth.rkey, va, length, access, &seg);
}

/*
 * A FLUSH (IBTA A19). Bytes in place are visible to all, and as lasting as the memory is: what is
 * mapped from a file outlives the process.
 */
static void flush_rx(struct qp *qp, const struct train *t)
{
	const uint32_t types = VERNIC_FLUSH_GLOBAL | VERNIC_FLUSH_PERSISTENT;
	uint32_t access =
		(t->flush.type & VERNIC_FLUSH_GLOBAL ? VERNIC_ACCESS_FLUSH_GLOBAL : 0) |
		(t->flush.type & VERNIC_FLUSH_PERSISTENT ? VERNIC_ACCESS_FLUSH_PERSISTENT : 0);
	struct response_job *job;

	if (!t->flush.type || t->flush.type & ~types || t->flush.level > VERNIC_FLUSH_MR ||
	    (qp->attr.qp_access_flags & access) != access) {
		refuse(qp, NAK_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
		return;
	}
	if (!check_flush(qp, t, access)) {
		refuse(qp, NAK_REMOTE_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
		return;
	}
	if (!check_rd_depth(qp))
		return;
	job = accept_job(qp, t, 1);
	if (!job)
		return;
	submit_job(qp, flush_placed);
	job->ready = MUTATION(flush_too_early);
}

/* Carries out what has an answer of its own, of the reliable services. */
static void execute_answered(struct qp *qp, struct train *t)
{
	switch (t->kind) {
	case KIND_READ_REQUEST:
		read_rx(qp, t);
		break;
	case KIND_COMPARE_SWAP:
	case KIND_FETCH_ADD:
		atomic_rx(qp, t);
		break;
	case KIND_ATOMIC_WRITE:
		atomic_write_rx(qp, t);
		break;
	case KIND_FLUSH:
		flush_rx(qp, t);
		break;
	default:
		break;
	}
}

/* Carries out a request that is in sequence. */
static void execute(struct qp *qp, struct train *t)
{
	if (qp_is_xrc_target(qp) && !check_xrceth(qp, t))
		return;
	switch (t->kind) {
	case KIND_SEND:
		send_rx(qp, t);
		break;
	case KIND_WRITE:
		write_rx(qp, t);
		break;
	default:
		if (qp_is_reliable(qp))
			execute_answered(qp, t);
		break;
	}
}

/* Carries out of a RC request what faults let pass, and answers the rest as they say. */
static void execute_faulty(struct qp *qp, struct train *t)
{
	struct responder *r = &qp->resp;
	uint32_t count = t->count, end, pass;
	uint8_t syndrome;

	pass = qp->engine->ops->fault_request(qp->engine, qp, t, &syndrome);
	end = psn_add(t->psn, pass);
	if (pass > 0) {
		if (pass < count)
			trim_end(qp, t, pass);
		execute(qp, t);
	}
	/* Unless what did pass was not accepted: then that is answered already. */
	if (pass < count && qp_receives(qp) && r->epsn == end)
		fault_nak(qp, t->kind, syndrome);
}

void responder_rx(struct qp *qp, struct train *t)
{
	bool rc = qp_is_reliable(qp);

	if (qp_is_xrc_target(qp))
		find_srq(qp, t->xrc_srqn);
	if (!(rc ? check_psn(qp, t) : check_psn_uc(qp, t))) {
		if (!rc)
			qp->counters.rx_dropped += t->count;
		return;
	}
	if (check_op_seq(qp, t) && check_length(qp, t)) {
		if (rc && qp->engine->faults)
			execute_faulty(qp, t);
		else
			execute(qp, t);
	} else if (rc) {
		refuse(qp, NAK_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
	} else {
		qp->resp.kind = KIND_NONE;
	}
	if (rc)
		return;
	/* UC: accepted or not, the next packet is the next one. */
	if (qp->resp.epsn == t->psn && qp_receives(qp))
		qp->counters.rx_dropped += t->count;
	qp->resp.epsn = psn_add(t->psn, t->count);
}

/* Where the bytes of a WRITE in sequence go, but for the first skip. @return whether they may */
static bool resolve_write(struct qp *qp, const struct train *t, uint32_t skip, struct dma_list *dst)
{
	const struct responder *r = &qp->resp;
	uint64_t va = t->first ? t->reth.va : r->va + r->offset;
	uint32_t rkey = t->first ? t->reth.rkey : r->rkey;
	uint32_t left = t->first ? t->reth.length : r->length - r->offset;

	if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) || t->payload.len > left)
		return false;
	dst->seg = dma_segments(qp->engine->dma, 1);
	dst->count = 1;
	dst->len = t->payload.len - skip;
	return !resolve_rkey(qp, rkey, va + skip, dst->len, IBV_ACCESS_REMOTE_WRITE, dst->seg);
}

/* The same for a SEND. Its receive is taken, and kept for when the train is delivered. */
static bool resolve_send(struct qp *qp, const struct train *t, uint32_t skip, struct dma_list *dst)
{
	uint32_t offset = t->first ? 0 : qp->resp.offset;

	return t->payload.len <= VERNIC_MAX_MSG_SIZE - offset && responder_take_wqe(qp) &&
	       !responder_resolve(qp, offset + skip, t->payload.len - skip, dst);
}

bool responder_place_early(struct qp *qp, const struct train *t, uint32_t skip)
{
	struct dma_list dst;
	struct dma_op *op;

	if (t->psn != qp->resp.epsn || !check_op_seq(qp, t) || !check_length(qp, t) ||
	    skip >= t->payload.len)
		return false;
	find_srq(qp, t->xrc_srqn);
	if (qp_is_xrc_target(qp) &&
	    (!qp->resp.srq || (!t->first && t->xrc_srqn != qp->resp.xrc_srqn)))
		return false;
	if (!(t->kind == KIND_WRITE ? resolve_write(qp, t, skip, &dst)
				    : resolve_send(qp, t, skip, &dst)))
		return false;
	op = dma_submit(qp->engine->dma);
	op->src = dma_slice(qp->engine->dma, &t->payload, skip, t->payload.len - skip);
	op->dst = dst;
	return true;
}

/* ---- responses ------------------------------------------------------------------------------- */

/* Sends the next train of a READ response, or all of one without data. @return bytes, or -1: not
 * any more */
static int64_t send_response(struct qp *qp, struct response_job *job)
{
	uint32_t most = qp->path.max_train ? full_packets(qp->path.max_train, qp->mtu) : 16;
	uint32_t left = job->length - job->sent;
	uint32_t len = left < most * qp->mtu ? left : most * qp->mtu;
	struct train t;

	qp_fill_train(qp, &t, KIND_READ_RESPONSE);
	t.psn = psn_add(job->psn, full_packets(job->sent, qp->mtu));
	t.count = packets_of(len, qp->mtu);
	t.first = job->sent == 0;
	t.last = len == left;
	t.aeth.syndrome = AETH_ACK | AETH_NO_CREDITS;
	t.aeth.msn = job->msn;
	if (len) {
		t.payload.seg = dma_segments(qp->engine->dma, 1);
		t.payload.count = 1;
		t.payload.len = len;
		find_srq(qp, job->xrc_srqn);
		if (resolve_rkey(qp, job->rkey, job->va + job->sent, len, IBV_ACCESS_REMOTE_READ,
				 t.payload.seg)) {
			/* Deregistered since it was asked for. */
			qp->resp.refused = false;
			owe_nak(qp, AETH_NAK | NAK_REMOTE_ACCESS);
			qp->resp.nak_psn = t.psn;
			qp_error(qp, IBV_EVENT_QP_ACCESS_ERR);
			return -1;
		}
	}
	job->sent += len;
	engine_tx(qp, &t);
	return len;
}

/* Sends the response of an atomic that is done. */
static void send_atomic_ack(struct qp *qp, const struct response_job *job)
{
	struct train t;

	qp_fill_train(qp, &t, KIND_ATOMIC_ACK);
	t.first = t.last = true;
	t.mtu = 0;
	t.psn = job->psn;
	t.aeth.syndrome = AETH_ACK | AETH_NO_CREDITS;
	t.aeth.msn = job->msn;
	t.atomic_orig = job->orig;
	engine_tx(qp, &t);
}

bool responder_run(struct qp *qp)
{
	struct responder *r = &qp->resp;
	uint32_t bytes = 0;

	for (uint32_t trains = 0; r->job_head != r->job_tail; trains++) {
		struct response_job *job = &r->job[r->job_head % RESPONDER_JOBS];

		if (!answers(qp)) {
			r->job_head = r->job_tail;
			r->job_fresh = 0;
			break;
		}
		if (!job->ready)
			return false; /* its operation schedules */
		if (trains == RUN_TRAINS || bytes >= RUN_BYTES ||
		    !qp->engine->ops->tx_ready(qp->engine, &qp->path))
			return true;
		if (kind_is_atomic(job->kind)) {
			send_atomic_ack(qp, job);
		} else {
			int64_t sent = send_response(qp, job);

			if (sent < 0)
				continue; /* in ERR now */
			bytes += (uint32_t)sent;
			if (job->sent < job->length)
				continue;
		}
		if (job->fresh) {
			r->job_fresh--;
			in_place(qp, psn_add(job->psn, packets_of(job->length, qp->mtu) - 1),
				 job->msn);
		}
		r->job_head++;
	}
	if (r->ack_owed)
		owe_ack(qp);
	return false;
}
