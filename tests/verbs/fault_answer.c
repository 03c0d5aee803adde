// SPDX-License-Identifier: BSD-2-Clause
/*
 * Faults rnr and nak: a request is answered by an RNR NAK and carried out when it comes again, or
 * by a NAK that ends both QPs as the error would that it reports; in the middle of a message too.
 */
#include "faults.h"

static const enum ibv_wr_opcode opcodes[] = {
	IBV_WR_SEND,	  IBV_WR_RDMA_WRITE,	       IBV_WR_RDMA_WRITE_WITH_IMM,
	IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
};

/* @return whether a request of this opcode takes a receive */
static bool takes_receive(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* One message whose bytes are checked. @return seconds it took */
static double transfer(struct link *l, struct ibv_qp *a, struct ibv_qp *b,
		       enum ibv_wr_opcode opcode, uint32_t length)
{
	bool atomic = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	uint64_t before, after;
	double start = seconds();

	length = atomic ? 8 : length;
	for (uint32_t i = 0; i < length; i++) {
		l->a.e.buf[i] = (uint8_t)(i * 7 + i / 256);
		l->b.e.buf[i] = 0x55;
	}
	memcpy(&before, l->b.e.buf, 8);
	if (takes_receive(opcode))
		link_recv(l, b, 2, length);
	CHECK_EQ(link_post(l, a, opcode, 1, length, IBV_SEND_SIGNALED), 0);
	expect_wc(&l->a, 1, IBV_WC_SUCCESS);
	if (takes_receive(opcode))
		expect_wc(&l->b, 2, IBV_WC_SUCCESS);
	memcpy(&after, l->b.e.buf, 8);
	if (atomic)
		CHECK_EQ(after, before + 1);
	else
		CHECK(!memcmp(l->a.e.buf, l->b.e.buf, length));
	return seconds() - start;
}

/* Answered so once or more often, then carried out, once. */
static void later(struct link *l, struct ibv_qp *a, struct ibv_qp *b)
{
	/*
	 * Without a timeout nothing is sent again but what a NAK asks for: else, where the other
	 * side gets no core for a millisecond, a request may come twice before its answer, and both
	 * are counted as struck.
	 */
	const struct timing t = {.min_rnr_timer = 18, .rnr_retry = 3, .timeout = 0, .retry_cnt = 7};

	link_connect(l, a, b, &t);
	for (size_t i = 0; i < sizeof(opcodes) / sizeof(opcodes[0]); i++) {
		long sent = status_sum("rnr_nak_sent");
		double took;

		/* Two waits of 4.10 ms, of three retries. */
		fault_add(&l->b, "rnr,qp=%u,count=2", b->qp_num);
		took = transfer(l, a, b, opcodes[i], 100);
		CHECK(took >= 0.0081);
		CHECK_EQ(status_sum("rnr_nak_sent"), sent + 2);
		fault_clear(&l->b, 0);
		fault_add(&l->b, "nak=sequence,qp=%u,count=2", b->qp_num);
		transfer(l, a, b, opcodes[i], 100);
		fault_clear(&l->b, 0);
		transfer(l, a, b, opcodes[i], 100);
		CHECK_EQ(status_sum("rnr_nak_sent"), sent + 2);
	}
	/* In the middle of a train, and of a message. */
	for (unsigned int skip = 0; skip < 40; skip += 3) {
		fault_add(&l->b, "rnr,qp=%u,skip=%u,count=1", b->qp_num, skip);
		fault_add(&l->b, "nak=sequence,qp=%u,skip=%u,count=1", b->qp_num, skip + 2);
		transfer(l, a, b, skip & 1 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, 40000);
		fault_clear(&l->b, 0);
	}
	/* Now and then. */
	fault_add(&l->b, "rnr,qp=%u,probability=0.1", b->qp_num);
	for (int i = 0; i < 5; i++)
		transfer(l, a, b, IBV_WR_SEND, 60000);
	fault_clear(&l->b, 0);
}

/* Every time: the retries are used up. The responder does not notice. */
static void never(struct link *l, struct ibv_qp *a, struct ibv_qp *b)
{
	const struct timing t = {
		.min_rnr_timer = 14, .rnr_retry = 2, .timeout = 14, .retry_cnt = 2};
	double start;

	link_connect(l, a, b, &t);
	fault_add(&l->b, "rnr,qp=%u,opcode=write", b->qp_num);
	transfer(l, a, b, IBV_WR_SEND, 100);
	start = seconds();
	/* Unsignaled, and one behind it. */
	CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, 5, 100, 0), 0);
	CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, 6, 100, 0), 0);
	expect_wc(&l->a, 5, IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK(seconds() - start >= 2 * 0.00102);
	expect_wc(&l->a, 6, IBV_WC_WR_FLUSH_ERR);
	expect_state(a, IBV_QPS_ERR);
	expect_state(b, IBV_QPS_RTS);
	fault_clear(&l->b, 0);

	link_connect(l, a, b, &t);
	fault_add(&l->b, "nak=sequence,qp=%u,opcode=read", b->qp_num);
	transfer(l, a, b, IBV_WR_SEND, 100);
	CHECK_EQ(link_post(l, a, IBV_WR_RDMA_READ, 7, 100, 0), 0);
	expect_wc(&l->a, 7, IBV_WC_RETRY_EXC_ERR);
	expect_state(b, IBV_QPS_RTS);
	fault_clear(&l->b, 0);
	expect_no_event(&l->b);
}

