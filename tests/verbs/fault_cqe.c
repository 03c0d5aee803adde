// SPDX-License-Identifier: BSD-2-Clause
/*
 * Fault cqe-delay: completions come late and in order, with their channel's event; other QPs of the
 * CQ do not wait; flushes come behind; reset and destruction leave nothing behind, SRQ slots too;
 * a CQ still overruns.
 */
#include "faults.h"

#define DELAY 0.03 /* s, of the rules here */
#define RULE "cqe-delay=30ms"

/* An unsignaled WRITE costs nothing; a SEND's CQEs come late on each side. */
static void late(struct link *l, struct ibv_qp *a, struct ibv_qp *b)
{
	double start;

	link_connect(l, a, b, &timing_default);
	fault_add(&l->a, RULE ",qp=%u,dir=send", a->qp_num);
	fault_add(&l->b, RULE ",qp=%u,dir=recv", b->qp_num);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc;

		memset(l->a.e.buf, 0x11 + i, 32);
		memset(l->b.e.buf, 0, 32);
		link_recv(l, b, 2, 32);
		start = seconds();
		CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, 7, 8, 0), 0);
		CHECK_EQ(link_post(l, a, IBV_WR_SEND, 1, 32, IBV_SEND_SIGNALED), 0);
		expect_wc(&l->a, 1, IBV_WC_SUCCESS);
		CHECK(seconds() - start >= DELAY);
		wait_wc(l->b.e.cq, 1, &wc);
		CHECK(seconds() - start >= DELAY);
		CHECK_EQ(wc.byte_len, 32);
		CHECK(!memcmp(l->a.e.buf, l->b.e.buf, 32));
	}
	fault_clear(&l->a, 0);
	fault_clear(&l->b, 0);
	/* An ACK does not wait: the peer hears of it at once. And without a rule nothing does. */
	fault_add(&l->b, "cqe-delay=1000s,qp=%u", b->qp_num);
	for (uint64_t i = 0; i < 2; i++)
		link_recv(l, b, i, 32);
	CHECK_EQ(link_post(l, a, IBV_WR_SEND, 1, 32, IBV_SEND_SIGNALED), 0);
	expect_wc(&l->a, 1, IBV_WC_SUCCESS);
	expect_empty(l->b.e.cq);
	CHECK_EQ(link_post(l, a, IBV_WR_SEND, 1, 32, IBV_SEND_SIGNALED), 0);
	expect_wc(&l->a, 1, IBV_WC_SUCCESS);
	/* With the rule goes what it holds. */
	fault_clear(&l->b, 0);
	expect_wc(&l->b, 0, IBV_WC_SUCCESS);
	expect_wc(&l->b, 1, IBV_WC_SUCCESS);
}

/* One that is struck holds up those behind it, and jitter does not change their order. */
static void ordered(struct link *l, struct ibv_qp *a, struct ibv_qp *b, struct ibv_qp *other)
{
	double start;

	link_connect(l, a, b, &timing_default);
	fault_add(&l->a, RULE ",qp=%u,count=1", a->qp_num);
	start = seconds();
	for (uint64_t i = 0; i < 8; i++)
		CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, i, 100, IBV_SEND_SIGNALED), 0);
	/* Another QP of the CQ goes ahead. */
	CHECK_EQ(link_post(l, other, IBV_WR_RDMA_WRITE, 99, 100, IBV_SEND_SIGNALED), 0);
	expect_wc(&l->a, 99, IBV_WC_SUCCESS);
	for (uint64_t i = 0; i < 8; i++)
		expect_wc(&l->a, i, IBV_WC_SUCCESS);
	CHECK(seconds() - start >= DELAY);
	fault_clear(&l->a, 0);

	fault_add(&l->a, "cqe-delay=0ms,jitter=3ms,qp=%u,probability=0.7", a->qp_num);
	for (int round = 0; round < 10; round++) {
		for (uint64_t i = 0; i < 16; i++)
			CHECK_EQ(link_post(l, a, i & 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, i,
					   100, IBV_SEND_SIGNALED),
				 0);
		for (uint64_t i = 0; i < 16; i++)
			expect_wc(&l->a, i, IBV_WC_SUCCESS);
	}
	fault_clear(&l->a, 0);
}

/* The QP goes to ERR: what is held comes first, then the flushes. */
static void flushed(struct link *l, struct ibv_qp *a, struct ibv_qp *b)
{
	link_connect(l, a, b, &timing_default);
	fault_add(&l->a, RULE ",qp=%u", a->qp_num);
	for (uint64_t i = 0; i < 4; i++)
		CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, i, 100, IBV_SEND_SIGNALED), 0);
	/* No receive is posted for this one. */
	CHECK_EQ(link_post(l, a, IBV_WR_SEND, 4, 100, IBV_SEND_SIGNALED), 0);
	expect_wc(&l->a, 0, IBV_WC_SUCCESS);
	to_state(a, IBV_QPS_ERR);
	CHECK_EQ(link_post(l, a, IBV_WR_SEND, 5, 100, 0), 0);
	for (uint64_t i = 1; i < 4; i++)
		expect_wc(&l->a, i, IBV_WC_SUCCESS);
	expect_wc(&l->a, 4, IBV_WC_WR_FLUSH_ERR);
	expect_wc(&l->a, 5, IBV_WC_WR_FLUSH_ERR);
	fault_clear(&l->a, 0);
}

