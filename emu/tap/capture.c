/* SPDX-License-Identifier: BSD-2-Clause */
/* Capture: filters, records, and filling them. */
#include "capture.h"

#include <string.h>
#include <time.h>

/* What a record lacks until its bytes are in place. In the daemon's memory: nothing of it can be
 * changed by the program that captures. */
struct pending {
	struct capture *capture;
	struct vernic_capture_record *record;
	uint64_t end; /* prod once it is complete */
	bool whole;   /* not cut off by snaplen */
	bool seal;    /* its ICRC is to be made */
	uint32_t icrc_xor;
	uint32_t bth; /* bytes in front of the BTH */
	uint32_t len; /* bytes of the frame */
	const struct frame *frame;
};

/* A packet on its way into the rings. */
struct shown {
	const struct device *dev;
	uint32_t qpn;
	bool inbound;
	bool seal;
	uint32_t icrc_xor;
	uint64_t timestamp;	   /* ns, CLOCK_REALTIME */
	const struct frame *frame; /* in the arena */
	const uint8_t *head;	   /* its BTH and extended headers */
	uint32_t head_len;
	const struct dma_list *payload; /* what follows: bytes from offset on */
	uint32_t offset;
	uint32_t payload_len;
	uint32_t tail; /* bytes behind: pad and ICRC */
	const char *comment;
};

void capture_start(struct capture_set *c, uint32_t id, const struct capture_params *params)
{
	c->capture[id] = (struct capture){.p = *params};
	c->active |= 1u << id;
}

void capture_stop(struct capture_set *c, uint32_t id)
{
	c->active &= ~(1u << id);
}

void capture_forget_device(struct capture_set *c, const struct device *dev)
{
	for (unsigned int i = 0; i < CAPTURE_MAX; i++) {
		if (c->capture[i].p.dev != dev)
			continue;
		/* Another one may get its place in memory: no QP has this number. */
		c->capture[i].p.dev = NULL;
		c->capture[i].p.qpn = UINT32_MAX;
	}
}

/* @return ns */
static uint64_t capture_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* @return the captures whose filters a QP fits */
static uint32_t capture_matching(const struct capture_set *c, const struct device *dev,
				 uint32_t qpn)
{
	uint32_t matching = 0;

	for (uint32_t set = c->active; set != 0; set &= set - 1) {
		const struct capture_params *p = &c->capture[__builtin_ctz(set)].p;

		if ((p->dev == NULL || p->dev == dev) && (p->qpn == 0 || p->qpn == qpn))
			matching |= set & -set;
	}
	return matching;
}

/* @return the record at a count of bytes */
static struct vernic_capture_record *capture_record(const struct capture *c, uint64_t count)
{
	return (void *)((uint8_t *)c->p.ring + VERNIC_CAPTURE_DATA +
			(count & (c->p.ring_size - 1)));
}

/*
 * Takes room for a record.
 * @size: bytes, a multiple of VERNIC_CAPTURE_ALIGN
 * @return NULL if there is none
 */
static struct vernic_capture_record *capture_reserve(struct capture *c, uint32_t size)
{
	uint64_t left = c->p.ring_size - (c->head & (c->p.ring_size - 1));
	uint64_t need = size <= left ? size : left + size;
	struct vernic_capture_record *record;

	if (c->head - c->cons + need > c->p.ring_size) {
		c->cons = atomic_load_explicit(&c->p.ring->cons, memory_order_acquire);
		/* The program may have written anything there. */
		if (c->head - c->cons > c->p.ring_size)
			c->cons = c->head - c->p.ring_size;
		if (c->head - c->cons + need > c->p.ring_size)
			return NULL;
	}
	record = capture_record(c, c->head);
	if (size > left) {
		record->size = (uint32_t)left;
		record->type = VERNIC_CAPTURE_PAD;
		record = capture_record(c, c->head + left);
	}
	c->head += need;
	return record;
}

