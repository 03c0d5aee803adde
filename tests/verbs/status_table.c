// SPDX-License-Identifier: BSD-2-Clause
/*
 * The status each wrong request ends with, on both sides, and what becomes of the QPs: a table, run
 * with small, medium and long messages, signaled and not.
 */
#include <fcntl.h>
#include <stdbool.h>

#include "common.h"

#define PART 16384 /* bytes; the buffer is: source, destination, receive, unused */
#define SRC 0
#define DST PART
#define RECV (2 * PART)

/* What is wrong with the memory an SGE or a remote address names. */
enum fault {
	GOOD,
	BAD_KEY,   /* no MR has it */
	GONE,	   /* of a MR that was deregistered */
	RANGE,	   /* begins inside, ends outside */
	WRAP,	   /* the address and the length wrap */
	RIGHTS,	   /* a MR that allows local reads only */
	OTHER_PD,  /* a MR of another PD */
	TOO_SHORT, /* receive: fewer bytes than the message has */
	TOO_LONG,  /* receive: the SGE is longer than its MR, the message is not */
	NONE,	   /* receive: not posted */
	FAULTS
};

/* Statuses beyond those of the specification. */
#define NOTHING (-1) /* no completion */
#define NO_EVENT (-1)

struct row {
	const char *name;
	enum ibv_wr_opcode opcode;
	enum fault local, remote, recv;
	int status;	 /* of the requester */
	int recv_status; /* of the responder's receive */
	int event;	 /* at the responder */
	bool peer_dead;	 /* the responder is in ERR afterwards */
	uint32_t length; /* 0: any */
	uint32_t misalign;
	int no_access; /* of the responder's qp_access_flags */
};

#define RM_ACCESS IBV_WC_REM_ACCESS_ERR, NOTHING, IBV_EVENT_QP_ACCESS_ERR, .peer_dead = true
#define LOCAL_PROT IBV_WC_LOC_PROT_ERR, NOTHING, NO_EVENT, .peer_dead = false
#define DENIED IBV_WC_REM_INV_REQ_ERR, NOTHING, IBV_EVENT_QP_REQ_ERR, .peer_dead = true
#define RECV_PROT IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, NO_EVENT, .peer_dead = true
#define FINE IBV_WC_SUCCESS, NOTHING, NO_EVENT, .peer_dead = false
#define FINE_RECV IBV_WC_SUCCESS, IBV_WC_SUCCESS, NO_EVENT, .peer_dead = false
#define SEND_OP IBV_WR_SEND
#define IMM IBV_WR_SEND_WITH_IMM
#define WRITE IBV_WR_RDMA_WRITE
#define WIMM IBV_WR_RDMA_WRITE_WITH_IMM
#define READ IBV_WR_RDMA_READ
#define FADD IBV_WR_ATOMIC_FETCH_AND_ADD
#define CSWP IBV_WR_ATOMIC_CMP_AND_SWP

