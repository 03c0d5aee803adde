/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests of the UDP port and both I/O engines over the loopback interface: trains go out of one port
 * and must come back from another as they were.
 */
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "io_internal.h"
#include "port/udp.h"

#define MTU 1024
#define TX_BUFFERS 64
#define SECOND 1000000000u

/* Addresses of this test alone: 127.47.91.x */
static const uint8_t gid_a[16] = {[10] = 0xff, 0xff, 127, 47, 91, 1};
static const uint8_t gid_b[16] = {[10] = 0xff, 0xff, 127, 47, 91, 2};
static const uint8_t gid_c[16] = {[10] = 0xff, 0xff, 127, 47, 91, 3};
static const uint8_t gid_six[16] = {[15] = 1};

/* One worker's side. */
struct side {
	struct engine e;
	struct io *io;
	struct udp_port *port;
	int wake_fd;
	struct device dev;
	struct qp_counters counters; /* of dev */
	/* received */
	unsigned int trains;
	uint32_t packets;
	uint32_t bytes;
	struct train first;
	struct train last;
	struct path path;
	uint8_t data[4 << 20];
};

static struct side a, b;

/* Stands in for the engine: notes what arrived. */
void engine_rx(struct engine *e, const struct train *t)
{
	struct side *s = e->host;

	if (s->trains++ == 0)
		s->first = *t;
	else if (t->service != WIRE_UD && !t->first)
		ck_assert_uint_eq(t->psn, psn_add(s->last.psn, s->last.count));
	s->last = *t;
	s->path = *t->path;
	s->packets += t->count;
	for (uint32_t i = 0; i < t->payload.count; i++) {
		const struct dma_segment *seg = &t->payload.seg[i];

		ck_assert_uint_le(s->bytes + seg->len, sizeof(s->data));
		memcpy(s->data + s->bytes, (const void *)(uintptr_t)seg->addr, seg->len);
		s->bytes += seg->len;
	}
}

/* A client's memory that is gone. */
static int read_fails(struct mm *mm, const struct iovec *local, unsigned nlocal,
		      const struct iovec *remote, unsigned nremote)
{
	return -EFAULT;
}

static const struct dma_backend backend = {.readv = read_fails, .writev = read_fails};

static void side_open(struct side *s, enum io_kind kind)
{
	memset(s, 0, sizeof(*s));
	s->wake_fd = eventfd(0, EFD_CLOEXEC);
	ck_assert_int_ge(s->wake_fd, 0);
	s->e.host = s;
	s->e.device = &s->counters;
	s->e.dma = dma_create(&backend, 65536);
	ck_assert_ptr_nonnull(s->e.dma);
	ck_assert_int_eq(io_create(kind, s->wake_fd, TX_BUFFERS, &s->io), 0);
	s->port = udp_port_create(s->io, &s->e, engine_rx, NULL);
	ck_assert_ptr_nonnull(s->port);
}

static void side_close(struct side *s)
{
	udp_port_destroy(s->port);
	io_destroy(s->io);
	dma_destroy(s->e.dma);
	close(s->wake_fd);
}

/* Binds an address. @return as udp_port_add() */
static int side_bind(struct side *s, const uint8_t gid[16], uint32_t worker, uint32_t workers)
{
	char error[256] = "";
	int ret = udp_port_add(s->port, &s->dev, gid, 0, worker, workers, error, sizeof(error));

	ck_assert_msg((ret == 0) == (error[0] == 0), "%d: %s", ret, error);
	return ret;
}

/* What the worker does after engine_run(). */
static void side_round(struct side *s)
{
	dma_flush(s->e.dma);
	udp_port_flush(s->port);
	io_submit(s->io);
	io_recycle(s->io);
}

/* Receives until there are so many packets, or nothing comes for 200 ms. */
static void side_receive(struct side *s, uint32_t packets)
{
	uint32_t before;

	side_round(s);
	do {
		before = s->packets;
		for (int i = 0; i < 100 && s->packets < packets; i++) {
			udp_port_receive(s->port);
			side_round(s);
		}
		if (s->packets < packets)
			io_sleep(s->io, SECOND / 5);
		udp_port_receive(s->port);
		side_round(s);
	} while (s->packets < packets && s->packets != before);
}

