/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What must come of what the clients do.
 *
 * Theory of operation
 * -------------------
 * The judge knows the meaning of each operation and the PSNs it takes, which follow from the PSN a
 * connection began with. It follows each RC responder by its expected PSN: whatever the responder
 * has accepted when a round is over must be in memory then, so the judge carries it out on the
 * model, and compares. A UC responder it follows packet by packet, with a small responder of its
 * own. So model and memory agree after each round, whatever was lost, sent twice, or broken off.
 *
 * What an engine sends is checked when it is sent: an ACK only for what is in place, a NAK only for
 * a reason, each answer once for each request, a request only within window, RNR timer, fence and
 * max_rd_atomic. What it must send (the NAK of a gap) is checked when its round is over.
 *
 * A completion must come in order, once, and with a status that its operation, the responder's NAK,
 * or what was done to the two QPs allows.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A side's name, for messages: its host and index. */
#define SIDE_FMT "%c%u op %u: "
#define SIDE_ARG(s, n) 'A' + (int)(s)->host->id, (s)->index, (n)

#define NO_PSN UINT32_MAX
/* Retries left to a requester in need. */
#define MERCY 3

static bool receives(const struct qp *qp)
{
	return qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD ||
	       qp->state == IBV_QPS_SQE;
}

/* @return packets of a flow before psn */
static uint32_t packets_before(const struct flow *f, uint32_t psn)
{
	return f->applied + (uint32_t)psn_diff(psn, psn_add(f->first_psn, f->applied));
}

/* @return the number of the operation a flow's packet belongs to, or UINT32_MAX */
static uint32_t op_of_packet(const struct flow *f, uint32_t packet)
{
	for (uint32_t i = f->first_op; i < f->from->posted; i++) {
		const struct op *op = &f->from->op[i];

		if (packet >= op->first && packet < op->first + op->packets)
			return i;
	}
	return UINT32_MAX;
}

bool judge_is_in_need(const struct flow *f)
{
	const struct side *s = f->from;
	uint64_t waited = s->host->world->now - f->progress;

	return f->sent && waited / (16 * MS) + f->seq_naks + MERCY > s->retry_cnt;
}

/* ---- posting ------------------------------------------------------------------------------- */

void judge_connect(struct side *s)
{
	struct flow *f = &s->flow;

	*f = (struct flow){
		.from = s,
		.to = s->peer,
		.first_op = s->posted,
		.op = s->posted,
		.recv_op = s->posted,
		.first_psn = s->qp.qp->attr.sq_psn,
		.una = s->qp.qp->attr.sq_psn,
		.nak_due = NO_PSN,
		.nak_sent = NO_PSN,
	};
	s->out = f;
	if (s->peer)
		s->peer->in = f;
	s->uc = (struct uc_model){.epsn = s->qp.qp->attr.rq_psn, .kind = KIND_NONE};
}

void judge_posted(struct side *s, uint32_t index)
{
	struct op *op = &s->op[index];
	struct flow *f = s->out;

	op->first = f->posted;
	op->packets = is_atomic(op->opcode)	       ? 1
		      : op->opcode == IBV_WR_LOCAL_INV ? 0
						       : packets_of(op->len, s->mtu);
	f->posted += op->packets;
}

void judge_sq_mended(struct side *s)
{
	/* What was flushed took no PSNs. */
	s->out->first_op = s->posted;
	s->out->posted = (uint32_t)psn_diff(s->qp.qp->req.psn, s->out->first_psn);
}

/* ---- following a responder ----------------------------------------------------------------- */

/* @return whether an operation may be carried out at the responder */
static bool may_execute(const struct op *op)
{
	switch ((enum fault)op->fault) {
	case FAULT_NONE:
		return true;
	case FAULT_LKEY: /* found when the answer comes */
		return returns_data(op->opcode);
	default:
		return false;
	}
}

/* Carries an atomic out on the model. */
static void apply_atomic(struct op *op, uint8_t *word)
{
	uint64_t v;

	memcpy(&v, word, 8);
	op->before = op->orig = v;
	if (op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		v += op->compare_add;
	else if (v == op->compare_add)
		v = op->swap;
	memcpy(word, &v, 8);
}

/* The responder accepted packets [offset, offset + n) of an operation. */
static void apply(struct flow *f, struct op *op, uint32_t offset, uint32_t n)
{
	struct host *h = f->to->host;
	uint32_t skip = offset * f->from->mtu, len = op->len - skip;

	if (n * f->from->mtu < len)
		len = n * f->from->mtu;
	if (!may_execute(op)) {
		world_fail(h->world, SIDE_FMT "carried out in spite of fault %u",
			   SIDE_ARG(f->from, (uint32_t)(op - f->from->op)), op->fault);
		return;
	}
	if (is_write(op->opcode)) {
		memcpy(h->mm.model + op->remote + skip, op->data + skip, len);
	} else if (op->opcode == IBV_WR_RDMA_READ) {
		memcpy(op->data + skip, h->mm.model + op->remote + skip, len);
	} else if (is_atomic(op->opcode)) {
		apply_atomic(op, h->mm.model + op->remote);
		if (op->shared)
			h->shared_dirty = true;
	} else if (op->opcode == IBV_WR_ATOMIC_WRITE) {
		memcpy(&op->before, h->mm.model + op->remote, 8);
		memcpy(h->mm.model + op->remote, op->data, 8);
	}
	if (offset + n == op->packets)
		op->executed = true;
}

/*
 * Compares the words of a flow. A QP that went to ERR has dropped atomics it had not got to: those
 * accepted in this round, from operation first on, may be undone, from the last one back.
 */
static void check_words(struct flow *f, uint32_t first)
{
	struct mm *mm = &f->to->host->mm;
	uint8_t *model = mm->model + f->from->words;
	const uint8_t *mem = mm->mem + f->from->words;
	uint32_t i = f->op;

	if (receives(f->to->qp.qp))
		first = i;
	while (memcmp(mem, model, 8 * WORDS) != 0) {
		struct op *op;

		if (i == first) {
			world_fail(mm->world, SIDE_FMT "the words of its atomics are wrong",
				   SIDE_ARG(f->from, i));
			return;
		}
		op = &f->from->op[--i];
		if (!is_for_word(op->opcode) || op->shared)
			continue;
		memcpy(mm->model + op->remote, &op->before, 8);
		op->executed = false;
	}
}

/* Catches up with a responder, whose round is over. */
static void follow(struct flow *f)
{
	const struct qp *qp = f->to->qp.qp;
	struct host *h = f->to->host;
	struct mm *mm = &h->mm;
	uint32_t first = f->op;
	int32_t ahead;

	if (!qp || qp->state == IBV_QPS_RESET)
		return;
	ahead = psn_diff(qp->resp.epsn, psn_add(f->first_psn, f->applied));
	if (ahead < 0 || f->applied + (uint32_t)ahead > f->posted) {
		world_fail(h->world, "%c%u: expected PSN %u, %d ahead of %u of %u packets",
			   'A' + (int)h->id, f->to->index, qp->resp.epsn, ahead, f->applied,
			   f->posted);
		return;
	}
	while (ahead > 0 && !world_failed(h->world)) {
		struct op *op = &f->from->op[f->op];
		uint32_t offset = f->applied - op->first, n = op->packets - offset;

		if (n > (uint32_t)ahead)
			n = (uint32_t)ahead;
		apply(f, op, offset, n);
		if (op->shared && !receives(qp))
			h->shared_unsure = true;
		f->applied += n;
		ahead -= (int32_t)n;
		if (op->executed)
			f->op++;
	}
	if (world_failed(h->world))
		return;
	if (memcmp(mm->mem + f->from->hot, mm->model + f->from->hot, HOT_LEN) != 0) {
		uint32_t at = 0;

		while (mm->mem[f->from->hot + at] == mm->model[f->from->hot + at])
			at++;
		world_fail(h->world, SIDE_FMT "memory is wrong at %u of the region",
			   SIDE_ARG(f->from, f->op), at);
	}
	check_words(f, first);
}

/* Compares the word all sides share. */
static void check_shared(struct host *h)
{
	struct mm *mm = &h->mm;

	if (!h->shared_dirty && !h->shared_unsure)
		return;
	if (h->shared_unsure)
		memcpy(mm->model + h->shared, mm->mem + h->shared, 8);
	if (memcmp(mm->mem + h->shared, mm->model + h->shared, 8) != 0)
		world_fail(h->world, "%c: the shared word is wrong", 'A' + (int)h->id);
	h->shared_dirty = h->shared_unsure = false;
}

/* ---- what a requester sends ---------------------------------------------------------------- */

/* Checks what a train must be like. @return whether it is */
static bool train_is_good(struct world *w, const struct qp *qp, const struct train *t)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < t->payload.count; i++)
		sum += t->payload.seg[i].len;
	if (sum != t->payload.len)
		world_fail(w, "train: payload of %u bytes says %u", sum, t->payload.len);
	else if (t->count == 0 || t->count > 4096)
		world_fail(w, "train: %u packets", t->count);
	else if (t->payload.len > t->path->max_train && t->path->max_train)
		world_fail(w, "train: %u bytes, the port takes %u", t->payload.len,
			   t->path->max_train);
	else if (t->count > 1 && t->mtu != qp->mtu)
		world_fail(w, "train: MTU %u, the QP's is %u", t->mtu, qp->mtu);
	else if (t->payload.len > t->count * qp->mtu ||
		 (t->count > 1 && t->payload.len <= (t->count - 1) * t->mtu))
		world_fail(w, "train: %u bytes in %u packets", t->payload.len, t->count);
	else if (!t->last && t->payload.len != t->count * t->mtu)
		world_fail(w, "train: not the last, and not full");
	else if (t->imm && !t->last)
		world_fail(w, "train: an immediate before the last packet");
	return !world_failed(w);
}

