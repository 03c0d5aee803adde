// SPDX-License-Identifier: BSD-2-Clause
/* IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: the newest CQEs take the place of the oldest, nothing fails.
 */
#include <fcntl.h>

#include "common.h"

#define SENT 14

int main(void)
{
	struct ibv_cq_init_attr_ex cattr = {
		.cqe = 4,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
	};
	struct ibv_async_event event;
	struct ibv_qp_init_attr attr;
	struct ibv_wc wc[SENT];
	struct ibv_qp *a, *b;
	struct ibv_sge sge;
	struct ibv_cq *cq;
	struct env e;
	int cqe, n;
	double end;

	env_open(&e);
	cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(e.ctx, &cattr));
	CHECK(cq);
	cqe = cq->cqe;
	CHECK(cqe < SENT);
	attr = env_qp_attr(&e);
	attr.send_cq = cq;
	create_pair(&e, &attr, &a, &b);
	for (int round = 0; round < 3; round++) {
		sge = sge_at(&e, 0, 8);
		for (uint64_t i = 0; i < SENT; i++) {
			CHECK_EQ(post_recv_at(b, i, NULL), 0);
			sge.length = 0;
			CHECK_EQ(post_send_at(a, i, &sge, IBV_SEND_SIGNALED), 0);
		}
		wait_wc(e.cq, SENT, wc);
		/* The last one's CQE may be the sender's only after its ACK. */
		end = seconds() + TEST_TIMEOUT;
		do {
			n = ibv_poll_cq(cq, SENT, wc);
			CHECK(n >= 0); /* more than cqe if some come while it polls */
			for (int i = 1; i < n; i++)
				CHECK(wc[i].wr_id > wc[i - 1].wr_id);
			CHECK(seconds() < end);
		} while (n == 0 || wc[n - 1].wr_id != SENT - 1);
		expect_empty(cq);
	}
	CHECK_EQ(fcntl(e.ctx->async_fd, F_SETFL, O_NONBLOCK), 0);
	CHECK_EQ(ibv_get_async_event(e.ctx, &event), -1);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	env_close(&e);
	return 0;
}
