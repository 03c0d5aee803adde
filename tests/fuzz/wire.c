// SPDX-License-Identifier: BSD-2-Clause
/*
 * Arbitrary datagrams into the packet parser: ICRC check, decoder, and the port that makes trains
 * of packets. It never looks beyond a packet; what it accepts means the same when encoded again; a
 * train is well formed, and sent again it becomes the packets it came from.
 *
 * Input: flags, two bytes that choose the segment size, the datagram.
 */
#include "port.h"

enum {
	FLAG_IPV6 = 1 << 0,
	FLAG_SEAL = 1 << 1,	/* the ICRC of each packet is made right */
	FLAG_SEGMENTS = 1 << 2, /* several packets */
	FLAG_VERSION = 1 << 3,	/* the transport version is made 0 */
	FLAG_ID = 1 << 4,	/* some other IPv4 identification than expected */
};

#define MAX_TRAINS 1024

static struct udp_port *port; /* the one in use */
static const uint8_t *next;   /* of the packets accepted: where the next train begins */
static uint32_t segment;      /* bytes */
static struct train trains[MAX_TRAINS];
static struct dma_segment segments[MAX_TRAINS];
static struct path path;
static uint32_t train_count, segment_count;
/* The packets sent, one behind the other. */
static uint8_t echo[4 * IO_TX_BUFFER];
static struct {
	uint8_t *data;
	uint32_t len;
} packets[MAX_SEGMENTS];
static uint32_t packet_count;

/* A burst leaves: its packets are cut out of it as the kernel does. */
static void sent(struct io *io, const uint8_t *data, uint32_t len, uint32_t packet)
{
	struct icrc_address a = port_addresses(port);
	uint8_t *p = packet_count ? packets[packet_count - 1].data + packets[packet_count - 1].len
				  : echo;

	CHECK(len <= (size_t)(echo + sizeof(echo) - p) && packet != 0);
	memcpy(p, data, len);
	for (uint32_t i = 0; len; i++) {
		uint32_t n = len < packet ? len : packet;

		CHECK(packet_count < MAX_SEGMENTS);
		CHECK(n >= BTH_LEN + ICRC_LEN);
		packets[packet_count].data = p;
		packets[packet_count++].len = n;
		/* The identification is known, so not one bit is left open. */
		CHECK(icrc_compute(&a, (uint16_t)i, p, n - ICRC_LEN) ==
		      ((uint32_t)p[n - 4] | (uint32_t)p[n - 3] << 8 | (uint32_t)p[n - 2] << 16 |
		       (uint32_t)p[n - 1] << 24));
		p += n;
		len -= n;
	}
}

/*
 * Sends a train and compares: what comes out has the operation, PSNs and payload that went in. The
 * rest differs where a packet had what a sender never sends, or bits that mean nothing.
 */
static void send_again(const struct train *t)
{
	packet_count = 0;
	CHECK(udp_port_tx(port, t, NULL) == 0);
	dma_flush(port->engine->dma);
	port_flush(port);
	CHECK(packet_count == t->count);
	for (uint32_t i = 0; i < t->count; i++) {
		bool first = t->first && i == 0, last = t->last && i == t->count - 1;
		const struct wire_opcode *op;
		struct wire_packet pkt;

		CHECK(wire_decode(packets[i].data, packets[i].len, &pkt) == 0);
		op = &wire_opcodes[pkt.opcode];
		CHECK(op->kind == t->kind && (pkt.opcode & 0xe0) == t->service);
		CHECK(!(op->flags & OPF_FIRST) == !first && !(op->flags & OPF_LAST) == !last);
		CHECK(pkt.psn == psn_add(t->psn, i) && pkt.dest_qpn == t->dst_qpn);
		CHECK(pkt.payload_len == t->payload.seg[i].len);
		CHECK(!memcmp(packets[i].data + pkt.payload_off,
			      (void *)(uintptr_t)t->payload.seg[i].addr, pkt.payload_len));
	}
}

/* What the port made of the packets: looks at it, and keeps it. */
static void train_arrives(struct engine *e, const struct train *t)
{
	uint32_t sum = 0;

	CHECK(t->count >= 1 && t->payload.count == t->count);
	CHECK(t->kind != KIND_NONE && t->kind < KIND_COUNT);
	CHECK(t->psn <= PSN_MASK && t->dst_qpn <= QPN_MASK && t->src_qpn <= QPN_MASK);
	CHECK(t->last || !t->imm);
	CHECK(train_count < MAX_TRAINS && t->count <= MAX_TRAINS - segment_count);
	for (uint32_t i = 0; i < t->count; i++) {
		const struct dma_segment *s = &t->payload.seg[i];

		CHECK(i + 1 < t->count ? s->len == t->mtu : s->len <= t->mtu);
		CHECK(!s->mm && s->len <= segment);
		/* In a packet, behind those of the trains before. */
		CHECK(s->addr >= (uintptr_t)next);
		next = (const uint8_t *)(uintptr_t)s->addr + s->len;
		sum += s->len;
	}
	CHECK(sum == t->payload.len);
	/* All came the same way: back to where they came from, which is here. */
	path = *t->path;
	trains[train_count] = *t;
	trains[train_count].path = &path;
	trains[train_count++].payload.seg = &segments[segment_count];
	memcpy(&segments[segment_count], t->payload.seg, t->count * sizeof(segments[0]));
	segment_count += t->count;
}

