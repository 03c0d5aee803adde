/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A program that does nothing wrong, in a process of its own, while others do: a pair of QPs that
 * SEND, WRITE, READ and count without a pause, every byte checked.
 */
#ifndef VERNIC_TEST_VERBS_HONEST_H
#define VERNIC_TEST_VERBS_HONEST_H

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

/* Shared between the test and the honest process. */
struct honest {
	_Atomic int stop;
	_Atomic unsigned long rounds;
	_Atomic uint32_t qpn[2]; /* so that others can aim at them */
	_Atomic uint32_t rkey;
	_Atomic uint64_t addr;
	pid_t pid;
};

/* One WR of a and its completion, and one of b's receive where there is one. */
static inline void honest_op(struct env *e, struct ibv_qp *a, struct ibv_qp *b,
			     enum ibv_wr_opcode opcode, uint32_t len, uint64_t add)
{
	struct ibv_sge out = sge_at(e, 0, len), in = sge_at(e, 32768, len);
	struct ibv_send_wr wr = {
		.sg_list = &out, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct ibv_wc wc[2];
	int n = 1;

	if (opcode == IBV_WR_SEND) {
		CHECK_EQ(post_recv_at(b, 0, &in), 0);
		n = 2;
	} else if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)e->buf + 65528;
		wr.wr.atomic.rkey = e->mr->rkey;
		wr.wr.atomic.compare_add = add;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)e->buf + 32768;
		wr.wr.rdma.rkey = e->mr->rkey;
	}
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(e->cq, n, wc);
	for (int i = 0; i < n; i++)
		CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
}

static inline void honest_main(struct honest *h)
{
	static const uint32_t sizes[] = {1, 48, 200, 1024, 5000, 16384};
	struct ibv_qp_init_attr attr;
	struct ibv_qp *a, *b;
	uint64_t total = 0;
	struct env e;

	env_open(&e);
	attr = env_qp_attr(&e);
	create_pair(&e, &attr, &a, &b);
	h->rkey = e.mr->rkey;
	h->addr = (uintptr_t)e.buf;
	h->qpn[0] = a->qp_num;
	h->qpn[1] = b->qp_num;
	for (unsigned long round = 0; !h->stop; round++) {
		uint32_t len = sizes[round % 6];

		memset(e.buf, (int)round, len);
		memset(e.buf + 32768, 0xee, len + 1);
		honest_op(&e, a, b, round & 1 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, len, 0);
		CHECK(!memcmp(e.buf, e.buf + 32768, len));
		CHECK_EQ(e.buf[32768 + len], 0xee);
		memset(e.buf, 0, len);
		honest_op(&e, b, a, IBV_WR_RDMA_READ, len, 0);
		CHECK(!memcmp(e.buf, e.buf + 32768, len));
		honest_op(&e, a, b, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, round);
		CHECK(!memcmp(e.buf, &total, 8));
		total += round;
		h->rounds = round + 1;
	}
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	env_close(&e);
}

/* Starts it; it works when this returns. */
static inline struct honest *honest_start(void)
{
	struct honest *h =
		mmap(NULL, sizeof(*h), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double end = seconds() + TEST_TIMEOUT;
	pid_t pid;

	CHECK(h != MAP_FAILED);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		honest_main(h);
		exit(0);
	}
	h->pid = pid;
	while (h->rounds == 0)
		CHECK(seconds() < end);
	return h;
}

/* It is still at work: a round ends. */
static inline void honest_check(struct honest *h)
{
	double end = seconds() + TEST_TIMEOUT;
	unsigned long before = h->rounds;

	while (h->rounds == before) {
		CHECK_EQ(waitpid(h->pid, NULL, WNOHANG), 0);
		CHECK(seconds() < end);
	}
}

/* Ends it: nothing has gone wrong there. */
static inline void honest_stop(struct honest *h)
{
	int status;

	h->stop = 1;
	CHECK_EQ(waitpid(h->pid, &status, 0), h->pid);
	CHECK_EQ(status, 0);
	munmap(h, sizeof(*h));
}

#endif
