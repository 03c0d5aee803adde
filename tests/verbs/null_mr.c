// SPDX-License-Identifier: BSD-2-Clause
/* ibv_alloc_null_mr(): what is read is 0, what is written is lost, and no peer gets at it. */
#include "regions.h"

int main(int argc, char **argv)
{
	const uint32_t lens[] = {8, 64, 1000, 32768};
	struct ibv_mr *from, *into;
	struct ibv_sge two[2], one;
	struct env *a, *b;
	struct pair p;

	pair_open(&p, argc, argv);
	a = &p.l.a.e;
	b = &p.l.b.e;
	from = ibv_alloc_null_mr(a->pd);
	into = ibv_alloc_null_mr(b->pd);
	CHECK(from && into);
	CHECK(from->lkey && !from->addr && from->length == SIZE_MAX);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		/* Any address does. */
		struct ibv_sge zeros = {(uintptr_t)i << 60, lens[i], from->lkey};
		struct ibv_sge nowhere = {12345, lens[i], into->lkey};

		one = sge_at(b, 0, lens[i]);
		memset(b->buf, 0xee, lens[i] + 1);
		send_over(&p, &zeros, &one);
		CHECK(all_are(b->buf, 0, lens[i]) && b->buf[lens[i]] == 0xee);
		memset(b->buf, 0xee, lens[i] + 1);
		CHECK_EQ(run_op(&p, IBV_WR_RDMA_WRITE, &zeros, (uintptr_t)b->buf, b->mr->rkey),
			 IBV_WC_SUCCESS);
		CHECK(all_are(b->buf, 0, lens[i]) && b->buf[lens[i]] == 0xee);

		one = sge_at(a, 0, lens[i]);
		memset(a->buf, 0x11, lens[i]);
		send_over(&p, &one, &nowhere);
		CHECK_EQ(run_op(&p, IBV_WR_RDMA_READ, &zeros, (uintptr_t)b->buf, b->mr->rkey),
			 IBV_WC_SUCCESS);
	}
	/* A hole in the middle of a list: the first half of the message is not kept. */
	memset(a->buf, 0x22, 64);
	memset(b->buf, 0xee, 64);
	two[0] = (struct ibv_sge){0, 32, into->lkey};
	two[1] = sge_at(b, 0, 32);
	CHECK_EQ(ibv_post_recv(p.b, &(struct ibv_recv_wr){.sg_list = two, .num_sge = 2},
			       &(struct ibv_recv_wr *){NULL}),
		 0);
	one = sge_at(a, 0, 64);
	memset(a->buf + 32, 0x33, 32);
	CHECK_EQ(post_send_at(p.a, 0, &one, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(next_status(&p.l.a), IBV_WC_SUCCESS);
	CHECK_EQ(next_status(&p.l.b), IBV_WC_SUCCESS);
	CHECK(all_are(b->buf, 0x33, 32) && all_are(b->buf + 32, 0xee, 32));

	CHECK_EQ(write_to(&p, 0, into->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	pair_reconnect(&p);
	CHECK_EQ(read_from(&p, 0, into->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_rereg_mr(from, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) != 0);
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(ibv_dereg_mr(from), 0);
	CHECK_EQ(ibv_dereg_mr(into), 0);
	pair_close(&p);
	return 0;
}
