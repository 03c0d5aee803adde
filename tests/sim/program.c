/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the simulator's clients do, made up from the seed.
 *
 * Theory of operation
 * -------------------
 * A program is up to three pairs of connected QPs, RC or UC, between any two hosts or within one,
 * and perhaps a few UD QPs. Each QP is a side. A side posts operations and receives in bursts, and
 * is disturbed now and then: moved to ERR, RESET or SQD and back, destroyed, its memory
 * deregistered. Some operations and receives are wrong on purpose. A pair that has failed is
 * repaired after a while, both QPs reset, or made anew, and connected again, until it has had its
 * lives.
 *
 * WRITEs, READs and atomics of a side go to a region of the peer that nobody else touches, but for
 * one word of each host that everybody adds to. What must come of it all is the judge's business.
 */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PAIRS 3
#define MAX_LIVES 3
/* Receives flushed in a life before a side stops to post more. */
#define MAX_FLUSHED 40
#define QKEY 0x11111111u
#define CQ_DEPTH 1024
#define TIME_LIMIT (300 * UINT64_C(1000) * MS)
#define STEP_LIMIT 3000000
/* Nothing completes, and something should: longer than all retries of any connection. */
#define PATIENCE (8 * UINT64_C(1000) * MS)

#define ACCESS                                                                       \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | VERNIC_ACCESS_FLUSH)

#define SIDE_OF(member, t) ((struct side *)((char *)(t)-offsetof(struct side, member)))

/* ---- buffers ----------------------------------------------------------------------------- */

/* Takes a scattered buffer of len bytes from a host's memory. */
static struct buffer buffer_take(struct host *h, uint32_t len)
{
	struct rng *r = &h->world->rng;
	struct buffer b = {.count = 1 + rng_below(r, CLIENT_MAX_SGE), .len = len};

	for (uint32_t i = 0; i < b.count; i++) {
		uint32_t part = i + 1 < b.count ? rng_below(r, len + 1) : len;

		b.part[i].offset = mm_take(&h->mm, part, 1) + rng_below(r, 8);
		b.part[i].len = part;
		mm_take(&h->mm, 8 + rng_below(r, 16), 1);
		len -= part;
	}
	return b;
}

void buffer_read(const struct buffer *b, const uint8_t *image, uint8_t *out, uint32_t len)
{
	for (uint32_t i = 0; i < b->count && len; i++) {
		uint32_t n = b->part[i].len < len ? b->part[i].len : len;

		memcpy(out, image + b->part[i].offset, n);
		out += n;
		len -= n;
	}
}

void buffer_write(const struct buffer *b, uint8_t *image, const uint8_t *in, uint32_t len)
{
	for (uint32_t i = 0; i < b->count && len; i++) {
		uint32_t n = b->part[i].len < len ? b->part[i].len : len;

		memcpy(image + b->part[i].offset, in, n);
		in += n;
		len -= n;
	}
}

/* Copies what is in a buffer from one image of the memory to another. */
void buffer_copy(const struct buffer *b, uint8_t *to, const uint8_t *from)
{
	for (uint32_t i = 0; i < b->count; i++)
		memcpy(to + b->part[i].offset, from + b->part[i].offset, b->part[i].len);
}

static uint32_t buffer_sges(const struct buffer *b, const struct host *h, uint32_t key,
			    struct vernic_sge *sge)
{
	for (uint32_t i = 0; i < b->count; i++)
		sge[i] = (struct vernic_sge){h->mm.base + b->part[i].offset, b->part[i].len, key};
	return b->count;
}

static void fill_random(struct rng *r, uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t x = rng_next(r);

		memcpy(p + i, &x, len - i < 8 ? len - i : 8);
	}
}

/* Registers [offset, offset + len) of a host's memory. */
static void register_mr(struct host *h, struct mr *mr, size_t offset, size_t len)
{
	*mr = (struct mr){
		.access = ACCESS,
		.pd = &h->pd,
		.mm = &h->mm,
		.iova = h->mm.base + offset,
		.addr = h->mm.base + offset,
		.length = len,
	};
	if (mr_table_add(h->dev.mrs, mr))
		must(NULL);
}

struct side *side_of(struct program *g, const struct qp *qp)
{
	return &g->side[qp->p.index];
}

/* ---- making up operations ---------------------------------------------------------------- */

/* @return a length up to most, with a liking for the edges of packets */
static uint32_t random_length(struct side *s, uint32_t most)
{
	struct rng *r = &s->host->world->rng;
	uint32_t len;

	switch (rng_below(r, 9)) {
	case 0:
		len = 0;
		break;
	case 1:
		len = 1;
		break;
	case 2:
		len = s->mtu - 1;
		break;
	case 3:
		len = s->mtu;
		break;
	case 4:
		len = s->mtu + 1;
		break;
	case 5:
		len = 2 * s->mtu;
		break;
	case 6:
		len = rng_below(r, most + 1);
		break;
	default:
		len = rng_below(r, 300);
		break;
	}
	return len < most ? len : most;
}

static uint8_t random_opcode(struct side *s)
{
	static const uint8_t rc[] = {IBV_WR_SEND,
				     IBV_WR_SEND_WITH_IMM,
				     IBV_WR_RDMA_WRITE,
				     IBV_WR_RDMA_WRITE_WITH_IMM,
				     IBV_WR_RDMA_WRITE,
				     IBV_WR_SEND_WITH_INV,
				     IBV_WR_RDMA_READ,
				     IBV_WR_RDMA_READ,
				     IBV_WR_ATOMIC_CMP_AND_SWP,
				     IBV_WR_ATOMIC_FETCH_AND_ADD,
				     IBV_WR_ATOMIC_WRITE,
				     VERNIC_WR_FLUSH};
	struct rng *r = &s->host->world->rng;

	/* What XRC has of its own is how it receives. */
	if (s->type == IBV_QPT_XRC_SEND && rng_below(r, 2))
		return rc[rng_below(r, 2)];
	return rc[rng_below(r, is_reliable(s) ? sizeof(rc) : s->type == IBV_QPT_UC ? 5 : 2)];
}