static void decode(const uint8_t *data, size_t len)
{
	uint8_t head[WIRE_MAX_HEADERS];
	struct wire_packet pkt, again;
	uint8_t *copy;
	size_t n;

	if (wire_decode(data, len, &pkt) != 0)
		return;
	CHECK(len >= BTH_LEN + ICRC_LEN && wire_opcodes[pkt.opcode].name);
	CHECK(pkt.payload_off + pkt.payload_len + pkt.pad + ICRC_LEN == len);
	CHECK(pkt.pad < 4);
	n = wire_encode(head, &pkt);
	CHECK(n == pkt.payload_off && n <= sizeof(head));
	copy = malloc(len);
	CHECK(copy);
	memcpy(copy, data, len);
	memcpy(copy, head, n);
	CHECK(wire_decode(copy, len, &again) == 0);
	CHECK(!memcmp(&pkt, &again, sizeof(pkt)));
	free(copy);
}

/* Nothing here is in a client's memory. */
static int no_client(struct mm *mm, const struct iovec *local, unsigned int nlocal,
		     const struct iovec *remote, unsigned int nremote)
{
	abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	static const uint8_t gid4[16] = {[10] = 0xff, 0xff, 10, 0, 0, 1};
	static const uint8_t gid6[16] = {0xfd, [15] = 1};
	static const struct dma_backend backend = {.readv = no_client, .writev = no_client};
	static struct io io[2] = {{.sent = sent}, {.sent = sent}};
	static struct udp_port *ports[2];
	static struct device dev;
	static struct qp_counters counters;
	static struct engine engine = {.device = &counters};
	struct input in = {bytes, size};
	unsigned int flags = (unsigned int)take(&in, 1);
	uint32_t chosen = (uint32_t)take(&in, 2), len = (uint32_t)in.left;
	struct icrc_address a;
	uint8_t *data;

	if (!ports[0]) {
		engine.dma = dma_create(&backend, 4096);
		CHECK(engine.dma);
		ports[0] = port_make(&io[0], &engine, train_arrives, &dev, gid4);
		ports[1] = port_make(&io[1], &engine, train_arrives, &dev, gid6);
	}
	if (in.left == 0 || in.left > 65535)
		return 0;
	port = ports[flags & FLAG_IPV6];
	/* Of exactly its size, so that a sanitizer sees one byte too many. */
	data = malloc(len);
	CHECK(data);
	memcpy(data, in.p, len);
	segment = flags & FLAG_SEGMENTS ? 1 + chosen % len : len;
	a = port_addresses(port);
	for (uint32_t off = 0, i = 0; off < len; off += segment, i++) {
		uint32_t n = len - off < segment ? len - off : segment;
		uint8_t *packet = data + off;
		uint16_t id = (uint16_t)(flags & FLAG_ID ? chosen ^ i : i);

		if (n > 1 && flags & FLAG_VERSION)
			packet[1] &= 0xf0;
		if (n >= BTH_LEN + ICRC_LEN) {
			bool good;

			if (flags & FLAG_SEAL)
				port_seal(port, id, packet, n - ICRC_LEN);
			good = icrc_check(&a, (uint16_t)i, packet, n);
			CHECK(good || !(flags & FLAG_SEAL));
			/* IPv6 has no identification: what is good is good for one value alone. */
			packet[n - 1] ^= 1;
			CHECK(!icrc_check(&a, (uint16_t)i, packet, n) || !good || !a.ipv6);
			packet[n - 1] ^= 1;
		}
		decode(packet, n);
	}
	next = data;
	train_count = segment_count = 0;
	port_receive(port, data, len, segment);
	dma_flush(engine.dma);
	for (uint32_t i = 0; i < train_count; i++) {
		const struct train *t = &trains[i];

		/* What a sender never makes: packets beyond an MTU, trains beyond a burst. */
		if (t->mtu <= WIRE_MAX_MTU && t->count <= MAX_SEGMENTS &&
		    t->payload.len <= MAX_TRAIN)
			send_again(t);
	}
	free(data);
	return 0;
}
