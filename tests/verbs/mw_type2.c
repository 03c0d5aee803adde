// SPDX-License-Identifier: BSD-2-Clause
/*
 * Memory windows of type 2: bound by IBV_WR_BIND_MW for one QP, invalidated by IBV_WR_LOCAL_INV;
 * zero based ones; binds and invalidations that fail; what comes behind them in the queue.
 */
#include "windows.h"

#define READ_WRITE (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

struct test {
	struct pair p, other; /* two QPs on each side */
	struct ibv_mr *mr;    /* of b's buffer */
	struct ibv_mw *mw;
	uintptr_t buf;
};

static enum ibv_wc_status bind_mw(struct test *t, unsigned int access)
{
	return bind_next(&t->p.l.b, t->p.b, t->mw, t->mr, t->buf, 4096, access);
}

/* Invalidates through a QP of side b. @return the status */
static enum ibv_wc_status invalidate(struct test *t, struct ibv_qp *qp, uint32_t rkey)
{
	struct ibv_wc wc;

	CHECK_EQ(post_op(qp, IBV_WR_LOCAL_INV, NULL, 0, rkey), 0);
	wait_wc(t->p.l.b.e.cq, 1, &wc);
	if (wc.status == IBV_WC_SUCCESS)
		CHECK_EQ(wc.opcode, IBV_WC_LOCAL_INV);
	return wc.status;
}

static void life(struct test *t)
{
	uint32_t first;

	expect_shut(&t->p, t->buf, t->mw->rkey);
	CHECK_EQ(bind_mw(t, READ_WRITE), IBV_WC_SUCCESS);
	first = t->mw->rkey;
	expect_open(&t->p, t->buf, first, 4096);
	expect_shut(&t->p, t->buf + 4092, first);
	/* A new connection of the same QP still has it, another QP of the same PD does not. */
	expect_open(&t->p, t->buf, first, 8);
	expect_shut(&t->other, t->buf, first);
	CHECK_EQ(ibv_dereg_mr(t->mr), EBUSY);
	CHECK_EQ(invalidate(t, t->p.b, first), IBV_WC_SUCCESS);
	expect_shut(&t->p, t->buf, first);
	/* Free again: for the other QP too. */
	CHECK_EQ(bind_next(&t->p.l.b, t->other.b, t->mw, t->mr, t->buf, 8, READ_WRITE),
		 IBV_WC_SUCCESS);
	CHECK(t->mw->rkey != first);
	expect_open(&t->other, t->buf, t->mw->rkey, 8);
	expect_shut(&t->p, t->buf, t->mw->rkey);
	expect_shut(&t->other, t->buf, first);
	CHECK_EQ(invalidate(t, t->other.b, t->mw->rkey), IBV_WC_SUCCESS);
}

static void zero_based(struct test *t)
{
	CHECK_EQ(bind_mw(t, READ_WRITE | IBV_ACCESS_ZERO_BASED), IBV_WC_SUCCESS);
	memset(t->p.l.a.e.buf, 0x4d, 100);
	CHECK_EQ(write_to(&t->p, 16, t->mw->rkey, 100), IBV_WC_SUCCESS);
	CHECK(all_are((void *)(t->buf + 16), 0x4d, 100));
	expect_shut(&t->p, t->buf, t->mw->rkey);
	CHECK_EQ(invalidate(t, t->p.b, t->mw->rkey), IBV_WC_SUCCESS);
}

/* Expects a bind error, and connects again. */
static void bad_bind(struct test *t, struct ibv_qp *qp, struct ibv_mw *mw, uint32_t rkey,
		     struct ibv_mr *mr, uint64_t length)
{
	struct ibv_wc wc;

	CHECK_EQ(post_bind(qp, mw, rkey, mr, t->buf, length, READ_WRITE), 0);
	wait_wc(t->p.l.b.e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_MW_BIND_ERR);
	expect_state(qp, IBV_QPS_ERR);
	pair_reconnect(&t->p);
	pair_reconnect(&t->other);
}