static const struct row table[] = {
	{"send", SEND_OP, GOOD, GOOD, GOOD, FINE_RECV},
	{"send imm", IMM, GOOD, GOOD, GOOD, FINE_RECV},
	{"write", WRITE, GOOD, GOOD, NONE, FINE},
	{"write imm", WIMM, GOOD, GOOD, GOOD, FINE_RECV},
	{"write imm, receive of no use", WIMM, GOOD, GOOD, BAD_KEY, FINE_RECV},
	{"read", READ, GOOD, GOOD, NONE, FINE},
	{"fetch add", FADD, GOOD, GOOD, NONE, FINE},
	{"compare swap", CSWP, GOOD, GOOD, NONE, FINE},

	{"recv too short", SEND_OP, GOOD, GOOD, TOO_SHORT, IBV_WC_REM_INV_REQ_ERR,
	 IBV_WC_LOC_LEN_ERR, NO_EVENT, .peer_dead = true},
	{"recv imm too short", IMM, GOOD, GOOD, TOO_SHORT, IBV_WC_REM_INV_REQ_ERR,
	 IBV_WC_LOC_LEN_ERR, NO_EVENT, .peer_dead = true},
	{"recv bad lkey", SEND_OP, GOOD, GOOD, BAD_KEY, RECV_PROT},
	{"recv MR gone", SEND_OP, GOOD, GOOD, GONE, RECV_PROT},
	{"recv beyond MR", SEND_OP, GOOD, GOOD, RANGE, RECV_PROT},
	{"recv wraps", SEND_OP, GOOD, GOOD, WRAP, RECV_PROT},
	{"recv MR read-only", SEND_OP, GOOD, GOOD, RIGHTS, RECV_PROT},
	{"recv MR of other PD", SEND_OP, GOOD, GOOD, OTHER_PD, RECV_PROT},
	{"recv SGE too long", SEND_OP, GOOD, GOOD, TOO_LONG, FINE_RECV},
	{"no recv", SEND_OP, GOOD, GOOD, NONE, IBV_WC_RNR_RETRY_EXC_ERR, NOTHING, NO_EVENT,
	 .peer_dead = false},
	{"no recv for imm", WIMM, GOOD, GOOD, NONE, IBV_WC_RNR_RETRY_EXC_ERR, NOTHING, NO_EVENT,
	 .peer_dead = false},

	{"send bad lkey", SEND_OP, BAD_KEY, GOOD, GOOD, LOCAL_PROT},
	{"send MR gone", SEND_OP, GONE, GOOD, GOOD, LOCAL_PROT},
	{"send beyond MR", SEND_OP, RANGE, GOOD, GOOD, LOCAL_PROT},
	{"send wraps", SEND_OP, WRAP, GOOD, GOOD, LOCAL_PROT},
	{"send MR of other PD", SEND_OP, OTHER_PD, GOOD, GOOD, LOCAL_PROT},
	{"send MR read-only", SEND_OP, RIGHTS, GOOD, GOOD, FINE_RECV},
	{"write bad lkey", WRITE, BAD_KEY, GOOD, NONE, LOCAL_PROT},
	{"write MR gone", WRITE, GONE, GOOD, NONE, LOCAL_PROT},
	{"write beyond MR", WRITE, RANGE, GOOD, NONE, LOCAL_PROT},
	{"write MR of other PD", WRITE, OTHER_PD, GOOD, NONE, LOCAL_PROT},
	{"read bad lkey", READ, BAD_KEY, GOOD, NONE, LOCAL_PROT},
	{"read MR gone", READ, GONE, GOOD, NONE, LOCAL_PROT},
	{"read beyond MR", READ, RANGE, GOOD, NONE, LOCAL_PROT},
	{"read MR read-only", READ, RIGHTS, GOOD, NONE, LOCAL_PROT},
	{"read MR of other PD", READ, OTHER_PD, GOOD, NONE, LOCAL_PROT},
	{"fetch add bad lkey", FADD, BAD_KEY, GOOD, NONE, LOCAL_PROT},
	{"fetch add MR read-only", FADD, RIGHTS, GOOD, NONE, LOCAL_PROT},
	{"compare swap bad lkey", CSWP, BAD_KEY, GOOD, NONE, LOCAL_PROT},
	{"compare swap beyond MR", CSWP, RANGE, GOOD, NONE, LOCAL_PROT},

	{"write bad rkey", WRITE, GOOD, BAD_KEY, NONE, RM_ACCESS},
	{"write remote MR gone", WRITE, GOOD, GONE, NONE, RM_ACCESS},
	{"write beyond remote MR", WRITE, GOOD, RANGE, NONE, RM_ACCESS},
	{"write remote wraps", WRITE, GOOD, WRAP, NONE, RM_ACCESS},
	{"write no right", WRITE, GOOD, RIGHTS, NONE, RM_ACCESS},
	{"write remote other PD", WRITE, GOOD, OTHER_PD, NONE, RM_ACCESS},
	{"read bad rkey", READ, GOOD, BAD_KEY, NONE, RM_ACCESS},
	{"read remote MR gone", READ, GOOD, GONE, NONE, RM_ACCESS},
	{"read beyond remote MR", READ, GOOD, RANGE, NONE, RM_ACCESS},
	{"read remote wraps", READ, GOOD, WRAP, NONE, RM_ACCESS},
	{"read no right", READ, GOOD, RIGHTS, NONE, RM_ACCESS},
	{"read remote other PD", READ, GOOD, OTHER_PD, NONE, RM_ACCESS},
	{"fetch add bad rkey", FADD, GOOD, BAD_KEY, NONE, RM_ACCESS},
	{"fetch add beyond remote MR", FADD, GOOD, RANGE, NONE, RM_ACCESS, 8, 0, 0},
	{"fetch add no right", FADD, GOOD, RIGHTS, NONE, RM_ACCESS},
	{"compare swap bad rkey", CSWP, GOOD, BAD_KEY, NONE, RM_ACCESS},
	{"compare swap other PD", CSWP, GOOD, OTHER_PD, NONE, RM_ACCESS},
	{"read, both bad", READ, BAD_KEY, BAD_KEY, NONE, RM_ACCESS},
	{"write, both bad", WRITE, BAD_KEY, BAD_KEY, NONE, LOCAL_PROT},
	{"fetch add, both bad", FADD, BAD_KEY, BAD_KEY, NONE, RM_ACCESS},
	{"write imm bad rkey", WIMM, GOOD, BAD_KEY, GOOD, IBV_WC_REM_ACCESS_ERR,
	 IBV_WC_LOC_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR, .peer_dead = true},
	{"write imm no right", WIMM, GOOD, RIGHTS, GOOD, IBV_WC_REM_ACCESS_ERR,
	 IBV_WC_LOC_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR, .peer_dead = true},

	{"fetch add misaligned", FADD, GOOD, GOOD, NONE, DENIED, 8, 4, 0},
	{"fetch add misaligned, bad rkey", FADD, GOOD, BAD_KEY, NONE, DENIED, 8, 1, 0},
	{"compare swap misaligned", CSWP, GOOD, GOOD, NONE, DENIED, 8, 7, 0},
	{"compare swap misaligned, both bad", CSWP, BAD_KEY, BAD_KEY, NONE, DENIED, 8, 2, 0},
	{"fetch add of 4", FADD, GOOD, GOOD, NONE, IBV_WC_LOC_LEN_ERR, NOTHING, NO_EVENT,
	 .peer_dead = false, 4, 0, 0},
	{"compare swap of 16", CSWP, GOOD, GOOD, NONE, IBV_WC_LOC_LEN_ERR, NOTHING, NO_EVENT,
	 .peer_dead = false, 16, 0, 0},
	{"write not enabled", WRITE, GOOD, GOOD, NONE, DENIED, 0, 0, IBV_ACCESS_REMOTE_WRITE},
	{"write imm not enabled", WIMM, GOOD, GOOD, NONE, DENIED, 0, 0, IBV_ACCESS_REMOTE_WRITE},
	{"read not enabled", READ, GOOD, GOOD, NONE, DENIED, 0, 0, IBV_ACCESS_REMOTE_READ},
	{"fetch add not enabled", FADD, GOOD, GOOD, NONE, DENIED, 0, 0, IBV_ACCESS_REMOTE_ATOMIC},
	{"compare swap not enabled", CSWP, GOOD, GOOD, NONE, DENIED, 0, 0,
	 IBV_ACCESS_REMOTE_ATOMIC},
};

