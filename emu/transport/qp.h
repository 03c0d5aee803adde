/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The queue pair: its rings, its state, and what requester, responder and completer remember.
 * Everything here is touched by the owning worker's thread only.
 */
#ifndef VERNIC_QP_H
#define VERNIC_QP_H

#include "congestion.h"
#include "engine.h"
#include "pacing.h"

/* What the host knows when it makes a QP. Ring memory outlives the QP. */
struct qp_params {
	struct device *dev;
	struct pd *pd;
	struct cq *send_cq;
	struct cq *recv_cq;
	struct srq *srq; /* NULL: its own RQ */
	struct xrcd *xrcd; /* XRC_RECV, which has no PD, CQ, SRQ or client */
	struct client *client;
	enum ibv_qp_type type; /* RC, UC, UD, XRC_SEND, XRC_RECV */
	bool sq_sig_all;
	uint32_t index;	       /* the client's qp_index */
	struct ibv_qp_cap cap; /* actual values */
	struct vernic_qp_ring *ring;
	uint8_t *sq;
	uint8_t *rq;
	uint32_t sq_depth; /* powers of two; rq_depth 0 with an SRQ */
	uint32_t rq_depth;
	uint32_t sq_stride;
	uint32_t rq_stride;
	uint32_t sq_data; /* bytes of a send WQE's data area */
};

/* A send WQE from its first transmission to its completion. */
struct send_entry {
	uint64_t wr_id;
	uint64_t remote_addr;
	uint64_t compare_add;
	uint64_t swap;
	uint32_t rkey;
	uint32_t imm;
	uint32_t xrc_srqn;
	uint32_t first_psn;
	uint32_t packets; /* PSNs it takes */
	uint32_t length;  /* bytes */
	uint32_t cost;	  /* of all WQEs before it, in bytes of a budget; wraps */
	uint32_t unit;	  /* of one of its packets */
	uint16_t flags;	  /* enum ibv_send_flags | VERNIC_SEND_* */
	uint8_t opcode;	  /* enum ibv_wr_opcode */
	uint8_t kind;	  /* enum wire_kind of its requests */
	uint8_t status;	  /* enum ibv_wc_status: a local error, reported when its turn comes */
	uint8_t flush_type;  /* as of train.flush */
	uint8_t flush_level; /* FLUSH: compare_add is the length */
	/* The response is in place, and was reported; LOCAL_INV, BIND_MW: done */
	bool placed;
};

/*
 * The requester's view of the PSNs and of the SQ, oldest first:
 *
 *	una		WQEs before it were completed
 *	una_psn		PSNs before it were acknowledged or answered
 *	send_psn, next	where sending goes on: PSN, and the WQE it is in
 *	max_psn		PSNs before it were sent at least once
 *	psn, begun	end of the WQEs that have a send_entry and PSNs
 *	posted		end of what the client posted, when we last looked
 *	sq_prod		the same now (in the ring)
 */
struct requester {
	uint32_t una;
	uint32_t next;
	uint32_t begun;
	uint32_t posted;
	bool fences; /* the client uses fences: what READs bring must be in its memory */
	uint32_t una_psn;
	uint32_t send_psn;
	uint32_t max_psn;
	uint32_t psn;
	uint32_t cost;	     /* of all WQEs begun: send_entry.cost of the next one */
	uint32_t window;     /* bytes in flight allowed, adapts to loss */
	uint32_t rd_entries; /* READ and atomic WQEs begun and not completed */
	/* READ and atomic requests outstanding: the PSN behind each one's response. */
	uint32_t rd_end[VERNIC_MAX_RD_ATOMIC];
	uint32_t rd_packets[VERNIC_MAX_RD_ATOMIC]; /* PSNs of each */
	uint32_t rd_unit[VERNIC_MAX_RD_ATOMIC];	   /* send_entry.unit of each */
	uint32_t rd_head, rd_tail;
	uint8_t retry_left;
	uint8_t rnr_left;
	uint8_t fail_status;	  /* enum ibv_wc_status of the WQE at una when the SQ failed */
	bool rnr_wait;		  /* sending waits until rnr_deadline */
	bool resent;		  /* went back to una_psn since it last moved */
	uint64_t deadline;	  /* ns: when the oldest unacknowledged packet times out */
	uint64_t probe_at;	  /* ns: when it is sent again on suspicion */
	uint64_t probe_after;	  /* ns: the time before that */
	uint8_t probes;		  /* sent since the last answer */
	uint64_t stalled_at;	  /* ns: when an answer was missed first; 0: none is */
	uint64_t rnr_deadline;	  /* ns */
	struct send_entry *entry; /* sq_depth of them, by SQ index */
};

/* The answer of an atomic, kept to replay it (IBTA 9.4.5). */
struct atomic_result {
	uint32_t psn;
	uint64_t orig;
};

/* What has an answer of its own being answered; answers leave in the order of the requests. */
struct response_job {
	uint64_t va;
	uint64_t orig; /* atomic: the answer */
	uint32_t rkey;
	uint32_t length; /* bytes of the answer, 0 but for a READ */
	uint32_t sent;	 /* bytes */
	uint32_t psn;	 /* of the first response packet */
	uint32_t msn;
	uint32_t xrc_srqn; /* XRC: whose PD the rkey is of */
	uint8_t kind;	   /* enum wire_kind of the request */
	bool fresh;	   /* no replay */
	bool ready;	   /* what was asked for is done, but for reading */
	uint64_t swap_add;
	uint64_t compare;
	struct dma_segment seg; /* atomic, ATOMIC WRITE: its 8 bytes */
};

/* Ring of jobs; replays count too, so more room than VERNIC_MAX_RD_ATOMIC. A power of two. */
#define RESPONDER_JOBS (4 * VERNIC_MAX_RD_ATOMIC)