static unsigned int kind_of(unsigned int opcode)
{
	return is_send(opcode)			     ? KIND_SEND
	       : is_write(opcode)		     ? KIND_WRITE
	       : opcode == IBV_WR_RDMA_READ	     ? KIND_READ_REQUEST
	       : opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? KIND_COMPARE_SWAP
	       : opcode == IBV_WR_ATOMIC_WRITE	     ? KIND_ATOMIC_WRITE
	       : is_flush(opcode)		     ? KIND_FLUSH
						     : KIND_FETCH_ADD;
}

/* A READ or atomic request leaves: how many are waiting for their answer? */
static void count_outstanding(struct side *s, const struct qp *qp, const struct train *t,
			      uint32_t packets)
{
	struct flow *f = s->out;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < f->rd_count; i++)
		if (psn_diff(f->rd_end[i], qp->req.una_psn) > 0 &&
		    psn_diff(f->rd_end[i], t->psn) <= 0)
			f->rd_end[kept++] = f->rd_end[i];
	f->rd_count = kept;
	if (f->rd_count >= s->max_rd) {
		world_fail(s->host->world, "%c%u: more than %u READs and atomics outstanding",
			   'A' + (int)s->host->id, s->index, s->max_rd);
		return;
	}
	f->rd_end[f->rd_count++] = psn_add(t->psn, packets);
}

/* A request leaves. */
static void request_tx(struct side *s, const struct qp *qp, const struct train *t)
{
	struct world *w = s->host->world;
	struct flow *f = s->out;
	uint32_t packet = (uint32_t)psn_diff(t->psn, f->first_psn), index, packets = t->count;
	uint32_t in_flight = (uint32_t)psn_diff(t->psn, qp->req.una_psn);
	const struct op *op;

	/* A long life's PSNs wrap; no seed has half of them. */
	index = op_of_packet(f, packet);
	if (index == UINT32_MAX) {
		world_fail(w, "%c%u: sends PSN %u that no operation has", 'A' + (int)s->host->id,
			   s->index, t->psn);
		return;
	}
	op = &s->op[index];
	packet -= op->first;
	if (t->kind != kind_of(op->opcode)) {
		world_fail(w, SIDE_FMT "sent as kind %u", SIDE_ARG(s, index), t->kind);
		return;
	}
	if (t->kind == KIND_READ_REQUEST)
		packets = packets_of(t->reth.length, s->mtu);
	if (packet + packets > op->packets ||
	    (!has_response(op->opcode) &&
	     (t->first != (packet == 0) || t->last != (packet + packets == op->packets))))
		world_fail(w, SIDE_FMT "sent as packets %u + %u%s%s", SIDE_ARG(s, index), packet,
			   packets, t->first ? " first" : "", t->last ? " last" : "");
	if (!is_reliable(s))
		return;
	if (w->now < f->rnr_until)
		world_fail(w, SIDE_FMT "sent before the RNR timer is over", SIDE_ARG(s, index));
	if (in_flight && (in_flight + packets) * s->mtu > qp->path.window)
		world_fail(w, SIDE_FMT "%u packets on top of %u exceed the window of %u",
			   SIDE_ARG(s, index), packets, in_flight, qp->path.window);
	if (psn_diff(t->psn, qp->req.una_psn) < 0)
		world_fail(w, SIDE_FMT "sent again after it was acknowledged", SIDE_ARG(s, index));
	if (op->flags & IBV_SEND_FENCE)
		for (uint32_t i = s->life_op + qp->req.una; i < index; i++)
			if (has_response(s->op[i].opcode))
				world_fail(w, SIDE_FMT "sent before op %u, which it must wait for",
					   SIDE_ARG(s, index), i);
	if (has_response(op->opcode))
		count_outstanding(s, qp, t, packets);
	/* The first packet after all others were acknowledged. */
	if (packets_before(f, qp->req.una_psn) >= f->sent)
		f->progress = w->now;
	if (packet + op->first + packets > f->sent)
		f->sent = packet + op->first + packets;
}

/* ---- what a responder sends ---------------------------------------------------------------- */

/* @return whether packets [from, to) of a flow are in memory, unless overwritten since */
static bool is_in_place(const struct flow *f, uint32_t from, uint32_t to)
{
	const struct side *s = f->from;

	for (uint32_t packet = from; packet < to; packet++) {
		uint32_t index = op_of_packet(f, packet), offset, len;
		const struct op *op;
		const uint8_t *mem;

		if (index == UINT32_MAX || !is_write(s->op[index].opcode))
			continue;
		op = &s->op[index];
		offset = (packet - op->first) * s->mtu;
		len = op->len - offset < s->mtu ? op->len - offset : s->mtu;
		mem = f->to->host->mm.mem + op->remote + offset;
		for (uint32_t at = 0; at < len; at++) {
			bool later = mem[at] == op->data[offset + at];

			for (uint32_t i = index + 1; i < s->posted && !later; i++)
				later = is_write(s->op[i].opcode) &&
					s->op[i].remote <= op->remote + offset + at &&
					op->remote + offset + at < s->op[i].remote + s->op[i].len;
			if (!later)
				return false;
		}
	}
	return true;
}

/* @return how many messages, of which a READ may be several, end within packets of a flow */
static uint32_t messages(const struct flow *f, uint32_t packets)
{
	uint32_t n = 0;

	for (uint32_t i = f->first_op; i < f->from->posted; i++) {
		const struct op *op = &f->from->op[i];

		if (op->opcode != IBV_WR_RDMA_READ && op->opcode != IBV_WR_LOCAL_INV)
			n += op->first + op->packets <= packets;
		for (uint32_t k = 0; k < op->pieces; k++)
			n += op->first + op->piece_end[k] <= packets;
	}
	return n;
}

/*
 * An ACK leaves: for the newest in place, or for a duplicate that is older than a READ or atomic.
 * Its MSN is that of its PSN, or, for a duplicate, a newer one.
 */
