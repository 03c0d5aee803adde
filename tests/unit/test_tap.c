/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Unit tests of the packet tap: what leaves it, in which pieces and order, when, and with which
 * bytes. The payload lies in a "client's" memory, so that it can be had by dma only.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tap/tap.h"

#define MTU 256
#define PACKETS 8
#define BYTES (PACKETS * MTU - 6) /* of the train the tests send */
#define MS 1000000u
#define EVENTS 64

/* What came out of the tap. */
struct event {
	char way; /* t: to the port, r: to the engine, n: a note */
	struct train train;
	char note[64];
	uint8_t data[PACKETS * MTU];
};

static const struct engine_ops no_ops;
static struct engine engine = {.ops = &no_ops};
static struct fault_set *faults;
static struct tap tap;
static struct event events[EVENTS];
static unsigned int event_count;
static bool port_ready;
static uint8_t client[BYTES];
static bool client_gone;
static struct path path;

/* ---- the host ------------------------------------------------------------------------------ */

static int read_client(struct mm *mm, const struct iovec *local, unsigned nlocal,
		       const struct iovec *remote, unsigned nremote)
{
	size_t at = 0;

	if (client_gone)
		return -EFAULT;
	for (unsigned i = 0, off = 0; i < nremote; i++) {
		for (size_t k = 0; k < remote[i].iov_len; k++, at++) {
			while (off == local->iov_len) {
				local++;
				off = 0;
			}
			((uint8_t *)local->iov_base)[off++] = ((uint8_t *)remote[i].iov_base)[k];
		}
	}
	return 0;
}

static int write_client(struct mm *mm, const struct iovec *local, unsigned nlocal,
			const struct iovec *remote, unsigned nremote)
{
	return -EFAULT;
}

static const struct dma_backend backend = {.readv = read_client, .writev = write_client};

/* Notes a train, and has its payload fetched as a port would. */
static void note_train(char way, const struct train *t, const char *note)
{
	struct event *e = &events[event_count++];
	struct dma_op *op;

	ck_assert_uint_le(event_count, EVENTS);
	memset(e, 0, sizeof(*e));
	e->way = way;
	e->train = *t;
	snprintf(e->note, sizeof(e->note), "%s", note ? note : "");
	ck_assert_uint_le(t->payload.len, sizeof(e->data));
	op = dma_submit(engine.dma);
	op->src = t->payload;
	op->dst = dma_local(engine.dma, e->data, t->payload.len);
}

static void host_send(void *host, const struct device *dev, uint32_t qpn, const struct train *t,
		      const char *note)
{
	ck_assert_uint_eq(qpn, 0x21);
	note_train('t', t, note);
}

static void host_receive(void *host, const struct train *t)
{
	note_train('r', t, NULL);
}

static void host_note(void *host, enum fault_point point, const struct device *dev, uint32_t qpn,
		      const struct train *t, const char *note)
{
}

static bool host_ready(void *host, const struct path *p)
{
	return port_ready;
}

static const struct tap_ops ops = {
	.send = host_send,
	.receive = host_receive,
	.note = host_note,
	.ready = host_ready,
};

/* What engine_run() and the end of the round do. */
static void round_ends(void)
{
	dma_flush(engine.dma);
	tap_release(&tap);
}

/* A round at a time. @return trains that came out */
static unsigned int run_at(uint64_t now)
{
	unsigned int before = event_count;

	engine.now = now;
	tap_run(&tap);
	round_ends();
	return event_count - before;
}

static void rule(uint32_t id, const char *text)
{
	struct fault_rule r;
	char error[128];

	ck_assert_msg(fault_parse(text, &r, error, sizeof(error)) == 0, "%s", error);
	r.id = id;
	ck_assert_int_eq(fault_set_add(faults, &r), 0);
	tap_changed(&tap, false);
}

static void setup(void)
{
	static const struct engine_ops engine_ops = {0};

	srandom(1);
	for (size_t i = 0; i < sizeof(client); i++)
		client[i] = (uint8_t)random();
	event_count = 0;
	port_ready = true;
	client_gone = false;
	ck_assert_int_eq(engine_init(&engine, &engine_ops, NULL, 0, dma_create(&backend, 65536)),
			 0);
	engine.now = 1000 * MS;
	faults = fault_set_create(0);
	tap_init(&tap, &ops, NULL, &engine, faults);
}