struct world {
	struct env e;
	struct ibv_cq *peer_cq;
	struct ibv_pd *other_pd;
	struct ibv_mr *other, *readable;
	uint32_t gone;
};

static void world_open(struct world *w)
{
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_mr *mr;

	env_open(&w->e);
	w->peer_cq = ibv_create_cq(w->e.ctx, 64, NULL, NULL, 0);
	w->other_pd = ibv_alloc_pd(w->e.ctx);
	CHECK(w->peer_cq && w->other_pd);
	w->other = ibv_reg_mr(w->other_pd, w->e.buf, BUF_SIZE, all);
	w->readable = ibv_reg_mr(w->e.pd, w->e.buf, BUF_SIZE, 0);
	mr = ibv_reg_mr(w->e.pd, w->e.buf, BUF_SIZE, all);
	CHECK(w->other && w->readable && mr);
	w->gone = mr->lkey;
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(fcntl(w->e.ctx->async_fd, F_SETFL, O_NONBLOCK), 0);
}

static void world_close(struct world *w)
{
	CHECK_EQ(ibv_dereg_mr(w->other), 0);
	CHECK_EQ(ibv_dereg_mr(w->readable), 0);
	CHECK_EQ(ibv_destroy_cq(w->peer_cq), 0);
	CHECK_EQ(ibv_dealloc_pd(w->other_pd), 0);
	env_close(&w->e);
}

