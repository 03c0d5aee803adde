/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The packet tap of one worker: carries out the fault rules that are about packets.
 *
 * Theory of operation
 * -------------------
 * Every train passes on its way out (FAULT_TX) and on its way in (FAULT_RX), whichever port it
 * uses. Each of its packets is asked about; neighbours that meet the same fate stay one train, so
 * what no rule strikes leaves as it came, cut at the struck packets only.
 *
 * Packets that are late are held: their payload is gathered by a dma operation into a buffer that
 * goes along. They are let go by the clock (tap_run()), or behind the later packets of their flow
 * that they were put behind. A flow is what one QP sends, or receives. Behind a packet of it that
 * is held in order (delay without jitter, rate) the flow's later packets wait, struck or not.
 * A packet put behind others goes after TAP_LATE at the latest: the last of a flow is not lost.
 *
 * What is held is the worker's, not the QP's: it outlives its QP as a packet on a wire does.
 */
#ifndef VERNIC_TAP_H
#define VERNIC_TAP_H

#include "../timer.h"
#include "../transport/engine.h"
#include "fault.h"

#define TAP_LATE 10000000u	  /* ns */
#define TAP_HELD_MAX (128u << 20) /* bytes; packets beyond are lost */
#define TAP_RATE_QUEUE 100000000u /* ns of waiting for a rate; packets beyond are lost */
#define TAP_FLOW_BUCKETS 256

/* The host's side. */
struct tap_ops {
	/*
	 * Hands a train to its port; as engine_ops.tx.
	 * @dev, @qpn: the QP that sends it
	 * @note: what a fault did to it, or NULL
	 */
	void (*send)(void *host, const struct device *dev, uint32_t qpn, const struct train *t,
		     const char *note);
	/* Hands a train to the engine; as engine_rx(). */
	void (*receive)(void *host, const struct train *t);
	/*
	 * For who captures: says what a fault does to a train that does not leave for it (TX), or
	 * that has just arrived (RX).
	 * @dev, @qpn: the QP at this side; NULL: there is none
	 */
	void (*note)(void *host, enum fault_point point, const struct device *dev, uint32_t qpn,
		     const struct train *t, const char *note);
	/* @return whether the port takes a train now */
	bool (*ready)(void *host, const struct path *path);
};

struct tap_counters {
	uint64_t bad_icrc;  /* packets dropped for their ICRC, where no port has looked at it */
	uint64_t malformed; /* packets dropped because a header was changed into nonsense */
	uint64_t lost;	    /* packets that could not be held: too many bytes, or no memory */
};

struct tap {
	bool active; /* it has something to do: else trains need not come here */
	bool hasty;  /* what is held goes at once */
	const struct tap_ops *ops;
	void *host;
	struct engine *engine;
	struct fault_set *faults; /* the worker's; tap_changed() after a change */
	struct timer_heap held;	  /* by when it goes; its timers have no function */
	size_t held_bytes;
	struct cds_list_head spent; /* let go this round */
	struct flow *flows[TAP_FLOW_BUCKETS];
	struct tap_counters counters;
};

/* @engine, @faults: stay the caller's */
void tap_init(struct tap *tap, const struct tap_ops *ops, void *host, struct engine *engine,
	      struct fault_set *faults);
/* With no dma queued. */
void tap_fini(struct tap *tap);

/*
 * The rules were changed.
 * @removed: some are gone: what is held is let go by the next tap_run()
 */
void tap_changed(struct tap *tap, bool removed);

/* A device is going, its QPs are gone: drops what is held of them. With no dma queued. */
void tap_forget_device(struct tap *tap, const struct device *dev);

/* A train leaves a QP; as engine_ops.tx. */
void tap_tx(struct tap *tap, const struct device *dev, uint32_t qpn, const struct train *t);

/* A train arrived; as engine_rx(). */
void tap_rx(struct tap *tap, const struct train *t);

/* Lets go what is due at engine.now. Before engine_run(). @return whether there was anything */
bool tap_run(struct tap *tap);

/* Frees what was let go; after engine_run(). */
void tap_release(struct tap *tap);

/* @return when tap_run() is due: ns, UINT64_MAX: never */
uint64_t tap_deadline(const struct tap *tap);

#endif
