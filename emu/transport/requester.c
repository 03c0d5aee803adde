/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The requester of RC, UC and XRC: takes WQEs off the SQ, sends their packets within the window,
 * keeps the timers, and completes WQEs.
 *
 * Theory of operation
 * -------------------
 * A WQE is begun once: copied out of shared memory, checked, given its PSNs and a send_entry. It is
 * sent from its entry, any number of times; only SGEs and inline data are read again from the ring,
 * and resolved again, for each train. Sending is a cursor (next, send_psn) that runs from una_psn
 * towards the end of what is begun; loss moves the cursor back (requester_seek), nothing else is
 * kept about packets: go-back-N.
 *
 * WQEs complete in order: for RC when una_psn has passed them (and the answer of a READ or atomic
 * is in place), for UC when a dma operation queued behind the payload's is carried out. A local
 * error waits in its entry until everything before it has completed.
 *
 * A READ longer than the window is asked for in pieces, each a request of its own with the next
 * PSNs, so that its responses cannot overrun the receiver's socket.
 */
#include "internal.h"

/*
 * A timeout shorter than this is lengthened to it: a peer in software that shares its cores cannot
 * answer faster for sure, and IBTA 9.7.6.1.3 lets a timeout be up to four times its value.
 */
#define MIN_TIMEOUT_NS UINT64_C(16000000)

/*
 * Without an answer for this long, or four round trips, something is sent again on suspicion: the
 * last packets may be lost, which no NAK tells. It costs no retry; the time doubles each time. Only
 * a peer that has answered before is suspected, and not more often than this until it does again:
 * to who is not there, what is sent is what the retry count says.
 */
#define MIN_PROBE_NS UINT64_C(1000000)
#define MAX_PROBES 3

/* After so long without an answer what is under way counts for nothing. */
#define SILENCE_NS UINT64_C(500000000)

/* What the window is after that, and what loss never cuts it below, packets. */
#define MIN_WINDOW 4

#define SLOT(qp, index) \
	((qp)->p.sq + (size_t)((index) & ((qp)->p.sq_depth - 1)) * (qp)->p.sq_stride)
#define DATA(qp, index) (SLOT(qp, index) + (qp)->p.sq_stride - (qp)->p.sq_data)
#define ENTRY(qp, index) (&(qp)->req.entry[(index) & ((qp)->p.sq_depth - 1)])

/* What a send opcode is on the wire, and in its completion. */
static const struct {
	bool defined;
	uint8_t kind;
	uint8_t wc_opcode;
	bool imm : 1;
	bool inv : 1;
} send_opcodes[] = {
	[IBV_WR_RDMA_WRITE] = {true, KIND_WRITE, IBV_WC_RDMA_WRITE, false},
	[IBV_WR_RDMA_WRITE_WITH_IMM] = {true, KIND_WRITE, IBV_WC_RDMA_WRITE, true},
	[IBV_WR_SEND] = {true, KIND_SEND, IBV_WC_SEND, false},
	[IBV_WR_SEND_WITH_IMM] = {true, KIND_SEND, IBV_WC_SEND, true},
	[IBV_WR_RDMA_READ] = {true, KIND_READ_REQUEST, IBV_WC_RDMA_READ, false},
	[IBV_WR_ATOMIC_CMP_AND_SWP] = {true, KIND_COMPARE_SWAP, IBV_WC_COMP_SWAP, false},
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = {true, KIND_FETCH_ADD, IBV_WC_FETCH_ADD, false},
	[IBV_WR_SEND_WITH_INV] = {true, KIND_SEND, IBV_WC_SEND, .inv = true},
	[IBV_WR_LOCAL_INV] = {true, KIND_NONE, IBV_WC_LOCAL_INV, false},
	[IBV_WR_BIND_MW] = {true, KIND_NONE, IBV_WC_BIND_MW, false},
	[VERNIC_WR_FLUSH] = {true, KIND_FLUSH, VERNIC_WC_FLUSH, false},
	[IBV_WR_ATOMIC_WRITE] = {true, KIND_ATOMIC_WRITE, IBV_WC_ATOMIC_WRITE, false},
};
#define SEND_OPCODES (sizeof(send_opcodes) / sizeof(send_opcodes[0]))