static void forget(struct side *s)
{
	s->trains = s->packets = s->bytes = 0;
}

/* @return a path from one side's address to another */
static struct path make_path(struct side *s, const uint8_t from[16], const uint8_t to[16])
{
	struct path path = {.hop_limit = 64, .traffic_class = 0x68};

	memcpy(path.sgid, from, 16);
	memcpy(path.dgid, to, 16);
	ck_assert(udp_port_route(s->port, &s->dev, &path));
	ck_assert_uint_eq(path.route, ROUTE_UDP);
	ck_assert_uint_eq(path.max_train % 4096, 0);
	ck_assert_uint_gt(path.window, 0);
	return path;
}

/* The worker runs each test with both engines. */
static enum io_kind kinds[2] = {IO_PLAIN, IO_URING};

static uint8_t payload[60000];

/* Sends a train with payload[0..len). */
static void send_train(struct side *s, struct train t, uint32_t len)
{
	t.mtu = MTU;
	t.count = packets_of(len, MTU);
	t.payload = dma_local(s->e.dma, payload, len);
	udp_port_tx(s->port, &t, NULL);
}

/* Opens both sides, each with its address. */
static void sides_open(enum io_kind kind)
{
	side_open(&a, kind);
	side_open(&b, kind);
	ck_assert_int_eq(side_bind(&a, gid_a, 0, 1), 0);
	ck_assert_int_eq(side_bind(&b, gid_b, 0, 1), 0);
}

