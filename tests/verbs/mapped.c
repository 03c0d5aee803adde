// SPDX-License-Identifier: BSD-2-Clause
/*
 * Regions in memory that the daemon maps (memfd): data between them and private memory, each way;
 * the region means the pages it was registered with, whatever becomes of the file or the address.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

#define SIZE (512u << 10)
#define RIGHTS                                                                     \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC)

struct place {
	uint8_t *p;
	struct ibv_mr *mr;
};

static struct place place(struct env *e, int fd, uint64_t offset)
{
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	struct place a = {mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset), NULL};

	CHECK(a.p != MAP_FAILED);
	a.mr = ibv_reg_mr(e->pd, a.p, SIZE, RIGHTS);
	CHECK(a.mr);
	return a;
}

/* One operation from place a at qa to place b at qb; READ the other way. @return the status */
static int run(struct env *e, struct ibv_qp *qa, struct ibv_qp *qb, enum ibv_wr_opcode opcode,
	       struct place a, struct place b, uint32_t offset, uint32_t len)
{
	struct ibv_sge out = {(uintptr_t)a.p + offset, len, a.mr->lkey};
	struct ibv_sge in = {(uintptr_t)b.p + offset, len, b.mr->lkey};
	struct ibv_send_wr wr = {
		.sg_list = &out, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct ibv_wc wc[2];

	if (opcode == IBV_WR_SEND) {
		CHECK_EQ(post_recv_at(qb, 0, &in), 0);
	} else {
		wr.wr.rdma.remote_addr = in.addr;
		wr.wr.rdma.rkey = b.mr->rkey;
	}
	CHECK_EQ(ibv_post_send(qa, &wr, &bad), 0);
	wait_wc(e->cq, opcode == IBV_WR_SEND ? 2 : 1, wc);
	return wc[0].status;
}

static void fill(uint8_t *p, uint32_t seed, size_t len)
{
	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)((seed + i) * 2654435761u >> 13);
}

static void data(struct env *e, struct ibv_qp *qa, struct ibv_qp *qb, int fd)
{
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE,
						     IBV_WR_RDMA_READ};
	static const uint32_t sizes[] = {1, 7, 8, 63, 64, 65, 129, 4096, 10000, SIZE - 2};
	struct place at[4] = {place(e, fd, 0), place(e, fd, SIZE), place(e, -1, 0),
			      place(e, -1, 0)};
	uint32_t seed = 0;

	for (unsigned a = 0; a < 4; a++) {
		for (unsigned n = 0; n < 4 * 3 * 10; n++) {
			struct place from = at[a], to = at[n % 4];
			enum ibv_wr_opcode opcode = opcodes[n / 4 % 3];
			uint32_t len = sizes[n / 12];

			if (n % 4 == a)
				continue;
			if (opcode == IBV_WR_RDMA_READ) {
				from = at[n % 4];
				to = at[a];
			}
			fill(from.p, ++seed, SIZE);
			memset(to.p, 0xa5, SIZE);
			CHECK_EQ(run(e, qa, qb, opcode, at[a], at[n % 4], 1, len), IBV_WC_SUCCESS);
			CHECK(!memcmp(to.p + 1, from.p + 1, len));
			CHECK(to.p[0] == 0xa5 && to.p[len + 1] == 0xa5);
		}
	}
	for (unsigned i = 0; i < 4; i++) {
		CHECK_EQ(ibv_dereg_mr(at[i].mr), 0);
		CHECK_EQ(munmap(at[i].p, SIZE), 0);
	}
}

/*
 * A READ brings what the WRITE just before it has put there, whatever is mapped, also while the
 * other side is at work on what its own client posted.
 */