void requester_reset(struct qp *qp)
{
	struct send_entry *entry = qp->req.entry;

	qp->req = (struct requester){.entry = entry};
}

void requester_start(struct qp *qp)
{
	struct requester *r = &qp->req;

	r->psn = r->una_psn = r->send_psn = r->max_psn = qp->attr.sq_psn;
	r->window = qp->path.window;
	r->retry_left = qp->attr.retry_cnt;
	r->rnr_left = qp->attr.rnr_retry;
}

/* ---- timers ------------------------------------------------------------------------------- */

/* Local ACK timeout (IBTA 9.7.6.1.3), ns; 0: none. */
static uint64_t ack_timeout(const struct qp *qp)
{
	uint64_t ns;

	if (qp->attr.timeout == 0)
		return 0;
	ns = UINT64_C(4096) << qp->attr.timeout;
	return ns < MIN_TIMEOUT_NS ? MIN_TIMEOUT_NS : ns;
}

/* Has the timer fire when the next thing is due, or earlier. */
static void arm_timer(struct qp *qp)
{
	struct requester *r = &qp->req;
	uint64_t due = r->probe_at < r->deadline ? r->probe_at : r->deadline;

	if (!timer_armed(&qp->timer) || qp->timer.deadline > due)
		timer_arm(&qp->engine->timers, &qp->timer, due);
}

/*
 * The oldest unacknowledged packet's time starts now. The timer itself is moved only when it fires
 * too early, not for each ACK.
 */
static void restart_deadline(struct qp *qp)
{
	struct requester *r = &qp->req;
	uint64_t ns = ack_timeout(qp);
	/* While the timer runs, ACKs come and go: how long this round has taken is nothing then. */
	uint64_t now = timer_armed(&qp->timer) ? qp->engine->now : engine_time(qp->engine);

	r->deadline = ns != 0 ? now + ns : UINT64_MAX;
	r->probe_after = 4 * qp->cong.rtt > MIN_PROBE_NS ? 4 * qp->cong.rtt : MIN_PROBE_NS;
	r->probe_at = now + r->probe_after;
	arm_timer(qp);
}

/* There has been no answer for a while. Who keeps silent must not keep others from sending. */
static void stall(struct qp *qp)
{
	struct requester *r = &qp->req;

	if (r->stalled_at == 0)
		r->stalled_at = qp->engine->now;
	qp->cong.silent = qp->engine->now - r->stalled_at >= SILENCE_NS;
	congestion_update(qp);
}

/* Sends again from the oldest PSN that has no answer, and little: there may be nobody. */
static void start_over(struct qp *qp)
{
	struct requester *r = &qp->req;
	uint32_t index;
	const struct send_entry *entry = requester_entry(qp, r->una_psn, &index);

	if (r->stalled_at == 0)
		congestion_lost(qp,
				entry && kind_has_response(entry->kind) ? BUDGET_IN : BUDGET_OUT);
	qp->counters.completer_retry_err++;
	stall(qp);
	r->window = (qp->cong.silent ? 1 : MIN_WINDOW) * qp->mtu;
	requester_seek(qp, r->una_psn);
}

/* No answer in time: sends again from the oldest PSN that has none. */
static void timed_out(struct qp *qp)
{
	struct requester *r = &qp->req;

	/* It waits for its turn: nobody has had anything to answer. */
	if (r->send_psn == r->una_psn) {
		restart_deadline(qp);
		return;
	}
	qp->counters.local_ack_timeout_err++;
	if (r->retry_left == 0) {
		qp->counters.retry_exceeded_err++;
		requester_fail(qp, IBV_WC_RETRY_EXC_ERR);
		return;
	}
	r->retry_left--;
	start_over(qp);
	if (!MUTATION(timer_forgotten))
		restart_deadline(qp);
}

/* No answer for a while, but no timeout yet. */
static void probe(struct qp *qp)
{
	struct requester *r = &qp->req;

	r->probe_after *= 2;
	r->probe_at = qp->engine->now + r->probe_after;
	if (r->send_psn == r->una_psn)
		return;
	/* Without a timeout nothing is sent again but what the peer asks for. */
	if (qp->attr.timeout != 0 && qp->cong.rtt != 0 && r->probes < MAX_PROBES) {
		r->probes++;
		start_over(qp);
	} else {
		stall(qp);
	}
}

