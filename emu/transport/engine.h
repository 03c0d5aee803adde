/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The transport engine: the protocol machine of one worker, and the trains it exchanges with the
 * ports.
 *
 * Theory of operation
 * -------------------
 * An engine owns QPs. It makes no system call and reads no clock: the host (the worker, or the
 * simulator) sets engine->now, rings doorbells, hands in received trains, and takes trains out
 * through engine_ops.tx(). Data flows one way:
 *
 *	doorbell -> run queue -> requester -> tx -> [port] -> engine_rx -> responder -> dma
 *	-> (done) CQE, ACK owed -> tx -> [port] -> engine_rx -> completer -> CQE
 *
 * engine_rx() and the requester never move bytes themselves: they queue dma operations, and what
 * may only be seen after the bytes (a CQE, an ACK) is made from the operation's done().
 * engine_run() does one round: timers, run queue, dma, ACKs owed, until nothing is left to do now
 *or a budget is used up.
 *
 * A train is a run of consecutive packets of one message of one QP. Its payload is a list of
 * segments: in the daemon's memory (a receive buffer, an inline payload) or in a client's.
 */
#ifndef VERNIC_ENGINE_H
#define VERNIC_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include <urcu/list.h>

#include "../dma.h"
#include "../object.h"
#include "../timer.h"
#include "../wire/wire.h"
#include "counters.h"

struct engine;
struct qp;
struct verbs_faults;

/* QPN: worker in bits 0..3, slot in bits 4..19, generation in bits 20..23. */
#define QPN_WORKER(qpn) ((qpn)&0xf)
#define QPN_SLOT(qpn) (((qpn) >> 4) & 0xffff)
#define QPN_MAKE(gen, slot, worker) (((gen)&0xf) << 20 | (slot) << 4 | (worker))
#define ENGINE_MAX_QP 65536
#define ENGINE_MAX_DEVICES VERNIC_MAX_DEVICES
#define QPN_GROUP 0xffffffu /* the destination of what is for the QPs of a multicast group */

/* Which port a path leaves by. */
enum route {
	ROUTE_NONE,  /* unreachable: what is sent is lost */
	ROUTE_LOCAL, /* a device of this daemon */
	ROUTE_UDP,
};

/* Where packets go: the address vector, resolved. */
struct path {
	uint8_t sgid[16];
	uint8_t dgid[16]; /* IPv4 as ::ffff:a.b.c.d */
	uint32_t flow_label;
	uint8_t hop_limit;
	uint8_t traffic_class;
	uint8_t sgid_index;
	/* filled in by engine_ops.route */
	uint8_t route;	    /* enum route */
	uint8_t port_data;  /* the port's own (which of its sockets) */
	uint32_t max_train; /* bytes of payload a train may have, a multiple of every MTU */
	uint32_t window;    /* bytes a QP may have in flight */
	uint32_t budget;    /* bytes all QPs may have in flight to the peer; 0: no limit */
};

struct train {
	const struct path *path; /* as sent; of a received train: as seen by the sender */
	uint32_t src_qpn;	 /* the sending QP; 0 where the packet does not say (RC, UC) */
	uint32_t dst_qpn;
	uint8_t service; /* enum wire_service */
	uint8_t kind;	 /* enum wire_kind */
	bool first;	 /* the first packet begins its message */
	bool last;	 /* the last packet ends it */
	bool imm;	 /* the last packet has an immediate; needs last */
	bool inv;
	bool solicited; /* on the last packet */
	bool ackreq;	/* on the last packet */
	bool group;	/* received: to a multicast group the QP is attached to */
	uint16_t pkey;
	uint32_t psn;	/* of the first packet */
	uint32_t count; /* packets */
	/* Payload bytes of every packet but the last one; of a single packet, its own. */
	uint32_t mtu;
	uint32_t imm_data; /* network order; or the rkey to invalidate */
	struct {
		uint64_t va;
		uint32_t rkey;
		uint32_t length;
	} reth; /* READ request, FLUSH, ATOMIC WRITE; WRITE where first */
	struct {
		uint8_t type;  /* VERNIC_FLUSH_GLOBAL | VERNIC_FLUSH_PERSISTENT */
		uint8_t level; /* VERNIC_FLUSH_RANGE, VERNIC_FLUSH_MR */
	} flush;
	uint32_t xrc_srqn; /* XRC requests: the SRQ of every packet */
	struct {
		uint64_t swap_add;
		uint64_t compare; /* va and rkey are in reth */
	} atomic;
	struct {
		uint8_t syndrome;
		uint32_t msn;
	} aeth; /* ACK, atomic ACK, READ response where first or last */
	uint64_t atomic_orig;
	uint32_t qkey;		 /* UD */
	struct dma_list payload; /* the bytes of all packets, without pad */
	/* Of faults: 0 but for a train they touched. */
	uint32_t icrc_xor; /* a single packet leaves with its ICRC changed by this */
	bool crowded;	   /* received: it waited in a socket buffer that is filling up */
	/* IP ECN field (RFC 3168): as sent; of a received train, as it arrived. */
	uint8_t ecn;
	uint8_t captured; /* bit per capture that has shown it (emu/tap/capture.h) */
};