/* Held when the QP is reset, or destroyed: nothing of it comes any more, and a SRQ loses nothing.
 */
static void gone(struct link *l, struct ibv_qp *a)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(l->b.e.pd, &init);
	struct ibv_qp_init_attr attr = env_qp_attr(&l->b.e);
	struct ibv_sge sge = sge_at(&l->b.e, 0, 64);
	struct ibv_recv_wr *bad, wr = {.wr_id = 5, .sg_list = &sge, .num_sge = 1};
	struct ibv_qp *b;

	CHECK(srq);
	attr.srq = srq;
	for (int round = 0; round < 6; round++) {
		b = ibv_create_qp(l->b.e.pd, &attr);
		CHECK(b);
		link_connect(l, a, b, &timing_default);
		fault_add(&l->b, "cqe-delay=30s,qp=%u", b->qp_num);
		/* As many as there are: were a slot lost, the next round would miss it. */
		for (int i = 0; i < 4; i++)
			CHECK_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
		CHECK_EQ(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
		for (uint64_t i = 0; i < 4; i++)
			CHECK_EQ(link_post(l, a, IBV_WR_SEND, i, 64, IBV_SEND_SIGNALED), 0);
		for (uint64_t i = 0; i < 4; i++)
			expect_wc(&l->a, i, IBV_WC_SUCCESS);
		if (round & 1)
			to_state(b, IBV_QPS_RESET);
		CHECK_EQ(ibv_destroy_qp(b), 0);
		expect_empty(l->b.e.cq);
		fault_clear(&l->b, 0);
	}
	CHECK_EQ(ibv_destroy_srq(srq), 0);
}

/* The event of a channel comes with the CQE, not before. */
static void event(struct link *l)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(l->a.e.ctx);
	struct ibv_cq *cq = ibv_create_cq(l->a.e.ctx, 16, NULL, channel, 0), *got;
	struct ibv_qp_init_attr attr = env_qp_attr(&l->a.e);
	struct ibv_qp *a, *b = link_qp(&l->b, IBV_QPT_RC);
	struct ibv_wc wc[2];
	double start;
	void *context;

	CHECK(cq);
	attr.send_cq = attr.recv_cq = cq;
	a = ibv_create_qp(l->a.e.pd, &attr);
	CHECK(a);
	link_connect(l, a, b, &timing_default);
	fault_add(&l->a, RULE ",qp=%u", a->qp_num);
	CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
	start = seconds();
	CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, 1, 100, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(ibv_get_cq_event(channel, &got, &context), 0);
	CHECK(seconds() - start >= DELAY);
	CHECK_EQ(ibv_poll_cq(cq, 2, wc), 1);
	ibv_ack_cq_events(cq, 1);
	fault_clear(&l->a, 0);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
}

/* What does not fit when it is published ends CQ and QP, as ever. */
static void overrun(struct link *l)
{
	struct ibv_cq *cq = ibv_create_cq(l->a.e.ctx, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = env_qp_attr(&l->a.e);
	struct ibv_qp *a, *b = link_qp(&l->b, IBV_QPT_RC);
	struct ibv_async_event event;

	CHECK(cq);
	attr.send_cq = cq;
	a = ibv_create_qp(l->a.e.pd, &attr);
	CHECK(a);
	link_connect(l, a, b, &timing_default);
	fault_add(&l->a, RULE ",qp=%u", a->qp_num);
	for (uint64_t i = 0; i < 5; i++)
		CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, i, 100, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(ibv_get_async_event(l->a.e.ctx, &event), 0);
	CHECK_EQ(event.event_type, IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == cq);
	ibv_ack_async_event(&event);
	expect_event(&l->a, a, IBV_EVENT_QP_FATAL);
	expect_state(a, IBV_QPS_ERR);
	fault_clear(&l->a, 0);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
}

int main(int argc, char **argv)
{
	struct ibv_qp *a, *b, *other, *other_peer;
	struct link l;

	link_open(&l, argc, argv);
	a = link_qp(&l.a, IBV_QPT_RC);
	b = link_qp(&l.b, IBV_QPT_RC);
	other = link_qp(&l.a, IBV_QPT_RC);
	other_peer = link_qp(&l.b, IBV_QPT_RC);
	link_connect(&l, other, other_peer, &timing_default);
	late(&l, a, b);
	ordered(&l, a, b, other);
	flushed(&l, a, b);
	gone(&l, a);
	event(&l);
	overrun(&l);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_qp(other), 0);
	CHECK_EQ(ibv_destroy_qp(other_peer), 0);
	link_close(&l);
	return 0;
}
