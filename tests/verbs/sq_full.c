// SPDX-License-Identifier: BSD-2-Clause
/* A send queue full of unsignaled WRs stays full; a polled CQE frees its slot and those before. */
#include "common.h"

int main(void)
{
	struct env e;
	struct ibv_qp_init_attr attr;
	struct ibv_qp *a, *b;
	struct ibv_sge out, in;
	struct ibv_wc wc;
	uint32_t depth;

	env_open(&e);
	out = sge_at(&e, 0, 8);
	in = sge_at(&e, 4096, 64);
	attr = env_qp_attr(&e);
	attr.recv_cq = ibv_create_cq(e.ctx, 256, NULL, NULL, 0);
	CHECK(attr.recv_cq);
	attr.cap.max_recv_wr = 64;
	create_pair(&e, &attr, &a, &b);
	depth = attr.cap.max_send_wr;
	CHECK(depth >= 16 && depth <= 60);
	for (uint32_t i = 0; i < 64; i++)
		CHECK_EQ(post_recv_at(b, i, &in), 0);

	/* All but the last unsignaled: only its CQE makes room. */
	for (uint32_t i = 0; i < depth - 1; i++)
		CHECK_EQ(post_send_at(a, i, &out, 0), 0);
	CHECK_EQ(post_send_at(a, 99, &out, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(post_send_at(a, 100, &out, 0), ENOMEM);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 99);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(wc.opcode, IBV_WC_SEND);

	for (uint32_t i = 0; i < depth; i++) {
		struct ibv_send_wr wr = {
			.opcode = IBV_WR_RDMA_WRITE, .sg_list = &out, .num_sge = 1};
		struct ibv_send_wr *bad;

		wr.wr.rdma.remote_addr = (uintptr_t)e.buf + 8192;
		wr.wr.rdma.rkey = e.mr->rkey;
		CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	}
	expect_empty(e.cq);
	CHECK_EQ(post_send_at(a, 101, &out, 0), ENOMEM);

	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(attr.recv_cq), 0);
	env_close(&e);
	return 0;
}
