/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The queue pair: its rings, its state, and what requester, responder and completer remember.
 * Everything here is touched by the owning worker's thread only.
 */
#ifndef VERNIC_QP_H
#define VERNIC_QP_H

#include "engine.h"

/* What the host knows when it makes a QP. Ring memory outlives the QP. */
struct qp_params {
	struct device *dev;
	struct pd *pd;
	struct cq *send_cq;
	struct cq *recv_cq;
	struct srq *srq; /* NULL: its own RQ */
	struct client *client;
	enum ibv_qp_type type; /* RC, UC, UD */
	bool sq_sig_all;
	uint32_t index;		/* the client's qp_index */
	struct ibv_qp_cap cap;	/* actual values */
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
	uint32_t rkey;
	uint32_t first_psn;
	uint32_t packets; /* PSNs it takes */
	uint32_t length;  /* bytes */
	uint32_t done;	  /* bytes of a READ response queued for placing */
	uint8_t opcode;	  /* enum ibv_wr_opcode */
	uint8_t kind;	  /* enum wire_kind of its requests */
	uint16_t flags;	  /* enum ibv_send_flags | VERNIC_SEND_* */
	bool responded;	  /* READ, atomic: the whole response was accepted */
};

struct requester {
	uint32_t next;	 /* SQ index of the WQE to send next */
	uint32_t offset; /* packets of it already sent */
	uint32_t una;	 /* SQ index of the oldest WQE not completed */
	uint32_t begun;	 /* WQEs before this index have a send_entry */
	uint32_t psn;	 /* next PSN of new work (end of begun) */
	uint32_t send_psn; /* next PSN to put on the wire (retransmission: before psn) */
	uint32_t una_psn; /* oldest PSN not acknowledged */
	uint32_t max_psn; /* highest PSN + 1 ever sent: below it is a retransmission */
	uint32_t window;  /* bytes in flight allowed, adapts to loss */
	uint32_t rd_atomic; /* READs and atomics outstanding */
	uint8_t retry_left;
	uint8_t rnr_left;
	bool rnr_wait;	  /* the timer is the RNR timer */
	bool read_resent; /* a gap in a READ response was asked for; not again until progress */
	struct send_entry *entry; /* sq_depth of them, by SQ index */
};

/* The answer of an atomic, kept to replay it (IBTA 9.4.5). */
struct atomic_result {
	uint32_t psn;
	uint64_t orig;
};

/* A READ being answered. */
struct read_job {
	uint64_t va;
	uint32_t rkey;
	uint32_t length;
	uint32_t sent; /* bytes */
	uint32_t psn;  /* of its first response packet */
	uint32_t msn;
	/* An atomic's answer goes out in turn with READ responses. */
	bool atomic;
	uint64_t orig;
};

/* Ring of jobs; replays count too, so more room than VERNIC_MAX_RD_ATOMIC. */
#define RESPONDER_JOBS (4 * VERNIC_MAX_RD_ATOMIC)

struct recv_wqe {
	uint64_t wr_id;
	uint32_t slot; /* RQ index or SRQ slot */
	uint32_t num_sge;
	struct vernic_sge sge[VERNIC_MAX_SGE];
};

struct responder {
	uint32_t epsn; /* expected PSN */
	uint32_t msn;
	bool nak_sent;	/* one sequence NAK for each gap */
	uint8_t kind;	/* of the message in progress; KIND_NONE: none */
	bool have_wqe;	/* wqe holds a receive taken for it */
	uint32_t offset; /* bytes of it so far */
	uint64_t va;	 /* WRITE: next address */
	uint32_t rkey;
	uint32_t length; /* WRITE: RETH.length */
	uint32_t rq_cons;
	struct recv_wqe wqe;

	bool ack_owed;	   /* on engine.acks */
	uint8_t ack_syndrome; /* of the answer owed; AETH_ACK unless a NAK */
	uint32_t ack_psn;  /* newest PSN whose data is in place */
	uint32_t ack_msn;
	uint32_t nak_psn;

	struct read_job job[RESPONDER_JOBS];
	uint32_t job_head, job_tail;
	struct atomic_result atomic[VERNIC_MAX_RD_ATOMIC];
	uint32_t atomic_next;
};

struct qp {
	struct qp_params p;
	struct engine *engine;
	uint32_t qpn;
	uint32_t epoch; /* raised by RESET: pending dma operations of before are void */
	enum ibv_qp_state state;
	bool sq_error;	/* SQE: the SQ only */
	bool flushed;	/* ERR: what was posted before is being flushed */
	bool last_wqe_event; /* QP_LAST_WQE_REACHED was raised */
	bool sqd_event; /* raise SQ_DRAINED when drained */
	struct ibv_qp_attr attr;
	struct path path; /* connected services */
	uint32_t mtu;	  /* bytes */
	bool queued;	  /* on engine.run */
	struct cds_list_head run_node;
	struct cds_list_head ack_node;
	struct timer timer;
	struct requester req;
	struct responder resp;
};

/*
 * Makes a QP in RESET and gives it a QPN of the engine (24 bits, not 0, 1 or one used lately).
 * Owner's thread.
 * @return 0, -ENOMEM
 */
int qp_create(struct engine *e, const struct qp_params *params, struct qp **out);

/*
 * Changes state and attributes as ibv_modify_qp(3), masks checked against its tables.
 * @return 0, or -EINVAL with nothing changed
 */
int qp_modify(struct qp *qp, const struct ibv_qp_attr *attr, int attr_mask);

/* All attributes, as ibv_query_qp(3) fills them. */
void qp_query(const struct qp *qp, struct ibv_qp_attr *attr);

/* The SRQ slot of a message in progress that will never complete, or VERNIC_NO_SLOT. */
uint32_t qp_take_srq_slot(struct qp *qp);

/* No operation of the QP is pending afterwards. The rings are the host's to free. */
void qp_destroy(struct qp *qp);

const char *qp_state_name(enum ibv_qp_state state);

#endif