static void in_order(struct env *e, struct ibv_qp *qa, struct ibv_qp *qb, int fd)
{
	static const uint32_t sizes[] = {8, 64, 65, 257, 5000};
	struct place at[4] = {place(e, fd, 0), place(e, fd, SIZE), place(e, -1, 0),
			      place(e, -1, 0)};

	for (unsigned n = 0; n < 4 * 4 * 5 * 100; n++) {
		struct place from = at[n % 4], to = at[n / 4 % 4];
		uint32_t len = sizes[n / 16 % 5];
		struct ibv_sge out = {(uintptr_t)from.p, len, from.mr->lkey};
		struct ibv_sge in = {(uintptr_t)from.p + SIZE / 2, len, from.mr->lkey};
		struct ibv_send_wr read = {.sg_list = &in,
					   .num_sge = 1,
					   .opcode = IBV_WR_RDMA_READ,
					   .send_flags = IBV_SEND_SIGNALED};
		struct ibv_send_wr write = {
			.next = &read, .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
		struct ibv_send_wr back = {.opcode = IBV_WR_RDMA_WRITE,
					   .send_flags = IBV_SEND_SIGNALED};
		struct ibv_send_wr *bad;
		struct ibv_wc wc[2];

		if (n % 4 == n / 4 % 4)
			continue;
		read.wr.rdma.remote_addr = write.wr.rdma.remote_addr = (uintptr_t)to.p;
		read.wr.rdma.rkey = write.wr.rdma.rkey = to.mr->rkey;
		fill(from.p, n, len);
		CHECK_EQ(ibv_post_send(qb, &back, &bad), 0);
		CHECK_EQ(ibv_post_send(qa, &write, &bad), 0);
		wait_wc(e->cq, 2, wc);
		CHECK_EQ(wc[0].status, IBV_WC_SUCCESS);
		CHECK_EQ(wc[1].status, IBV_WC_SUCCESS);
		CHECK(!memcmp(from.p + SIZE / 2, from.p, len));
	}
	for (unsigned i = 0; i < 4; i++) {
		CHECK_EQ(ibv_dereg_mr(at[i].mr), 0);
		CHECK_EQ(munmap(at[i].p, SIZE), 0);
	}
}

static void atomics(struct env *e, struct ibv_qp *qa, int fd)
{
	struct place a = place(e, fd, 0), b = place(e, fd, SIZE);
	struct ibv_sge sge = {(uintptr_t)a.p, 8, a.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				 .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	uint64_t value = 1000;
	struct ibv_wc wc;

	memcpy(b.p + 64, &value, 8);
	wr.wr.atomic.remote_addr = (uintptr_t)b.p + 64;
	wr.wr.atomic.rkey = b.mr->rkey;
	wr.wr.atomic.compare_add = 5;
	CHECK_EQ(ibv_post_send(qa, &wr, &bad), 0);
	wait_wc(e->cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	memcpy(&value, a.p, 8);
	CHECK_EQ(value, 1000);
	memcpy(&value, b.p + 64, 8);
	CHECK_EQ(value, 1005);
	CHECK_EQ(ibv_dereg_mr(a.mr), 0);
	CHECK_EQ(ibv_dereg_mr(b.mr), 0);
	munmap(a.p, SIZE);
	munmap(b.p, SIZE);
}

/* Other memory at the address: the region is what it was, as pages that were pinned are. */
static void remapped(struct env *e, struct ibv_qp *qa, struct ibv_qp *qb, int fd)
{
	struct place a = place(e, -1, 0), b = place(e, fd, 0);
	uint8_t *file = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);

	CHECK(file != MAP_FAILED);
	CHECK(mmap(b.p, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		   0) == b.p);
	fill(a.p, 99, SIZE);
	CHECK_EQ(run(e, qa, qb, IBV_WR_RDMA_WRITE, a, b, 0, SIZE), IBV_WC_SUCCESS);
	CHECK(!memcmp(file, a.p, SIZE));
	CHECK(b.p[0] == 0 && b.p[SIZE - 1] == 0);
	CHECK_EQ(ibv_dereg_mr(a.mr), 0);
	CHECK_EQ(ibv_dereg_mr(b.mr), 0);
	munmap(file, SIZE);
	munmap(a.p, SIZE);
	munmap(b.p, SIZE);
}

/* The file is cut short: the region goes on, as pinned pages do, and so does everybody else. */
static void cut_short(struct env *e, struct ibv_qp *qa, struct ibv_qp *qb, int fd)
{
	struct place a = place(e, -1, 0), b = place(e, fd, 0), c = place(e, fd, SIZE);

	CHECK_EQ(ftruncate(fd, 0), 0);
	CHECK_EQ(run(e, qa, qb, IBV_WR_RDMA_WRITE, a, b, 0, SIZE), IBV_WC_SUCCESS);
	CHECK_EQ(run(e, qa, qb, IBV_WR_RDMA_READ, a, c, 0, SIZE), IBV_WC_SUCCESS);
	CHECK_EQ(run(e, qa, qb, IBV_WR_RDMA_WRITE, a, a, 0, 4096), IBV_WC_SUCCESS);
	CHECK_EQ(ibv_dereg_mr(a.mr), 0);
	CHECK_EQ(ibv_dereg_mr(b.mr), 0);
	CHECK_EQ(ibv_dereg_mr(c.mr), 0);
}

int main(void)
{
	int fd = memfd_create("mapped", MFD_CLOEXEC);
	struct ibv_qp_init_attr attr;
	struct ibv_qp *a, *b;
	struct env e;

	env_open(&e);
	attr = env_qp_attr(&e);
	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, 2 * SIZE), 0);
	create_pair(&e, &attr, &a, &b);
	data(&e, a, b, fd);
	in_order(&e, a, b, fd);
	atomics(&e, a, fd);
	remapped(&e, a, b, fd);
	cut_short(&e, a, b, fd);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	env_close(&e);
	return 0;
}
