/* SPDX-License-Identifier: BSD-2-Clause */
/* The emulated devices of a daemon: attributes, GID tables, addresses. */
#ifndef VERNIC_DEVICE_H
#define VERNIC_DEVICE_H

#include <netinet/in.h>

#include "config.h"
#include "object.h"

/* A device and what the host knows about it. The counts are the control thread's. */
struct host_device {
	struct device dev;
	bool udp;     /* has addresses of its own */
	bool removed; /* and only kept for its clients */
	enum config_profile profile;
	struct vernic_device_word *word; /* shared with clients */
	uint32_t clients;		 /* that have it open */
	bool bound[VERNIC_GID_MAX];	 /* GIDs that want a UDP socket */
	uint32_t pds;
	uint32_t mrs;
	uint32_t mws;
	uint32_t dm; /* bytes of device memory in use */
	uint32_t cqs;
	uint32_t srqs;
	uint32_t qps;
	uint32_t groups; /* multicast; of private devices struct mcast_table counts them */
};

/*
 * Makes a device as configured. Complains as config_fail() does.
 * @index: its place in the daemon's list
 * @others: CONFIG_MAX_DEVICES of them, NULL: none
 * @return 0 or a negative errno
 */
int device_create(const struct device_config *cfg, struct host_device *const *others,
		  unsigned int index, struct host_device **out);
void device_destroy(struct host_device *d);

/*
 * Adds an address to the GID table, as device_create() would have; its sockets are the caller's
 * business. Complains as config_fail() does.
 * @text: the address
 * @index: out: the entry
 * @return 0 or a negative errno
 */
int device_add_address(struct host_device *d, const char *text, struct host_device *const *others,
		       unsigned int *index);

/* @return the entry of the GID table that has an address, or a negative errno, complained */
int device_find_address(struct host_device *d, const char *text);

/* Empties an entry of the GID table. Control thread. */
void device_remove_gid(struct host_device *d, unsigned int index);

/* The port goes up or down. */
void device_set_port(struct host_device *d, bool up);

/* @return "active", "down" or "failed" */
const char *device_state(const struct host_device *d);

/* @return whether it has raised IBV_EVENT_DEVICE_FATAL */
static inline bool device_has_failed(const struct host_device *d)
{
	return vernic_load_relaxed(&d->word->failed) != 0;
}

/* @return whether the GID is in the device's table */
bool device_owns_gid(const struct device *dev, const uint8_t gid[16]);

/* Writes a GID as an address: dotted IPv4 or IPv6. @return buf */
const char *device_format_gid(const uint8_t gid[16], char buf[INET6_ADDRSTRLEN]);

#endif
