// SPDX-License-Identifier: BSD-2-Clause
/*
 * Memory windows of type 1: bound by ibv_bind_mw(), for all QPs of the PD, with a new key each
 * time; what they let through and what not; binds that fail; what a MR with windows refuses.
 */
#include "windows.h"

/* Binds of side b's QP, with its event and CQE. @return the status */
static enum ibv_wc_status bind_mw(struct pair *p, struct ibv_mw *mw, struct ibv_mr *mr,
				  uint64_t addr, uint64_t length, unsigned int access)
{
	struct ibv_mw_bind b = {.wr_id = 77,
				.send_flags = IBV_SEND_SIGNALED,
				.bind_info = {mr, addr, length, access}};
	uint32_t before = mw->rkey;
	struct ibv_wc wc;

	CHECK_EQ(ibv_bind_mw(p->b, mw, &b), 0);
	CHECK(mw->rkey != before && (mw->rkey ^ before) < 256);
	wait_wc(p->l.b.e.cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 77);
	if (wc.status == IBV_WC_SUCCESS)
		CHECK_EQ(wc.opcode, IBV_WC_BIND_MW);
	return wc.status;
}

static void through(struct pair *p)
{
	struct env *e = &p->l.b.e;
	uintptr_t at = (uintptr_t)e->buf + 4096;
	struct ibv_mr *mr = ibv_reg_mr(e->pd, e->buf, BUF_SIZE, WINDOW_MR);
	struct ibv_mw *mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_1);
	struct ibv_sge own = sge_at(&p->l.a.e, 0, 8);
	uint32_t old;

	CHECK(mr && mw && mw->type == IBV_MW_TYPE_1 && mw->pd == e->pd && mw->context == e->ctx);
	expect_shut(p, at, mw->rkey); /* unbound */
	CHECK_EQ(bind_mw(p, mw, mr, at, 4096, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ),
		 IBV_WC_SUCCESS);
	expect_open(p, at, mw->rkey, 4096);
	expect_shut(p, at - 8, mw->rkey);
	expect_shut(p, at + 4092, mw->rkey);
	/* The MR itself has no remote rights, the window no right for atomics, and no lkey. */
	expect_shut(p, at, mr->rkey);
	CHECK_EQ(run_op(p, IBV_WR_ATOMIC_FETCH_AND_ADD, &own, at, mw->rkey), IBV_WC_REM_ACCESS_ERR);
	pair_reconnect(p);
	own = (struct ibv_sge){at, 8, mw->rkey};
	CHECK_EQ(post_send_at(p->b, 0, &own, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(next_status(&p->l.b), IBV_WC_LOC_PROT_ERR);
	pair_reconnect(p);

	/* Bound anew it is elsewhere, and the old key is of no use. */
	old = mw->rkey;
	CHECK_EQ(bind_mw(p, mw, mr, at + 8192, 100,
			 IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ),
		 IBV_WC_SUCCESS);
	expect_open(p, at + 8192, mw->rkey, 100);
	expect_shut(p, at + 8192, old);
	expect_shut(p, at, mw->rkey);

	/* A bound MR stays as and where it is; bound to nothing, the window holds it no more. */
	CHECK_EQ(ibv_dereg_mr(mr), EBUSY);
	CHECK_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, WINDOW_MR),
		 IBV_REREG_MR_ERR_CMD);
	CHECK_EQ(errno, EBUSY);
	expect_open(p, at + 8192, mw->rkey, 100);
	CHECK_EQ(bind_mw(p, mw, mr, at, 0, 0), IBV_WC_SUCCESS);
	expect_shut(p, at + 8192, mw->rkey);
	expect_shut(p, at, mw->rkey);
	CHECK_EQ(bind_mw(p, mw, NULL, 0, 0, 0), IBV_WC_SUCCESS);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
}

/* Deallocated while it is bound: it is no more, and its MR is free. */
static void dealloc(struct pair *p)
{
	struct env *e = &p->l.b.e;
	struct ibv_pd *pd = ibv_alloc_pd(e->ctx);
	struct ibv_mr *mr = ibv_reg_mr(e->pd, e->buf, BUF_SIZE, WINDOW_MR);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	uint32_t rkey;

	CHECK(pd && mr && mw);
	CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_1);
	CHECK(mw);
	CHECK_EQ(bind_mw(p, mw, mr, (uintptr_t)e->buf, 100, IBV_ACCESS_REMOTE_READ),
		 IBV_WC_SUCCESS);
	rkey = mw->rkey;
	CHECK_EQ(read_from(p, (uintptr_t)e->buf, rkey, 100), IBV_WC_SUCCESS);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	expect_shut(p, (uintptr_t)e->buf, rkey);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK(!ibv_alloc_mw(e->pd, (enum ibv_mw_type)3));
	CHECK_EQ(errno, EINVAL);
}

