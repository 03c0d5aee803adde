/* SPDX-License-Identifier: BSD-2-Clause */
/* The daemon as a whole: its devices and workers. */
#ifndef VERNIC_HOST_H
#define VERNIC_HOST_H

#include <time.h>

#include "config.h"
#include "device.h"

struct worker;

struct host {
	struct host_device *device[CONFIG_MAX_DEVICES]; /* fixed after start-up */
	unsigned int device_count;
	struct worker *worker[VERNIC_MAX_WORKERS]; /* fixed after start-up */
	unsigned int workers;
	unsigned int next_worker;	  /* of the next QP; control thread */
	enum io_kind io;		  /* what workers use */
	struct vernic_worker_page *pages; /* one for each worker, shared with clients */
	size_t pages_size;		  /* bytes */
	int pages_fd;			  /* for clients: cannot be mapped writable */
	uint64_t start;			  /* ns, host_now() */
};

/* @return ns, CLOCK_MONOTONIC */
static inline uint64_t host_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* @return the device of this daemon that has the GID, or NULL */
static inline const struct device *host_find_device(const struct host *host, const uint8_t gid[16])
{
	for (unsigned int i = 0; i < host->device_count; i++) {
		if (device_owns_gid(&host->device[i]->dev, gid))
			return &host->device[i]->dev;
	}
	return NULL;
}

/* @return whether a device of this daemon has the GID */
static inline bool host_owns_gid(const struct host *host, const uint8_t gid[16])
{
	return host_find_device(host, gid) != NULL;
}

#endif
