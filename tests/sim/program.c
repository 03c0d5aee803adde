/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the simulator's clients do, and what must come of it.
 *
 * Theory of operation
 * -------------------
 * A program is 1 to 3 pairs of QPs; each QP is a side with a list of operations, made up before
 * anything runs. Operations of one QP are carried out by the peer in the order of posting, so what
 * a READ or an atomic must return, and what remote memory must be in the end, is computed while
 * making them up:
 *
 *  - WRITEs and READs of a side go to one region of the peer that nobody else touches (hot).
 *  - Atomics of a side go to words of the peer that nobody else touches, and to one word that all
 *    sides of the host share, by FETCH_ADD only: its sum is known.
 *  - The k-th SEND or WRITE_WITH_IMM takes the peer's k-th receive, so the sizes of receives are
 *    chosen to fit, now exactly and now with room.
 *
 * A READ that is answered again (its response was lost) may see WRITEs posted behind it, unless a
 * fence stands between: those bytes are not compared.
 *
 * UC and UD lose messages, so there every message carries its number, in its immediate or its first
 * bytes, and goes to places of its own; what is reported received must be whole.
 *
 * At the end the memory of both hosts must be what their models say, byte for byte: nothing was
 * written where nothing should be.
 */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PAIRS 3
#define MAX_LEN 65536
#define HOT_LEN (MAX_LEN + 8192)
#define WORDS 3
#define GRH VERNIC_GRH_LEN
#define PATTERN 0xa5 /* of memory nobody wrote, as mm_take() leaves it */
#define TIME_LIMIT (300 * UINT64_C(1000) * MS)
#define STEP_LIMIT 20000000

/* A scattered buffer. */
struct buffer {
	uint32_t count;
	uint32_t len;
	struct {
		size_t offset;
		uint32_t len;
	} part[CLIENT_MAX_SGE];
};

struct op {
	uint8_t opcode; /* enum ibv_wr_opcode */
	uint16_t flags; /* enum ibv_send_flags | VERNIC_SEND_* */
	uint32_t len;	/* bytes */
	uint32_t imm;
	struct buffer local;
	size_t remote; /* offset in the peer's memory */
	uint8_t *data; /* len bytes: the payload, or what a READ must return */
	uint64_t compare_add, swap;
	uint64_t orig; /* what an atomic must return */
	bool shared;   /* an atomic on the word all sides share: orig is not known */
	bool done;
};

struct receive {
	struct buffer buffer;
	uint32_t op; /* RC: the peer's operation that takes it */
};

/* One QP, what it sends, and what it receives. */
struct side {
	struct program *prog;
	struct host *host;
	struct side *peer;
	unsigned int index; /* the client's qp_index */
	struct client_qp qp;
	struct op *op;
	uint32_t ops, posted, completed;
	struct receive *recv;
	uint32_t recvs, recv_posted, recv_done;
	uint32_t receivers; /* messages it sends that take a receive */
	size_t hot;	    /* offset of its region in the peer's memory */
	uint8_t *hot_final; /* what that region must be in the end */
	size_t words;	    /* offset of its words in the peer's memory */
	uint64_t word[WORDS];
	uint32_t mtu;
	uint32_t unsignaled; /* in a row, posted */
	bool sig_all;
	struct timer post, post_recv;
};

struct program {
	struct world world;
	enum ibv_qp_type type;
	uint32_t pairs;
	struct side side[2 * MAX_PAIRS]; /* 2i and 2i + 1 are peers; even ones on host A */
	struct client_cq send_cq[2], recv_cq[2];
	size_t shared[2]; /* offset of the word all sides share */
	uint64_t shared_sum[2];
	bool event_driven;   /* clients sleep until an event instead of polling */
	uint64_t recv_delay; /* between posts of receives, ns, at most */
	uint64_t post_delay;
};

