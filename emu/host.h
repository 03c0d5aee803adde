/* SPDX-License-Identifier: BSD-2-Clause */
/* The daemon as a whole: its devices and workers. */
#ifndef VERNIC_HOST_H
#define VERNIC_HOST_H

#include <time.h>

#include <urcu-qsbr.h>

#include "config.h"
#include "device.h"
#include "mcast.h"

struct worker;

struct host {
	/*
	 * By index; NULL: none. The control thread changes it, workers read it under RCU: use
	 * host_device(). A device that was removed keeps its index until its last client is gone.
	 */
	struct host_device *device[CONFIG_MAX_DEVICES];
	_Atomic unsigned int device_count; /* indices from this one on were never in use */
	uint64_t device_taken;		   /* bit per index; control thread */
	struct mcast_table mcast;
	struct worker *worker[VERNIC_MAX_WORKERS]; /* fixed after start-up */
	unsigned int workers;
	unsigned int next_worker;	 /* of the next QP; control thread */
	enum io_kind io;		 /* what workers use */
	struct vernic_shared_page *page; /* shared with clients */
	size_t page_size;		 /* bytes */
	int page_fd;			 /* for clients: cannot be mapped writable */
	uint64_t start;			 /* ns, host_now() */
};

/* @return ns, CLOCK_MONOTONIC */
static inline uint64_t host_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* @return the device of that index, or NULL; a worker may use it until its round is over */
static inline struct host_device *host_device(const struct host *host, unsigned int index)
{
	return rcu_dereference(host->device[index]);
}

/* Runs the statement behind it for each device d there is; i: its index. */
#define host_for_each_device(host, i, d)                 \
	for ((i) = 0; (i) < (host)->device_count; (i)++) \
		if (((d) = host_device((host), (i))) != NULL)

/* @return the device of this daemon that has the GID, or NULL */
static inline const struct device *host_find_device(const struct host *host, const uint8_t gid[16])
{
	const struct host_device *d;
	unsigned int i;

	host_for_each_device (host, i, d) {
		if (device_owns_gid(&d->dev, gid))
			return &d->dev;
	}
	return NULL;
}

/* @return the device of this name, or NULL. Control thread. */
struct host_device *host_device_by_name(const struct host *host, const char *name);

/*
 * Makes a device and puts it into the list, without sockets. The shared page must be there.
 * Complains as config_fail() does. Control thread, or before there are others.
 * @return 0 or a negative errno
 */
int host_add_device(struct host *host, const struct device_config *cfg, struct host_device **out);

/* Takes a device out of the list. It stays in place until host_free_device(). */
void host_unlist_device(struct host *host, struct host_device *d);

/* No client has the device, and it is not listed. */
void host_free_device(struct host *host, struct host_device *d);

/* @return whether a device of this daemon has the GID */
static inline bool host_owns_gid(const struct host *host, const uint8_t gid[16])
{
	return host_find_device(host, gid) != NULL;
}

#endif
