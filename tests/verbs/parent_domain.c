// SPDX-License-Identifier: BSD-2-Clause
/* Parent and thread domains: a PD for all that takes one, its allocators, who may go before whom.
 */
#include "common.h"

#define BLOCKS 16

static struct env e;
static struct ibv_pd *parent;
static int context; /* its address is the pd_context */

/* What the allocators did. */
static struct {
	void *p;
	uint64_t type;
} block[BLOCKS];
static int allocated, freed;
static void *answer; /* instead of memory; NULL: memory */
static int refuse;

static void *take(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment, uint64_t type)
{
	void *p;

	CHECK(pd == parent && pd_context == &context);
	CHECK(size > 0 && alignment > 0 && !(alignment & (alignment - 1)));
	if (refuse)
		return NULL;
	if (answer)
		return answer;
	p = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
	CHECK(p && allocated < BLOCKS);
	memset(p, 0, size);
	block[allocated].p = p;
	block[allocated++].type = type;
	return p;
}

static void give(struct ibv_pd *pd, void *pd_context, void *p, uint64_t type)
{
	int i;

	CHECK(pd == parent && pd_context == &context);
	for (i = 0; i < allocated && block[i].p != p; i++)
		;
	CHECK(i < allocated);
	CHECK_EQ(block[i].type, type);
	block[i].p = NULL;
	freed++;
	free(p);
}

/* A CQ, a SRQ, two QPs on the parent domain, and a message between them. */
static void use(int blocks)
{
	struct ibv_cq_init_attr_ex cattr = {.cqe = 16,
					    .wc_flags = IBV_WC_STANDARD_FLAGS,
					    .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
					    .parent_domain = parent};
	struct ibv_srq_init_attr sattr = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_qp_init_attr attr = env_qp_attr(&e);
	struct ibv_cq *cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(e.ctx, &cattr));
	struct ibv_srq *srq = ibv_create_srq(parent, &sattr);
	struct ibv_mr *mr = ibv_reg_mr(parent, e.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge out = sge_at(&e, 0, 5), in = sge_at(&e, 2048, 64);
	struct ibv_recv_wr wr = {.wr_id = 7, .sg_list = &in, .num_sge = 1}, *bad;
	int before = allocated, freed_before = freed;
	struct ibv_qp *a, *b;
	struct ibv_wc wc;

	CHECK(cq && srq && mr);
	attr.send_cq = attr.recv_cq = cq;
	a = ibv_create_qp(parent, &attr);
	attr.srq = srq;
	b = ibv_create_qp(parent, &attr);
	CHECK(a && b);
	CHECK(a->pd == parent);
	CHECK(allocated - before <= blocks && allocated >= blocks);
	connect_pair(&e, a, b);
	CHECK_EQ(ibv_dealloc_pd(parent), EBUSY);
	memcpy(e.buf, "quick", 5);
	memset(e.buf + 2048, 0, 5);
	out.lkey = in.lkey = mr->lkey;
	CHECK_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
	CHECK_EQ(post_send_at(a, 1, &out, IBV_SEND_SIGNALED), 0);
	for (int i = 0; i < 2; i++) {
		wait_wc(cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	}
	CHECK(!memcmp(e.buf + 2048, "quick", 5));
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_dealloc_pd(parent), EBUSY);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(freed, allocated);
	CHECK(freed >= freed_before);
}