static void failures(struct test *t)
{
	struct env *e = &t->p.l.b.e;
	struct ibv_pd *pd = ibv_alloc_pd(e->ctx);
	struct ibv_mr *foreign = ibv_reg_mr(pd, e->buf, BUF_SIZE, WINDOW_MR);
	struct ibv_mw *elsewhere = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw *one = ibv_alloc_mw(e->pd, IBV_MW_TYPE_1);
	uint32_t next = ibv_inc_rkey(t->mw->rkey);

	CHECK(foreign && elsewhere && one);
	bad_bind(t, t->p.b, t->mw, next, t->mr, 0);		   /* of nothing */
	bad_bind(t, t->p.b, t->mw, next, NULL, 8);		   /* no MR */
	bad_bind(t, t->p.b, t->mw, next, foreign, 8);		   /* MR of another PD */
	bad_bind(t, t->p.b, t->mw, next, e->mr, 8);		   /* no right */
	bad_bind(t, t->p.b, t->mw, next, t->mr, BUF_SIZE + 1);	   /* outside */
	bad_bind(t, t->p.b, t->mw, t->mw->rkey, t->mr, 8);	   /* its old key */
	bad_bind(t, t->p.b, t->mw, t->mw->rkey ^ 0x100, t->mr, 8); /* a key of another index */
	bad_bind(t, t->p.b, elsewhere, ibv_inc_rkey(elsewhere->rkey), foreign, 8);
	CHECK_EQ(post_bind(t->p.b, one, ibv_inc_rkey(one->rkey), t->mr, t->buf, 8, 0), EINVAL);
	CHECK_EQ(post_bind(t->p.b, NULL, next, t->mr, t->buf, 8, 0), EINVAL);

	/* Bound, it has to be invalidated first, whoever asks. */
	CHECK_EQ(bind_mw(t, READ_WRITE), IBV_WC_SUCCESS);
	bad_bind(t, t->p.b, t->mw, ibv_inc_rkey(t->mw->rkey), t->mr, 8);
	bad_bind(t, t->other.b, t->mw, ibv_inc_rkey(t->mw->rkey), t->mr, 8);
	expect_open(&t->p, t->buf, t->mw->rkey, 4096);

	/* Only its own QP invalidates it, by its right key, and no MR is invalidated. */
	CHECK_EQ(invalidate(t, t->other.b, t->mw->rkey), IBV_WC_MW_BIND_ERR);
	pair_reconnect(&t->other);
	CHECK_EQ(invalidate(t, t->p.b, t->mw->rkey ^ 1), IBV_WC_MW_BIND_ERR);
	pair_reconnect(&t->p);
	CHECK_EQ(invalidate(t, t->p.b, e->mr->rkey), IBV_WC_MW_BIND_ERR);
	pair_reconnect(&t->p);
	expect_open(&t->p, t->buf, t->mw->rkey, 4096);
	expect_open(&t->p, t->buf, e->mr->rkey, 4096);
	CHECK_EQ(invalidate(t, t->p.b, t->mw->rkey), IBV_WC_SUCCESS);
	CHECK_EQ(invalidate(t, t->p.b, t->mw->rkey), IBV_WC_MW_BIND_ERR);
	pair_reconnect(&t->p);

	CHECK_EQ(ibv_dealloc_mw(elsewhere), 0);
	CHECK_EQ(ibv_dealloc_mw(one), 0);
	CHECK_EQ(ibv_dereg_mr(foreign), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
}

/*
 * In one list: a bind, a SEND that tells of it, an invalidation, a SEND. Completions are in order,
 * the last one's peer may not use the window any more.
 */
static void in_order(struct test *t)
{
	uint32_t rkey = ibv_inc_rkey(t->mw->rkey);
	struct ibv_sge sge = sge_at(&t->p.l.b.e, 8192, 4), in = sge_at(&t->p.l.a.e, 8192, 8);
	struct ibv_send_wr *bad,
		wr[4] = {
			{.wr_id = 0,
			 .opcode = IBV_WR_BIND_MW,
			 .bind_mw = {t->mw, rkey, {t->mr, t->buf, 4096, READ_WRITE}}},
			{.wr_id = 1, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1},
			{.wr_id = 2, .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey},
			{.wr_id = 3, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1},
		};
	struct ibv_wc wc[4];

	for (int i = 0; i < 4; i++) {
		wr[i].send_flags = IBV_SEND_SIGNALED;
		wr[i].next = i < 3 ? &wr[i + 1] : NULL;
		if (i % 2)
			CHECK_EQ(post_recv_at(t->p.a, 10, &in), 0);
	}
	CHECK_EQ(ibv_post_send(t->p.b, wr, &bad), 0);
	wait_wc(t->p.l.b.e.cq, 4, wc);
	for (int i = 0; i < 4; i++) {
		CHECK_EQ(wc[i].wr_id, i);
		CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
	}
	CHECK_EQ(wc[0].opcode, IBV_WC_BIND_MW);
	CHECK_EQ(wc[2].opcode, IBV_WC_LOCAL_INV);
	wait_wc(t->p.l.a.e.cq, 2, wc);
	t->mw->rkey = rkey;
	expect_shut(&t->p, t->buf, rkey);
	/* Behind a failed request nothing is done: flushed, in order. */
	wr[0].bind_mw.rkey = rkey;
	CHECK_EQ(ibv_post_send(t->p.b, wr, &bad), 0);
	wait_wc(t->p.l.b.e.cq, 4, wc);
	for (int i = 0; i < 4; i++) {
		CHECK_EQ(wc[i].wr_id, i);
		CHECK_EQ(wc[i].status, i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_MW_BIND_ERR);
	}
	pair_reconnect(&t->p);
}

int main(int argc, char **argv)
{
	struct ibv_device_attr attr;
	struct test t;
	struct env *e = &t.p.l.b.e;

	pair_open(&t.p, argc, argv);
	CHECK_EQ(ibv_query_device(e->ctx, &attr), 0);
	CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	t.other = t.p;
	t.other.a = link_qp(&t.p.l.a, IBV_QPT_RC);
	t.other.b = link_qp(&t.p.l.b, IBV_QPT_RC);
	pair_connect(&t.other);
	t.mr = ibv_reg_mr(e->pd, e->buf, BUF_SIZE, WINDOW_MR);
	t.mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_2);
	CHECK(t.mr && t.mw && t.mw->type == IBV_MW_TYPE_2);
	t.buf = (uintptr_t)e->buf;
	life(&t);
	zero_based(&t);
	failures(&t);
	in_order(&t);
	CHECK_EQ(bind_mw(&t, READ_WRITE), IBV_WC_SUCCESS);
	CHECK_EQ(ibv_dereg_mr(t.mr), EBUSY);
	CHECK_EQ(ibv_dealloc_mw(t.mw), 0);
	CHECK_EQ(ibv_dereg_mr(t.mr), 0);
	CHECK_EQ(ibv_destroy_qp(t.other.a), 0);
	CHECK_EQ(ibv_destroy_qp(t.other.b), 0);
	pair_close(&t.p);
	return 0;
}
