/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The simulator: two transport engines, a channel between them that does harm, virtual time.
 *
 * Theory of operation
 * -------------------
 * A world (world.c) is two hosts, each an engine with its own dma, MRs and memory, and one seeded
 * channel. What happens next comes from a heap of timers in virtual time: packets that arrive,
 * engines that want to run, clients that post and poll. Trains an engine sends are encoded into
 * real packets, ICRC included; the channel drops, duplicates, delays, reorders, corrupts and
 * truncates them; what arrives is checked and decoded as a port would.
 *
 * A client (client.c) knows the rings as ring.h describes them and nothing else.
 *
 * A program (program.c) makes up what the clients do from the seed, runs the world until nothing is
 * left to happen, and checks everything it can: completions, data, memory that must not change.
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

/* A splitmix64 generator: small, and good enough from any seed. */
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

struct world;
struct host;
struct packet;

/* What a run is asked to do. */
struct options {
	enum ibv_qp_type type;		    /* RC, UC or UD */
	double loss, dup, reorder, corrupt; /* probability for each packet */
	uint32_t ops;			    /* operations of a seed, all QPs together */
	bool trace;
};

#define SIM_MAX_SLOT 64 /* QPN slots of an engine, more than a program has QPs */

/* The memory of a client: what is there, and what should be. Addresses are base + offset. */
struct mm {
	struct world *world;
	uint64_t base;
	uint8_t *mem;
	uint8_t *model;
	size_t used, size; /* bytes */
};

struct host {
	struct world *world;
	unsigned int id;
	struct engine engine;
	struct device dev;
	struct pd pd;
	struct mm mm;
	struct mr mr;		      /* all of mm */
	struct timer wake;	      /* the engine runs */
	struct packet *rx, **rx_tail; /* arrived, not handed to the engine yet */
	/* By QPN slot: no request before this time, ns; see hand_in(). */
	uint64_t rnr_until[SIM_MAX_SLOT];
	uint64_t link_free;		  /* when the wire towards the peer is free, ns */
	void (*on_event)(struct host *h); /* a completion event */
	struct timer poll;		  /* the client looks at its CQs; the program's */
	uint32_t idle;			  /* polls that found nothing, in a row */
};

struct world {
	const struct options *opt;
	uint64_t now; /* ns */
	struct timer_heap events;
	struct rng net;	 /* the channel's and the hosts' choices */
	struct rng prog; /* the program's */
	struct host host[2];
	uint64_t delay;		    /* of the channel, ns */
	uint32_t max_train, window, budget; /* bytes */
	double merge;		    /* probability that a packet that could join a train does */
	double busy;		    /* probability that a port takes nothing just now */
	uint32_t in_flight;	    /* packets sent and not handed to an engine yet */
	uint64_t steps;
	uint64_t last_cqe; /* ns: when a completion was seen last */
	char failure[200]; /* the first thing that went wrong; empty: nothing yet */
};

/* What all seeds of a run added up to. */
struct totals {
	uint64_t packets;
	uint64_t corrupted;
	uint64_t icrc_missed; /* corrupted packets the ICRC check took for good */
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

/* Fires t at a virtual time, ns; moves it if it is armed. */
void world_at(struct world *w, struct timer *t, uint64_t when);

/* Lets the next thing happen. @return false if nothing is left */
bool world_step(struct world *w);

/* The host's engine runs soon. */
void host_kick(struct host *h);

/* Takes len bytes of a client's memory, filled with a pattern. @return their offset */
size_t mm_take(struct mm *mm, size_t len, size_t align);

/* Changes memory and model alike. */
void mm_fill(struct mm *mm, size_t offset, const void *data, size_t len);

/* Frees what is kept from seed to seed. */
void world_free_all(void);

/* ---- the client -------------------------------------------------------------------------- */

#define CLIENT_MAX_SGE 4
#define CLIENT_SQ_DATA 256 /* bytes of a send WQE's data area */

struct client_cq {
	struct cq cq;
	uint32_t cons;
};

struct client_qp {
	struct host *host;
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

int client_create_qp(struct host *h, struct client_qp *qp, enum ibv_qp_type type,
		     struct client_cq *send_cq, struct client_cq *recv_cq, uint32_t sq_depth,
		     uint32_t rq_depth, bool sig_all, uint32_t index);
void client_destroy_qp(struct client_qp *qp);

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

/* Runs one seed. @return true if it passed; else reason is filled in */
bool program_run(uint64_t seed, const struct options *opt, char *reason, size_t reason_len);

#endif
