/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory regions by key.
 *
 * Theory of operation
 * -------------------
 * A key is 20 bits of table index and 12 random bits. Indices are handed out in turn, starting at a
 * random one, so that a key of a region that is gone stays unused as long as can be; the random
 * bits make keys hard to guess. The table is one flat array of pointers: a lookup is one load, and
 * pages of the array that were never used cost no memory. Readers are workers under QSBR; only the
 * control thread adds and removes.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

/* rcu_dereference() is one load: not worth a call. */
#define URCU_INLINE_SMALL_FUNCTIONS
#include <urcu-qsbr.h>

#include "object.h"

#define MR_INDEX_BITS 20
#define MR_RANDOM_BITS 12
#define MR_COUNT (1u << MR_INDEX_BITS)

struct mr_table {
	struct mr **mr;	 /* MR_COUNT of them, by index */
	uint32_t next;	 /* index to try first */
	uint32_t count;	 /* MRs in the table */
	uint32_t random; /* of pool[], not used yet */
	uint32_t pool[256];
};

/* @return a random number from the kernel, fetched many at a time */
static uint32_t random_word(struct mr_table *t)
{
	if (t->random == 0) {
		/* Requests of up to 256 bytes are never cut short; ask in such pieces. */
		for (size_t i = 0; i < sizeof(t->pool); i += 256)
			while (getrandom((char *)t->pool + i, 256, 0) != 256)
				;
		t->random = sizeof(t->pool) / sizeof(t->pool[0]);
	}
	return t->pool[--t->random];
}

/* @return an empty table, NULL without memory */
struct mr_table *mr_table_create(void)
{
	struct mr_table *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->mr = calloc(MR_COUNT, sizeof(struct mr *));
	if (!t->mr) {
		free(t);
		return NULL;
	}
	t->next = random_word(t) % MR_COUNT;
	return t;
}

/* Frees the table; its MRs are the caller's. No worker may use it any more. */
void mr_table_destroy(struct mr_table *t)
{
	if (!t)
		return;
	free(t->mr);
	free(t);
}

/*
 * Gives mr a key and publishes it; all other fields must be filled in.
 * @return 0, or -ENOMEM when every index is in use
 */
int mr_table_add(struct mr_table *t, struct mr *mr)
{
	uint32_t index = t->next;

	if (t->count == MR_COUNT)
		return -ENOMEM;
	while (t->mr[index])
		index = (index + 1) % MR_COUNT;
	t->next = (index + 1) % MR_COUNT;
	t->count++;
	do
		mr->key = index << MR_RANDOM_BITS | random_word(t) >> (32 - MR_RANDOM_BITS);
	while (mr->key == 0);
	rcu_assign_pointer(t->mr[index], mr);
	return 0;
}

/* Unpublishes mr; workers may still use it until a grace period is over. */
void mr_table_remove(struct mr_table *t, struct mr *mr)
{
	rcu_assign_pointer(t->mr[mr->key >> MR_RANDOM_BITS], NULL);
	t->count--;
}

/* Publishes new in the place of old; workers may still use old until a grace period is over. */
void mr_table_replace(struct mr_table *t, const struct mr *old, struct mr *new)
{
	new->key = old->key;
	rcu_assign_pointer(t->mr[old->key >> MR_RANDOM_BITS], new);
}

/* @return what is at the index of a key, or NULL; valid until the thread's quiescent state */
struct mr *mr_table_at(const struct mr_table *t, uint32_t key)
{
	return rcu_dereference(t->mr[key >> MR_RANDOM_BITS]);
}

/* @return the MR with this key, or NULL; valid until the thread's next quiescent state */
struct mr *mr_table_find(struct mr_table *t, uint32_t key)
{
	struct mr *mr = mr_table_at(t, key);

	return mr && !mr->window && mr->key == key ? mr : NULL;
}

/* mr_access(), for the lookups below. */
static inline int check_access(const struct mr *mr, uint64_t va, uint64_t len, uint32_t access,
			       struct dma_segment *seg)
{
	uint64_t offset;

	if ((mr->access & access) != access)
		return -EACCES;
	offset = va - mr->iova;
	/* Written so that no sum can wrap, whatever va and len are. */
	if (va < mr->iova || offset > mr->length || len > mr->length - offset || len > UINT32_MAX)
		return -ERANGE;
	*seg = (struct dma_segment){
		.mm = mr->mm,
		.addr = mr->addr + offset,
		.len = (uint32_t)len,
		.daemon_only = atomic_load_explicit(&mr->daemon_only, memory_order_relaxed),
		.mapped = mr->mm == NULL,
	};
	return 0;
}

/*
 * Checks an access to a MR and says where it lies.
 * @access: enum ibv_access_flags that must all be granted; 0: local read
 * @va, @len: bytes, as a WQE or RETH has them; 0 bytes are fine anywhere in the MR and at its end
 * @seg: out
 * @return 0, -EACCES (rights), -ERANGE
 */
int mr_access(const struct mr *mr, uint64_t va, uint64_t len, uint32_t access,
	      struct dma_segment *seg)
{
	return check_access(mr, va, len, access, seg);
}

/* The same for a key. @return -EINVAL too: no such MR, or of another PD */
int mr_resolve(const struct pd *pd, uint32_t key, uint64_t va, uint64_t len, uint32_t access,
	       struct dma_segment *seg)
{
	const struct mr *mr = mr_table_find(pd->dev->mrs, key);

	if (!mr || mr->pd != pd)
		return -EINVAL;
	return check_access(mr, va, len, access, seg);
}

/* The same for remote access by the peer of QP qpn: the key may be that of a memory window. */
int rkey_resolve(const struct pd *pd, uint32_t qpn, uint32_t key, uint64_t va, uint64_t len,
		 uint32_t access, struct dma_segment *seg)
{
	struct mr *mr = mr_table_at(pd->dev->mrs, key);

	if (mr && mr->window)
		return mw_access((struct mw *)mr, pd, qpn, key, va, len, access, seg);
	if (!mr || mr->key != key || mr->pd != pd)
		return -EINVAL;
	return check_access(mr, va, len, access, seg);
}
