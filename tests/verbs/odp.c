// SPDX-License-Identifier: BSD-2-Clause
/*
 * On-demand paging: what is said to be supported; MRs of memory that is mapped only later; the MR
 * of the whole address space; memory that is not there is an error of the request, and of nothing
 * else; ibv_advise_mr().
 */
#include <sys/mman.h>

#include "regions.h"

#define LEN 65536
#define ON_DEMAND (ALL_RIGHTS | IBV_ACCESS_ON_DEMAND)

/* Maps the range that p had. */
static void map_at(uint8_t *p)
{
	CHECK(mmap(p, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		   0) == p);
}

static void capabilities(struct ibv_context *ctx)
{
	const uint32_t all = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
			     IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC |
			     IBV_ODP_SUPPORT_SRQ_RECV;
	struct ibv_device_attr_ex attr;

	CHECK_EQ(ibv_query_device_ex(ctx, NULL, &attr), 0);
	CHECK_EQ(attr.odp_caps.general_caps, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
	CHECK_EQ(attr.odp_caps.per_transport_caps.rc_odp_caps, all);
	CHECK(attr.odp_caps.per_transport_caps.ud_odp_caps & IBV_ODP_SUPPORT_SEND);
}

/* Traffic by keys of MRs on demand of the same range at both sides. */
static void use(struct pair *p, uint8_t *mem, uint32_t lkey_a, const struct ibv_mr *mr)
{
	for (uint32_t len = 8; len <= 4096; len *= 8) {
		struct ibv_sge out = {(uintptr_t)mem, len, lkey_a};
		struct ibv_sge in = {(uintptr_t)mem + 8192, len, mr->lkey};

		memset(mem, (int)len / 8, len);
		send_over(p, &out, &in);
		CHECK(all_are(mem + 8192, (uint8_t)(len / 8), len));
		CHECK_EQ(run_op(p, IBV_WR_RDMA_WRITE, &out, (uintptr_t)mem + 16384, mr->rkey),
			 IBV_WC_SUCCESS);
		CHECK(all_are(mem + 16384, (uint8_t)(len / 8), len));
		CHECK_EQ(run_op(p, IBV_WR_RDMA_READ, &out, (uintptr_t)mem + 32768, mr->rkey),
			 IBV_WC_SUCCESS);
		CHECK(all_are(mem, 0, len));
	}
}

/* Nothing is mapped there now. */
static void miss(struct pair *p, uint8_t *mem, uint32_t lkey_a, const struct ibv_mr *mr)
{
	struct ibv_sge own = sge_at(&p->l.a.e, 0, 8);
	struct ibv_sge out = {(uintptr_t)mem, 8, lkey_a};
	struct ibv_sge in = {(uintptr_t)mem + 8192, 8, mr->lkey};

	CHECK_EQ(post_recv_at(p->b, 0, &in), 0);
	CHECK_EQ(post_send_at(p->a, 0, &own, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(next_status(&p->l.a), IBV_WC_REM_OP_ERR);
	CHECK_EQ(next_status(&p->l.b), IBV_WC_LOC_PROT_ERR);
	pair_reconnect(p);
	/* Of the source only that it fails: that may turn out where the bytes are wanted. */
	in = sge_at(&p->l.b.e, 0, 8);
	CHECK_EQ(post_recv_at(p->b, 0, &in), 0);
	CHECK_EQ(post_send_at(p->a, 0, &out, IBV_SEND_SIGNALED), 0);
	CHECK(next_status(&p->l.a) != IBV_WC_SUCCESS);
	pair_reconnect(p);
}

static void advice(struct env *e, uint8_t *mem, const struct ibv_mr *mr)
{
	struct ibv_mr *reader = ibv_reg_mr(e->pd, mem, LEN, IBV_ACCESS_ON_DEMAND);
	struct ibv_mw *mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_1);
	struct ibv_pd *other = ibv_alloc_pd(e->ctx);
	struct ibv_sge sge = {(uintptr_t)mem, LEN, mr->lkey};
	unsigned char in_core[LEN / 4096];

	CHECK(reader && mw && other);
	CHECK_EQ(madvise(mem, LEN, MADV_DONTNEED), 0);
	CHECK_EQ(ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
			       &sge, 1),
		 0);
	CHECK_EQ(mincore(mem, LEN, in_core), 0);
	for (size_t i = 0; i < sizeof(in_core); i++)
		CHECK(in_core[i] & 1);
	CHECK_EQ(ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), 0);
	CHECK_EQ(ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, 0, &sge, 1), 0);
	CHECK_EQ(ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1 << 7, &sge, 1), EINVAL);
	CHECK_EQ(ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0), EINVAL);
	CHECK_EQ(ibv_advise_mr(other, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EPERM);
	sge.lkey = e->mr->lkey; /* not on demand */
	CHECK_EQ(ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EINVAL);
	sge.lkey = mw->rkey;
	CHECK_EQ(ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EINVAL);
	sge.lkey = mr->lkey ^ 1;
	CHECK_EQ(ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
	sge.lkey = mr->lkey;
	sge.addr += 4096;
	CHECK_EQ(ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
	sge = (struct ibv_sge){(uintptr_t)mem, LEN, reader->lkey};
	CHECK_EQ(ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1), EPERM);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	CHECK_EQ(ibv_dereg_mr(reader), 0);
	CHECK_EQ(ibv_dealloc_pd(other), 0);
}

int main(int argc, char **argv)
{
	struct ibv_mr *from, *to, *all_a, *all_b;
	struct ibv_sge sge;
	struct pair p;
	uint8_t *mem;

	pair_open(&p, argc, argv);
	capabilities(p.l.a.e.ctx);
	mem = mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mem != MAP_FAILED);
	from = ibv_reg_mr(p.l.a.e.pd, mem, LEN, ON_DEMAND);
	to = ibv_reg_mr(p.l.b.e.pd, mem, LEN, ON_DEMAND);
	CHECK(from && to);
	miss(&p, mem, from->lkey, to);
	map_at(mem);
	use(&p, mem, from->lkey, to);
	advice(&p.l.b.e, mem, to);
	sge = (struct ibv_sge){(uintptr_t)mem, LEN, to->lkey};
	CHECK_EQ(munmap(mem, LEN), 0);
	CHECK_EQ(ibv_advise_mr(p.l.b.e.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
	miss(&p, mem, from->lkey, to);

	/* Implicit: all there is, and all there will be. */
	CHECK(!ibv_reg_mr(p.l.a.e.pd, NULL, SIZE_MAX, ALL_RIGHTS));
	all_a = ibv_reg_mr(p.l.a.e.pd, NULL, SIZE_MAX, ON_DEMAND);
	all_b = ibv_reg_mr(p.l.b.e.pd, NULL, SIZE_MAX, ON_DEMAND);
	CHECK(all_a && all_b);
	miss(&p, mem, all_a->lkey, all_b);
	map_at(mem);
	use(&p, mem, all_a->lkey, all_b);
	sge.lkey = all_b->lkey;
	CHECK_EQ(ibv_advise_mr(p.l.b.e.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1), 0);
	CHECK_EQ(ibv_dereg_mr(from), 0);
	CHECK_EQ(ibv_dereg_mr(to), 0);
	CHECK_EQ(ibv_dereg_mr(all_a), 0);
	CHECK_EQ(ibv_dereg_mr(all_b), 0);
	pair_close(&p);
	return 0;
}