void requester_timer(struct timer *t, uint64_t now)
{
	struct qp *qp = (struct qp *)((char *)t - offsetof(struct qp, timer));
	struct requester *r = &qp->req;

	if (!qp_sends(qp))
		return;
	if (r->rnr_wait) {
		if (now < r->rnr_deadline) {
			timer_arm(&qp->engine->timers, t, r->rnr_deadline);
			return;
		}
		r->rnr_wait = false;
		restart_deadline(qp);
		engine_schedule(qp->engine, qp);
		return;
	}
	if (psn_diff(r->max_psn, r->una_psn) <= 0)
		return;
	if (now >= r->deadline)
		timed_out(qp);
	else if (now >= r->probe_at)
		probe(qp);
	if (qp_sends(qp))
		arm_timer(qp);
}

/* ---- beginning a WQE ----------------------------------------------------------------------- */

/* Copies the SGEs of the WQE at index out of the ring. @return their number */
static uint32_t copy_sges(struct qp *qp, uint32_t index, struct vernic_sge *sge)
{
	const uint8_t *slot = SLOT(qp, index);
	uint8_t count;

	copy_out(&count, slot + offsetof(struct vernic_send_wqe, num_sge), sizeof(count));
	if (count > qp->p.cap.max_send_sge)
		count = 0;
	copy_out(sge, slot + sizeof(struct vernic_send_wqe), count * sizeof(*sge));
	return count;
}

int requester_resolve(struct qp *qp, uint32_t index, uint32_t offset, uint32_t len, uint32_t access,
		      struct dma_list *list)
{
	struct vernic_sge sge[VERNIC_MAX_SGE];

	return sge_resolve(qp->engine->dma, qp->p.pd, sge, copy_sges(qp, index, sge), offset, len,
			   access, list);
}

/* @return the bytes of a WQE's SGEs, -1 beyond 32 bits */
static int64_t sges_length(const struct vernic_sge *sge, uint32_t count)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < count; i++)
		sum += sge[i].length;
	return sum <= UINT32_MAX ? (int64_t)sum : -1;
}

/* A FLUSH has no payload, and says what it is to reach. */
static enum ibv_wc_status check_flush(const struct qp *qp, const struct vernic_send_wqe *wqe,
				      struct send_entry *entry)
{
	const unsigned int types = VERNIC_FLUSH_GLOBAL | VERNIC_FLUSH_PERSISTENT;

	if (!device_has(qp->p.dev, DEVICE_FLUSH))
		return IBV_WC_LOC_QP_OP_ERR;
	if (wqe->num_sge || !wqe->flush.type || wqe->flush.type & ~types ||
	    wqe->flush.level > VERNIC_FLUSH_MR)
		return IBV_WC_LOC_QP_OP_ERR;
	if (wqe->flush.length > UINT32_MAX)
		return IBV_WC_LOC_LEN_ERR;
	entry->compare_add = wqe->flush.length;
	entry->flush_type = wqe->flush.type;
	entry->flush_level = wqe->flush.level;
	return IBV_WC_SUCCESS;
}