/* Lengths around packet boundaries, every kind, IPv4 and IPv6. */
START_TEST(trains)
{
	static const struct {
		uint8_t service, kind;
		bool imm, inv;
		uint32_t max;
	} cases[] = {
		{WIRE_RC, KIND_SEND, false, false, 57344},
		{WIRE_RC, KIND_SEND, true, false, 57344},
		{WIRE_RC, KIND_SEND, false, true, 57344},
		{WIRE_UC, KIND_SEND, false, false, 57344},
		{WIRE_RC, KIND_WRITE, false, false, 57344},
		{WIRE_UC, KIND_WRITE, true, false, 57344},
		{WIRE_RC, KIND_READ_RESPONSE, false, false, 57344},
		{WIRE_UD, KIND_SEND, true, false, MTU},
		{WIRE_RC, KIND_READ_REQUEST, false, false, 0},
		{WIRE_RC, KIND_ACK, false, false, 0},
		{WIRE_RC, KIND_ATOMIC_ACK, false, false, 0},
		{WIRE_RC, KIND_COMPARE_SWAP, false, false, 0},
		{WIRE_RC, KIND_FETCH_ADD, false, false, 0},
	};
	static const uint32_t lengths[] = {0, 1, 2, 3, 64, MTU - 1, MTU, MTU + 1, 2 * MTU, 57344};
	const uint8_t *from = _i & 1 ? gid_six : gid_a;
	const uint8_t *to = _i & 1 ? gid_six : gid_b;
	struct side *rx = _i & 1 ? &a : &b;
	struct path path;

	side_open(&a, kinds[_i >> 1]);
	side_open(&b, kinds[_i >> 1]);
	ck_assert_int_eq(side_bind(&a, from, 0, 1), 0);
	if (rx == &b)
		ck_assert_int_eq(side_bind(&b, to, 0, 1), 0);
	path = make_path(&a, from, to);

	for (unsigned int c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		for (unsigned int l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
			struct train t = {
				.path = &path,
				.src_qpn = cases[c].service == WIRE_UD ? 0x123450 : 0,
				.dst_qpn = 0xabcde0,
				.service = cases[c].service,
				.kind = cases[c].kind,
				.first = true,
				.last = true,
				.imm = cases[c].imm,
				.inv = cases[c].inv,
				.solicited = true,
				.ackreq = cases[c].kind == KIND_SEND,
				.pkey = 0xffff,
				.psn = 0xfffffa,
				.imm_data = 0x01020304,
				.reth = {0x1122334455667788, 0x99aabbcc, 0x10},
				.atomic = {1, 2},
				.aeth = {AETH_NO_CREDITS, 0x55},
				.atomic_orig = 77,
				.qkey = 0x11111111,
			};
			const struct train *f = &rx->first, *e = &rx->last;
			bool single = cases[c].max == 0;

			if (lengths[l] > cases[c].max)
				continue;
			forget(rx);
			send_train(&a, t, lengths[l]);
			side_round(&a);
			side_receive(rx, packets_of(lengths[l], MTU));
			ck_assert_uint_eq(rx->packets, packets_of(lengths[l], MTU));
			ck_assert_uint_eq(rx->bytes, lengths[l]);
			ck_assert_int_eq(memcmp(rx->data, payload, lengths[l]), 0);
			ck_assert(f->first && (rx->trains == 1 || !e->first));
			ck_assert(e->last && (rx->trains == 1 || !f->last));
			ck_assert_uint_eq(f->psn, t.psn);
			ck_assert_uint_eq(e->kind, t.kind);
			ck_assert_uint_eq(e->service, t.service);
			ck_assert_uint_eq(e->dst_qpn, t.dst_qpn);
			ck_assert_uint_eq(e->src_qpn, t.src_qpn);
			ck_assert(e->imm == t.imm && e->inv == t.inv && e->solicited);
			ck_assert_int_eq(e->ackreq, t.ackreq);
			if (t.imm || t.inv)
				ck_assert_uint_eq(e->imm_data, t.imm_data);
			if (t.kind == KIND_WRITE || t.kind == KIND_READ_REQUEST) {
				ck_assert_uint_eq(f->reth.va, t.reth.va);
				ck_assert_uint_eq(f->reth.rkey, t.reth.rkey);
				ck_assert_uint_eq(f->reth.length, t.reth.length);
			}
			if (t.kind == KIND_COMPARE_SWAP) {
				ck_assert_uint_eq(f->reth.va, t.reth.va);
				ck_assert_uint_eq(f->reth.rkey, t.reth.rkey);
				ck_assert_uint_eq(f->atomic.swap_add, 1);
				ck_assert_uint_eq(f->atomic.compare, 2);
			}
			if (t.kind == KIND_ATOMIC_ACK)
				ck_assert_uint_eq(f->atomic_orig, 77);
			if (t.kind == KIND_READ_RESPONSE || t.kind == KIND_ACK)
				ck_assert_uint_eq(e->aeth.msn, 0x55);
			if (t.service == WIRE_UD)
				ck_assert_uint_eq(f->qkey, t.qkey);
			ck_assert(!single || rx->trains == 1);
			ck_assert_int_eq(memcmp(rx->path.sgid, from, 16), 0);
			ck_assert_int_eq(memcmp(rx->path.dgid, to, 16), 0);
			ck_assert_uint_eq(rx->path.traffic_class, 0x68);
		}
	}
	ck_assert_uint_eq(rx->counters.rx_icrc_encapsulated, 0);
	ck_assert_uint_eq(rx->counters.rx_malformed, 0);
	ck_assert_uint_eq(io_tx_available(a.io), TX_BUFFERS);
	side_close(&a);
	side_close(&b);
}
END_TEST

/* Small messages share sends; nothing is lost or reordered. */
START_TEST(small_trains_join)
{
	struct train t = {.service = WIRE_RC,
			  .kind = KIND_SEND,
			  .first = true,
			  .last = true,
			  .dst_qpn = 0x10,
			  .pkey = 0xffff};
	struct path path;

	sides_open(kinds[_i]);
	path = make_path(&a, gid_a, gid_b);
	t.path = &path;
	for (uint32_t i = 0; i < 1000; i++) {
		t.psn = i;
		send_train(&a, t, 64);
	}
	ck_assert_uint_ge(io_tx_available(a.io), TX_BUFFERS - 1000 / 64 - 1);
	side_round(&a);
	side_receive(&b, 1000);
	ck_assert_uint_eq(b.packets, 1000);
	ck_assert_uint_eq(b.last.psn, 999);
	side_close(&a);
	side_close(&b);
}
END_TEST

