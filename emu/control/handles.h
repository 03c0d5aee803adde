/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Handle tables: small numbers for a client's objects. A number that was freed comes back late, so
 * that a message about the old object is not taken for one about the new.
 */
#ifndef VERNIC_HANDLES_H
#define VERNIC_HANDLES_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

/* Freed numbers kept before the first of them is used again. */
#define HANDLES_RESERVE 64

struct handle_table {
	void **object; /* by handle; NULL: free */
	uint32_t *next_free;
	uint32_t capacity;
	uint32_t used;	/* handles ever given out: those below are in use or on the free list */
	uint32_t count; /* objects */
	uint32_t first_free, last_free, free_count;
};

/*
 * Gives an object a handle.
 * @max: handles there may be
 * @return 0, or -ENOMEM
 */
static inline int handle_add(struct handle_table *t, void *object, uint32_t max, uint32_t *handle)
{
	uint32_t h;

	if (t->free_count > HANDLES_RESERVE || (t->free_count > 0 && t->used >= max)) {
		h = t->first_free;
		t->first_free = t->next_free[h];
		t->free_count--;
	} else {
		if (t->used >= max)
			return -ENOMEM;
		if (t->used == t->capacity) {
			uint32_t capacity = t->capacity != 0 ? 2 * t->capacity : 64;
			void *objects = realloc(t->object, capacity * sizeof(t->object[0]));
			void *next;

			if (objects == NULL)
				return -ENOMEM;
			t->object = objects;
			next = realloc(t->next_free, capacity * sizeof(t->next_free[0]));
			if (next == NULL)
				return -ENOMEM;
			t->next_free = next;
			t->capacity = capacity;
		}
		h = t->used++;
	}
	t->object[h] = object;
	t->count++;
	*handle = h;
	return 0;
}

/* @return the object, or NULL where the handle is none */
static inline void *handle_get(const struct handle_table *t, uint32_t handle)
{
	return handle < t->used ? t->object[handle] : NULL;
}

/* Puts another object in the place of one. */
static inline void handle_set(struct handle_table *t, uint32_t handle, void *object)
{
	t->object[handle] = object;
}

/* Frees the handle of an object. */
static inline void handle_remove(struct handle_table *t, uint32_t handle)
{
	t->object[handle] = NULL;
	t->next_free[handle] = UINT32_MAX;
	if (t->free_count++ == 0)
		t->first_free = handle;
	else
		t->next_free[t->last_free] = handle;
	t->last_free = handle;
	t->count--;
}

/* Frees the table, not the objects. */
static inline void handle_table_free(struct handle_table *t)
{
	free(t->object);
	free(t->next_free);
}

#endif
