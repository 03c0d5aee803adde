/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Timers: a heap of deadlines. Pure: time comes in as an argument. Times are ns of one monotonic
 * clock; a timer never fires early.
 */
#ifndef VERNIC_TIMER_H
#define VERNIC_TIMER_H

#include <stdbool.h>
#include <stdint.h>

struct timer;
typedef void (*timer_fn)(struct timer *t, uint64_t now);

struct timer {
	uint64_t deadline; /* ns */
	uint32_t slot;	   /* place in the heap + 1; 0: not armed */
	timer_fn fire;
};

struct timer_heap {
	struct timer **heap;
	uint32_t count;
	uint32_t capacity;
};

/*
 * Makes room for as many timers armed at once: call it when the owner of one more is created.
 * @return 0 or -ENOMEM
 */
int timer_heap_reserve(struct timer_heap *h, uint32_t timers);
void timer_heap_free(struct timer_heap *h);

/* @return whether a timer waits to fire */
static inline bool timer_armed(const struct timer *t)
{
	return t->slot != 0;
}

/* Arms, or moves, a timer. */
void timer_arm(struct timer_heap *h, struct timer *t, uint64_t deadline);
void timer_disarm(struct timer_heap *h, struct timer *t);

/* Fires what is due at now. fire() may arm and disarm any timer. */
void timer_run(struct timer_heap *h, uint64_t now);

/* @return the earliest deadline, UINT64_MAX if none */
uint64_t timer_next(const struct timer_heap *h);

#endif
