/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counters objects: their places are named before they are given to a flow. There are no flows they
 * could be attached to afterwards, so what they have counted is nothing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define COUNTERS_MAX 64 /* places of an object */

struct counters {
	struct ibv_counters ibv;
	_Atomic uint32_t places; /* the highest index attached, + 1 */
};

struct ibv_counters *counters_create(struct ibv_context *context,
				     struct ibv_counters_init_attr *attr)
{
	struct counters *c;

	if (attr->comp_mask) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (vernic_load_relaxed(&to_context(context)->device->failed)) {
		errno = EIO;
		return NULL;
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->ibv.context = context;
	return &c->ibv;
}

int counters_destroy(struct ibv_counters *counters)
{
	free(counters);
	return 0;
}

/* Without a flow a place is named for the flow to come; a flow that is there takes none. */
int counters_attach(struct ibv_counters *counters, struct ibv_counter_attach_attr *attr,
		    struct ibv_flow *flow)
{
	struct counters *c = (struct counters *)counters;
	uint32_t places = c->places;

	if (flow || attr->comp_mask)
		return EOPNOTSUPP;
	if (attr->counter_desc != IBV_COUNTER_PACKETS && attr->counter_desc != IBV_COUNTER_BYTES)
		return EOPNOTSUPP;
	if (attr->index >= COUNTERS_MAX)
		return EINVAL;
	while (places <= attr->index &&
	       !atomic_compare_exchange_weak(&c->places, &places, attr->index + 1))
		;
	return 0;
}

/* @return EINVAL: not all places that were named would fit */
int counters_read(struct ibv_counters *counters, uint64_t *values, uint32_t count, uint32_t flags)
{
	struct counters *c = (struct counters *)counters;

	if (flags & ~(uint32_t)IBV_READ_COUNTERS_ATTR_PREFER_CACHED)
		return EOPNOTSUPP;
	if (count < c->places)
		return EINVAL;
	memset(values, 0, count * sizeof(*values));
	return 0;
}
