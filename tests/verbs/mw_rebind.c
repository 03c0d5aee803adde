// SPDX-License-Identifier: BSD-2-Clause
/*
 * When a bind that took a binding of type 1 away has completed, nothing comes in through that any
 * more, though another QP, of another worker, was in the middle of using it.
 */
#include "windows.h"

#define ROUNDS 300
#define LEN (BUF_SIZE / 2)

/* Long WRITEs through the window, as many as there is room for. @return how many are posted */
static int flood(struct pair *p, uint64_t addr, uint32_t rkey, int round)
{
	struct ibv_sge sge = sge_at(&p->l.a.e, 0, LEN);
	int n = 0;

	/* Of two halves, one after the other, so that each changes what is there. */
	memset(p->l.a.e.buf, 2 * round, LEN);
	memset(p->l.a.e.buf + LEN, 2 * round + 1, LEN);
	for (; post_op(p->a, IBV_WR_RDMA_WRITE, &sge, addr, rkey) == 0; n++)
		sge.addr = (uintptr_t)p->l.a.e.buf + (n % 2 ? 0 : LEN);
	CHECK(n > 0);
	return n;
}

int main(int argc, char **argv)
{
	static uint8_t seen[LEN];
	struct ibv_mw_bind b = {.send_flags = IBV_SEND_SIGNALED};
	struct pair p, other;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_wc wc;
	struct env *e;

	pair_open(&p, argc, argv);
	other = p;
	/* In this order, so that of three workers each has something else to do. */
	other.b = link_qp(&p.l.b, IBV_QPT_RC);
	other.a = link_qp(&p.l.a, IBV_QPT_RC);
	pair_connect(&other);
	e = &p.l.b.e;
	mr = ibv_reg_mr(e->pd, e->buf, BUF_SIZE, WINDOW_MR);
	mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_1);
	CHECK(mr && mw);
	for (int round = 1; round <= ROUNDS; round++) {
		volatile uint8_t *last = e->buf + LEN - 1;
		uint8_t before;
		int n;

		b.bind_info = (struct ibv_mw_bind_info){mr, (uintptr_t)e->buf, LEN,
							IBV_ACCESS_REMOTE_WRITE};
		CHECK_EQ(ibv_bind_mw(other.b, mw, &b), 0);
		CHECK_EQ(next_status(&p.l.b), IBV_WC_SUCCESS);
		before = *last;
		n = flood(&p, (uintptr_t)e->buf, mw->rkey, round);
		/* Not before they have begun to come. */
		while (*last == before)
			;
		b.bind_info.length = 0;
		CHECK_EQ(ibv_bind_mw(other.b, mw, &b), 0);
		CHECK_EQ(next_status(&p.l.b), IBV_WC_SUCCESS);
		memcpy(seen, e->buf, LEN);
		for (int i = 0; i < n; i++)
			wait_wc(p.l.a.e.cq, 1, &wc);
		CHECK_EQ(memcmp(seen, e->buf, LEN), 0);
		pair_reconnect(&p);
	}
	CHECK_EQ(ibv_destroy_qp(other.a), 0);
	CHECK_EQ(ibv_destroy_qp(other.b), 0);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	pair_close(&p);
	return 0;
}