/* Makes an operation wrong. */
static void make_fault(struct side *s, struct op *op)
{
	struct rng *r = &s->host->world->rng;
	bool rc = is_reliable(s);

	if (s->type == IBV_QPT_XRC_SEND && rng_below(r, 3) == 0) {
		op->fault = rng_below(r, 2) ? FAULT_SRQ : FAULT_DOMAIN;
		return;
	}
	if (s->type == IBV_QPT_UD) {
		static const uint8_t ud[] = {FAULT_LKEY, FAULT_QKEY, FAULT_QPN, FAULT_OPCODE};

		op->fault = ud[rng_below(r, 4)];
	} else if (is_flush(op->opcode)) {
		op->fault = rng_below(r, 2) ? FAULT_RKEY : FAULT_RANGE;
		return;
	} else if (is_for_word(op->opcode)) {
		static const uint8_t atomic[] = {FAULT_LKEY,  FAULT_RKEY,   FAULT_BOTH_KEYS,
						 FAULT_ALIGN, FAULT_LENGTH, FAULT_RANGE};

		op->fault = atomic[rng_below(r, 6)];
	} else if (is_send(op->opcode)) {
		op->fault = rc || rng_below(r, 2) ? FAULT_LKEY : FAULT_OPCODE;
	} else {
		static const uint8_t rdma[] = {FAULT_LKEY, FAULT_RKEY, FAULT_BOTH_KEYS,
					       FAULT_RANGE};

		op->fault = rdma[rng_below(r, 4)];
	}
	if (op->fault == FAULT_OPCODE)
		op->opcode = IBV_WR_RDMA_READ;
	if (op->fault == FAULT_LENGTH)
		op->len = 4;
	if (op->len == 0 && op->fault != FAULT_OPCODE && op->fault != FAULT_QKEY &&
	    op->fault != FAULT_QPN)
		op->len = 1;
}

/* A window of type 2 at a host, bound for a QP. @return NULL: the region is gone */
static struct mw *bound_window(struct host *h, const struct qp *qp, const struct mr *region)
{
	struct mw_binding b = {.addr = region->iova, .length = 8, .lkey = region->key};
	struct mw *mw;

	if (!qp || !region->key)
		return NULL;
	mw = must(calloc(1, sizeof(*mw)));
	mw->type = IBV_MW_TYPE_2;
	mw->mr.window = true;
	mw->mr.pd = &h->pd;
	if (mr_table_add(h->dev.mrs, &mw->mr))
		must(NULL);
	b.mw = mw->mr.key;
	b.rkey = mw->mr.key ^ 1;
	if (mw_bind(&h->pd, qp->qpn, &b))
		world_fail(h->world, "%c: a window cannot be bound", 'A' + (int)h->id);
	return mw;
}

/* Makes what an operation invalidates, if it does; without that it is a SEND. */
static void make_window(struct side *s, struct op *op)
{
	struct rng *r = &s->host->world->rng;

	if (s->type != IBV_QPT_UD && rng_below(r, 16) == 0) {
		op->opcode = IBV_WR_LOCAL_INV;
		op->mw = bound_window(s->host, s->qp.qp, &s->local_mr);
	} else if (op->opcode == IBV_WR_SEND_WITH_INV && s->peer) {
		op->mw = bound_window(s->peer->host, s->peer->qp.qp, &s->hot_mr);
	}
	if (op->mw)
		op->imm = op->mw->mr.key;
	else if (invalidates(op->opcode))
		op->opcode = IBV_WR_SEND;
}

/* Makes up an operation. @index: its number */
static void make_op(struct side *s, struct op *op, uint32_t index)
{
	struct program *g = s->prog;
	struct rng *r = &g->world.rng;
	bool rc = is_reliable(s);
	uint32_t id = s->index << 16 | index, most = g->max_len;

	op->opcode = random_opcode(s);
	op->to = s->peer;
	make_window(s, op);
	if (op->opcode == IBV_WR_LOCAL_INV) {
		op->data = must(calloc(1, 8));
		return;
	}
	if (s->type == IBV_QPT_UD)
		most = s->mtu < most ? s->mtu : most;
	else if (!is_send(op->opcode) && most > HOT_LEN)
		most = HOT_LEN;
	op->len = is_for_word(op->opcode) ? 8 : is_flush(op->opcode) ? 0 : random_length(s, most);
	/* A datagram that is wrong does little harm. */
	if (rng_chance(r, s->type == IBV_QPT_UD ? 4 * g->faults : g->faults))
		make_fault(s, op);
	if (has_imm(op->opcode))
		op->imm = id;
	if (rc && rng_below(r, 8) == 0)
		op->flags |= IBV_SEND_FENCE;
	if (rng_below(r, 4) == 0 && takes_receive(op->opcode))
		op->flags |= IBV_SEND_SOLICITED;
	if (s->type == IBV_QPT_UD) {
		do
			op->to = &g->side[rng_below(r, g->sides)];
		while (op->to->type != IBV_QPT_UD || op->to == s);
	}
	op->local = buffer_take(s->host, op->len);
	op->data = must(calloc(1, op->len + 8));
	if (is_for_word(op->opcode)) {
		op->shared = op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD && rng_below(r, 4) == 0 &&
			     op->fault == FAULT_NONE;
		op->remote = op->shared ? s->peer->host->shared
					: s->words + 8 * rng_below(r, WORDS);
		op->compare_add = rng_next(r);
		op->swap = rng_next(r);
		/* A guess at the value there will be, so that some compares succeed. */
		if (op->opcode == IBV_WR_ATOMIC_CMP_AND_SWP && !op->shared && rng_below(r, 2))
			memcpy(&op->compare_add, s->peer->host->mm.model + op->remote, 8);
		if (op->fault == FAULT_ALIGN)
			op->remote += 1 + rng_below(r, 7);
		if (op->fault == FAULT_RANGE)
			op->remote = s->words + 8 * WORDS;
		if (is_atomic(op->opcode))
			return;
	} else if (is_flush(op->opcode)) {
		op->remote = s->hot + rng_below(r, HOT_LEN);
		op->compare_add = rng_below(r, (uint32_t)(s->hot + HOT_LEN - op->remote) + 1);
		if (op->fault == FAULT_RANGE)
			op->remote = s->hot - 1;
		return;
	} else if (s->type != IBV_QPT_UD) {
		op->remote = s->hot;
		if (!is_send(op->opcode))
			op->remote += rng_below(r, HOT_LEN - op->len + 1);
		if (op->fault == FAULT_RANGE)
			op->remote = s->hot - 1;
	}
	if (op->opcode == IBV_WR_RDMA_READ)
		return;
	fill_random(r, op->data, op->len);
	if (op->len >= 4 && !has_imm(op->opcode))
		memcpy(op->data, &id, 4);
	if (op->len <= CLIENT_SQ_DATA && rng_below(r, 2)) {
		op->flags |= rng_below(r, 2) ? IBV_SEND_INLINE : VERNIC_SEND_COPIED;
		/* Inline data has no lkey. */
		if (op->flags & IBV_SEND_INLINE && op->fault == FAULT_LKEY)
			op->fault = FAULT_NONE;
		if (op->flags & IBV_SEND_INLINE && op->fault == FAULT_BOTH_KEYS)
			op->fault = FAULT_RKEY;
	}
	buffer_write(&op->local, s->host->mm.mem, op->data, op->len);
	buffer_write(&op->local, s->host->mm.model, op->data, op->len);
}

