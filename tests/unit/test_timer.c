/* SPDX-License-Identifier: BSD-2-Clause */
/* Unit tests of the timer heap. */
#include <check.h>
#include <stdlib.h>

#include "timer.h"

#define TIMERS 200

struct test_timer {
	struct timer timer;
	uint64_t expect; /* deadline, UINT64_MAX: not armed */
	unsigned int fired;
};

static struct test_timer timers[TIMERS];
static uint64_t last_deadline;

/* Timer callback: checks that the timer is due, and that none earlier comes after it. */
static void fire(struct timer *t, uint64_t now)
{
	struct test_timer *tt = (struct test_timer *)t;

	ck_assert(!timer_armed(t));
	ck_assert_uint_eq(tt->expect, t->deadline);
	ck_assert_uint_le(tt->expect, now);
	ck_assert_uint_ge(tt->expect, last_deadline);
	last_deadline = tt->expect;
	tt->expect = UINT64_MAX;
	tt->fired++;
}

/* Arming, moving, disarming and firing at random agree with a list that is searched. */
START_TEST(agrees_with_a_model)
{
	struct timer_heap h = {0};
	uint64_t now = 0;

	srandom(1);
	ck_assert_int_eq(timer_heap_reserve(&h, TIMERS), 0);
	for (int i = 0; i < TIMERS; i++)
		timers[i] = (struct test_timer){.timer.fire = fire, .expect = UINT64_MAX};
	for (int step = 0; step < 20000; step++) {
		struct test_timer *t = &timers[random() % TIMERS];
		uint64_t first = UINT64_MAX;

		switch (random() % 4) {
		case 0:
			timer_disarm(&h, &t->timer);
			t->expect = UINT64_MAX;
			break;
		case 1:
			now += (uint64_t)(random() % 20);
			last_deadline = 0;
			timer_run(&h, now);
			for (int i = 0; i < TIMERS; i++)
				if (timers[i].expect <= now)
					ck_abort_msg("timer %d is due and was not fired", i);
			break;
		default:
			t->expect = now + (uint64_t)(random() % 300);
			timer_arm(&h, &t->timer, t->expect);
		}
		ck_assert_int_eq(timer_armed(&t->timer), t->expect != UINT64_MAX);
		for (int i = 0; i < TIMERS; i++)
			if (timers[i].expect < first)
				first = timers[i].expect;
		ck_assert_uint_eq(timer_next(&h), first);
	}
	timer_heap_free(&h);
}
END_TEST

static struct timer_heap again_heap;
static unsigned int again_count;

/* Timer callback: arms itself for now. */
static void fire_again(struct timer *t, uint64_t now)
{
	again_count++;
	timer_arm(&again_heap, t, now);
}

/* A timer that arms itself for now is fired once a run, and is due again. */
START_TEST(rearming_for_now_does_not_hang)
{
	struct timer t = {.fire = fire_again};

	ck_assert_int_eq(timer_heap_reserve(&again_heap, 1), 0);
	timer_arm(&again_heap, &t, 5);
	timer_run(&again_heap, 4);
	ck_assert_uint_eq(again_count, 0);
	timer_run(&again_heap, 7);
	ck_assert_uint_eq(again_count, 1);
	ck_assert_uint_eq(timer_next(&again_heap), 7);
	timer_heap_free(&again_heap);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("timer");
	TCase *tc = tcase_create("timer");
	SRunner *r = srunner_create(s);
	int failed;

	tcase_add_test(tc, agrees_with_a_model);
	tcase_add_test(tc, rearming_for_now_does_not_hang);
	suite_add_tcase(s, tc);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
