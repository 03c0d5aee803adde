/* SPDX-License-Identifier: BSD-2-Clause */
/* Unit tests of completion queues: publishing, overrun, resizing, events and their moderation. */
#include <check.h>
#include <errno.h>
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
	timer_heap_free(&engine.timers);
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

/* What is full goes on overwriting, and nothing fails, where the client says so. */
START_TEST(overrun_ignored)
{
	begin(0);
	cq.ignore_overrun = true;
	for (uint64_t i = 0; i < 3 * DEPTH; i++)
		ck_assert(push(i, false, 0));
	ck_assert_uint_eq(errors, 0);
	polled = 2 * DEPTH;
	for (uint64_t i = 2 * DEPTH; i < 3 * DEPTH; i++)
		ck_assert(poll(i));
	end();
}
END_TEST

/* A CQ goes on in another ring at the index it had; it holds no more than it is deep there too. */
START_TEST(resize)
{
	static struct vernic_cqe larger[2 * DEPTH], smaller[2];
	uint32_t index = 0;

	begin(UINT32_MAX - 2);
	for (uint64_t i = 0; i < 3; i++)
		push(i, false, 0);
	ck_assert_int_eq(cq_resize(&cq, smaller, 2, 2, &index), -EINVAL);
	push(3, false, 0);
	ck_assert_int_eq(cq_resize(&cq, larger, 2 * DEPTH, 2 * DEPTH, &index), 0);
	ck_assert_uint_eq(index, polled + 4);
	push(4, false, 0);
	ck_assert_uint_eq(larger[index % (2 * DEPTH)].wr_id, 4);
	ck_assert_uint_eq(larger[index % (2 * DEPTH)].lap, index / (2 * DEPTH) + 1);
	for (uint64_t i = 5; i < 2 * DEPTH; i++)
		ck_assert(push(i, false, 0));
	ck_assert(!push(0, false, 0));
	end();
}
END_TEST

/* An event waits for its count of CQEs, or for its time, and then goes out once. */
START_TEST(moderation)
{
	static struct cq_moderation m;

	begin(0);
	atomic_store(&cq.moderation, &m);
	ck_assert_int_eq(cq_moderate(&engine, &cq), 0);
	atomic_store(&m.count, 3);
	atomic_store(&m.period, 1000);
	engine.now = 5000;
	arm(VERNIC_ARM_NEXT);
	push(0, false, 0);
	push(1, false, 0);
	ck_assert_uint_eq(take_events(), 0);
	push(2, false, 0);
	ck_assert_uint_eq(take_events(), 1);
	/* The timer of that one does not hurry the next. */
	polled = 3;
	arm(VERNIC_ARM_NEXT);
	engine.now = 5900;
	push(3, false, 0);
	ck_assert_uint_eq(take_events(), 0);
	engine.now = 6000;
	timer_run(&engine.timers, engine.now);
	ck_assert_uint_eq(events, 0);
	ck_assert_uint_eq(timer_next(&engine.timers), 6900);
	engine.now = 6900;
	timer_run(&engine.timers, engine.now);
	ck_assert_uint_eq(events, 1);
	ck_assert(!atomic_load(&cq.ring->arm));
	/* Nothing is put off any more; what was goes out. */
	polled = 4;
	arm(VERNIC_ARM_NEXT);
	push(4, false, 0);
	ck_assert_uint_eq(take_events(), 0);
	atomic_store(&m.period, 0);
	cq_moderate(&engine, &cq);
	ck_assert_uint_eq(events, 1);
	cq_end_moderation(&engine, &cq);
	ck_assert_uint_eq(timer_next(&engine.timers), UINT64_MAX);
	ck_assert_uint_eq(engine.cq_timers, 0);
	end();
}
END_TEST

/* A receive for a client that waits on the engine's core is told of; nothing else is. */
START_TEST(waiting_client)
{
	static const struct {
		uint32_t engine, client;
		uint8_t queue;
		bool awaited;
	} cases[] = {
		{2, 2, VERNIC_CQE_RQ, true},  {2, 2, VERNIC_CQE_SQ, false},
		{2, 1, VERNIC_CQE_RQ, false}, {0, 0, VERNIC_CQE_RQ, false},
		{2, 0, VERNIC_CQE_RQ, false}, {2, UINT32_MAX, VERNIC_CQE_RQ, false},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct vernic_cqe cqe = {.queue = cases[i].queue};

		begin(0);
		engine.core = cases[i].engine;
		atomic_store(&cq.ring->core, cases[i].client);
		ck_assert(cq_push(&engine, &cq, &cqe, false));
		ck_assert_msg(engine.awaited == cases[i].awaited, "case %u", i);
		end();
	}
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
	tcase_add_test(tc, overrun_ignored);
	tcase_add_test(tc, resize);
	tcase_add_test(tc, moderation);
	tcase_add_test(tc, waiting_client);
	suite_add_tcase(s, tc);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
