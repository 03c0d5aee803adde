/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The completer of RC and XRC: what comes back from the responder (IBTA 9.7.5, 9.7.7): ACKs, NAKs,
 * READ and atomic responses.
 */
#include "internal.h"

/* RNR NAK timer codes (IBTA table 45), units of 10 us. */
static const uint32_t rnr_timer_10us[32] = {
	65536, 1,    2,	   3,	 4,    6,     8,     12,    16,	   24,	  32,
	48,    64,   96,   128,	 192,  256,   384,   512,   768,   1024,  1536,
	2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
};

/* Asks again from una_psn, once until there is progress: a response before this one was lost. */
static void resend_once(struct qp *qp)
{
	if (qp->req.resent)
		return;
	qp->req.resent = true;
	qp->counters.implied_nak_seq_err++;
	qp->counters.completer_retry_err++;
	congestion_lost(qp, BUDGET_IN);
	requester_seek(qp, qp->req.una_psn);
}

/*
 * Acknowledges everything before psn that an ACK can acknowledge: a READ or atomic whose response
 * is missing stops it (IBTA 9.7.5.1.3: an implied NAK).
 * @return true if una_psn is at psn or behind it
 */
static bool acknowledge(struct qp *qp, uint32_t psn)
{
	struct requester *r = &qp->req;
	uint32_t to = psn;

	for (uint32_t i = r->una; i != r->begun; i++) {
		const struct send_entry *entry = &r->entry[i & (qp->p.sq_depth - 1)];
		uint32_t end = psn_add(entry->first_psn, entry->packets);

		if (psn_diff(psn, entry->first_psn) <= 0)
			break;
		if (kind_has_response(entry->kind) && psn_diff(end, r->una_psn) > 0 &&
		    !MUTATION(response_not_awaited)) {
			to = psn_diff(entry->first_psn, r->una_psn) > 0 ? entry->first_psn
									: r->una_psn;
			break;
		}
	}
	if (psn_diff(to, r->una_psn) > 0) {
		requester_progress(qp, to);
		requester_advance(qp);
	}
	if (psn_diff(to, psn) >= 0)
		return true;
	resend_once(qp);
	return false;
}

/*
 * The WQE that psn belongs to fails with status once everything before it has completed: a response
 * that came just before may not be in place yet.
 */
static void fail_wqe(struct qp *qp, uint32_t psn, enum ibv_wc_status status)
{
	uint32_t index;
	struct send_entry *entry = requester_entry(qp, psn, &index);

	if (!entry)
		return;
	requester_seek(qp, psn); /* nothing behind it is sent any more */
	if (MUTATION(failed_out_of_turn))
		requester_fail(qp, status);
	entry->status = (uint8_t)status;
	requester_advance(qp);
}

/* The responder had no receive: waits as long as it says, then sends again. */
static void rnr_nak(struct qp *qp, const struct train *t)
{
	struct requester *r = &qp->req;

	qp->counters.rcvd_rnr_err++;
	if (r->rnr_wait)
		return;
	if (r->rnr_left == 0) {
		qp->counters.retry_rnr_exceeded_err++;
		fail_wqe(qp, t->psn, IBV_WC_RNR_RETRY_EXC_ERR);
		return;
	}
	if (qp->attr.rnr_retry != 7)
		r->rnr_left--;
	/*
	 * It came through: a sequence NAK that responders may send for what followed it (Linux's
	 * rxe does), and that comes when the wait is over, is no second one without progress.
	 */
	r->resent = false;
	requester_seek(qp, t->psn);
	r->rnr_wait = true;
	r->rnr_deadline = engine_time(qp->engine) +
			  rnr_timer_10us[AETH_VALUE(t->aeth.syndrome)] * UINT64_C(10000);
	timer_arm(&qp->engine->timers, &qp->timer, r->rnr_deadline);
}

