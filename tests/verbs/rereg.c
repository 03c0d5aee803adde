// SPDX-License-Identifier: BSD-2-Clause
/*
 * ibv_rereg_mr(): rights, address and PD, each alone and all at once; a failed one leaves the MR as
 * it was; what it takes away is gone when it returns.
 */
#include <sys/mman.h>

#include "regions.h"

#define ACCESS IBV_REREG_MR_CHANGE_ACCESS
#define PLACE IBV_REREG_MR_CHANGE_TRANSLATION
#define PD IBV_REREG_MR_CHANGE_PD

static uint8_t place[2][8192] __attribute__((aligned(4096)));

/* A right that is taken away is refused at once, not after a retry time. */
static void rights(struct pair *p)
{
	struct ibv_mr *mr = ibv_reg_mr(p->l.b.e.pd, place[0], 8192, ALL_RIGHTS);
	uint32_t rkey, lkey;
	double begin;

	CHECK(mr);
	rkey = mr->rkey;
	lkey = mr->lkey;
	CHECK_EQ(write_to(p, (uintptr_t)place[0], rkey, 100), IBV_WC_SUCCESS);
	CHECK_EQ(ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ), 0);
	CHECK(mr->rkey == rkey && mr->lkey == lkey);
	CHECK_EQ(read_from(p, (uintptr_t)place[0], rkey, 100), IBV_WC_SUCCESS);
	begin = seconds();
	CHECK_EQ(write_to(p, (uintptr_t)place[0], rkey, 100), IBV_WC_REM_ACCESS_ERR);
	/* 8 timeouts of 67 ms are half a second, on the busiest machine. */
	CHECK(seconds() - begin < 0.5);
	pair_reconnect(p);
	CHECK_EQ(ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, ALL_RIGHTS), 0);
	CHECK_EQ(write_to(p, (uintptr_t)place[0], rkey, 100), IBV_WC_SUCCESS);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