/* Makes up and posts the next operation of a side. */
static void post_one(struct side *s)
{
	struct rng *r = &s->host->world->rng;
	struct op *op = &s->op[s->posted];
	struct vernic_sge sge[CLIENT_MAX_SGE];
	struct vernic_send_wqe wqe = {0};
	bool bad_lkey, bad_rkey;

	make_op(s, op, s->posted);
	/* A full SQ is emptied by a completion only: there must be one in it. */
	if (!s->sig_all &&
	    (rng_below(r, 2) || s->posted + 1 == s->ops || s->unsignaled + 1 >= s->qp.p.sq_depth))
		op->flags |= IBV_SEND_SIGNALED;
	s->unsignaled = s->sig_all || op->flags & IBV_SEND_SIGNALED ? 0 : s->unsignaled + 1;
	bad_lkey = op->fault == FAULT_LKEY || op->fault == FAULT_BOTH_KEYS;
	bad_rkey = op->fault == FAULT_RKEY || op->fault == FAULT_BOTH_KEYS;

	wqe.wr_id = s->posted;
	wqe.opcode = op->opcode;
	wqe.flags = op->flags;
	wqe.length = op->len;
	wqe.imm = op->imm;
	if (!(op->flags & IBV_SEND_INLINE) && !is_flush(op->opcode))
		wqe.num_sge =
			(uint8_t)buffer_sges(&op->local, s->host, s->local_mr.key ^ bad_lkey, sge);
	if (s->type == IBV_QPT_UD) {
		const struct qp *to = op->to->qp.qp;

		wqe.pd = s->host->pd.handle;
		memcpy(wqe.ud.dgid, op->to->host->dev.gids[0].raw, 16);
		wqe.ud.remote_qpn = (to && op->fault != FAULT_QPN ? to->qpn : 0xabcd00);
		wqe.ud.remote_qkey = QKEY ^ (op->fault == FAULT_QKEY);
		wqe.ud.hop_limit = 64;
	} else {
		wqe.rdma.remote_addr = s->peer->host->mm.base + op->remote;
		wqe.rdma.rkey = (op->shared ? s->peer->host->shared_mr.key : s->hot_mr.key) ^
				bad_rkey;
		wqe.rdma.compare_add = op->compare_add;
		wqe.rdma.swap = op->swap;
	}
	if (s->type == IBV_QPT_XRC_SEND)
		wqe.xrc_srqn = op->fault == FAULT_SRQ	   ? 0x800000
			       : op->fault == FAULT_DOMAIN ? s->peer->host->strange_srq.number
							   : s->peer->host->srq.srq.number;
	if (is_flush(op->opcode)) {
		wqe.flush.length = op->compare_add;
		wqe.flush.type = (uint8_t)(1 + rng_below(r, 3));
		wqe.flush.level = op->fault == FAULT_RANGE ? VERNIC_FLUSH_RANGE
							   : (uint8_t)rng_below(r, 2);
	}
	world_trace(s->host->world, "%c%u: posts op %u, opcode %u flags %#x %u bytes fault %u",
		    'A' + (int)s->host->id, s->index, s->posted, op->opcode, op->flags, op->len,
		    op->fault);
	client_post_send(&s->qp, &wqe, sge,
			 op->flags & (IBV_SEND_INLINE | VERNIC_SEND_COPIED) ? op->data : NULL,
			 op->len);
	judge_posted(s, s->posted++);
	/* Inline data is the program's again at once. */
	if (op->flags & IBV_SEND_INLINE) {
		uint8_t *junk = must(malloc(op->len + 1));

		memset(junk, 0x5a, op->len + 1);
		buffer_write(&op->local, s->host->mm.mem, junk, op->len);
		buffer_write(&op->local, s->host->mm.model, junk, op->len);
		free(junk);
	}
}

static bool may_post(const struct side *s)
{
	return s->qp.qp && s->qp.qp->state >= IBV_QPS_RTS && s->posted < s->ops;
}

static void post_fire(struct timer *t, uint64_t now)
{
	struct side *s = SIDE_OF(post, t);
	struct world *w = s->host->world;
	uint32_t burst = 1 + rng_below(&w->rng, 8);
	bool any = false;

	for (; burst && may_post(s) && !client_sq_full(&s->qp); burst--) {
		post_one(s);
		any = true;
	}
	if (any) {
		s->prog->last_progress = now;
		client_doorbell(&s->qp);
	}
	if (s->posted < s->ops)
		world_at(w, t, now + 1 + rng_next(&w->rng) % s->prog->post_delay);
}

/* ---- receives ---------------------------------------------------------------------------- */

/* Makes up a receive. @home: the buffer of its slot, taken when first used */
static void make_receive(struct program *g, struct host *h, struct receive *rv, struct buffer *home)
{
	struct rng *r = &g->world.rng;

	*rv = (struct receive){.in_use = true, .id = rng_next(r)};
	if (rng_chance(r, g->faults)) {
		rv->small = true;
		return;
	}
	rv->bad_key = rng_chance(r, g->faults / 2);
	if (home->len == 0)
		*home = buffer_take(h, g->max_len + GRH + rng_below(r, 50));
	for (uint32_t i = 0; i < home->count; i++) {
		memset(h->mm.mem + home->part[i].offset, 0xa5, home->part[i].len);
		memset(h->mm.model + home->part[i].offset, 0xa5, home->part[i].len);
	}
	rv->buffer = *home;
}

