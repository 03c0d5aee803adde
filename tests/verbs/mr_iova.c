// SPDX-License-Identifier: BSD-2-Clause
/*
 * Addresses of a MR that are not those of its memory: ibv_reg_mr_iova(), which both sides go by,
 * and IBV_ACCESS_ZERO_BASED. Ranges that wrap.
 */
#include "regions.h"

#define IOVA UINT64_C(0xfffffffffff00000)
#define LEN 8192

static uint8_t memory[LEN] __attribute__((aligned(4096)));

/* Bytes come to the right place, small messages as long ones; iova: of memory[0]. */
static void use(struct pair *p, const struct ibv_mr *mr, uint64_t iova)
{
	const uint32_t lens[] = {8, 100, 4096};

	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		struct ibv_sge own = sge_at(&p->l.a.e, 0, lens[i]);
		struct ibv_sge in = {iova + 4096, lens[i], mr->lkey};

		memset(memory, 0, LEN);
		memset(p->l.a.e.buf, (int)(i + 1), lens[i]);
		send_over(p, &own, &in);
		CHECK(all_are(memory + 4096, (uint8_t)(i + 1), lens[i]));
		CHECK_EQ(write_to(p, iova, mr->rkey, lens[i]), IBV_WC_SUCCESS);
		CHECK(all_are(memory, (uint8_t)(i + 1), lens[i]));
		CHECK_EQ(read_from(p, iova + 4096, mr->rkey, lens[i]), IBV_WC_SUCCESS);
		CHECK(all_are(p->l.a.e.buf + BUF_SIZE / 2, (uint8_t)(i + 1), lens[i]));
	}
}

/* The same memory as the source of a SEND, copied by the library or read by the daemon. */
static void send_from(struct pair *p)
{
	struct ibv_mr *mr = ibv_reg_mr_iova(p->l.a.e.pd, memory, LEN, IOVA, 0);

	CHECK(mr);
	for (uint32_t len = 8; len <= 4096; len *= 8) {
		struct ibv_sge out = {IOVA + 16, len, mr->lkey};
		struct ibv_sge in = sge_at(&p->l.b.e, 0, len);

		memset(memory, 0, LEN);
		memset(memory + 16, 0x3c, len);
		send_over(p, &out, &in);
		CHECK(all_are(p->l.b.e.buf, 0x3c, len));
	}
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

int main(int argc, char **argv)
{
	/* A right that is optional and unknown is no error. */
	const unsigned int unknown = 1u << 28;
	struct ibv_mr *mr;
	struct pair p;

	pair_open(&p, argc, argv);
	mr = ibv_reg_mr_iova(p.l.b.e.pd, memory, LEN, IOVA, ALL_RIGHTS);
	CHECK(mr && mr->addr == memory && mr->length == LEN);
	use(&p, mr, IOVA);
	CHECK_EQ(write_to(&p, (uintptr_t)memory, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	pair_reconnect(&p);
	CHECK_EQ(write_to(&p, IOVA + LEN - 4, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	pair_reconnect(&p);
	CHECK_EQ(write_to(&p, UINT64_MAX - 3, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	pair_reconnect(&p);
	CHECK_EQ(ibv_dereg_mr(mr), 0);

	CHECK(!ibv_reg_mr_iova(p.l.b.e.pd, memory, LEN, UINT64_MAX - 100, 0));
	CHECK_EQ(errno, EINVAL);

	mr = ibv_reg_mr(p.l.b.e.pd, memory, LEN, ALL_RIGHTS | IBV_ACCESS_ZERO_BASED);
	CHECK(mr);
	use(&p, mr, 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);

	mr = ibv_reg_mr_iova2(p.l.b.e.pd, memory, LEN, 4096,
			      ALL_RIGHTS | IBV_ACCESS_RELAXED_ORDERING | unknown);
	CHECK(mr);
	use(&p, mr, 4096);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	send_from(&p);
	pair_close(&p);
	return 0;
}