static void ack_tx(struct side *s, const struct qp *qp, const struct train *t)
{
	struct flow *f = s->in;
	uint32_t accepted = packets_before(f, qp->resp.epsn);
	int32_t packets = psn_diff(psn_add(t->psn, 1), f->first_psn);
	uint32_t index, msn;

	/* Behind the beginning: a duplicate of a connection before this one. */
	if (packets <= 0)
		return;
	if (packets > (int32_t)accepted) {
		world_fail(s->host->world, "%c%u: acknowledges %d packets, %u accepted",
			   'A' + (int)s->host->id, s->index, packets, accepted);
		return;
	}
	index = op_of_packet(f, (uint32_t)packets - 1);
	if (index != UINT32_MAX && has_response(f->from->op[index].opcode))
		world_fail(s->host->world, "%c%u: an ACK for PSN %u in place of its answer",
			   'A' + (int)s->host->id, s->index, t->psn);
	msn = messages(f, (uint32_t)packets);
	if (!is_in_place(f, f->acked, (uint32_t)packets))
		world_fail(s->host->world, "%c%u: acknowledges PSN %u, which is not in place",
			   'A' + (int)s->host->id, s->index, t->psn);
	else if (t->aeth.msn < msn || t->aeth.msn > messages(f, accepted))
		world_fail(s->host->world, "%c%u: MSN %u with PSN %u, not %u to %u",
			   'A' + (int)s->host->id, s->index, t->aeth.msn, t->psn, msn,
			   messages(f, accepted));
	if ((uint32_t)packets > f->acked)
		f->acked = (uint32_t)packets;
}

/* @return whether a receive may fail with an error of its own */
static bool receive_may_fail(const struct side *s)
{
	return s->use_srq ? s->prog->faults > 0 : s->bad_receive || s->local_gone;
}

/* A NAK that ends the connection leaves. */
static void fatal_nak_tx(struct side *s, const struct train *t)
{
	struct flow *f = s->in;
	uint32_t index = op_of_packet(f, (uint32_t)psn_diff(t->psn, f->first_psn));
	unsigned int code = AETH_VALUE(t->aeth.syndrome);
	const struct op *op;
	bool legal = false;

	if (index == UINT32_MAX) {
		world_fail(s->host->world, "%c%u: NAK of PSN %u that no operation has",
			   'A' + (int)s->host->id, s->index, t->psn);
		return;
	}
	op = &f->from->op[index];
	f->nak = true;
	f->nak_op = index;
	switch (code) {
	case NAK_INVALID_REQUEST:
		f->nak_status = IBV_WC_REM_INV_REQ_ERR;
		legal = op->fault == FAULT_ALIGN || op->fault == FAULT_SRQ ||
			(is_send(op->opcode) && op->len && receive_may_fail(s)) ||
			(has_response(op->opcode) && s->max_dest_rd < f->from->max_rd);
		break;
	case NAK_REMOTE_ACCESS:
		f->nak_status = IBV_WC_REM_ACCESS_ERR;
		legal = op->fault == FAULT_RKEY || op->fault == FAULT_BOTH_KEYS ||
			op->fault == FAULT_RANGE || op->fault == FAULT_DOMAIN ||
			(f->from->hot_gone && !is_send(op->opcode));
		break;
	case NAK_REMOTE_OPERATION:
		f->nak_status = IBV_WC_REM_OP_ERR;
		legal = is_send(op->opcode) && op->len && receive_may_fail(s);
		break;
	}
	if (!legal)
		world_fail(s->host->world, SIDE_FMT "opcode %u fault %u: NAK %u without a reason",
			   SIDE_ARG(f->from, index), op->opcode, op->fault, code);
}

/* @return whether the QP finds no receive */
static bool starved(const struct side *s, const struct qp *qp)
{
	if (s->use_srq)
		return s->host->srq.prod == s->host->srq.srq.cons && !qp->resp.have_wqe;
	return s->qp.rq_prod == qp->resp.rq_cons && !qp->resp.have_wqe;
}

/* A NAK leaves. */
static void nak_tx(struct side *s, const struct qp *qp, const struct train *t)
{
	struct world *w = s->host->world;
	struct flow *f = s->in;

	if (AETH_CLASS(t->aeth.syndrome) == AETH_RNR_NAK) {
		uint32_t index = op_of_packet(f, (uint32_t)psn_diff(t->psn, f->first_psn));

		if (!starved(s, qp) || t->psn != qp->resp.epsn)
			world_fail(w, "%c%u: RNR NAK of PSN %u, expected %u, with a receive posted",
				   'A' + (int)s->host->id, s->index, t->psn, qp->resp.epsn);
		else if (index == UINT32_MAX || !takes_receive(f->from->op[index].opcode))
			world_fail(w, "%c%u: RNR NAK of PSN %u that needs no receive",
				   'A' + (int)s->host->id, s->index, t->psn);
	} else if (t->aeth.syndrome == (AETH_NAK | NAK_PSN_SEQUENCE)) {
		if (f->nak_due != t->psn || t->psn != qp->resp.epsn)
			world_fail(w, "%c%u: sequence NAK of PSN %u without a gap",
				   'A' + (int)s->host->id, s->index, t->psn);
	} else {
		fatal_nak_tx(s, t);
	}
	f->nak_sent = t->psn;
}

static struct answer *answer_add(struct flow *f, uint32_t psn, uint32_t packets, bool fresh,
				 bool atomic)
{
	struct answer *a = &f->answer[f->answer_tail++ % 128];

	if (f->answer_tail - f->answer_head > 128)
		f->answer_head++;
	*a = (struct answer){.psn = psn, .packets = packets, .fresh = fresh, .atomic = atomic};
	return a;
}

/* A FLUSH is answered: what came before it must be in place. */
static void flush_tx(struct side *s, const struct train *t)
{
	struct flow *f = s->in;
	uint32_t packet = (uint32_t)psn_diff(t->psn, f->first_psn), index = op_of_packet(f, packet);

	if (index != UINT32_MAX && is_flush(f->from->op[index].opcode) &&
	    !is_in_place(f, f->acked, packet))
		world_fail(s->host->world, SIDE_FMT "a FLUSH is answered before it is done",
			   SIDE_ARG(f->from, index));
}

/* A READ response or the answer of an atomic leaves: it must be due. */
static void answer_tx(struct side *s, const struct train *t)
{
	struct flow *f = s->in;

	for (; f->answer_head != f->answer_tail; f->answer_head++) {
		struct answer *a = &f->answer[f->answer_head % 128];

		if (psn_add(a->psn, a->sent) == t->psn && a->sent + t->count <= a->packets &&
		    a->atomic == (t->kind == KIND_ATOMIC_ACK)) {
			if (a->fresh)
				flush_tx(s, t);
			a->sent += t->count;
			if (a->sent == a->packets)
				f->answer_head++;
			return;
		}
		/* A replay may be left out, whole: nobody asked for it in vain for long. */
		if (a->fresh || a->sent)
			break;
	}
	world_fail(s->host->world, "%c%u: answers PSN %u, which was not asked for",
		   'A' + (int)s->host->id, s->index, t->psn);
}

/* A rate limit holds for payload, whatever headers cost. */
static void check_rate(struct side *s, const struct train *t)
{
	struct world *w = s->host->world;

	s->paced -= (double)(w->now - s->paced_at) * s->rate / 8e6;
	if (s->paced < 0)
		s->paced = 0;
	s->paced += t->payload.len;
	s->paced_at = w->now;
	if (s->paced > s->burst + 1)
		world_fail(w, "%c%u: %.0f bytes in a burst of %u, at %u kbit/s",
			   'A' + (int)s->host->id, s->index, s->paced, s->burst, s->rate);
}