struct engine_ops {
	/*
	 * Sends a train. The train and its path are the caller's and are gone when tx returns; the
	 * payload's segments live until dma_flush returns, and bytes in a client's memory may only
	 * be read by a dma operation. A port may drop a train.
	 */
	void (*tx)(struct engine *e, struct qp *qp, const struct train *t);
	/* @return whether the port takes more trains now; else the QP is asked again next round. */
	bool (*tx_ready)(struct engine *e, const struct path *path);
	/* Resolves path (dgid, sgid and sgid_index are set). A ROUTE_NONE path is not an error. */
	void (*route)(struct engine *e, const struct device *dev, struct path *path);
	/* Reports an asynchronous event of a QP, CQ or SRQ to its client. */
	void (*qp_event)(struct engine *e, struct qp *qp, enum ibv_event_type type);
	void (*cq_error)(struct engine *e, struct cq *cq);
	void (*srq_limit)(struct engine *e, struct srq *srq);
	/* A completion event is due on the CQ's channel. */
	void (*cq_event)(struct engine *e, struct cq *cq);
	/*
	 * @return the time, ns, this very moment: engine.now is that of the round's beginning, too
	 * early to begin a wait that must not be short. Without it, the two are the same.
	 */
	uint64_t (*time)(struct engine *e);
	/* @return the device that has the GID, or NULL. Without it, what reaches no QP is counted
	 * nowhere. */
	const struct device *(*find_device)(struct engine *e, const uint8_t gid[16]);

	/*
	 * What other workers have looked up they use for the rest of their round: grace_begin()
	 * notes where they are, grace_over() says whether all have gone on since. Without them
	 * there is one worker.
	 */
	void (*grace_begin)(struct engine *e);
	bool (*grace_over)(struct engine *e);

	/* Faults: each is asked where the thing is decided, and only while engine.faults is set. */

	/*
	 * A train for a RC or UC QP's responder arrived.
	 * @return true: taken, engine_deliver() follows
	 */
	bool (*fault_rx)(struct engine *e, struct qp *qp, const struct train *t);
	/*
	 * A train of RC requests, in sequence and well formed, is about to be carried out.
	 * @syndrome: AETH_NAK | code, or AETH_RNR_NAK (the timer is the QP's)
	 * @return packets of it, from the first, that are carried out; if not all, the next one is
	 * answered by syndrome instead
	 */
	uint32_t (*fault_request)(struct engine *e, struct qp *qp, const struct train *t,
				  uint8_t *syndrome);
	/* A send WQE without a local error was begun. @return what it fails with, or SUCCESS */
	enum ibv_wc_status (*fault_send)(struct engine *e, struct qp *qp, uint8_t kind);
	/* A message has taken a receive WQE. @return what that fails with, or SUCCESS */
	enum ibv_wc_status (*fault_recv)(struct engine *e, struct qp *qp);
	/*
	 * A CQE is about to be published; it may be changed.
	 * @return true: taken, qp_publish() follows
	 */
	bool (*fault_cqe)(struct engine *e, struct qp *qp, struct cq *cq, struct vernic_cqe *cqe,
			  bool solicited);
	/* The QP is about to be reset or destroyed: CQEs taken are published, trains dropped. */
	void (*fault_release)(struct engine *e, struct qp *qp);
};

