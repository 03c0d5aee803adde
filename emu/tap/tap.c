/* SPDX-License-Identifier: BSD-2-Clause */
/* The packet tap: faults done to packets. */
#include "tap.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "../port/packet.h"
#include "../transport/qp.h"

#define IP_UDP_LEN 28 /* bytes of a packet that its BTH does not count, for FAULT_RATE */
#define ECN_CE 3      /* RFC 3168: congestion experienced */

/* Where a train is: which QP's, and on which way. */
struct place {
	enum fault_point point; /* FAULT_TX, FAULT_RX */
	const struct device *dev;
	uint32_t qpn;
};

/* Packets that are held: a train of its own. */
struct held {
	struct timer timer; /* when it goes */
	struct tap *tap;
	struct cds_list_head node; /* of flow.late, or of tap.spent */
	struct place place;
	bool ordered;	 /* later packets of the flow wait behind it */
	uint32_t behind; /* later packets of the flow that go first; 0: only time counts */
	bool gathering;	 /* the payload is not in data yet, but still where it was */
	bool failed;	 /* it could not be had */
	bool gone;	 /* let go before it was in data */
	char note[FAULT_NOTE];
	struct train train; /* payload: valid while gathering */
	struct path path;
	uint8_t data[];
};
static_assert(offsetof(struct held, timer) == 0, "a timer of the heap is its packet");

/* What a QP sends or receives, while some of it is held. */
struct flow {
	struct flow *next; /* of the bucket */
	enum fault_point point;
	uint32_t qpn;
	uint32_t held;		   /* struct held of this flow */
	uint32_t ordered;	   /* of these in order */
	uint64_t last;		   /* ns: when the last of those goes */
	struct cds_list_head late; /* those put behind later packets, oldest first */
};

/* ---- flows ---------------------------------------------------------------------------------- */

/* @return where the pointer to a flow is, or would be */
static struct flow **flow_slot(struct tap *tap, const struct place *at)
{
	uint32_t hash = (at->qpn ^ at->qpn >> 8 ^ (uint32_t)at->point << 7) % TAP_FLOW_BUCKETS;
	struct flow **slot = &tap->flows[hash];

	while (*slot != NULL && ((*slot)->qpn != at->qpn || (*slot)->point != at->point))
		slot = &(*slot)->next;
	return slot;
}

/* @return the flow, or NULL: nothing of it is held */
static struct flow *flow_find(struct tap *tap, const struct place *at)
{
	return tap->held.count != 0 ? *flow_slot(tap, at) : NULL;
}

/* @return the flow, made if need be; NULL without memory */
static struct flow *flow_get(struct tap *tap, const struct place *at)
{
	struct flow **slot = flow_slot(tap, at);

	if (*slot == NULL) {
		*slot = calloc(1, sizeof(**slot));
		if (*slot == NULL)
			return NULL;
		(*slot)->point = at->point;
		(*slot)->qpn = at->qpn;
		CDS_INIT_LIST_HEAD(&(*slot)->late);
	}
	return *slot;
}

/* Frees a flow of which nothing is held. */
static void flow_put(struct tap *tap, const struct place *at)
{
	struct flow **slot = flow_slot(tap, at);
	struct flow *f = *slot;

	if (f == NULL || f->held != 0)
		return;
	*slot = f->next;
	free(f);
}

/* ---- letting go ----------------------------------------------------------------------------- */

/*
 * Cuts packets out of a train.
 * @from, @count: the packets, from 0; count > 0
 */
static struct train cut(struct tap *tap, const struct train *t, uint32_t from, uint32_t count)
{
	bool last = from + count == t->count;
	uint32_t offset = from * t->mtu;
	struct train s = *t;

	if (from == 0 && last)
		return s;
	s.payload = dma_slice(tap->engine->dma, &t->payload, offset,
			      last ? t->payload.len - offset : count * t->mtu);
	s.psn = psn_add(t->psn, from);
	s.count = count;
	s.first = t->first && from == 0;
	if (!last)
		s.last = s.imm = s.inv = s.solicited = s.ackreq = false;
	if (count == 1)
		s.mtu = s.payload.len;
	return s;
}