struct qp_hold;

struct recv_wqe {
	uint64_t wr_id;
	uint32_t slot; /* RQ index or SRQ slot */
	uint32_t num_sge;
	struct vernic_sge sge[VERNIC_MAX_SGE];
};

struct responder {
	uint32_t epsn; /* expected PSN */
	uint32_t msn;
	uint32_t rq_cons;
	uint32_t rq_posted; /* end of what the client posted, when we last looked */
	uint8_t kind;	 /* of the message in progress; KIND_NONE: none */
	bool have_wqe;	 /* wqe holds a receive taken for it */
	bool nak_sent;	 /* one NAK for each gap */
	bool failed;	 /* a NAK ended it: what was accepted behind the failure is flushed */
	bool refused;	 /* a NAK ended it: what was accepted before is still answered */
	uint32_t offset; /* bytes of the message so far */
	uint64_t va;	 /* WRITE: address of the message */
	uint32_t rkey;
	uint32_t length; /* WRITE: RETH.length */
	struct recv_wqe *wqe;
	struct srq *srq;   /* XRC: of the train at hand, valid while that is handled; or NULL */
	uint32_t xrc_srqn; /* XRC: of the message in progress */
	uint32_t wqe_srqn; /* XRC: where wqe was taken from */

	bool ack_owed;	 /* on engine.acks, or waiting for the jobs to be answered */
	bool ack_linked; /* on engine.acks */
	uint8_t nak;	 /* syndrome of the NAK owed; 0: none */
	uint32_t nak_psn;
	bool ack_fresh;	  /* the ACK owed is for something new, */
	bool dup_owed;	  /* and for duplicates up to dup_psn */
	bool rd_any;	  /* rd_psn is valid */
	uint32_t ack_psn; /* newest PSN whose data is in place */
	uint32_t acked_psn; /* the one before that the last ACK was for */
	uint32_t ack_msn;
	uint32_t dup_psn;
	uint32_t rd_psn; /* the last one of the newest READ or atomic */

	struct response_job *job; /* RESPONDER_JOBS, made when the first is needed */
	uint32_t job_head, job_tail;
	uint32_t job_fresh; /* of them, those that are no replays */
	struct atomic_result atomic[VERNIC_MAX_RD_ATOMIC];
	uint32_t atomic_next;
};

/* Somebody who has a XRC target QP open, and is told of its events. */
struct qp_opener {
	struct cds_list_head node;
	struct client *client;
	uint32_t index; /* the client's qp_index */
};

struct qp {
	struct qp_params p;
	struct cds_list_head openers; /* XRC_RECV: of struct qp_opener, the host's */
	struct engine *engine;
	bool reliable;	 /* p.type is RC, XRC_SEND or XRC_RECV */
	bool xrc_target; /* p.type is XRC_RECV */
	uint32_t qpn;
	uint32_t epoch; /* raised by RESET: pending dma operations of before are void */
	enum ibv_qp_state state;
	bool flushing;	     /* a flush is on its way through the dma queue */
	bool last_wqe_event; /* QP_LAST_WQE_REACHED was raised */
	bool sqd_event;	     /* raise SQ_DRAINED when drained */
	bool established;    /* COMM_EST was raised */
	struct ibv_qp_attr attr;
	struct path path; /* RC, UC: the connection's; UD: of the last message sent */
	uint32_t mtu;	  /* bytes */
	bool queued;	  /* on engine.run */
	struct cds_list_head run_node;
	struct cds_list_head ack_node;
	struct cds_list_head settle_node; /* on engine.settling or unsettled */
	bool settle_linked;
	uint32_t settle_first;	/* SQ indices: of the first WQE that waits there, */
	uint32_t settle_last;	/* of the last, */
	uint32_t settle_newest; /* and of the last that will have to wait again */
	struct timer timer;
	struct qp_counters counters;
	struct congestion cong;
	struct pacer *pacer; /* NULL: no rate limit */
	struct requester req;
	struct responder resp;
	struct qp_hold *hold; /* what faults hold back of it; NULL: nothing */
};

/*
 * Makes a QP in RESET and gives it a QPN of the engine (24 bits, not 0, 1 or one used lately).
 * Owner's thread.
 * @return 0, -ENOMEM
 */
int qp_create(struct engine *e, const struct qp_params *params, struct qp **out);

/*
 * Changes state and attributes as ibv_modify_qp(3), masks checked against its tables.
 * @return 0, or -EINVAL, -ENOMEM with nothing changed
 */
int qp_modify(struct qp *qp, const struct ibv_qp_attr *attr, int attr_mask);

/* All attributes, as ibv_query_qp(3) fills them. */
void qp_query(const struct qp *qp, struct ibv_qp_attr *attr);

/* In RESET, or about to be destroyed: the SRQ slot of a message that was in progress and will never
 * complete, or VERNIC_NO_SLOT. */
uint32_t qp_take_srq_slot(struct qp *qp);

/* Publishes a CQE that engine_ops.fault_cqe had taken; an overrun ends the QP. */
void qp_publish(struct qp *qp, struct cq *cq, const struct vernic_cqe *cqe, bool solicited);

/*
 * Places the payload of a train, but for its first skip bytes, where the responder will place it
 * when it is delivered. Nothing else happens yet.
 * @t: a SEND or WRITE
 * @return false if the train would not be accepted as it is
 */
bool responder_place_early(struct qp *qp, const struct train *t, uint32_t skip);

/* No operation of the QP is pending afterwards. The rings are the host's to free. */
void qp_destroy(struct qp *qp);

const char *qp_state_name(enum ibv_qp_state state);

#endif
