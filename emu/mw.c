/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory windows: binding, invalidating, and access through them.
 *
 * Theory of operation
 * -------------------
 * A window has an index of the MR table to itself as long as it lives, and so the upper bits of its
 * key; the low 8 are those of the last bind. What it is bound to is copied into its head, which an
 * access is checked against as against a MR. The MR cannot go meanwhile: it counts its windows.
 *
 * Bindings change on the threads of workers, in the course of their QPs' work, and are looked at by
 * all of them: a spinlock of the device keeps each look whole. A window of type 2 belongs to one QP
 * while it is bound (IBTA's type 2B), thus to one worker. When it is invalidated, that worker's
 * queue of dma operations keeps the order: bytes of earlier accesses first, then the completion.
 * One of type 1 all workers may be using: a bind that ends another completes when they have gone on
 * (engine_settle()).
 */
#include <errno.h>

#include "object.h"

#define WINDOW_RIGHTS (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)
#define WINDOW_ACCESS (WINDOW_RIGHTS | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED)

/* The part of a window's key that a bind chooses. */
#define KEY_TAG UINT32_C(0xff)

/* @return the window of a key, or NULL; the low 8 bits of its key may be others */
static struct mw *window_at(const struct pd *pd, uint32_t key)
{
	struct mr *mr = mr_table_at(pd->dev->mrs, key);

	return mr && mr->window ? (struct mw *)mr : NULL;
}

/* @return whether a QP may use what the window is bound to under a key; under window_lock */
static bool is_bound(const struct mw *mw, const struct pd *pd, uint32_t qpn, uint32_t key)
{
	return mw->region && mw->mr.key == key && mw->mr.pd == pd &&
	       (mw->type == IBV_MW_TYPE_1 || mw->qpn == qpn);
}

int mw_access(struct mw *mw, const struct pd *pd, uint32_t qpn, uint32_t key, uint64_t va,
	      uint64_t len, uint32_t access, struct dma_segment *seg)
{
	int err = -EINVAL;

	pthread_spin_lock(&pd->dev->window_lock);
	if (is_bound(mw, pd, qpn, key))
		err = mr_access(&mw->mr, va, len, access, seg);
	pthread_spin_unlock(&pd->dev->window_lock);
	return err;
}

/* Ends a binding; under window_lock. */
static void unbind(struct mw *mw)
{
	if (mw->region)
		mw->region->windows--;
	mw->region = NULL;
}

/* What a window may be bound to: checks but those of the window itself. @return 0 or -EINVAL */
static int check_region(const struct mr *region, const struct mw *mw, const struct mw_binding *b)
{
	uint64_t offset = b->addr - region->iova;

	if (region->pd != mw->mr.pd || region->closing || !(region->access & IBV_ACCESS_MW_BIND))
		return -EINVAL;
	/* A window cannot let peers do what its owner may not (C10-74). */
	if (b->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) &&
	    !(region->access & IBV_ACCESS_LOCAL_WRITE))
		return -EINVAL;
	if (b->addr < region->iova || offset > region->length ||
	    b->length > region->length - offset || b->addr + b->length < b->addr)
		return -EINVAL;
	return 0;
}

/* Whether a window can be bound now, and in this way; under window_lock. @return 0 or -EINVAL */
static int check_window(const struct mw *mw, const struct pd *pd, const struct mw_binding *b)
{
	if (mw->mr.pd != pd || (b->rkey ^ mw->mr.key) & ~KEY_TAG || b->rkey == mw->mr.key)
		return -EINVAL;
	if (b->access & ~(uint32_t)WINDOW_ACCESS)
		return -EINVAL;
	if (mw->type == IBV_MW_TYPE_1)
		return b->access & IBV_ACCESS_ZERO_BASED ? -EINVAL : 0;
	/* Type 2 has to be invalidated first, and is never bound to nothing (o10-37.2). */
	return mw->region || b->length == 0 ? -EINVAL : 0;
}

/* Binds a window to what was checked; under window_lock. */
static void bind_to(struct mw *mw, struct mr *region, uint32_t qpn, const struct mw_binding *b)
{
	mw->mr.access = b->access & WINDOW_RIGHTS;
	mw->mr.mm = region->mm;
	mw->mr.iova = b->access & IBV_ACCESS_ZERO_BASED ? 0 : b->addr;
	mw->mr.addr = region->addr + (b->addr - region->iova);
	mw->mr.length = b->length;
	mw->mr.daemon_only = region->daemon_only;
	mw->qpn = qpn;
	mw->region = region;
	region->windows++;
}

int mw_bind(const struct pd *pd, uint32_t qpn, const struct mw_binding *b)
{
	struct mr *region = mr_table_find(pd->dev->mrs, b->lkey);
	struct mw *mw = window_at(pd, b->mw);
	int err;

	if (!mw || (!region && b->length != 0))
		return -EINVAL;
	pthread_spin_lock(&pd->dev->window_lock);
	err = check_window(mw, pd, b);
	if (err == 0 && b->length != 0)
		err = check_region(region, mw, b);
	if (err == 0) {
		/* That was of type 1, for all QPs of its PD. */
		err = mw->region != NULL;
		unbind(mw);
		mw->mr.key = b->rkey;
		if (b->length != 0)
			bind_to(mw, region, qpn, b);
	}
	pthread_spin_unlock(&pd->dev->window_lock);
	return err;
}

int mw_invalidate(const struct pd *pd, uint32_t qpn, uint32_t rkey)
{
	struct mw *mw = window_at(pd, rkey);
	int err = -EINVAL;

	if (!mw || mw->type != IBV_MW_TYPE_2)
		return -EINVAL;
	pthread_spin_lock(&pd->dev->window_lock);
	if (is_bound(mw, pd, qpn, rkey)) {
		unbind(mw);
		err = 0;
	}
	pthread_spin_unlock(&pd->dev->window_lock);
	return err;
}

void mw_unbind(struct device *dev, struct mw *mw)
{
	pthread_spin_lock(&dev->window_lock);
	unbind(mw);
	pthread_spin_unlock(&dev->window_lock);
}

void mw_unbind_abandoned(struct device *dev, struct mw *mw)
{
	pthread_spin_lock(&dev->window_lock);
	if (mw->region && mw->region->closing)
		unbind(mw);
	pthread_spin_unlock(&dev->window_lock);
}

void mr_abandon(struct device *dev, struct mr *mr)
{
	pthread_spin_lock(&dev->window_lock);
	mr->closing = true;
	pthread_spin_unlock(&dev->window_lock);
}

int mr_close(struct device *dev, struct mr *mr)
{
	int err = 0;

	pthread_spin_lock(&dev->window_lock);
	if (mr->windows != 0)
		err = -EBUSY;
	else
		mr->closing = true;
	pthread_spin_unlock(&dev->window_lock);
	return err;
}
