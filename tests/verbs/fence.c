// SPDX-License-Identifier: BSD-2-Clause
/* IBV_SEND_FENCE: what a READ brings is what a WRITE from there, posted with it, sends on. */
#include "common.h"

int main(void)
{
	struct ibv_qp_init_attr attr;
	struct ibv_qp *a, *b;
	struct env e;

	env_open(&e);
	attr = env_qp_attr(&e);
	create_pair(&e, &attr, &a, &b);
	for (unsigned int n = 0; n < 200; n++) {
		uint32_t len = n % 2 ? 8 : 3000;
		struct ibv_sge sge = sge_at(&e, 0, len);
		struct ibv_send_wr write = {.sg_list = &sge,
					    .num_sge = 1,
					    .opcode = IBV_WR_RDMA_WRITE,
					    .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE};
		struct ibv_send_wr read = {.next = &write,
					   .sg_list = &sge,
					   .num_sge = 1,
					   .opcode = IBV_WR_RDMA_READ,
					   .send_flags = IBV_SEND_SIGNALED};
		struct ibv_send_wr *bad;
		struct ibv_wc wc[2];

		memset(e.buf, 0xee, len);
		memset(e.buf + 4096, (int)n, len);
		read.wr.rdma.remote_addr = (uintptr_t)e.buf + 4096;
		write.wr.rdma.remote_addr = (uintptr_t)e.buf + 8192;
		read.wr.rdma.rkey = write.wr.rdma.rkey = e.mr->rkey;
		CHECK_EQ(ibv_post_send(a, &read, &bad), 0);
		wait_wc(e.cq, 2, wc);
		CHECK_EQ(wc[0].status, IBV_WC_SUCCESS);
		CHECK_EQ(wc[1].status, IBV_WC_SUCCESS);
		CHECK(!memcmp(e.buf + 8192, e.buf + 4096, len));
	}
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	env_close(&e);
	return 0;
}
