// SPDX-License-Identifier: BSD-2-Clause
/*
 * Captures, by the rings themselves: every packet once, whole and right; filters; a ring that is
 * full, scribbled over or left behind; nothing grows.
 */
#include <signal.h>
#include <sys/wait.h>

#include <vernic/capture.h>

#include "wire/bytes.h"
#include "wire/wire.h"

#include "honest.h"
#include "raw.h"

#define MTU 1024
#define DST 32768 /* offset in the buffer; the source is at 0 */
#define ETHERNET 14
#define IPV4 20
#define UDP 8
#define HEADERS (ETHERNET + IPV4 + UDP)

/* A capture and where we are in its rings. */
struct tap {
	struct raw r;
	uint8_t *memory;
	uint32_t rings;
	size_t ring_size;
	size_t size;
	uint64_t cons[VERNIC_MAX_WORKERS];
};

/* A packet taken out of a ring. */
struct packet {
	struct vernic_capture_record record;
	struct wire_packet wire;
	uint8_t frame[8192];
	char comment[256];
};

static struct vernic_capture_ring *ring_of(const struct tap *t, uint32_t i)
{
	return (void *)(t->memory + i * vernic_capture_stride(t->ring_size));
}

/* Asks for a capture. @return the status */
static int tap_ask(struct tap *t, const char *device, uint32_t qpn, uint32_t snaplen, uint64_t size)
{
	struct vernic_request req = {.command = VERNIC_CMD_CAPTURE};

	CHECK_EQ(raw_start(&t->r), 0);
	strcpy(req.capture.device, device);
	req.capture.qpn = qpn;
	req.capture.snaplen = snaplen;
	req.capture.size = size;
	return raw_call(&t->r, &req);
}

static void tap_open(struct tap *t, const char *device, uint32_t qpn, uint32_t snaplen,
		     uint64_t size)
{
	memset(t, 0, sizeof(*t));
	CHECK_EQ(tap_ask(t, device, qpn, snaplen, size), 0);
	t->rings = t->r.reply.capture.workers;
	t->ring_size = t->r.reply.capture.ring_size;
	t->size = t->r.reply.capture.size;
	CHECK_EQ(t->r.nfds, 1);
	CHECK(t->size >= t->rings * vernic_capture_stride(t->ring_size));
	t->memory = mmap(NULL, t->size, PROT_READ | PROT_WRITE, MAP_SHARED, t->r.fds[0], 0);
	CHECK(t->memory != MAP_FAILED);
	/* Nobody can take the memory away from the daemon. */
	CHECK(ftruncate(t->r.fds[0], 0) != 0);
}

static int tap_stop(struct tap *t)
{
	struct vernic_request req = {.command = VERNIC_CMD_CAPTURE, .capture = {.stop = 1}};

	return raw_call(&t->r, &req);
}

static void tap_close(struct tap *t)
{
	munmap(t->memory, t->size);
	raw_end(&t->r);
}

/* Takes the next packet out of any ring. @return whether there was one */
static bool tap_next(struct tap *t, struct packet *p)
{
	for (uint32_t i = 0; i < t->rings; i++) {
		struct vernic_capture_ring *ring = ring_of(t, i);
		uint64_t prod = atomic_load_explicit(&ring->prod, memory_order_acquire);
		const struct vernic_capture_record *record;
		uint64_t at;

		if (prod == t->cons[i])
			continue;
		CHECK(prod - t->cons[i] <= t->ring_size);
		at = t->cons[i] & (t->ring_size - 1);
		record = (void *)((uint8_t *)ring + VERNIC_CAPTURE_DATA + at);
		CHECK(record->size >= sizeof(*record));
		CHECK_EQ(record->size % VERNIC_CAPTURE_ALIGN, 0);
		CHECK(record->size <= t->ring_size - at && record->size <= prod - t->cons[i]);
		t->cons[i] += record->size;
		if (record->type == VERNIC_CAPTURE_PAD) {
			CHECK_EQ(record->size, t->ring_size - at);
			i--;
			continue;
		}
		CHECK_EQ(record->type, VERNIC_CAPTURE_PACKET);
		CHECK_EQ(record->worker, i);
		CHECK(record->captured <= record->length);
		CHECK(sizeof(*record) + record->captured + record->comment <= record->size);
		CHECK(record->captured <= sizeof(p->frame) && record->comment < sizeof(p->comment));
		p->record = *record;
		memcpy(p->frame, record + 1, record->captured);
		memcpy(p->comment, (const uint8_t *)(record + 1) + record->captured,
		       record->comment);
		p->comment[record->comment] = '\0';
		atomic_store_explicit(&ring->cons, t->cons[i], memory_order_release);
		return true;
	}
	return false;
}

