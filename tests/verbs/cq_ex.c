// SPDX-License-Identifier: BSD-2-Clause
/* Extended polling: fields, batches, timestamps that rise, ENOENT on an empty CQ. */
#include "common.h"

int main(void)
{
	struct env e;
	struct ibv_cq_init_attr_ex cattr = {
		.cqe = 64,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	struct ibv_poll_cq_attr pattr = {0};
	struct ibv_qp_init_attr attr;
	struct ibv_device_attr_ex dattr;
	struct ibv_cq_ex *cq;
	struct ibv_qp *a, *b;
	struct ibv_sge out, in;
	struct ibv_wc wc[8];
	uint64_t last = 0;
	int n, error;

	env_open(&e);
	CHECK_EQ(ibv_query_device_ex(e.ctx, NULL, &dattr), 0);
	CHECK_EQ(dattr.completion_timestamp_mask, UINT64_MAX);
	out = sge_at(&e, 0, 8);
	in = sge_at(&e, 4096, 64);
	cattr.wc_flags |= IBV_WC_EX_WITH_TM_INFO;
	CHECK(!ibv_create_cq_ex(e.ctx, &cattr));
	CHECK_EQ(errno, EOPNOTSUPP);
	cattr.wc_flags &= ~(uint64_t)IBV_WC_EX_WITH_TM_INFO;
	cq = ibv_create_cq_ex(e.ctx, &cattr);
	CHECK(cq);
	attr = env_qp_attr(&e);
	attr.recv_cq = ibv_cq_ex_to_cq(cq);
	a = ibv_create_qp(e.pd, &attr);
	b = ibv_create_qp(e.pd, &attr);
	CHECK(a && b);
	connect_pair(&e, a, b);
	CHECK_EQ(ibv_start_poll(cq, &pattr), ENOENT);
	for (uint64_t i = 0; i < 4; i++)
		CHECK_EQ(post_recv_at(b, i, &in), 0);
	for (uint64_t i = 0; i < 4; i++)
		CHECK_EQ(post_send_at(a, i, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e.cq, 4, wc);
	for (n = 0; n < 4;) {
		error = ibv_start_poll(cq, &pattr);
		if (error == ENOENT)
			continue;
		while (!error) {
			CHECK_EQ(cq->status, IBV_WC_SUCCESS);
			CHECK_EQ(cq->wr_id, n);
			CHECK_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
			CHECK_EQ(ibv_wc_read_byte_len(cq), 8);
			CHECK_EQ(ibv_wc_read_qp_num(cq), b->qp_num);
			if (!getenv("TEST_NO_TIMESTAMP")) {
				CHECK(ibv_wc_read_completion_ts(cq) >= last && cq->status == 0);
				last = ibv_wc_read_completion_ts(cq);
				CHECK(last);
			}
			n++;
			error = ibv_next_poll(cq);
		}
		ibv_end_poll(cq);
	}
	/* The old call works on it too. */
	CHECK_EQ(post_recv_at(b, 9, &in), 0);
	CHECK_EQ(post_send_at(a, 9, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(ibv_cq_ex_to_cq(cq), 1, wc);
	CHECK_EQ(wc[0].wr_id, 9);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	env_close(&e);
	return 0;
}