void judge_tx(struct host *h, struct qp *qp, const struct train *t)
{
	struct side *s = side_of(h->world->prog, qp);

	if (s->rate && (t->kind == KIND_SEND || t->kind == KIND_WRITE))
		check_rate(s, t);
	if (!train_is_good(h->world, qp, t) || s->type == IBV_QPT_UD)
		return;
	switch (t->kind) {
	case KIND_ACK:
		if (!s->in)
			break;
		if (AETH_CLASS(t->aeth.syndrome) == AETH_ACK)
			ack_tx(s, qp, t);
		else
			nak_tx(s, qp, t);
		break;
	case KIND_READ_RESPONSE:
	case KIND_ATOMIC_ACK:
		if (s->in)
			answer_tx(s, t);
		break;
	case KIND_CNP:
		break;
	default:
		if (s->out)
			request_tx(s, qp, t);
		break;
	}
}

/* ---- what an engine is handed -------------------------------------------------------------- */

/* @return the QP a train reaches, or NULL */
static struct qp *target(struct worker *k, const struct train *t)
{
	struct qp *qp = engine_find_qp(&k->engine, t->dst_qpn);
	unsigned int service;

	if (!qp || !receives(qp))
		return NULL;
	service = qp->p.type == IBV_QPT_RC   ? WIRE_RC
		  : qp->p.type == IBV_QPT_UC ? WIRE_UC
		  : qp->p.type == IBV_QPT_UD ? WIRE_UD
					     : WIRE_XRC;
	if (t->service != service)
		return NULL;
	if (qp->p.type != IBV_QPT_UD && memcmp(qp->path.dgid, t->path->sgid, 16) != 0)
		return NULL;
	if (qp->p.type != IBV_QPT_UD && t->src_qpn && t->src_qpn != qp->attr.dest_qp_num)
		return NULL;
	return qp;
}

/* @return whether an answer that is due will answer psn, too */
static bool answer_pending(const struct flow *f, uint32_t psn)
{
	for (uint32_t i = f->answer_head; i != f->answer_tail; i++) {
		const struct answer *a = &f->answer[i % 128];
		int32_t offset = psn_diff(psn, a->psn);

		if (offset >= (int32_t)a->sent && offset < (int32_t)a->packets)
			return true;
	}
	return false;
}

/* A request reaches an RC responder. */
static void rc_request_rx(struct side *s, const struct qp *qp, const struct train *t)
{
	struct flow *f = s->in;
	int32_t diff = psn_diff(t->psn, qp->resp.epsn);

	if (diff > 0) {
		if (f->nak_sent != qp->resp.epsn)
			f->nak_due = qp->resp.epsn;
		return;
	}
	if (diff == 0 ||
	    (diff + (int32_t)t->count > 0 && (t->kind == KIND_SEND || t->kind == KIND_WRITE)))
		f->nak_sent = f->nak_due = NO_PSN;
	if (diff < 0 && !answer_pending(f, t->psn)) {
		if (t->kind == KIND_READ_REQUEST)
			answer_add(f, t->psn, packets_of(t->reth.length, s->mtu), false, false);
		else if (t->kind == KIND_COMPARE_SWAP || t->kind == KIND_FETCH_ADD)
			answer_add(f, t->psn, 1, false, true);
		else if (t->kind == KIND_FLUSH || t->kind == KIND_ATOMIC_WRITE)
			answer_add(f, t->psn, 1, false, false);
	}
}

/* The receive a QP takes next, or NULL. */
static struct receive *next_receive(struct side *s, const struct qp *qp)
{
	struct client_srq *srq = &s->host->srq;

	if (starved(s, qp))
		return NULL;
	if (qp->resp.have_wqe)
		return s->use_srq ? &srq->recv[qp->resp.wqe->slot] : &s->recv[qp->resp.wqe->slot];
	return s->use_srq ? &srq->recv[srq->srq.index[srq->srq.cons % SRQ_DEPTH]]
			  : &s->recv[qp->resp.rq_cons];
}

/* Copies a train's payload to a place of the model. */
static void payload_to_model(struct mm *to, size_t offset, const struct train *t)
{
	for (uint32_t i = 0; i < t->payload.count; i++) {
		const struct dma_segment *seg = &t->payload.seg[i];
		const uint8_t *p = seg->mm ? seg->mm->mem + (seg->addr - seg->mm->base)
					   : (const uint8_t *)(uintptr_t)seg->addr;

		memcpy(to->model + offset, p, seg->len);
		offset += seg->len;
	}
}

/* A message to a UC QP that takes a receive goes on: may it? @return whether it does */
static bool uc_send(struct side *s, const struct qp *qp, const struct train *t)
{
	const struct receive *rv = next_receive(s, qp);
	struct uc_model *m = &s->uc;

	if (!rv)
		return false;
	if (t->payload.len &&
	    (rv->bad_key || s->local_gone || m->offset + t->payload.len > rv->buffer.len)) {
		s->cqes_due++; /* an error, and the end */
		return false;
	}
	if (t->last)
		s->cqes_due++;
	return true;
}

static bool uc_write(struct side *s, const struct qp *qp, const struct train *t)
{
	struct uc_model *m = &s->uc;
	struct dma_segment seg;

	if (t->first) {
		m->va = t->reth.va;
		m->rkey = t->reth.rkey;
		m->length = t->reth.length;
		if (m->length &&
		    mr_resolve(qp->p.pd, m->rkey, m->va, m->length, IBV_ACCESS_REMOTE_WRITE, &seg))
			return false;
	}
	if (t->payload.len > m->length - m->offset ||
	    (t->last && t->payload.len != m->length - m->offset))
		return false;
	if (t->imm && starved(s, qp))
		return false;
	if (t->payload.len && mr_resolve(qp->p.pd, m->rkey, m->va + m->offset, t->payload.len,
					 IBV_ACCESS_REMOTE_WRITE, &seg))
		return false;
	payload_to_model(&s->host->mm, m->va + m->offset - s->host->mm.base, t);
	if (t->imm)
		s->cqes_due++;
	return true;
}

/* A UC responder as IBTA 9.8.2 has it: a train is a packet, with a count. */
static void uc_rx(struct side *s, const struct qp *qp, const struct train *t)
{
	struct uc_model *m = &s->uc;
	uint64_t full = (uint64_t)t->count * s->mtu;
	bool good;

	/* In a later life, packets of the one before may still arrive. */
	if (s->from_peer->lossless && s->lives == 1 && t->psn != m->epsn)
		world_fail(s->host->world, "%c%u: UC PSN %u, not %u, and nothing was lost",
			   'A' + (int)s->host->id, s->index, t->psn, m->epsn);
	if (t->first) {
		m->kind = t->kind;
		m->offset = 0;
	} else if (m->kind != t->kind || t->psn != m->epsn) {
		m->kind = KIND_NONE;
	}
	m->epsn = psn_add(t->psn, t->count);
	if (m->kind == KIND_NONE)
		return;
	good = t->last ? t->payload.len <= full && (t->first || t->payload.len > full - s->mtu)
		       : t->payload.len == full;
	good = good && (t->kind == KIND_SEND ? uc_send(s, qp, t) : uc_write(s, qp, t));
	m->offset += t->payload.len;
	if (!good || t->last)
		m->kind = KIND_NONE;
}

/* A datagram: whether it must be received. */
static void ud_rx_expect(struct side *s, const struct qp *qp, const struct train *t)
{
	const struct receive *rv = next_receive(s, qp);

	if (rv && t->kind == KIND_SEND && t->qkey == qp->attr.qkey &&
	    t->payload.len + GRH <= rv->buffer.len)
		s->cqes_due++;
}

struct rx_note judge_rx(struct worker *k, const struct train *t)
{
	struct rx_note note = {0};
	struct qp *qp = target(k, t);
	struct side *s;

