/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The simulator: transport engines, links between them that do harm, virtual time.
 *
 * Theory of operation
 * -------------------
 * A world (world.c) is 1 to 4 hosts of 1 or 2 workers, each worker an engine with its own dma. What
 * happens next comes from a heap of timers in virtual time: packets that arrive, engines that want
 * to run, clients that post and poll. Trains to a worker of the same host are handed over as they
 * are, as the local port does; trains to another host (channel.c) become real packets, ICRC
 * included, which the link drops, duplicates, delays, reorders, damages and forges; what arrives is
 * checked, decoded and joined to trains as a port would.
 *
 * A client (client.c) knows the rings as ring.h describes them and nothing else.
 *
 * A program (program.c) makes up, from the seed, QPs of all types and what their clients do with
 * them: work requests good and bad, changes of state, deregistration, destruction.
 *
 * The judge (judge.c) knows what each work request means. It follows what engines send and receive,
 * keeps a second copy of all memory that says what must be there, and has the last word on each
 * completion.
 *
 * A seed decides everything, so a seed that fails fails again, with --trace to see why.
 */
#ifndef VERNIC_SIM_H
#define VERNIC_SIM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport/qp.h"

#define US UINT64_C(1000) /* in ns */
#define MS UINT64_C(1000000)

/* ---- random numbers ---------------------------------------------------------------------- */

/*
 * A splitmix64 generator: small, and good enough from any seed. Drawn from once in an expression or
 * initializer, where order is the compiler's choice: a seed does the same in every build.
 */
struct rng {
	uint64_t state;
};