/* Waits for a packet. */
static void tap_wait(struct tap *t, struct packet *p)
{
	double end = seconds() + TEST_TIMEOUT;

	while (!tap_next(t, p))
		CHECK(seconds() < end);
}

static uint64_t tap_lost(const struct tap *t)
{
	uint64_t lost = 0;

	for (uint32_t i = 0; i < t->rings; i++)
		lost += ring_of(t, i)->lost[0];
	return lost;
}

/* Checks all there is around the payload of a whole packet. */
static void check_packet(struct packet *p)
{
	const uint8_t *ip = p->frame + ETHERNET, *udp = ip + IPV4;
	uint32_t len = p->record.length - HEADERS;
	struct icrc_address addr = {.src_port = get16(udp), .dst_port = get16(udp + 2)};
	uint32_t icrc, sum = 0;

	CHECK_EQ(p->record.captured, p->record.length);
	CHECK_EQ(p->record.flags & VERNIC_CAPTURE_UNREADABLE, 0);
	CHECK(p->record.length >= HEADERS + BTH_LEN + ICRC_LEN);
	CHECK_EQ(get16(p->frame + 12), 0x0800);
	CHECK_EQ(get16(ip + 2), IPV4 + UDP + len);
	for (int i = 0; i < IPV4; i += 2)
		sum += get16(ip + i);
	CHECK_EQ((sum & 0xffff) + (sum >> 16), 0xffff);
	CHECK_EQ(addr.dst_port, ROCE_UDP_PORT);
	CHECK_EQ(get16(udp + 4), UDP + len);
	memcpy(addr.src, ip + 12, 4);
	memcpy(addr.dst, ip + 16, 4);
	icrc = icrc_compute(&addr, get16(ip + 4), udp + UDP, len - ICRC_LEN);
	for (int i = 0; i < ICRC_LEN; i++)
		CHECK_EQ(udp[UDP + len - ICRC_LEN + (uint32_t)i], (uint8_t)(icrc >> 8 * i));
	CHECK_EQ(wire_decode(udp + UDP, len, &p->wire), 0);
}

/*
 * Takes the packets that carry one message.
 * @dest: the QP they go to
 * @want: the payload
 * @before: the time of the packet before; moved
 */
static void expect_message(struct tap *t, enum wire_kind kind, uint32_t dest, const uint8_t *want,
			   uint32_t len, uint64_t *before)
{
	uint32_t offset = 0, psn = 0, packets = 0;
	struct packet p;

	do {
		const struct wire_opcode *op;

		tap_wait(t, &p);
		check_packet(&p);
		op = &wire_opcodes[p.wire.opcode];
		/* ACKs and READ requests go between. */
		if (op->kind != kind || p.wire.dest_qpn != dest)
			continue;
		CHECK_EQ(p.record.comment, 0);
		CHECK(t->rings > 1 || p.record.timestamp >= *before);
		*before = p.record.timestamp;
		CHECK_EQ(!!(op->flags & OPF_FIRST), packets == 0);
		CHECK(packets == 0 || p.wire.psn == psn_add(psn, packets));
		if (packets++ == 0)
			psn = p.wire.psn;
		CHECK(offset + p.wire.payload_len <= len);
		CHECK(!memcmp(p.frame + HEADERS + p.wire.payload_off, want + offset,
			      p.wire.payload_len));
		offset += p.wire.payload_len;
		CHECK_EQ(!!(op->flags & OPF_LAST), offset == len);
	} while (packets == 0 || offset < len);
	CHECK_EQ(packets, packets_of(len, MTU));
}

static struct env env;
static struct ibv_qp *a, *b;