	if (!qp)
		return note;
	s = side_of(k->host->world->prog, qp);
	note.qp = qp;
	note.rnr_naks = qp->counters.rcvd_rnr_err;
	note.seq_naks = qp->counters.rcvd_seq_err;
	note.epsn = qp->resp.epsn;
	note.waiting = qp->req.rnr_wait;
	if (t->kind == KIND_ACK || t->kind == KIND_READ_RESPONSE || t->kind == KIND_ATOMIC_ACK ||
	    t->kind == KIND_CNP)
		return note;
	if (s->type == IBV_QPT_UD)
		ud_rx_expect(s, qp, t);
	else if (s->type == IBV_QPT_UC)
		uc_rx(s, qp, t);
	else if (s->in)
		rc_request_rx(s, qp, t);
	return note;
}

/* @return the time an RNR NAK's timer code stands for, ns (IBTA table 45) */
static uint64_t rnr_time(unsigned int code)
{
	if (code == 0)
		return 655360 * US;
	if (code == 1)
		return 10 * US;
	return (code % 2 ? 30 : 20) * US << (code - 2) / 2;
}

/* A READ request was accepted: it is a message of its own, and is due an answer. */
static void read_accepted(struct flow *f, uint32_t psn, uint32_t packets)
{
	uint32_t packet = (uint32_t)psn_diff(psn, f->first_psn), index = op_of_packet(f, packet);
	struct op *op;

	answer_add(f, psn, packets, true, false);
	if (index == UINT32_MAX)
		return;
	op = &f->from->op[index];
	if (op->pieces < 4)
		op->piece_end[op->pieces++] = packet - op->first + packets;
}

void judge_rx_done(struct worker *k, const struct train *t, const struct rx_note *before)
{
	struct world *w = k->host->world;
	const struct qp *qp = before->qp;
	struct side *s = qp ? side_of(w->prog, qp) : NULL;
	struct flow *f;

	if (!s || !is_reliable(s) || !s->out)
		return;
	f = s->in;
	/* A request that was accepted is answered. */
	if (f && receives(qp) && t->psn == before->epsn && qp->resp.epsn != before->epsn) {
		if (t->kind == KIND_READ_REQUEST)
			read_accepted(f, t->psn, packets_of(t->reth.length, s->mtu));
		else if (t->kind == KIND_COMPARE_SWAP || t->kind == KIND_FETCH_ADD)
			answer_add(f, t->psn, 1, true, true);
		else if (t->kind == KIND_FLUSH || t->kind == KIND_ATOMIC_WRITE)
			answer_add(f, t->psn, 1, true, false);
	}
	f = s->out;
	if (f->una != qp->req.una_psn) {
		f->una = qp->req.una_psn;
		f->rnr_naks = 0;
		f->seq_naks = 0;
		f->progress = w->now;
	}
	f->seq_naks += (uint32_t)(qp->counters.rcvd_seq_err - before->seq_naks);
	if (qp->counters.rcvd_rnr_err == before->rnr_naks || before->waiting || f->rnr_fails)
		return;
	f->rnr_naks++;
	f->rnr_until = w->now + rnr_time(AETH_VALUE(t->aeth.syndrome));
	if (s->rnr_retry == 7 || f->rnr_naks <= s->rnr_retry)
		return;
	f->rnr_fails = true;
}

/* ---- after a round ------------------------------------------------------------------------- */

/* A requester at rest: what it has left to do must be waiting for something. */
static void check_stuck(struct side *s, const struct qp *qp)
{
	const struct requester *r = &qp->req;
	bool outstanding = r->una_psn != r->max_psn;
	bool unsent = r->next != r->begun ||
		      (qp->state == IBV_QPS_RTS && r->begun != s->qp.sq_prod);

	if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_SQD)
		return;
	if (is_reliable(s) && (outstanding || r->rnr_wait) && !timer_armed(&qp->timer))
		world_fail(s->host->world, "%c%u: waits for an answer without a timer",
			   'A' + (int)s->host->id, s->index);
	else if (unsent && !outstanding && !r->rnr_wait && !timer_armed(&qp->timer) &&
		 !qp->queued && !qp->cong.waits && !(qp->pacer && timer_armed(&qp->pacer->timer)))
		world_fail(s->host->world, "%c%u: has something to send and waits for nothing",
			   'A' + (int)s->host->id, s->index);
	else if (qp->state == IBV_QPS_SQD && s->drain_asked && r->una == r->begun &&
		 !s->drained_events && !timer_armed(&qp->timer)) /* UC looks when its pace allows */
		world_fail(s->host->world, "%c%u: is drained and does not say so",
			   'A' + (int)s->host->id, s->index);
}

/* A responder at rest: what it owes must have been sent. */
static void check_owed(struct side *s, const struct qp *qp)
{
	const struct flow *f = s->in;

	if (!is_reliable(s) || !f || !receives(qp))
		return;
	if (f->nak_due == qp->resp.epsn && f->nak_sent != f->nak_due)
		world_fail(s->host->world, "%c%u: owes a sequence NAK for PSN %u",
			   'A' + (int)s->host->id, s->index, f->nak_due);
	else if (qp->resp.job_head != qp->resp.job_tail || qp->resp.ack_owed)
		world_fail(s->host->world, "%c%u: owes an answer", 'A' + (int)s->host->id,
			   s->index);
}

/* What a UC responder wrote, and did not. */
static void check_uc(struct side *s)
{
	struct mm *mm = &s->host->mm;
	size_t hot = s->peer->hot, at = 0;

	if (memcmp(mm->mem + hot, mm->model + hot, HOT_LEN) == 0)
		return;
	while (mm->mem[hot + at] == mm->model[hot + at])
		at++;
	world_fail(mm->world, "%c%u: UC memory is wrong at %zu of the region",
		   'A' + (int)s->host->id, s->index, at);
}

void judge_round(struct worker *k, bool more)
{
	struct program *g = k->host->world->prog;

	for (uint32_t i = 0; i < g->sides && !world_failed(&g->world); i++) {
		struct side *s = &g->side[i];
		const struct qp *qp = s->qp.qp;

		if (!qp || s->qp.worker != k)
			continue;
		if (s->type == IBV_QPT_UC)
			check_uc(s);
		else if (s->in)
			follow(s->in);
		if (s->in && !receives(qp) && !s->in->nak)
			s->in->gone = true;
		if (s->out && s->out->rnr_fails && qp->state != IBV_QPS_ERR)
			world_fail(&g->world, "%c%u: goes on after %u RNR NAKs, rnr_retry is %u",
				   'A' + (int)s->host->id, i, s->out->rnr_naks, s->rnr_retry);
		if (!more) {
			check_stuck(s, qp);
			check_owed(s, qp);
		}
	}
	if (!world_failed(&g->world))
		check_shared(k->host);
	if (k->host->srq.armed && !more &&
	    k->host->srq.prod - k->host->srq.srq.cons < k->host->srq.armed)
		world_fail(&g->world, "%c: the SRQ fell below its limit in silence",
			   'A' + (int)k->host->id);
}

/* Memory about which nothing can be said: what is there is right, and must not change any more. */
static void take_as_is(struct host *h, const struct buffer *b)
{
	buffer_copy(b, h->mm.model, h->mm.mem);
}

void judge_leaves(struct side *s, bool gone)
{
	struct flow *f = s->in;

	if (f && is_reliable(s)) {
		follow(f);
		check_shared(s->host);
	}
	if (f)
		f->gone = true;
	if (!gone)
		return;
	if (s->qp.qp->state == IBV_QPS_ERR && !s->qp.qp->flushing && has_last_wqe(s) &&
	    s->last_wqe_events != 1)
		world_fail(s->host->world, "%c%u: LAST_WQE_REACHED came %u times",
			   'A' + (int)s->host->id, s->index, s->last_wqe_events);
	for (; s->completed < s->posted; s->completed++) {
		s->op[s->completed].over = true;
		take_as_is(s->host, &s->op[s->completed].local);
	}
	for (uint32_t i = s->recvs_done; !s->use_srq && i < s->qp.rq_prod; i++)
		take_as_is(s->host, &s->recv[i].buffer);
	s->out = s->in = NULL;
}

