// SPDX-License-Identifier: BSD-2-Clause
/*
 * Completion channels under load: an event thread that sleeps in poll, level or edge triggered, and
 * polls, posts and arms from there, misses nothing; several CQs on one channel; errors wake a CQ
 * armed for solicited ones; events of many CQs at once.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common.h"

#define ROUNDS 3000

struct side {
	struct env *e;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_sge out, in;
	bool edge;
	bool starts;
	unsigned long events;
};

static void side_make(struct side *s, struct env *e, uint32_t offset, bool edge)
{
	struct ibv_qp_init_attr init = env_qp_attr(e);

	*s = (struct side){.e = e, .edge = edge};
	s->channel = ibv_create_comp_channel(e->ctx);
	CHECK(s->channel);
	CHECK_EQ(fcntl(s->channel->fd, F_SETFL, O_NONBLOCK), 0);
	s->cq = ibv_create_cq(e->ctx, 64, s, s->channel, 0);
	CHECK(s->cq);
	init.send_cq = init.recv_cq = s->cq;
	s->qp = ibv_create_qp(e->pd, &init);
	CHECK(s->qp);
	s->out = sge_at(e, offset, 300);
	s->in = sge_at(e, offset + 4096, 300);
}

static void side_destroy(struct side *s)
{
	CHECK_EQ(ibv_destroy_qp(s->qp), 0);
	CHECK_EQ(ibv_destroy_cq(s->cq), 0);
	CHECK_EQ(ibv_destroy_comp_channel(s->channel), 0);
}

/* Takes all CQEs. @return receives among them */
static unsigned int drain(struct side *s)
{
	unsigned int received = 0;
	struct ibv_wc wc[8];
	int n;

	while ((n = ibv_poll_cq(s->cq, 8, wc)) > 0) {
		for (int i = 0; i < n; i++) {
			CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
			if (!(wc[i].opcode & IBV_WC_RECV))
				continue;
			received++;
			CHECK_EQ(post_recv_at(s->qp, 0, &s->in), 0);
		}
	}
	CHECK_EQ(n, 0);
	return received;
}

/* Sleeps until the channel speaks. Then takes the events, arms, and only then looks. */
static void *event_loop(void *arg)
{
	struct side *s = arg;
	int ep = epoll_create1(0);
	struct epoll_event ev = {.events = EPOLLIN | (s->edge ? EPOLLET : 0)};
	unsigned int received = 0;

	CHECK(ep >= 0);
	CHECK_EQ(epoll_ctl(ep, EPOLL_CTL_ADD, s->channel->fd, &ev), 0);
	if (s->starts)
		CHECK_EQ(post_send_at(s->qp, 0, &s->out, IBV_SEND_SIGNALED), 0);
	while (received < ROUNDS) {
		unsigned int got, events = 0;
		struct ibv_cq *cq;
		void *context;

		CHECK_EQ(epoll_wait(ep, &ev, 1, TEST_TIMEOUT * 1000), 1);
		while (ibv_get_cq_event(s->channel, &cq, &context) == 0) {
			CHECK(cq == s->cq && context == s);
			events++;
		}
		CHECK_EQ(errno, EAGAIN);
		ibv_ack_cq_events(s->cq, events);
		s->events += events;
		CHECK_EQ(ibv_req_notify_cq(s->cq, 0), 0);
		got = drain(s);
		received += got;
		for (; got; got--)
			CHECK_EQ(post_send_at(s->qp, 0, &s->out, IBV_SEND_SIGNALED), 0);
	}
	close(ep);
	return NULL;
}

static void ping_pong(struct env *e, bool edge)
{
	struct side a, b;
	pthread_t thread;

	side_make(&a, e, 0, edge);
	side_make(&b, e, 16384, edge);
	connect_pair(e, a.qp, b.qp);
	for (int i = 0; i < 8; i++) {
		CHECK_EQ(post_recv_at(a.qp, 0, &a.in), 0);
		CHECK_EQ(post_recv_at(b.qp, 0, &b.in), 0);
	}
	CHECK_EQ(ibv_req_notify_cq(a.cq, 0), 0);
	CHECK_EQ(ibv_req_notify_cq(b.cq, 0), 0);
	a.starts = true;
	CHECK_EQ(pthread_create(&thread, NULL, event_loop, &b), 0);
	event_loop(&a);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(a.events > 0 && a.events <= 2 * ROUNDS + 2);
	side_destroy(&a);
	side_destroy(&b);
}

/* A CQ armed for solicited ones hears of an error. */
static void error_wakes(struct env *e)
{
	struct side a, b;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;
	double end;

	side_make(&a, e, 0, false);
	side_make(&b, e, 16384, false);
	connect_pair(e, a.qp, b.qp);
	CHECK_EQ(post_recv_at(b.qp, 5, &b.in), 0);
	CHECK_EQ(ibv_req_notify_cq(b.cq, 1), 0);
	to_state(b.qp, IBV_QPS_ERR);
	end = seconds() + TEST_TIMEOUT;
	while (ibv_get_cq_event(b.channel, &cq, &context) != 0)
		CHECK(seconds() < end);
	CHECK(cq == b.cq);
	ibv_ack_cq_events(cq, 1);
	wait_wc(b.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(wc.wr_id, 5);
	side_destroy(&a);
	side_destroy(&b);
}

/* More CQs on one channel than anyone has: each gets its event. */
static void many(struct env *e)
{
	enum { CQS = 500 };
	static struct ibv_cq *cqs[CQS];
	static bool seen[CQS];
	struct ibv_comp_channel *channel = ibv_create_comp_channel(e->ctx);
	struct ibv_qp_init_attr init = env_qp_attr(e);
	double end = seconds() + TEST_TIMEOUT;

	CHECK(channel);
	CHECK_EQ(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
	for (int i = 0; i < CQS; i++) {
		struct ibv_qp *qp;

		cqs[i] = ibv_create_cq(e->ctx, 4, &seen[i], channel, 0);
		CHECK(cqs[i]);
		CHECK_EQ(ibv_req_notify_cq(cqs[i], 0), 0);
		init.send_cq = init.recv_cq = cqs[i];
		qp = ibv_create_qp(e->pd, &init);
		CHECK(qp);
		to_init(qp);
		CHECK_EQ(post_recv_at(qp, 0, NULL), 0);
		to_state(qp, IBV_QPS_ERR);
		CHECK_EQ(ibv_destroy_qp(qp), 0);
	}
	for (int left = CQS; left;) {
		struct ibv_cq *cq;
		void *context;

		if (ibv_get_cq_event(channel, &cq, &context) != 0) {
			CHECK(seconds() < end);
			continue;
		}
		CHECK(!*(bool *)context);
		*(bool *)context = true;
		ibv_ack_cq_events(cq, 1);
		left--;
	}
	for (int i = 0; i < CQS; i++)
		CHECK_EQ(ibv_destroy_cq(cqs[i]), 0);
	CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
}

int main(void)
{
	struct env e;

	env_open(&e);
	ping_pong(&e, false);
	ping_pong(&e, true);
	error_wakes(&e);
	many(&e);
	env_close(&e);
	return 0;
}