/* Packets of one size on the wire, the second with less payload: no train goes on after it. */
START_TEST(short_middle)
{
	static const uint32_t lengths[] = {100, 98, 100};
	struct train t = {.service = WIRE_UC,
			  .kind = KIND_SEND,
			  .first = true,
			  .dst_qpn = 0x10,
			  .pkey = 0xffff};
	struct path path;

	sides_open(kinds[_i]);
	path = make_path(&a, gid_a, gid_b);
	t.path = &path;
	for (uint32_t i = 0; i < 3; i++) {
		send_train(&a, t, lengths[i]);
		t.psn++;
		t.first = false;
	}
	side_round(&a);
	side_receive(&b, 3);
	ck_assert_uint_eq(b.packets, 3);
	ck_assert_uint_eq(b.trains, 2);
	ck_assert_uint_eq(b.first.count, 2);
	ck_assert_uint_eq(b.first.payload.len, 198);
	side_close(&a);
	side_close(&b);
}
END_TEST

/* The ICRC of packet i of a send is for identification i: that is what the kernel counts. */
START_TEST(identifications)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
	struct icrc_address addr = {.src_port = ROCE_UDP_PORT, .dst_port = ROCE_UDP_PORT};
	struct train t = {.service = WIRE_UC,
			  .kind = KIND_SEND,
			  .first = true,
			  .last = true,
			  .dst_qpn = 0x10,
			  .pkey = 0xffff};
	struct path path;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	side_open(&a, kinds[_i]);
	ck_assert_int_eq(side_bind(&a, gid_a, 0, 1), 0);
	memcpy(&at.sin_addr, gid_c + 12, 4);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	memcpy(addr.src, gid_a + 12, 4);
	memcpy(addr.dst, gid_c + 12, 4);
	path = make_path(&a, gid_a, gid_c);
	t.path = &path;
	send_train(&a, t, 10 * MTU);
	side_round(&a);
	for (uint16_t i = 0; i < 10; i++) {
		uint8_t buf[2048];
		ssize_t n = recv(fd, buf, sizeof(buf), 0);
		uint32_t icrc;

		ck_assert_int_eq(n, BTH_LEN + MTU + ICRC_LEN);
		n -= ICRC_LEN;
		icrc = icrc_compute(&addr, i, buf, (size_t)n);
		for (int k = 0; k < ICRC_LEN; k++)
			ck_assert_uint_eq(buf[n + k], icrc >> 8 * k & 0xff);
	}
	close(fd);
	side_close(&a);
}
END_TEST

/*
 * Where the kernel cuts nothing into segments, packets go out one by one, wherever in their buffer
 * they begin: those it refused, and, that being known, those to come.
 */
START_TEST(no_segments)
{
	struct train t = {.service = WIRE_UC,
			  .kind = KIND_SEND,
			  .first = true,
			  .last = true,
			  .dst_qpn = 0x10,
			  .pkey = 0xffff};
	const int on = 1;
	struct path path;

	sides_open(kinds[_i]);
	/* UDP_SEGMENT wants checksums. */
	for (unsigned int i = 0; i < a.io->socket_count; i++)
		ck_assert_int_eq(
			setsockopt(a.io->sockets[i].fd, SOL_SOCKET, SO_NO_CHECK, &on, sizeof(on)), 0);
	path = make_path(&a, gid_a, gid_b);
	t.path = &path;
	for (uint32_t i = 0; i < 3; i++) {
		forget(&b);
		t.psn = 20 * i;
		send_train(&a, t, 20 * MTU - i);
		side_round(&a);
		side_receive(&b, 20);
		ck_assert_uint_eq(b.packets, 20);
		ck_assert_uint_eq(b.bytes, 20 * MTU - i);
		ck_assert_int_eq(memcmp(b.data, payload, b.bytes), 0);
		ck_assert(!io_segments(a.io));
	}
	ck_assert_uint_eq(io_counters(a.io)->tx_dropped, 0);
	ck_assert_uint_eq(io_tx_available(a.io), TX_BUFFERS);
	side_close(&a);
	side_close(&b);
}
END_TEST

