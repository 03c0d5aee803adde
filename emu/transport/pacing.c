/* SPDX-License-Identifier: BSD-2-Clause */
/* Pacing: a leaky bucket for each QP that has a rate limit. */
#include "internal.h"

#include <stdlib.h>

/* The headers of a request, its pad and its ICRC are no longer, octets. */
#define HEADERS 64u

/*
 * The burst of who asks for none: a train, and what is sent in the time a worker that shares its
 * core may sleep too long.
 */
#define MIN_BURST 65536u /* octets */
#define BURSTS_A_SECOND 1000u

/* ns that an octet takes at 1 kbit/s */
#define OCTET_NS UINT64_C(8000000)

/* @return the time octets take, ns, rounded up: it is a limit. @octets: up to 2^32 */
static uint64_t time_of(const struct pacer *p, uint64_t octets)
{
	return (octets * OCTET_NS + p->rate - 1) / p->rate;
}

/* @return octets that a time pays for. @ns: what 2^32 octets take at most */
static uint64_t octets_in(const struct pacer *p, uint64_t ns)
{
	return ns * p->rate / OCTET_NS;
}

/* There may be room now. */
static void pacer_timer(struct timer *t, uint64_t now)
{
	struct pacer *p = (struct pacer *)((char *)t - offsetof(struct pacer, timer));

	engine_schedule(p->qp->engine, p->qp);
}

/* The QP has no limit any more, and may have waited. */
static void pacer_free(struct qp *qp)
{
	struct pacer *p = qp->pacer;

	timer_disarm(&qp->engine->timers, &p->timer);
	qp->engine->pacers--;
	qp->pacer = NULL;
	free(p);
	engine_schedule(qp->engine, qp);
}

int pacer_set(struct qp *qp, uint32_t rate, uint32_t burst)
{
	struct engine *e = qp->engine;
	uint32_t least = qp->mtu + HEADERS;
	struct pacer *p = qp->pacer;
	uint64_t owed = 0;

	if (rate == 0) {
		if (p)
			pacer_free(qp);
		return 0;
	}
	if (!p) {
		p = calloc(1, sizeof(*p));
		if (!p)
			return -ENOMEM;
		if (timer_heap_reserve(&e->timers, engine_timers(e) + 1)) {
			free(p);
			return -ENOMEM;
		}
		e->pacers++;
		p->qp = qp;
		p->timer.fire = pacer_timer;
		qp->pacer = p;
	}
	if (burst == 0) {
		burst = (uint32_t)(UINT64_C(125) * rate / BURSTS_A_SECOND);
		if (burst < MIN_BURST)
			burst = MIN_BURST;
	}
	/* What was sent is not paid for at the old rate: that may take hours. */
	if (p->paid > e->now)
		owed = octets_in(p, p->paid - e->now);
	p->rate = rate;
	p->burst = burst < least ? least : burst;
	p->paid = e->now + time_of(p, owed);
	timer_disarm(&e->timers, &p->timer);
	engine_schedule(e, qp);
	return 0;
}

uint32_t pacer_room(struct qp *qp)
{
	struct pacer *p = qp->pacer;
	uint32_t packet = qp->mtu + HEADERS, room = p->burst;
	uint64_t now = qp->engine->now, full, debt;

	if (p->paid > now && !MUTATION(pacing_ignored)) {
		/* Who has used it up waits for a quarter: a timer for each packet is dear. */
		uint32_t quarter = p->burst / 4 < packet ? packet : p->burst / 4;

		full = time_of(p, p->burst);
		debt = p->paid - now;
		room = debt < full ? (uint32_t)octets_in(p, full - debt) : 0;
		if (room < (timer_armed(&p->timer) ? quarter : packet)) {
			timer_arm(&qp->engine->timers, &p->timer,
				  p->paid + time_of(p, quarter) - full);
			return 0;
		}
	}
	timer_disarm(&qp->engine->timers, &p->timer);
	return room / packet;
}

void pacer_sent(struct pacer *p, uint64_t now, uint64_t octets)
{
	p->paid = (p->paid > now ? p->paid : now) + time_of(p, octets);
}
