// SPDX-License-Identifier: BSD-2-Clause
/*
 * ibv_reg_dmabuf_mr() of a memfd, as of any file that can be mapped: its bytes are those of the
 * file, from the offset on. What cannot be mapped fails cleanly, and so does a file cut short.
 */
#include <sys/mman.h>

#include "regions.h"

#define LEN 16384
#define OFFSET 5000 /* of no page */
#define IOVA 0x1000

static void refusals(struct ibv_pd *pd, int fd)
{
	int fds[2];

	CHECK_EQ(pipe(fds), 0);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, fds[0], 0));
	CHECK_EQ(errno, EOPNOTSUPP);
	close(fds[1]);
	close(fds[0]);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, fds[0], 0));
	CHECK_EQ(errno, EBADF);
	CHECK(!ibv_reg_dmabuf_mr(pd, 4096, LEN, 0, fd, 0));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, UINT64_MAX - 1, 4, 0, fd, 0));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 0, 0, fd, 0));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, LEN, 0, fd, IBV_ACCESS_REMOTE_WRITE));
	CHECK_EQ(errno, EINVAL);
}

int main(int argc, char **argv)
{
	int fd = memfd_create("dmabuf", MFD_CLOEXEC);
	struct ibv_sge in, own;
	struct ibv_mr *mr;
	struct pair p;
	uint8_t *file;

	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, LEN), 0);
	file = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(file != MAP_FAILED);
	pair_open(&p, argc, argv);
	refusals(p.l.b.e.pd, fd);
	mr = ibv_reg_dmabuf_mr(p.l.b.e.pd, OFFSET, LEN - OFFSET, IOVA, fd, ALL_RIGHTS);
	CHECK(mr && mr->lkey && mr->rkey && mr->length == LEN - OFFSET);
	CHECK_EQ((uintptr_t)mr->addr, OFFSET);
	for (uint32_t len = 8; len <= 4096; len *= 8) {
		own = sge_at(&p.l.a.e, 0, len);
		in = (struct ibv_sge){IOVA, len, mr->lkey};
		memset(p.l.a.e.buf, 0x42, len);
		send_over(&p, &own, &in);
		CHECK(all_are(file + OFFSET, 0x42, len));
		memset(p.l.a.e.buf, 0x43, len);
		CHECK_EQ(write_to(&p, IOVA + 1, mr->rkey, len), IBV_WC_SUCCESS);
		CHECK(file[OFFSET] == 0x42 && all_are(file + OFFSET + 1, 0x43, len));
		memset(file + OFFSET, 0x44, len);
		CHECK_EQ(read_from(&p, IOVA, mr->rkey, len), IBV_WC_SUCCESS);
		CHECK(all_are(p.l.a.e.buf + BUF_SIZE / 2, 0x44, len));
	}
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) != 0);
	CHECK_EQ(errno, EINVAL);
	/* Somebody cuts the file short: an error at both ends, and no signal. */
	CHECK_EQ(ftruncate(fd, 4096), 0);
	in = (struct ibv_sge){IOVA + 8192 - OFFSET, 8, mr->lkey};
	own = sge_at(&p.l.a.e, 0, 8);
	CHECK_EQ(post_recv_at(p.b, 0, &in), 0);
	CHECK_EQ(post_send_at(p.a, 0, &own, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(next_status(&p.l.a), IBV_WC_REM_OP_ERR);
	CHECK_EQ(next_status(&p.l.b), IBV_WC_LOC_PROT_ERR);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	pair_close(&p);
	return 0;
}