/* More trains than buffers: the surplus is dropped, the buffers come back. */
START_TEST(buffers_run_out)
{
	struct train t = {.service = WIRE_UC,
			  .kind = KIND_SEND,
			  .first = true,
			  .last = true,
			  .dst_qpn = 0x10,
			  .pkey = 0xffff};
	struct path path;

	side_open(&a, kinds[_i]);
	ck_assert_int_eq(side_bind(&a, gid_a, 0, 1), 0);
	path = make_path(&a, gid_a, gid_c); /* nobody listens there */
	t.path = &path;
	for (int i = 0; i < 3; i++) {
		ck_assert(udp_port_ready(a.port));
		for (int k = 0; k < 2 * TX_BUFFERS; k++)
			send_train(&a, t, 57344);
		ck_assert(!udp_port_ready(a.port));
		ck_assert_uint_eq(io_tx_available(a.io), 0);
		side_round(&a);
		for (int k = 0; k < 100 && io_tx_available(a.io) != TX_BUFFERS; k++)
			io_sleep(a.io, SECOND / 100);
		ck_assert_uint_eq(io_tx_available(a.io), TX_BUFFERS);
	}
	side_close(&a);
}
END_TEST

/* Damage is counted and goes no further; errors from ICMP do not stop the receiver. */
START_TEST(damage)
{
	static const uint8_t runt[8] = {4};
	struct sockaddr_in from = {.sin_family = AF_INET};
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
	struct icrc_address addr = {.dst_port = ROCE_UDP_PORT};
	struct wire_packet pkt = {.opcode = 4, .dest_qpn = 0x10, .pkey = 0xffff};
	socklen_t len = sizeof(from);
	uint8_t buf[BTH_LEN + 64 + ICRC_LEN] = {0};
	struct path path;
	uint32_t icrc;
	int fd;

	side_open(&b, kinds[_i]);
	ck_assert_int_eq(side_bind(&b, gid_b, 0, 1), 0);
	path = make_path(&b, gid_b, gid_c);
	send_train(&b,
		   (struct train){.path = &path,
				  .service = WIRE_UC,
				  .kind = KIND_SEND,
				  .first = true,
				  .last = true},
		   64);
	side_round(&b);

	fd = socket(AF_INET, SOCK_DGRAM, 0);
	memcpy(&from.sin_addr, gid_a + 12, 4);
	memcpy(&to.sin_addr, gid_b + 12, 4);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&from, &len), 0);
	memcpy(addr.src, gid_a + 12, 4);
	memcpy(addr.dst, gid_b + 12, 4);
	addr.src_port = ntohs(from.sin_port);

	wire_encode(buf, &pkt);
	icrc = icrc_compute(&addr, 0x1234, buf, sizeof(buf) - ICRC_LEN);
	for (int i = 0; i < ICRC_LEN; i++)
		buf[sizeof(buf) - ICRC_LEN + i] = (uint8_t)(icrc >> 8 * i);
	ck_assert_int_eq(send(fd, buf, sizeof(buf), 0), sizeof(buf));
	ck_assert_int_eq(send(fd, "", 0, 0), 0);
	ck_assert_int_eq(send(fd, runt, sizeof(runt), 0), sizeof(runt));
	buf[20] ^= 1;
	ck_assert_int_eq(send(fd, buf, sizeof(buf), 0), sizeof(buf));
	buf[20] ^= 1;
	buf[0] = 0x1f; /* no opcode, with a right ICRC */
	icrc = icrc_compute(&addr, 0, buf, sizeof(buf) - ICRC_LEN);
	for (int i = 0; i < ICRC_LEN; i++)
		buf[sizeof(buf) - ICRC_LEN + i] = (uint8_t)(icrc >> 8 * i);
	ck_assert_int_eq(send(fd, buf, sizeof(buf), 0), sizeof(buf));
	close(fd);

	side_receive(&b, 10);
	ck_assert_uint_eq(b.packets, 1);
	ck_assert_uint_eq(b.bytes, 64);
	ck_assert_uint_eq(b.counters.rx_icrc_encapsulated, 1);
	ck_assert_uint_eq(b.counters.rx_malformed, 3);
	ck_assert_uint_eq(udp_port_counters(b.port)->rx_datagrams, 5);
	side_close(&b);
}
END_TEST