static void post_recv_fire(struct timer *t, uint64_t now)
{
	struct side *s = SIDE_OF(post_recv, t);
	struct world *w = s->host->world;
	uint32_t burst = 1 + rng_below(&w->rng, 8);
	bool any = false;

	if (s->prog->over)
		return;
	for (; burst && s->qp.qp && s->qp.qp->state != IBV_QPS_RESET && !client_rq_full(&s->qp) &&
	       s->flushed < MAX_FLUSHED;
	     burst--) {
		struct vernic_sge sge[CLIENT_MAX_SGE];
		struct receive *rv;
		uint32_t count;

		if (s->qp.rq_prod == s->recv_capacity) {
			s->recv_capacity = s->recv_capacity ? 2 * s->recv_capacity : 32;
			s->recv = must(realloc(s->recv, s->recv_capacity * sizeof(*s->recv)));
		}
		rv = &s->recv[s->qp.rq_prod];
		make_receive(s->prog, s->host, rv, &s->home[s->qp.rq_prod % s->qp.p.rq_depth]);
		s->bad_receive |= rv->small || rv->bad_key;
		count = buffer_sges(&rv->buffer, s->host, s->local_mr.key ^ rv->bad_key, sge);
		client_post_recv(&s->qp, rv->id, sge, rv->small ? 0 : count);
		any = true;
	}
	/* In ERR a receive is flushed at once. */
	if (any && s->qp.qp->state == IBV_QPS_ERR)
		client_doorbell(&s->qp);
	world_at(w, t, now + 1 + rng_next(&w->rng) % s->prog->recv_delay);
}

static void post_srq_fire(struct timer *t, uint64_t now)
{
	struct client_srq *srq =
		(struct client_srq *)((char *)t - offsetof(struct client_srq, post));
	struct host *h = srq->host;
	struct world *w = h->world;
	uint32_t burst = 1 + rng_below(&w->rng, 12);
	uint32_t waiting;

	if (w->prog->over)
		return;
	for (; burst && srq->free_count; burst--) {
		struct receive *rv = &srq->recv[srq->free[srq->free_count - 1]];
		struct vernic_sge sge[CLIENT_MAX_SGE];
		uint32_t count;

		make_receive(w->prog, h, rv, &srq->home[rv - srq->recv]);
		count = buffer_sges(&rv->buffer, h, srq->mr.key ^ rv->bad_key, sge);
		client_post_srq(srq, rv->id, sge, rv->small ? 0 : count);
	}
	/* Arms an event, as the control thread does. */
	waiting = srq->prod - srq->srq.cons;
	if (srq->armed == 0 && waiting && rng_below(&w->rng, 2)) {
		pthread_spin_lock(&srq->srq.lock);
		srq->armed = srq->srq.limit = 1 + rng_below(&w->rng, waiting);
		pthread_spin_unlock(&srq->srq.lock);
		world_trace(w, "%c: SRQ armed for %u of %u", 'A' + (int)h->id, srq->armed, waiting);
	}
	world_at(w, t, now + 1 + rng_next(&w->rng) % w->prog->recv_delay);
}

/* ---- connections ------------------------------------------------------------------------- */

/* Moves a side's QP. */
static void move(struct side *s, struct ibv_qp_attr *a, int mask)
{
	struct world *w = s->host->world;
	struct worker *k = s->qp.worker;
	int err;

	k->engine.now = w->now;
	err = qp_modify(s->qp.qp, a, mask);
	if (err)
		world_fail(w, "%c%u: modify to %u: %s", 'A' + (int)s->host->id, s->index,
			   a->qp_state, strerror(-err));
	worker_kick(k);
}

/* Moves a side's QP to a state without further attributes. */
static void move_to(struct side *s, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = {.qp_state = state};

	world_trace(s->host->world, "%c%u: moved from %s to %s", 'A' + (int)s->host->id, s->index,
		    qp_state_name(s->qp.qp->state), qp_state_name(state));
	if (state == IBV_QPS_ERR || state == IBV_QPS_RESET)
		judge_leaves(s, state == IBV_QPS_RESET);
	move(s, &a, IBV_QP_STATE);
}

static bool is_down(const struct side *s)
{
	return !s->qp.qp || s->qp.qp->state == IBV_QPS_ERR || s->qp.qp->state == IBV_QPS_RESET;
}

/* Sees to a pair that has failed, after a while. */
static void want_repair(struct side *s)
{
	struct world *w = s->host->world;
	struct side *lead = s->peer && s->peer < s ? s->peer : s;
	uint64_t wait = rng_below(&w->rng, 2) ? 200 * US : 300 * MS;

	if (!s->prog->over && !timer_armed(&lead->repair))
		world_at(w, &lead->repair, w->now + 1 + rng_next(&w->rng) % wait);
}

/*
 * What the library makes of a CQE of a XRC SRQ, which names the SRQ, and the QP by its number.
 * @return false: it completes nothing
 */
static bool find_side(struct host *h, struct vernic_cqe *cqe)
{
	struct program *g = h->world->prog;

	if (cqe->queue != VERNIC_CQE_XRC_SRQ && cqe->queue != VERNIC_CQE_XRC_SLOT)
		return true;
	if (cqe->qp_index != SRQ_HANDLE)
		world_fail(h->world, "a completion for SRQ %u", cqe->qp_index);
	if (cqe->queue == VERNIC_CQE_XRC_SLOT) {
		client_release_slot(&h->srq, cqe->wqe);
		return false;
	}
	cqe->queue = VERNIC_CQE_SRQ;
	for (uint32_t i = 0; i < g->sides; i++) {
		const struct side *s = &g->side[i];

		if (s->host == h && s->type == IBV_QPT_XRC_RECV && s->qp.qp &&
		    s->qp.qp->qpn == cqe->qp_num)
			cqe->qp_index = i;
	}
	return true; /* the judge sees if there is none */
}

/* Polls the CQs of a host. @return completions */
static uint32_t poll_cqs(struct host *h)
{
	struct program *g = h->world->prog;
	struct vernic_cqe cqe;
	uint32_t n = 0;

	for (uint32_t i = 0; i < h->cqs; i++) {
		while (!world_failed(h->world) && client_poll(&h->cq[i], &cqe)) {
			struct side *s;

			if (!find_side(h, &cqe))
				continue;
			n++;
			if (!g->over)
				h->world->last_cqe = h->world->now;
			judge_cqe(h, &cqe);
			if (world_failed(h->world))
				break;
			s = &g->side[cqe.qp_index];
			if (cqe.status != IBV_WC_SUCCESS)
				want_repair(s);
		}
	}
	if (n)
		g->last_progress = h->world->now;
	return n;
}

/* Makes a side's QP. */
static void create(struct side *s)
{
	struct host *h = s->host;

	world_trace(h->world, "%c%u: created", 'A' + (int)h->id, s->index);
	if (client_create_qp(&s->qp))
		must(NULL);
}

