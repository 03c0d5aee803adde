// SPDX-License-Identifier: BSD-2-Clause
/*
 * Fault weak: the end of a payload is in memory before its beginning; completion and ACK are not
 * there before all of it is, what is behind on the QP waits, other QPs do not, and what is not
 * allowed is not placed.
 */
#include "faults.h"

#define BIG 60000

/* Waits until b's byte at offset is value. */
static void wait_byte(struct link *l, uint32_t offset, uint8_t value)
{
	volatile uint8_t *p = l->b.e.buf + offset;
	double end = seconds() + TEST_TIMEOUT;

	while (*p != value)
		CHECK(seconds() < end);
}

static void fill(struct link *l, uint32_t length, uint8_t value)
{
	memset(l->a.e.buf, value, length);
	memset(l->b.e.buf, 0, BUF_SIZE);
}

/* A program that polls the last byte of a message, and then believes the rest. */
static void last_byte(struct link *l, struct ibv_qp *a, struct ibv_qp *b, enum ibv_wr_opcode opcode,
		      uint32_t length)
{
	uint32_t late = length < 128 ? length / 2 : 64;
	struct ibv_wc wc;
	double start;

	fill(l, length, 0xa5);
	if (opcode != IBV_WR_RDMA_WRITE)
		link_recv(l, b, 2, length);
	fault_add(&l->b, "weak=100ms,qp=%u", b->qp_num);
	start = seconds();
	CHECK_EQ(link_post(l, a, opcode, 1, length, IBV_SEND_SIGNALED), 0);
	wait_byte(l, length - 1, 0xa5);
	if (l->b.e.buf[0] != 0) {
		/* Only if we were held up for so long. */
		CHECK(seconds() - start >= 0.1);
	} else {
		for (uint32_t i = 0; i < late; i++)
			CHECK(l->b.e.buf[i] == 0 || seconds() - start >= 0.1);
		for (uint32_t i = late; i < length; i++)
			CHECK_EQ(l->b.e.buf[i], 0xa5);
		CHECK(ibv_poll_cq(l->a.e.cq, 1, &wc) == 0 || seconds() - start >= 0.1);
		CHECK(ibv_poll_cq(l->b.e.cq, 1, &wc) == 0 || seconds() - start >= 0.1);
	}
	expect_wc(&l->a, 1, IBV_WC_SUCCESS);
	CHECK(seconds() - start >= 0.1);
	if (opcode != IBV_WR_RDMA_WRITE)
		expect_wc(&l->b, 2, IBV_WC_SUCCESS);
	for (uint32_t i = 0; i < length; i++)
		CHECK_EQ(l->b.e.buf[i], 0xa5);
	CHECK_EQ(l->b.e.buf[length], 0);
	fault_clear(&l->b, 0);
}