/* @return the local error a WQE has, or IBV_WC_SUCCESS */
static enum ibv_wc_status check_wqe(struct qp *qp, uint32_t index,
				    const struct vernic_send_wqe *wqe, struct send_entry *entry)
{
	bool has_inline = wqe->flags & IBV_SEND_INLINE;
	struct vernic_sge sge[VERNIC_MAX_SGE];
	uint32_t count = has_inline ? 0 : copy_sges(qp, index, sge);
	int64_t length = has_inline ? wqe->length : sges_length(sge, count);

	if (wqe->opcode >= SEND_OPCODES || !send_opcodes[wqe->opcode].defined ||
	    wqe->num_sge > qp->p.cap.max_send_sge)
		return IBV_WC_LOC_QP_OP_ERR;
	entry->kind = send_opcodes[wqe->opcode].kind;
	if (!qp_is_reliable(qp) && kind_has_response(entry->kind))
		return IBV_WC_LOC_QP_OP_ERR;
	if (qp->p.type == IBV_QPT_UD && entry->kind != KIND_SEND)
		return IBV_WC_LOC_QP_OP_ERR;
	if (!qp_is_reliable(qp) && send_opcodes[wqe->opcode].inv)
		return IBV_WC_LOC_QP_OP_ERR;
	if (entry_is_local(entry))
		return requester_local(qp, index, wqe);
	if (kind_is_atomic(entry->kind) && !device_has(qp->p.dev, DEVICE_ATOMICS))
		return IBV_WC_LOC_QP_OP_ERR;
	/* It would wait for ever. */
	if (kind_has_response(entry->kind) && qp->attr.max_rd_atomic == 0)
		return IBV_WC_LOC_QP_OP_ERR;
	if (kind_has_response(entry->kind) && entry->kind != KIND_ATOMIC_WRITE &&
	    wqe->flags & (IBV_SEND_INLINE | VERNIC_SEND_COPIED))
		return IBV_WC_LOC_QP_OP_ERR;
	if (entry->kind == KIND_FLUSH)
		return check_flush(qp, wqe, entry);
	if (length < 0 || length > VERNIC_MAX_MSG_SIZE ||
	    (qp->p.type == IBV_QPT_UD && length > qp->mtu))
		return IBV_WC_LOC_LEN_ERR;
	entry->length = (uint32_t)length;
	if (kind_is_atomic(entry->kind))
		return length == 8 ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR;
	if (entry->kind == KIND_ATOMIC_WRITE && !device_has(qp->p.dev, DEVICE_FLUSH))
		return IBV_WC_LOC_QP_OP_ERR;
	if (entry->kind == KIND_ATOMIC_WRITE && length != ATOMIC_WRITE_LEN)
		return IBV_WC_LOC_LEN_ERR;
	if (wqe->flags & (IBV_SEND_INLINE | VERNIC_SEND_COPIED) && entry->length > qp->p.sq_data)
		return IBV_WC_LOC_LEN_ERR;
	/* Of a READ the remote side is checked first, its SGEs when the response comes. */
	if (entry->kind == KIND_READ_REQUEST || sge_readable(qp->p.pd, sge, count))
		return IBV_WC_SUCCESS;
	return IBV_WC_LOC_PROT_ERR;
}

/*
 * Asks for a WQE that is wanted soon: its lines come from the core of the client, which has just
 * written them, and that takes as long as a message does.
 */
static void prefetch_wqe(const struct qp *qp, uint32_t index)
{
	const uint8_t *slot = SLOT(qp, index);

	__builtin_prefetch(slot);
	__builtin_prefetch(slot + sizeof(struct vernic_send_wqe));
	__builtin_prefetch(DATA(qp, index));
}

struct send_entry *requester_begin(struct qp *qp, struct vernic_send_wqe *wqe)
{
	struct requester *r = &qp->req;
	uint32_t index = r->begun++;
	struct send_entry *entry = ENTRY(qp, index);

	copy_out(wqe, SLOT(qp, index), sizeof(*wqe));
	if (r->begun != r->posted)
		prefetch_wqe(qp, r->begun);
	*entry = (struct send_entry){
		.wr_id = wqe->wr_id,
		.remote_addr = wqe->rdma.remote_addr,
		.compare_add = wqe->rdma.compare_add,
		.swap = wqe->rdma.swap,
		.rkey = wqe->rdma.rkey,
		.imm = wqe->imm,
		.xrc_srqn = wqe->xrc_srqn,
		.first_psn = r->psn,
		.cost = r->cost,
		.flags = wqe->flags,
		.opcode = wqe->opcode,
	};
	entry->status = check_wqe(qp, index, wqe, entry);
	if (qp->engine->faults && entry->status == IBV_WC_SUCCESS && !entry_is_local(entry))
		entry->status = qp->engine->ops->fault_send(qp->engine, qp, entry->kind);
	if (entry->status == IBV_WC_SUCCESS && !entry_is_local(entry)) {
		entry->packets = kind_is_atomic(entry->kind) ? 1
							     : packets_of(entry->length, qp->mtu);
		entry->unit = congestion_unit(entry->length, qp->mtu);
		if (kind_has_response(entry->kind))
			r->rd_entries++;
	}
	r->psn = psn_add(r->psn, entry->packets);
	r->cost += entry->packets * entry->unit;
	return entry;
}

