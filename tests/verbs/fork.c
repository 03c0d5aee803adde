// SPDX-License-Identifier: BSD-2-Clause
/*
 * fork(): but for queries and device memory, the child's calls fail and do no harm; the parent's go
 * on while the child writes.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

/* Everything a child might try with its parent's objects. */
static void child(struct env *e, struct ibv_qp *qp)
{
	struct ibv_sge sge = sge_at(e, 0, 8);
	struct ibv_async_event event;
	struct ibv_device_attr attr;
	struct ibv_dm *dm;
	struct ibv_wc wc;
	uint64_t word;

	memset(e->buf, 0x77, BUF_SIZE);
	CHECK_EQ(ibv_query_device(e->ctx, &attr), 0);
	CHECK(attr.max_qp > 0);
	CHECK(!ibv_alloc_pd(e->ctx));
	CHECK_EQ(errno, EIO);
	CHECK_EQ(post_send_at(qp, 0, &sge, 0), EIO);
	CHECK_EQ(post_recv_at(qp, 0, &sge), EIO);
	CHECK(ibv_poll_cq(e->cq, 1, &wc) < 0);
	CHECK_EQ(ibv_req_notify_cq(e->cq, 0), EIO);
	CHECK_EQ(ibv_get_async_event(e->ctx, &event), -1);
	/* Device memory is the one thing that children of a program make on its context. */
	dm = ibv_alloc_dm(e->ctx, &(struct ibv_alloc_dm_attr){.length = 4096});
	CHECK(dm);
	CHECK_EQ(ibv_memcpy_to_dm(dm, 8, e->buf, 8), 0);
	CHECK_EQ(ibv_memcpy_from_dm(&word, dm, 8, 8), 0);
	CHECK_EQ(word, 0x7777777777777777);
	CHECK_EQ(ibv_free_dm(dm), 0);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	env_close(e);
	/* A device of the child's own works. */
	env_open(e);
	env_close(e);
	_exit(0);
}

int main(void)
{
	struct env e;
	struct ibv_qp_init_attr attr;
	struct ibv_qp *a, *b;
	struct ibv_sge out, in;
	struct ibv_wc wc[2];
	int status;
	pid_t pid;

	CHECK_EQ(ibv_fork_init(), 0);
	CHECK_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
	env_open(&e);
	out = sge_at(&e, 0, 4096);
	in = sge_at(&e, 8192, 4096);
	attr = env_qp_attr(&e);
	a = ibv_create_qp(e.pd, &attr);
	b = ibv_create_qp(e.pd, &attr);
	CHECK(a && b);
	connect_pair(&e, a, b);
	for (int i = 1; i < 4; i++) {
		CHECK_EQ(post_recv_at(b, 0, &in), 0);
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			child(&e, a);
		memset(e.buf, i, 4096);
		CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
		wait_wc(e.cq, 2, wc);
		CHECK_EQ(wc[0].status | wc[1].status, IBV_WC_SUCCESS);
		CHECK(e.buf[8192] == i && e.buf[8192 + 4095] == i);
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	env_close(&e);
	return 0;
}