/* A train goes on its way. @note: what a fault did to it, or NULL */
static void let_go(struct tap *tap, const struct place *at, const struct train *t, const char *note)
{
	if (at->point == FAULT_TX)
		tap->ops->send(tap->host, at->dev, at->qpn, t, note);
	else
		tap->ops->receive(tap->host, t);
}

/* Takes held packets off the clock and out of their flow. */
static void unhold(struct tap *tap, struct held *h)
{
	struct flow *f = flow_find(tap, &h->place);

	timer_disarm(&tap->held, &h->timer);
	if (h->behind != 0)
		cds_list_del(&h->node);
	f->held--;
	f->ordered -= h->ordered;
}

/* Frees what was held. */
static void held_free(struct held *h)
{
	h->tap->held_bytes -= sizeof(*h) + h->train.payload.len;
	free(h);
}

/* Lets go packets that unhold() has taken; the buffer stays for the round. */
static void let_go_held(struct tap *tap, struct held *h)
{
	struct train t = h->train;

	t.path = &h->path;
	if (!h->gathering)
		t.payload = dma_local(tap->engine->dma, h->data, t.payload.len);
	/* The client took back its memory: as if they were lost. */
	if (!h->failed)
		let_go(tap, &h->place, &t, h->note);
	h->gone = true;
	if (!h->gathering)
		cds_list_add_tail(&h->node, &tap->spent);
}

/* Packets of a flow went by: lets go those put behind them. */
static void went_by(struct tap *tap, struct flow *f, uint32_t count)
{
	struct held *h, *next;

	cds_list_for_each_entry_safe (h, next, &f->late, node) {
		if (h->behind > count) {
			h->behind -= count;
			continue;
		}
		unhold(tap, h);
		let_go_held(tap, h);
	}
}

/* @return how many packets of a flow may go before one put behind them is due */
static uint32_t until_late(const struct flow *f)
{
	uint32_t least = UINT32_MAX;
	const struct held *h;

	cds_list_for_each_entry (h, &f->late, node) {
		if (h->behind < least)
			least = h->behind;
	}
	return least;
}

/* A train goes on its way, and with it those of its flow put behind packets of it. */
static void let_by(struct tap *tap, const struct place *at, const struct train *t, const char *note)
{
	for (uint32_t from = 0; from < t->count;) {
		struct flow *f = flow_find(tap, at);
		uint32_t count = t->count - from;
		struct train s;

		if (f != NULL && until_late(f) < count)
			count = until_late(f);
		s = cut(tap, t, from, count);
		let_go(tap, at, &s, note);
		from += count;
		if (f != NULL) {
			went_by(tap, f, count);
			flow_put(tap, at);
		}
	}
}

/* ---- holding -------------------------------------------------------------------------------- */

/* dma_op.done: the payload is in the buffer. */
static void gathered(struct dma *dma, struct dma_op *op, int error)
{
	struct held *h = op->ctx;

	h->gathering = false;
	h->failed = error != 0;
	if (h->gone)
		held_free(h);
}

/*
 * Holds a train.
 * @due: ns, when it goes
 * @ordered: the flow's later packets wait behind it
 * @behind: later packets of the flow that go first, 0: none
 */
static void hold(struct tap *tap, const struct place *at, const struct train *t, uint64_t due,
		 bool ordered, uint32_t behind, const char *note)
{
	size_t size = sizeof(struct held) + t->payload.len;
	struct flow *f = flow_get(tap, at);
	struct held *h = NULL;
	struct dma_op *op;

	if (f != NULL && tap->held_bytes + size <= TAP_HELD_MAX &&
	    timer_heap_reserve(&tap->held, tap->held.count + 1) == 0)
		h = malloc(size);
	if (h == NULL) {
		tap->counters.lost += t->count;
		tap->ops->note(tap->host, at->point, at->dev, at->qpn, t, "fault: held too much");
		flow_put(tap, at);
		return;
	}
	memset(h, 0, sizeof(*h));
	h->tap = tap;
	h->place = *at;
	h->ordered = ordered;
	h->behind = behind;
	if (note != NULL)
		strcpy(h->note, note);
	h->train = *t;
	h->path = *t->path;
	tap->held_bytes += size;
	f->held++;
	if (ordered) {
		/* One later than the one before: so the clock keeps their order. */
		if (f->ordered++ != 0 && due <= f->last)
			due = f->last + 1;
		f->last = due;
	}
	if (behind != 0)
		cds_list_add_tail(&h->node, &f->late);
	timer_arm(&tap->held, &h->timer, due);
	tap->active = true;
	if (t->payload.len == 0)
		return;
	h->gathering = true;
	op = dma_submit(tap->engine->dma);
	op->src = t->payload;
	op->dst = dma_local(tap->engine->dma, h->data, t->payload.len);
	op->done = gathered;
	op->ctx = h;
}