/* Payload that cannot be read is not sent; what was laid out before it is. */
START_TEST(gather_fails)
{
	struct train t = {.service = WIRE_UC,
			  .kind = KIND_SEND,
			  .first = true,
			  .last = true,
			  .dst_qpn = 0x10,
			  .pkey = 0xffff};
	struct dma_segment gone = {.mm = (struct mm *)&gone, .addr = 4096, .len = 64};
	struct path path;

	sides_open(kinds[_i]);
	path = make_path(&a, gid_a, gid_b);
	t.path = &path;
	send_train(&a, t, 64);
	t.count = 1;
	t.psn = 1;
	t.payload = (struct dma_list){&gone, 1, 64};
	udp_port_tx(a.port, &t, NULL);
	t.psn = 2;
	send_train(&a, t, 64);
	side_round(&a);
	side_receive(&b, 3);
	ck_assert_uint_eq(b.packets, 1);
	ck_assert_uint_eq(b.last.psn, 0);
	ck_assert_uint_eq(io_tx_available(a.io), TX_BUFFERS);
	side_close(&a);
	side_close(&b);
}
END_TEST

/* Somebody has the address; the address is none of this host's. */
START_TEST(unusable_addresses)
{
	static const uint8_t foreign[16] = {[10] = 0xff, 0xff, 192, 0, 2, 1};

	side_open(&a, kinds[_i]);
	side_open(&b, kinds[_i]);
	ck_assert_int_eq(side_bind(&a, gid_a, 0, 1), 0);
	ck_assert_int_eq(side_bind(&b, gid_a, 0, 1), -EADDRINUSE);
	ck_assert_int_eq(side_bind(&b, foreign, 0, 1), -EADDRNOTAVAIL);
	side_close(&a);
	/* It is free again. */
	ck_assert_int_eq(side_bind(&b, gid_a, 0, 1), 0);
	side_close(&b);
}
END_TEST

/* Two workers share an address: each gets what is for its QPs. */
START_TEST(steering)
{
	static struct side sender;
	struct train t = {
		.service = WIRE_UC, .kind = KIND_SEND, .first = true, .last = true, .pkey = 0xffff};
	struct path path;

	side_open(&a, kinds[_i]);
	side_open(&b, kinds[_i]);
	side_open(&sender, kinds[_i]);
	ck_assert_int_eq(side_bind(&a, gid_a, 0, 2), 0);
	ck_assert_int_eq(side_bind(&b, gid_a, 1, 2), 0);
	ck_assert_int_eq(side_bind(&sender, gid_b, 0, 1), 0);
	path = make_path(&sender, gid_b, gid_a);
	t.path = &path;
	for (uint32_t i = 0; i < 64; i++) {
		t.dst_qpn = 0x100 + i % 2;
		t.psn = i;
		send_train(&sender, t, 64);
		if (i % 8 == 7)
			side_round(&sender);
	}
	side_receive(&a, 32);
	side_receive(&b, 32);
	ck_assert_uint_eq(a.packets, 32);
	ck_assert_uint_eq(b.packets, 32);
	ck_assert_uint_eq(a.last.dst_qpn, 0x100);
	ck_assert_uint_eq(b.last.dst_qpn, 0x101);
	side_close(&a);
	side_close(&b);
	side_close(&sender);
}
END_TEST

