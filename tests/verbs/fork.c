// SPDX-License-Identifier: BSD-2-Clause
/*
 * fork(): but for queries and device memory, the child's calls fail and do no harm; the parent's go
 * on while the child writes.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

static struct ibv_cq_ex *cq_ex;
static struct ibv_wq *wq;

/* What works on objects without asking the device. */
static void child_extended(struct ibv_qp_ex *ex)
{
	struct ibv_poll_cq_attr attr = {0};
	struct ibv_recv_wr wr = {0}, *bad;

	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, "x", 1);
	CHECK_EQ(ibv_wr_complete(ex), EIO);
	ibv_wr_start(ex);
	ibv_wr_abort(ex);
	CHECK_EQ(ibv_start_poll(cq_ex, &attr), EIO);
	CHECK_EQ(ibv_resize_cq(ibv_cq_ex_to_cq(cq_ex), 100), EIO);
	CHECK_EQ(ibv_post_wq_recv(wq, &wr, &bad), EIO);
	CHECK_EQ(ibv_destroy_wq(wq), 0);
	CHECK_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex)), 0);
}

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
	child_extended(ibv_qp_to_qp_ex(qp));
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
	struct ibv_cq_init_attr_ex cattr = {.cqe = 4};
	struct ibv_wq_init_attr wattr = {.wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1};
	struct ibv_qp_init_attr_ex attr = {
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
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
	attr.send_cq = attr.recv_cq = e.cq;
	attr.pd = wattr.pd = e.pd;
	a = ibv_create_qp_ex(e.ctx, &attr);
	b = ibv_create_qp_ex(e.ctx, &attr);
	cq_ex = ibv_create_cq_ex(e.ctx, &cattr);
	CHECK(a && b && cq_ex);
	wattr.cq = ibv_cq_ex_to_cq(cq_ex);
	wq = ibv_create_wq(e.ctx, &wattr);
	CHECK(wq);
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
	CHECK_EQ(ibv_destroy_wq(wq), 0);
	CHECK_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex)), 0);
	env_close(&e);
	return 0;
}
