// SPDX-License-Identifier: BSD-2-Clause
/*
 * FLUSH as ibv_wr_flush() posts it, over RC and XRC: complete when what was written before is in
 * place; for a range and a whole MR; which rights it wants, and what is refused before it leaves.
 * And SEND_WITH_INV over XRC, which finds no window to invalidate: those of type 2 are bound to a
 * QP that posts.
 */
#include <fcntl.h>

#include "windows.h"

#define WRITES 8
#define LEN 3000 /* bytes of each WRITE; not of one packet */
#define BOTH (VERNIC_FLUSH_GLOBAL | VERNIC_FLUSH_PERSISTENT)

/* The end of struct ibv_qp_ex as of rdma-core 45, which the headers at hand may be older than. */
struct qp_ex_flush {
	uint8_t head[offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof(void (*)(void))];
	void (*wr_flush)(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr, size_t len,
			 uint8_t type, uint8_t level);
};

struct test {
	struct pair p;	      /* RC; its QP at side b binds windows */
	struct ibv_qp *a, *b; /* what is tested: RC, or the halves of XRC */
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	uint32_t srqn;
	struct ibv_mr *mr; /* side b's memory, with all rights */
	uint64_t at;	   /* its address */
};

static struct ibv_qp *make_sender(struct test *t, enum ibv_qp_type type, uint64_t ops)
{
	struct env *e = &t->p.l.a.e;
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = e->cq,
		.recv_cq = type == IBV_QPT_XRC_SEND ? NULL : e->cq,
		.cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 2, .max_recv_sge = 1},
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = e->pd,
		.send_ops_flags = ops,
	};

	return ibv_create_qp_ex(e->ctx, &attr);
}

/* Side b of XRC: a domain, its SRQ, and the target. */
static void make_target(struct test *t)
{
	struct env *e = &t->p.l.b.e;
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_srq_init_attr_ex srq = {
		.attr = {.max_wr = 16, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = e->pd,
		.cq = e->cq,
	};
	struct ibv_qp_init_attr_ex qp = {.qp_type = IBV_QPT_XRC_RECV,
					 .comp_mask = IBV_QP_INIT_ATTR_XRCD};

	t->xrcd = srq.xrcd = qp.xrcd = ibv_open_xrcd(e->ctx, &domain);
	CHECK(t->xrcd);
	t->srq = ibv_create_srq_ex(e->ctx, &srq);
	CHECK(t->srq);
	CHECK_EQ(ibv_get_srq_num(t->srq, &t->srqn), 0);
	t->b = ibv_create_qp_ex(e->ctx, &qp);
	CHECK(t->b);
}

static void to_init_with(struct ibv_qp *qp, unsigned int access)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
				   .port_num = 1,
				   .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | access};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

	CHECK_EQ(ibv_modify_qp(qp, &attr, mask), 0);
}

/* Connects what is tested anew. @access: of side b, besides REMOTE_WRITE */
static void reconnect(struct test *t, unsigned int access)
{
	struct link *l = &t->p.l;

	drop_events(&l->a);
	drop_events(&l->b);
	to_state(t->a, IBV_QPS_RESET);
	to_state(t->b, IBV_QPS_RESET);
	to_init_with(t->a, 0);
	to_init_with(t->b, access);
	to_rtr(&l->b.e, t->a, t->b->qp_num);
	to_rtr(&l->a.e, t->b, t->a->qp_num);
	to_rts(t->a);
	to_rts(t->b);
}

/* Begins a batch of signaled, or unsignaled, work requests. */
static struct ibv_qp_ex *start(struct test *t, unsigned int flags)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(t->a);

	CHECK(ex);
	ibv_wr_start(ex);
	ex->wr_id = 5;
	ex->wr_flags = flags;
	return ex;
}

/* The work request being built says where it goes. */
static void address(struct test *t, struct ibv_qp_ex *ex)
{
	if (t->a->qp_type == IBV_QPT_XRC_SEND)
		ibv_wr_set_xrc_srqn(ex, t->srqn);
}

static void build_flush(struct test *t, struct ibv_qp_ex *ex, uint32_t rkey, uint64_t at,
			size_t len, uint8_t type, uint8_t level)
{
	((struct qp_ex_flush *)ex)->wr_flush(ex, rkey, at, len, type, level);
	address(t, ex);
}

/* Posts a FLUSH alone. @return its status */
static enum ibv_wc_status flush(struct test *t, uint32_t rkey, uint64_t at, size_t len,
				uint8_t type, uint8_t level)
{
	struct ibv_qp_ex *ex = start(t, IBV_SEND_SIGNALED);
	struct ibv_wc wc;

	build_flush(t, ex, rkey, at, len, type, level);
	CHECK_EQ(ibv_wr_complete(ex), 0);
	wait_wc(t->p.l.a.e.cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 5);
	CHECK_EQ(wc.qp_num, t->a->qp_num);
	if (wc.status == IBV_WC_SUCCESS)
		CHECK_EQ(wc.opcode, VERNIC_WC_FLUSH);
	return wc.status;
}

