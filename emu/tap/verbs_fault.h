/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Faults of work requests, answers and completions: what engine_ops asks about, answered from one
 * worker's rules; and what these faults hold back. Pure: it runs on the engine's clock and timers.
 *
 * Theory of operation
 * -------------------
 * engine.faults points here while a rule may strike or something is held back; without it the
 * engine asks nobody.
 *
 * Most answers are a look at the rules. Two faults hold something back, for each QP in a queue of
 * its own (struct qp_hold), so that its order is kept:
 *
 *	cqe-delay	CQEs wait for their time, and those behind them for theirs. A QP that is
 *			reset or destroyed publishes what it has at once: its client's library
 *			then takes it out of the CQ like every other CQE of the QP.
 *	weak		A train that would be accepted is gathered into memory, and all of its
 *			payload but the beginning is placed. After its time it is delivered to the
 *			responder as if it came then, and the trains behind it.
 *
 * cqe-arm is the client's to do: a CQE made while nobody has armed its CQ is published at once, but
 * says that it is not to be seen before the CQ is armed (struct vernic_cqe, hidden). The library
 * counts it as seen when arming, and shows it from then on. So a program that polls again after
 * ibv_req_notify_cq() finds it, and one that does not waits for an event that never comes.
 */
#ifndef VERNIC_VERBS_FAULT_H
#define VERNIC_VERBS_FAULT_H

#include "../transport/engine.h"
#include "fault.h"

/* Actions that are asked about here. */
#define FAULT_VERBS_ACTIONS                                                      \
	(FAULT_BIT(FAULT_RNR) | FAULT_BIT(FAULT_NAK) | FAULT_BIT(FAULT_STATUS) | \
	 FAULT_BIT(FAULT_CQE_DELAY) | FAULT_BIT(FAULT_CQE_ARM) |                 \
	 FAULT_BIT(FAULT_CQE_RUBBISH) | FAULT_BIT(FAULT_WEAK))

struct verbs_faults {
	struct engine *engine;
	struct fault_set *rules;
	struct timer timer;	    /* the engine's; armed for what is due first */
	struct cds_list_head holds; /* struct qp_hold, of QPs that have something held back */
	uint64_t bytes;		    /* of trains held */
	bool hasty;		    /* what is held goes at once */
};

/* The rules stay the caller's. */
void verbs_faults_init(struct verbs_faults *v, struct engine *e, struct fault_set *rules);
/* The engine has no QPs any more. */
void verbs_faults_fini(struct verbs_faults *v);

/*
 * The rules were changed.
 * @removed: some are gone: what is held goes in the engine's next round
 */
void verbs_faults_changed(struct verbs_faults *v, bool removed);

/* For engine_ops; see there. */
bool verbs_fault_rx(struct engine *e, struct qp *qp, const struct train *t);
uint32_t verbs_fault_request(struct engine *e, struct qp *qp, const struct train *t,
			     uint8_t *syndrome);
enum ibv_wc_status verbs_fault_send(struct engine *e, struct qp *qp, uint8_t kind);
enum ibv_wc_status verbs_fault_recv(struct engine *e, struct qp *qp);
bool verbs_fault_cqe(struct engine *e, struct qp *qp, struct cq *cq, struct vernic_cqe *cqe,
		     bool solicited);
void verbs_fault_release(struct engine *e, struct qp *qp);

#endif
