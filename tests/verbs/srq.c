// SPDX-License-Identifier: BSD-2-Clause
/*
 * A shared receive queue: its depth, slots that come free by polling and by RESET, its limit; whose
 * PD its receives are of.
 */
#include "common.h"

static int post_srq(struct ibv_srq *srq, uint64_t wr_id, struct ibv_sge *sge)
{
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = sge, .num_sge = 1}, *bad = NULL;
	int error = ibv_post_srq_recv(srq, &wr, &bad);

	CHECK(!error || bad == &wr);
	return error;
}

/* The keys of its receives are of the SRQ's PD, whatever that of the QP is. */
static void domain(struct env *e)
{
	struct ibv_srq_init_attr sattr = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_qp_init_attr attr = env_qp_attr(e);
	struct ibv_pd *pd = ibv_alloc_pd(e->ctx);
	struct ibv_srq *srq = ibv_create_srq(pd, &sattr);
	struct ibv_mr *mr = ibv_reg_mr(pd, e->buf, BUF_SIZE, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge out = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);
	struct ibv_cq *cq = ibv_create_cq(e->ctx, 8, NULL, NULL, 0);
	struct ibv_qp *a = ibv_create_qp(e->pd, &attr), *b;
	struct ibv_wc wc;

	CHECK(pd && srq && mr && cq && a);
	attr.srq = srq;
	attr.recv_cq = cq;
	b = ibv_create_qp(e->pd, &attr);
	CHECK(b);
	connect_pair(e, a, b);
	for (int own = 1; own >= 0; own--) {
		in.lkey = own ? mr->lkey : e->mr->lkey;
		CHECK_EQ(post_srq(srq, 1, &in), 0);
		CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
		wait_wc(e->cq, 1, &wc);
		CHECK_EQ(wc.status, own ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR);
		wait_wc(cq, 1, &wc);
		CHECK_EQ(wc.status, own ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR);
	}
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
}

int main(void)
{
	struct ibv_srq_init_attr sattr = {.attr = {.max_wr = 8, .max_sge = 2}};
	struct ibv_srq_attr query;
	struct ibv_qp_init_attr attr;
	struct ibv_sge out, in;
	struct ibv_qp *a, *b;
	struct ibv_wc wc[32];
	struct ibv_srq *srq;
	struct env e;
	uint32_t max;

	env_open(&e);
	out = sge_at(&e, 0, 8);
	in = sge_at(&e, 4096, 64);
	srq = ibv_create_srq(e.pd, &sattr);
	CHECK(srq);
	max = sattr.attr.max_wr;
	CHECK(max >= 8 && max <= 16);
	attr = env_qp_attr(&e);
	a = ibv_create_qp(e.pd, &attr);
	attr.srq = srq;
	attr.cap.max_recv_wr = attr.cap.max_recv_sge = UINT32_MAX; /* ignored */
	b = ibv_create_qp(e.pd, &attr);
	CHECK(a && b);
	CHECK_EQ(post_recv_at(b, 0, NULL), EINVAL);
	attr.qp_type = IBV_QPT_UC;
	CHECK(!ibv_create_qp(e.pd, &attr));
	CHECK_EQ(errno, EINVAL);

	for (int round = 0; round < 3; round++) {
		connect_pair(&e, a, b);
		for (uint32_t i = 0; i < max; i++)
			CHECK_EQ(post_srq(srq, 100 + i, &in), 0);
		CHECK_EQ(post_srq(srq, 0, &in), ENOMEM);
		for (uint32_t i = 0; i < max; i++) {
			e.buf[0] = (uint8_t)(i + 1);
			CHECK_EQ(post_send_at(a, i, &out, IBV_SEND_SIGNALED), 0);
			wait_wc(e.cq, 2, wc);
			for (int k = 0; k < 2; k++) {
				CHECK_EQ(wc[k].status, IBV_WC_SUCCESS);
				CHECK_EQ(wc[k].wr_id, wc[k].qp_num == b->qp_num ? 100 + i : i);
			}
			CHECK_EQ(e.buf[4096], i + 1);
		}
		/* Completed but not polled; then RESET: the slots come back. */
		for (uint32_t i = 0; i < max; i++)
			CHECK_EQ(post_srq(srq, 100 + i, &in), 0);
		for (uint32_t i = 0; i < max - 1; i++)
			CHECK_EQ(post_send_at(a, i, &out, 0), 0);
		CHECK_EQ(post_send_at(a, 55, &out, IBV_SEND_SIGNALED), 0);
		for (int seen = 0; !seen;) {
			CHECK(ibv_poll_cq(e.cq, 1, wc) >= 0);
			seen = wc[0].wr_id == 55;
		}
		to_state(b, IBV_QPS_RESET);
		to_state(a, IBV_QPS_RESET);
		expect_empty(e.cq);
	}

	CHECK_EQ(ibv_query_srq(srq, &query), 0);
	CHECK_EQ(query.max_wr, max);
	query.srq_limit = max + 1;
	CHECK_EQ(ibv_modify_srq(srq, &query, IBV_SRQ_LIMIT), EINVAL);
	CHECK_EQ(ibv_destroy_srq(srq), EBUSY);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	domain(&e);
	env_close(&e);
	return 0;
}