/* dma_op.done: the payload is there. ctx is the struct pending. */
static void capture_done(struct dma *dma, struct dma_op *op, int error)
{
	struct pending *p = op->ctx;
	uint8_t *frame = (uint8_t *)(p->record + 1);

	if (error != 0)
		p->record->flags |= VERNIC_CAPTURE_UNREADABLE;
	if (p->whole && p->seal) {
		uint32_t len = p->len - p->bth - ICRC_LEN;
		uint32_t icrc = icrc_compute(&p->frame->addr, p->frame->ip_id, frame + p->bth, len);

		icrc ^= p->icrc_xor;
		for (uint32_t i = 0; i < ICRC_LEN; i++)
			frame[p->bth + len + i] = (uint8_t)(icrc >> 8 * i);
	}
	if (p->whole && p->frame->addr.ipv6)
		frame_checksum(frame, p->len);
	atomic_store_explicit(&p->capture->p.ring->prod, p->end, memory_order_release);
}

/*
 * Copies as much of a record's bytes as it shall have.
 * @at: place in the record; moved
 * @room: bytes left there; diminished
 */
static void capture_copy(uint8_t **at, uint32_t *room, const void *from, uint32_t len)
{
	if (len > *room)
		len = *room;
	memcpy(*at, from, len);
	*at += len;
	*room -= len;
}

/* Puts a packet into the ring of one capture. */
static void capture_put(struct capture_set *set, struct capture *c, const struct shown *s)
{
	uint32_t inner = s->head_len + s->payload_len + s->tail;
	size_t comment = s->comment != NULL ? strlen(s->comment) : 0;
	uint8_t headers[FRAME_MAX_HEADERS];
	uint32_t bth = (uint32_t)frame_encode(headers, s->frame, inner);
	uint32_t len = bth + inner;
	uint32_t room = len < c->p.snaplen ? len : c->p.snaplen;
	uint32_t payload = s->payload_len;
	uint32_t size = (uint32_t)(sizeof(struct vernic_capture_record) + room + comment);
	struct vernic_capture_record *record;
	struct pending *p;
	struct dma_op *op;
	uint8_t *at;

	size = (size + VERNIC_CAPTURE_ALIGN - 1) & ~(VERNIC_CAPTURE_ALIGN - 1u);
	record = capture_reserve(c, size);
	if (record == NULL) {
		uint64_t *lost = &c->lost[s->dev->index];

		atomic_store_explicit(&c->p.ring->lost[s->dev->index], ++*lost,
				      memory_order_relaxed);
		return;
	}
	*record = (struct vernic_capture_record){
		.timestamp = s->timestamp,
		.size = size,
		.length = len,
		.captured = room,
		.qpn = s->qpn,
		.type = VERNIC_CAPTURE_PACKET,
		.flags = s->inbound ? VERNIC_CAPTURE_INBOUND : 0,
		.device = (uint8_t)s->dev->index,
		.worker = (uint8_t)set->worker,
		.comment = (uint16_t)comment,
	};
	p = dma_scratch(set->dma, sizeof(*p));
	*p = (struct pending){
		.capture = c,
		.record = record,
		.end = c->head,
		.whole = room == len,
		.seal = s->seal,
		.icrc_xor = s->icrc_xor,
		.bth = bth,
		.len = len,
		.frame = s->frame,
	};
	at = (uint8_t *)(record + 1);
	if (comment != 0)
		memcpy(at + room, s->comment, comment);
	capture_copy(&at, &room, headers, bth);
	capture_copy(&at, &room, s->head, s->head_len);
	if (payload > room)
		payload = room;
	memset(at + payload, 0, room - payload);

	op = dma_submit(set->dma);
	if (payload != 0) {
		op->src = payload == s->payload->len
				  ? *s->payload
				  : dma_slice(set->dma, s->payload, s->offset, payload);
		op->dst = dma_local(set->dma, at, payload);
	}
	op->done = capture_done;
	op->ctx = p;
}

