// SPDX-License-Identifier: BSD-2-Clause
/*
 * Fault cqe-rubbish: completions with an error have wr_id, status and qp_num as ever and anything in
 * the other fields, in their order; those without one are left alone; of the other QP, too.
 */
#include "faults.h"

#define WRS 8

/* @return of n flushed completions of a QP, those whose opcode is one that was posted */
static int take_flushed(struct side *s, const struct ibv_qp *qp, int n)
{
	uint64_t next_send = 0, next_recv = 100;
	struct ibv_wc wc[4 * WRS];
	int right = 0;

	wait_wc(s->e.cq, n, wc);
	for (int i = 0; i < n; i++) {
		bool recv = wc[i].wr_id >= 100;

		CHECK_EQ(wc[i].status, IBV_WC_WR_FLUSH_ERR);
		CHECK_EQ(wc[i].qp_num, qp->qp_num);
		CHECK_EQ(wc[i].wr_id, recv ? next_recv++ : next_send++);
		right += wc[i].opcode == IBV_WC_SEND || wc[i].opcode == IBV_WC_RECV;
	}
	CHECK_EQ(next_send, WRS);
	CHECK_EQ(next_recv, 100 + WRS);
	return right;
}

/* Fills both queues of a QP in ERR. */
static void post_all(struct side *s, struct ibv_qp *qp)
{
	struct ibv_sge sge = sge_at(&s->e, 0, 8);

	to_state(qp, IBV_QPS_ERR);
	for (uint64_t i = 0; i < WRS; i++) {
		CHECK_EQ(post_send_at(qp, i, &sge, 0), 0);
		CHECK_EQ(post_recv_at(qp, 100 + i, &sge), 0);
	}
}

int main(int argc, char **argv)
{
	unsigned long counts[2];
	struct ibv_qp *a, *b;
	struct ibv_wc wc;
	struct link l;
	uint32_t id;

	link_open(&l, argc, argv);
	a = link_qp(&l.a, IBV_QPT_RC);
	b = link_qp(&l.b, IBV_QPT_RC);
	link_connect(&l, a, b, &timing_default);
	id = fault_add(&l.a, "cqe-rubbish,qp=%u", a->qp_num);

	for (uint64_t i = 0; i < 5; i++) {
		CHECK_EQ(link_post(&l, a, IBV_WR_RDMA_WRITE, i, 100, IBV_SEND_SIGNALED), 0);
		wait_wc(l.a.e.cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK_EQ(wc.wr_id, i);
		CHECK_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
	}
	fault_counts(&l.a, id, counts);
	CHECK_EQ(counts[0], 0);
	post_all(&l.a, a);
	/* Two in 256 are right by chance. */
	CHECK(take_flushed(&l.a, a, 2 * WRS) < WRS);
	fault_counts(&l.a, id, counts);
	CHECK_EQ(counts[0], 2 * WRS);
	CHECK_EQ(counts[1], 2 * WRS);
	post_all(&l.b, b);
	CHECK_EQ(take_flushed(&l.b, b, 2 * WRS), 2 * WRS);

	/* The slots are free again, whatever the completion said. */
	fault_clear(&l.a, id);
	link_connect(&l, a, b, &timing_default);
	post_all(&l.a, a);
	CHECK_EQ(take_flushed(&l.a, a, 2 * WRS), 2 * WRS);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	link_close(&l);
	return 0;
}