/* WRITEs that tell nobody of themselves, and a FLUSH in the same batch that does for all. */
static void places(struct test *t)
{
	struct env *a = &t->p.l.a.e;

	reconnect(t, VERNIC_ACCESS_FLUSH);
	for (int round = 1; round <= 12; round++) {
		bool whole = round % 2;
		struct ibv_qp_ex *ex;
		struct ibv_wc wc;

		memset(a->buf, round, LEN);
		ex = start(t, 0);
		for (int i = 0; i < WRITES; i++) {
			ibv_wr_rdma_write(ex, t->mr->rkey, t->at + (uint32_t)i * LEN);
			address(t, ex);
			ibv_wr_set_sge(ex, a->mr->lkey, (uintptr_t)a->buf, LEN);
		}
		ex->wr_flags = IBV_SEND_SIGNALED;
		build_flush(t, ex, t->mr->rkey, whole ? 0 : t->at, WRITES * LEN,
			    (uint8_t)(1 + round % 3), whole ? VERNIC_FLUSH_MR : VERNIC_FLUSH_RANGE);
		CHECK_EQ(ibv_wr_complete(ex), 0);
		wait_wc(a->cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK_EQ(wc.opcode, VERNIC_WC_FLUSH);
		CHECK(all_are(t->p.l.b.e.buf, (uint8_t)round, WRITES * LEN));
	}
	expect_empty(a->cq);
}

/* What side b refuses: no right of the QP, of the MR; more than the MR; no MR. */
static void denied(struct test *t)
{
	struct env *b = &t->p.l.b.e;
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *lasting = ibv_reg_mr(b->pd, b->buf, BUF_SIZE,
					    access | VERNIC_ACCESS_FLUSH_PERSISTENT);
	uint32_t rkey = t->mr->rkey;

	CHECK(lasting);
	reconnect(t, VERNIC_ACCESS_FLUSH_GLOBAL);
	CHECK_EQ(flush(t, rkey, t->at, 8, VERNIC_FLUSH_GLOBAL, VERNIC_FLUSH_RANGE), IBV_WC_SUCCESS);
	CHECK_EQ(flush(t, rkey, t->at, 8, BOTH, VERNIC_FLUSH_RANGE), IBV_WC_REM_INV_REQ_ERR);
	reconnect(t, VERNIC_ACCESS_FLUSH);
	CHECK_EQ(flush(t, lasting->rkey, 0, 0, VERNIC_FLUSH_PERSISTENT, VERNIC_FLUSH_MR),
		 IBV_WC_SUCCESS);
	CHECK_EQ(flush(t, lasting->rkey, 0, 0, BOTH, VERNIC_FLUSH_MR), IBV_WC_REM_ACCESS_ERR);
	reconnect(t, VERNIC_ACCESS_FLUSH);
	CHECK_EQ(flush(t, b->mr->rkey, t->at, 8, VERNIC_FLUSH_GLOBAL, VERNIC_FLUSH_RANGE),
		 IBV_WC_REM_ACCESS_ERR);
	reconnect(t, VERNIC_ACCESS_FLUSH);
	CHECK_EQ(flush(t, rkey, t->at, BUF_SIZE, BOTH, VERNIC_FLUSH_RANGE), IBV_WC_SUCCESS);
	CHECK_EQ(flush(t, rkey, t->at + 1, BUF_SIZE, BOTH, VERNIC_FLUSH_RANGE),
		 IBV_WC_REM_ACCESS_ERR);
	rkey = lasting->rkey;
	CHECK_EQ(ibv_dereg_mr(lasting), 0);
	reconnect(t, VERNIC_ACCESS_FLUSH);
	CHECK_EQ(flush(t, rkey, 0, 0, VERNIC_FLUSH_PERSISTENT, VERNIC_FLUSH_MR),
		 IBV_WC_REM_ACCESS_ERR);
}

/* What does not leave side a. */
static void malformed(struct test *t)
{
	static const struct {
		uint8_t type, level;
	} wrong[] = {{0, VERNIC_FLUSH_RANGE},
		     {BOTH + 1, VERNIC_FLUSH_RANGE},
		     {BOTH, VERNIC_FLUSH_MR + 1}};
	struct env *a = &t->p.l.a.e;
	struct ibv_sge sge = sge_at(a, 0, 8);
	struct ibv_qp_ex *ex;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		reconnect(t, VERNIC_ACCESS_FLUSH);
		CHECK_EQ(flush(t, t->mr->rkey, t->at, 8, wrong[i].type, wrong[i].level),
			 IBV_WC_LOC_QP_OP_ERR);
		expect_state(t->b, IBV_QPS_RTS);
	}
	reconnect(t, VERNIC_ACCESS_FLUSH);
	/* It has no payload, and a struct ibv_send_wr has no place for what it has. */
	ex = start(t, IBV_SEND_SIGNALED);
	build_flush(t, ex, t->mr->rkey, t->at, 8, BOTH, VERNIC_FLUSH_RANGE);
	ibv_wr_set_sge(ex, sge.lkey, sge.addr, sge.length);
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);
	CHECK_EQ(post_op(t->a, (enum ibv_wr_opcode)VERNIC_WR_FLUSH, NULL, t->at, t->mr->rkey),
		 EINVAL);
	errno = 0;
	CHECK(!make_sender(t, IBV_QPT_UC, VERNIC_QP_EX_WITH_FLUSH));
	CHECK_EQ(errno, EOPNOTSUPP);
	CHECK_EQ(flush(t, t->mr->rkey, t->at, 8, BOTH, VERNIC_FLUSH_RANGE), IBV_WC_SUCCESS);
}

