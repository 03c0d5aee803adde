// SPDX-License-Identifier: BSD-2-Clause
/* ibv_resize_cq: loses no CQE under traffic, refuses to go below what waits, keeps what was armed.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common.h"

#define MESSAGES 3000
#define WINDOW 64

static struct env e;
static struct ibv_cq *cq; /* the one that is resized */
static struct ibv_qp *a, *b;
static _Atomic int stop;
static _Atomic uint64_t done; /* messages */
static _Atomic uint32_t resized; /* times */

/* A RC pair whose receives complete on cq. */
static void open_pair(struct ibv_comp_channel *channel, int cqe)
{
	struct ibv_qp_init_attr attr = env_qp_attr(&e);

	cq = ibv_create_cq(e.ctx, cqe, NULL, channel, 0);
	CHECK(cq);
	attr.cap.max_send_wr = attr.cap.max_recv_wr = WINDOW;
	attr.recv_cq = cq;
	create_pair(&e, &attr, &a, &b);
}

static void close_pair(void)
{
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
}

/* Posts a receive and what it receives: bytes that tell it from others. */
static void send_one(uint64_t i)
{
	struct ibv_sge in = sge_at(&e, 8192 + i % WINDOW * 16, 16), out = sge_at(&e, 0, 8);

	memcpy(e.buf, &i, sizeof(i));
	CHECK_EQ(post_recv_at(b, i, &in), 0);
	CHECK_EQ(post_send_at(a, i, &out, IBV_SEND_SIGNALED), 0);
}

static void *resizer(void *arg)
{
	static const int sizes[] = {1000, 65, 4096, 128, 80};

	for (unsigned int i = 0; !atomic_load(&stop); i++) {
		uint64_t before = atomic_load(&done);
		int size = sizes[i % 5], error = ibv_resize_cq(cq, size);

		CHECK_EQ(error, 0);
		CHECK(cq->cqe >= size);
		atomic_fetch_add(&resized, 1);
		/* The CQ's lock is not fair: whoever polls has its turn. */
		while (atomic_load(&done) == before && !atomic_load(&stop))
			sched_yield();
	}
	return NULL;
}

/* Every receive completes once, in order, with its bytes in place, whatever the ring. */
static void under_traffic(void)
{
	struct ibv_wc wc, sent;
	pthread_t thread;
	uint64_t posted = 0, end = MESSAGES;

	open_pair(NULL, 70);
	CHECK_EQ(pthread_create(&thread, NULL, resizer, NULL), 0);
	for (uint64_t i = 0; i < end; i++) {
		uint64_t value;

		/* Batches, so that CQEs wait when the ring changes. */
		for (; posted < i + WINDOW && posted < end; posted++)
			send_one(posted);
		wait_wc(cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK_EQ(wc.wr_id, i);
		CHECK_EQ(wc.byte_len, 8);
		memcpy(&value, e.buf + 8192 + i % WINDOW * 16, sizeof(value));
		CHECK_EQ(value, i);
		wait_wc(e.cq, 1, &sent);
		CHECK_EQ(sent.wr_id, i);
		atomic_store(&done, i + 1);
		/* The other thread may not have had its turn yet. */
		if (i + 1 == end && atomic_load(&resized) < 5)
			end += WINDOW;
	}
	atomic_store(&stop, 1);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	expect_empty(cq);
	close_pair();
}

/* A CQ with n CQEs can have n entries and no fewer; refused, it is as it was. */
static void below_unpolled(void)
{
	struct ibv_device_attr dattr;
	struct ibv_wc wc[8];
	int cqe;

	CHECK_EQ(ibv_query_device(e.ctx, &dattr), 0);
	open_pair(NULL, 100);
	for (uint64_t i = 0; i < 5; i++)
		send_one(i);
	wait_wc(e.cq, 5, wc);
	cqe = cq->cqe;
	CHECK_EQ(ibv_resize_cq(cq, 4), EINVAL);
	CHECK_EQ(ibv_resize_cq(cq, 0), EINVAL);
	CHECK_EQ(ibv_resize_cq(cq, dattr.max_cqe + 1), EINVAL);
	CHECK_EQ(cq->cqe, cqe);
	CHECK_EQ(ibv_resize_cq(cq, 5), 0);
	CHECK(cq->cqe >= 5 && cq->cqe < cqe);
	wait_wc(cq, 5, wc);
	for (int i = 0; i < 5; i++)
		CHECK_EQ(wc[i].wr_id, i);
	CHECK_EQ(ibv_resize_cq(cq, 1), 0);
	send_one(5);
	wait_wc(cq, 1, wc);
	CHECK_EQ(wc[0].wr_id, 5);
	close_pair();
}

/* What was armed stays armed; CQEs that were there before give no event. */
static void armed(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(e.ctx);
	struct pollfd fd = {.events = POLLIN};
	struct ibv_wc wc[4];
	struct ibv_cq *got;
	void *context;

	CHECK(channel);
	fd.fd = channel->fd;
	open_pair(channel, 10);
	send_one(0);
	wait_wc(e.cq, 1, wc);
	CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
	CHECK_EQ(ibv_resize_cq(cq, 1000), 0);
	CHECK_EQ(poll(&fd, 1, 50), 0);
	send_one(1);
	CHECK_EQ(poll(&fd, 1, TEST_TIMEOUT * 1000), 1);
	CHECK_EQ(ibv_get_cq_event(channel, &got, &context), 0);
	CHECK(got == cq);
	ibv_ack_cq_events(cq, 1);
	wait_wc(cq, 2, wc);
	CHECK_EQ(wc[1].wr_id, 1);
	wait_wc(e.cq, 1, wc);
	close_pair();
	CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
}

int main(void)
{
	env_open(&e);
	below_unpolled();
	armed();
	under_traffic();
	env_close(&e);
	return 0;
}
