/* SPDX-License-Identifier: BSD-2-Clause */
/* Unit tests of completion queues: publishing, overrun, events. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "transport/engine.h"

#define DEPTH 8

static unsigned int errors, events;

static void count_error(struct engine *e, struct cq *cq)
{
	errors++;
}

static void count_event(struct engine *e, struct cq *cq)
{
	events++;
}

static const struct engine_ops ops = {.cq_error = count_error, .cq_event = count_event};
static struct engine engine;
static struct cq cq;
static uint32_t polled;

/* Makes an engine and a CQ whose indices begin at start. */
static void begin(uint32_t start)
{
	void *memory = aligned_alloc(64, VERNIC_CQE_OFFSET + DEPTH * sizeof(struct vernic_cqe));

	memset(memory, 0, VERNIC_CQE_OFFSET + DEPTH * sizeof(struct vernic_cqe));
	errors = events = 0;
	engine = (struct engine){.ops = &ops, .worker = 3};
	cq_init(&cq, memory, DEPTH);
	cq.prod = cq.last_solicited = polled = start;
	atomic_store(&cq.ring->cons, start);
}

static void end(void)
{
	free(engine.dirty);
	free(cq.ring);
}

static bool push(uint64_t wr_id, bool solicited, uint8_t status)
{
	struct vernic_cqe cqe = {.wr_id = wr_id, .status = status, .data_len = 5, .lap = 99};

	memset(cqe.data, (int)wr_id, sizeof(cqe.data));
	return cq_push(&engine, &cq, &cqe, solicited);
}

/* @return whether a CQE could be polled; it must be wr_id's */
static bool poll(uint64_t wr_id)
{
	struct vernic_cqe *c = &cq.cqe[polled % DEPTH];

	if (vernic_load_acquire(&c->lap) != polled / DEPTH + 1)
		return false;
	ck_assert_uint_eq(c->wr_id, wr_id);
	ck_assert_uint_eq(c->data[4], wr_id & 0xff);
	vernic_store_release(&cq.ring->cons, ++polled);
	return true;
}

static void arm(uint64_t how)
{
	atomic_store(&cq.ring->arm, how | polled);
}

static unsigned int take_events(void)
{
	events = 0;
	engine_notify_cqs(&engine);
	return events;
}

/* CQEs come out in order over many laps, also where the index wraps. */
START_TEST(laps)
{
	begin(UINT32_MAX - 20);
	for (uint64_t i = 0; i < 1000; i++) {
		ck_assert(!poll(2 * i));
		ck_assert(push(2 * i, false, 0));
		ck_assert(push(2 * i + 1, false, 0));
		ck_assert(poll(2 * i));
		ck_assert(poll(2 * i + 1));
	}
	end();
}
END_TEST

/* A full CQ refuses, reports once and stays dead; what was in it can be polled. */
START_TEST(overrun)
{
	begin(0);
	for (uint64_t i = 0; i < DEPTH; i++)
		ck_assert(push(i, false, 0));
	ck_assert(!push(DEPTH, false, 0));
	ck_assert(!push(DEPTH, false, 0));
	ck_assert_uint_eq(errors, 1);
	for (uint64_t i = 0; i < DEPTH; i++)
		ck_assert(poll(i));
	ck_assert(!poll(DEPTH));
	ck_assert(!push(DEPTH, false, 0));
	ck_assert_uint_eq(errors, 1);
	end();
}
END_TEST

/* One event for N CQEs after arming, none for those before it. */
START_TEST(one_event_when_armed)
{
	begin(UINT32_MAX - 1);
	push(0, false, 0);
	ck_assert_uint_eq(take_events(), 0);
	ck_assert(poll(0));
	arm(VERNIC_ARM_NEXT);
	engine.dirty[engine.dirty_count++] = &cq; /* a look without a new CQE */
	ck_assert_uint_eq(take_events(), 0);
	push(1, false, 0);
	push(2, false, 0);
	ck_assert_uint_eq(engine.dirty_count, 1);
	ck_assert_uint_eq(take_events(), 1);
	ck_assert_uint_eq(atomic_load(&cq.ring->arm), 0);
	push(3, false, 0);
	ck_assert_uint_eq(take_events(), 0);
	end();
}
END_TEST

/* Armed for solicited events, only solicited CQEs and errors count. */
START_TEST(solicited)
{
	begin(0);
	arm(VERNIC_ARM_SOLICITED);
	push(0, false, 0);
	ck_assert_uint_eq(take_events(), 0);
	push(1, true, 0);
	push(2, false, 0);
	ck_assert_uint_eq(take_events(), 1);
	ck_assert(poll(0) && poll(1) && poll(2));
	arm(VERNIC_ARM_SOLICITED);
	push(3, false, 0);
	ck_assert_uint_eq(take_events(), 0);
	push(4, false, IBV_WC_WR_FLUSH_ERR);
	ck_assert_uint_eq(take_events(), 1);
	end();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cq");
	TCase *tc = tcase_create("cq");
	SRunner *r = srunner_create(s);
	int failed;

	tcase_add_test(tc, laps);
	tcase_add_test(tc, overrun);
	tcase_add_test(tc, one_event_when_armed);
	tcase_add_test(tc, solicited);
	suite_add_tcase(s, tc);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
