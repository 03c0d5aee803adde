// SPDX-License-Identifier: BSD-2-Clause
/*
 * ERR flushes both queues, and what is posted later behind all before it; RESET empties them and the
 * CQ.
 */
#include "common.h"

/* n flushed completions with wr_ids from, from + 1, ... among the receives, or sends. */
static void expect_flushed(struct ibv_cq *cq, int sends, int recvs)
{
	struct ibv_wc wc[64];
	uint64_t next_send = 0, next_recv = 1000;

	wait_wc(cq, sends + recvs, wc);
	for (int i = 0; i < sends + recvs; i++) {
		CHECK_EQ(wc[i].status, IBV_WC_WR_FLUSH_ERR);
		if (wc[i].wr_id < 1000)
			CHECK_EQ(wc[i].wr_id, next_send++);
		else
			CHECK_EQ(wc[i].wr_id, next_recv++);
	}
	CHECK_EQ(next_send, sends);
	CHECK_EQ(next_recv, 1000 + recvs);
	expect_empty(cq);
}

int main(void)
{
	struct env e;
	struct ibv_qp_init_attr attr;
	struct ibv_qp *a, *b;
	struct ibv_sge out, in;
	struct ibv_wc wc;

	env_open(&e);
	out = sge_at(&e, 0, 8);
	in = sge_at(&e, 4096, 64);
	attr = env_qp_attr(&e);
	a = ibv_create_qp(e.pd, &attr);
	b = ibv_create_qp(e.pd, &attr);
	CHECK(a && b);

	for (int round = 0; round < 3; round++) {
		connect_pair(&e, a, b);
		/* Nothing to receive it: the sends wait, and are flushed with the receives. */
		for (uint64_t i = 0; i < 5; i++)
			CHECK_EQ(post_recv_at(a, 1000 + i, &in), 0);
		for (uint64_t i = 0; i < 4; i++)
			CHECK_EQ(post_send_at(a, i, &out, 0), 0);
		to_state(a, IBV_QPS_ERR);
		expect_flushed(e.cq, 4, 5);
		CHECK_EQ(post_send_at(a, 0, &out, 0), 0);
		CHECK_EQ(post_recv_at(a, 1000, &in), 0);
		expect_flushed(e.cq, 1, 1);
		to_state(a, IBV_QPS_RESET);
		to_state(a, IBV_QPS_RESET);
		to_state(b, IBV_QPS_RESET);
	}

	/* A marker, posted when the others are being flushed, is the last to complete. */
	for (int round = 0; round < 20; round++) {
		connect_pair(&e, a, b);
		for (uint64_t i = 0; i < 8; i++)
			CHECK_EQ(post_send_at(a, i, &out, i % 2 ? IBV_SEND_SIGNALED : 0), 0);
		to_state(a, IBV_QPS_ERR);
		CHECK_EQ(post_send_at(a, 8, &out, IBV_SEND_SIGNALED), 0);
		expect_flushed(e.cq, 9, 0);
		to_state(a, IBV_QPS_RESET);
		to_state(b, IBV_QPS_RESET);
	}

	/* A full queue, its CQEs unpolled; after RESET all of it can be posted again. */
	for (int round = 0; round < 3; round++) {
		connect_pair(&e, a, b);
		for (uint32_t i = 0; i < attr.cap.max_send_wr; i++)
			CHECK_EQ(post_send_at(a, i, &out, 0), 0);
		CHECK_EQ(post_send_at(a, 0, &out, 0), ENOMEM);
		to_state(a, IBV_QPS_ERR);
		to_state(a, IBV_QPS_RESET);
		to_state(b, IBV_QPS_RESET);
		CHECK_EQ(ibv_poll_cq(e.cq, 1, &wc), 0);
	}
	expect_empty(e.cq);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	env_close(&e);
	return 0;
}