static void teardown(void)
{
	struct dma *dma = engine.dma;

	round_ends();
	tap_fini(&tap);
	fault_set_destroy(faults);
	engine_fini(&engine);
	dma_destroy(dma);
}

/* A SEND of all packets, the first with PSN psn. */
static struct train message(uint32_t psn)
{
	struct train t = {
		.path = &path,
		.dst_qpn = 0x41,
		.service = WIRE_RC,
		.kind = KIND_SEND,
		.first = true,
		.last = true,
		.imm = true,
		.ackreq = true,
		.solicited = true,
		.pkey = 0xffff,
		.psn = psn,
		.count = PACKETS,
		.mtu = MTU,
		.imm_data = 7,
		.payload = {.seg = dma_segments(engine.dma, 2), .count = 2, .len = BYTES},
	};

	/* Cut where no packet is. */
	t.payload.seg[0] = (struct dma_segment){.mm = (struct mm *)1,
						.addr = (uintptr_t)client,
						.len = 700};
	t.payload.seg[1] =
		(struct dma_segment){.mm = (struct mm *)1,
				     .addr = (uintptr_t)client + 700,
				     .len = BYTES - 700};
	return t;
}

static void send_message(uint32_t psn)
{
	struct train t = message(psn);

	tap_tx(&tap, NULL, 0x21, &t);
	round_ends();
}

/* Checks event i: packets from .. to of a message that began with PSN psn, unharmed. */
static void expect(unsigned int i, uint32_t psn, uint32_t from, uint32_t to)
{
	const struct event *e = &events[i];
	const struct train *t = &e->train;
	bool last = to == PACKETS - 1;

	ck_assert_uint_lt(i, event_count);
	ck_assert_uint_eq(t->psn, psn_add(psn, from));
	ck_assert_uint_eq(t->count, to - from + 1);
	ck_assert_int_eq(t->first, from == 0);
	ck_assert_int_eq(t->last, last);
	ck_assert_int_eq(t->imm, last);
	ck_assert_int_eq(t->ackreq, last);
	ck_assert_int_eq(t->solicited, last);
	ck_assert_uint_eq(t->payload.len, (last ? BYTES : (to + 1) * MTU) - from * MTU);
	ck_assert_uint_eq(t->icrc_xor, 0);
	ck_assert_msg(memcmp(e->data, client + from * MTU, t->payload.len) == 0, "bytes of %u", i);
}

/* @return how many bits of event i's payload are not those of packet n */
static unsigned int bits_changed(unsigned int i, uint32_t n)
{
	unsigned int bits = 0;

	for (uint32_t k = 0; k < events[i].train.payload.len; k++)
		bits += (unsigned int)__builtin_popcount(events[i].data[k] ^ client[n * MTU + k]);
	return bits;
}

/* ---- tests --------------------------------------------------------------------------------- */

START_TEST(what_is_not_struck_stays_whole)
{
	ck_assert(!tap.active);
	rule(1, "drop,psn=1000");
	rule(2, "delay=1s,qp=0x22");
	ck_assert(tap.active);
	send_message(0);
	ck_assert_uint_eq(event_count, 1);
	expect(0, 0, 0, 7);
	ck_assert_uint_eq(tap_deadline(&tap), UINT64_MAX);
	fault_set_remove(faults, 0);
	tap_changed(&tap, true);
	ck_assert(!tap.active);
}
END_TEST

START_TEST(drop_cuts_a_train)
{
	rule(1, "drop,psn=3-4");
	rule(2, "drop,psn=7");
	send_message(0);
	ck_assert_uint_eq(event_count, 2);
	expect(0, 0, 0, 2);
	expect(1, 0, 5, 6);
}
END_TEST

START_TEST(duplicate_sends_copies)
{
	rule(1, "duplicate=2,psn=0xffffff");
	send_message(0xfffffe);
	ck_assert_uint_eq(event_count, 5);
	expect(0, 0xfffffe, 0, 0);
	for (unsigned int i = 1; i <= 3; i++)
		expect(i, 0xfffffe, 1, 1);
	expect(4, 0xfffffe, 2, 7);
	ck_assert_str_eq(events[1].note, "");
	ck_assert_str_eq(events[2].note, "fault 1: duplicate");
}
END_TEST

