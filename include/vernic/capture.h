/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Captures: the rings through which packets come to the program that asked for them with
 * VERNIC_CMD_CAPTURE.
 *
 * Theory of operation
 * -------------------
 * There is one ring for each worker, in one sealed memfd: worker i's begins at
 * i * (VERNIC_CAPTURE_DATA + ring_size), ring_size being a power of two that the reply has. Each is
 * a struct vernic_capture_ring and, at VERNIC_CAPTURE_DATA, ring_size bytes of records, one behind
 * the other. prod and cons are free-running counts of bytes, a record lies at its count modulo
 * ring_size, never across the end: a record of type VERNIC_CAPTURE_PAD fills up what is left.
 *
 * The worker publishes prod when the bytes of everything before it are in place. The program reads
 * records up to there and then sets cons, which gives the room back. A packet for which there is no
 * room is lost and counted. The worker believes nothing that is written here: all it needs to know
 * but cons it has elsewhere, and a cons that cannot be is a full ring.
 */
#ifndef VERNIC_RING_CAPTURE_H
#define VERNIC_RING_CAPTURE_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <vernic/ring.h>

#define VERNIC_CAPTURE_DATA 4096	/* bytes from a ring's beginning to its records */
#define VERNIC_CAPTURE_ALIGN 32		/* records begin at multiples of it */
#define VERNIC_CAPTURE_DEVICES 64	/* devices of a daemon */
#define VERNIC_CAPTURE_MIN (256u << 10) /* bytes of a ring, at least */
#define VERNIC_CAPTURE_MAX (1ull << 30) /* bytes of the rings of a capture, at most */
#define VERNIC_CAPTURE_SNAPLEN 262144	/* bytes; more than any packet has */

enum vernic_capture_type {
	VERNIC_CAPTURE_PACKET = 1,
	VERNIC_CAPTURE_PAD, /* only type and size have a meaning */
};

enum vernic_capture_flags {
	VERNIC_CAPTURE_INBOUND = 1 << 0, /* device receives it; else it sends it */
	/* The program took away the memory of the payload: what is there instead is random. */
	VERNIC_CAPTURE_UNREADABLE = 1 << 1,
};

/* The packet follows, from its Ethernet header on: captured bytes, then the comment. */
struct vernic_capture_record {
	uint64_t timestamp; /* ns, CLOCK_REALTIME */
	uint32_t size;	    /* bytes to the next record */
	uint32_t length;    /* bytes of the packet on Ethernet, without the frame check sequence */
	uint32_t captured;  /* bytes of it that are here */
	uint32_t qpn;	    /* the QP of the device that sends or receives it; 0: not known */
	uint8_t type;	    /* enum vernic_capture_type */
	uint8_t flags;	    /* enum vernic_capture_flags */
	uint8_t device;	    /* its index, as in struct vernic_device_info */
	uint8_t worker;
	uint16_t comment; /* bytes of text, without a 0 */
	uint16_t reserved;
};
static_assert(sizeof(struct vernic_capture_record) == VERNIC_CAPTURE_ALIGN, "layout");
static_assert(offsetof(struct vernic_capture_record, type) == 24, "layout");

struct vernic_capture_ring {
	_Alignas(VERNIC_CACHELINE) _Atomic uint64_t prod; /* worker */
	_Atomic uint64_t lost[VERNIC_CAPTURE_DEVICES];	  /* worker: packets, by device */
	_Alignas(VERNIC_CACHELINE) _Atomic uint64_t cons; /* program */
};
static_assert(offsetof(struct vernic_capture_ring, cons) % VERNIC_CACHELINE == 0, "layout");
static_assert(sizeof(struct vernic_capture_ring) <= VERNIC_CAPTURE_DATA, "layout");

/* @return the bytes between the rings of two workers */
static inline size_t vernic_capture_stride(size_t ring_size)
{
	return VERNIC_CAPTURE_DATA + ring_size;
}

#endif