/* Puts a packet into the rings of some captures. @captures: bit by bit */
static void capture_show(struct capture_set *c, uint32_t captures, const struct shown *s)
{
	for (; captures != 0; captures &= captures - 1)
		capture_put(c, &c->capture[__builtin_ctz(captures)], s);
}

/* @return what is around the packets of a train, in the arena */
static struct frame *capture_frame(struct capture_set *c, const struct train *t, uint8_t hop_limit)
{
	struct frame *f = dma_scratch(c->dma, sizeof(*f));

	*f = (struct frame){
		.tos = (uint8_t)((t->path->traffic_class & ~ECN_MASK) | t->ecn),
		.hop_limit = hop_limit,
		.flow_label = t->path->flow_label,
	};
	frame_addresses(f, t->path->sgid, t->path->dgid, ROCE_UDP_PORT);
	return f;
}

/* capture_train() and capture_sent(). @fate: NULL if not known */
static uint32_t capture_packets(struct capture_set *c, const struct device *dev, uint32_t qpn,
				bool inbound, const struct train *t, const struct packet_fate *fate,
				const char *comment)
{
	uint32_t captures = dev != NULL ? capture_matching(c, dev, qpn) : 0;
	uint8_t head[WIRE_MAX_HEADERS];
	struct wire_packet pkt;
	struct shown s = {
		.dev = dev,
		.qpn = qpn,
		.inbound = inbound,
		.seal = true,
		.icrc_xor = t->icrc_xor,
		.head = head,
		.payload = &t->payload,
		.comment = comment,
	};

	if (comment == NULL)
		captures &= ~t->captured;
	if (captures == 0 || !packet_train_sane(t))
		return t->captured;
	s.timestamp = capture_now();
	packet_train_headers(t, &pkt);
	for (uint32_t i = 0; i < t->count; i++) {
		if (packet_headers(t, i, &pkt) != 0)
			break;
		/* One frame for all, unless they have identifications of their own. */
		if (i == 0 || (fate != NULL && i < fate->sent)) {
			struct frame *f = capture_frame(
				c, t, fate != NULL ? fate->hop_limit : FRAME_HOP_LIMIT);

			if (fate != NULL && i < fate->sent)
				f->ip_id = fate->ip_id[i];
			s.frame = f;
		}
		s.head_len = (uint32_t)wire_encode(head, &pkt);
		s.offset = i * t->mtu;
		s.payload_len = pkt.payload_len;
		s.tail = pkt.pad + ICRC_LEN;
		if (fate != NULL && i >= fate->sent && comment == NULL)
			s.comment = "lost: no send buffer was free";
		capture_show(c, captures, &s);
	}
	return t->captured | captures;
}

uint32_t capture_train(struct capture_set *c, const struct device *dev, uint32_t qpn,
		       enum capture_direction direction, const struct train *t, const char *comment)
{
	return capture_packets(c, dev, qpn, direction == CAPTURE_RX, t, NULL, comment);
}

uint32_t capture_sent(struct capture_set *c, const struct device *dev, uint32_t qpn,
		      const struct train *t, const struct packet_fate *fate, const char *comment)
{
	return capture_packets(c, dev, qpn, false, t, fate, comment);
}

void capture_received(struct capture_set *c, const struct device *dev, uint32_t qpn,
		      const struct frame *f, const uint8_t *data, uint32_t len, const char *comment)
{
	uint32_t captures = capture_matching(c, dev, qpn);
	struct frame *frame;
	struct dma_list payload;

	if (captures == 0)
		return;
	frame = dma_scratch(c->dma, sizeof(*frame));
	*frame = *f;
	payload = dma_local(c->dma, data, len);
	capture_show(c, captures,
		     &(struct shown){
			     .dev = dev,
			     .qpn = qpn,
			     .inbound = true,
			     .timestamp = capture_now(),
			     .frame = frame,
			     .payload = &payload,
			     .payload_len = len,
			     .comment = comment,
		     });
}
