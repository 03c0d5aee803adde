// SPDX-License-Identifier: BSD-2-Clause
/*
 * IBV_WR_SEND_WITH_INV: invalidates the receiver's window of type 2 and says so in the completion;
 * messages of one packet and of many; keys that cannot be invalidated; QP types that have it not.
 */
#include "windows.h"

#define READ_WRITE (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

/* What a key that is none does: the receive and the connection fail at both ends. */
static void bad_key(struct pair *p, uint32_t rkey)
{
	struct ibv_sge out = sge_at(&p->l.a.e, 0, 8), in = sge_at(&p->l.b.e, 0, 8);
	struct ibv_wc wc;

	drop_events(&p->l.b);
	CHECK_EQ(post_recv_at(p->b, 5, &in), 0);
	CHECK_EQ(post_op(p->a, IBV_WR_SEND_WITH_INV, &out, 0, rkey), 0);
	CHECK_EQ(next_status(&p->l.a), IBV_WC_REM_ACCESS_ERR);
	wait_wc(p->l.b.e.cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 5);
	CHECK_EQ(wc.status, IBV_WC_LOC_ACCESS_ERR);
	expect_state(p->b, IBV_QPS_ERR);
	pair_reconnect(p);
}

static void types(struct pair *p)
{
	const enum ibv_qp_type without[] = {IBV_QPT_UC, IBV_QPT_UD};
	struct ibv_ah_attr to = {.is_global = 1,
				 .port_num = 1,
				 .grh = {.dgid = p->l.b.e.gid, .sgid_index = 1, .hop_limit = 64}};
	struct ibv_ah *ah = ibv_create_ah(p->l.a.e.pd, &to);
	struct ibv_sge sge = sge_at(&p->l.a.e, 0, 8);

	CHECK(ah);
	for (int i = 0; i < 2; i++) {
		struct ibv_send_wr *bad,
			wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV};
		struct ibv_qp *a = link_qp(&p->l.a, without[i]), *b = link_qp(&p->l.b, without[i]);

		if (without[i] == IBV_QPT_UD)
			wr.wr.ud.ah = ah;
		link_connect(&p->l, a, b, &timing_default);
		CHECK_EQ(ibv_post_send(a, &wr, &bad), EINVAL);
		CHECK(bad == &wr);
		CHECK_EQ(ibv_destroy_qp(a), 0);
		CHECK_EQ(ibv_destroy_qp(b), 0);
	}
	CHECK_EQ(ibv_destroy_ah(ah), 0);
}

int main(int argc, char **argv)
{
	const uint32_t lens[] = {0, 8, 64, 1000, 1024, 20000};
	struct ibv_mw *mw, *one;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	struct pair p;
	struct env *a = &p.l.a.e, *b = &p.l.b.e;
	uintptr_t at;

	pair_open(&p, argc, argv);
	at = (uintptr_t)b->buf + BUF_SIZE / 2;
	mr = ibv_reg_mr(b->pd, b->buf, BUF_SIZE, WINDOW_MR);
	mw = ibv_alloc_mw(b->pd, IBV_MW_TYPE_2);
	one = ibv_alloc_mw(b->pd, IBV_MW_TYPE_1);
	CHECK(mr && mw && one);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		struct ibv_sge out = sge_at(a, 0, lens[i]), in = sge_at(b, 0, lens[i]);

		CHECK_EQ(bind_next(&p.l.b, p.b, mw, mr, at, 4096, READ_WRITE), IBV_WC_SUCCESS);
		expect_open(&p, at, mw->rkey, 4096);
		memset(a->buf, (int)(i + 1), lens[i]);
		CHECK_EQ(post_recv_at(p.b, 3, &in), 0);
		CHECK_EQ(post_op(p.a, IBV_WR_SEND_WITH_INV, &out, 0, mw->rkey), 0);
		wait_wc(a->cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK_EQ(wc.opcode, IBV_WC_SEND);
		wait_wc(b->cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK_EQ(wc.opcode, IBV_WC_RECV);
		CHECK_EQ(wc.byte_len, lens[i]);
		CHECK_EQ(wc.wc_flags & (IBV_WC_WITH_INV | IBV_WC_WITH_IMM), IBV_WC_WITH_INV);
		CHECK_EQ(wc.invalidated_rkey, mw->rkey);
		CHECK(all_are(b->buf, (uint8_t)(i + 1), lens[i]));
		expect_shut(&p, at, mw->rkey);
	}
	/* The MR is held by no window any more. */
	bad_key(&p, mw->rkey);
	bad_key(&p, b->mr->rkey);
	bad_key(&p, one->rkey);
	bad_key(&p, 0);
	/* A message without a receive invalidates nothing before it is taken. */
	CHECK_EQ(bind_next(&p.l.b, p.b, mw, mr, at, 4096, READ_WRITE), IBV_WC_SUCCESS);
	CHECK_EQ(post_op(p.a, IBV_WR_SEND_WITH_INV, NULL, 0, mw->rkey), 0);
	expect_empty(a->cq);
	CHECK_EQ(post_recv_at(p.b, 4, NULL), 0);
	CHECK_EQ(next_status(&p.l.a), IBV_WC_SUCCESS);
	wait_wc(b->cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(wc.invalidated_rkey, mw->rkey);
	types(&p);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	CHECK_EQ(ibv_dealloc_mw(one), 0);
	pair_close(&p);
	return 0;
}