/* The responder misses the packet at una_psn: sends again from there. */
static void sequence_nak(struct qp *qp)
{
	struct requester *r = &qp->req;

	qp->counters.rcvd_seq_err++;
	/* Behind an RNR NAK: what it asks for is sent when the wait is over. */
	if (r->rnr_wait)
		return;
	if (r->resent) {
		/* A second time for the same PSN, with no progress: it counts as a retry. */
		if (r->retry_left == 0) {
			qp->counters.retry_exceeded_err++;
			fail_wqe(qp, r->una_psn, IBV_WC_RETRY_EXC_ERR);
			return;
		}
		r->retry_left--;
	}
	r->resent = true;
	qp->counters.completer_retry_err++;
	r->window = r->window / 2 > 4 * qp->mtu ? r->window / 2 : 4 * qp->mtu;
	congestion_lost(qp, BUDGET_OUT);
	requester_seek(qp, psn_add(r->una_psn, MUTATION(nak_wrong_psn)));
}

/* A NAK other than RNR: a packet is missing, or a WQE has failed for good. */
static void negative(struct qp *qp, const struct train *t)
{
	static const uint8_t status[] = {
		[NAK_INVALID_REQUEST] = IBV_WC_REM_INV_REQ_ERR,
		[NAK_REMOTE_ACCESS] = IBV_WC_REM_ACCESS_ERR,
		[NAK_REMOTE_OPERATION] = IBV_WC_REM_OP_ERR,
		[NAK_INVALID_RD_REQUEST] = IBV_WC_REM_INV_RD_REQ_ERR,
	};
	uint32_t code = AETH_VALUE(t->aeth.syndrome);

	if (code == NAK_PSN_SEQUENCE) {
		sequence_nak(qp);
		return;
	}
	if (code >= sizeof(status))
		return; /* reserved: ignored */
	qp->counters.req_remote_access_errors += code == NAK_REMOTE_ACCESS;
	qp->counters.req_remote_invalid_request += code == NAK_INVALID_REQUEST;
	fail_wqe(qp, t->psn, status[code]);
}

/* An ACK, or a NAK of any kind. */
static void ack_rx(struct qp *qp, const struct train *t)
{
	struct requester *r = &qp->req;
	unsigned int class = AETH_CLASS(t->aeth.syndrome);

	/* Ghosts: of PSNs never sent, or acknowledged long ago (IBTA 9.7.5.1.2). */
	if (psn_diff(t->psn, r->max_psn) >= 0)
		return;
	if (class == AETH_ACK) {
		if (psn_diff(t->psn, r->una_psn) >= 0)
			acknowledge(qp, psn_add(t->psn, MUTATION(ack_one_too_many) ? 2 : 1));
		return;
	}
	if (psn_diff(t->psn, r->una_psn) < 0)
		return;
	/* A NAK acknowledges everything before its PSN. */
	if (!acknowledge(qp, t->psn) || !qp_sends(qp))
		return;
	if (class == AETH_RNR_NAK)
		rnr_nak(qp, t);
	else if (class == AETH_NAK)
		negative(qp, t);
}

/* The response of the WQE at una is in place, or a part of it. */
static void response_done(struct dma *dma, struct dma_op *op, int error)
{
	struct qp *qp = op->qp;
	struct requester *r = &qp->req;
	struct send_entry *entry = &r->entry[op->arg[0] & (qp->p.sq_depth - 1)];

	if (op->epoch != qp->epoch || !qp_sends(qp) || r->una != op->arg[0])
		return;
	if (error) {
		requester_fail(qp, IBV_WC_LOC_PROT_ERR);
		return;
	}
	if (!op->arg[1])
		return;
	entry->placed = true;
	requester_complete(qp, &op->cqe);
	requester_advance(qp);
}

/*
 * Places response bytes into the SGEs of the WQE at index.
 * @last: with these the response is whole
 */
