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
	bool udp;		    /* has addresses of its own */
	bool bound[VERNIC_GID_MAX]; /* GIDs that want a UDP socket */
	uint32_t pds;
	uint32_t mrs;
	uint32_t mws;
	uint32_t dm; /* bytes of device memory in use */
	uint32_t cqs;
	uint32_t srqs;
	uint32_t qps;
};

/*
 * Makes a device as configured. Prints one line with the cause when it fails.
 * @index: its place in the daemon's list
 * @others: the devices made so far, index of them
 * @return 0 or a negative errno
 */
int device_create(const struct device_config *cfg, struct host_device *const *others,
		  unsigned int index, struct host_device **out);
void device_destroy(struct host_device *d);

/* @return whether the GID is in the device's table */
bool device_owns_gid(const struct device *dev, const uint8_t gid[16]);

/* Writes a GID as an address: dotted IPv4 or IPv6. @return buf */
const char *device_format_gid(const uint8_t gid[16], char buf[INET6_ADDRSTRLEN]);

#endif
