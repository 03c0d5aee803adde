/* SPDX-License-Identifier: BSD-2-Clause */
/* What the parts of the transport call of each other. */
#ifndef VERNIC_TRANSPORT_INTERNAL_H
#define VERNIC_TRANSPORT_INTERNAL_H

#include <errno.h>
#include <string.h>

#include "qp.h"

/* Deliberate defects, which the simulator of the tests compiles in: it must find each of them. */
#ifdef TRANSPORT_MUTATIONS
#include "mutations.h"
#else
#define MUTATION(name) false
#endif

/* One round of a QP's requester, and of its responder, sends at most this before others' turn. */
#define RUN_BYTES (512u << 10)
#define RUN_TRAINS 128u

/* ---- engine.c ---- */

/* Puts the QP on the run queue. */
void engine_schedule(struct engine *e, struct qp *qp);
/* Takes the QP off all of the engine's lists. */
void engine_unlink(struct engine *e, struct qp *qp);
/* Adds and removes a QP; adding gives it its QPN. @return 0 or -ENOMEM */
int engine_add_qp(struct engine *e, struct qp *qp);
void engine_remove_qp(struct engine *e, struct qp *qp);
/* The WQE at an SQ index is placed when what other workers have looked up is out of use. */
void engine_settle(struct engine *e, struct qp *qp, uint32_t index);
/* Counts a train of the QP and hands it to ops->tx(). */
void engine_tx(struct qp *qp, const struct train *t);

/* ---- qp.c ---- */

/* Publishes a CQE of the QP; an overrun ends the QP. */
void qp_complete(struct qp *qp, struct cq *cq, struct vernic_cqe *cqe, bool solicited);
/*
 * Moves the QP to ERR and flushes both queues, behind all dma submitted so far.
 * @event: what to report, or -1
 */
void qp_error(struct qp *qp, int event);
/* UC, UD: moves the QP to SQE and flushes its SQ. */
void qp_sq_error(struct qp *qp);
/* Flushes what was posted on a QP in ERR or SQE. */
void qp_flush(struct qp *qp);
/* A header for a CQE of the QP: everything not named is 0. */
void qp_fill_cqe(struct qp *qp, struct vernic_cqe *cqe);
/* A train of the QP on its connection: everything not named is 0. */
void qp_fill_train(struct qp *qp, struct train *t, unsigned int kind);
unsigned int qp_service(const struct qp *qp);

/* @return whether requests of a kind are atomics */
static inline bool kind_is_atomic(unsigned int kind)
{
	return kind == KIND_COMPARE_SWAP || kind == KIND_FETCH_ADD;
}

/* @return whether requests of a kind are answered with data */
static inline bool kind_returns_data(unsigned int kind)
{
	return kind == KIND_READ_REQUEST || kind_is_atomic(kind);
}

/* @return whether a WQE sends nothing: such have no kind and no PSNs */
static inline bool entry_is_local(const struct send_entry *entry)
{
	return entry->kind == KIND_NONE;
}

/*
 * @return whether each request of a kind has an answer of its own, not an ACK for many. That of a
 * FLUSH or ATOMIC WRITE is a READ response without data (IBTA A19).
 */
static inline bool kind_has_response(unsigned int kind)
{
	return kind_returns_data(kind) || kind == KIND_FLUSH || kind == KIND_ATOMIC_WRITE;
}

/* @return whether trains of a kind are a requester's */
static inline bool kind_is_request(unsigned int kind)
{
	return kind == KIND_SEND || kind == KIND_WRITE || kind_has_response(kind);
}

/* @return whether the QP is the responding half of a XRC connection */
static inline bool qp_is_xrc_target(const struct qp *qp)
{
	return qp->xrc_target;
}

/* @return whether the QP's service acknowledges: RC, or either half of XRC */
static inline bool qp_is_reliable(const struct qp *qp)
{
	return qp->reliable;
}

/* @return whether the QP's state lets requests in */
static inline bool qp_receives(const struct qp *qp)
{
	return qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD ||
	       qp->state == IBV_QPS_SQE;
}

/* @return whether the QP's state has it send requests, or wait for their answers */
static inline bool qp_sends(const struct qp *qp)
{
	return qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD;
}

/* ---- qp_state.c ---- */

/*
 * Programs give both halves of a XRC connection the attributes of RC, and get away with it on
 * hardware (ib_uverbs of Linux drops them).
 * @return mask without what the other half has
 */
int qp_state_mask(const struct qp *qp, int mask);

/*
 * Checks a modify call against the tables and the device.
 * @return 0 or -EINVAL
 */
int qp_state_check(const struct qp *qp, const struct ibv_qp_attr *attr, int attr_mask,
		   enum ibv_qp_state *next);

/* ---- requester.c ---- */

void requester_reset(struct qp *qp);
void requester_start(struct qp *qp);
/* Sends what may be sent. @return true if there is more to send now */
bool requester_run(struct qp *qp);
void requester_timer(struct timer *t, uint64_t now);
/* In SQD: tells the client, if it asked, when everything begun has completed. */
void requester_check_drained(struct qp *qp);
/* Goes back (or forward) to psn: sending goes on there. */
void requester_seek(struct qp *qp, uint32_t psn);
/* The entry that psn belongs to, between una and begun, or NULL. *index: its SQ index. */
struct send_entry *requester_entry(struct qp *qp, uint32_t psn, uint32_t *index);
/* Progress: PSNs before psn are acknowledged. */
void requester_progress(struct qp *qp, uint32_t psn);
/* Completes what is acknowledged and in place. */
void requester_advance(struct qp *qp);
/* The WQE at una fails with status; the QP (or its SQ) with it. */
void requester_fail(struct qp *qp, enum ibv_wc_status status);
/* Completes the WQE at una. cqe: filled in but for what is known here, or NULL */
void requester_complete(struct qp *qp, struct vernic_cqe *cqe);
/* Copies the SGEs of a WQE and resolves [offset, offset + len) of them.
 * @return 0 or a negative errno: LOC_PROT_ERR */