static void fill(uint32_t len)
{
	static uint8_t seed;

	seed++;
	for (uint32_t i = 0; i < len; i++)
		env.buf[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

/* Carries out one operation of a with b. @return its status */
static enum ibv_wc_status operate(enum ibv_wr_opcode opcode, struct ibv_sge *sge, uint32_t len)
{
	struct ibv_sge in = sge_at(&env, DST, len);
	struct ibv_send_wr wr = {
		.sg_list = sge,
		.num_sge = len != 0,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = (uintptr_t)env.buf + DST, .rkey = env.mr->rkey}};
	struct ibv_send_wr *bad;
	struct ibv_wc wc[2];

	if (opcode == IBV_WR_RDMA_READ)
		wr.wr.rdma.remote_addr = (uintptr_t)env.buf;
	if (opcode == IBV_WR_SEND)
		CHECK_EQ(post_recv_at(b, 0, len != 0 ? &in : NULL), 0);
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(env.cq, 1, wc);
	if (opcode == IBV_WR_SEND && wc[0].status == IBV_WC_SUCCESS)
		wait_wc(env.cq, 1, wc);
	return wc[0].status;
}

/* A SEND, WRITE or READ of a pattern. */
static void transfer(enum ibv_wr_opcode opcode, uint32_t len)
{
	struct ibv_sge sge = sge_at(&env, opcode == IBV_WR_RDMA_READ ? DST : 0, len);

	fill(len);
	CHECK_EQ(operate(opcode, &sge, len), IBV_WC_SUCCESS);
	CHECK(!memcmp(env.buf, env.buf + DST, len));
}

/* All kinds of messages, at sizes with and without pad, that fill packets or do not. */
static void contents(void)
{
	static const uint32_t sizes[] = {0, 1, 2, 3, 64, 65, 129, 1023, 1024, 1025, 4096, 10001};
	uint64_t before = 0;
	struct packet p;
	struct tap t;

	tap_open(&t, "", 0, VERNIC_CAPTURE_SNAPLEN, 8 << 20);
	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		transfer(IBV_WR_SEND, sizes[i]);
		expect_message(&t, KIND_SEND, b->qp_num, env.buf, sizes[i], &before);
		transfer(IBV_WR_RDMA_WRITE, sizes[i]);
		expect_message(&t, KIND_WRITE, b->qp_num, env.buf, sizes[i], &before);
		transfer(IBV_WR_RDMA_READ, sizes[i]);
		expect_message(&t, KIND_READ_RESPONSE, a->qp_num, env.buf, sizes[i], &before);
	}
	CHECK_EQ(tap_stop(&t), 0);
	while (tap_next(&t, &p)) {
		check_packet(&p); /* nothing but ACKs is left: all else was there once */
		CHECK_EQ(wire_opcodes[p.wire.opcode].kind, KIND_ACK);
	}
	transfer(IBV_WR_SEND, 100);
	CHECK(!tap_next(&t, &p));
	CHECK_EQ(tap_stop(&t), 0);
	CHECK_EQ(tap_lost(&t), 0);
	tap_close(&t);
}

/* One QP of two: what it sends goes out, what it receives comes in. Others are not there. */
static void filters(void)
{
	unsigned int in = 0, out = 0;
	struct tap of_b, other, ours;
	struct packet p;

	CHECK_EQ(tap_ask(&other, "nosuch", 0, 100, 1 << 20), ENODEV);
	raw_end(&other.r);
	tap_open(&of_b, "", b->qp_num, VERNIC_CAPTURE_SNAPLEN, 1 << 20);
	tap_open(&other, "", a->qp_num ^ b->qp_num ^ 0x800000, VERNIC_CAPTURE_SNAPLEN, 1 << 20);
	tap_open(&ours, "vernic0", 0, 60, 1 << 20);
	transfer(IBV_WR_SEND, 3000);
	CHECK_EQ(tap_stop(&of_b), 0);
	CHECK_EQ(tap_stop(&other), 0);
	CHECK_EQ(tap_stop(&ours), 0);
	while (tap_next(&of_b, &p)) {
		bool inbound = p.record.flags & VERNIC_CAPTURE_INBOUND;

		check_packet(&p);
		CHECK_EQ(p.record.qpn, b->qp_num);
		CHECK_EQ(p.wire.dest_qpn, inbound ? b->qp_num : a->qp_num);
		inbound ? in++ : out++;
	}
	CHECK_EQ(in, 3);
	CHECK(out >= 1);
	CHECK(!tap_next(&other, &p));
	for (in = 0; tap_next(&ours, &p); in++) {
		CHECK_EQ(p.record.flags, 0); /* local: shown where it leaves */
		CHECK_EQ(p.record.captured, 60);
		CHECK(p.record.length >= 62);
	}
	CHECK_EQ(in, 3 + out);
	tap_close(&of_b);
	tap_close(&other);
	tap_close(&ours);
}

/* The program has unmapped what it sends: the record says so. */
static void unreadable(void)
{
	uint8_t *gone =
		mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(env.pd, gone, 8192, 0);
	struct ibv_sge sge = {(uintptr_t)gone, 5000, mr->lkey};
	struct packet p;
	struct tap t;

	CHECK(mr);
	tap_open(&t, "", 0, VERNIC_CAPTURE_SNAPLEN, 1 << 20);
	munmap(gone, 8192); /* after all that maps, and might do so here */
	CHECK(operate(IBV_WR_RDMA_WRITE, &sge, 5000) != IBV_WC_SUCCESS);
	tap_wait(&t, &p);
	CHECK(p.record.flags & VERNIC_CAPTURE_UNREADABLE);
	CHECK_EQ(p.record.captured, p.record.length);
	tap_close(&t);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	to_state(a, IBV_QPS_RESET);
	to_state(b, IBV_QPS_RESET);
	connect_pair(&env, a, b);
}

