/* SPDX-License-Identifier: BSD-2-Clause */
/* Timers: a binary heap of deadlines, the earliest on top. */
#include "timer.h"

#include <errno.h>
#include <stdlib.h>

/* Puts a timer into a place of the heap. @i: place, from 0 */
static void put(struct timer_heap *h, uint32_t i, struct timer *t)
{
	h->heap[i] = t;
	t->slot = i + 1;
}

/* Moves the timer at place i towards the top until its parent is not later. */
static void sift_up(struct timer_heap *h, uint32_t i)
{
	struct timer *t = h->heap[i];

	while (i > 0) {
		uint32_t parent = (i - 1) / 2;

		if (h->heap[parent]->deadline <= t->deadline)
			break;
		put(h, i, h->heap[parent]);
		i = parent;
	}
	put(h, i, t);
}

/* Moves the timer at place i towards the bottom until no child is earlier. */
static void sift_down(struct timer_heap *h, uint32_t i)
{
	struct timer *t = h->heap[i];
	uint32_t child;

	while ((child = 2 * i + 1) < h->count) {
		if (child + 1 < h->count && h->heap[child + 1]->deadline < h->heap[child]->deadline)
			child++;
		if (t->deadline <= h->heap[child]->deadline)
			break;
		put(h, i, h->heap[child]);
		i = child;
	}
	put(h, i, t);
}

/*
 * Makes room, so that arming never needs memory.
 * @timers: how many timers may be armed at once
 * @return 0 or -ENOMEM
 */
int timer_heap_reserve(struct timer_heap *h, uint32_t timers)
{
	uint32_t capacity = h->capacity ? h->capacity : 64;
	struct timer **heap;

	if (timers <= h->capacity)
		return 0;
	while (capacity < timers)
		capacity *= 2;
	heap = realloc(h->heap, capacity * sizeof(*heap));
	if (!heap)
		return -ENOMEM;
	h->heap = heap;
	h->capacity = capacity;
	return 0;
}

/* Frees the heap's memory; timers still armed are forgotten. */
void timer_heap_free(struct timer_heap *h)
{
	free(h->heap);
	*h = (struct timer_heap){0};
}

/* Arms, or moves, a timer. @deadline: ns; room must have been reserved */
void timer_arm(struct timer_heap *h, struct timer *t, uint64_t deadline)
{
	bool later = t->slot && deadline > t->deadline;

	if (t->slot == 0)
		put(h, h->count++, t);
	t->deadline = deadline;
	if (later)
		sift_down(h, t->slot - 1);
	else
		sift_up(h, t->slot - 1);
}

/* Disarms a timer, armed or not. */
void timer_disarm(struct timer_heap *h, struct timer *t)
{
	uint32_t i = t->slot - 1;
	struct timer *last;

	if (t->slot == 0)
		return;
	t->slot = 0;
	last = h->heap[--h->count];
	if (last == t)
		return;
	put(h, i, last);
	sift_up(h, i);
	sift_down(h, last->slot - 1);
}

/*
 * Fires what is due. At most as many as were armed at the start: a timer that arms itself for now
 * again and again must not keep the caller here; timer_next() then says that more is due.
 * @now: ns
 */
void timer_run(struct timer_heap *h, uint64_t now)
{
	uint32_t budget = h->count;

	while (budget-- && h->count && h->heap[0]->deadline <= now) {
		struct timer *t = h->heap[0];

		timer_disarm(h, t);
		t->fire(t, now);
	}
}

/* @return the earliest deadline in ns, UINT64_MAX if none */
uint64_t timer_next(const struct timer_heap *h)
{
	return h->count ? h->heap[0]->deadline : UINT64_MAX;
}