bool requester_posted(struct qp *qp)
{
	struct requester *r = &qp->req;

	/* The client writes the index with each post: it is looked at no more often than need be. */
	if (r->posted != r->begun)
		return true;
	r->posted = vernic_load_acquire(&qp->p.ring->sq_prod);
	if (r->posted - r->begun > qp->p.sq_depth - (r->begun - r->una)) {
		/* The client overwrote what it had posted, or took it back. */
		r->posted = r->begun;
		qp_error(qp, IBV_EVENT_QP_FATAL);
	}
	return r->posted != r->begun;
}

/* Whether the SQ has a WQE that may be begun now. */
static bool may_begin(struct qp *qp)
{
	struct requester *r = &qp->req;
	uint16_t flags;

	/* SQD: what is begun goes on, nothing new. */
	if (qp->state != IBV_QPS_RTS || !requester_posted(qp))
		return false;
	memcpy(&flags, SLOT(qp, r->begun) + offsetof(struct vernic_send_wqe, flags), sizeof(flags));
	r->fences |= (flags & IBV_SEND_FENCE) != 0;
	return !(flags & IBV_SEND_FENCE) || r->rd_entries == 0 || MUTATION(fence_ignored);
}

/* ---- sending ------------------------------------------------------------------------------- */

int requester_payload(struct qp *qp, uint32_t index, const struct send_entry *entry,
		      uint32_t offset, uint32_t len, struct dma_list *list)
{
	if (entry->flags & (IBV_SEND_INLINE | VERNIC_SEND_COPIED)) {
		*list = dma_local(qp->engine->dma, DATA(qp, index) + offset, len);
		return 0;
	}
	return requester_resolve(qp, index, offset, len, 0, list);
}

/* Packets of 1 .. want that the QP's own window lets it send now; 0: none. */
static uint32_t window_room(const struct qp *qp, uint32_t want)
{
	const struct requester *r = &qp->req;
	uint32_t room = full_packets(r->window, qp->mtu);
	uint32_t in_flight = (uint32_t)psn_diff(r->send_psn, r->una_psn);

	if (qp->p.type == IBV_QPT_UC || MUTATION(window_ignored))
		return want;
	if (room == 0)
		room = 1;
	if (in_flight >= room)
		return 0;
	if (want <= room - in_flight)
		return want;
	/* Rather a quarter of the window later than a sliver now. */
	return in_flight && (room - in_flight) * 4 < room ? 0 : room - in_flight;
}

/* Whether one more READ or atomic request may be outstanding. */
static bool rd_room(struct qp *qp)
{
	struct requester *r = &qp->req;

	while (r->rd_head != r->rd_tail &&
	       psn_diff(r->rd_end[r->rd_head % VERNIC_MAX_RD_ATOMIC], r->una_psn) <= 0)
		r->rd_head++;
	return r->rd_tail - r->rd_head < qp->attr.max_rd_atomic || MUTATION(rd_limit_ignored);
}

/* Moves the cursor behind packets that are sent now. @entry: they are of this WQE */
static void move_cursor(struct qp *qp, const struct send_entry *entry, uint32_t packets)
{
	struct requester *r = &qp->req;
	bool idle = psn_diff(r->max_psn, r->una_psn) <= 0;
	bool again = psn_diff(r->send_psn, r->max_psn) < 0;

	if (again)
		qp->counters.retransmitted_pkts += packets;
	r->send_psn = psn_add(r->send_psn, packets);
	if (psn_diff(r->send_psn, r->max_psn) > 0)
		r->max_psn = r->send_psn;
	if (r->send_psn == psn_add(entry->first_psn, entry->packets))
		r->next++;
	congestion_sent(qp, kind_has_response(entry->kind) ? BUDGET_IN : BUDGET_OUT,
			packets * entry->unit, again);
	if (idle && qp_is_reliable(qp))
		restart_deadline(qp);
}