/* What ends a bind in an error of the QP, or never gets so far. */
static void failures(struct pair *p)
{
	struct env *e = &p->l.b.e;
	const uintptr_t buf = (uintptr_t)e->buf;
	struct ibv_pd *other = ibv_alloc_pd(e->ctx);
	struct ibv_mr *mr = ibv_reg_mr(e->pd, e->buf, BUF_SIZE, WINDOW_MR);
	struct ibv_mr *reader = ibv_reg_mr(e->pd, e->buf, BUF_SIZE, IBV_ACCESS_MW_BIND);
	struct ibv_mr *foreign = ibv_reg_mr(other, e->buf, BUF_SIZE, WINDOW_MR);
	struct ibv_mr gone = *mr;
	struct ibv_mw *mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_1);
	struct ibv_mw *two = ibv_alloc_mw(e->pd, IBV_MW_TYPE_2);
	struct ibv_mw *elsewhere = ibv_alloc_mw(other, IBV_MW_TYPE_1);
	struct ibv_mw_bind b = {.bind_info = {mr, buf, 8, IBV_ACCESS_REMOTE_READ}};
	const struct {
		struct ibv_mr *mr;
		uint64_t addr, length;
		unsigned int access;
	} bad[] = {
		{&gone, buf, 8, IBV_ACCESS_REMOTE_READ}, /* no such MR */
		{e->mr, buf, 8, IBV_ACCESS_REMOTE_READ}, /* no right to bind */
		{reader, buf, 8, IBV_ACCESS_REMOTE_WRITE},
		{reader, buf, 8, IBV_ACCESS_REMOTE_ATOMIC},
		{mr, buf - 1, 8, IBV_ACCESS_REMOTE_READ},
		{mr, buf + BUF_SIZE - 7, 8, IBV_ACCESS_REMOTE_READ},
		{mr, UINT64_MAX - 3, 8, IBV_ACCESS_REMOTE_READ},
		{mr, buf, UINT64_MAX - buf + 2, IBV_ACCESS_REMOTE_READ}, /* wraps */
		{mr, buf, UINT64_MAX, IBV_ACCESS_REMOTE_READ},
		{mr, buf, 8, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED},
		{mr, buf, 8, IBV_ACCESS_ON_DEMAND},
	};

	CHECK(other && mr && reader && foreign && mw && two && elsewhere);
	gone.lkey ^= 1;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		CHECK_EQ(bind_mw(p, mw, bad[i].mr, bad[i].addr, bad[i].length, bad[i].access),
			 IBV_WC_MW_BIND_ERR);
		expect_state(p->b, IBV_QPS_ERR);
		pair_reconnect(p);
	}
	/* A right that is not used needs nothing of the MR. */
	CHECK_EQ(bind_mw(p, mw, reader, buf, 8, IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
	CHECK_EQ(read_from(p, buf, mw->rkey, 8), IBV_WC_SUCCESS);
	/* A bind that fails changes nothing: the old key goes on. */
	CHECK_EQ(bind_mw(p, mw, e->mr, buf, 8, IBV_ACCESS_REMOTE_READ), IBV_WC_MW_BIND_ERR);
	pair_reconnect(p);
	CHECK_EQ(read_from(p, buf, (mw->rkey & ~0xffu) | ((mw->rkey - 1) & 0xff), 8),
		 IBV_WC_SUCCESS);

	CHECK_EQ(ibv_bind_mw(p->b, two, &b), EINVAL);
	b.bind_info.mr = foreign;
	CHECK_EQ(ibv_bind_mw(p->b, mw, &b), EPERM);
	b.bind_info.mr = NULL;
	CHECK_EQ(ibv_bind_mw(p->b, mw, &b), EINVAL);
	/* Window and MR are of one PD, but the QP is not. */
	CHECK_EQ(bind_mw(p, elsewhere, foreign, buf, 8, IBV_ACCESS_REMOTE_READ),
		 IBV_WC_MW_BIND_ERR);
	pair_reconnect(p);

	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	CHECK_EQ(ibv_dealloc_mw(two), 0);
	CHECK_EQ(ibv_dealloc_mw(elsewhere), 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(ibv_dereg_mr(reader), 0);
	CHECK_EQ(ibv_dereg_mr(foreign), 0);
	CHECK_EQ(ibv_dealloc_pd(other), 0);
}

/* Another QP of the PD may use it, and bind it. */
static void any_qp(struct pair *p)
{
	struct pair other = *p;
	struct env *e = &p->l.b.e;
	struct ibv_mr *mr = ibv_reg_mr(e->pd, e->buf, BUF_SIZE, WINDOW_MR);
	struct ibv_mw *mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_1);
	uint32_t old;

	other.a = link_qp(&p->l.a, IBV_QPT_RC);
	other.b = link_qp(&p->l.b, IBV_QPT_RC);
	pair_connect(&other);
	CHECK(mr && mw);
	CHECK_EQ(bind_mw(p, mw, mr, (uintptr_t)e->buf, 8, IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
	old = mw->rkey;
	CHECK_EQ(read_from(&other, (uintptr_t)e->buf, old, 8), IBV_WC_SUCCESS);
	CHECK_EQ(bind_mw(&other, mw, mr, (uintptr_t)e->buf, 8, IBV_ACCESS_REMOTE_READ),
		 IBV_WC_SUCCESS);
	CHECK_EQ(read_from(p, (uintptr_t)e->buf, mw->rkey, 8), IBV_WC_SUCCESS);
	CHECK_EQ(read_from(p, (uintptr_t)e->buf, old, 8), IBV_WC_REM_ACCESS_ERR);
	pair_reconnect(p);
	CHECK_EQ(ibv_destroy_qp(other.a), 0);
	CHECK_EQ(ibv_destroy_qp(other.b), 0);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

int main(int argc, char **argv)
{
	struct ibv_device_attr attr;
	struct pair p;

	pair_open(&p, argc, argv);
	CHECK_EQ(ibv_query_device(p.l.a.e.ctx, &attr), 0);
	CHECK(attr.max_mw > 0 && attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
	through(&p);
	dealloc(&p);
	failures(&p);
	any_qp(&p);
	pair_close(&p);
	return 0;
}
