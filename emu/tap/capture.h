/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Capture: copies of packets, whole, for `vernic capture`.
 *
 * Theory of operation
 * -------------------
 * The program that captures gets one ring per worker in shared memory, which that worker fills and
 * the program drains into a pcapng file; the daemon opens and writes no file. A record is reserved
 * where the packet passes and becomes valid when a dma operation has brought its payload, so
 * records are in the order of the packets and of what was in memory then. A ring that is full
 * loses packets and counts them.
 *
 * Packets are shown as on Ethernet: headers are made for those of the local port too, and what is
 * not known of a packet received by a UDP socket (identification, hop limit) is filled in so that
 * its ICRC is right.
 */
#ifndef VERNIC_CAPTURE_H
#define VERNIC_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "../transport/engine.h"

enum capture_direction {
	CAPTURE_TX, /* leaves dev; within the daemon it is not shown again when it arrives */
	CAPTURE_RX,
};

/* The captures of one worker; a worker has one always. */
struct capture_set;

/* @return whether anybody captures: look before anything else is done for it */
bool capture_active(const struct capture_set *c);

/*
 * Shows a train, packet by packet.
 * @dev, @qpn: the QP at this side
 * @comment: what a fault did to it, a line; NULL: none
 */
void capture_train(struct capture_set *c, const struct device *dev, uint32_t qpn,
		   enum capture_direction direction, const struct train *t, const char *comment);

#endif
