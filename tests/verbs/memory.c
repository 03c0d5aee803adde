// SPDX-License-Identifier: BSD-2-Clause
/* Registering: what is refused and how; many regions at once, and many times. */
#include <sys/mman.h>

#include "common.h"

#define MANY 1000
#define ROUNDS 20000

static void expect_refused(struct env *e, void *addr, size_t length, int access, int error)
{
	errno = 0;
	CHECK(!ibv_reg_mr(e->pd, addr, length, access));
	CHECK_EQ(errno, error);
}

static void refusals(struct env *e)
{
	volatile int relaxed = IBV_ACCESS_LOCAL_WRITE | (int)IBV_ACCESS_RELAXED_ORDERING;
	uint8_t *p = mmap(NULL, 3 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	CHECK(p != MAP_FAILED);
	CHECK_EQ(munmap(p + 4096, 4096), 0);
	expect_refused(e, p, 3 * 4096, 0, EFAULT);
	expect_refused(e, p, 4096, IBV_ACCESS_LOCAL_WRITE, EFAULT);
	expect_refused(e, p, 0, 0, EINVAL);
	expect_refused(e, p, 4096, IBV_ACCESS_REMOTE_WRITE, EINVAL);
	expect_refused(e, p, 4096, IBV_ACCESS_REMOTE_ATOMIC, EINVAL);
	mr = ibv_reg_mr(e->pd, p, 4096, IBV_ACCESS_REMOTE_READ);
	CHECK(mr && mr->rkey && mr->lkey);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	mr = ibv_reg_mr(e->pd, e->buf + 1, 100, relaxed);
	CHECK(mr && mr->addr == e->buf + 1 && mr->length == 100);
	CHECK_EQ(ibv_dealloc_pd(e->pd), EBUSY);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

/* Regions by the hundred, given back in another order, all usable meanwhile. */
static void many(struct env *e)
{
	struct ibv_qp_init_attr attr = env_qp_attr(e);
	struct ibv_qp *a = ibv_create_qp(e->pd, &attr), *b = ibv_create_qp(e->pd, &attr);
	static struct ibv_mr *mr[MANY];
	struct ibv_wc wc[2];

	CHECK(a && b);
	connect_pair(e, a, b);
	for (int i = 0; i < MANY; i++) {
		mr[i] = ibv_reg_mr(e->pd, e->buf + i * 16, 16, IBV_ACCESS_LOCAL_WRITE);
		CHECK(mr[i]);
	}
	for (int i = 0; i < MANY; i++) {
		int k = i * 7 % MANY, peer = (k + 1) % MANY;
		struct ibv_sge out = {(uintptr_t)e->buf + k * 16, 16, mr[k]->lkey};
		struct ibv_sge in = {(uintptr_t)e->buf + 32768, 16, e->mr->lkey};

		memset(e->buf + k * 16, i + 1, 16);
		CHECK_EQ(post_recv_at(b, 0, &in), 0);
		CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
		wait_wc(e->cq, 2, wc);
		CHECK_EQ(wc[0].status | wc[1].status, IBV_WC_SUCCESS);
		CHECK_EQ(e->buf[32768], (uint8_t)(i + 1));
		CHECK_EQ(ibv_dereg_mr(mr[k]), 0);
		CHECK(peer != k);
	}
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

int main(void)
{
	struct env e;
	uint32_t last = 0;

	env_open(&e);
	refusals(&e);
	many(&e);
	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_mr *mr = ibv_reg_mr(e.pd, e.buf, 4096, IBV_ACCESS_LOCAL_WRITE);

		CHECK(mr && mr->lkey != last);
		last = mr->lkey;
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	}
	env_close(&e);
	return 0;
}