/*
 * Packets a READ request at packet offset asks for. Pieces end at fixed places, so that one asked
 * for again never reaches beyond what was asked for the first time (the responder would see a
 * request that is partly a duplicate).
 */
static uint32_t read_piece(const struct qp *qp, const struct send_entry *entry, uint32_t offset)
{
	uint32_t piece = full_packets(qp->path.window / 2, qp->mtu);
	uint32_t end;

	if (piece == 0)
		piece = 1;
	end = (offset / piece + 1) * piece;
	return (end < entry->packets ? end : entry->packets) - offset;
}

/* Sends one request that has an answer. @return PSNs used, 0 if it has to wait or failed */
static uint32_t send_rd_request(struct qp *qp, struct send_entry *entry)
{
	struct requester *r = &qp->req;
	uint32_t offset = (uint32_t)psn_diff(r->send_psn, entry->first_psn);
	uint32_t packets = read_piece(qp, entry, offset);
	uint32_t in_flight = (uint32_t)psn_diff(r->send_psn, r->una_psn);
	uint64_t skip = (uint64_t)offset * qp->mtu;
	struct train t;

	if (in_flight && window_room(qp, packets) < packets)
		return 0;
	if (qp->pacer && pacer_room(qp) == 0)
		return 0;
	if (!rd_room(qp) || congestion_room(qp, BUDGET_IN, packets * entry->unit) == 0)
		return 0;
	qp_fill_train(qp, &t, entry->kind);
	t.first = t.last = t.ackreq = true;
	t.psn = r->send_psn;
	t.reth.va = entry->remote_addr + skip;
	t.reth.rkey = entry->rkey;
	t.xrc_srqn = entry->xrc_srqn;
	t.mtu = 0;
	if (entry->kind == KIND_FLUSH) {
		t.reth.length = (uint32_t)entry->compare_add;
		t.flush.type = entry->flush_type;
		t.flush.level = entry->flush_level;
	} else if (entry->kind == KIND_ATOMIC_WRITE) {
		t.reth.length = t.mtu = ATOMIC_WRITE_LEN;
		if (requester_payload(qp, r->next, entry, 0, ATOMIC_WRITE_LEN, &t.payload)) {
			entry->status = IBV_WC_LOC_PROT_ERR; /* deregistered since it was begun */
			requester_advance(qp);
			return 0;
		}
	} else if (kind_is_atomic(entry->kind)) {
		t.atomic.swap_add = entry->kind == KIND_FETCH_ADD ? entry->compare_add
								  : entry->swap;
		t.atomic.compare = entry->kind == KIND_FETCH_ADD ? 0 : entry->compare_add;
	} else {
		uint64_t left = entry->length - skip;

		t.reth.length = (uint64_t)packets * qp->mtu < left ? packets * qp->mtu
								   : (uint32_t)left;
	}
	r->rd_end[r->rd_tail % VERNIC_MAX_RD_ATOMIC] = psn_add(r->send_psn, packets);
	r->rd_packets[r->rd_tail % VERNIC_MAX_RD_ATOMIC] = packets;
	r->rd_unit[r->rd_tail++ % VERNIC_MAX_RD_ATOMIC] = entry->unit;
	move_cursor(qp, entry, packets);
	engine_tx(qp, &t);
	return packets;
}