/* ---- send completions ---------------------------------------------------------------------- */

/* Overwrites a buffer that is the program's again, so that a later use of it shows. */
static void scribble(struct host *h, const struct buffer *b)
{
	uint8_t *junk = must(malloc(b->len + 1));

	memset(junk, 0x5a, b->len + 1);
	buffer_write(b, h->mm.mem, junk, b->len);
	buffer_write(b, h->mm.model, junk, b->len);
	free(junk);
}

/*
 * A READ is over: its bytes are those at the time it was accepted, or, where it was answered again,
 * those of a WRITE behind it that no fence kept back.
 */
static void check_read(struct side *s, uint32_t index)
{
	struct op *op = &s->op[index];
	struct mm *mm = &s->host->mm;
	uint8_t *got = must(malloc(op->len + 1));

	buffer_read(&op->local, mm->mem, got, op->len);
	for (uint32_t at = 0; at < op->len; at++) {
		bool right = got[at] == op->data[at];

		for (uint32_t i = index + 1;
		     i < s->posted && !(s->op[i].flags & IBV_SEND_FENCE) && !right; i++) {
			const struct op *o = &s->op[i];
			uint64_t offset = op->remote + at - o->remote;

			right = is_write(o->opcode) && offset < o->len &&
				o->data[offset] == got[at];
		}
		if (!right) {
			world_fail(mm->world, SIDE_FMT "READ of %u bytes is wrong at %u",
				   SIDE_ARG(s, index), op->len, at);
			break;
		}
	}
	buffer_write(&op->local, mm->model, got, op->len);
	free(got);
}

/* An operation succeeded, as reported, or implied by a completion behind it. */
static void op_succeeded(struct side *s, uint32_t index)
{
	struct world *w = s->host->world;
	struct op *op = &s->op[index];

	if (op->over)
		world_fail(w, SIDE_FMT "completed twice", SIDE_ARG(s, index));
	op->over = true;
	if (op->fault == FAULT_LKEY || op->fault == FAULT_OPCODE ||
	    (is_reliable(s) && op->fault != FAULT_NONE))
		world_fail(w, SIDE_FMT "succeeded in spite of fault %u", SIDE_ARG(s, index),
			   op->fault);
	if (op->mw && is_reliable(s) && op->mw->region)
		world_fail(w, SIDE_FMT "the window is still bound", SIDE_ARG(s, index));
	if (is_reliable(s) && !op->executed && op->packets)
		world_fail(w, SIDE_FMT "succeeded, and the responder has %u packets, not %u",
			   SIDE_ARG(s, index), s->flow.applied, op->first + op->packets);
	if (world_failed(w))
		return;
	if (op->opcode == IBV_WR_RDMA_READ) {
		check_read(s, index);
	} else if (is_atomic(op->opcode)) {
		uint64_t orig;

		buffer_read(&op->local, s->host->mm.mem, (uint8_t *)&orig, 8);
		buffer_write(&op->local, s->host->mm.model, (uint8_t *)&orig, 8);
		if (!op->shared && orig != op->orig)
			world_fail(w, SIDE_FMT "atomic returned %#llx, not %#llx",
				   SIDE_ARG(s, index), (unsigned long long)orig,
				   (unsigned long long)op->orig);
	} else {
		scribble(s->host, &op->local);
	}
}

/*
 * @return whether a requester may have used up its retries: not before as many timeouts and one
 * more are over, less the retries that sequence NAKs took
 */
static bool had_time(const struct side *s)
{
	const struct flow *f = s->out;
	uint64_t timeout = UINT64_C(4096) << s->qp.qp->attr.timeout;

	return f->seq_naks > s->retry_cnt ||
	       s->host->world->now >= f->progress + (s->retry_cnt + 1 - f->seq_naks) * timeout;
}

/* @return whether the status of the first operation of a life to fail may be this one */
static bool failure_is_legal(const struct side *s, uint32_t index, unsigned int status)
{
	const struct op *op = &s->op[index];
	const struct flow *f = s->out;
	bool rc = is_reliable(s);

	switch (status) {
	case IBV_WC_WR_FLUSH_ERR:
		return s->qp.qp->state == IBV_QPS_ERR &&
		       (s->client_error || receive_may_fail(s) || (s->in && s->in->nak));
	case IBV_WC_LOC_PROT_ERR:
		/* Of what is sent, the local side is checked first. */
		return op->fault == FAULT_LKEY || (s->local_gone && op->len) ||
		       (op->fault == FAULT_BOTH_KEYS && !returns_data(op->opcode));
	case IBV_WC_LOC_LEN_ERR:
		return op->fault == FAULT_LENGTH;
	case IBV_WC_LOC_QP_OP_ERR:
		return op->fault == FAULT_OPCODE;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
	case IBV_WC_REM_OP_ERR:
		return rc && f->nak && f->nak_op == index && f->nak_status == status;
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return rc && takes_receive(op->opcode) && f->rnr_fails;
	case IBV_WC_RETRY_EXC_ERR:
		/*
		 * The peer is gone, or went with a NAK that, or what came before it, was lost, or
		 * does not answer a READ again whose memory it has no longer.
		 */
		return rc && had_time(s) &&
		       (f->gone || (f->nak && !s->from_peer->lossless) ||
			(op->opcode == IBV_WR_RDMA_READ && s->hot_gone && !s->from_peer->lossless));
	default:
		return false;
	}
}

/* An operation failed. */
static void op_failed(struct side *s, uint32_t index, const struct vernic_cqe *cqe)
{
	struct world *w = s->host->world;
	struct op *op = &s->op[index];

	if (op->over)
		world_fail(w, SIDE_FMT "completed twice", SIDE_ARG(s, index));
	op->over = true;
	if (s->failed && cqe->status != IBV_WC_WR_FLUSH_ERR)
		world_fail(w, SIDE_FMT "status %u behind a failure", SIDE_ARG(s, index),
			   cqe->status);
	else if (!s->failed && !failure_is_legal(s, index, cqe->status))
		world_fail(w, SIDE_FMT "opcode %u fault %u ended with status %u",
			   SIDE_ARG(s, index), op->opcode, op->fault, cqe->status);
	s->failed = true;
	take_as_is(s->host, &op->local);
	if (!returns_data(op->opcode))
		scribble(s->host, &op->local);
}

static uint8_t wc_opcode(unsigned int opcode)
{
	switch (opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_SEND_WITH_INV:
		return IBV_WC_SEND;
	case IBV_WR_LOCAL_INV:
		return IBV_WC_LOCAL_INV;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	case IBV_WR_ATOMIC_WRITE:
		return IBV_WC_ATOMIC_WRITE;
	case VERNIC_WR_FLUSH:
		return VERNIC_WC_FLUSH;
	default:
		return IBV_WC_RDMA_WRITE;
	}
}

