/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Congestion control: how much may be under way into one socket, and whose turn it is.
 *
 * Theory of operation
 * -------------------
 * What overflows is the receive buffer of a UDP socket, and all QPs of an address share it. So the
 * unit is not the QP but the socket: a budget. It has a window, bytes under way, that is cut when
 * packets are lost or marked (at most once a round trip) and grows by a step for each window
 * acknowledged; and a queue of the QPs that want to send and may not, which get turns of equal
 * size. Sharing is then a matter of taking turns, not of windows that compete.
 *
 * A QP uses two budgets: that of its peer's socket for what it sends, and that of its own socket
 * for the READ responses it asks for, whichever peer they come from. What it has under way follows
 * from its PSNs, so nothing is counted twice or forgotten when sending goes back. UC, which nobody
 * tells of what arrived, empties a leaky bucket into the budget instead.
 *
 * Bytes of a budget are half of what the kernel charges a socket's buffer with: the bytes of
 * packets that travel as a train, and something on top for a packet that travels alone.
 *
 * Local paths have no budget. Everything here belongs to one worker.
 */
#ifndef VERNIC_TRANSPORT_CONGESTION_H
#define VERNIC_TRANSPORT_CONGESTION_H

#include "engine.h"

enum {
	BUDGET_OUT, /* into the peer's socket */
	BUDGET_IN,  /* READ responses, into our own */
	BUDGETS
};

struct budget {
	struct cds_list_head node; /* engine.budgets */
	struct engine *engine;
	uint8_t from[16], to[16]; /* GIDs; from all 0: from any peer */
	uint32_t users;		  /* QPs */
	uint32_t max;		  /* bytes: what the socket's buffer is good for */
	uint32_t burst;		  /* bytes UC may send at once */
	uint32_t window;	  /* bytes that may be under way */
	uint32_t used;		  /* bytes under way or granted */
	uint32_t peak;		  /* bytes: the most that was used since the last cut */
	uint64_t last_cut;	  /* ns */
	uint64_t paced_until;	  /* ns, UC: when its bucket is empty */
	struct timer timer;	  /* UC: a turn is possible then */
	struct cds_list_head waiting;
	uint32_t waiting_count;
};

/* What a QP has of its budgets. */
struct congestion {
	struct budget *budget[BUDGETS]; /* NULL: no limit */
	uint32_t charged[BUDGETS];	/* bytes of budget.used */
	uint32_t grant;			/* bytes of its turn that are left */
	uint8_t grant_of;		/* BUDGET_OUT or BUDGET_IN */
	bool waits;			/* on a budget's waiting */
	uint8_t waits_for;		/* BUDGET_OUT or BUDGET_IN */
	uint32_t need;			/* bytes: with less it cannot do anything */
	struct cds_list_head node;	/* budget.waiting */
	bool silent;			/* no answers: what it sends counts for nothing */
	uint64_t rtt;			/* ns, smoothed; 0: not known */
	uint64_t rtt_begin; /* ns: when what ends at rtt_psn was sent; 0: not measured */
	uint32_t rtt_psn;
	uint64_t cnp_sent; /* ns */
};

struct qp;

/* What one packet of a message costs, bytes of a budget. @length: of the message */
uint32_t congestion_unit(uint32_t length, uint32_t mtu);

/* The QP has got its path: finds its budgets. Without memory for one it has no limit. */
void congestion_attach(struct qp *qp);
/* The QP sends no more: gives back all it has, its turn too. */
void congestion_detach(struct qp *qp);

/*
 * Bytes the QP may send now. If they are fewer than it needs it is queued, and scheduled when its
 * turn has come.
 * @which: BUDGET_OUT or BUDGET_IN
 * @need: bytes, not 0
 * @return 0, or need .. UINT32_MAX
 */
uint32_t congestion_room(struct qp *qp, unsigned int which, uint32_t need);
/* The QP sends bytes against a budget; its PSNs have moved. @again: not for the first time */
void congestion_sent(struct qp *qp, unsigned int which, uint32_t bytes, bool again);
/* The QP has no more to send for now: the rest of its turn is for others. */
void congestion_end_turn(struct qp *qp);
/* What the QP has under way has changed. */
void congestion_update(struct qp *qp);

/* More is acknowledged: una_psn has moved. */
void congestion_acknowledged(struct qp *qp);
/* What the QP had under way was lost, in part. @which: where */
void congestion_lost(struct qp *qp, unsigned int which);
/* A train arrived that met congestion (RFC 3168), or meets it here: tells the peer. */
void congestion_marked(struct qp *qp, const struct train *t);
/* The peer sent a CNP. */
void congestion_notified(struct qp *qp);

#endif
