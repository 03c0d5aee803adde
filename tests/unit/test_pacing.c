/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Rate limits in virtual time, at the ends of their ranges: a QP that always has something to send
 * is never ahead of its rate by more than the burst, nor behind it.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "transport/qp.h"

#define HEADERS 64u /* of a packet, octets */
#define OCTET_NS 8000000u /* ns that an octet takes at 1 kbit/s */
/* Octets: each train is rounded up to a nanosecond. */
#define ROUNDING 20000u
#define YEAR (UINT64_C(365) * 86400 * 1000000000)

static const uint32_t rates[] = {1, 7, 999, 20000, 4000001, VERNIC_MAX_RATE};
static const uint32_t bursts[] = {1, 4160, 5000, 65536, 1u << 30, UINT32_MAX};
static const uint32_t mtus[] = {256, 4096};

static struct engine e;
static struct qp qp;

/* Begins at some time; engine_schedule() puts the QP, the only one, on e.run. */
static void begin(uint32_t mtu)
{
	static const struct engine_ops ops;

	ck_assert_int_eq(engine_init(&e, &ops, NULL, 0, NULL), 0);
	memset(&qp, 0, sizeof(qp));
	qp.engine = &e;
	qp.mtu = mtu;
	e.now = YEAR;
}

static void end(void)
{
	ck_assert_int_eq(pacer_set(&qp, 0, 0), 0);
	ck_assert_ptr_null(qp.pacer);
	ck_assert_uint_eq(e.pacers, 0);
	ck_assert_uint_eq(timer_next(&e.timers), UINT64_MAX);
	engine_fini(&e);
}

/* Sends what may be sent at once, in trains of full packets. @return octets */
static uint64_t send_all(void)
{
	uint64_t sent = 0;
	uint32_t room;

	while ((room = pacer_room(&qp)) != 0) {
		uint64_t octets = (uint64_t)(room / 2 + 1) * (qp.mtu + HEADERS);

		pacer_sent(qp.pacer, e.now, octets);
		sent += octets;
	}
	return sent;
}

/* Nothing may leave: goes on to the time at which some may, which schedules the QP. */
static void wait_for_room(void)
{
	uint64_t next = timer_next(&e.timers);

	ck_assert_uint_ne(next, UINT64_MAX);
	ck_assert_uint_gt(next, e.now);
	e.now = next;
	cds_list_del(&qp.run_node);
	CDS_INIT_LIST_HEAD(&e.run);
	qp.queued = false;
	timer_run(&e.timers, e.now);
	ck_assert(qp.queued);
}

/* @return octets that a time is worth at a rate, rounded up */
static uint64_t worth(uint64_t ns, uint32_t rate)
{
	return (uint64_t)(((unsigned __int128)ns * rate + OCTET_NS - 1) / OCTET_NS);
}

/* Each rate with each burst. */
START_TEST(kept)
{
	uint32_t rate = rates[_i];

	for (unsigned int b = 0; b < sizeof(bursts) / sizeof(bursts[0]) * 2; b++) {
		uint32_t burst = bursts[b / 2], mtu = mtus[b % 2];
		uint64_t sent, first;

		begin(mtu);
		ck_assert_int_eq(pacer_set(&qp, rate, burst), 0);
		if (burst < mtu + HEADERS)
			burst = mtu + HEADERS;
		first = e.now;
		sent = send_all();
		ck_assert_uint_le(sent, burst);
		ck_assert_uint_ge(sent + mtu + HEADERS + ROUNDING, burst);
		for (int i = 0; i < 50; i++) {
			uint64_t more;

			wait_for_room();
			more = send_all();
			ck_assert_uint_gt(more, 0);
			sent += more;
			ck_assert_uint_le(sent, burst + worth(e.now - first, rate));
			ck_assert_uint_ge(sent + mtu + HEADERS + ROUNDING,
					  burst + worth(e.now - first, rate));
		}
		end();
	}
}
END_TEST

/* A limit is changed for any other while the QP waits: it waits for what the new one says. */
START_TEST(changed)
{
	uint32_t n = sizeof(rates) / sizeof(rates[0]), m = sizeof(bursts) / sizeof(bursts[0]);
	uint32_t old = rates[_i];

	for (uint32_t i = 0; i < n * m * m; i++) {
		uint32_t rate = rates[i % n], burst = bursts[i / n % m], packet = 4096 + HEADERS;
		uint64_t sent;

		begin(4096);
		ck_assert_int_eq(pacer_set(&qp, old, bursts[i / n / m]), 0);
		sent = send_all();
		ck_assert_int_eq(pacer_set(&qp, rate, burst), 0);
		if (burst < packet)
			burst = packet;
		if (burst >= sent + packet + ROUNDING) {
			ck_assert_uint_ge(pacer_room(&qp), 1);
		} else if (burst < sent + packet) {
			uint64_t first = e.now, due;

			ck_assert_uint_eq(pacer_room(&qp), 0);
			wait_for_room();
			/* The debt, but for the burst; then a quarter of that at once. */
			due = sent - burst + (burst / 4 < packet ? packet : burst / 4);
			ck_assert_uint_le(worth(e.now - first, rate), due + ROUNDING);
			ck_assert_uint_ge(worth(e.now - first, rate) + ROUNDING, due);
			ck_assert_uint_ge(pacer_room(&qp), 1);
		}
		end();
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("pacing");
	TCase *t = tcase_create("pacing");
	SRunner *r;
	int failed;

	tcase_add_loop_test(t, kept, 0, sizeof(rates) / sizeof(rates[0]));
	tcase_add_loop_test(t, changed, 0, sizeof(rates) / sizeof(rates[0]));
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