/* A CQE of a SQ. */
static void send_cqe(struct side *s, const struct vernic_cqe *cqe)
{
	struct world *w = s->host->world;
	uint32_t index = s->life_op + cqe->wqe;
	struct op *op;

	if (index < s->completed || index >= s->posted || cqe->wr_id != index) {
		world_fail(w, SIDE_FMT "a completion, wr_id %llu, after %u of %u",
			   SIDE_ARG(s, index), (unsigned long long)cqe->wr_id, s->completed,
			   s->posted);
		return;
	}
	op = &s->op[index];
	/* Those before it that make no CQE were successful, unless the failure is behind us. */
	while (s->completed < index && !world_failed(w)) {
		const struct op *o = &s->op[s->completed];

		if (s->sig_all || o->flags & IBV_SEND_SIGNALED || s->failed)
			world_fail(w, SIDE_FMT "completed before op %u", SIDE_ARG(s, index),
				   s->completed);
		op_succeeded(s, s->completed++);
	}
	s->completed = index + 1;
	s->qp.sq_cons = s->completed - s->life_op;
	if (world_failed(w))
		return;
	if (cqe->status != IBV_WC_SUCCESS) {
		op_failed(s, index, cqe);
		return;
	}
	if (cqe->data_len)
		buffer_write(&op->local, s->host->mm.mem, cqe->data, cqe->data_len);
	if (s->failed)
		world_fail(w, SIDE_FMT "succeeded behind a failure", SIDE_ARG(s, index));
	else if (!s->sig_all && !(op->flags & IBV_SEND_SIGNALED))
		world_fail(w, SIDE_FMT "unsignaled, and completed", SIDE_ARG(s, index));
	else if (cqe->opcode != wc_opcode(op->opcode))
		world_fail(w, SIDE_FMT "opcode %u", SIDE_ARG(s, index), cqe->opcode);
	else if (returns_data(op->opcode) && cqe->byte_len != op->len)
		world_fail(w, SIDE_FMT "byte_len %u, not %u", SIDE_ARG(s, index), cqe->byte_len,
			   op->len);
	else
		op_succeeded(s, index);
}

/* ---- receive completions ------------------------------------------------------------------- */

/* RC: the next message that takes a receive. @return it, or NULL */
static struct op *rc_message(struct side *s)
{
	struct flow *f = s->in;

	while (f && f->recv_op < f->from->posted) {
		struct op *op = &f->from->op[f->recv_op++];

		if (takes_receive(op->opcode))
			return op->executed ? op : NULL;
	}
	return NULL;
}

/* UC, UD: the message says which it is. @return it, or NULL */
static struct op *named_message(struct side *s, const struct vernic_cqe *cqe,
				const struct buffer *b, uint32_t header)
{
	struct program *g = s->prog;
	uint8_t head[GRH + 4] = {0};
	uint32_t id = 0;

	buffer_read(b, s->host->mm.mem, head,
		    cqe->byte_len < header + 4 ? cqe->byte_len : header + 4);
	if (cqe->wc_flags & IBV_WC_WITH_IMM)
		id = cqe->imm;
	else if (cqe->byte_len >= header + 4)
		memcpy(&id, head + header, 4);
	else
		/* Too short to say: any of that length and these bytes will do. */
		for (uint32_t i = 0; i < g->sides; i++)
			for (uint32_t k = 0; k < g->side[i].posted; k++) {
				const struct op *op = &g->side[i].op[k];

				if (op->opcode == IBV_WR_SEND && op->to == s &&
				    op->fault != FAULT_QKEY && op->fault != FAULT_QPN &&
				    op->len + header == cqe->byte_len &&
				    memcmp(head + header, op->data, op->len) == 0)
					return &g->side[i].op[k];
			}
	if (id >> 16 >= g->sides || (id & 0xffff) >= g->side[id >> 16].posted ||
	    g->side[id >> 16].op[id & 0xffff].to != s)
		return NULL;
	return &g->side[id >> 16].op[id & 0xffff];
}

/* A receive succeeded: the message it names is whole, and nothing else is there. */
static void received(struct side *s, const struct receive *rv, const struct vernic_cqe *cqe,
		     uint32_t n)
{
	static uint8_t data[2 * MAX_LEN];
	uint32_t header = s->type == IBV_QPT_UD ? GRH : 0;
	struct world *w = s->host->world;
	struct mm *mm = &s->host->mm;
	struct op *op;

	buffer_write(&rv->buffer, mm->mem, cqe->data, cqe->data_len);
	op = is_reliable(s) ? rc_message(s) : named_message(s, cqe, &rv->buffer, header);
	if (!op) {
		world_fail(w, SIDE_FMT "received a message nobody sent, or not yet whole",
			   SIDE_ARG(s, n));
		return;
	}
	if (cqe->byte_len != op->len + header)
		world_fail(w, SIDE_FMT "received %u bytes of %u", SIDE_ARG(s, n), cqe->byte_len,
			   op->len + header);
	else if (cqe->opcode != (is_send(op->opcode) ? VERNIC_WC_RECV : VERNIC_WC_RECV | 1))
		world_fail(w, SIDE_FMT "receive opcode %#x", SIDE_ARG(s, n), cqe->opcode);
	else if (!(cqe->wc_flags & IBV_WC_WITH_IMM) != !has_imm(op->opcode) ||
		 (has_imm(op->opcode) && cqe->imm != op->imm))
		world_fail(w, SIDE_FMT "immediate %u", SIDE_ARG(s, n), cqe->imm);
	else if (!(cqe->wc_flags & IBV_WC_WITH_INV) != !op->mw ||
		 (op->mw && (cqe->imm != op->imm || op->mw->region)))
		world_fail(w, SIDE_FMT "invalidated %#x", SIDE_ARG(s, n), cqe->imm);
	else if (header && !(cqe->wc_flags & IBV_WC_GRH))
		world_fail(w, SIDE_FMT "UD without GRH", SIDE_ARG(s, n));
	else if (op->fault == FAULT_QKEY || op->fault == FAULT_QPN)
		world_fail(w, SIDE_FMT "received in spite of fault %u", SIDE_ARG(s, n), op->fault);
	else if (s->type == IBV_QPT_UC && op->len >= 4 && op->deliveries++ &&
		 s->from_peer->lossless)
		world_fail(w, SIDE_FMT "received twice", SIDE_ARG(s, n));
	if (world_failed(w) || !is_send(op->opcode))
		return;
	buffer_read(&rv->buffer, mm->mem, data, cqe->byte_len);
	if (memcmp(data + header, op->data, op->len) != 0)
		world_fail(w, SIDE_FMT "SEND of %u bytes is wrong", SIDE_ARG(s, n), op->len);
	buffer_write(&rv->buffer, mm->model, data, cqe->byte_len);
}

/* @return whether a receive may end with a status */
static bool receive_failure_is_legal(const struct side *s, const struct receive *rv,
				     unsigned int status)
{
	switch (status) {
	case IBV_WC_WR_FLUSH_ERR:
		return s->qp.qp->state == IBV_QPS_ERR;
	case IBV_WC_LOC_LEN_ERR:
		return rv->small;
	case IBV_WC_LOC_PROT_ERR:
		return rv->bad_key || (s->local_gone && !s->use_srq);
	case IBV_WC_LOC_ACCESS_ERR:
		return s->in && s->in->nak && s->in->nak_status == IBV_WC_REM_ACCESS_ERR &&
		       has_imm(s->in->from->op[s->in->nak_op].opcode);
	default:
		return false;
	}
}

/* A CQE of a RQ or a SRQ. */
static void recv_cqe(struct side *s, const struct vernic_cqe *cqe)
{
	struct world *w = s->host->world;
	struct mm *mm = &s->host->mm;
	uint32_t n = s->recvs_done++;
	struct receive *rv;

	if (cqe->queue != (s->use_srq ? VERNIC_CQE_SRQ : VERNIC_CQE_RQ) ||
	    (s->use_srq ? cqe->wqe >= SRQ_DEPTH : n >= s->qp.rq_prod || cqe->wqe != n)) {
		world_fail(w, SIDE_FMT "a receive completion of WQE %u", SIDE_ARG(s, n), cqe->wqe);
		return;
	}
	rv = s->use_srq ? &s->host->srq.recv[cqe->wqe] : &s->recv[n];
	if (!rv->in_use || cqe->wr_id != rv->id) {
		world_fail(w, SIDE_FMT "a receive completion of a receive that is not there",
			   SIDE_ARG(s, n));
		return;
	}
	s->qp.rq_cons++;
	if (cqe->status == IBV_WC_SUCCESS) {
		s->reported++;
		if (s->flushed)
			world_fail(w, SIDE_FMT "received behind a flush", SIDE_ARG(s, n));
		received(s, rv, cqe, n);
	} else {
		if (!receive_failure_is_legal(s, rv, cqe->status))
			world_fail(w, SIDE_FMT "receive status %u", SIDE_ARG(s, n), cqe->status);
		if (cqe->status != IBV_WC_WR_FLUSH_ERR)
			s->reported++;
		/* A message may have begun in the first one, in no other. */
		if (s->flushed == 0 || cqe->status != IBV_WC_WR_FLUSH_ERR)
			take_as_is(s->host, &rv->buffer);
		s->flushed++;
	}
	/* What is behind the message in the buffer is untouched; UC may have broken one off. */
	for (uint32_t i = 0; s->type != IBV_QPT_UC && i < rv->buffer.count; i++)
		if (memcmp(mm->mem + rv->buffer.part[i].offset,
			   mm->model + rv->buffer.part[i].offset, rv->buffer.part[i].len) != 0)
			world_fail(w, SIDE_FMT "the buffer was written beyond the message",
				   SIDE_ARG(s, n));
	if (s->type == IBV_QPT_UC)
		take_as_is(s->host, &rv->buffer);
	if (s->use_srq)
		client_release_slot(&s->host->srq, cqe->wqe);
	else
		rv->in_use = false;
}