/* Each kind of MR, and windows, keep the parent domain they were made on, and no other. */
static void regions(void)
{
	struct ibv_alloc_dm_attr dattr = {.length = 4096};
	struct ibv_dm *dm = ibv_alloc_dm(e.ctx, &dattr);
	struct ibv_mr *mr[] = {
		ibv_reg_mr(parent, e.buf, 4096, IBV_ACCESS_LOCAL_WRITE),
		ibv_reg_mr(parent, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE),
		ibv_alloc_null_mr(parent),
		ibv_reg_dm_mr(parent, dm, 0, 4096, IBV_ACCESS_ZERO_BASED),
	};
	struct ibv_mw *mw = ibv_alloc_mw(parent, IBV_MW_TYPE_1);

	CHECK(mw);
	for (size_t i = 0; i < sizeof(mr) / sizeof(mr[0]); i++) {
		CHECK(mr[i]);
		CHECK_EQ(ibv_dealloc_pd(parent), EBUSY);
		CHECK_EQ(ibv_dereg_mr(mr[i]), 0);
	}
	CHECK_EQ(ibv_dealloc_pd(parent), EBUSY);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	/* To another PD, and back. */
	mr[0] = ibv_reg_mr(e.pd, e.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr[0]);
	CHECK_EQ(ibv_rereg_mr(mr[0], IBV_REREG_MR_CHANGE_PD, parent, NULL, 0, 0), 0);
	CHECK_EQ(ibv_dealloc_pd(parent), EBUSY);
	CHECK_EQ(ibv_rereg_mr(mr[0], IBV_REREG_MR_CHANGE_PD, e.pd, NULL, 0, 0), 0);
	CHECK_EQ(ibv_dealloc_pd(parent), 0);
	CHECK_EQ(ibv_dereg_mr(mr[0]), 0);
	CHECK_EQ(ibv_free_dm(dm), 0);
}

static struct ibv_pd *make(struct ibv_td *td, uint32_t mask)
{
	struct ibv_parent_domain_init_attr attr = {
		.pd = e.pd,
		.td = td,
		.comp_mask = mask,
		.alloc = take,
		.free = give,
		.pd_context = &context,
	};

	return ibv_alloc_parent_domain(e.ctx, &attr);
}

static void refused(void)
{
	struct ibv_parent_domain_init_attr attr = {0};
	struct ibv_td_init_attr tattr = {.comp_mask = 1};

	CHECK(!ibv_alloc_parent_domain(e.ctx, &attr));
	CHECK_EQ(errno, EINVAL);
	attr.pd = e.pd;
	attr.comp_mask = 1 << 7;
	CHECK(!ibv_alloc_parent_domain(e.ctx, &attr));
	CHECK_EQ(errno, EINVAL);
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	CHECK(!ibv_alloc_parent_domain(e.ctx, &attr));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_alloc_td(e.ctx, &tattr));
}

int main(void)
{
	const uint32_t all = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	struct ibv_td_init_attr tattr = {0};
	struct ibv_qp_init_attr attr;
	struct ibv_pd *pd;
	struct ibv_td *td;

	env_open(&e);
	refused();

	/* Without allocators. */
	parent = make(NULL, 0);
	CHECK(parent);
	use(0);
	CHECK_EQ(allocated, 0);
	/* What was made from a PD goes before it. */
	pd = ibv_alloc_pd(e.ctx);
	CHECK(pd);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_dealloc_pd(e.pd), EBUSY);
	CHECK_EQ(ibv_dealloc_pd(parent), 0);

	parent = make(NULL, 0);
	CHECK(parent);
	regions();

	/* With them: each object's memory is theirs, unless they leave it to the library. */
	parent = make(NULL, all);
	CHECK(parent);
	use(4);
	CHECK_EQ(allocated, 4);
	answer = IBV_ALLOCATOR_USE_DEFAULT;
	use(0);
	CHECK_EQ(allocated, 4);
	answer = NULL;
	refuse = 1;
	attr = env_qp_attr(&e);
	CHECK(!ibv_create_qp(parent, &attr));
	CHECK_EQ(errno, ENOMEM);
	refuse = 0;
	CHECK_EQ(ibv_dealloc_pd(parent), 0);

	/* A thread domain goes behind the parent domains it is in. */
	td = ibv_alloc_td(e.ctx, &tattr);
	CHECK(td);
	parent = make(td, 0);
	CHECK(parent);
	use(0);
	CHECK_EQ(ibv_dealloc_td(td), EBUSY);
	CHECK_EQ(ibv_dealloc_pd(parent), 0);
	CHECK_EQ(ibv_dealloc_td(td), 0);
	env_close(&e);
	return 0;
}