/* A NAK that ends the connection. */
static void fatal(struct link *l, struct ibv_qp *a, struct ibv_qp *b, const char *nak,
		  enum ibv_wr_opcode opcode, enum ibv_wc_status status, int event,
		  enum ibv_wc_status recv)
{
	uint32_t length = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 5000;

	link_connect(l, a, b, &timing_default);
	fault_add(&l->b, "nak=%s,qp=%u,count=1", nak, b->qp_num);
	memset(l->a.e.buf, 1, length);
	memset(l->b.e.buf, 2, length);
	link_recv(l, b, 8, length);
	link_recv(l, b, 9, length);
	CHECK_EQ(link_post(l, a, opcode, 3, length, 0), 0);
	CHECK_EQ(link_post(l, a, IBV_WR_SEND, 4, length, 0), 0);
	expect_wc(&l->a, 3, status);
	expect_wc(&l->a, 4, IBV_WC_WR_FLUSH_ERR);
	expect_wc(&l->b, 8, recv);
	expect_wc(&l->b, 9, IBV_WC_WR_FLUSH_ERR);
	if (event >= 0)
		expect_event(&l->b, b, (enum ibv_event_type)event);
	expect_state(b, IBV_QPS_ERR);
	/* Not carried out. */
	for (uint32_t i = 0; i < length; i++)
		CHECK_EQ(l->b.e.buf[i], 2);
	expect_no_event(&l->b);
	expect_no_event(&l->a);
	fault_clear(&l->b, 0);
}

int main(int argc, char **argv)
{
	struct ibv_qp *a, *b;
	struct link l;

	link_open(&l, argc, argv);
	a = link_qp(&l.a, IBV_QPT_RC);
	b = link_qp(&l.b, IBV_QPT_RC);
	later(&l, a, b);
	never(&l, a, b);
	for (size_t i = 0; i < sizeof(opcodes) / sizeof(opcodes[0]); i++) {
		bool send = opcodes[i] == IBV_WR_SEND;

		fatal(&l, a, b, "invalid-request", opcodes[i], IBV_WC_REM_INV_REQ_ERR,
		      IBV_EVENT_QP_REQ_ERR, IBV_WC_WR_FLUSH_ERR);
		fatal(&l, a, b, "remote-access", opcodes[i], IBV_WC_REM_ACCESS_ERR,
		      IBV_EVENT_QP_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
		fatal(&l, a, b, "remote-operation", opcodes[i], IBV_WC_REM_OP_ERR,
		      send ? -1 : IBV_EVENT_QP_FATAL,
		      send ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_WR_FLUSH_ERR);
	}
	/* Without rules nothing of the kind. */
	link_connect(&l, a, b, &timing_default);
	for (size_t i = 0; i < sizeof(opcodes) / sizeof(opcodes[0]); i++)
		transfer(&l, a, b, opcodes[i], 5000);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	link_close(&l);
	return 0;
}
