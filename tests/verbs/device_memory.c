// SPDX-License-Identifier: BSD-2-Clause
/*
 * Device memory: how much there is, copies to and from it and what is refused of them, registering,
 * traffic of every kind, and that it cannot go while a MR is of it.
 */
#include "regions.h"

#define LEN 16384

static uint8_t host[LEN];

static struct ibv_dm *alloc(struct ibv_context *ctx, size_t length)
{
	struct ibv_alloc_dm_attr attr = {.length = length};

	return ibv_alloc_dm(ctx, &attr);
}

/* All of it can be had, no more, and all of it again. */
static void capacity(struct ibv_context *ctx)
{
	struct ibv_alloc_dm_attr odd = {.length = 64, .comp_mask = 1};
	struct ibv_device_attr_ex attr;
	struct ibv_dm *dm;

	CHECK_EQ(ibv_query_device_ex(ctx, NULL, &attr), 0);
	CHECK(attr.max_dm_size > 0);
	for (int round = 0; round < 2; round++) {
		dm = alloc(ctx, attr.max_dm_size);
		CHECK(dm);
		CHECK(!alloc(ctx, 4));
		CHECK_EQ(errno, ENOMEM);
		CHECK_EQ(ibv_free_dm(dm), 0);
	}
	CHECK(!alloc(ctx, attr.max_dm_size + 1));
	CHECK_EQ(errno, EINVAL);
	CHECK(!alloc(ctx, 0));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_alloc_dm(ctx, &odd));
	CHECK_EQ(errno, EINVAL);
}

static void copies(struct ibv_dm *dm)
{
	memset(host, 0xa5, LEN);
	CHECK_EQ(ibv_memcpy_from_dm(host, dm, 0, LEN), 0);
	CHECK(all_are(host, 0, LEN)); /* nobody's old data */
	memset(host, 0x77, LEN);
	CHECK_EQ(ibv_memcpy_to_dm(dm, 4, host, LEN - 4), 0);
	memset(host, 0, LEN);
	CHECK_EQ(ibv_memcpy_from_dm(host, dm, 8, LEN - 8), 0);
	CHECK(all_are(host, 0x77, LEN - 8));
	CHECK_EQ(ibv_memcpy_to_dm(dm, 3, host, 4), EINVAL);
	CHECK_EQ(ibv_memcpy_to_dm(dm, 4, host, 3), EINVAL);
	CHECK_EQ(ibv_memcpy_to_dm(dm, LEN + 4, host, 4), EINVAL);
	CHECK_EQ(ibv_memcpy_from_dm(host, dm, 4, LEN), EINVAL);
	CHECK_EQ(ibv_memcpy_from_dm(host, dm, UINT64_MAX - 3, 8), EINVAL);
}

static void refusals(struct env *e, struct ibv_dm *dm)
{
	CHECK(!ibv_reg_dm_mr(e->pd, dm, 0, LEN, IBV_ACCESS_LOCAL_WRITE)); /* not zero based */
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_reg_dm_mr(e->pd, dm, 4, LEN, IBV_ACCESS_ZERO_BASED));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_reg_dm_mr(e->pd, dm, UINT64_MAX, 2, IBV_ACCESS_ZERO_BASED));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_reg_dm_mr(e->pd, dm, 0, LEN, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE));
	CHECK_EQ(errno, EINVAL);
}

/* Into it by SEND, WRITE and atomics; out of it by SEND, READ and WRITE. */
static void traffic(struct pair *p, struct ibv_mr *mr, struct ibv_dm *dm, uint32_t len)
{
	struct ibv_sge own = sge_at(&p->l.a.e, 0, len), in = {4096, len, mr->lkey}, back;
	uint64_t word = 41;

	memset(p->l.a.e.buf, 0x5a, len);
	send_over(p, &own, &in);
	CHECK_EQ(ibv_memcpy_from_dm(host, dm, 4096 + 4096, len), 0);
	CHECK(all_are(host, 0x5a, len));
	memset(p->l.a.e.buf, 0x6b, len);
	CHECK_EQ(write_to(p, 0, mr->rkey, len), IBV_WC_SUCCESS);
	CHECK_EQ(ibv_memcpy_from_dm(host, dm, 4096, len), 0);
	CHECK(all_are(host, 0x6b, len));
	CHECK_EQ(read_from(p, 0, mr->rkey, len), IBV_WC_SUCCESS);
	CHECK(all_are(p->l.a.e.buf + BUF_SIZE / 2, 0x6b, len));

	CHECK_EQ(ibv_memcpy_to_dm(dm, 4096, &word, 8), 0);
	own = sge_at(&p->l.a.e, 0, 8);
	CHECK_EQ(run_op(p, IBV_WR_ATOMIC_FETCH_AND_ADD, &own, 0, mr->rkey), IBV_WC_SUCCESS);
	CHECK_EQ(ibv_memcpy_from_dm(&word, dm, 4096, 8), 0);
	CHECK_EQ(word, 42);

	/* From b's device memory to a. */
	in = (struct ibv_sge){0, len, mr->lkey};
	back = sge_at(&p->l.a.e, 0, len);
	memset(host, 0x7c, len);
	CHECK_EQ(ibv_memcpy_to_dm(dm, 4096, host, len), 0);
	CHECK_EQ(post_recv_at(p->a, 0, &back), 0);
	CHECK_EQ(post_send_at(p->b, 0, &in, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(next_status(&p->l.b), IBV_WC_SUCCESS);
	CHECK_EQ(next_status(&p->l.a), IBV_WC_SUCCESS);
	CHECK(all_are(p->l.a.e.buf, 0x7c, len));
	/* And by READ into it. */
	memset(p->l.a.e.buf, 0x1d, len);
	CHECK_EQ(post_op(p->b, IBV_WR_RDMA_READ, &in, (uintptr_t)p->l.a.e.buf, p->l.a.e.mr->rkey),
		 0);
	CHECK_EQ(next_status(&p->l.b), IBV_WC_SUCCESS);
	CHECK_EQ(ibv_memcpy_from_dm(host, dm, 4096, len), 0);
	CHECK(all_are(host, 0x1d, len));
}

int main(int argc, char **argv)
{
	const uint32_t lens[] = {8, 64, 128, 4096};
	struct ibv_mr *mr, *empty;
	struct ibv_dm *dm;
	struct pair p;

	pair_open(&p, argc, argv);
	capacity(p.l.b.e.ctx);
	dm = alloc(p.l.b.e.ctx, LEN);
	CHECK(dm);
	copies(dm);
	refusals(&p.l.b.e, dm);
	mr = ibv_reg_dm_mr(p.l.b.e.pd, dm, 4096, LEN - 4096, IBV_ACCESS_ZERO_BASED | ALL_RIGHTS);
	empty = ibv_reg_dm_mr(p.l.b.e.pd, dm, 0, 0, IBV_ACCESS_ZERO_BASED);
	CHECK(mr && empty);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
		traffic(&p, mr, dm, lens[i]);
	CHECK_EQ(write_to(&p, LEN - 4096, mr->rkey, 4), IBV_WC_REM_ACCESS_ERR);
	CHECK_EQ(ibv_free_dm(dm), EBUSY);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) != 0);
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(ibv_free_dm(dm), EBUSY);
	CHECK_EQ(ibv_dereg_mr(empty), 0);
	CHECK_EQ(ibv_free_dm(dm), 0);
	pair_close(&p);
	return 0;
}
