/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Completion queues: publishing CQEs, and telling who waits for them.
 *
 * Theory of operation
 * -------------------
 * cq_push() writes a CQE and puts the CQ on its engine's list of CQs to notify; the host calls
 * engine_notify_cqs() when its round is over, so a burst of CQEs costs one look at the arm word.
 * The CQE's lap is stored before the arm word is read, with a full barrier between; the client
 * stores the arm word before it looks for a CQE once more. So one of the two sees the other.
 *
 * A CQ with moderation (ibv_modify_cq(3)) has its event put off until enough CQEs have come since
 * it was armed, or the first of them is old enough. The engine that saw that one arms its own
 * timer; all engines share the deadline, so whichever of them comes first fires the event.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/engine.h"

#define PREFETCH 4 /* CQEs ahead: a burst is published faster than a line comes */

/*
 * Ties a CQ to its ring memory, which is zeroed.
 * @memory: struct vernic_cq_ring and the CQEs, as ring.h lays them out
 * @depth: CQEs, a power of two
 */
void cq_init(struct cq *cq, void *memory, uint32_t depth)
{
	cq->ring = memory;
	cq->cqe = (struct vernic_cqe *)((char *)memory + VERNIC_CQE_OFFSET);
	cq->depth = depth;
	cq->shift = (uint32_t)__builtin_ctz(depth);
	cq->prod = cq->cons = 0;
	cq->last_solicited = 0;
	cq->overflow = false;
	cq->ignore_overrun = false;
	atomic_init(&cq->moderation, NULL);
	atomic_init(&cq->dirty, 0);
	pthread_spin_init(&cq->lock, PTHREAD_PROCESS_PRIVATE);
}

/* @return how many CQEs that count have come since the CQ was armed */
static uint32_t due(struct cq *cq, uint64_t arm)
{
	uint32_t newest; /* index + 1 of the newest CQE that counts */

	if (arm == 0)
		return 0;
	pthread_spin_lock(&cq->lock);
	newest = arm & VERNIC_ARM_NEXT ? cq->prod : cq->last_solicited;
	pthread_spin_unlock(&cq->lock);
	return (int32_t)(newest - (uint32_t)arm) > 0 ? newest - (uint32_t)arm : 0;
}

/*
 * Puts the event that is due off, if the CQ's moderation says so.
 * @return false: if an event is due, it goes out now
 */
static bool put_off(struct engine *e, struct cq *cq)
{
	struct cq_moderation *m = atomic_load_explicit(&cq->moderation, memory_order_acquire);
	uint64_t period, deadline, none = 0;
	uint32_t n;

	if (m == NULL)
		return false;
	vernic_full_barrier();
	period = atomic_load(&m->period);
	n = due(cq, atomic_load_explicit(&cq->ring->arm, memory_order_acquire));
	deadline = atomic_load(&m->deadline);
	if (n == 0 || period == 0 || n >= atomic_load(&m->count) ||
	    (deadline != 0 && e->now >= deadline)) {
		atomic_store(&m->deadline, 0);
		return false;
	}
	if (deadline == 0) {
		deadline = e->now + period;
		if (!atomic_compare_exchange_strong(&m->deadline, &none, deadline))
			deadline = none;
	}
	timer_arm(&e->timers, &m->worker[e->worker].timer, deadline);
	return true;
}

/* Fires the event of a CQ if one is due. */
static void notify(struct engine *e, struct cq *cq)
{
	/* Cleared first: a CQE pushed after the look at the arm word must list the CQ again. */
	atomic_fetch_and(&cq->dirty, ~(1u << e->worker));
	if (!put_off(e, cq) && cq_take_event(cq))
		e->ops->cq_event(e, cq);
}

/* A deadline has come, of this event or of one that went out earlier. */
static void moderation_timer(struct timer *t, uint64_t now)
{
	struct cq_timer *timer = (struct cq_timer *)t;

	notify(timer->engine, timer->cq);
}

/* Puts a CQ on the engine's list to notify, once. */
static void mark_dirty(struct engine *e, struct cq *cq)
{
	uint32_t bit = 1u << e->worker;

	/* The bit is this engine's own: nobody else sets or clears it. */
	if (atomic_load_explicit(&cq->dirty, memory_order_relaxed) & bit)
		return;
	if (e->dirty_count == e->dirty_capacity) {
		uint32_t capacity = e->dirty_capacity ? 2 * e->dirty_capacity : 64;
		struct cq **dirty = realloc(e->dirty, capacity * sizeof(struct cq *));

		if (!dirty) {
			/* Early is right too, only dearer. */
			notify(e, cq);
			return;
		}
		e->dirty = dirty;
		e->dirty_capacity = capacity;
	}
	atomic_fetch_or(&cq->dirty, bit);
	e->dirty[e->dirty_count++] = cq;
}