START_TEST(reorder_lets_later_packets_go_first)
{
	rule(1, "reorder=2,psn=3");
	send_message(0);
	ck_assert_uint_eq(event_count, 4);
	expect(0, 0, 0, 2);
	expect(1, 0, 4, 5);
	expect(2, 0, 3, 3);
	expect(3, 0, 6, 7);
}
END_TEST

/* Behind packets of the next message; and, if none come, after some time. */
START_TEST(reorder_loses_nothing)
{
	rule(1, "reorder=3,psn=6");
	send_message(0);
	ck_assert_uint_eq(event_count, 2);
	ck_assert_uint_eq(tap_deadline(&tap), engine.now + TAP_LATE);
	send_message(8);
	ck_assert_uint_eq(event_count, 5);
	expect(2, 8, 0, 1);
	expect(3, 0, 6, 6);
	expect(4, 8, 2, 7);
	send_message(0);
	event_count = 0;
	ck_assert_uint_eq(run_at(engine.now + TAP_LATE - 1), 0);
	ck_assert_uint_eq(run_at(engine.now + 1), 1);
	expect(0, 0, 6, 6);
	ck_assert_uint_eq(tap_deadline(&tap), UINT64_MAX);
}
END_TEST

START_TEST(delay_keeps_the_order)
{
	uint64_t begin = engine.now;

	rule(1, "delay=1ms,psn=3-4");
	send_message(0);
	ck_assert_uint_eq(event_count, 1);
	expect(0, 0, 0, 2);
	ck_assert_uint_eq(tap_deadline(&tap), begin + MS);
	ck_assert_uint_eq(run_at(begin + MS / 2), 0);
	send_message(8);
	ck_assert_uint_eq(event_count, 1);
	ck_assert_uint_eq(run_at(begin + MS - 1), 0);
	run_at(begin + MS + 100);
	ck_assert_uint_eq(event_count, 4);
	expect(1, 0, 3, 4);
	expect(2, 0, 5, 7);
	expect(3, 8, 0, 7);
	ck_assert_str_eq(events[1].note, "fault 1: delay");
	/* Nothing is held any more: nothing waits. */
	send_message(16);
	ck_assert_uint_eq(event_count, 5);
	ck_assert_uint_eq(tap.held_bytes, 0);
}
END_TEST

START_TEST(jitter_lets_packets_overtake)
{
	uint32_t last = 0;
	bool overtaken = false;

	rule(1, "delay=1ms,jitter=1ms,psn=2-5");
	send_message(0);
	ck_assert_uint_eq(event_count, 2);
	expect(0, 0, 0, 1);
	expect(1, 0, 6, 7);
	ck_assert_uint_eq(run_at(engine.now + MS - 1), 0);
	ck_assert_uint_eq(run_at(engine.now + MS + 1), 4);
	for (unsigned int i = 2; i < 6; i++) {
		overtaken |= events[i].train.psn < last;
		last = events[i].train.psn;
		expect(i, 0, last, last);
	}
	ck_assert(overtaken);
}
END_TEST

/* A byte takes 8 ns at 1 Gbit/s. */
START_TEST(rate_spaces_packets)
{
	uint64_t begin = engine.now, due = begin;

	rule(1, "rate=1Gbit,dir=both");
	send_message(0);
	ck_assert_uint_eq(event_count, 0);
	for (uint32_t i = 0; i < PACKETS; i++) {
		due += 8 * ((i == PACKETS - 1 ? BYTES - i * MTU : MTU) + 44);
		ck_assert_uint_eq(tap_deadline(&tap), due);
		ck_assert_uint_eq(run_at(due - 1), 0);
		ck_assert_uint_eq(run_at(due), 1);
		expect(i, 0, i, i);
	}
}
END_TEST

/* Who sends more than the rate does not wait for ever. */
START_TEST(rate_has_a_short_queue)
{
	rule(1, "rate=10kbit");
	send_message(0);
	ck_assert_uint_eq(tap.held.count, 1);
}
END_TEST