static void place(struct qp *qp, uint32_t index, struct send_entry *entry, uint32_t offset,
		  const struct dma_list *src, bool last)
{
	bool signaled = qp->p.sq_sig_all || entry->flags & IBV_SEND_SIGNALED;
	/* What is not the client's is there; that, when all that is to be written to it is. */
	bool there = list_is_local(src) && (!list_is_mapped(src) || dma_idle(qp->engine->dma));
	struct dma_list dst;
	struct dma_op *op;

	if (requester_resolve(qp, index, offset, src->len, IBV_ACCESS_LOCAL_WRITE, &dst)) {
		entry->status = IBV_WC_LOC_PROT_ERR;
		requester_advance(qp);
		return;
	}
	op = dma_submit(qp->engine->dma);
	op->done = response_done;
	op->qp = qp;
	op->epoch = qp->epoch;
	op->arg[0] = index;
	op->arg[1] = last;
	op->cqe.data_len = 0;
	if (signaled && last && offset == 0 && src->len <= cq_data_room(qp->p.send_cq) &&
	    there && !qp->req.fences && list_is_placeable(&dst)) {
		list_copy(op->cqe.data, src);
		op->cqe.data_len = (uint8_t)src->len;
	} else {
		op->src = *src;
		op->dst = dst;
	}
}

/* The entry a response that begins at una_psn belongs to, or NULL: not one we wait for. */
static struct send_entry *expected(struct qp *qp, struct train *t, uint32_t *index)
{
	struct requester *r = &qp->req;
	int32_t old = psn_diff(r->una_psn, t->psn);

	if (psn_diff(psn_add(t->psn, t->count - 1), r->max_psn) >= 0)
		return NULL;
	if (old > 0) {
		if (old >= (int32_t)t->count)
			return NULL; /* a duplicate */
		t->payload = dma_slice(qp->engine->dma, &t->payload, (uint32_t)old * qp->mtu,
				       t->payload.len - (uint32_t)old * qp->mtu);
		t->psn = r->una_psn;
		t->count -= (uint32_t)old;
	} else if (old < 0 && !acknowledge(qp, t->psn)) {
		return NULL;
	}
	if (!qp_sends(qp))
		return NULL;
	return requester_entry(qp, t->psn, index);
}

/* A train of READ response packets; to a FLUSH or ATOMIC WRITE, one without data. */
static void read_response_rx(struct qp *qp, struct train *t)
{
	struct send_entry *entry;
	uint32_t index, packet, offset, left;

	/* Only the last packet of a message may be short (IBTA 9.7.6.1.4). */
	if (t->payload.len > (uint64_t)t->count * qp->mtu || (t->count > 1 && t->mtu != qp->mtu))
		return;
	entry = expected(qp, t, &index);
	if (!entry || !kind_has_response(entry->kind) || kind_is_atomic(entry->kind))
		return;
	packet = (uint32_t)psn_diff(t->psn, entry->first_psn);
	if (packet + t->count > entry->packets)
		return;
	offset = packet * qp->mtu;
	if (MUTATION(read_wrong_offset) && packet)
		offset -= qp->mtu;
	left = entry->kind == KIND_READ_REQUEST ? entry->length - offset : 0;
	if (t->payload.len != (packet + t->count == entry->packets ? left : t->count * qp->mtu)) {
		fail_wqe(qp, t->psn, IBV_WC_BAD_RESP_ERR);
		return;
	}
	requester_progress(qp, psn_add(t->psn, t->count));
	place(qp, index, entry, offset, &t->payload, packet + t->count == entry->packets);
}

/* The response of an atomic: the value there was. */
static void atomic_ack_rx(struct qp *qp, struct train *t)
{
	struct send_entry *entry;
	struct dma_list src;
	uint64_t *orig;
	uint32_t index;

	entry = expected(qp, t, &index);
	if (!entry || !kind_is_atomic(entry->kind))
		return;
	orig = dma_scratch(qp->engine->dma, sizeof(*orig));
	*orig = t->atomic_orig;
	src = dma_local(qp->engine->dma, orig, sizeof(*orig));
	requester_progress(qp, psn_add(t->psn, 1));
	place(qp, index, entry, 0, &src, true);
}

void completer_rx(struct qp *qp, struct train *t)
{
	/* A NAK instead of a response comes as an ACK packet. */
	switch (t->kind) {
	case KIND_ACK:
		ack_rx(qp, t);
		break;
	case KIND_READ_RESPONSE:
		read_response_rx(qp, t);
		break;
	case KIND_ATOMIC_ACK:
		atomic_ack_rx(qp, t);
		break;
	default:
		break;
	}
}
