/* SPDX-License-Identifier: BSD-2-Clause */
/* Congestion control: budgets of sockets, turns, and what loss and marks do to them. */
#include "internal.h"

#include <stdlib.h>

/* A turn is worth no less, if that much is to be sent: a train costs what a packet costs. */
#define MIN_TURN 16384u /* bytes */

/* What a window begins with, what it grows by when all of it was acknowledged, and what it is never
 * cut below. */
#define START 65536u  /* bytes */
#define STEP 8192u    /* bytes */
#define MIN_PACKETS 4 /* of the largest size */

/* A budget is cut once for everything that happens within a round trip, or within this. */
#define MIN_ROUND_TRIP UINT64_C(100000) /* ns */

/* A QP sends at most one CNP in this time (the usual value of adapters). */
#define CNP_INTERVAL UINT64_C(50000) /* ns */

/*
 * UC has nobody to tell it that a socket buffer is full, and what is lost stays lost: all UC QPs of
 * a budget together send a window in a burst, and 1 byte a ns (8 Gb/s) in the long run, less where
 * the budget's window is cut.
 */
#define UC_NS_PER_BYTE 1

/*
 * A packet that travels alone is charged with the structures around it and with what its buffer was
 * rounded up to; half of that, over its own bytes, bytes.
 */
#define LONE_PACKET 320u

uint32_t congestion_unit(uint32_t length, uint32_t mtu)
{
	return length > mtu ? mtu : length + LONE_PACKET;
}

/* What the window leaves to UC at once, bytes. */
static uint32_t burst(const struct budget *b)
{
	return b->window < b->burst ? b->window : b->burst;
}

/* The time UC has for bytes, ns. */
static uint64_t uc_time(const struct budget *b, uint32_t bytes)
{
	return (uint64_t)bytes * UC_NS_PER_BYTE * b->burst / burst(b);
}

/* Bytes in the bucket of UC. */
static uint32_t bucket(const struct budget *b)
{
	uint64_t now = b->engine->now;

	if (b->paced_until <= now)
		return 0;
	return (uint32_t)((b->paced_until - now) / UC_NS_PER_BYTE * burst(b) / b->burst);
}

/* Bytes of a budget that are free for a QP: of one that nothing uses, at least need. */
static uint32_t free_bytes(const struct budget *b, const struct qp *qp, uint32_t need)
{
	uint32_t used = b->used + bucket(b);
	uint32_t limit = qp->p.type == IBV_QPT_UC ? burst(b) : b->window;

	if (used == 0 && limit < need)
		return need;
	return used < limit ? limit - used : 0;
}

/* What a turn is worth now, bytes. */
static uint32_t turn(const struct budget *b, const struct qp *qp)
{
	uint32_t share = b->window / (b->waiting_count + 1);
	uint32_t most = b->window / 2 < qp->path.max_train ? b->window / 2 : qp->path.max_train;

	if (share < MIN_TURN)
		share = MIN_TURN;
	if (share > most)
		share = most;
	return share < qp->cong.need ? qp->cong.need : share;
}

static void leave_queue(struct qp *qp)
{
	struct congestion *c = &qp->cong;

	cds_list_del(&c->node);
	c->waits = false;
	c->budget[c->waits_for]->waiting_count--;
}

/* Notes that the budget is used. */
static void use(struct budget *b, uint32_t bytes)
{
	b->used += bytes;
	if (b->used > b->peak)
		b->peak = b->used;
}

/* Gives turns to those who wait, as long as there is room. */
static void give_turns(struct budget *b)
{
	while (!cds_list_empty(&b->waiting)) {
		struct qp *qp = cds_list_first_entry(&b->waiting, struct qp, cong.node);
		struct congestion *c = &qp->cong;
		uint32_t bytes = turn(b, qp);
		uint32_t room = free_bytes(b, qp, c->need);

		if (room < bytes && (room < c->need || b->used + bucket(b) != 0)) {
			if (b->paced_until > b->engine->now && !timer_armed(&b->timer))
				timer_arm(&b->engine->timers, &b->timer,
					  b->engine->now + uc_time(b, bytes - room));
			return;
		}
		leave_queue(qp);
		c->grant = bytes < room ? bytes : room;
		c->grant_of = c->waits_for;
		use(b, c->grant);
		engine_schedule(b->engine, qp);
	}
}

static void bucket_timer(struct timer *t, uint64_t now)
{
	give_turns((struct budget *)((char *)t - offsetof(struct budget, timer)));
}

/*
 * While it is what limits, the window doubles with each window acknowledged until the first cut,
 * and grows by a step from then on.
 */
static void grow(struct budget *b, uint32_t bytes)
{
	if (b->peak < b->window / 2)
		return;
	b->window += b->last_cut == 0 ? bytes : (uint32_t)((uint64_t)bytes * STEP / b->window);
	if (b->window > b->max)
		b->window = b->max;
}