/* Both sides find the new place, and none the old one; small messages and long ones. */
static void translation(struct pair *p)
{
	struct side *a = &p->l.a, *b = &p->l.b;
	struct ibv_mr *from = ibv_reg_mr(a->e.pd, place[0], 4096, 0);
	struct ibv_mr *to = ibv_reg_mr(b->e.pd, place[0], 4096, ALL_RIGHTS);
	const uint32_t lens[] = {8, 100, 4096};

	CHECK(from && to);
	CHECK_EQ(ibv_rereg_mr(from, PLACE, NULL, a->e.buf, BUF_SIZE, 0), 0);
	CHECK_EQ(ibv_rereg_mr(to, PLACE, NULL, place[1], 8192, 0), 0);
	CHECK(from->addr == a->e.buf && from->length == BUF_SIZE);
	CHECK(to->addr == place[1] && to->length == 8192);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		struct ibv_sge out = {(uintptr_t)a->e.buf, lens[i], from->lkey};
		struct ibv_sge in = {(uintptr_t)place[1] + 4096, lens[i], to->lkey}, own;

		memset(a->e.buf, (int)(i + 1), lens[i]);
		send_over(p, &out, &in);
		CHECK(all_are(place[1] + 4096, (uint8_t)(i + 1), lens[i]));
		/* And from a MR that has stayed: small messages are placed by the receiver's
		 * library. */
		own = sge_at(&a->e, 0, lens[i]);
		memset(place[1], 0, 8192);
		send_over(p, &own, &in);
		CHECK(all_are(place[1] + 4096, (uint8_t)(i + 1), lens[i]));
		CHECK_EQ(run_op(p, IBV_WR_RDMA_WRITE, &out, (uintptr_t)place[1], to->rkey),
			 IBV_WC_SUCCESS);
		CHECK(all_are(place[1], (uint8_t)(i + 1), lens[i]));
	}
	CHECK_EQ(write_to(p, (uintptr_t)place[0], to->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	pair_reconnect(p);
	CHECK_EQ(ibv_dereg_mr(from), 0);
	CHECK_EQ(ibv_dereg_mr(to), 0);
}

/* The old PD does not hold it any more, nor is it held by it; the new one is. */
static void domain(struct pair *p)
{
	struct ibv_mr *mr = ibv_reg_mr(p->l.b.e.pd, place[0], 8192, ALL_RIGHTS);
	struct ibv_pd *other = ibv_alloc_pd(p->l.b.e.ctx);
	struct ibv_sge in;

	CHECK(mr && other);
	CHECK_EQ(ibv_rereg_mr(mr, PD, other, NULL, 0, 0), 0);
	CHECK(mr->pd == other);
	CHECK_EQ(ibv_dealloc_pd(other), EBUSY);
	CHECK_EQ(write_to(p, (uintptr_t)place[0], mr->rkey, 100), IBV_WC_REM_ACCESS_ERR);
	pair_reconnect(p);
	in = (struct ibv_sge){(uintptr_t)place[0], 100, mr->lkey};
	CHECK_EQ(post_recv_at(p->b, 0, &in), 0);
	in = sge_at(&p->l.a.e, 0, 8);
	CHECK_EQ(post_send_at(p->a, 0, &in, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(next_status(&p->l.a), IBV_WC_REM_OP_ERR);
	CHECK_EQ(next_status(&p->l.b), IBV_WC_LOC_PROT_ERR);
	pair_reconnect(p);
	CHECK_EQ(ibv_rereg_mr(mr, PD, p->l.b.e.pd, NULL, 0, 0), 0);
	CHECK_EQ(write_to(p, (uintptr_t)place[0], mr->rkey, 100), IBV_WC_SUCCESS);
	CHECK_EQ(ibv_dealloc_pd(other), 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

static void all_at_once(struct pair *p)
{
	struct ibv_pd *other = ibv_alloc_pd(p->l.b.e.ctx);
	struct ibv_mr *mr = ibv_reg_mr(other, place[0], 4096, 0);

	CHECK(mr);
	CHECK_EQ(ibv_rereg_mr(mr, ACCESS | PLACE | PD, p->l.b.e.pd, place[1], 8192, ALL_RIGHTS), 0);
	CHECK_EQ(ibv_dealloc_pd(other), 0);
	memset(p->l.a.e.buf, 0x5c, 8192);
	CHECK_EQ(write_to(p, (uintptr_t)place[1], mr->rkey, 8192), IBV_WC_SUCCESS);
	CHECK(all_are(place[1], 0x5c, 8192));
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

static void expect_refused(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
			   size_t length, int access, int error)
{
	errno = 0;
	CHECK(ibv_rereg_mr(mr, flags, pd, addr, length, access) != 0);
	CHECK_EQ(errno, error);
}

static void failures(struct pair *p)
{
	struct env *e = &p->l.b.e;
	struct ibv_mr *mr = ibv_reg_mr(e->pd, place[0], 8192, ALL_RIGHTS | IBV_ACCESS_MW_BIND);
	struct ibv_mr before;
	uint8_t *gone = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(mr && gone != MAP_FAILED);
	before = *mr;
	expect_refused(mr, 0, NULL, NULL, 0, 0, EINVAL);
	expect_refused(mr, 1 << 3, NULL, NULL, 0, 0, EINVAL);
	expect_refused(mr, ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL);
	expect_refused(mr, PD, NULL, NULL, 0, 0, EINVAL);
	expect_refused(mr, PD, p->l.a.e.pd, NULL, 0, 0, EINVAL);
	expect_refused(mr, PLACE, NULL, place[1], 0, 0, EINVAL);
	expect_refused(mr, PLACE, NULL, NULL, 4096, 0, EINVAL);
	/* Rights that are not asked for may not be given. */
	expect_refused(mr, PLACE, NULL, place[1], 4096, IBV_ACCESS_LOCAL_WRITE, EINVAL);
	/* All of it was good but one. */
	expect_refused(mr, ACCESS | PLACE, NULL, gone, 4096, ALL_RIGHTS, EFAULT);
	CHECK_EQ(munmap(gone, 4096), 0);
	expect_refused(mr, ACCESS | PLACE | PD, e->pd, gone, 4096, 0, EFAULT);
	CHECK_EQ(memcmp(&before, mr, sizeof(before)), 0);
	CHECK_EQ(write_to(p, (uintptr_t)place[0], mr->rkey, 8192), IBV_WC_SUCCESS);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

int main(int argc, char **argv)
{
	struct pair p;

	pair_open(&p, argc, argv);
	rights(&p);
	translation(&p);
	domain(&p);
	all_at_once(&p);
	failures(&p);
	pair_close(&p);
	return 0;
}
