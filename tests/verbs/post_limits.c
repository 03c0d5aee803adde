// SPDX-License-Identifier: BSD-2-Clause
/* What posting refuses, with which errno value, and that bad_wr names the first WR not posted. */
#include "common.h"

static void states(struct env *e)
{
	struct ibv_qp_init_attr attr = env_qp_attr(e);
	struct ibv_qp *qp = ibv_create_qp(e->pd, &attr);
	struct ibv_sge sge = sge_at(e, 0, 8);

	CHECK(qp);
	CHECK_EQ(post_recv_at(qp, 1, &sge), EINVAL);
	CHECK_EQ(post_send_at(qp, 1, &sge, 0), EINVAL);
	to_init(qp);
	CHECK_EQ(post_recv_at(qp, 1, &sge), 0);
	CHECK_EQ(post_send_at(qp, 1, &sge, 0), EINVAL);
	to_rtr(e, qp, qp->qp_num);
	CHECK_EQ(post_send_at(qp, 1, &sge, 0), EINVAL);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

static void arguments(struct env *e, struct ibv_qp *qp, const struct ibv_qp_cap *cap)
{
	struct ibv_sge sge[40];
	struct ibv_send_wr wr = {.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_recv_wr rwr = {.sg_list = sge, .num_sge = 1}, *rbad;

	CHECK(cap->max_send_sge < 40 && cap->max_recv_sge < 40);
	for (int i = 0; i < 40; i++)
		sge[i] = sge_at(e, 0, 8);
	wr.num_sge = (int)cap->max_send_sge + 1;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	rwr.num_sge = (int)cap->max_recv_sge + 1;
	CHECK_EQ(ibv_post_recv(qp, &rwr, &rbad), EINVAL);
	CHECK(rbad == &rwr);

	wr.num_sge = 1;
	wr.send_flags = IBV_SEND_INLINE;
	sge[0].length = cap->max_inline_data + 1;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);
	sge[0].length = 8;
	wr.opcode = IBV_WR_RDMA_READ;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);

	wr.send_flags = 0;
	wr.opcode = IBV_WR_TSO;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);
	wr.opcode = 77;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);
	wr.opcode = IBV_WR_SEND;
	sge[0].length = (1u << 30) + 1;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);
}

/* A list whose second WR is bad: the first is posted and completes. */
static void list(struct env *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_sge sge = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);
	struct ibv_send_wr second = {.opcode = IBV_WR_TSO};
	struct ibv_send_wr first = {.wr_id = 5,
				    .next = &second,
				    .sg_list = &sge,
				    .num_sge = 1,
				    .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct ibv_wc wc[2];

	CHECK_EQ(post_recv_at(b, 6, &in), 0);
	CHECK_EQ(ibv_post_send(a, &first, &bad), EINVAL);
	CHECK(bad == &second);
	wait_wc(e->cq, 2, wc);
	CHECK_EQ(wc[0].status, IBV_WC_SUCCESS);
	CHECK_EQ(wc[1].status, IBV_WC_SUCCESS);
	CHECK_EQ(wc[0].wr_id + wc[1].wr_id, 11);
	expect_empty(e->cq);
}

static void recv_full(struct ibv_qp *qp, const struct ibv_qp_cap *cap)
{
	for (uint32_t i = 0; i < cap->max_recv_wr; i++)
		CHECK_EQ(post_recv_at(qp, i, NULL), 0);
	CHECK_EQ(post_recv_at(qp, 0, NULL), ENOMEM);
}

int main(void)
{
	struct env e;
	struct ibv_qp_init_attr attr;
	struct ibv_qp *a, *b;

	env_open(&e);
	states(&e);
	attr = env_qp_attr(&e);
	a = ibv_create_qp(e.pd, &attr);
	b = ibv_create_qp(e.pd, &attr);
	CHECK(a && b);
	CHECK(attr.cap.max_send_wr >= 16 && attr.cap.max_inline_data >= 64);
	connect_pair(&e, a, b);
	arguments(&e, a, &attr.cap);
	list(&e, a, b);
	recv_full(a, &attr.cap);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	env_close(&e);
	return 0;
}