/* What the library does when a QP is reset or gone. @slot: from qp_take_srq_slot() */
static void forget(struct side *s, uint32_t qpn, uint32_t slot)
{
	if (s->type == IBV_QPT_XRC_RECV) {
		for (uint32_t i = 0; i < s->host->cqs; i++)
			client_clean_xrc(&s->host->cq[i], qpn, &s->host->srq);
		client_reset_qp(&s->qp);
		return;
	}
	client_clean_cq((struct client_cq *)s->qp.p.send_cq, s->index, &s->host->srq);
	client_clean_cq((struct client_cq *)s->qp.p.recv_cq, s->index, &s->host->srq);
	if (slot != VERNIC_NO_SLOT)
		client_release_slot(&s->host->srq, slot);
	client_reset_qp(&s->qp);
}

/* Resets a side's QP, or destroys it. */
static void take_down(struct side *s, bool destroy)
{
	struct world *w = s->host->world;
	uint32_t slot, qpn;

	if (!s->qp.qp)
		return;
	qpn = s->qp.qp->qpn;
	/* Some clients look at what was flushed first. */
	if (s->qp.qp->state == IBV_QPS_ERR && !s->qp.qp->flushing && rng_below(&w->rng, 2)) {
		poll_cqs(s->host);
		judge_flushed(s);
	}
	s->qp.worker->engine.now = w->now;
	if (!destroy) {
		totals.resets++;
		move_to(s, IBV_QPS_RESET);
		slot = qp_take_srq_slot(s->qp.qp);
	} else {
		totals.destroyed++;
		world_trace(w, "%c%u: destroyed", 'A' + (int)s->host->id, s->index);
		judge_leaves(s, true);
		slot = qp_take_srq_slot(s->qp.qp);
		client_destroy_qp(&s->qp);
		worker_kick(s->qp.worker);
	}
	forget(s, qpn, slot);
}

/* @return an initial PSN: often one that wraps soon, in a later life far from those before */
static uint32_t random_psn(struct rng *r, const struct side *s)
{
	if (s->lives)
		return (s->flow.first_psn + 0x400000 + rng_below(r, 4096)) & PSN_MASK;
	return rng_below(r, 2) ? PSN_MASK - rng_below(r, 200) : rng_below(r, PSN_MASK + 1);
}

/* Registers what a side needs that it has not, or not any more. */
static void register_side(struct side *s)
{
	if (!s->local_mr.key)
		register_mr(s->host, &s->local_mr, 0, MM_SIZE);
	if (!s->hot_mr.key && s->type != IBV_QPT_UD)
		register_mr(s->peer->host, &s->hot_mr, s->hot, s->words + 8 * WORDS - s->hot);
	s->local_gone = s->hot_gone = false;
}

/* Gives some QPs in RTS a rate limit: a train, a packet or something between in a burst. */
static void limit_rate(struct side *s)
{
	struct qp *qp = s->qp.qp;
	struct rng own = {(uint64_t)s->lives << 32 | (qp->attr.sq_psn ^ s->index)}, *r = &own;
	uint32_t least = qp->mtu + 64;

	s->rate = s->burst = 0;
	s->paced = 0;
	if (s->prog->gentle || !rng_chance(r, 0.2))
		return;
	s->rate = 100000 + rng_below(r, 4000000);
	s->burst = rng_below(r, 30000);
	if (pacer_set(qp, s->rate, s->burst))
		world_fail(s->host->world, "no memory for a rate limit");
	if (s->burst == 0)
		s->burst = 65536 > s->rate / 8 ? 65536 : s->rate / 8;
	if (s->burst < least)
		s->burst = least;
}