int requester_resolve(struct qp *qp, uint32_t index, uint32_t offset, uint32_t len, uint32_t access,
		      struct dma_list *list);
/* Completes WQEs through a dma operation, in order with the bytes of UC and UD sends. */
void requester_complete_later(struct qp *qp, uint32_t index);
/* @return whether a WQE was posted that is not begun; if what was posted is nonsense, the QP ends */
bool requester_posted(struct qp *qp);
/* Begins the next WQE: copies and checks it. @return its entry */
struct send_entry *requester_begin(struct qp *qp, struct vernic_send_wqe *wqe);
/* The payload of [offset, offset + len) of the WQE. @return 0 or a negative errno */
int requester_payload(struct qp *qp, uint32_t index, const struct send_entry *entry,
		      uint32_t offset, uint32_t len, struct dma_list *list);

/*
 * Carries out a request that sends nothing: LOCAL_INV or BIND_MW, checked, of RC or UC. It is
 * placed when everything before it is in place.
 * @return the local error it has, or IBV_WC_SUCCESS
 */
enum ibv_wc_status requester_local(struct qp *qp, uint32_t index,
				   const struct vernic_send_wqe *wqe);

/* The local requests among the WQEs from SQ index first to last are placed. */
void requester_local_done(struct qp *qp, uint32_t first, uint32_t last);

/* ---- completer.c ---- */

void completer_rx(struct qp *qp, struct train *t);

/* ---- responder.c ---- */

void responder_reset(struct qp *qp);
void responder_start(struct qp *qp);
void responder_rx(struct qp *qp, struct train *t);
/* Sends READ responses. @return true if there is more to send now */
bool responder_run(struct qp *qp);
/* @return whether what is owed may wait for something else to be sent: an ACK of one packet */
bool responder_may_hold(const struct qp *qp);
/* Sends the ACK or NAK owed. */
void responder_acknowledge(struct qp *qp);
/* Completes (flushed) the receives posted. */
void responder_flush(struct qp *qp);
/* Takes a receive WQE of the RQ or SRQ. @return whether there was one */
bool responder_take_wqe(struct qp *qp);
/* XRC target: the receive taken, if any, is its SRQ's again; its client hears of it by a CQE. */
void responder_return_wqe(struct qp *qp);
/*
 * Resolves [offset, offset + len) of the receive's SGEs.
 * @return 0, -EMSGSIZE (the SGEs are shorter), or another negative errno: LOC_PROT_ERR
 */
int responder_resolve(struct qp *qp, uint32_t offset, uint32_t len, struct dma_list *list);
/* Begins the CQE of the receive taken. */
void responder_fill_cqe(struct qp *qp, struct vernic_cqe *cqe);

/* ---- ud.c ---- */

bool ud_run(struct qp *qp);
void ud_rx(struct qp *qp, struct train *t);

/* ---- srq.c ---- */

/* Takes a WQE. @return whether there was one */
bool srq_take(struct engine *e, struct srq *srq, struct recv_wqe *wqe);

/* ---- shared ---- */

/*
 * Resolves [offset, offset + len) of an SGE list that was copied from shared memory.
 * @return 0, -EMSGSIZE (the list is shorter), or a negative errno of mr_resolve()
 */
int sge_resolve(struct dma *dma, const struct pd *pd, const struct vernic_sge *sge, uint32_t count,
		uint32_t offset, uint32_t len, uint32_t access, struct dma_list *list);

/* @return whether all bytes of such a list may be read */
bool sge_readable(const struct pd *pd, const struct vernic_sge *sge, uint32_t count);

/*
 * Copies out of shared memory, for checks on the copy: the fence keeps the compiler from looking
 * at the original again, which the client may have changed.
 */
static inline void copy_out(void *dst, const void *src, size_t len)
{
	memcpy(dst, src, len);
	atomic_signal_fence(memory_order_seq_cst);
}

/* Whether all bytes of a list are the daemon's own: they can be copied without dma. */
static inline bool list_is_local(const struct dma_list *list)
{
	for (uint32_t i = 0; i < list->count; i++)
		if (list->seg[i].mm)
			return false;
	return true;
}

/* Whether bytes of a list are a client's that are mapped here. */
static inline bool list_is_mapped(const struct dma_list *list)
{
	for (uint32_t i = 0; i < list->count; i++)
		if (list->seg[i].mapped)
			return true;
	return false;
}

/* Whether all of a list's MRs are ones that the client's library can place bytes in. */
static inline bool list_is_placeable(const struct dma_list *list)
{
	for (uint32_t i = 0; i < list->count; i++)
		if (list->seg[i].daemon_only)
			return false;
	return true;
}

/* Copies a list that is local. */
static inline void list_copy(uint8_t *dst, const struct dma_list *list)
{
	for (uint32_t i = 0; i < list->count; i++) {
		memcpy(dst, (const void *)(uintptr_t)list->seg[i].addr, list->seg[i].len);
		dst += list->seg[i].len;
	}
}

#endif