static bool is_atomic(unsigned int opcode)
{
	return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

static bool has_imm(unsigned int opcode)
{
	return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool is_write(unsigned int opcode)
{
	return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool is_send(unsigned int opcode)
{
	return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}

/* ---- buffers ----------------------------------------------------------------------------- */

/* Takes a scattered buffer of len bytes from a host's memory. */
static struct buffer buffer_take(struct program *g, struct host *h, uint32_t len)
{
	struct rng *r = &g->world.prog;
	struct buffer b = {.count = 1 + rng_below(r, CLIENT_MAX_SGE), .len = len};

	for (uint32_t i = 0; i < b.count; i++) {
		uint32_t part = i + 1 < b.count ? rng_below(r, len + 1) : len;

		b.part[i].offset = mm_take(&h->mm, part, 1) + rng_below(r, 8);
		b.part[i].len = part;
		mm_take(&h->mm, 8 + rng_below(r, 16), 1);
		len -= part;
	}
	return b;
}

/* Copies a buffer's bytes [0, len) out of an image of the memory. */
static void buffer_read(const struct buffer *b, const uint8_t *image, uint8_t *out, uint32_t len)
{
	for (uint32_t i = 0; i < b->count && len; i++) {
		uint32_t n = b->part[i].len < len ? b->part[i].len : len;

		memcpy(out, image + b->part[i].offset, n);
		out += n;
		len -= n;
	}
}

/* Copies bytes [0, len) into a buffer in an image of the memory. */
static void buffer_write(const struct buffer *b, uint8_t *image, const uint8_t *in, uint32_t len)
{
	for (uint32_t i = 0; i < b->count && len; i++) {
		uint32_t n = b->part[i].len < len ? b->part[i].len : len;

		memcpy(image + b->part[i].offset, in, n);
		in += n;
		len -= n;
	}
}

/* Makes the model agree with what is in a buffer: nothing can be said about it. */
static void buffer_ignore(const struct buffer *b, struct mm *mm)
{
	for (uint32_t i = 0; i < b->count; i++)
		memcpy(mm->model + b->part[i].offset, mm->mem + b->part[i].offset, b->part[i].len);
}

static uint32_t buffer_sges(const struct buffer *b, const struct host *h, struct vernic_sge *sge)
{
	for (uint32_t i = 0; i < b->count; i++)
		sge[i] = (struct vernic_sge){h->mm.base + b->part[i].offset, b->part[i].len,
					     h->mr.key};
	return b->count;
}

/* ---- making up a program ----------------------------------------------------------------- */

static void fill_random(struct rng *r, uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t x = rng_next(r);

		memcpy(p + i, &x, len - i < 8 ? len - i : 8);
	}
}

/* @return a length, with a liking for the edges of packets */
static uint32_t random_length(struct side *s)
{
	struct rng *r = &s->prog->world.prog;
	uint32_t len;

	switch (rng_below(r, 9)) {
	case 0:
		return 0;
	case 1:
		return 1;
	case 2:
		len = s->mtu - 1;
		break;
	case 3:
		len = s->mtu;
		break;
	case 4:
		len = s->mtu + 1;
		break;
	case 5:
		len = 2 * s->mtu;
		break;
	case 6:
		len = rng_below(r, MAX_LEN + 1);
		break;
	default:
		len = rng_below(r, 300);
		break;
	}
	if (s->prog->type == IBV_QPT_UD && len > s->mtu)
		len = s->mtu;
	return len;
}

static uint8_t random_opcode(struct side *s)
{
	static const uint8_t rc[] = {IBV_WR_SEND,
				     IBV_WR_SEND_WITH_IMM,
				     IBV_WR_RDMA_WRITE,
				     IBV_WR_RDMA_WRITE_WITH_IMM,
				     IBV_WR_RDMA_READ,
				     IBV_WR_RDMA_READ,
				     IBV_WR_ATOMIC_CMP_AND_SWP,
				     IBV_WR_ATOMIC_FETCH_AND_ADD};
	struct rng *r = &s->prog->world.prog;

	switch (s->prog->type) {
	case IBV_QPT_RC:
		return rc[rng_below(r, sizeof(rc))];
	case IBV_QPT_UC:
		return rc[rng_below(r, 4)];
	default:
		return rc[rng_below(r, 2)];
	}
}

/* Makes up an atomic and what it returns. */
static void make_atomic(struct side *s, struct op *op)
{
	struct program *g = s->prog;
	struct rng *r = &g->world.prog;
	uint32_t w = rng_below(r, WORDS);

	op->len = 8;
	op->shared = op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD && rng_below(r, 4) == 0;
	if (op->shared) {
		op->remote = g->shared[s->peer->host->id];
		op->compare_add = rng_next(r);
		g->shared_sum[s->peer->host->id] += op->compare_add;
		return;
	}
	op->remote = s->words + 8 * w;
	op->orig = s->word[w];
	if (op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		op->compare_add = rng_next(r);
		s->word[w] += op->compare_add;
	} else {
		op->compare_add = rng_below(r, 2) ? s->word[w] : rng_next(r);
		op->swap = rng_next(r);
		if (s->word[w] == op->compare_add)
			s->word[w] = op->swap;
	}
}

/* Makes up the next operation of a side. @index: its number */
static void make_op(struct side *s, struct op *op, uint32_t index)
{
	struct program *g = s->prog;
	struct rng *r = &g->world.prog;
	bool rc = g->type == IBV_QPT_RC, write;

	op->opcode = random_opcode(s);
	write = is_write(op->opcode);
	op->len = random_length(s);
	op->imm = has_imm(op->opcode) ? index : 0;
	if (is_atomic(op->opcode))
		make_atomic(s, op);
	op->data = calloc(1, op->len + 8);
	op->local = buffer_take(g, s->host, op->len);
	if (rc && rng_below(r, 8) == 0)
		op->flags |= IBV_SEND_FENCE;
	if (rng_below(r, 4) == 0 && (is_send(op->opcode) || has_imm(op->opcode)))
		op->flags |= IBV_SEND_SOLICITED;
	if (is_atomic(op->opcode))
		return;
	if (op->opcode == IBV_WR_RDMA_READ) {
		op->remote = s->hot + rng_below(r, HOT_LEN - op->len + 1);
		memcpy(op->data, s->hot_final + (op->remote - s->hot), op->len);
		return;
	}
	fill_random(r, op->data, op->len);
	if (!rc && op->len >= 4 && !has_imm(op->opcode))
		memcpy(op->data, &index, 4);
	if (op->len <= CLIENT_SQ_DATA && rng_below(r, 2))
		op->flags |= rng_below(r, 2) ? IBV_SEND_INLINE : VERNIC_SEND_COPIED;
	buffer_write(&op->local, s->host->mm.mem, op->data, op->len);
	buffer_write(&op->local, s->host->mm.model, op->data, op->len);
	if (write && rc) {
		op->remote = s->hot + rng_below(r, HOT_LEN - op->len + 1);
		memcpy(s->hot_final + (op->remote - s->hot), op->data, op->len);
	} else if (write) {
		op->remote = mm_take(&s->peer->host->mm, op->len, 1);
		mm_take(&s->peer->host->mm, 16, 1);
	}
	if (is_send(op->opcode) || has_imm(op->opcode))
		s->receivers++;
}

/* Makes up the receives a side's peer's messages take. */
static void make_receives(struct side *s)
{
	struct program *g = s->prog;
	struct rng *r = &g->world.prog;
	bool rc = g->type == IBV_QPT_RC;
	uint32_t k = 0;

	/* Without delivery for sure, messages do not find the receive made for them. */
	s->recvs = rc ? s->peer->receivers : 2 * s->peer->receivers;
	s->recv = calloc(s->recvs + 1, sizeof(*s->recv));
	for (uint32_t i = 0; rc && i < s->peer->ops; i++) {
		const struct op *op = &s->peer->op[i];
		uint32_t len = 0;

		if (!is_send(op->opcode) && !has_imm(op->opcode))
			continue;
		if (is_send(op->opcode))
			len = op->len + (rng_below(r, 2) ? rng_below(r, 100) : 0);
		s->recv[k].op = i;
		s->recv[k++].buffer = buffer_take(g, s->host, len);
	}
	for (; !rc && k < s->recvs; k++)
		s->recv[k].buffer = buffer_take(
			g, s->host, g->type == IBV_QPT_UD ? GRH + WIRE_MAX_MTU : MAX_LEN);
}

/* Makes the QP of a side. @return 0 or a negative errno */
static int make_qp(struct side *s)
{
	struct program *g = s->prog;
	struct rng *r = &g->world.prog;
	unsigned int id = s->host->id;

	uint32_t rq_depth = 4u << rng_below(r, 5);

	/* What finds no receive is lost for good. */
	if (g->type != IBV_QPT_RC)
		rq_depth *= 16;
	s->sig_all = rng_below(r, 3) == 0;
	return client_create_qp(s->host, &s->qp, g->type, &g->send_cq[id], &g->recv_cq[id],
				4u << rng_below(r, 5), rq_depth, s->sig_all, s->index);
}

/* @return an initial PSN, often one that wraps soon */
static uint32_t random_psn(struct rng *r)
{
	return rng_below(r, 2) ? PSN_MASK - rng_below(r, 200) : rng_below(r, PSN_MASK + 1);
}

/* Brings a side's QP to RTS. @return 0 or a negative errno */
static int connect_side(struct side *s, uint32_t psn, uint32_t peer_psn, uint32_t rd_atomic,
			uint32_t path_mtu)
{
	struct program *g = s->prog;
	struct rng *r = &g->world.prog;
	bool rc = g->type == IBV_QPT_RC, ud = g->type == IBV_QPT_UD;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = 0x11111111,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.path_mtu = (enum ibv_mtu)path_mtu,
		.dest_qp_num = s->peer->qp.qp->qpn,
		.rq_psn = peer_psn,
		.sq_psn = psn,
		.max_rd_atomic = (uint8_t)rd_atomic,
		.max_dest_rd_atomic = (uint8_t)rd_atomic,
		.min_rnr_timer = (uint8_t)(1 + rng_below(r, 14)),
		.timeout = (uint8_t)(8 + rng_below(r, 7)),
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = {.is_global = 1, .port_num = 1},
	};
	int err;

	if (rc)
		a.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	memcpy(a.ah_attr.grh.dgid.raw, s->peer->host->dev.gids[0].raw, 16);
	err = qp_modify(s->qp.qp, &a,
			IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				(ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	if (err)
		return err;
	a.qp_state = IBV_QPS_RTR;
	err = qp_modify(
		s->qp.qp, &a,
		IBV_QP_STATE |
			(ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
			(rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
	if (err)
		return err;
	a.qp_state = IBV_QPS_RTS;
	return qp_modify(s->qp.qp, &a,
			 IBV_QP_STATE | IBV_QP_SQ_PSN |
				 (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						  IBV_QP_MAX_QP_RD_ATOMIC
				     : 0));
}

/* ---- checks of completions --------------------------------------------------------------- */

/* A side's name, for messages: its host and pair. */
#define SIDE_FMT "%c%u op %u: "
#define SIDE_ARG(s, n) 'A' + (int)(s)->host->id, (s)->index, (n)

/* A READ is over: its bytes. */
static void check_read(struct side *s, uint32_t index)
{
	struct program *g = s->prog;
	struct op *op = &s->op[index];
	struct mm *mm = &s->host->mm;
	uint8_t *got = malloc(op->len + 1), *may_differ = calloc(1, op->len + 1);

	buffer_read(&op->local, mm->mem, got, op->len);
	for (uint32_t i = index + 1; i < s->posted && !(s->op[i].flags & IBV_SEND_FENCE); i++) {
		const struct op *w = &s->op[i];
		size_t lo = w->remote > op->remote ? w->remote : op->remote;
		size_t hi = w->remote + w->len < op->remote + op->len ? w->remote + w->len
								      : op->remote + op->len;

		if (is_write(w->opcode) && lo < hi)
			memset(may_differ + (lo - op->remote), 1, hi - lo);
	}
	for (uint32_t i = 0; i < op->len; i++) {
		if (got[i] != op->data[i] && !may_differ[i]) {
			world_fail(&g->world, SIDE_FMT "READ of %u bytes is wrong at %u",
				   SIDE_ARG(s, index), op->len, i);
			break;
		}
	}
	buffer_write(&op->local, mm->model, got, op->len);
	free(got);
	free(may_differ);
}

/* A WRITE is over: its bytes lie at the peer, unless a later one wrote there. */
static void check_write(struct side *s, uint32_t index)
{
	struct op *op = &s->op[index];
	const uint8_t *mem = s->peer->host->mm.mem + op->remote;

	if (memcmp(mem, op->data, op->len) == 0)
		return;
	for (uint32_t at = 0; at < op->len; at++) {
		bool later = false;

		if (mem[at] == op->data[at])
			continue;
		for (uint32_t i = index + 1; i < s->posted && !later; i++)
			later = is_write(s->op[i].opcode) && s->op[i].remote <= op->remote + at &&
				op->remote + at < s->op[i].remote + s->op[i].len;
		if (!later) {
			world_fail(&s->prog->world, SIDE_FMT "WRITE of %u bytes is wrong at %u",
				   SIDE_ARG(s, index), op->len, at);
			return;
		}
	}
}

/* Overwrites a buffer that is the program's again, so that a later use of it shows. */
static void scribble(struct side *s, const struct buffer *b)
{
	uint8_t *junk = malloc(b->len + 1);

	memset(junk, 0x5a, b->len + 1);
	buffer_write(b, s->host->mm.mem, junk, b->len);
	buffer_write(b, s->host->mm.model, junk, b->len);
	free(junk);
}

/* Operation index of a side is over, reported or implied. */
static void op_done(struct side *s, uint32_t index)
{
	struct op *op = &s->op[index];
	bool rc = s->prog->type == IBV_QPT_RC;

	if (op->done)
		world_fail(&s->prog->world, SIDE_FMT "completed twice", SIDE_ARG(s, index));
	op->done = true;
	if (op->opcode == IBV_WR_RDMA_READ) {
		check_read(s, index);
	} else if (is_atomic(op->opcode)) {
		uint64_t orig;

		buffer_read(&op->local, s->host->mm.mem, (uint8_t *)&orig, 8);
		buffer_write(&op->local, s->host->mm.model, (uint8_t *)&orig, 8);
		if (!op->shared && orig != op->orig)
			world_fail(&s->prog->world, SIDE_FMT "atomic returned %#llx, not %#llx",
				   SIDE_ARG(s, index), (unsigned long long)orig,
				   (unsigned long long)op->orig);
	} else {
		if (rc && is_write(op->opcode))
			check_write(s, index);
		scribble(s, &op->local);
	}
}

/* Scatters the data a CQE carries over a buffer, as the library would. */
static void scatter(const struct buffer *b, struct mm *mm, const struct vernic_cqe *cqe)
{
	buffer_write(b, mm->mem, cqe->data, cqe->data_len);
}

static uint8_t wc_opcode(unsigned int opcode)
{
	switch (opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		return IBV_WC_SEND;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	default:
		return IBV_WC_RDMA_WRITE;
	}
}

/* A send CQE: the next signaled operation is over, and all unsignaled ones before it. */
static void send_cqe(struct side *s, const struct vernic_cqe *cqe)
{
	struct world *w = &s->prog->world;
	uint32_t index = s->completed;
	struct op *op;

	while (index < s->posted && !s->sig_all && !(s->op[index].flags & IBV_SEND_SIGNALED))
		index++;
	if (index >= s->posted) {
		world_fail(w, SIDE_FMT "a completion too many", SIDE_ARG(s, cqe->wqe));
		return;
	}
	op = &s->op[index];
	if (cqe->status != IBV_WC_SUCCESS)
		world_fail(w, SIDE_FMT "status %u", SIDE_ARG(s, index), cqe->status);
	else if (cqe->wqe != index || cqe->wr_id != index || cqe->queue != VERNIC_CQE_SQ)
		world_fail(w, SIDE_FMT "completion is of WQE %u, wr_id %llu", SIDE_ARG(s, index),
			   cqe->wqe, (unsigned long long)cqe->wr_id);
	else if (cqe->opcode != wc_opcode(op->opcode) || cqe->qp_num != s->qp.qp->qpn)
		world_fail(w, SIDE_FMT "opcode %u, QP %#x", SIDE_ARG(s, index), cqe->opcode,
			   cqe->qp_num);
	else if ((op->opcode == IBV_WR_RDMA_READ || is_atomic(op->opcode)) &&
		 cqe->byte_len != op->len)
		world_fail(w, SIDE_FMT "byte_len %u, not %u", SIDE_ARG(s, index), cqe->byte_len,
			   op->len);
	if (world_failed(w))
		return;
	if (cqe->data_len)
		scatter(&op->local, &s->host->mm, cqe);
	while (s->completed <= index)
		op_done(s, s->completed++);
	s->qp.sq_cons = s->completed;
}

/* RC: message of the k-th receive. UC, UD: the message says which it is. @return it, or NULL */
static struct op *message_of(struct side *s, const struct vernic_cqe *cqe, const struct receive *rv,
			     uint32_t header)
{
	struct side *p = s->peer;
	uint8_t head[GRH + 4] = {0};
	uint32_t index;

	if (s->prog->type == IBV_QPT_RC)
		return &p->op[rv->op];
	if (cqe->wc_flags & IBV_WC_WITH_IMM) {
		index = cqe->imm;
	} else if (cqe->byte_len >= header + 4) {
		buffer_read(&rv->buffer, s->host->mm.mem, head, header + 4);
		memcpy(&index, head + header, 4);
	} else {
		/* Too short to say: any one of that length and these bytes will do. */
		for (index = 0; index < p->posted; index++) {
			const struct op *op = &p->op[index];

			buffer_read(&rv->buffer, s->host->mm.mem, head, cqe->byte_len);
			if (op->opcode == IBV_WR_SEND && op->len + header == cqe->byte_len &&
			    memcmp(head + header, op->data, op->len) == 0)
				break;
		}
	}
	return index < p->posted ? &p->op[index] : NULL;
}

/* A receive CQE: the next receive is used up. */
static void recv_cqe(struct side *s, const struct vernic_cqe *cqe)
{
	struct world *w = &s->prog->world;
	uint32_t header = s->prog->type == IBV_QPT_UD ? GRH : 0;
	struct mm *mm = &s->host->mm;
	uint32_t index = s->recv_done;
	static uint8_t data[GRH + MAX_LEN];
	struct receive *rv;
	struct op *op;

	if (index >= s->recv_posted) {
		world_fail(w, SIDE_FMT "a receive too many", SIDE_ARG(s, index));
		return;
	}
	rv = &s->recv[index];
	s->recv_done++;
	s->qp.rq_cons++;
	if (cqe->status != IBV_WC_SUCCESS || cqe->queue != VERNIC_CQE_RQ || cqe->wqe != index ||
	    cqe->wr_id != index || cqe->qp_num != s->qp.qp->qpn) {
		world_fail(w, SIDE_FMT "receive status %u, WQE %u", SIDE_ARG(s, index), cqe->status,
			   cqe->wqe);
		return;
	}
	scatter(&rv->buffer, mm, cqe);
	op = message_of(s, cqe, rv, header);
	if (!op) {
		world_fail(w, SIDE_FMT "received a message nobody sent", SIDE_ARG(s, index));
		return;
	}
	if (cqe->byte_len != op->len + header)
		world_fail(w, SIDE_FMT "received %u bytes of %u", SIDE_ARG(s, index), cqe->byte_len,
			   op->len + header);
	else if (cqe->opcode != (is_send(op->opcode) ? VERNIC_WC_RECV : VERNIC_WC_RECV | 1))
		world_fail(w, SIDE_FMT "receive opcode %#x", SIDE_ARG(s, index), cqe->opcode);
	else if (!(cqe->wc_flags & IBV_WC_WITH_IMM) != !has_imm(op->opcode) ||
		 (has_imm(op->opcode) && cqe->imm != op->imm))
		world_fail(w, SIDE_FMT "immediate %u", SIDE_ARG(s, index), cqe->imm);
	else if (header && (!(cqe->wc_flags & IBV_WC_GRH) || cqe->src_qp != s->peer->qp.qp->qpn))
		world_fail(w, SIDE_FMT "UD without GRH or source", SIDE_ARG(s, index));
	if (world_failed(w))
		return;
	if (!is_send(op->opcode)) {
		/* By now its bytes must be there, as for its completion. */
		check_write(s->peer, (uint32_t)(op - s->peer->op));
		return;
	}
	buffer_read(&rv->buffer, mm->mem, data, cqe->byte_len);
	if (memcmp(data + header, op->data, op->len) != 0)
		world_fail(w, SIDE_FMT "SEND of %u bytes is wrong", SIDE_ARG(s, index), op->len);
	buffer_write(&rv->buffer, mm->model, data, cqe->byte_len);
}

/* ---- what clients do --------------------------------------------------------------------- */

static bool all_sent(const struct program *g)
{
	for (uint32_t i = 0; i < 2 * g->pairs; i++)
		if (g->side[i].completed < g->side[i].ops)
			return false;
	return true;
}

/* @return whether the clients have nothing left to wait for */
static bool all_done(const struct program *g)
{
	if (!all_sent(g))
		return false;
	if (g->type != IBV_QPT_RC)
		return g->world.in_flight == 0;
	for (uint32_t i = 0; i < 2 * g->pairs; i++)
		if (g->side[i].recv_done < g->side[i].recvs)
			return false;
	return true;
}

/* Fills in and posts the next operation of a side. */
static void post_one(struct side *s)
{
	struct op *op = &s->op[s->posted];
	struct mm *peer = &s->peer->host->mm;
	struct vernic_sge sge[CLIENT_MAX_SGE];
	struct vernic_send_wqe wqe;
	bool with_data = op->flags & (IBV_SEND_INLINE | VERNIC_SEND_COPIED);

	/* A full SQ is emptied by a completion only: there must be one in it. */
	if (!s->sig_all && (rng_below(&s->prog->world.prog, 2) || s->posted + 1 == s->ops ||
			    s->unsignaled + 1 >= s->qp.p.sq_depth))
		op->flags |= IBV_SEND_SIGNALED;
	s->unsignaled = s->sig_all || op->flags & IBV_SEND_SIGNALED ? 0 : s->unsignaled + 1;

	memset(&wqe, 0, sizeof(wqe));
	wqe.wr_id = s->posted;
	wqe.opcode = op->opcode;
	wqe.flags = op->flags;
	wqe.length = op->len;
	wqe.imm = op->imm;
	if (op->flags & IBV_SEND_INLINE)
		wqe.num_sge = 0;
	else
		wqe.num_sge = (uint8_t)buffer_sges(&op->local, s->host, sge);
	if (s->prog->type == IBV_QPT_UD) {
		wqe.pd = s->host->pd.handle;
		memcpy(wqe.ud.dgid, s->peer->host->dev.gids[0].raw, 16);
		wqe.ud.remote_qpn = s->peer->qp.qp->qpn;
		wqe.ud.remote_qkey = 0x11111111;
		wqe.ud.hop_limit = 64;
	} else {
		wqe.rdma.remote_addr = peer->base + op->remote;
		wqe.rdma.rkey = s->peer->host->mr.key;
		wqe.rdma.compare_add = op->compare_add;
		wqe.rdma.swap = op->swap;
	}
	client_post_send(&s->qp, &wqe, sge, with_data ? op->data : NULL, op->len);
	s->posted++;
	/* Inline data is the program's again at once. */
	if (op->flags & IBV_SEND_INLINE)
		scribble(s, &op->local);
}

static void post_fire(struct timer *t, uint64_t now)
{
	struct side *s = (struct side *)((char *)t - offsetof(struct side, post));
	struct world *w = &s->prog->world;
	uint32_t burst = 1 + rng_below(&w->prog, 8);
	bool any = false;

	for (; burst && s->posted < s->ops && !client_sq_full(&s->qp); burst--) {
		post_one(s);
		any = true;
	}
	if (any)
		client_doorbell(&s->qp);
	if (s->posted < s->ops)
		world_at(w, t, now + 1 + rng_next(&w->prog) % s->prog->post_delay);
}

static void post_recv_fire(struct timer *t, uint64_t now)
{
	struct side *s = (struct side *)((char *)t - offsetof(struct side, post_recv));
	struct world *w = &s->prog->world;
	uint32_t burst = 1 + rng_below(&w->prog, 8);

	for (; burst && s->recv_posted < s->recvs && !client_rq_full(&s->qp); burst--) {
		const struct receive *rv = &s->recv[s->recv_posted];
		struct vernic_sge sge[CLIENT_MAX_SGE];
		uint32_t count = buffer_sges(&rv->buffer, s->host, sge);

		client_post_recv(&s->qp, s->recv_posted, sge, rv->buffer.len ? count : 0);
		s->recv_posted++;
	}
	/* UC, UD: not all are taken. */
	if (s->recv_posted < s->recvs && !all_done(s->prog))
		world_at(w, t, now + 1 + rng_next(&w->prog) % s->prog->recv_delay);
}

/* Polls the CQs of a host. @return completions */
static uint32_t poll_cqs(struct program *g, struct host *h)
{
	struct vernic_cqe cqe;
	uint32_t n = 0;

	while (!world_failed(&g->world)) {
		bool send = client_poll(&g->send_cq[h->id], &cqe);

		if (!send && !client_poll(&g->recv_cq[h->id], &cqe))
			break;
		n++;
		g->world.last_cqe = g->world.now;
		if (cqe.qp_index >= 2 * g->pairs || cqe.qp_index % 2 != h->id) {
			world_fail(&g->world, "a completion for QP index %u", cqe.qp_index);
			break;
		}
		if (send)
			send_cqe(&g->side[cqe.qp_index], &cqe);
		else
			recv_cqe(&g->side[cqe.qp_index], &cqe);
	}
	return n;
}

/* A host's client looks at its CQs, and at them again later or when an event says so. */
static void poll_fire(struct timer *t, uint64_t now)
{
	struct host *h = (struct host *)((char *)t - offsetof(struct host, poll));
	struct program *g = (struct program *)h->world;
	uint32_t n = poll_cqs(g, h);

	if (g->event_driven) {
		client_arm(&g->send_cq[h->id], VERNIC_ARM_NEXT);
		client_arm(&g->recv_cq[h->id], VERNIC_ARM_NEXT);
		poll_cqs(g, h);
		return;
	}
	h->idle = n ? 0 : h->idle + 1;
	if (!all_done(g))
		world_at(h->world, t,
			 now + 1 * US + rng_next(&g->world.prog) % (20 * US) +
				 (h->idle > 20 ? 500 * US : 0));
}

static void on_event(struct host *h)
{
	struct program *g = (struct program *)h->world;

	if (g->event_driven && !timer_armed(&h->poll))
		world_at(h->world, &h->poll, h->world->now + rng_below(&g->world.prog, 20000));
}

/* ---- a run ------------------------------------------------------------------------------- */

/* Makes the MR that covers all memory of a host. */
static int register_memory(struct host *h)
{
	h->mr = (struct mr){
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.pd = &h->pd,
		.mm = &h->mm,
		.iova = h->mm.base,
		.addr = h->mm.base,
		.length = h->mm.used,
	};
	return mr_table_add(h->dev.mrs, &h->mr);
}

/* Makes the sides, their memory and operations. */
static void make_sides(struct program *g)
{
	struct rng *r = &g->world.prog;
	uint32_t left = g->world.opt->ops;

	g->pairs = 1 + rng_below(r, MAX_PAIRS);
	for (unsigned int id = 0; id < 2; id++) {
		uint64_t zero = 0;

		g->shared[id] = mm_take(&g->world.host[id].mm, 8, 4096);
		/* Bases are odd, so that nothing is aligned by luck: make up for it here. */
		g->shared[id] = mm_take(&g->world.host[id].mm, 16, 8) + 5;
		mm_fill(&g->world.host[id].mm, g->shared[id], &zero, 8);
	}
	for (uint32_t i = 0; i < 2 * g->pairs; i++) {
		struct side *s = &g->side[i];

		s->prog = g;
		s->index = i;
		s->host = &g->world.host[i % 2];
		s->peer = &g->side[i ^ 1];
		s->post.fire = post_fire;
		s->post_recv.fire = post_recv_fire;
		s->ops = i + 1 < 2 * g->pairs ? rng_below(r, 2 * left / (2 * g->pairs - i) + 1)
					      : left;
		left -= s->ops;
	}
	for (uint32_t i = 0; i < g->pairs; i++) {
		uint32_t mtu = IBV_MTU_256 + rng_below(r, 5);

		if (g->type == IBV_QPT_UD)
			mtu = IBV_MTU_4096;
		g->side[2 * i].mtu = g->side[2 * i + 1].mtu = 128u << mtu;
	}
	for (uint32_t i = 0; i < 2 * g->pairs; i++) {
		struct side *s = &g->side[i];
		struct mm *peer = &g->world.host[!(i % 2)].mm;

		s->hot = mm_take(peer, HOT_LEN, 1);
		s->hot_final = malloc(HOT_LEN);
		fill_random(r, s->hot_final, HOT_LEN);
		mm_fill(peer, s->hot, s->hot_final, HOT_LEN);
		s->words = mm_take(peer, 8 * WORDS + 8, 8) + 5;
		fill_random(r, (uint8_t *)s->word, sizeof(s->word));
		mm_fill(peer, s->words, s->word, sizeof(s->word));
		s->op = calloc(s->ops + 1, sizeof(*s->op));
		for (uint32_t k = 0; k < s->ops; k++)
			make_op(s, &s->op[k], k);
	}
	for (uint32_t i = 0; i < 2 * g->pairs; i++)
		make_receives(&g->side[i]);
}

/* @return a power of two, at least n */
static uint32_t power_of_two(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p *= 2;
	return p;
}

/* Makes everything and starts the clients. @return 0 or a negative errno */
static int start(struct program *g)
{
	struct world *w = &g->world;
	struct rng *r = &w->prog;
	int err = 0;

	make_sides(g);
	g->event_driven = rng_below(r, 3) == 0 && g->type == IBV_QPT_RC;
	g->post_delay = rng_below(r, 4) ? 20 * US : 3 * MS;
	g->recv_delay = rng_below(r, 3) || g->type != IBV_QPT_RC ? 20 * US : 5 * MS;
	for (unsigned int id = 0; id < 2 && !err; id++) {
		struct host *h = &w->host[id];
		uint32_t sends = 0, recvs = 0;

		for (uint32_t i = id; i < 2 * g->pairs; i += 2) {
			sends += g->side[i].ops;
			recvs += g->side[i].recvs;
		}
		err = register_memory(h);
		if (!err)
			err = client_create_cq(h, &g->send_cq[id], power_of_two(sends + 1));
		if (!err)
			err = client_create_cq(h, &g->recv_cq[id], power_of_two(recvs + 1));
		h->poll.fire = poll_fire;
		h->on_event = on_event;
	}
	for (uint32_t i = 0; i < 2 * g->pairs && !err; i++)
		err = make_qp(&g->side[i]);
	for (uint32_t i = 0; i < 2 * g->pairs && !err; i += 2) {
		uint32_t psn[2] = {random_psn(r), random_psn(r)};
		uint32_t rd_atomic = 1 + rng_below(r, VERNIC_MAX_RD_ATOMIC);
		uint32_t mtu = (uint32_t)__builtin_ctz(g->side[i].mtu / 128);

		err = connect_side(&g->side[i], psn[0], psn[1], rd_atomic, mtu);
		if (!err)
			err = connect_side(&g->side[i + 1], psn[1], psn[0], rd_atomic, mtu);
	}
	for (uint32_t i = 0; i < 2 * g->pairs && !err; i++) {
		/* What finds no receive on UC and UD is lost: let those be posted first. */
		world_at(w, &g->side[i].post,
			 w->now + rng_below(r, 20000) + (g->type == IBV_QPT_RC ? 0 : 1 * MS));
		world_at(w, &g->side[i].post_recv, w->now + rng_below(r, 20000));
	}
	for (unsigned int id = 0; id < 2; id++)
		world_at(w, &w->host[id].poll, w->now + 1000);
	return err;
}

/* Everything is over: what must be so now. */
static void check_end(struct program *g)
{
	struct world *w = &g->world;

	for (uint32_t i = 0; i < 2 * g->pairs && !world_failed(w); i++) {
		struct side *s = &g->side[i];
		const struct qp *qp = s->qp.qp;

		if (qp->state != IBV_QPS_RTS)
			world_fail(w, SIDE_FMT "QP ended in state %s", SIDE_ARG(s, 0),
				   qp_state_name(qp->state));
		else if (s->completed < s->ops ||
			 (g->type == IBV_QPT_RC && s->recv_done < s->recvs))
			world_fail(w, SIDE_FMT "hangs: %u of %u sent, %u of %u received",
				   SIDE_ARG(s, s->completed), s->completed, s->ops, s->recv_done,
				   s->recvs);
		else if (qp->req.una != s->ops || qp->req.begun != s->ops || qp->req.next != s->ops)
			world_fail(w, SIDE_FMT "SQ indices %u %u %u", SIDE_ARG(s, s->ops),
				   qp->req.una, qp->req.next, qp->req.begun);
		else if (qp->resp.job_head != qp->resp.job_tail || qp->resp.ack_linked ||
			 qp->queued || timer_armed(&qp->timer))
			world_fail(w, SIDE_FMT "QP is not at rest", SIDE_ARG(s, s->ops));
		else if (g->type == IBV_QPT_RC && (qp->resp.have_wqe || qp->resp.ack_owed))
			world_fail(w, SIDE_FMT "responder is not at rest", SIDE_ARG(s, s->ops));
		/* The models, as far as they are known only now. */
		if (g->type == IBV_QPT_RC) {
			struct mm *peer = &s->peer->host->mm;

			memcpy(peer->model + s->hot, s->hot_final, HOT_LEN);
			memcpy(peer->model + s->words, s->word, sizeof(s->word));
			continue;
		}
		for (uint32_t k = 0; k < s->recvs; k++)
			buffer_ignore(&s->recv[k].buffer, &s->host->mm);
		for (uint32_t k = 0; k < s->ops; k++)
			if (is_write(s->op[k].opcode))
				memcpy(s->peer->host->mm.model + s->op[k].remote,
				       s->peer->host->mm.mem + s->op[k].remote, s->op[k].len);
	}
	for (unsigned int id = 0; id < 2 && !world_failed(w); id++) {
		struct mm *mm = &w->host[id].mm;
		size_t at = 0;

		memcpy(mm->model + g->shared[id], &g->shared_sum[id], 8);
		if (memcmp(mm->mem, mm->model, mm->used) == 0)
			continue;
		while (mm->mem[at] == mm->model[at])
			at++;
		world_fail(w, "memory of %c is wrong at %#zx", 'A' + (int)id, at);
	}
	for (unsigned int id = 0; id < 2 && !world_failed(w); id++)
		if (engine_deadline(&w->host[id].engine) != UINT64_MAX)
			world_fail(w, "engine %c has a timer armed", 'A' + (int)id);
}

static void stop(struct program *g)
{
	for (uint32_t i = 0; i < 2 * g->pairs; i++) {
		struct side *s = &g->side[i];

		client_destroy_qp(&s->qp);
		for (uint32_t k = 0; s->op && k < s->ops; k++)
			free(s->op[k].data);
		free(s->op);
		free(s->recv);
		free(s->hot_final);
	}
	for (unsigned int id = 0; id < 2; id++) {
		client_destroy_cq(&g->send_cq[id]);
		client_destroy_cq(&g->recv_cq[id]);
	}
}

bool program_run(uint64_t seed, const struct options *opt, char *reason, size_t reason_len)
{
	struct program *g = calloc(1, sizeof(*g));
	bool passed;
	int err;

	g->type = opt->type;
	world_init(&g->world, seed, opt);
	err = start(g);
	if (err)
		world_fail(&g->world, "start: %s", strerror(-err));
	while (!world_failed(&g->world) && world_step(&g->world)) {
		if (g->world.now > TIME_LIMIT || g->world.steps > STEP_LIMIT) {
			world_fail(&g->world, "nothing ends: %.1f s, %llu steps",
				   (double)g->world.now / 1e9, (unsigned long long)g->world.steps);
		}
	}
	/* UC, UD with nothing in flight any more: the last receives. */
	for (unsigned int id = 0; id < 2; id++)
		poll_cqs(g, &g->world.host[id]);
	check_end(g);
	passed = !world_failed(&g->world);
	snprintf(reason, reason_len, "%s", g->world.failure);
	stop(g);
	world_fini(&g->world);
	free(g);
	return passed;
}