/* A train goes on its way as soon as the flow's held ones before it have. */
static void pass(struct tap *tap, const struct place *at, const struct train *t, const char *note)
{
	const struct flow *f = flow_find(tap, at);

	if (f != NULL && f->ordered != 0)
		hold(tap, at, t, f->last, true, 0, note);
	else
		let_by(tap, at, t, note);
}

bool tap_run(struct tap *tap)
{
	bool any = false;

	while (tap->held.count != 0) {
		struct held *h = (struct held *)tap->held.heap[0];
		struct place at = h->place;
		struct flow *f;

		if (h->timer.deadline > tap->engine->now && !tap->hasty)
			break;
		any = true;
		if (at.point == FAULT_TX && !tap->ops->ready(tap->host, &h->path))
			break;
		unhold(tap, h);
		let_go_held(tap, h);
		f = flow_find(tap, &at);
		if (f != NULL)
			went_by(tap, f, h->train.count);
		flow_put(tap, &at);
	}
	if (tap->held.count == 0)
		tap_changed(tap, false);
	return any;
}

void tap_release(struct tap *tap)
{
	struct held *h, *next;

	cds_list_for_each_entry_safe (h, next, &tap->spent, node)
		held_free(h);
	CDS_INIT_LIST_HEAD(&tap->spent);
}

uint64_t tap_deadline(const struct tap *tap)
{
	return tap->hasty && tap->held.count != 0 ? 0 : timer_next(&tap->held);
}

/* ---- changing ------------------------------------------------------------------------------- */

/*
 * Flips a bit of a train's payload.
 * @t: its payload becomes another list, the byte in the daemon's memory
 */
static void flip_payload(struct tap *tap, struct train *t, struct vernic_chance *c)
{
	uint64_t random = vernic_chance_random(c);
	struct dma *dma = tap->engine->dma;
	uint32_t offset = (uint32_t)((random >> 32) % t->payload.len);
	struct dma_list at = dma_slice(dma, &t->payload, offset, 1);
	struct dma_list head = dma_slice(dma, &t->payload, 0, offset);
	struct dma_list tail = dma_slice(dma, &t->payload, offset + 1, t->payload.len - offset - 1);
	uint8_t *byte = dma_scratch(dma, 1);
	struct dma_list list = {.count = head.count + 1 + tail.count, .len = t->payload.len};

	/* If this fails the gather of the rest fails too. */
	if (dma_read_now(dma, at.seg->mm, at.seg->addr, byte, 1) != 0)
		*byte = 0;
	*byte ^= (uint8_t)(1 << (random & 7));
	list.seg = dma_segments(dma, list.count);
	if (head.count != 0)
		memcpy(list.seg, head.seg, head.count * sizeof(*list.seg));
	list.seg[head.count] = (struct dma_segment){.addr = (uintptr_t)byte, .len = 1};
	if (tail.count != 0)
		memcpy(list.seg + head.count + 1, tail.seg, tail.count * sizeof(*list.seg));
	t->payload = list;
}

/*
 * Flips a bit of the headers of a single packet: one that says something, not a reserved one.
 * @whole: it must remain a packet of the same form
 * @return false if it is none any more
 */