START_TEST(corrupt_changes_a_bit_and_the_icrc)
{
	rule(1, "corrupt,psn=3");
	rule(2, "corrupt=icrc,psn=5");
	send_message(0);
	ck_assert_uint_eq(event_count, 5);
	ck_assert_uint_ne(events[1].train.icrc_xor, 0);
	ck_assert_uint_eq(bits_changed(1, 3), 1);
	ck_assert_uint_ne(events[3].train.icrc_xor, 0);
	ck_assert_uint_eq(bits_changed(3, 5), 0);
	expect(2, 0, 4, 4);
	expect(4, 0, 6, 7);
	/* What arrives so is dropped, and what is corrupted then. */
	tap_rx(&tap, &events[1].train);
	rule(3, "corrupt,dir=rx,count=1");
	event_count = 0;
	tap_rx(&tap,
	       &(struct train){.path = &path, .service = WIRE_RC, .kind = KIND_ACK, .count = 1});
	ck_assert_uint_eq(event_count, 0);
	ck_assert_uint_eq(tap.counters.bad_icrc, 2);
}
END_TEST

START_TEST(corrupt_can_be_silent)
{
	unsigned int seen = 0;

	rule(1, "corrupt,silent,psn=3");
	rule(2, "corrupt=header,silent,psn=5");
	send_message(0);
	ck_assert_uint_eq(events[1].train.icrc_xor, 0);
	ck_assert_uint_eq(events[1].train.psn, 3);
	ck_assert_uint_eq(bits_changed(1, 3), 1);
	for (int n = 0; n < 100; n++) {
		struct train t = message(0);
		struct train *out = &events[3].train;

		event_count = 0;
		tap_tx(&tap, NULL, 0x21, &t);
		round_ends();
		/* Between the unharmed, unless it was no packet any more. */
		expect(0, 0, 0, 2);
		if (event_count == 4)
			continue;
		seen++;
		ck_assert_uint_eq(event_count, 5);
		ck_assert_uint_eq(out->icrc_xor, 0);
		ck_assert_uint_eq(bits_changed(3, 5), 0);
		ck_assert(out->psn != 5 || out->dst_qpn != 0x41 || out->pkey != 0xffff ||
			  out->first || out->last || out->ackreq || out->solicited ||
			  out->service != WIRE_RC || out->kind != KIND_SEND);
	}
	ck_assert_uint_ge(seen, 50);
	/* That of the first message has also been one or the other. */
	ck_assert_uint_ge(tap.counters.malformed + seen, 100);
	ck_assert_uint_le(tap.counters.malformed + seen, 101);
	ck_assert_uint_ge(tap.counters.malformed, 1);
}
END_TEST

START_TEST(ecn_marks)
{
	rule(1, "ecn,psn=2-3");
	send_message(0);
	ck_assert_uint_eq(event_count, 3);
	ck_assert_uint_eq(events[0].train.ecn, 0);
	ck_assert_uint_eq(events[1].train.ecn, 3);
	expect(1, 0, 2, 3);
	ck_assert_uint_eq(events[2].train.ecn, 0);
}
END_TEST

/* What is received goes to the engine, by rules for that way only. */
START_TEST(receiving_is_the_other_way)
{
	struct train t = message(0);

	rule(1, "drop,psn=1");
	rule(2, "delay=1ms,psn=5-7,dir=rx");
	tap_rx(&tap, &t);
	round_ends();
	ck_assert_uint_eq(event_count, 1);
	ck_assert_int_eq(events[0].way, 'r');
	expect(0, 0, 0, 4);
	/* Sending does not wait for it. */
	port_ready = false;
	ck_assert_uint_eq(run_at(engine.now + MS), 1);
	ck_assert_int_eq(events[1].way, 'r');
	expect(1, 0, 5, 7);
}
END_TEST

