/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Capture: copies of packets, whole, for `vernic capture`.
 *
 * Theory of operation
 * -------------------
 * The program that captures gets one ring per worker in shared memory (include/vernic/capture.h),
 * which that worker fills and the program drains into a pcapng file; the daemon opens and writes no
 * file. A record is reserved where the packet passes and becomes visible when a dma operation has
 * brought its payload, so records are in the order of the packets and of what was in memory then. A
 * ring that is full loses packets and counts them.
 *
 * Packets are shown as on Ethernet: headers are made for those of the local port too, and what is
 * not known of a packet received by a UDP socket (hop limit, MAC addresses) is made up. Its ICRC is
 * the one it came with, and right all the same: the identification it covers is found from it.
 *
 * A packet of the local port is shown once to each capture: where it leaves, if that end fits the
 * capture's filters, else where it arrives. train.captured, which travels with it, says which
 * captures have it.
 */
#ifndef VERNIC_CAPTURE_H
#define VERNIC_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

#include <vernic/capture.h>

#include "../port/packet.h"
#include "../transport/engine.h"
#include "../wire/frame.h"

#define CAPTURE_MAX 4 /* at once */

enum capture_direction {
	CAPTURE_TX, /* leaves dev; within the daemon it is not shown again when it arrives */
	CAPTURE_RX,
};

/* What a capture wants, and where to. */
struct capture_params {
	struct vernic_capture_ring *ring;
	size_t ring_size;	  /* bytes, a power of two */
	const struct device *dev; /* NULL: all */
	uint32_t qpn;		  /* 0: all */
	uint32_t snaplen;	  /* bytes */
};

/* One capture at one worker. */
struct capture {
	struct capture_params p;
	uint64_t head; /* end of what is reserved: as prod */
	uint64_t cons; /* as it was last read */
	uint64_t lost[VERNIC_CAPTURE_DEVICES];
};

/* The captures of one worker; a worker has one always. */
struct capture_set {
	uint32_t active; /* bit i: capture[i] is in use */
	uint32_t worker;
	struct dma *dma; /* the worker's */
	struct capture capture[CAPTURE_MAX];
};

/* @return whether anybody captures: look before anything else is done for it */
static inline bool capture_active(const struct capture_set *c)
{
	return c->active != 0;
}

/* Starts and ends capture number id, 0 .. CAPTURE_MAX - 1; with no dma pending. */
void capture_start(struct capture_set *c, uint32_t id, const struct capture_params *params);
void capture_stop(struct capture_set *c, uint32_t id);

/* A device is going: captures of it have nothing more to show. */
void capture_forget_device(struct capture_set *c, const struct device *dev);

/*
 * Shows a train, packet by packet. Without a comment, to those only that have not seen it.
 * @dev, @qpn: the QP at this side; NULL: there is none, and nothing is shown
 * @comment: what a fault did to it, a line; NULL: none
 * @return train.captured for its further way
 */
uint32_t capture_train(struct capture_set *c, const struct device *dev, uint32_t qpn,
		       enum capture_direction direction, const struct train *t,
		       const char *comment);

/* As capture_train(), CAPTURE_TX, of a train a port has taken. @fate: of its packets */
uint32_t capture_sent(struct capture_set *c, const struct device *dev, uint32_t qpn,
		      const struct train *t, const struct packet_fate *fate, const char *comment);

/*
 * Shows a packet as it was received.
 * @qpn: to which QP of dev
 * @f: what is around it
 * @data, @len: from the BTH to the ICRC inclusive; stays in place until dma_flush() has returned
 */
void capture_received(struct capture_set *c, const struct device *dev, uint32_t qpn,
		      const struct frame *f, const uint8_t *data, uint32_t len,
		      const char *comment);

#endif