/* Asks for the slot of a CQE to come, which the client has polled a lap ago. */
static void prefetch_slot(const struct cq *cq, uint32_t index)
{
	struct vernic_cqe *slot = &cq->cqe[index & (cq->depth - 1)];

	vernic_prefetch_write(slot);
	vernic_prefetch_write(slot->data);
}

/*
 * Publishes a CQE (lap is filled in here) and puts the CQ on the engine's list to notify.
 * @solicited: wakes a CQ armed for solicited events; a CQE with an error always does
 * @return false if the CQ overran: the CQE is lost, the CQ is dead from then on
 */
bool cq_push(struct engine *e, struct cq *cq, const struct vernic_cqe *cqe, bool solicited)
{
	struct vernic_cqe *slot;
	uint32_t index;
	bool newly_dead;

	pthread_spin_lock(&cq->lock);
	index = cq->prod;
	/* The client writes it with each poll: it is looked at only when the ring seems full. */
	if (index - cq->cons >= cq->depth)
		cq->cons = vernic_load_acquire(&cq->ring->cons);
	if (cq->overflow || (!cq->ignore_overrun && index - cq->cons >= cq->depth)) {
		newly_dead = !cq->overflow;
		cq->overflow = true;
		pthread_spin_unlock(&cq->lock);
		if (newly_dead)
			e->ops->cq_error(e, cq);
		return false;
	}
	slot = &cq->cqe[index & (cq->depth - 1)];
	prefetch_slot(cq, index + PREFETCH);
	/* The client may be reading what is overwritten: it looks at the lap again afterwards. */
	if (cq->ignore_overrun) {
		atomic_store_explicit(&slot->lap, 0, memory_order_relaxed);
		atomic_thread_fence(memory_order_release);
	}
	memcpy(slot, cqe, offsetof(struct vernic_cqe, lap));
	if (cqe->data_len)
		memcpy(slot->data, cqe->data, sizeof(slot->data));
	vernic_store_release(&slot->lap, (index >> cq->shift) + 1);
	cq->prod = index + 1;
	if (solicited || cqe->status != IBV_WC_SUCCESS)
		cq->last_solicited = cq->prod;
	pthread_spin_unlock(&cq->lock);

	/* Of its own requests a client mostly takes note; what it receives it acts on. */
	if (cqe->queue != VERNIC_CQE_SQ && e->core != 0 &&
	    vernic_load_relaxed(&cq->ring->core) == e->core)
		e->awaited = true;
	mark_dirty(e, cq);
	return true;
}

/* @return true if an event is due (and disarms): call with every CQE so far published */
bool cq_take_event(struct cq *cq)
{
	uint64_t arm;

	vernic_full_barrier();
	arm = atomic_load_explicit(&cq->ring->arm, memory_order_acquire);
	while (arm != 0) {
		if (due(cq, arm) == 0)
			return false;
		/* Fails if the client re-armed, or another worker fired it: look again. */
		if (atomic_compare_exchange_strong(&cq->ring->arm, &arm, 0))
			return true;
	}
	return false;
}

/* Fires the events that are due of all CQs that got CQEs since the last call. */
void engine_notify_cqs(struct engine *e)
{
	for (uint32_t i = 0; i < e->dirty_count; i++)
		notify(e, e->dirty[i]);
	e->dirty_count = 0;
}

int cq_resize(struct cq *cq, void *cqes, uint32_t depth, uint32_t cqe, uint32_t *index)
{
	int err = 0;

	pthread_spin_lock(&cq->lock);
	if (cq->prod - vernic_load_acquire(&cq->ring->cons) > cqe) {
		err = -EINVAL;
	} else {
		cq->cqe = cqes;
		cq->depth = depth;
		cq->shift = (uint32_t)__builtin_ctz(depth);
		*index = cq->prod;
	}
	pthread_spin_unlock(&cq->lock);
	return err;
}

int cq_moderate(struct engine *e, struct cq *cq)
{
	struct cq_timer *t = &atomic_load(&cq->moderation)->worker[e->worker];

	if (t->engine == NULL) {
		if (timer_heap_reserve(&e->timers, engine_timers(e) + 1) != 0)
			return -ENOMEM;
		e->cq_timers++;
		*t = (struct cq_timer){.timer = {.fire = moderation_timer}, .cq = cq, .engine = e};
	}
	/* What was put off so far goes out. */
	notify(e, cq);
	return 0;
}

void cq_end_moderation(struct engine *e, struct cq *cq)
{
	struct cq_timer *t = &atomic_load(&cq->moderation)->worker[e->worker];

	if (t->engine == NULL)
		return;
	timer_disarm(&e->timers, &t->timer);
	t->engine = NULL;
	e->cq_timers--;
}