START_TEST(removing_rules_lets_go)
{
	rule(1, "delay=60s,psn=0-3");
	send_message(0);
	ck_assert_uint_eq(event_count, 0);
	fault_set_remove(faults, 0);
	tap_changed(&tap, true);
	ck_assert(tap.active);
	ck_assert_uint_le(tap_deadline(&tap), engine.now);
	port_ready = false;
	ck_assert_uint_eq(run_at(engine.now + 1), 0);
	port_ready = true;
	ck_assert_uint_eq(run_at(engine.now + 1), 2);
	expect(0, 0, 0, 3);
	expect(1, 0, 4, 7);
	ck_assert(!tap.active);
}
END_TEST

START_TEST(held_bytes_are_bounded)
{
	rule(1, "delay=1s");
	tap.held_bytes = TAP_HELD_MAX - BYTES;
	send_message(0);
	ck_assert_uint_eq(tap.counters.lost, PACKETS);
	ck_assert_uint_eq(tap.held.count, 0);
	tap.held_bytes = 0;
	send_message(0);
	ck_assert_uint_eq(tap.held.count, 1);
	ck_assert_uint_ge(tap.held_bytes, BYTES);
	run_at(engine.now + 1000 * MS);
	ck_assert_uint_eq(tap.held_bytes, 0);
}
END_TEST

/* The client takes its memory back before the payload was fetched. */
START_TEST(payload_that_is_gone_is_lost)
{
	rule(1, "delay=1ms,psn=0-3");
	client_gone = true;
	send_message(0);
	client_gone = false;
	ck_assert_uint_eq(run_at(engine.now + 2 * MS), 0);
	ck_assert_uint_eq(tap.held_bytes, 0);
	send_message(8);
	ck_assert_uint_eq(event_count, 1);
}
END_TEST

/* Whatever the rules, with no packet lost by them none is lost, and every one has its bytes. */
START_TEST(nothing_is_lost_by_mixtures)
{
	static const char *const rules[] = {
		"reorder=3,probability=20%",   "duplicate,probability=10%",
		"delay=200us,probability=10%", "delay=100us,jitter=400us,probability=10%",
		"rate=10Gbit,probability=10%", "ecn,probability=10%"};
	unsigned int seen[40 * PACKETS] = {0};

	for (uint32_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		rule(i + 1, rules[i]);
	for (uint32_t n = 0; n < 80; n++) {
		event_count = 0;
		if (n < 40)
			send_message(n * PACKETS);
		run_at(engine.now + (n < 40 ? 50000 : MS));
		for (unsigned int i = 0; i < event_count; i++) {
			uint32_t from = events[i].train.psn % PACKETS;

			expect(i, events[i].train.psn - from, from,
			       from + events[i].train.count - 1);
			for (uint32_t k = 0; k < events[i].train.count; k++)
				seen[events[i].train.psn + k]++;
		}
	}
	for (uint32_t i = 0; i < 40 * PACKETS; i++)
		ck_assert_msg(seen[i] == 1 || seen[i] == 2, "packet %u: %u times", i, seen[i]);
	ck_assert_uint_eq(tap.held_bytes, 0);
	ck_assert_uint_eq(tap.held.count, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("tap");
	TCase *tc = tcase_create("tap");
	SRunner *r = srunner_create(s);
	int failed;

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, what_is_not_struck_stays_whole);
	tcase_add_test(tc, drop_cuts_a_train);
	tcase_add_test(tc, duplicate_sends_copies);
	tcase_add_test(tc, reorder_lets_later_packets_go_first);
	tcase_add_test(tc, reorder_loses_nothing);
	tcase_add_test(tc, delay_keeps_the_order);
	tcase_add_test(tc, jitter_lets_packets_overtake);
	tcase_add_test(tc, rate_spaces_packets);
	tcase_add_test(tc, rate_has_a_short_queue);
	tcase_add_test(tc, corrupt_changes_a_bit_and_the_icrc);
	tcase_add_test(tc, corrupt_can_be_silent);
	tcase_add_test(tc, ecn_marks);
	tcase_add_test(tc, receiving_is_the_other_way);
	tcase_add_test(tc, removing_rules_lets_go);
	tcase_add_test(tc, held_bytes_are_bounded);
	tcase_add_test(tc, payload_that_is_gone_is_lost);
	tcase_add_test(tc, nothing_is_lost_by_mixtures);
	suite_add_tcase(s, tc);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