static inline uint64_t rng_next(struct rng *r)
{
	uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* @return a number from 0 to n - 1; n > 0 */
static inline uint32_t rng_below(struct rng *r, uint32_t n)
{
	return (uint32_t)((rng_next(r) >> 32) * n >> 32);
}

/* @p: probability. @return whether it happens */
static inline bool rng_chance(struct rng *r, double p)
{
	return (double)(rng_next(r) >> 11) < p * 0x1p53;
}

/* ---- the world --------------------------------------------------------------------------- */

#define MAX_HOSTS 4
#define MAX_WORKERS 2	    /* of a host */
#define MAX_ENGINES 4	    /* of a world */
#define MAX_SIDES 10	    /* QPs of a program */
#define MAX_CQS 3	    /* of a host */
#define MM_SIZE (16u << 20) /* bytes of a client's memory */

#define CLIENT_MAX_SGE 4
#define CLIENT_SQ_DATA 256 /* bytes of a send WQE's data area */
#define SRQ_DEPTH 32
#define MAX_RQ 64

struct world;
struct host;
struct side;
struct packet;
struct program;

/* What a run is asked to do. */
struct options {
	int type;			    /* enum ibv_qp_type of all QPs, or -1: mixed */
	bool gentle;			    /* no state changes, no errors on purpose */
	double loss, dup, reorder, corrupt; /* probability for each packet, or < 0: the seed's */
	uint32_t ops; /* operations of a seed, all QPs together; 0: the seed's */
	bool trace;
};

/* A scattered buffer. */
struct buffer {
	uint32_t count;
	uint32_t len;
	struct {
		size_t offset;
		uint32_t len;
	} part[CLIENT_MAX_SGE];
};

/* The memory of a client: what is there, and what should be. Addresses are base + offset. */
struct mm {
	struct world *world;
	uint64_t base;
	uint8_t *mem;
	uint8_t *model;
	size_t used; /* bytes of MM_SIZE */
};

struct client_cq {
	struct cq cq;
	uint32_t cons;
};

/* A receive a client posted. */
struct receive {
	struct buffer buffer;
	bool small;   /* no message fits */
	bool bad_key; /* its lkey is no key */
	bool in_use;
	uint64_t id; /* wr_id */
};

#define SRQ_HANDLE 1000 /* no QP's index */

struct client_srq {
	struct srq srq;
	void *memory;
	uint32_t prod;
	uint32_t free[SRQ_DEPTH]; /* slots */
	uint32_t free_count;
	struct receive recv[SRQ_DEPTH]; /* by slot */
	struct buffer home[SRQ_DEPTH];
	struct mr mr;	/* of its receives */
	uint32_t armed; /* limit; 0: no event is due */
	uint32_t events;
	struct timer post;
	struct host *host;
};

struct worker {
	struct host *host;
	uint32_t index; /* in the host */
	struct engine engine;
	struct timer wake;		    /* the engine runs */
	struct packet *rx, **rx_tail;	    /* arrived, not handed to the engine yet */
	struct parcel *inbox, **inbox_tail; /* trains of the host's other worker */
	bool running;
};

struct host {
	struct world *world;
	uint32_t id;
	uint32_t workers;
	struct worker worker[MAX_WORKERS];
	struct device dev;
	struct pd pd;
	struct mm mm;
	struct client_cq cq[MAX_CQS];
	uint32_t cqs;
	struct client_srq srq;	/* of XRC too: in domain 0 */
	struct srq strange_srq; /* of domain 1, and empty */
	struct vernic_srq_ring strange_ring;
	struct xrcd xrcd[2];
	size_t shared; /* offset of the word all sides add to */
	struct mr shared_mr;
	uint64_t link_free;		  /* when the wire out is free, ns */
	bool shared_dirty, shared_unsure; /* the judge's */
	struct timer poll;		  /* the client looks at its CQs */
	uint32_t idle;			  /* polls that found nothing, in a row */
};

/* The way from one host to another. */
struct link {
	double loss, dup, reorder, corrupt, forge; /* probability for each packet */
	double merge;				   /* that a packet that could join a train does */
	double busy;				   /* that a port takes nothing just now */
	uint64_t delay;				   /* ns */
	uint32_t max_train, window, budget;	   /* bytes */
	bool lossless;				   /* nothing is ever lost or late */
};

struct world {
	const struct options *opt;
	struct program *prog;
	uint64_t now; /* ns */
	struct timer_heap events;
	struct rng net; /* the links' and the hosts' choices */
	struct rng rng; /* the program's */
	bool holds; /* engines may hold lone ACKs */
	uint32_t hosts;
	struct host host[MAX_HOSTS];
	struct link link[MAX_HOSTS][MAX_HOSTS];
	uint32_t in_flight; /* packets sent and not handed to an engine yet */
	uint64_t steps;
	uint64_t last_cqe; /* ns: when a completion was seen last */
	char failure[240]; /* the first thing that went wrong; empty: nothing yet */
};

/* What all seeds of a run added up to. */
struct totals {
	uint64_t packets, local_trains;
	uint64_t corrupted;
	uint64_t icrc_missed; /* corrupted packets the ICRC check took for good */
	uint64_t forged;
	uint64_t connections, resets, destroyed, errors, drains, deregistered;
	uint64_t status[32]; /* CQEs by enum ibv_wc_status */
	uint64_t limit_events;
	struct engine_counters engine;
	uint64_t time; /* ns of virtual time until the last completion, of all seeds */
};
extern struct totals totals;

void world_init(struct world *w, uint64_t seed, const struct options *opt);
void world_fini(struct world *w);

/* Notes that the seed failed; the first reason counts. */
__attribute__((format(printf, 2, 3))) void world_fail(struct world *w, const char *fmt, ...);

static inline bool world_failed(const struct world *w)
{
	return w->failure[0] != '\0';
}

/* Prints a line of the trace. */
__attribute__((format(printf, 2, 3))) void world_trace(const struct world *w, const char *fmt, ...);

/* Fires t at a virtual time, ns; moves it if it is armed. */
void world_at(struct world *w, struct timer *t, uint64_t when);

/* Lets the next thing happen. @return false if nothing is left */
bool world_step(struct world *w);

/* The worker's engine runs soon. */
void worker_kick(struct worker *k);
/* Hands a train to the engine, the judge looking on. */
void worker_rx(struct worker *k, const struct train *t);

/* Takes len bytes of a client's memory, filled with a pattern. @return their offset */
size_t mm_take(struct mm *mm, size_t len, size_t align);
/* Changes memory and model alike. */
void mm_fill(struct mm *mm, size_t offset, const void *data, size_t len);

void *must(void *p);

/* Frees what is kept from seed to seed. */
void world_free_all(void);

/* ---- the channel --------------------------------------------------------------------------- */

/* engine_ops.tx */
void channel_tx(struct engine *e, struct qp *qp, const struct train *t);
/* Hands everything that arrived at a worker to its engine, some of it joined to trains. */
void channel_receive(struct worker *k);
/* Frees what was handed in. */
void channel_release(struct worker *k);
void host_gid(uint8_t gid[16], uint32_t id);
/* Takes back all packets. */
void channel_fini(void);
void channel_free_all(void);

/* ---- the client -------------------------------------------------------------------------- */

struct client_qp {
	struct worker *worker;
	struct qp *qp;
	uint8_t *memory;
	struct qp_params p;
	uint32_t sq_prod, rq_prod;
	uint32_t sq_cons; /* send WQEs before it are over */
	uint32_t rq_cons;
};

int client_create_cq(struct host *h, struct client_cq *cq, uint32_t depth);
void client_destroy_cq(struct client_cq *cq);
/* @return whether a CQE was there; copied to *cqe */
bool client_poll(struct client_cq *cq, struct vernic_cqe *cqe);
/* Asks for an event for the next CQE. @how: VERNIC_ARM_NEXT or VERNIC_ARM_SOLICITED */
void client_arm(struct client_cq *cq, uint64_t how);
/* Takes a QP's CQEs out of a CQ. SRQ slots they name are free again. */
void client_clean_cq(struct client_cq *cq, uint32_t qp_index, struct client_srq *srq);
/* The same for a XRC target, whose CQEs name the SRQ. */
void client_clean_xrc(struct client_cq *cq, uint32_t qpn, struct client_srq *srq);

int client_create_srq(struct host *h, struct client_srq *srq);
void client_destroy_srq(struct client_srq *srq);
/* Posts a receive. @return its slot */
uint32_t client_post_srq(struct client_srq *srq, uint64_t wr_id, const struct vernic_sge *sge,
			 uint32_t num_sge);
void client_release_slot(struct client_srq *srq, uint32_t slot);

/* qp->worker and qp->p (what to make) are filled in but for the rings. */
int client_create_qp(struct client_qp *qp);
void client_destroy_qp(struct client_qp *qp);
/* The client's side of a move to RESET. */
void client_reset_qp(struct client_qp *qp);

static inline bool client_sq_full(const struct client_qp *qp)
{
	return qp->sq_prod - qp->sq_cons == qp->p.sq_depth;
}

static inline bool client_rq_full(const struct client_qp *qp)
{
	return qp->rq_prod - qp->rq_cons == qp->p.rq_depth;
}

/* Posts a WQE, with data in its data area where data is not NULL; the doorbell is separate. */
void client_post_send(struct client_qp *qp, const struct vernic_send_wqe *wqe,
		      const struct vernic_sge *sge, const void *data, uint32_t len);
void client_post_recv(struct client_qp *qp, uint64_t wr_id, const struct vernic_sge *sge,
		      uint32_t num_sge);
void client_doorbell(struct client_qp *qp);

/* ---- the program ------------------------------------------------------------------------- */

#define MAX_LEN 40000 /* bytes of a message */
#define HOT_LEN 12000 /* bytes of a region that WRITEs and READs go to */
#define WORDS 3
#define GRH VERNIC_GRH_LEN

/* What is wrong with an operation, on purpose. */
enum fault {
	FAULT_NONE,
	FAULT_LKEY,
	FAULT_RKEY,
	FAULT_BOTH_KEYS,
	FAULT_RANGE,  /* beyond the remote MR */
	FAULT_ALIGN,  /* of an atomic */
	FAULT_LENGTH, /* of an atomic */
	FAULT_OPCODE, /* a READ on UC or UD */
	FAULT_QKEY,
	FAULT_QPN,
	FAULT_SRQ,    /* XRC: no such SRQ */
	FAULT_DOMAIN, /* XRC: one of another domain */
};

struct op {
	uint8_t opcode; /* enum ibv_wr_opcode */
	uint8_t fault;
	uint16_t flags; /* enum ibv_send_flags | VERNIC_SEND_* */
	uint32_t len;	/* bytes */
	uint32_t imm;
	struct buffer local;
	uint64_t remote; /* offset in the peer's memory */
	struct side *to; /* UD: who gets it; else the peer */
	uint8_t *data;	 /* len bytes: the payload, or what a READ must return */
	uint64_t compare_add, swap;
	bool shared; /* an atomic on the word all sides share */
	struct mw *mw; /* what it invalidates; NULL: nothing */
	/* The judge's. */
	uint32_t first; /* RC: packets of its flow before it */
	uint32_t packets;
	uint32_t piece_end[4], pieces; /* READ: requests accepted, and where each ends */
	bool executed;		       /* RC: the responder carried it out */
	bool over;		       /* completed, or gone with its QP */
	uint64_t orig;		       /* what an atomic must return */
	uint64_t before;	       /* an atomic: the word's value before it */
	uint32_t deliveries;	       /* UC, UD: times received */
};

/*
 * One direction of a connection: what its requester posted, and how far its responder got. Packets
 * are counted from the first PSN.
 */
struct flow {
	struct side *from, *to;
	uint32_t first_op; /* of from */
	uint32_t first_psn;
	uint32_t posted;    /* packets of what was posted */
	uint32_t applied;   /* packets the responder accepted, and the model has */
	uint32_t op;	    /* the operation applied is in */
	uint32_t recv_op;   /* the next operation that may take a receive */
	uint32_t acked;	    /* packets the responder acknowledged */
	bool nak;	    /* a NAK ended it ... */
	uint32_t nak_op;    /* ... because of this operation ... */
	uint8_t nak_status; /* ... which must end like this */
	bool gone;	    /* the responder left, or its state did not let requests in */
	/* The PSN a sequence NAK is due for, and the PSN the last NAK was for; UINT32_MAX: none. */
	uint32_t nak_due, nak_sent;
	uint32_t rnr_naks; /* received since the requester got on */
	uint32_t una;	   /* una_psn when that was looked at last */
	/* READ and atomic requests sent and not answered: the PSN behind each. */
	uint32_t rd_end[VERNIC_MAX_RD_ATOMIC];
	uint32_t rd_count;
	uint64_t rnr_until; /* no request before this time, ns */
	uint32_t sent;	    /* packets sent once or more */
	uint64_t progress;  /* ns: the oldest outstanding packet's time began */
	uint32_t seq_naks;  /* received since then */
	bool rnr_fails;	    /* the last RNR NAK was one too many */
	/* Answers due to READs and atomics, in order. */
	struct answer {
		uint32_t psn, packets, sent;
		bool fresh, atomic;
	} answer[128];
	uint32_t answer_head, answer_tail;
};

/* A UC responder as the specification has it. */
struct uc_model {
	uint32_t epsn;
	uint8_t kind;
	uint64_t va;
	uint32_t rkey, length, offset;
};

/* One QP, what it sends, and what it receives. */
struct side {
	struct program *prog;
	struct host *host;
	struct side *peer; /* RC, UC */
	uint32_t index;	   /* the client's qp_index */
	enum ibv_qp_type type;
	struct client_qp qp;
	uint32_t lives;		   /* times it was connected */
	uint32_t retired;	   /* may not be connected again */
	bool failed;		   /* an error completion was polled in this life */
	bool client_error;	   /* the client moved it to ERR */
	bool bad_receive;	   /* a receive that fails was posted in this life */
	bool local_gone, hot_gone; /* its MR was deregistered in this life */
	uint32_t last_wqe_events, drained_events;
	bool drain_asked;
	struct link *to_peer, *from_peer;
	uint32_t mtu;
	uint32_t max_rd, max_dest_rd;
	uint8_t rnr_retry, retry_cnt;
	bool sig_all;
	uint32_t rate, burst; /* rate limit, kbit/s, 0: none; octets that may leave at once */
	double paced;	      /* octets of payload ahead of the rate, */
	uint64_t paced_at;    /* ns: at this time */
	/* operations */
	struct op *op;
	uint32_t ops; /* to post */
	uint32_t posted, completed;
	uint32_t life_op;    /* first of this life */
	uint32_t unsignaled; /* in a row, posted */
	struct flow *out, *in;
	struct flow flow; /* what out points to */
	/* receives */
	bool use_srq;
	struct receive *recv;	    /* by RQ index of this life */
	struct buffer home[MAX_RQ]; /* where they go, by slot */
	uint32_t recv_capacity;
	uint32_t recvs_done; /* of this life */
	uint32_t reported;   /* of them, those that were not flushed */
	uint32_t flushed;
	uint32_t cqes_due; /* UC, UD: receives that must be reported by the end of the round */
	struct uc_model uc;
	/* memory at the peer's host, for this side's operations */
	size_t hot, words;
	struct mr hot_mr, local_mr;
	struct timer post, post_recv, disturb, repair;
	uint32_t ambush; /* looks for a bad moment left before a disturbance comes anyway */
};

struct program {
	struct world world;
	uint32_t sides;
	struct side side[MAX_SIDES];
	bool event_driven; /* clients sleep until an event instead of polling */
	bool gentle;
	uint32_t max_len;    /* bytes of a message of this seed */
	uint64_t recv_delay; /* between posts of receives, ns, at most */
	uint64_t post_delay;
	double faults;		/* probability that an operation is wrong on purpose */
	double disturbances;	/* that a side is disturbed */
	uint64_t last_progress; /* ns */
	bool over;
};

/* Runs one seed. @return true if it passed; else reason is filled in */
bool program_run(uint64_t seed, const struct options *opt, char *reason, size_t reason_len);

/* A completion event is due on a CQ of the host. */
void program_cq_event(struct host *h);
/* An asynchronous event. */
void program_qp_event(struct host *h, struct qp *qp, enum ibv_event_type type);

void buffer_read(const struct buffer *b, const uint8_t *image, uint8_t *out, uint32_t len);
void buffer_write(const struct buffer *b, uint8_t *image, const uint8_t *in, uint32_t len);
void buffer_copy(const struct buffer *b, uint8_t *to, const uint8_t *from);
struct side *side_of(struct program *g, const struct qp *qp);

static inline bool is_atomic(unsigned int opcode)
{
	return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

static inline bool has_imm(unsigned int opcode)
{
	return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static inline bool is_write(unsigned int opcode)
{
	return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static inline bool is_send(unsigned int opcode)
{
	return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
	       opcode == IBV_WR_SEND_WITH_INV;
}

/* Of a window that the program made and bound: ours, or the receiver's. */
static inline bool invalidates(unsigned int opcode)
{
	return opcode == IBV_WR_LOCAL_INV || opcode == IBV_WR_SEND_WITH_INV;
}

/* @return whether a side's service acknowledges */
static inline bool is_reliable(const struct side *s)
{
	return s->type == IBV_QPT_RC || s->type == IBV_QPT_XRC_SEND || s->type == IBV_QPT_XRC_RECV;
}

/* @return whether a side's QP reports the last of its receives when it fails */
static inline bool has_last_wqe(const struct side *s)
{
	return s->use_srq && s->type != IBV_QPT_XRC_RECV;
}

static inline bool is_flush(unsigned int opcode)
{
	return opcode == VERNIC_WR_FLUSH;
}

/* Goes to a word of its own. */
static inline bool is_for_word(unsigned int opcode)
{
	return is_atomic(opcode) || opcode == IBV_WR_ATOMIC_WRITE;
}

/* Has an answer with data. */
static inline bool returns_data(unsigned int opcode)
{
	return opcode == IBV_WR_RDMA_READ || is_atomic(opcode);
}

static inline bool has_response(unsigned int opcode)
{
	return returns_data(opcode) || opcode == IBV_WR_ATOMIC_WRITE || is_flush(opcode);
}

static inline bool takes_receive(unsigned int opcode)
{
	return is_send(opcode) || has_imm(opcode);
}

/* ---- the judge ----------------------------------------------------------------------------- */

/* A connection begins: both flows of a pair of QPs in RTR or RTS. */
void judge_connect(struct side *s);
/* @return whether a requester must have used up most of its retries without getting on */
bool judge_is_in_need(const struct flow *f);
/* A SQ in error, flushed, is about to work again. */
void judge_sq_mended(struct side *s);
/* An operation was posted. */
void judge_posted(struct side *s, uint32_t index);
/* An engine sends a train. */
void judge_tx(struct host *h, struct qp *qp, const struct train *t);
/* An engine is about to be handed a train; what has to be known when it was handed it. */
struct rx_note {
	const struct qp *qp; /* that it is for, or NULL */
	uint32_t epsn;
	uint64_t rnr_naks, seq_naks;
	bool waiting; /* for an RNR timer */
};
struct rx_note judge_rx(struct worker *k, const struct train *t);
void judge_rx_done(struct worker *k, const struct train *t, const struct rx_note *before);
/* An engine's round is over. @more: it wants another one at once */
void judge_round(struct worker *k, bool more);
/* A QP is about to leave its state, its client's doing. @gone: to RESET, or destroyed */
void judge_leaves(struct side *s, bool gone);
/* All CQEs of a QP in ERR were polled. */
void judge_flushed(struct side *s);
/* A CQE was polled. */
void judge_cqe(struct host *h, const struct vernic_cqe *cqe);
/* Nothing is left to happen: what must be so now. */
void judge_rest(struct program *g);
/* All QPs are gone: what must be so now. */
void judge_end(struct program *g);

#endif
