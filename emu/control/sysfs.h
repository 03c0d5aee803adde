/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The sysfs tree: what Linux shows of an RDMA device below /sys/class/infiniband, as a directory
 * tree of files beside the daemon's socket. The preload library turns the one into the other.
 */
#ifndef VERNIC_SYSFS_H
#define VERNIC_SYSFS_H

#include <limits.h>

#include "../host.h"

struct sysfs {
	const struct host *host;
	int dir;	     /* the tree's top; -1: there is no tree */
	char path[PATH_MAX]; /* of it */
};

/*
 * Makes the tree of a host's devices at SOCKET.sysfs, in place of one that a killed daemon left.
 * Without it the daemon is of use all the same: failure is logged as a warning.
 */
void sysfs_create(struct sysfs *s, const struct host *host, const char *socket);

/* Removes the tree, unless it is not ours any more. */
void sysfs_destroy(struct sysfs *s);

/* Devices come and go, ports go up and down, GIDs change: the tree follows, or it is logged. */
void sysfs_add_device(const struct sysfs *s, const struct device *dev);
void sysfs_remove_device(const struct sysfs *s, const struct device *dev);
void sysfs_update_port(const struct sysfs *s, const struct device *dev);
void sysfs_update_gid(const struct sysfs *s, const struct device *dev, unsigned int index);

/*
 * Brings a counter's file up to date.
 * @path: below class/infiniband, "DEVICE/ports/1/[hw_]counters/NAME"
 * @return 0, -ENOENT: no such counter; or another negative errno
 */
int sysfs_update(const struct sysfs *s, const char *path);

#endif