/* Multiplicative decrease, once a round trip, of what was used: nobody knows more of the way. */
static void cut(struct budget *b, const struct qp *qp)
{
	uint64_t pause = qp->cong.rtt < MIN_ROUND_TRIP ? MIN_ROUND_TRIP : qp->cong.rtt;
	uint32_t bytes = b->peak < b->window ? b->peak : b->window;
	uint32_t least = MIN_PACKETS * qp->mtu;

	if (b->engine->now < b->last_cut + pause)
		return;
	b->last_cut = b->engine->now;
	b->peak = b->used;
	b->window = bytes / 2 > least ? bytes / 2 : least;
	if (b->window > b->max)
		b->window = b->max;
}

/* @return the budget of packets between two addresses, made if need be; NULL: no limit */
static struct budget *get(struct engine *e, const uint8_t from[16], const uint8_t to[16],
			  const struct path *path)
{
	struct budget *b;

	if (path->budget == 0)
		return NULL;
	cds_list_for_each_entry (b, &e->budgets, node) {
		if (memcmp(b->from, from, 16) == 0 && memcmp(b->to, to, 16) == 0) {
			b->users++;
			return b;
		}
	}
	b = calloc(1, sizeof(*b));
	if (!b)
		return NULL;
	if (timer_heap_reserve(&e->timers, engine_timers(e) + 1)) {
		free(b);
		return NULL;
	}
	e->budget_count++;
	b->engine = e;
	b->users = 1;
	b->max = path->budget;
	b->window = START < b->max ? START : b->max;
	b->burst = path->window < b->max ? path->window : b->max;
	b->timer.fire = bucket_timer;
	memcpy(b->from, from, 16);
	memcpy(b->to, to, 16);
	CDS_INIT_LIST_HEAD(&b->waiting);
	cds_list_add(&b->node, &e->budgets);
	return b;
}

static void put(struct budget *b)
{
	if (!b || --b->users != 0)
		return;
	timer_disarm(&b->engine->timers, &b->timer);
	cds_list_del(&b->node);
	b->engine->budget_count--;
	free(b);
}

void congestion_attach(struct qp *qp)
{
	static const uint8_t any[16];
	struct congestion *c = &qp->cong;
	const struct path *path = &qp->path;

	congestion_detach(qp);
	if (qp->p.type == IBV_QPT_UD)
		return;
	c->budget[BUDGET_OUT] = get(qp->engine, path->sgid, path->dgid, path);
	c->budget[BUDGET_IN] = get(qp->engine, any, path->sgid, path);
	congestion_update(qp);
	if (qp_sends(qp))
		engine_schedule(qp->engine, qp); /* it may have waited */
}

void congestion_detach(struct qp *qp)
{
	struct congestion *c = &qp->cong;

	if (c->waits)
		leave_queue(qp);
	congestion_end_turn(qp);
	for (unsigned int i = 0; i < BUDGETS; i++) {
		if (!c->budget[i])
			continue;
		c->budget[i]->used -= c->charged[i];
		give_turns(c->budget[i]);
		put(c->budget[i]);
	}
	*c = (struct congestion){0};
}

uint32_t congestion_room(struct qp *qp, unsigned int which, uint32_t need)
{
	struct congestion *c = &qp->cong;
	struct budget *b = c->budget[which];

	if (!b)
		return UINT32_MAX;
	if (c->waits)
		return 0;
	if (c->grant && c->grant_of == which && c->grant >= need)
		return c->grant;
	congestion_end_turn(qp);
	if (cds_list_empty(&b->waiting)) {
		uint32_t room = free_bytes(b, qp, need);

		if (room >= need)
			return room;
	}
	c->need = need;
	c->waits = true;
	c->waits_for = (uint8_t)which;
	cds_list_add_tail(&c->node, &b->waiting);
	b->waiting_count++;
	give_turns(b); /* or know when */
	return 0;
}

/* Cost of everything before a PSN that is of the WQE at index or of one behind it. */
static uint32_t cost_at(const struct qp *qp, uint32_t index, uint32_t psn)
{
	const struct requester *r = &qp->req;

	for (; index != r->begun; index++) {
		const struct send_entry *entry = &r->entry[index & (qp->p.sq_depth - 1)];
		int32_t packets = psn_diff(psn, entry->first_psn);

		if (packets < (int32_t)entry->packets)
			return entry->cost + (uint32_t)packets * entry->unit;
	}
	return r->cost;
}

/* Cost of READ and atomic responses the QP has asked for and not got. */
static uint32_t responses_due(const struct qp *qp)
{
	const struct requester *r = &qp->req;
	uint32_t cost = 0;

	for (uint32_t i = r->rd_head; i != r->rd_tail; i++) {
		uint32_t k = i % VERNIC_MAX_RD_ATOMIC;
		int32_t left = psn_diff(r->rd_end[k], r->una_psn);
		uint32_t packets = r->rd_packets[k];

		if (left > 0)
			cost += ((uint32_t)left < packets ? (uint32_t)left : packets) *
				r->rd_unit[k];
	}
	return cost;
}