/* Nobody takes packets out: they are lost and counted, the traffic does not care. */
static void full_ring(void)
{
	uint64_t lost;
	struct packet p;
	struct tap t;
	unsigned int n = 0;

	tap_open(&t, "", 0, VERNIC_CAPTURE_SNAPLEN, 1);
	for (int i = 0; i < 100; i++)
		transfer(IBV_WR_RDMA_WRITE, 10000);
	lost = tap_lost(&t);
	CHECK(lost > 0);
	while (tap_next(&t, &p)) {
		check_packet(&p);
		n++;
	}
	CHECK(n > 0 && n < 100 * 11);
	CHECK(lost >= 100 * 10 - n);
	/* There is room again, many times around. */
	for (int i = 0; i < 1000; i++) {
		transfer(IBV_WR_RDMA_WRITE, 5000);
		for (n = 0; n < 5; n += wire_opcodes[p.wire.opcode].kind == KIND_WRITE) {
			tap_wait(&t, &p);
			check_packet(&p);
		}
	}
	CHECK_EQ(tap_lost(&t), lost);
	tap_close(&t);
}

/* A program that writes nonsense into its ring harms itself only. */
static void scribble(struct honest *h)
{
	uint64_t random = 42;
	struct packet p;
	struct tap t;

	tap_open(&t, "", 0, VERNIC_CAPTURE_SNAPLEN, 1 << 20);
	for (int i = 0; i < 300; i++) {
		for (uint32_t k = 0; k < t.rings; k++) {
			struct vernic_capture_ring *ring = ring_of(&t, k);

			ring->cons = i & 1 ? raw_random(&random) : ring->prod;
			if (i & 2)
				ring->prod = raw_random(&random);
			for (int n = 0; n < 1000; n++)
				((uint8_t *)ring)[VERNIC_CAPTURE_DATA +
						  raw_below(&random, (uint32_t)t.ring_size)] ^= 1;
		}
		if (i % 20 == 0)
			honest_check(h);
	}
	tap_close(&t);
	/* The next one has a ring of its own. */
	tap_open(&t, "", 0, VERNIC_CAPTURE_SNAPLEN, 16 << 20);
	transfer(IBV_WR_SEND, 5000);
	tap_wait(&t, &p);
	check_packet(&p);
	tap_close(&t);
}

/* As many as there may be, sizes that are none, and killed in the middle. */
static void lifetimes(struct honest *h)
{
	pid_t daemon = daemon_pid();
	unsigned int fds = daemon_fds(daemon);
	unsigned long rss = 0;
	struct tap t[5];
	int i;

	CHECK_EQ(tap_ask(&t[0], "", 0, 100, 0), EINVAL);
	raw_end(&t[0].r);
	CHECK_EQ(tap_ask(&t[0], "", 0, 0, 1 << 20), EINVAL);
	CHECK_EQ(tap_stop(&t[0]), EINVAL);
	raw_end(&t[0].r);
	CHECK_EQ(tap_ask(&t[0], "", 0, 100, VERNIC_CAPTURE_MAX + 1), EINVAL);
	raw_end(&t[0].r);
	for (i = 0; tap_ask(&t[i], "", 0, 100, 1 << 20) == 0; i++)
		CHECK(i < 4);
	CHECK_EQ(i, 4);
	CHECK_EQ(t[i].r.reply.status, EBUSY);
	for (; i >= 0; i--)
		raw_end(&t[i].r);
	daemon_expect_fds(daemon, fds);
	for (i = 0; i < 60; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			tap_open(&t[0], "", 0, VERNIC_CAPTURE_SNAPLEN, 4 << 20);
			raise(SIGKILL);
		}
		CHECK_EQ(waitpid(pid, NULL, 0), pid);
		honest_check(h);
		daemon_expect_fds(daemon, fds);
		if (i == 20)
			rss = daemon_rss(daemon);
	}
	if (!daemon_sanitized(daemon))
		CHECK(daemon_rss(daemon) < rss + 32768); /* KiB; one has 4096 */
}

int main(void)
{
	struct honest *h;
	struct ibv_qp_init_attr attr;

	env_open(&env);
	attr = env_qp_attr(&env);
	a = ibv_create_qp(env.pd, &attr);
	b = ibv_create_qp(env.pd, &attr);
	CHECK(a && b);
	connect_pair(&env, a, b);
	contents();
	filters();
	unreadable();
	full_ring();
	h = honest_start();
	scribble(h);
	lifetimes(h);
	honest_stop(h);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	env_close(&env);
	return 0;
}