/* A socket that is removed gives its address back at once, and what was to leave by it is lost. */
START_TEST(sockets_come_and_go)
{
	struct train t = {.service = WIRE_UC,
			  .kind = KIND_SEND,
			  .first = true,
			  .last = true,
			  .dst_qpn = 0x100,
			  .pkey = 0xffff,
			  .count = 1};
	struct path path, old;

	side_open(&a, kinds[_i]);
	side_open(&b, kinds[_i]);
	ck_assert_int_eq(side_bind(&a, gid_a, 0, 1), 0);
	ck_assert_int_eq(side_bind(&a, gid_c, 0, 1), 0);
	ck_assert_int_eq(side_bind(&b, gid_b, 0, 1), 0);
	old = make_path(&a, gid_a, gid_b);
	t.path = &old;
	send_train(&a, t, 64);
	side_round(&a);
	side_receive(&b, 1);
	/* Something has arrived for it, and is not looked at any more. */
	path = make_path(&b, gid_b, gid_a);
	t.path = &path;
	send_train(&b, t, 64);
	side_round(&b);
	udp_port_remove(a.port, &a.dev, gid_a);
	ck_assert(!udp_port_route(a.port, &a.dev, &old));
	t.path = &old;
	ck_assert_uint_eq(udp_port_tx(a.port, &t, NULL), 1);
	ck_assert_int_eq(side_bind(&b, gid_a, 0, 1), 0);
	/* Another address in its place: the old path does not lead there. */
	udp_port_remove(b.port, &b.dev, gid_b);
	ck_assert_int_eq(side_bind(&a, gid_b, 0, 1), 0);
	ck_assert_uint_eq(udp_port_tx(a.port, &t, NULL), 1);
	path = make_path(&a, gid_b, gid_a);
	t.path = &path;
	send_train(&a, t, 64);
	side_round(&a);
	side_receive(&b, 2);
	ck_assert_uint_eq(a.packets, 0);
	udp_port_remove(a.port, &a.dev, NULL);
	ck_assert_int_eq(side_bind(&b, gid_b, 0, 1), 0);
	ck_assert_int_eq(side_bind(&b, gid_c, 0, 1), 0);
	side_close(&a);
	side_close(&b);
}
END_TEST

/* A group: who has joined gets what is for QPN_GROUP, and nothing else, until he leaves. */
START_TEST(groups)
{
	static const uint8_t group[16] = {[10] = 0xff, 0xff, 239, 47, 91, 1};
	static const uint8_t other[16] = {[10] = 0xff, 0xff, 239, 47, 91, 2};
	uint32_t lo = if_nametoindex("lo");
	struct train t = {.service = WIRE_UD,
			  .kind = KIND_SEND,
			  .first = true,
			  .last = true,
			  .dst_qpn = QPN_GROUP,
			  .pkey = 0xffff};
	struct path path, stray;
	char error[256] = "";

	side_open(&a, kinds[_i]);
	side_open(&b, kinds[_i]);
	ck_assert_int_eq(udp_port_add(a.port, &a.dev, gid_a, lo, 0, 1, error, sizeof(error)), 0);
	ck_assert_msg(udp_port_join(b.port, &b.dev, group, lo, error, sizeof(error)) == 0, "%s",
		      error);
	ck_assert_int_eq(udp_port_join(a.port, &a.dev, group, lo, error, sizeof(error)), 0);
	path = make_path(&a, gid_a, group);
	stray = make_path(&a, gid_a, other);
	for (int i = 0; i < 3; i++) {
		t.path = &path;
		t.dst_qpn = i == 1 ? 0x100 : QPN_GROUP;
		send_train(&a, t, 64);
		t.path = &stray;
		t.dst_qpn = QPN_GROUP;
		send_train(&a, t, 64);
		side_round(&a);
	}
	side_receive(&b, 2);
	side_receive(&a, 2);
	ck_assert_uint_eq(b.packets, 2);
	ck_assert_uint_eq(a.packets, 2);
	ck_assert_uint_eq(b.counters.rx_dropped, 1);
	ck_assert(memcmp(b.path.dgid, group, 16) == 0 && memcmp(b.path.sgid, gid_a, 16) == 0);
	ck_assert_ptr_eq(udp_port_device(b.port, &b.path), &b.dev);
	/* It is no address to send from. */
	memcpy(stray.sgid, group, 16);
	ck_assert(!udp_port_route(b.port, &b.dev, &stray));
	udp_port_remove(b.port, &b.dev, group);
	t.path = &path;
	send_train(&a, t, 64);
	side_round(&a);
	side_receive(&a, 3);
	udp_port_receive(b.port);
	ck_assert_uint_eq(b.packets, 2);
	side_close(&a);
	side_close(&b);
}
END_TEST

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

