// SPDX-License-Identifier: BSD-2-Clause
/*
 * Completion channels: one event for N CQEs after arming, none for what was there before,
 * solicited-only arming, O_NONBLOCK, a CQ that goes; and an asynchronous event's life.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "common.h"

/* @return whether fd becomes readable within ms */
static int readable(int fd, int ms)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	return poll(&pfd, 1, ms) == 1;
}

static void expect_event(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_cq *got;
	void *context;

	CHECK(readable(channel->fd, TEST_TIMEOUT * 1000));
	CHECK_EQ(ibv_get_cq_event(channel, &got, &context), 0);
	CHECK(got == cq && context == &readable);
	ibv_ack_cq_events(cq, 1);
}

struct later {
	struct ibv_cq *cq;
	_Atomic int acked;
};

static void *ack_later(void *arg)
{
	struct later *l = arg;

	usleep(50000);
	l->acked = 1;
	ibv_ack_cq_events(l->cq, 1);
	return NULL;
}

/* ibv_destroy_cq() waits for the acknowledgement of an event that was delivered. */
static void held(struct env *e)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(e->ctx);
	struct ibv_qp_init_attr attr = env_qp_attr(e);
	struct later later = {0};
	struct ibv_qp *qp;
	pthread_t thread;
	struct ibv_cq *got;
	void *context;

	CHECK(channel);
	later.cq = attr.recv_cq = ibv_create_cq(e->ctx, 8, NULL, channel, 0);
	CHECK(later.cq);
	qp = ibv_create_qp(e->pd, &attr);
	CHECK(qp);
	to_init(qp);
	CHECK_EQ(ibv_req_notify_cq(later.cq, 0), 0);
	CHECK_EQ(post_recv_at(qp, 0, NULL), 0);
	to_state(qp, IBV_QPS_ERR);
	CHECK_EQ(ibv_get_cq_event(channel, &got, &context), 0);
	CHECK(got == later.cq);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	CHECK_EQ(pthread_create(&thread, NULL, ack_later, &later), 0);
	CHECK_EQ(ibv_destroy_cq(later.cq), 0);
	CHECK_EQ(later.acked, 1);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
}

static void completion_events(struct env *e)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(e->ctx);
	struct ibv_cq *cq, *none;
	struct ibv_qp_init_attr attr = env_qp_attr(e);
	struct ibv_sge out = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);
	struct ibv_qp *a, *b;
	struct ibv_wc wc[4];
	void *context;

	CHECK(channel);
	cq = ibv_create_cq(e->ctx, 64, (void *)&readable, channel, 0);
	CHECK(cq);
	CHECK_EQ(ibv_destroy_comp_channel(channel), EBUSY);
	attr.recv_cq = cq;
	a = ibv_create_qp(e->pd, &attr);
	b = ibv_create_qp(e->pd, &attr);
	CHECK(a && b);
	connect_pair(e, a, b);
	for (int i = 0; i < 12; i++)
		CHECK_EQ(post_recv_at(b, i, &in), 0);
	CHECK_EQ(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
	CHECK_EQ(ibv_get_cq_event(channel, &none, &context), -1);
	CHECK_EQ(errno, EAGAIN);

	/* Not armed: no event. Armed when the CQE is there: none either. */
	CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e->cq, 1, wc);
	CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
	CHECK(!readable(channel->fd, 50));
	wait_wc(cq, 1, wc);

	/* Three CQEs: one event. */
	for (int i = 0; i < 3; i++)
		CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e->cq, 3, wc);
	expect_event(channel, cq);
	CHECK(!readable(channel->fd, 50));
	wait_wc(cq, 3, wc);

	/* Solicited only. */
	CHECK_EQ(ibv_req_notify_cq(cq, 1), 0);
	CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e->cq, 1, wc);
	CHECK(!readable(channel->fd, 50));
	CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED), 0);
	wait_wc(e->cq, 1, wc);
	expect_event(channel, cq);
	wait_wc(cq, 2, wc);

	/* An event nobody read before its CQ goes is passed over. */
	CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
	CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e->cq, 1, wc);
	CHECK(readable(channel->fd, TEST_TIMEOUT * 1000));
	CHECK_EQ(ibv_destroy_cq(cq), EBUSY);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_get_cq_event(channel, &none, &context), -1);
	CHECK_EQ(errno, EAGAIN);
	CHECK_EQ(ibv_destroy_comp_channel(channel), 0);

	/* One that was read holds it until it is acknowledged. */
	held(e);

	/* Arming without a channel does no harm. */
	CHECK_EQ(ibv_req_notify_cq(e->cq, 0), 0);
}

/* Draining the SQ raises an event, if asked for. */
static void async_event(struct env *e)
{
	struct ibv_qp_init_attr attr = env_qp_attr(e);
	struct ibv_qp *a = ibv_create_qp(e->pd, &attr), *b = ibv_create_qp(e->pd, &attr);
	struct ibv_qp_attr sqd = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
	struct ibv_async_event event;

	CHECK(a && b);
	connect_pair(e, a, b);
	CHECK_EQ(fcntl(e->ctx->async_fd, F_SETFL, O_NONBLOCK), 0);
	CHECK_EQ(ibv_get_async_event(e->ctx, &event), -1);
	CHECK_EQ(errno, EAGAIN);
	CHECK_EQ(ibv_modify_qp(a, &sqd, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	CHECK(readable(e->ctx->async_fd, TEST_TIMEOUT * 1000));
	CHECK_EQ(ibv_get_async_event(e->ctx, &event), 0);
	CHECK_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
	CHECK(event.element.qp == a);
	ibv_ack_async_event(&event);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

int main(void)
{
	struct env e;

	env_open(&e);
	completion_events(&e);
	if (!getenv("TEST_NO_ASYNC"))
		async_event(&e);
	env_close(&e);
	return 0;
}
