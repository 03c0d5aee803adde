/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Pacing: what a QP sends keeps to a rate its program has set (ibv_modify_qp_rate_limit(3)).
 *
 * Theory of operation
 * -------------------
 * A leaky bucket, kept as the time at which all that was sent will be paid for: it may be ahead of
 * now by as much as a burst takes. Requests wait for it, again and again those that are sent again;
 * answers (ACKs, READ responses) neither wait nor are paid for, for it is the peer that asks for
 * them. Octets are those of the counters, a packet from its BTH to its ICRC.
 *
 * A QP without a limit has no pacer.
 */
#ifndef VERNIC_TRANSPORT_PACING_H
#define VERNIC_TRANSPORT_PACING_H

#include "../timer.h"

struct qp;

/* The bucket of a QP. */
struct pacer {
	struct qp *qp;
	uint32_t rate;	/* kbit/s, not 0 */
	uint32_t burst; /* octets that may leave at once: a packet of the path MTU or more */
	uint64_t paid;	/* ns: when what was sent is paid for */
	struct timer timer;
};

/*
 * Limits what a QP sends, from now on; the path MTU is known. Owner's thread.
 * @rate: kbit/s up to VERNIC_MAX_RATE; 0: no limit any more
 * @burst: octets that may leave at once, a packet at least; 0: what suits the rate
 * @return 0, or -ENOMEM with nothing changed
 */
int pacer_set(struct qp *qp, uint32_t rate, uint32_t burst);

/*
 * For a QP that has a pacer.
 * @return packets of any size that may leave now; 0: none, the QP is scheduled when some may
 */
uint32_t pacer_room(struct qp *qp);

/* A train of requests leaves, of so many octets. */
void pacer_sent(struct pacer *p, uint64_t now, uint64_t octets);

#endif