/* Sends one train of a SEND or WRITE. @return bytes sent, or -1 if it has to wait or failed */
static int64_t send_data(struct qp *qp, struct send_entry *entry)
{
	struct requester *r = &qp->req;
	uint32_t index = r->next;
	uint32_t offset = (uint32_t)psn_diff(r->send_psn, entry->first_psn);
	uint32_t most = qp->path.max_train ? full_packets(qp->path.max_train, qp->mtu) : 16;
	uint32_t packets = entry->packets - offset;
	uint32_t skip = offset * qp->mtu;
	struct train t;
	uint32_t len, room;

	if (qp->pacer) {
		room = pacer_room(qp);
		most = room < most ? room : most;
	}
	packets = window_room(qp, packets < most ? packets : most);
	if (packets == 0)
		return -1;
	room = congestion_room(qp, BUDGET_OUT, entry->unit);
	if (room == 0)
		return -1;
	if ((uint64_t)packets * entry->unit > room)
		packets = room / entry->unit;
	qp_fill_train(qp, &t, entry->kind);
	t.first = offset == 0;
	t.last = offset + packets == entry->packets;
	len = t.last ? entry->length - skip : packets * qp->mtu;
	if (requester_payload(qp, index, entry, skip, len, &t.payload)) {
		entry->status = IBV_WC_LOC_PROT_ERR; /* deregistered since it was begun */
		requester_advance(qp);
		return -1;
	}
	t.psn = r->send_psn;
	t.count = packets;
	t.imm = t.last && send_opcodes[entry->opcode].imm;
	t.inv = t.last && send_opcodes[entry->opcode].inv;
	t.imm_data = entry->imm;
	t.solicited = t.last && entry->flags & IBV_SEND_SOLICITED;
	t.xrc_srqn = entry->xrc_srqn;
	t.ackreq = qp_is_reliable(qp);
	t.reth.va = entry->remote_addr;
	t.reth.rkey = entry->rkey;
	t.reth.length = entry->length;
	move_cursor(qp, entry, packets);
	engine_tx(qp, &t);
	if (t.last && qp->p.type == IBV_QPT_UC)
		requester_complete_later(qp, index);
	return len;
}

/* In SQD: tells the client, if it asked, when everything begun has completed. */
void requester_check_drained(struct qp *qp)
{
	if (qp->state == IBV_QPS_SQD && qp->sqd_event && qp->req.una == qp->req.begun) {
		qp->sqd_event = false;
		qp->engine->ops->qp_event(qp->engine, qp, IBV_EVENT_SQ_DRAINED);
	}
}

/* @return true if there is more to send now */
static bool send_some(struct qp *qp)
{
	struct requester *r = &qp->req;
	uint32_t bytes = 0;

	for (uint32_t trains = 0; trains < RUN_TRAINS && bytes < RUN_BYTES; trains++) {
		struct vernic_send_wqe wqe;
		struct send_entry *entry;

		if (!qp_sends(qp) || (r->rnr_wait && !MUTATION(rnr_wait_ignored)))
			return false;
		if (!qp->engine->ops->tx_ready(qp->engine, &qp->path))
			return true;
		if (r->next == r->begun) {
			if (!may_begin(qp)) {
				requester_check_drained(qp);
				return false;
			}
			requester_begin(qp, &wqe);
		}
		entry = ENTRY(qp, r->next);
		if (entry->status != IBV_WC_SUCCESS) {
			if (r->una == r->next)
				requester_advance(qp); /* its turn may have come */
			return false;
		}
		if (entry_is_local(entry)) {
			r->next++;
		} else if (kind_has_response(entry->kind)) {
			if (send_rd_request(qp, entry) == 0)
				return false;
		} else {
			int64_t sent = send_data(qp, entry);

			if (sent < 0)
				return false;
			bytes += (uint32_t)sent;
		}
	}
	return true;
}

bool requester_run(struct qp *qp)
{
	bool more = send_some(qp);

	if (!more)
		congestion_end_turn(qp);
	return more;
}

/* ---- going back, progress, completion ----------------------------------------------------- */

struct send_entry *requester_entry(struct qp *qp, uint32_t psn, uint32_t *index)
{
	for (uint32_t i = qp->req.una; i != qp->req.begun; i++) {
		struct send_entry *entry = ENTRY(qp, i);
		int32_t offset = psn_diff(psn, entry->first_psn);

		if (offset >= 0 && (uint32_t)offset < entry->packets) {
			*index = i;
			return entry;
		}
	}
	return NULL;
}

void requester_seek(struct qp *qp, uint32_t psn)
{
	struct requester *r = &qp->req;
	uint32_t index = r->begun;

	if (!requester_entry(qp, psn, &index)) {
		/* Behind the last packet begun; a WQE without packets, failed, may be there. */
		while (index != r->una && ENTRY(qp, index - 1)->status != IBV_WC_SUCCESS &&
		       ENTRY(qp, index - 1)->first_psn == psn)
			index--;
	}
	r->next = index;
	r->send_psn = psn;
	r->rd_head = r->rd_tail;
	congestion_update(qp);
	engine_schedule(qp->engine, qp);
}