/* Charges a budget with what the QP has under way now. */
static void charge(struct qp *qp, unsigned int which, uint32_t bytes)
{
	struct congestion *c = &qp->cong;
	struct budget *b = c->budget[which];
	bool less = bytes < c->charged[which];

	if (!b || bytes == c->charged[which])
		return;
	b->used -= c->charged[which];
	use(b, bytes);
	c->charged[which] = bytes;
	if (less)
		give_turns(b);
}

void congestion_update(struct qp *qp)
{
	uint32_t total = 0, due = 0;

	/* A local path: nothing to charge. */
	if (!qp->cong.budget[BUDGET_OUT] && !qp->cong.budget[BUDGET_IN])
		return;
	if (qp_is_reliable(qp) && qp_sends(qp) && !qp->cong.silent) {
		const struct requester *r = &qp->req;

		total = cost_at(qp, r->next, r->send_psn) - cost_at(qp, r->una, r->una_psn);
		due = responses_due(qp);
	}
	charge(qp, BUDGET_OUT, total > due ? total - due : 0);
	charge(qp, BUDGET_IN, due);
}

void congestion_sent(struct qp *qp, unsigned int which, uint32_t bytes, bool again)
{
	struct congestion *c = &qp->cong;
	struct budget *b = c->budget[which];
	uint64_t now = qp->engine->now;

	if (again) {
		c->rtt_begin = 0; /* an answer may be that of the first time (Karn) */
	} else if (c->rtt_begin == 0) {
		c->rtt_begin = now;
		c->rtt_psn = qp->req.send_psn;
	}
	if (!b)
		return;
	if (c->grant && c->grant_of == which) {
		uint32_t taken = bytes < c->grant ? bytes : c->grant;

		c->grant -= taken;
		b->used -= taken;
	}
	if (qp->p.type == IBV_QPT_UC) {
		if (b->paced_until < now)
			b->paced_until = now;
		b->paced_until += uc_time(b, bytes);
		if (b->used + bucket(b) > b->peak)
			b->peak = b->used + bucket(b);
		grow(b, bytes);
	}
	congestion_update(qp);
}

void congestion_end_turn(struct qp *qp)
{
	struct congestion *c = &qp->cong;
	struct budget *b = c->budget[c->grant_of];

	if (c->grant == 0)
		return;
	b->used -= c->grant;
	c->grant = 0;
	give_turns(b);
}

void congestion_acknowledged(struct qp *qp)
{
	struct congestion *c = &qp->cong;
	uint32_t before[BUDGETS] = {c->charged[BUDGET_OUT], c->charged[BUDGET_IN]};

	if (c->rtt_begin != 0 && psn_diff(qp->req.una_psn, c->rtt_psn) >= 0) {
		uint64_t rtt = qp->engine->now - c->rtt_begin;

		c->rtt = c->rtt ? (7 * c->rtt + rtt) / 8 : rtt;
		if (c->rtt == 0)
			c->rtt = 1; /* within one round: known all the same */
		c->rtt_begin = 0;
	}
	congestion_update(qp);
	for (unsigned int i = 0; i < BUDGETS; i++)
		if (c->budget[i] && c->charged[i] < before[i])
			grow(c->budget[i], before[i] - c->charged[i]);
}

void congestion_lost(struct qp *qp, unsigned int which)
{
	if (qp->cong.budget[which])
		cut(qp->cong.budget[which], qp);
}

void congestion_marked(struct qp *qp, const struct train *marked)
{
	struct congestion *c = &qp->cong;
	uint64_t now = qp->engine->now;
	struct train t;

	/* READ responses come as fast as they are asked for. */
	if (marked->kind == KIND_READ_RESPONSE)
		congestion_lost(qp, BUDGET_IN);
	if (now < c->cnp_sent + CNP_INTERVAL)
		return;
	c->cnp_sent = now;
	qp_fill_train(qp, &t, KIND_CNP);
	t.service = WIRE_CNP;
	t.first = t.last = true;
	t.mtu = 0;
	t.ecn = 0; /* nobody shall answer it */
	qp->counters.np_cnp_sent++;
	engine_tx(qp, &t);
}

void congestion_notified(struct qp *qp)
{
	struct requester *r = &qp->req;
	uint32_t least = MIN_PACKETS * qp->mtu;

	qp->counters.rp_cnp_handled++;
	if (qp->cong.budget[BUDGET_OUT])
		congestion_lost(qp, BUDGET_OUT);
	else
		r->window = r->window / 2 > least ? r->window / 2 : least;
}
