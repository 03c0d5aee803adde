// SPDX-License-Identifier: BSD-2-Clause
/*
 * Time: the RNR timer and the ACK timeout are kept, neither is shorter than asked for, retries are
 * counted, 7 RNR retries are for ever, and a slow receiver costs nothing but time.
 */
#include "common.h"

/* A pair with the timers given; b's receive queue is empty. */
static void connect_timed(const struct env *e, struct ibv_qp *a, struct ibv_qp *b,
			  uint8_t rnr_timer, uint8_t rnr_retry, uint8_t timeout, uint8_t retry_cnt)
{
	struct ibv_qp_attr timer = {.qp_state = IBV_QPS_RTS,
				    .timeout = timeout,
				    .retry_cnt = retry_cnt,
				    .rnr_retry = rnr_retry,
				    .max_rd_atomic = 1};
	struct ibv_qp_attr rnr = {.qp_state = IBV_QPS_RTS,
				  .timeout = 14,
				  .retry_cnt = 7,
				  .rnr_retry = 7,
				  .min_rnr_timer = rnr_timer};
	const int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

	to_state(a, IBV_QPS_RESET);
	to_state(b, IBV_QPS_RESET);
	to_init(a);
	to_init(b);
	to_rtr(e, a, b->qp_num);
	to_rtr(e, b, a->qp_num);
	CHECK_EQ(ibv_modify_qp(a, &timer, rts), 0);
	CHECK_EQ(ibv_modify_qp(b, &rnr, rts | IBV_QP_MIN_RNR_TIMER), 0);
}

/* Sends one message; @return seconds until it completed with status */
static double time_of(const struct env *e, struct ibv_qp *a, enum ibv_wc_status status)
{
	struct ibv_sge out = sge_at(e, 0, 8);
	double start = seconds();
	struct ibv_wc wc;

	CHECK_EQ(post_send_at(a, 1, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e->cq, 1, &wc);
	CHECK_EQ(wc.status, status);
	return seconds() - start;
}

static void rnr(const struct env *e, struct ibv_qp *a, struct ibv_qp *b, struct ibv_cq *peer_cq)
{
	struct ibv_sge out = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);
	double start, t;
	struct ibv_wc wc;

	/* Three retries of 10.24 ms. */
	connect_timed(e, a, b, 20, 3, 14, 7);
	t = time_of(e, a, IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK(t >= 3 * 0.01024);
	CHECK(t < 1);
	/* None: at once. */
	connect_timed(e, a, b, 31, 0, 14, 7);
	t = time_of(e, a, IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK(t < 0.4);
	/* For ever: far more than 7 of them. */
	connect_timed(e, a, b, 12, 7, 14, 7);
	CHECK_EQ(post_send_at(a, 1, &out, IBV_SEND_SIGNALED), 0);
	expect_empty(e->cq);
	expect_empty(e->cq);
	CHECK_EQ(post_recv_at(b, 2, &in), 0);
	wait_wc(e->cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	wait_wc(peer_cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	/* Code 0 is the longest, 655.36 ms. */
	connect_timed(e, a, b, 0, 7, 14, 7);
	start = seconds();
	CHECK_EQ(post_send_at(a, 1, &out, IBV_SEND_SIGNALED), 0);
	expect_empty(e->cq);
	CHECK_EQ(post_recv_at(b, 2, &in), 0);
	wait_wc(e->cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	t = seconds() - start;
	CHECK(t >= 0.65536);
	CHECK(t < 3);
	wait_wc(peer_cq, 1, &wc);
}

/* Nobody there: (retries + 1) timeouts, each 4.096 us * 2^timeout at least. */
static void timeouts(const struct env *e, struct ibv_qp *a, struct ibv_qp *b)
{
	static const struct {
		uint8_t timeout, retries;
	} cases[] = {{14, 0}, {14, 2}, {15, 1}, {13, 7}};
	struct ibv_sge out = sge_at(e, 0, 8);
	struct ibv_wc wc;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		double least = 4.096e-6 * (1u << cases[i].timeout) * (cases[i].retries + 1);
		double t;

		connect_timed(e, a, b, 1, 7, cases[i].timeout, cases[i].retries);
		to_state(b, IBV_QPS_RESET);
		t = time_of(e, a, IBV_WC_RETRY_EXC_ERR);
		CHECK(t >= least);
		CHECK(t < 4 * least + 0.3);
	}
	/* 0: it waits for ever. */
	connect_timed(e, a, b, 1, 7, 0, 1);
	to_state(b, IBV_QPS_RESET);
	CHECK_EQ(post_send_at(a, 1, &out, IBV_SEND_SIGNALED), 0);
	for (int i = 0; i < 10; i++)
		expect_empty(e->cq);
	to_state(a, IBV_QPS_ERR);
	wait_wc(e->cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
}

/* A fenced WR waits for the READ before it: it sends what that read. */
static void fence(const struct env *e, struct ibv_qp *a, struct ibv_qp *b, struct ibv_cq *peer_cq)
{
	/* Too long to be taken along when posted: it is gathered when it is sent. */
	struct ibv_sge last = sge_at(e, 16384 - 4000, 4000), in = sge_at(e, 49152, 4000);
	struct ibv_sge all = sge_at(e, 0, 16384);
	struct ibv_send_wr send = {.sg_list = &last,
				   .num_sge = 1,
				   .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_FENCE | IBV_SEND_SIGNALED};
	struct ibv_send_wr read = {
		.next = &send,
		.sg_list = &all,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.wr.rdma = {.remote_addr = (uintptr_t)e->buf + 16384, .rkey = e->mr->rkey}};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	connect_timed(e, a, b, 1, 7, 14, 7);
	for (int round = 1; round < 50; round++) {
		memset(e->buf, 0, 16384);
		memset(e->buf + 16384, round, 16384);
		CHECK_EQ(post_recv_at(b, 2, &in), 0);
		CHECK_EQ(ibv_post_send(a, &read, &bad), 0);
		wait_wc(e->cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		wait_wc(peer_cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		for (int i = 0; i < 4000; i++)
			CHECK_EQ(e->buf[49152 + i], round);
	}
}

int main(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_cq *peer_cq;
	struct ibv_qp *a, *b;
	struct env e;

	env_open(&e);
	peer_cq = ibv_create_cq(e.ctx, 64, NULL, NULL, 0);
	CHECK(peer_cq);
	init = env_qp_attr(&e);
	a = ibv_create_qp(e.pd, &init);
	init.send_cq = init.recv_cq = peer_cq;
	b = ibv_create_qp(e.pd, &init);
	CHECK(a && b);
	rnr(&e, a, b, peer_cq);
	timeouts(&e, a, b);
	fence(&e, a, b, peer_cq);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(peer_cq), 0);
	env_close(&e);
	return 0;
}