static bool flip_header(struct train *t, struct vernic_chance *c, bool whole)
{
	struct wire_packet before, after;
	uint8_t buf[WIRE_MAX_HEADERS] = {0}, again[WIRE_MAX_HEADERS];
	size_t len;

	packet_train_headers(t, &before);
	if (packet_headers(t, 0, &before) != 0)
		return true;
	len = wire_encode(buf, &before);
	for (;;) {
		uint32_t bit = (uint32_t)((vernic_chance_random(c) >> 32) % (len * 8));
		bool decoded;

		buf[bit / 8] ^= (uint8_t)(1 << bit % 8);
		/* What is behind the headers is not looked at, only how long it is. */
		decoded = wire_decode(buf, packet_len(&before), &after) == 0 &&
			  after.payload_off == len && after.payload_len == before.payload_len &&
			  wire_opcodes[after.opcode].kind != KIND_NONE;
		if (!decoded && !whole)
			return false;
		/* Trains know no FECN and BECN. */
		if (decoded && wire_encode(again, &after) == len && memcmp(buf, again, len) == 0 &&
		    after.fecn == before.fecn && after.becn == before.becn &&
		    (!whole || after.dest_qpn == before.dest_qpn))
			break;
		buf[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	packet_begins(t, &after);
	packet_ends(t, &after);
	return true;
}

/* Drops packets for their ICRC, as a port does, and counts them. */
static void drop_bad_icrc(struct tap *tap, const struct place *at, const struct train *t)
{
	tap->counters.bad_icrc += t->count;
	if (at->dev != NULL)
		tap->engine->device[at->dev->index].rx_icrc_encapsulated += t->count;
}

/* A packet is damaged. Unless that is silent its ICRC shows it. */
static void corrupt(struct tap *tap, const struct place *at, struct train *t, struct fault_rule *r)
{
	bool seen = !r->silent;

	if (r->value == FAULT_PAYLOAD && t->payload.len != 0)
		flip_payload(tap, t, &r->chance);
	if (r->value == FAULT_HEADER && !flip_header(t, &r->chance, seen)) {
		tap->counters.malformed++;
		tap->ops->note(tap->host, at->point, at->dev, at->qpn, t, r->note);
		return;
	}
	if (seen && at->point == FAULT_RX) {
		drop_bad_icrc(tap, at, t);
		return;
	}
	if (seen)
		t->icrc_xor = (uint32_t)(vernic_chance_random(&r->chance) >> 32) | 1;
	pass(tap, at, t, r->note);
}

/* ---- rules ---------------------------------------------------------------------------------- */

/* @return ns that a train takes at a rate */
static uint64_t rate_time(const struct train *t, uint64_t bits_a_second)
{
	uint64_t bytes =
		(uint64_t)t->payload.len + t->count * (uint64_t)(BTH_LEN + ICRC_LEN + IP_UDP_LEN);

	return bytes * 8 * UINT64_C(1000000000) / bits_a_second;
}

/* A packet waits for its turn behind those before it. */
static void rate(struct tap *tap, const struct place *at, const struct train *t,
		 struct fault_rule *r)
{
	uint64_t now = engine_time(tap->engine);

	if (r->busy > now + TAP_RATE_QUEUE) {
		tap->ops->note(tap->host, at->point, at->dev, at->qpn, t, r->note);
		return;
	}
	if (r->busy < now)
		r->busy = now;
	r->busy += rate_time(t, r->value);
	hold(tap, at, t, r->busy, true, 0, r->note);
}

/* Packets are late. */
static void delay(struct tap *tap, const struct place *at, const struct train *t,
		  struct fault_rule *r)
{
	uint64_t due = engine_time(tap->engine) + r->value;

	if (r->jitter != 0)
		due += vernic_chance_random(&r->chance) % (r->jitter + 1);
	hold(tap, at, t, due, r->jitter == 0, 0, r->note);
}

/* Does to a train what a rule says; NULL: none struck. */
static void act(struct tap *tap, const struct place *at, struct train *t, struct fault_rule *r)
{
	if (r == NULL) {
		pass(tap, at, t, NULL);
		return;
	}
	if (at->point == FAULT_RX)
		tap->ops->note(tap->host, at->point, at->dev, at->qpn, t, r->note);
	switch (r->action) {
	case FAULT_DROP:
		if (at->point == FAULT_TX)
			tap->ops->note(tap->host, at->point, at->dev, at->qpn, t, r->note);
		break;
	case FAULT_DUPLICATE:
		for (uint64_t i = 0; i <= r->value; i++)
			pass(tap, at, t, i != 0 ? r->note : NULL);
		break;
	case FAULT_REORDER:
		hold(tap, at, t, engine_time(tap->engine) + TAP_LATE, false, (uint32_t)r->value,
		     r->note);
		break;
	case FAULT_DELAY:
		delay(tap, at, t, r);
		break;
	case FAULT_CORRUPT:
		corrupt(tap, at, t, r);
		break;
	case FAULT_RATE:
		rate(tap, at, t, r);
		break;
	case FAULT_ECN:
		t->ecn = ECN_CE;
		pass(tap, at, t, r->note);
		break;
	default: /* not a packet's */
		pass(tap, at, t, NULL);
		break;
	}
}

/* @return whether packets struck by a rule one after the other stay one train */
static bool stay_together(const struct fault_rule *r)
{
	return r == NULL || r->action == FAULT_DROP || r->action == FAULT_ECN ||
	       (r->action == FAULT_DELAY && r->jitter == 0);
}

/* @return the BTH opcode of packet i, or -1 */
static int opcode_of(const struct train *t, uint32_t i)
{
	unsigned int flags = i == 0 && t->first ? OPF_FIRST : 0;

	if (i == t->count - 1)
		flags |= (t->last ? OPF_LAST : 0) | (t->imm ? OPF_IMM : 0) | (t->inv ? OPF_INV : 0);
	return wire_opcode_for(t->service, t->kind, flags);
}

/* Asks the rules about each packet of a train, and does what they say. */
static void ask(struct tap *tap, const struct place *at, const struct train *t)
{
	struct fault_subject s = {
		.point = at->point,
		.dev = at->dev,
		.qpn = at->qpn,
		.kind = t->kind,
	};
	struct fault_rule *before = NULL;
	uint32_t from = 0;

	for (uint32_t i = 0; i < t->count; i++) {
		struct fault_rule *r;

		/* Those in the middle have all the same. */
		if (i <= 1 || i == t->count - 1)
			s.opcode = opcode_of(t, i);
		s.psn = psn_add(t->psn, i);
		r = fault_match(tap->faults, FAULT_PACKET_ACTIONS, &s);
		if (i != from && (r != before || !stay_together(r))) {
			struct train part = cut(tap, t, from, i - from);

			act(tap, at, &part, before);
			from = i;
		}
		before = r;
	}
	if (from < t->count) {
		struct train part = cut(tap, t, from, t->count - from);

		act(tap, at, &part, before);
	}
}

void tap_tx(struct tap *tap, const struct device *dev, uint32_t qpn, const struct train *t)
{
	struct place at = {.point = FAULT_TX, .dev = dev, .qpn = qpn};

	ask(tap, &at, t);
}

void tap_rx(struct tap *tap, const struct train *t)
{
	const struct qp *qp = engine_find_qp(tap->engine, t->dst_qpn);
	struct place at = {
		.point = FAULT_RX,
		.dev = qp != NULL ? qp->p.dev : NULL,
		.qpn = t->dst_qpn,
	};

	if (t->icrc_xor != 0) {
		drop_bad_icrc(tap, &at, t);
		return;
	}
	ask(tap, &at, t);
}

/* ---- set-up --------------------------------------------------------------------------------- */

void tap_init(struct tap *tap, const struct tap_ops *ops, void *host, struct engine *engine,
	      struct fault_set *faults)
{
	memset(tap, 0, sizeof(*tap));
	tap->ops = ops;
	tap->host = host;
	tap->engine = engine;
	tap->faults = faults;
	CDS_INIT_LIST_HEAD(&tap->spent);
}

void tap_fini(struct tap *tap)
{
	tap_release(tap);
	while (tap->held.count != 0) {
		struct held *h = (struct held *)tap->held.heap[0];
		struct place at = h->place;

		unhold(tap, h);
		held_free(h);
		flow_put(tap, &at);
	}
	timer_heap_free(&tap->held);
}

void tap_forget_device(struct tap *tap, const struct device *dev)
{
	for (uint32_t i = 0; i < tap->held.count;) {
		struct held *h = (struct held *)tap->held.heap[i];
		struct place at = h->place;

		if (at.dev != dev) {
			i++;
			continue;
		}
		unhold(tap, h);
		held_free(h);
		flow_put(tap, &at);
		/* The heap has moved others, to places before this one perhaps. */
		i = 0;
	}
	tap_changed(tap, false);
}

void tap_changed(struct tap *tap, bool removed)
{
	tap->hasty = (tap->hasty || removed) && tap->held.count != 0;
	tap->active = tap->held.count != 0 ||
		      (fault_set_actions(tap->faults) & FAULT_PACKET_ACTIONS) != 0;
}