static void flushes(struct test *t)
{
	places(t);
	denied(t);
	malformed(t);
}

/* The receive and the connection fail at both ends; the window lives on. */
static void invalidate_over_xrc(struct test *t)
{
	static const uint32_t lens[] = {8, LEN};
	struct side *b = &t->p.l.b;
	struct ibv_mr *mr = ibv_reg_mr(b->e.pd, b->e.buf, BUF_SIZE, WINDOW_MR);
	struct ibv_mw *mw = ibv_alloc_mw(b->e.pd, IBV_MW_TYPE_2);

	CHECK(mr && mw);
	CHECK_EQ(bind_next(b, t->p.b, mw, mr, t->at, 4096, IBV_ACCESS_REMOTE_WRITE),
		 IBV_WC_SUCCESS);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		struct ibv_sge in = sge_at(&b->e, 0, lens[i]);
		struct ibv_recv_wr *bad, recv = {.wr_id = 6, .sg_list = &in, .num_sge = 1};
		struct env *a = &t->p.l.a.e;
		struct ibv_qp_ex *ex;
		struct ibv_wc wc;

		reconnect(t, 0);
		CHECK_EQ(ibv_post_srq_recv(t->srq, &recv, &bad), 0);
		ex = start(t, IBV_SEND_SIGNALED);
		ibv_wr_send_inv(ex, mw->rkey);
		address(t, ex);
		ibv_wr_set_sge(ex, a->mr->lkey, (uintptr_t)a->buf, lens[i]);
		CHECK_EQ(ibv_wr_complete(ex), 0);
		CHECK_EQ(next_status(&t->p.l.a), IBV_WC_REM_ACCESS_ERR);
		wait_wc(b->e.cq, 1, &wc);
		CHECK_EQ(wc.wr_id, 6);
		CHECK_EQ(wc.status, IBV_WC_LOC_ACCESS_ERR);
		expect_state(t->b, IBV_QPS_ERR);
		CHECK_EQ(write_to(&t->p, t->at, mw->rkey, 8), IBV_WC_SUCCESS);
	}
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

int main(int argc, char **argv)
{
	const uint64_t ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_INV |
			     VERNIC_QP_EX_WITH_FLUSH;
	struct test t = {0};
	struct env *b = &t.p.l.b.e;

	pair_open(&t.p, argc, argv);
	t.at = (uintptr_t)b->buf;
	t.mr = ibv_reg_mr(b->pd, b->buf, BUF_SIZE, ALL_RIGHTS | VERNIC_ACCESS_FLUSH);
	CHECK(t.mr);

	t.a = make_sender(&t, IBV_QPT_RC, ops);
	t.b = link_qp(&t.p.l.b, IBV_QPT_RC);
	CHECK(t.a);
	flushes(&t);
	CHECK_EQ(ibv_destroy_qp(t.a), 0);
	CHECK_EQ(ibv_destroy_qp(t.b), 0);

	t.a = make_sender(&t, IBV_QPT_XRC_SEND, ops);
	CHECK(t.a);
	make_target(&t);
	flushes(&t);
	invalidate_over_xrc(&t);
	CHECK_EQ(ibv_destroy_qp(t.a), 0);
	CHECK_EQ(ibv_destroy_qp(t.b), 0);
	CHECK_EQ(ibv_destroy_srq(t.srq), 0);
	CHECK_EQ(ibv_close_xrcd(t.xrcd), 0);

	CHECK_EQ(ibv_dereg_mr(t.mr), 0);
	pair_close(&t.p);
	return 0;
}