/* Memory with a fault: an SGE, or where a remote address and rkey come from. */
static struct ibv_sge faulty(const struct world *w, enum fault fault, uint32_t offset,
			     uint32_t length)
{
	struct ibv_sge sge = sge_at(&w->e, offset, length);

	switch (fault) {
	case BAD_KEY:
		sge.lkey ^= 0x5a5a5a5a;
		break;
	case GONE:
		sge.lkey = w->gone;
		break;
	case RANGE:
		/* A multiple of 8, for atomics: the MR ends inside or right before. */
		sge.addr = (uintptr_t)w->e.buf + BUF_SIZE - (length <= 8 ? 0 : 8);
		break;
	case WRAP:
		sge.addr = UINT64_MAX - 7;
		sge.length = length < 16 ? 16 : length;
		break;
	case RIGHTS:
		sge.lkey = w->readable->lkey;
		break;
	case OTHER_PD:
		sge.lkey = w->other->lkey;
		break;
	case TOO_SHORT:
		sge.length = length - 1;
		break;
	case TOO_LONG:
		sge.length = 1u << 30;
		break;
	default:
		break;
	}
	return sge;
}

/* A pair whose responder grants access but for no_access. */
static void connect_for(struct world *w, struct ibv_qp *a, struct ibv_qp *b, int no_access)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
				   .port_num = 1,
				   .qp_access_flags =
					   (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
					    IBV_ACCESS_REMOTE_ATOMIC) &
					   ~no_access};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
				  .timeout = 14,
				  .retry_cnt = 7,
				  .rnr_retry = 1,
				  .max_rd_atomic = 4};

	to_init(a);
	CHECK_EQ(
		ibv_modify_qp(b, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		0);
	to_rtr(&w->e, a, b->qp_num);
	to_rtr(&w->e, b, a->qp_num);
	CHECK_EQ(ibv_modify_qp(a, &rts,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
	to_rts(b);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	return attr.qp_state;
}

/* The next asynchronous event that is not about a connection's beginning, NO_EVENT if none. */
static int next_event(struct world *w, const struct ibv_qp *qp)
{
	struct ibv_async_event event;

	while (ibv_get_async_event(w->e.ctx, &event) == 0) {
		enum ibv_event_type type = event.event_type;

		CHECK(event.element.qp == qp || type == IBV_EVENT_COMM_EST);
		ibv_ack_async_event(&event);
		if (type != IBV_EVENT_COMM_EST)
			return (int)type;
	}
	CHECK_EQ(errno, EAGAIN);
	return NO_EVENT;
}

static void run_row(struct world *w, const struct row *row, uint32_t length, bool signaled)
{
	struct ibv_qp_init_attr init = env_qp_attr(&w->e);
	struct ibv_sge local = faulty(w, row->local, SRC, length);
	struct ibv_sge remote = faulty(w, row->remote, DST, length);
	struct ibv_sge in = faulty(w, row->recv, RECV, length);
	struct ibv_send_wr wr = {.wr_id = 1,
				 .sg_list = &local,
				 .num_sge = 1,
				 .opcode = row->opcode,
				 .send_flags = signaled ? IBV_SEND_SIGNALED : 0};
	struct ibv_send_wr *bad;
	struct ibv_qp *a, *b;
	struct ibv_wc wc[4];
	bool ok = row->status == IBV_WC_SUCCESS;

	a = ibv_create_qp(w->e.pd, &init);
	init.send_cq = init.recv_cq = w->peer_cq;
	b = ibv_create_qp(w->e.pd, &init);
	CHECK(a && b);
	connect_for(w, a, b, row->no_access);
	memset(w->e.buf + DST, 0xee, PART);
	memset(w->e.buf + RECV, 0xee, PART);
	if (row->recv != NONE)
		CHECK_EQ(post_recv_at(b, 7, &in), 0);
	if (row->opcode == FADD || row->opcode == CSWP) {
		wr.wr.atomic.remote_addr = remote.addr + row->misalign;
		wr.wr.atomic.rkey = remote.lkey;
	} else {
		wr.wr.rdma.remote_addr = remote.addr;
		wr.wr.rdma.rkey = remote.lkey;
	}
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	/* What is behind it: of a failure it is flushed, else it shows that all is well. */
	wr = (struct ibv_send_wr){.wr_id = 2, .opcode = WRITE, .send_flags = IBV_SEND_SIGNALED};
	if (row->no_access & IBV_ACCESS_REMOTE_WRITE || !ok || row->local == GOOD)
		CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	else
		wr.wr_id = 0;

	if (!ok || signaled) {
		wait_wc(w->e.cq, 1, wc);
		CHECK_EQ(wc[0].wr_id, 1);
		CHECK_EQ(wc[0].qp_num, a->qp_num);
		CHECK_EQ(wc[0].status, row->status);
	}
	if (wr.wr_id) {
		wait_wc(w->e.cq, 1, wc);
		CHECK_EQ(wc[0].wr_id, 2);
		CHECK_EQ(wc[0].status, ok ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR);
	}
	CHECK_EQ(ibv_poll_cq(w->e.cq, 1, wc), 0);
	CHECK_EQ(state_of(a), ok ? IBV_QPS_RTS : IBV_QPS_ERR);
	CHECK_EQ(state_of(b), row->peer_dead ? IBV_QPS_ERR : IBV_QPS_RTS);

	if (row->recv_status != NOTHING) {
		wait_wc(w->peer_cq, 1, wc);
		CHECK_EQ(wc[0].wr_id, 7);
		CHECK_EQ(wc[0].status, row->recv_status);
	}
	CHECK_EQ(ibv_poll_cq(w->peer_cq, 1, wc), 0);
	CHECK_EQ(next_event(w, b), row->event);
	CHECK_EQ(next_event(w, b), NO_EVENT);
	/* Not a byte is written by what is refused at once. */
	if (!ok && row->opcode != SEND_OP && row->opcode != IMM && row->recv != NONE)
		for (uint32_t i = 0; i < length; i++)
			CHECK_EQ(w->e.buf[DST + i], 0xee);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

/* A peer that is not there for a connection: the retries run out. */
static void peer_states(struct world *w)
{
	static const enum ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_ERR,
						   IBV_QPS_UNKNOWN /* a UD QP */};
	struct ibv_sge sge = sge_at(&w->e, 0, 8);

	for (unsigned int i = 0; i < 4; i++) {
		struct ibv_qp_init_attr init = env_qp_attr(&w->e);
		struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 12, .retry_cnt = 1};
		struct ibv_qp *a = ibv_create_qp(w->e.pd, &init), *b;
		struct ibv_wc wc;

		init.qp_type = states[i] == IBV_QPS_UNKNOWN ? IBV_QPT_UD : IBV_QPT_RC;
		init.send_cq = init.recv_cq = w->peer_cq;
		b = ibv_create_qp(w->e.pd, &init);
		CHECK(a && b);
		if (states[i] == IBV_QPS_UNKNOWN) {
			struct ibv_qp_attr ud = {.qp_state = IBV_QPS_INIT, .port_num = 1};

			CHECK_EQ(ibv_modify_qp(b, &ud,
					       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						       IBV_QP_QKEY),
				 0);
			CHECK_EQ(post_recv_at(b, 0, &sge), 0);
			to_state(b, IBV_QPS_RTR);
		} else if (states[i] != IBV_QPS_RESET) {
			to_init(b);
			if (states[i] == IBV_QPS_ERR)
				to_state(b, IBV_QPS_ERR);
		}
		to_init(a);
		to_rtr(&w->e, a, b->qp_num);
		CHECK_EQ(ibv_modify_qp(a, &attr,
				       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC),
			 0);
		CHECK_EQ(post_send_at(a, 3, &sge, 0), 0);
		wait_wc(w->e.cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
		CHECK_EQ(ibv_poll_cq(w->peer_cq, 1, &wc), 0);
		CHECK_EQ(next_event(w, b), NO_EVENT);
		CHECK_EQ(ibv_destroy_qp(a), 0);
		CHECK_EQ(ibv_destroy_qp(b), 0);
	}
}

/* No bytes: neither key nor address matters. Without a READ depth a READ cannot be. */
static void zero_length(struct world *w)
{
	static const enum ibv_wr_opcode opcodes[] = {WRITE, READ, WIMM};
	struct ibv_qp_init_attr init = env_qp_attr(&w->e);
	struct ibv_qp *a = ibv_create_qp(w->e.pd, &init), *b = ibv_create_qp(w->e.pd, &init);
	struct ibv_wc wc[2];

	CHECK(a && b);
	connect_pair(&w->e, a, b);
	for (unsigned int i = 0; i < 3; i++) {
		struct ibv_send_wr wr = {.opcode = opcodes[i],
					 .send_flags = IBV_SEND_SIGNALED,
					 .wr.rdma = {.remote_addr = 12345, .rkey = 0xbad}};
		struct ibv_send_wr *bad;

		if (opcodes[i] == WIMM)
			CHECK_EQ(post_recv_at(b, 0, NULL), 0);
		CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
		wait_wc(w->e.cq, opcodes[i] == WIMM ? 2 : 1, wc);
		CHECK_EQ(wc[0].status, IBV_WC_SUCCESS);
		if (opcodes[i] == WIMM)
			CHECK_EQ(wc[1].status, IBV_WC_SUCCESS);
	}
	CHECK_EQ(next_event(w, b), NO_EVENT);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

static void no_read_depth(struct world *w)
{
	struct ibv_qp_init_attr init = env_qp_attr(&w->e);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 12, .retry_cnt = 1};
	struct ibv_qp *a = ibv_create_qp(w->e.pd, &init);
	struct ibv_sge sge = sge_at(&w->e, 0, 8);
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = READ};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	CHECK(a);
	to_init(a);
	to_rtr(&w->e, a, a->qp_num);
	CHECK_EQ(ibv_modify_qp(a, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(w->e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_LOC_QP_OP_ERR);
	CHECK_EQ(ibv_destroy_qp(a), 0);
}

static struct ibv_qp *ud_qp(struct world *w, struct ibv_cq *cq, uint32_t qkey)
{
	struct ibv_qp_init_attr init = env_qp_attr(&w->e);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey};
	struct ibv_qp *qp;

	init.qp_type = IBV_QPT_UD;
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(w->e.pd, &init);
	CHECK(qp);
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
		 0);
	to_state(qp, IBV_QPS_RTR);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	return qp;
}

/* Sends a datagram. @return its status, NOTHING where posting was refused with EINVAL */
static int ud_send(struct world *w, struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn,
		   uint32_t qkey, uint32_t length, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = sge_at(&w->e, SRC, length);
	struct ibv_send_wr wr = {.wr_id = 4,
				 .sg_list = &sge,
				 .num_sge = length ? 1 : 0,
				 .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.ud = {.ah = ah, .remote_qpn = qpn, .remote_qkey = qkey}};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int error = ibv_post_send(qp, &wr, &bad);

	if (error) {
		CHECK_EQ(error, EINVAL);
		return NOTHING;
	}
	wait_wc(w->e.cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 4);
	return wc.status;
}

static void datagrams(struct world *w)
{
	struct ibv_ah_attr ah_attr = {.is_global = 1,
				      .port_num = 1,
				      .grh = {.dgid = w->e.gid, .sgid_index = 1, .hop_limit = 64}};
	struct ibv_qp *a = ud_qp(w, w->e.cq, 5), *b = ud_qp(w, w->peer_cq, 7), *rc, *fresh, *same;
	struct ibv_ah *ah = ibv_create_ah(w->e.pd, &ah_attr);
	struct ibv_ah *other = ibv_create_ah(w->other_pd, &ah_attr);
	struct ibv_qp_init_attr init = env_qp_attr(&w->e);
	struct ibv_sge in = sge_at(&w->e, RECV, 100 + 40), small = sge_at(&w->e, RECV, 99 + 40);
	struct ibv_sge wrong = faulty(w, BAD_KEY, RECV, 4096);
	struct ibv_wc wc;

	CHECK(ah && other);
	/* Nobody listens: SUCCESS, and nothing at the other side. */
	CHECK_EQ(ud_send(w, a, ah, b->qp_num, 7, 100, SEND_OP), IBV_WC_SUCCESS);
	CHECK_EQ(post_recv_at(b, 1, &small), 0);
	CHECK_EQ(ud_send(w, a, ah, b->qp_num, 7, 100, SEND_OP), IBV_WC_SUCCESS);
	CHECK_EQ(ud_send(w, a, ah, b->qp_num, 8, 10, SEND_OP), IBV_WC_SUCCESS);
	CHECK_EQ(ud_send(w, a, ah, 0xfffff0, 7, 10, SEND_OP), IBV_WC_SUCCESS);
	init.send_cq = init.recv_cq = w->peer_cq;
	rc = ibv_create_qp(w->e.pd, &init);
	fresh = ibv_create_qp(w->e.pd, &init);
	CHECK(rc && fresh);
	connect_pair(&w->e, rc, fresh);
	CHECK_EQ(post_recv_at(rc, 0, &in), 0);
	CHECK_EQ(ud_send(w, a, ah, rc->qp_num, 7, 10, SEND_OP), IBV_WC_SUCCESS);
	expect_empty(w->peer_cq);
	CHECK_EQ(state_of(b), IBV_QPS_RTS);
	CHECK_EQ(state_of(rc), IBV_QPS_RTS);
	CHECK_EQ(ibv_destroy_qp(fresh), 0);

	/* What fits goes to the receive that was too small before. */
	for (uint32_t length = 0; length <= 99; length += 99) {
		CHECK_EQ(ud_send(w, a, ah, b->qp_num, 7, length, SEND_OP), IBV_WC_SUCCESS);
		wait_wc(w->peer_cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK_EQ(wc.byte_len, 40 + length);
		CHECK_EQ(wc.src_qp, a->qp_num);
		CHECK(wc.wc_flags & IBV_WC_GRH);
		CHECK_EQ(post_recv_at(b, 1, &small), 0);
	}
	/* The high bit of a Q_Key: the sender's own. */
	same = ud_qp(w, w->peer_cq, 5);
	CHECK_EQ(post_recv_at(same, 8, &in), 0);
	CHECK_EQ(ud_send(w, a, ah, same->qp_num, 0x80000000u, 1, SEND_OP), IBV_WC_SUCCESS);
	wait_wc(w->peer_cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 8);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(ibv_destroy_qp(same), 0);

	CHECK_EQ(ud_send(w, a, ah, b->qp_num, 7, 8, WRITE), NOTHING);
	CHECK_EQ(ud_send(w, a, ah, b->qp_num, 7, 8, READ), NOTHING);
	CHECK_EQ(ud_send(w, a, ah, b->qp_num, 7, 8, FADD), NOTHING);
	expect_empty(w->peer_cq);

	/* Longer than the MTU; an AH of another PD: the send queue stops, SQE lets it go on. */
	CHECK_EQ(ud_send(w, a, ah, b->qp_num, 7, 4097, SEND_OP), IBV_WC_LOC_LEN_ERR);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	a = ud_qp(w, w->e.cq, 5);
	CHECK_EQ(ud_send(w, a, other, b->qp_num, 7, 8, SEND_OP), IBV_WC_LOC_QP_OP_ERR);
	CHECK_EQ(state_of(a), IBV_QPS_SQE);
	CHECK_EQ(ud_send(w, a, ah, b->qp_num, 7, 8, SEND_OP), IBV_WC_WR_FLUSH_ERR);
	to_state(a, IBV_QPS_RTS);
	CHECK_EQ(ud_send(w, a, ah, b->qp_num, 7, 8, SEND_OP), IBV_WC_SUCCESS);
	wait_wc(w->peer_cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	/* A receive with a bad lkey ends that QP. */
	CHECK_EQ(post_recv_at(b, 9, &wrong), 0);
	CHECK_EQ(ud_send(w, a, ah, b->qp_num, 7, 80, SEND_OP), IBV_WC_SUCCESS);
	wait_wc(w->peer_cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 9);
	CHECK_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
	CHECK_EQ(ibv_destroy_ah(other), 0);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_qp(rc), 0);
}

int main(void)
{
	static const uint32_t lengths[] = {8, 64, 300, 3000, 9000};
	struct world w;

	world_open(&w);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		const struct row *row = &table[i];
		bool atomic = row->opcode == FADD || row->opcode == CSWP;

		for (unsigned int k = 0; k < 2 * sizeof(lengths) / sizeof(lengths[0]); k++) {
			uint32_t length = row->length ? row->length : lengths[k / 2];

			/* Atomics have one length; the last variant is skipped as the first. */
			if ((atomic || row->length) && k >= 2)
				break;
			if (getenv("TEST_VERBOSE"))
				fprintf(stderr, "%s, %u bytes\n", row->name, length);
			run_row(&w, row, length, k % 2);
		}
	}
	peer_states(&w);
	zero_length(&w);
	no_read_depth(&w);
	datagrams(&w);
	world_close(&w);
	return 0;
}