/* What happened, for `vernic status`: sums of what the QPs count. */
struct engine_counters {
	uint64_t tx_packets;
	uint64_t rx_packets;
	uint64_t rx_dropped; /* no such QP, wrong state, wrong type, keys */
	uint64_t duplicates;
	uint64_t out_of_sequence;
	uint64_t rnr_nak_sent;
	uint64_t rnr_nak_received;
	uint64_t seq_nak_received;
	uint64_t timeouts;
	uint64_t retransmits;
	uint64_t completions;
	uint64_t bad_icrc;
	uint64_t malformed;
	uint64_t np_ecn_marked_roce_packets;
	uint64_t np_cnp_sent;
	uint64_t rp_cnp_handled;
};

struct engine {
	const struct engine_ops *ops;
	void *host; /* the host's */
	uint32_t worker;
	uint64_t now; /* ns, monotonic; the host sets it before it calls in */
	struct dma *dma;
	struct verbs_faults *faults; /* the host's; NULL: no faults, it is not asked */
	struct timer_heap timers;    /* see engine_timers() */
	struct cds_list_head run;    /* QPs whose requester or responder has work */
	struct cds_list_head acks;   /* QPs that owe an ACK */
	struct cds_list_head held;   /* and those whose ACK waits for company */
	bool hold; /* the host sets it: there will be a round soon, a lone ACK may wait for it */
	bool sent; /* something left through a socket this round */
	uint32_t core; /* the host sets it: what it runs on, numbered from 1; 0: not known */
	bool awaited;  /* a receive went to a client that waits on this core; the host clears it */
	/* QPs with WQEs that wait until other workers have gone on: since when, or not yet asked */
	struct cds_list_head settling, unsettled;
	struct cq **dirty;	     /* CQs with new CQEs since the last notification */
	uint32_t dirty_count, dirty_capacity;
	struct qp **qps; /* by slot */
	uint8_t *generation;
	uint32_t next_slot;
	uint32_t slot_end; /* slots before it have been used */
	uint32_t qp_count;
	/* By device index: what was counted for no QP, and by QPs that are gone. */
	struct qp_counters *device;
	struct cds_list_head budgets; /* of congestion.h */
	uint32_t budget_count;
	uint32_t cq_timers; /* CQs whose events it may put off */
	uint32_t pacers;    /* QPs with a rate limit */
};

/* @return 0 or -ENOMEM. dma stays the caller's. */
int engine_init(struct engine *e, const struct engine_ops *ops, void *host, uint32_t worker,
		struct dma *dma);
void engine_fini(struct engine *e);

/* @return the QP, or NULL */
struct qp *engine_find_qp(struct engine *e, uint32_t qpn);

/* The client posted on qp. */
void engine_doorbell(struct engine *e, struct qp *qp);

/* The device fails: all its QPs go to ERR. */
void engine_fail_device(struct engine *e, const struct device *dev);

/* A train arrived. Its payload must stay in place until engine_run() returned. */
void engine_rx(struct engine *e, const struct train *t);

/* The same for a train that engine_ops.fault_rx had taken. */
void engine_deliver(struct engine *e, struct qp *qp, const struct train *t);

/*
 * One round of work; leaves no dma queued. With engine.hold, engine_holds() may be true then: the
 * host runs another round soon, at last without hold.
 * @return true if there is more to do at once
 */
bool engine_run(struct engine *e);

/* @return whether an ACK waits for company */
static inline bool engine_holds(struct engine *e)
{
	return !cds_list_empty(&e->held);
}

/* Sends the ACKs held: before a QP goes away, or changes. */
void engine_release(struct engine *e);

/* Adds up what QPs count: of one device, or of all with NULL; those that are gone included. */
void engine_sum_counters(const struct engine *e, const struct device *dev, struct qp_counters *sum);
void engine_get_counters(const struct engine *e, struct engine_counters *c);

/*
 * The last packets of a train that ops.tx() was given could not be sent: they count as send_err,
 * not as sent.
 * @count: 0 to t->count
 */
void engine_not_sent(struct engine *e, const struct train *t, uint32_t count);

/* @return how many timers may be armed: those of QPs, budgets, CQs, pacers, and the faults' one */
static inline uint32_t engine_timers(const struct engine *e)
{
	return e->qp_count + e->budget_count + e->cq_timers + e->pacers + 1;
}

/* @return ns: when a wait that begins now begins */
static inline uint64_t engine_time(struct engine *e)
{
	return e->ops->time ? e->ops->time(e) : e->now;
}

/* @return when engine_run() is due without other cause: ns, UINT64_MAX if never */
static inline uint64_t engine_deadline(const struct engine *e)
{
	return timer_next(&e->timers);
}

#endif