void judge_cqe(struct host *h, const struct vernic_cqe *cqe)
{
	struct program *g = h->world->prog;
	struct side *s = &g->side[cqe->qp_index];

	world_trace(h->world, "%c%u: CQE of %s %u, status %u opcode %#x %u bytes", 'A' + (int)h->id,
		    cqe->qp_index, cqe->queue == VERNIC_CQE_SQ ? "SQ" : "RQ", cqe->wqe, cqe->status,
		    cqe->opcode, cqe->byte_len);
	totals.status[cqe->status % 32]++;
	if (cqe->qp_index >= g->sides || s->host != h || !s->qp.qp ||
	    cqe->qp_num != s->qp.qp->qpn || cqe->status >= 32)
		world_fail(h->world, "a completion for QP index %u", cqe->qp_index);
	else if (cqe->queue == VERNIC_CQE_SQ)
		send_cqe(s, cqe);
	else
		recv_cqe(s, cqe);
}

/* ---- the end ------------------------------------------------------------------------------- */

/* Compares all of a host's memory with its model. */
static void check_memory(struct host *h)
{
	struct mm *mm = &h->mm;
	size_t at = 0;

	if (memcmp(mm->mem, mm->model, mm->used) == 0)
		return;
	while (mm->mem[at] == mm->model[at])
		at++;
	world_fail(h->world, "memory of %c is wrong at %#zx", 'A' + (int)h->id, at);
}

/* A QP that is in RTS with nothing to do. */
static void check_qp_at_rest(struct side *s, const struct qp *qp)
{
	struct world *w = s->host->world;
	const struct requester *r = &qp->req;
	const struct flow *f = s->out;
	uint32_t posted = s->posted - s->life_op;

	if (r->una != posted || r->begun != posted || r->next != posted)
		world_fail(w, SIDE_FMT "SQ indices %u %u %u of %u", SIDE_ARG(s, s->posted), r->una,
			   r->next, r->begun, posted);
	else if (qp->resp.job_head != qp->resp.job_tail || qp->resp.ack_linked || qp->queued ||
		 qp->resp.ack_owed)
		world_fail(w, "%c%u: not at rest", 'A' + (int)s->host->id, s->index);
	else if (is_reliable(s) && f && !f->gone && f->applied != f->posted)
		world_fail(w, "%c%u: %u of %u packets got there", 'A' + (int)s->host->id, s->index,
			   f->applied, f->posted);
	else if (is_reliable(s) && f && !f->gone &&
		 psn_diff(r->una_psn, psn_add(f->first_psn, f->posted)) != 0)
		world_fail(w, "%c%u: una_psn %u at the end of %u packets from %u",
			   'A' + (int)s->host->id, s->index, r->una_psn, f->posted, f->first_psn);
}

void judge_flushed(struct side *s)
{
	const struct qp *qp = s->qp.qp;

	/* Unsignaled ones that were over before the error make no CQE. */
	while (s->completed < s->posted && !s->sig_all && !s->failed &&
	       qp->req.una == s->posted - s->life_op &&
	       !(s->op[s->completed].flags & IBV_SEND_SIGNALED) && !world_failed(s->host->world))
		op_succeeded(s, s->completed++);
	if (s->completed != s->posted)
		world_fail(s->host->world, "%c%u: in ERR, %u of %u flushed", 'A' + (int)s->host->id,
			   s->index, s->completed, s->posted);
	else if (!s->use_srq && s->recvs_done != s->qp.rq_prod)
		world_fail(s->host->world, "%c%u: in ERR, %u of %u receives flushed",
			   'A' + (int)s->host->id, s->index, s->recvs_done, s->qp.rq_prod);
	else if (has_last_wqe(s) && s->last_wqe_events != 1)
		world_fail(s->host->world, "%c%u: LAST_WQE_REACHED came %u times",
			   'A' + (int)s->host->id, s->index, s->last_wqe_events);
}

void judge_rest(struct program *g)
{
	struct world *w = &g->world;

	for (uint32_t i = 0; i < g->sides && !world_failed(w); i++) {
		struct side *s = &g->side[i];
		const struct qp *qp = s->qp.qp;
		const struct receive *rv;

		if (s->completed < s->ops)
			world_fail(w, SIDE_FMT "is missing", SIDE_ARG(s, s->completed));
		if (!qp || qp->state == IBV_QPS_RESET)
			continue;
		if (qp->state == IBV_QPS_ERR)
			judge_flushed(s);
		if (qp->state == IBV_QPS_RTS)
			check_qp_at_rest(s, qp);
		if (timer_armed(&qp->timer) || (qp->pacer && timer_armed(&qp->pacer->timer)))
			world_fail(w, "%c%u: a timer is armed", 'A' + (int)s->host->id, s->index);
		if (!is_reliable(s) && s->reported != s->cqes_due)
			world_fail(w, "%c%u: %u messages received, %u reported",
				   'A' + (int)s->host->id, s->index, s->cqes_due, s->reported);
		/* A message that began and never ends. */
		rv = qp->resp.have_wqe ? s->use_srq ? &s->host->srq.recv[qp->resp.wqe->slot]
						    : &s->recv[qp->resp.wqe->slot]
				       : NULL;
		if (rv)
			take_as_is(s->host, &rv->buffer);
		else if (s->in && s->in->recv_op < s->in->op && is_reliable(s) && receives(qp) &&
			 rc_message(s))
			world_fail(w, "%c%u: a message was not reported", 'A' + (int)s->host->id,
				   s->index);
	}
	for (uint32_t i = 0; i < w->hosts && !world_failed(w); i++)
		check_memory(&w->host[i]);
}

void judge_end(struct program *g)
{
	struct world *w = &g->world;

	for (uint32_t i = 0; i < w->hosts && !world_failed(w); i++) {
		struct host *h = &w->host[i];
		const struct client_srq *srq = &h->srq;

		check_memory(h);
		for (uint32_t k = 0; k < h->workers; k++) {
			struct engine *e = &h->worker[k].engine;

			if (e->qp_count || e->timers.count || dma_pending(e->dma) ||
			    !cds_list_empty(&e->run) || !cds_list_empty(&e->acks) ||
			    engine_holds(e))
				world_fail(w, "engine %c%u: %u QPs, %u timers, %zu bytes of dma",
					   'A' + (int)i, k, e->qp_count, e->timers.count,
					   dma_pending(e->dma));
		}
		if (srq->free_count + (srq->prod - srq->srq.cons) != SRQ_DEPTH)
			world_fail(w, "%c: %u SRQ slots free, %u waiting", 'A' + (int)i,
				   srq->free_count, srq->prod - srq->srq.cons);
	}
}