static void *wake(void *arg)
{
	uint64_t one = 1;

	ck_assert_int_eq(write(*(int *)arg, &one, sizeof(one)), sizeof(one));
	return NULL;
}

/* A sleep ends by the clock, by the eventfd, and by a datagram; no wake-up is lost. */
START_TEST(sleeping)
{
	struct train t = {.service = WIRE_UC,
			  .kind = KIND_SEND,
			  .first = true,
			  .last = true,
			  .dst_qpn = 0x10,
			  .pkey = 0xffff};
	struct path path;
	pthread_t thread;
	uint64_t start;

	side_open(&a, kinds[_i]);
	ck_assert_int_eq(side_bind(&a, gid_a, 0, 1), 0);
	path = make_path(&a, gid_a, gid_a);
	t.path = &path;

	start = now();
	io_sleep(a.io, SECOND / 50);
	ck_assert_uint_ge(now() - start, SECOND / 50);

	for (int i = 0; i < 200; i++) {
		ck_assert_int_eq(pthread_create(&thread, NULL, wake, &a.wake_fd), 0);
		if (i % 2) {
			/* The write comes before the sleep, and other calls between. */
			pthread_join(thread, NULL);
			io_submit(a.io);
			udp_port_receive(a.port);
		}
		start = now();
		io_sleep(a.io, UINT64_MAX);
		if (i % 2 == 0)
			pthread_join(thread, NULL);
	}
	/* Drained: the next sleep lasts. One end may still be owed. */
	io_sleep(a.io, SECOND / 50);
	start = now();
	io_sleep(a.io, SECOND / 50);
	ck_assert_uint_ge(now() - start, SECOND / 50);

	send_train(&a, t, 64);
	side_round(&a);
	start = now();
	side_receive(&a, 1);
	ck_assert_uint_eq(a.packets, 1);
	ck_assert_uint_lt(now() - start, SECOND / 10);
	side_close(&a);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("udp");
	TCase *t = tcase_create("udp");
	SRunner *r = srunner_create(s);
	struct io *io;
	int engines = 2, failed;
	int fd = eventfd(0, EFD_CLOEXEC);

	for (size_t i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)(i * 7 + i / 251);
	if (io_create(IO_URING, fd, 4, &io) == 0) {
		io_destroy(io);
	} else {
		printf("io_uring is refused here: the plain engine alone is tested\n");
		engines = 1;
	}
	close(fd);

	suite_add_tcase(s, t);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, trains, 0, 2 * engines);
	tcase_add_loop_test(t, small_trains_join, 0, engines);
	tcase_add_loop_test(t, short_middle, 0, engines);
	tcase_add_loop_test(t, identifications, 0, engines);
	tcase_add_loop_test(t, no_segments, 0, engines);
	tcase_add_loop_test(t, buffers_run_out, 0, engines);
	tcase_add_loop_test(t, damage, 0, engines);
	tcase_add_loop_test(t, gather_fails, 0, engines);
	tcase_add_loop_test(t, unusable_addresses, 0, engines);
	tcase_add_loop_test(t, steering, 0, engines);
	tcase_add_loop_test(t, sockets_come_and_go, 0, engines);
	tcase_add_loop_test(t, groups, 0, engines);
	tcase_add_loop_test(t, sleeping, 0, engines);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