/* UC: the sender does not wait for it, the receiver does. */
static void unreliable(struct link *l)
{
	struct ibv_qp *a = link_qp(&l->a, IBV_QPT_UC), *b = link_qp(&l->b, IBV_QPT_UC);
	double start;

	link_connect(l, a, b, &timing_default);
	fill(l, 5000, 3);
	link_recv(l, b, 2, 5000);
	fault_add(&l->b, "weak=100ms,qp=%u", b->qp_num);
	start = seconds();
	CHECK_EQ(link_post(l, a, IBV_WR_SEND, 1, 5000, IBV_SEND_SIGNALED), 0);
	expect_wc(&l->a, 1, IBV_WC_SUCCESS);
	wait_byte(l, 4999, 3);
	CHECK(l->b.e.buf[0] == 0 || seconds() - start >= 0.1);
	expect_wc(&l->b, 2, IBV_WC_SUCCESS);
	CHECK(seconds() - start >= 0.1);
	CHECK(!memcmp(l->a.e.buf, l->b.e.buf, 5000));
	fault_clear(&l->b, 0);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

/* What is behind it waits, READs and atomics too; another QP's does not. */
static void order(struct link *l, struct ibv_qp *a, struct ibv_qp *b, struct ibv_qp *other)
{
	uint64_t *word = (uint64_t *)l->b.e.buf;
	double start;

	link_connect(l, a, b, &timing_default);
	fill(l, 1000, 1);
	fault_add(&l->b, "weak=100ms,qp=%u,count=1", b->qp_num);
	start = seconds();
	CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, 1, 1000, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(link_post(l, a, IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 8, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(link_post(l, other, IBV_WR_RDMA_WRITE, 9, 0, IBV_SEND_SIGNALED), 0);
	expect_wc(&l->a, 9, IBV_WC_SUCCESS);
	expect_wc(&l->a, 1, IBV_WC_SUCCESS);
	expect_wc(&l->a, 2, IBV_WC_SUCCESS);
	CHECK(seconds() - start >= 0.1);
	CHECK_EQ(*word, 0x0101010101010102);
	/* The atomic saw the WRITE. */
	CHECK_EQ(*(uint64_t *)l->a.e.buf, 0x0101010101010101);
	fault_clear(&l->b, 0);
}

/*
 * Long and short ones at random, of which half are struck, some for longer than the sender's
 * timeout: each arrives whole, once.
 */
static void many(struct link *l, struct ibv_qp *a, struct ibv_qp *b)
{
	static const uint32_t sizes[] = {1, 2, 63, 64, 65, 127, 129, 1024, 5000, 40000, BIG};

	link_connect(l, a, b, &timing_default);
	fault_add(&l->b, "weak=1ms,qp=%u,probability=0.01", b->qp_num);
	fault_add(&l->b, "weak=120ms,qp=%u,skip=300,count=1", b->qp_num);
	for (unsigned int i = 0; i < 110; i++) {
		uint32_t length = sizes[i % 11];
		struct ibv_wc wc;

		memset(l->a.e.buf, (int)i + 1, length);
		if (i & 1) {
			memset(l->b.e.buf, 0, length);
			link_recv(l, b, i, length);
		}
		CHECK_EQ(link_post(l, a, i & 1 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, i, length,
				   IBV_SEND_SIGNALED),
			 0);
		expect_wc(&l->a, i, IBV_WC_SUCCESS);
		if (i & 1)
			expect_wc(&l->b, i, IBV_WC_SUCCESS);
		CHECK(!memcmp(l->a.e.buf, l->b.e.buf, length));
		CHECK_EQ(ibv_poll_cq(l->b.e.cq, 1, &wc), 0);
	}
	fault_clear(&l->b, 0);
}

/* Without the right to it nothing is placed, and it fails at once. */
static void denied(struct link *l, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_sge sge = sge_at(&l->a.e, 0, 1000);
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
	struct ibv_mr *mr = ibv_reg_mr(l->b.e.pd, l->b.e.buf, 4096, 0);
	struct ibv_send_wr *bad;

	CHECK(mr);
	link_connect(l, a, b, &timing_default);
	fill(l, 1000, 1);
	fault_add(&l->b, "weak=1s,qp=%u", b->qp_num);
	wr.wr.rdma.remote_addr = (uintptr_t)l->b.e.buf;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	expect_wc(&l->a, 0, IBV_WC_REM_ACCESS_ERR);
	for (int i = 0; i < 1000; i++)
		CHECK_EQ(l->b.e.buf[i], 0);
	expect_event(&l->b, b, IBV_EVENT_QP_ACCESS_ERR);
	fault_clear(&l->b, 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

/* The QP is reset, put into ERR, or destroyed meanwhile: the beginning never comes. */
static void gone(struct link *l, struct ibv_qp *a)
{
	for (int how = 0; how < 3; how++) {
		struct ibv_qp *b = link_qp(&l->b, IBV_QPT_RC);

		link_connect(l, a, b, &timing_default);
		fill(l, 1000, 1);
		link_recv(l, b, 1, 1000);
		fault_add(&l->b, "weak=200ms,qp=%u", b->qp_num);
		CHECK_EQ(link_post(l, a, IBV_WR_SEND, 1, 1000, IBV_SEND_SIGNALED), 0);
		CHECK_EQ(link_post(l, a, IBV_WR_SEND, 2, 1000, IBV_SEND_SIGNALED), 0);
		wait_byte(l, 999, 1);
		if (how == 0)
			to_state(b, IBV_QPS_RESET);
		else if (how == 1)
			to_state(b, IBV_QPS_ERR);
		if (how == 1)
			expect_wc(&l->b, 1, IBV_WC_WR_FLUSH_ERR);
		else
			CHECK_EQ(ibv_destroy_qp(b), 0);
		to_state(a, IBV_QPS_RESET);
		expect_empty(l->b.e.cq);
		usleep(200000);
		CHECK_EQ(l->b.e.buf[0], 0);
		expect_empty(l->b.e.cq);
		if (how == 1)
			CHECK_EQ(ibv_destroy_qp(b), 0);
		fault_clear(&l->b, 0);
	}
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
	link_connect(&l, a, b, &timing_default);
	last_byte(&l, a, b, IBV_WR_RDMA_WRITE, 16);
	last_byte(&l, a, b, IBV_WR_RDMA_WRITE, 200);
	last_byte(&l, a, b, IBV_WR_RDMA_WRITE, 5000);
	last_byte(&l, a, b, IBV_WR_SEND, 5000);
	last_byte(&l, a, b, IBV_WR_RDMA_WRITE_WITH_IMM, 1024);
	unreliable(&l);
	order(&l, a, b, other);
	many(&l, a, b);
	denied(&l, a, b);
	gone(&l, a);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_qp(other), 0);
	CHECK_EQ(ibv_destroy_qp(other_peer), 0);
	link_close(&l);
	return 0;
}
