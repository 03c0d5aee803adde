/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Multicast groups: which QPs are attached to which.
 *
 * Theory of operation
 * -------------------
 * A table by device and GID; the private devices of a daemon are one network, and share their
 * groups (device NULL). The control thread attaches and detaches, workers look groups up under RCU.
 */
#ifndef VERNIC_MCAST_H
#define VERNIC_MCAST_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <urcu/rculist.h>

#include "object.h"

#define MCAST_BUCKETS 256

struct mcast_member {
	struct cds_list_head node;
	const struct device *dev;
	uint32_t qpn;
};

struct mcast_group {
	struct cds_list_head node;
	const struct device *dev; /* NULL: of the private devices */
	uint8_t gid[16];
	struct cds_list_head members; /* struct mcast_member, at least one */
	uint32_t count;		      /* of them; control thread */
};

struct mcast_table {
	struct cds_list_head bucket[MCAST_BUCKETS];
	uint32_t attached; /* QPs, in all groups; control thread */
	uint32_t shared;   /* groups of the private devices; control thread */
};

void mcast_init(struct mcast_table *t);

/* @return whether a GID is that of a group: ff00::/8, or an IPv4 one of 224.0.0.0/4 */
static inline bool gid_is_multicast(const uint8_t gid[16])
{
	static const uint8_t ipv4[12] = {[10] = 0xff, [11] = 0xff};

	return gid[0] == 0xff || (memcmp(gid, ipv4, sizeof(ipv4)) == 0 && (gid[12] & 0xf0) == 0xe0);
}

/*
 * @dev: the device, NULL for the private ones
 * @return the group, or NULL; a worker may use it until its round is over
 */
struct mcast_group *mcast_find(const struct mcast_table *t, const struct device *dev,
			       const uint8_t gid[16]);

/* @return the member, or NULL */
struct mcast_member *mcast_find_member(const struct mcast_group *g, uint32_t qpn);

/*
 * Attaches a QP that is not attached. Control thread.
 * @group: out
 * @return 0 or -ENOMEM
 */
int mcast_attach(struct mcast_table *t, const struct device *dev, const uint8_t gid[16],
		 const struct device *member_dev, uint32_t qpn, struct mcast_group **group);

/* Detaches a QP, and frees the group if that was the last one. Control thread. */
void mcast_detach(struct mcast_table *t, struct mcast_group *g, struct mcast_member *member);

#endif