/* Brings a side's QP, in RESET, to RTS. */
static void connect_side(struct side *s, uint32_t psn, uint32_t peer_psn)
{
	struct rng *r = &s->host->world->rng;
	bool rc = is_reliable(s), ud = s->type == IBV_QPT_UD;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.rq_psn = peer_psn,
		.sq_psn = psn,
		.max_rd_atomic = (uint8_t)s->max_rd,
		.max_dest_rd_atomic = (uint8_t)s->max_dest_rd,
		.retry_cnt = s->retry_cnt,
		.rnr_retry = s->rnr_retry,
		.ah_attr = {.is_global = 1, .port_num = 1},
	};

	a.min_rnr_timer = (uint8_t)(1 + rng_below(r, 14));
	a.timeout = (uint8_t)(8 + rng_below(r, 7));
	if (!ud) {
		a.dest_qp_num = s->peer->qp.qp->qpn;
		a.path_mtu = (enum ibv_mtu)__builtin_ctz(s->mtu / 128);
		memcpy(a.ah_attr.grh.dgid.raw, s->peer->host->dev.gids[0].raw, 16);
	}
	if (rc)
		a.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
				     VERNIC_ACCESS_FLUSH;
	s->failed = s->client_error = s->bad_receive = s->drain_asked = false;
	s->last_wqe_events = s->recvs_done = s->cqes_due = s->reported = s->flushed = 0;
	s->life_op = s->completed = s->posted;
	s->unsignaled = 0;
	s->lives++;
	totals.connections++;
	register_side(s);
	move(s, &a,
	     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		     (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	a.qp_state = IBV_QPS_RTR;
	move(s, &a,
	     IBV_QP_STATE |
		     (ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
		     (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
	a.qp_state = IBV_QPS_RTS;
	move(s, &a,
	     IBV_QP_STATE | IBV_QP_SQ_PSN |
		     (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				      IBV_QP_MAX_QP_RD_ATOMIC
			 : 0));
	if (s->type != IBV_QPT_XRC_RECV)
		limit_rate(s);
	world_trace(s->host->world, "%c%u: connected, qp %#x psn %u peer's %u mtu %u",
		    'A' + (int)s->host->id, s->index, s->qp.qp->qpn, psn, peer_psn, s->mtu);
}

/* Connects a pair, or readies a UD QP. */
static void connect(struct side *s)
{
	struct rng *r = &s->host->world->rng;
	struct side *p = s->peer;
	uint32_t psn = random_psn(r, s), peer_psn;

	if (!p) {
		connect_side(s, psn, 0);
		judge_connect(s);
		return;
	}
	peer_psn = random_psn(r, p);
	connect_side(s, psn, peer_psn);
	connect_side(p, peer_psn, psn);
	judge_connect(s);
	judge_connect(p);
}

/* ---- disturbances and repairs -------------------------------------------------------------- */

/* Makes a QP new, or resets it. @return whether there is one to connect */
static void renew(struct side *s)
{
	take_down(s, rng_below(&s->host->world->rng, 4) == 0);
	if (!s->qp.qp)
		create(s);
}

/* The last life is over: what is posted is flushed, what is not never will be. */
static void retire(struct side *s)
{
	s->retired = true;
	s->ops = s->posted;
	if (s->qp.qp && s->qp.qp->state != IBV_QPS_RESET && s->qp.qp->state != IBV_QPS_ERR) {
		s->client_error = true;
		move_to(s, IBV_QPS_ERR);
	}
}

static void repair_fire(struct timer *t, uint64_t now)
{
	struct side *s = SIDE_OF(repair, t), *p = s->peer;

	s->prog->last_progress = now;
	if (!is_down(s) && (!p || !is_down(p))) {
		/* An error of the SQ alone is mended without the peer. */
		for (struct side *q = s; q; q = q == s ? p : NULL) {
			if (q->qp.qp->state != IBV_QPS_SQE)
				continue;
			/* Not before everything is flushed: see judge_cqe(). */
			if (q->completed != q->posted || q->qp.qp->flushing) {
				want_repair(q);
				continue;
			}
			q->failed = false;
			judge_sq_mended(q);
			move_to(q, IBV_QPS_RTS);
		}
		return;
	}
	if (s->retired)
		return;
	if (s->lives >= MAX_LIVES) {
		retire(s);
		if (p)
			retire(p);
		return;
	}
	renew(s);
	if (p)
		renew(p);
	if (s->lives < MAX_LIVES)
		connect(s);
}

/* Takes memory back that may be in use. */
static void deregister(struct side *s, struct mr *mr, struct host *h, bool *gone)
{
	if (!mr->key)
		return;
	world_trace(s->host->world, "%c%u: %s MR deregistered", 'A' + (int)s->host->id, s->index,
		    mr == &s->local_mr ? "local" : "remote");
	totals.deregistered++;
	mr_table_remove(h->dev.mrs, mr);
	mr->key = 0;
	*gone = true;
}

/* @return a time, ns: half of them short, half long */
static uint64_t some_time(struct rng *r, uint64_t at_most, uint64_t or_at_most)
{
	uint64_t limit = rng_below(r, 2) ? at_most : or_at_most;

	return rng_next(r) % limit;
}

/*
 * @return whether a QP is in the middle of a message, or of an answer; of a XRC target, whether it
 * has a receive of the SRQ
 */
static bool bad_moment(const struct qp *qp)
{
	if (qp->p.type == IBV_QPT_XRC_RECV)
		return qp->resp.have_wqe;
	return qp->resp.have_wqe || qp->resp.kind != KIND_NONE ||
	       qp->resp.job_head != qp->resp.job_tail;
}

static void disturb_fire(struct timer *t, uint64_t now)
{
	struct side *s = SIDE_OF(disturb, t);
	struct program *g = s->prog;
	struct rng *r = &g->world.rng;

	if (g->over || is_down(s))
		return;
	if (s->ambush && !bad_moment(s->qp.qp)) {
		s->ambush--;
		world_at(&g->world, t,
			 now + 1 + rng_next(r) % (s->type == IBV_QPT_XRC_RECV ? US : 10 * US));
		return;
	}
	s->ambush = 0;
	s->prog->last_progress = now;
	if (s->qp.qp->state == IBV_QPS_SQD) {
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS};

		world_trace(&g->world, "%c%u: SQD ends", 'A' + (int)s->host->id, s->index);
		move(s, &a, IBV_QP_STATE);
		return;
	}
	switch (rng_below(r, s->type == IBV_QPT_XRC_RECV ? 3 : 8)) {
	case 0:
		totals.errors++;
		s->client_error = true;
		move_to(s, IBV_QPS_ERR);
		want_repair(s);
		break;
	case 1:
		take_down(s, false);
		want_repair(s);
		break;
	case 2:
		take_down(s, true);
		want_repair(s);
		break;
	case 3:
		deregister(s, &s->local_mr, s->host, &s->local_gone);
		break;
	case 4:
		if (s->peer)
			deregister(s, &s->hot_mr, s->peer->host, &s->hot_gone);
		break;
	default:
		if (s->qp.qp->state == IBV_QPS_RTS) {
			struct ibv_qp_attr a = {.qp_state = IBV_QPS_SQD,
						.en_sqd_async_notify = (uint8_t)rng_below(r, 2)};

			totals.drains++;
			s->drain_asked = a.en_sqd_async_notify;
			s->drained_events = 0;
			world_trace(&g->world, "%c%u: moved to SQD", 'A' + (int)s->host->id,
				    s->index);
			move(s, &a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
			world_at(&g->world, t, now + 1 + some_time(r, 100 * US, 40 * MS));
		}
		return;
	}
	if (rng_below(r, 2))
		world_at(&g->world, t, now + 1 + rng_next(r) % (10 * MS));
}

/* ---- what clients do --------------------------------------------------------------------- */

/* @return whether the clients have nothing left to do or to wait for */
static bool all_done(const struct program *g)
{
	for (uint32_t i = 0; i < g->sides; i++) {
		const struct side *s = &g->side[i];

		if (s->completed < s->ops || timer_armed(&s->repair))
			return false;
	}
	return g->world.in_flight == 0;
}

/* A host's client looks at its CQs, and at them again later or when an event says so. */
static void poll_fire(struct timer *t, uint64_t now)
{
	struct host *h = (struct host *)((char *)t - offsetof(struct host, poll));
	struct world *w = h->world;
	struct program *g = w->prog;
	uint32_t n = poll_cqs(h);

	if (g->event_driven) {
		for (uint32_t i = 0; i < h->cqs; i++)
			client_arm(&h->cq[i], VERNIC_ARM_NEXT);
		poll_cqs(h);
	}
	for (uint32_t i = 0; i < g->sides && !world_failed(w); i++) {
		struct side *s = &g->side[i];

		if (s->host == h && s->qp.qp && s->qp.qp->state == IBV_QPS_ERR &&
		    !s->qp.qp->flushing)
			judge_flushed(s);
	}
	h->idle = n ? 0 : h->idle + 1;
	if (!g->over && all_done(g))
		g->over = true;
	if (!g->over && now > g->last_progress + PATIENCE) {
		for (uint32_t i = 0; i < g->sides; i++) {
			const struct side *s = &g->side[i];

			if (s->completed < s->ops)
				world_fail(w, "%c%u hangs in %s: %u of %u completed, %u posted",
					   'A' + (int)s->host->id, i,
					   s->qp.qp ? qp_state_name(s->qp.qp->state) : "no QP",
					   s->completed, s->ops, s->posted);
		}
		world_fail(w, "nothing goes on");
	}
	/* Event driven, one look in a while serves to notice the end. */
	if (!g->over)
		world_at(w, t,
			 now + 1 * US + rng_next(&w->rng) % (20 * US) +
				 (g->event_driven || h->idle > 100 ? 20 * MS
				  : h->idle > 10		   ? 500 * US
								   : 0));
}

void program_cq_event(struct host *h)
{
	struct world *w = h->world;
	uint64_t when = w->now + rng_below(&w->rng, 20000);

	if (w->prog->event_driven && (!timer_armed(&h->poll) || h->poll.deadline > when))
		world_at(w, &h->poll, when);
}

void program_qp_event(struct host *h, struct qp *qp, enum ibv_event_type type)
{
	struct side *s = side_of(h->world->prog, qp);
	struct world *w = h->world;

	world_trace(w, "%c%u: event %u", 'A' + (int)h->id, s->index, type);
	switch (type) {
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		break;
	case IBV_EVENT_SQ_DRAINED:
		if (!s->drain_asked || s->drained_events++ || qp->state != IBV_QPS_SQD)
			world_fail(w, "%c%u: an SQ_DRAINED nobody asked for", 'A' + (int)h->id,
				   s->index);
		break;
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		if (!has_last_wqe(s) || s->last_wqe_events++ || qp->state != IBV_QPS_ERR)
			world_fail(w, "%c%u: a LAST_WQE_REACHED too many", 'A' + (int)h->id,
				   s->index);
		break;
	default:
		world_fail(w, "%c%u: QP event %d", 'A' + (int)h->id, s->index, type);
	}
}

/* ---- a run ------------------------------------------------------------------------------- */

/* Makes what a host has. */
static void make_host(struct host *h)
{
	struct rng *r = &h->world->rng;
	uint64_t zero = 0;

	/* Bases are odd, so that nothing is aligned by luck: make up for it here. */
	h->shared = mm_take(&h->mm, 16, 8) + 5;
	mm_fill(&h->mm, h->shared, &zero, 8);
	register_mr(h, &h->shared_mr, h->shared, 8);
	h->cqs = 1 + rng_below(r, MAX_CQS);
	for (uint32_t i = 0; i < h->cqs; i++)
		if (client_create_cq(h, &h->cq[i], CQ_DEPTH))
			must(NULL);
	if (client_create_srq(h, &h->srq))
		must(NULL);
	register_mr(h, &h->srq.mr, 0, MM_SIZE);
	h->srq.srq.xrcd = &h->xrcd[0];
	h->srq.srq.cq = &h->cq[0].cq;
	h->strange_srq = h->srq.srq;
	h->strange_srq.xrcd = &h->xrcd[1];
	h->strange_srq.ring = &h->strange_ring;
	if (xrc_table_add(h->dev.xrcs, &h->srq.srq) || xrc_table_add(h->dev.xrcs, &h->strange_srq))
		must(NULL);
	h->srq.post.fire = post_srq_fire;
	h->poll.fire = poll_fire;
}

/* Makes a side, without a peer yet. */
static struct side *make_side(struct program *g, enum ibv_qp_type type, struct host *h)
{
	struct rng *r = &g->world.rng;
	struct side *s = &g->side[g->sides];
	uint32_t rq_depth = 4u << rng_below(r, 3);

	s->prog = g;
	s->host = h;
	s->index = g->sides++;
	s->type = type;
	s->mtu = type == IBV_QPT_UD ? 4096 : 256u << rng_below(r, 5);
	s->sig_all = rng_below(r, 3) == 0;
	s->use_srq = type == IBV_QPT_XRC_RECV ||
		     (type != IBV_QPT_UC && type != IBV_QPT_XRC_SEND && rng_below(r, 3) == 0);
	s->max_rd = 1 + rng_below(r, rng_below(r, 2) ? 3 : VERNIC_MAX_RD_ATOMIC);
	s->max_dest_rd = s->max_rd;
	s->retry_cnt = (uint8_t)(rng_below(r, 2) ? 3 : rng_below(r, 2) ? 7 : rng_below(r, 8));
	s->rnr_retry = (uint8_t)(rng_below(r, 2) ? 7 : rng_below(r, 7));
	s->qp.worker = &h->worker[rng_below(r, h->workers)];
	s->qp.p = (struct qp_params){
		.dev = &h->dev,
		.pd = &h->pd,
		.srq = s->use_srq ? &h->srq.srq : NULL,
		.type = type,
		.sq_sig_all = s->sig_all,
		.index = s->index,
		.rq_depth = s->use_srq || type == IBV_QPT_XRC_SEND    ? 0
			    : type == IBV_QPT_RC || g->max_len > 3000 ? rq_depth
								      : 4 * rq_depth,
	};
	s->qp.p.send_cq = &h->cq[rng_below(r, h->cqs)].cq;
	s->qp.p.recv_cq = &h->cq[rng_below(r, h->cqs)].cq;
	s->qp.p.sq_depth = 4u << rng_below(r, 4);
	if (type == IBV_QPT_XRC_RECV) {
		s->qp.p.pd = NULL;
		s->qp.p.send_cq = s->qp.p.recv_cq = NULL;
		s->qp.p.srq = NULL;
		s->qp.p.xrcd = &h->xrcd[0];
	}
	s->post.fire = post_fire;
	s->post_recv.fire = post_recv_fire;
	s->disturb.fire = disturb_fire;
	s->repair.fire = repair_fire;
	create(s);
	return s;
}

/* Makes a side's region at the peer's host. */
static void make_region(struct side *s)
{
	struct rng *r = &s->host->world->rng;
	struct mm *mm = &s->peer->host->mm;
	uint64_t word[WORDS];

	s->hot = mm_take(mm, HOT_LEN, 1);
	fill_random(r, mm->mem + s->hot, HOT_LEN);
	memcpy(mm->model + s->hot, mm->mem + s->hot, HOT_LEN);
	s->words = mm_take(mm, 8 * WORDS + 8, 8) + 5;
	fill_random(r, (uint8_t *)word, sizeof(word));
	mm_fill(mm, s->words, word, sizeof(word));
	s->to_peer = &s->host->world->link[s->host->id][s->peer->host->id];
	s->from_peer = &s->host->world->link[s->peer->host->id][s->host->id];
}

static enum ibv_qp_type pair_type(const struct options *o, struct rng *r)
{
	static const enum ibv_qp_type mixed[] = {IBV_QPT_RC, IBV_QPT_RC,       IBV_QPT_RC,
						 IBV_QPT_UC, IBV_QPT_XRC_SEND, IBV_QPT_XRC_SEND};

	return o->type >= 0 ? (enum ibv_qp_type)o->type : mixed[rng_below(r, 6)];
}

/* Makes the sides. */
static void make_sides(struct program *g)
{
	const struct options *o = g->world.opt;
	struct world *w = &g->world;
	struct rng *r = &w->rng;
	uint32_t pairs = o->type == IBV_QPT_UD ? 0 : 1 + rng_below(r, MAX_PAIRS);
	bool any_ud = o->type == IBV_QPT_UD || (o->type < 0 && rng_below(r, 2));
	uint32_t ud = any_ud ? 2 + rng_below(r, 2) : 0;
	uint32_t ops = o->ops ? o->ops : 30 + rng_below(r, 100);

	for (uint32_t i = 0; i < pairs; i++) {
		enum ibv_qp_type type = pair_type(o, r);
		struct side *a = make_side(g, type, &w->host[rng_below(r, w->hosts)]);
		struct side *b = make_side(g, type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : type,
					   &w->host[rng_below(r, w->hosts)]);

		a->peer = b;
		b->peer = a;
		b->mtu = a->mtu;
		/* Now and then a requester that asks for more than the responder has. */
		a->max_dest_rd = rng_chance(r, g->faults) ? 1 : b->max_rd;
		b->max_dest_rd = rng_chance(r, g->faults) ? 1 : a->max_rd;
		make_region(a);
		make_region(b);
	}
	for (uint32_t i = 0; i < ud; i++)
		make_side(g, IBV_QPT_UD, &w->host[rng_below(r, w->hosts)]);
	for (uint32_t i = 0; i < g->sides; i++) {
		struct side *s = &g->side[i];
		uint32_t left = g->sides - i;

		s->ops = left > 1 ? rng_below(r, 2 * ops / left + 1) : ops;
		if (s->type == IBV_QPT_XRC_RECV)
			s->ops = 0;
		ops -= s->ops;
		s->op = must(calloc(s->ops + 1, sizeof(*s->op)));
	}
}

/* Makes everything and starts the clients. */
static void start(struct program *g)
{
	static const uint32_t lengths[] = {300, 3000, HOT_LEN, MAX_LEN};
	struct world *w = &g->world;
	struct rng *r = &w->rng;

	g->gentle = w->opt->gentle || rng_below(r, 4) == 0;
	g->faults = g->gentle || rng_below(r, 3) == 0 ? 0 : 0.01 * (1 + rng_below(r, 8));
	g->disturbances = g->gentle || rng_below(r, 3) == 0 ? 0 : 0.2 + 0.2 * rng_below(r, 4);
	g->max_len = lengths[rng_below(r, 4)];
	g->event_driven = rng_below(r, 3) == 0;
	g->post_delay = rng_below(r, 4) ? 20 * US : 3 * MS;
	g->recv_delay = rng_below(r, 3) ? 20 * US : 5 * MS;
	g->last_progress = w->now;
	for (uint32_t i = 0; i < w->hosts; i++)
		make_host(&w->host[i]);
	make_sides(g);
	for (uint32_t i = 0; i < g->sides; i++)
		if (!g->side[i].peer || g->side[i].peer > &g->side[i])
			connect(&g->side[i]);
	for (uint32_t i = 0; i < g->sides; i++) {
		struct side *s = &g->side[i];

		/* What finds no receive on UC and UD is lost: let those be posted first. */
		world_at(w, &s->post, w->now + rng_below(r, 20000) + (is_reliable(s) ? 0 : 1 * MS));
		if (!s->use_srq)
			world_at(w, &s->post_recv, w->now + rng_below(r, 20000));
		else if (!timer_armed(&s->host->srq.post))
			world_at(w, &s->host->srq.post, w->now + rng_below(r, 20000));
		s->ambush = s->type == IBV_QPT_XRC_RECV ? 3000 : rng_below(r, 2) ? 200 : 0;
		if (rng_chance(r, g->disturbances))
			world_at(w, &s->disturb, w->now + 1 + some_time(r, 300 * US, 10 * MS));
	}
	for (uint32_t i = 0; i < w->hosts; i++)
		world_at(w, &w->host[i].poll, w->now + 1000);
}

/* Frees everything of a run that is over or failed. */
static void stop(struct program *g)
{
	for (uint32_t i = 0; i < g->sides; i++) {
		struct side *s = &g->side[i];

		client_destroy_qp(&s->qp);
		for (uint32_t k = 0; k < s->posted; k++) {
			free(s->op[k].data);
			free(s->op[k].mw);
		}
		free(s->op);
		free(s->recv);
	}
	for (uint32_t i = 0; i < g->world.hosts; i++) {
		struct host *h = &g->world.host[i];

		for (uint32_t k = 0; k < h->cqs; k++)
			client_destroy_cq(&h->cq[k]);
		client_destroy_srq(&h->srq);
	}
}

bool program_run(uint64_t seed, const struct options *opt, char *reason, size_t reason_len)
{
	struct program *g = must(calloc(1, sizeof(*g)));
	struct world *w = &g->world;
	bool passed;

	world_init(w, seed, opt);
	w->prog = g;
	start(g);
	while (!world_failed(w) && world_step(w))
		if (w->now > TIME_LIMIT || w->steps > STEP_LIMIT)
			world_fail(w, "nothing ends: %.1f s, %llu steps", (double)w->now / 1e9,
				   (unsigned long long)w->steps);
	for (uint32_t i = 0; i < w->hosts; i++)
		poll_cqs(&w->host[i]);
	judge_rest(g);
	/* Now all QPs go; nothing may be left of them. */
	for (uint32_t i = 0; i < g->sides && !world_failed(w); i++) {
		struct side *s = &g->side[i];

		if (s->qp.qp && rng_below(&w->rng, 2) && s->qp.qp->state != IBV_QPS_RESET) {
			s->client_error = true;
			move_to(s, IBV_QPS_ERR);
		}
	}
	while (!world_failed(w) && world_step(w))
		;
	for (uint32_t i = 0; i < w->hosts; i++)
		poll_cqs(&w->host[i]);
	judge_rest(g);
	for (uint32_t i = 0; i < g->sides && !world_failed(w); i++)
		take_down(&g->side[i], true);
	while (!world_failed(w) && world_step(w))
		;
	judge_end(g);
	passed = !world_failed(w);
	snprintf(reason, reason_len, "%s", w->failure);
	stop(g);
	world_fini(w);
	free(g);
	return passed;
}