void requester_progress(struct qp *qp, uint32_t psn)
{
	struct requester *r = &qp->req;
	uint32_t packets = (uint32_t)psn_diff(psn, r->una_psn);

	if (packets == 0)
		return;
	r->una_psn = psn;
	r->resent = false;
	r->stalled_at = 0;
	r->probes = 0;
	qp->cong.silent = false;
	r->retry_left = qp->attr.retry_cnt;
	if (!MUTATION(rnr_never_restored))
		r->rnr_left = qp->attr.rnr_retry;
	/* Doubles with each window acknowledged: what the way takes is the budget's to know. */
	r->window += packets * qp->mtu;
	if (r->window > qp->path.window)
		r->window = qp->path.window;
	if (psn_diff(psn, r->send_psn) > 0)
		requester_seek(qp, psn);
	congestion_acknowledged(qp);
	restart_deadline(qp);
	engine_schedule(qp->engine, qp);
}

void requester_complete(struct qp *qp, struct vernic_cqe *cqe)
{
	struct requester *r = &qp->req;
	struct send_entry *entry = ENTRY(qp, r->una);
	struct vernic_cqe own;

	if (qp->p.sq_sig_all || entry->flags & IBV_SEND_SIGNALED) {
		uint8_t data_len = cqe ? cqe->data_len : 0;

		if (!cqe)
			cqe = &own;
		qp_fill_cqe(qp, cqe);
		cqe->wr_id = entry->wr_id;
		cqe->wqe = r->una;
		cqe->queue = VERNIC_CQE_SQ;
		cqe->status = IBV_WC_SUCCESS;
		cqe->opcode = send_opcodes[entry->opcode].wc_opcode;
		cqe->byte_len = kind_returns_data(entry->kind) ? entry->length : 0;
		cqe->data_len = data_len;
		qp_complete(qp, qp->p.send_cq, cqe, false);
	}
	if (kind_has_response(entry->kind))
		r->rd_entries--;
	qp->counters.rdma_sends += entry->kind == KIND_SEND;
	r->una++;
}

void requester_advance(struct qp *qp)
{
	struct requester *r = &qp->req;

	while (qp_sends(qp) && r->una != r->begun) {
		struct send_entry *entry = ENTRY(qp, r->una);

		if (entry->status != IBV_WC_SUCCESS) {
			/* Nothing of it is in flight, or nothing before it: its turn. */
			if (psn_diff(entry->first_psn, r->una_psn) <= 0)
				requester_fail(qp, entry->status);
			return;
		}
		if (psn_diff(psn_add(entry->first_psn, entry->packets), r->una_psn) > 0)
			break;
		if (entry_is_local(entry) && !entry->placed)
			break;
		/* The response's dma operation completes it. */
		if (kind_has_response(entry->kind) && !entry->placed &&
		    !MUTATION(response_not_awaited))
			break;
		requester_complete(qp, NULL);
	}
	/* Room in the window, a fence that opened, a drained queue: the requester looks. */
	engine_schedule(qp->engine, qp);
}

void requester_fail(struct qp *qp, enum ibv_wc_status status)
{
	qp->req.fail_status = status;
	if (qp_is_reliable(qp))
		qp_error(qp, -1);
	else
		qp_sq_error(qp);
}

/* dma_op.done of requester_complete_later(): what the WQE at una sent has been read. */
static void sent_done(struct dma *dma, struct dma_op *op, int error)
{
	struct qp *qp = op->qp;

	if (op->epoch == qp->epoch && qp->req.una == op->arg[0] && qp_sends(qp)) {
		const struct send_entry *entry = ENTRY(qp, qp->req.una);

		qp->req.una_psn = psn_add(entry->first_psn, entry->packets);
		requester_complete(qp, NULL);
		requester_advance(qp);
	}
}

void requester_complete_later(struct qp *qp, uint32_t index)
{
	struct dma_op *op = dma_submit(qp->engine->dma);

	op->done = sent_done;
	op->qp = qp;
	op->epoch = qp->epoch;
	op->arg[0] = index;
}
