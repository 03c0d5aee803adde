// SPDX-License-Identifier: BSD-2-Clause
/*
 * Fault cqe-arm: a completion that shows between the poll that found nothing and the arming behind
 * it. Who polls again after arming finds it, who does not waits in vain; who never arms sees it
 * late; an armed CQ is left alone.
 */
#include "faults.h"

struct waiter {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *a, *b;
};

static void waiter_open(struct link *l, struct waiter *w)
{
	struct ibv_qp_init_attr attr = env_qp_attr(&l->b.e);

	w->channel = ibv_create_comp_channel(l->b.e.ctx);
	CHECK(w->channel);
	w->cq = ibv_create_cq(l->b.e.ctx, 64, NULL, w->channel, 0);
	CHECK(w->cq);
	attr.send_cq = attr.recv_cq = w->cq;
	w->a = link_qp(&l->a, IBV_QPT_RC);
	w->b = ibv_create_qp(l->b.e.pd, &attr);
	CHECK(w->b);
	link_connect(l, w->a, w->b, &timing_default);
}

static void waiter_close(struct waiter *w)
{
	CHECK_EQ(ibv_destroy_qp(w->a), 0);
	CHECK_EQ(ibv_destroy_qp(w->b), 0);
	CHECK_EQ(ibv_destroy_cq(w->cq), 0);
	CHECK_EQ(ibv_destroy_comp_channel(w->channel), 0);
}

/* Sends one message; its receive's CQE has been made when this returns. */
static void send_one(struct link *l, struct waiter *w, uint64_t wr_id)
{
	link_recv(l, w->b, wr_id, 8);
	CHECK_EQ(link_post(l, w->a, IBV_WR_SEND, 1, 8, IBV_SEND_SIGNALED), 0);
	expect_wc(&l->a, 1, IBV_WC_SUCCESS);
}

/* @return whether the channel has an event within ms; it is taken */
static bool take_event(struct waiter *w, int ms)
{
	struct pollfd fd = {.fd = w->channel->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *context;

	if (poll(&fd, 1, ms) == 0)
		return false;
	CHECK_EQ(ibv_get_cq_event(w->channel, &cq, &context), 0);
	CHECK(cq == w->cq);
	ibv_ack_cq_events(cq, 1);
	return true;
}

static void expect_recv(struct waiter *w, uint64_t wr_id)
{
	struct ibv_wc wc;

	CHECK_EQ(ibv_poll_cq(w->cq, 1, &wc), 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(wc.wr_id, wr_id);
}

static void race(struct link *l, struct waiter *w)
{
	double start;
	struct ibv_wc wc;

	fault_add(&l->b, "cqe-arm,qp=%u", w->b->qp_num);
	/* Nothing is there; then arming; no event; then it is there. */
	for (int solicited = 0; solicited < 2; solicited++) {
		start = seconds();
		send_one(l, w, 2);
		if (ibv_poll_cq(w->cq, 1, &wc) != 0) {
			/* Only if we were held up for so long. */
			CHECK(seconds() - start >= 0.1);
			continue;
		}
		CHECK_EQ(ibv_req_notify_cq(w->cq, solicited), 0);
		CHECK(!take_event(w, 150));
		expect_recv(w, 2);
		/* That arming is still there: the next one is none of the rule's business. */
		link_recv(l, w->b, 3, 8);
		CHECK_EQ(link_post(l, w->a, IBV_WR_SEND, 1, 8,
				   IBV_SEND_SIGNALED | IBV_SEND_SOLICITED),
			 0);
		expect_wc(&l->a, 1, IBV_WC_SUCCESS);
		CHECK(take_event(w, TEST_TIMEOUT * 1000));
		expect_recv(w, 3);
	}
	/* Those behind it, of other QPs too, are there with it, and in order. */
	start = seconds();
	send_one(l, w, 4);
	send_one(l, w, 5);
	if (ibv_poll_cq(w->cq, 1, &wc) == 0) {
		CHECK_EQ(ibv_req_notify_cq(w->cq, 0), 0);
		expect_recv(w, 4);
		expect_recv(w, 5);
		CHECK(!take_event(w, 20));
	} else {
		CHECK(seconds() - start >= 0.1);
		expect_recv(w, 5);
	}
	/* A program that only polls. Armed from before, so an event is first taken out of the way.
	 */
	CHECK_EQ(ibv_req_notify_cq(w->cq, 0), 0);
	send_one(l, w, 6);
	CHECK(take_event(w, TEST_TIMEOUT * 1000));
	expect_recv(w, 6);
	start = seconds();
	send_one(l, w, 7);
	wait_wc(w->cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 7);
	CHECK(seconds() - start >= 0.099);
	fault_clear(&l->b, 0);
}

/* The right program loses nothing, however often it happens. */
static void loop(struct link *l, struct waiter *w)
{
	unsigned int found = 0, struck = 0;

	fault_add(&l->b, "cqe-arm,qp=%u,probability=0.5", w->b->qp_num);
	for (uint64_t i = 0; i < 200; i++) {
		struct ibv_wc wc;
		int n;

		send_one(l, w, i);
		n = ibv_poll_cq(w->cq, 1, &wc);
		if (n == 0) {
			struck++;
			CHECK_EQ(ibv_req_notify_cq(w->cq, 0), 0);
			n = ibv_poll_cq(w->cq, 1, &wc);
			/* Disarms, for the next one to be asked about. */
			CHECK_EQ(n, 1);
			send_one(l, w, 1000);
			CHECK(take_event(w, TEST_TIMEOUT * 1000));
			expect_recv(w, 1000);
		}
		CHECK_EQ(wc.wr_id, i);
		found++;
	}
	CHECK_EQ(found, 200);
	CHECK(struck > 50 && struck < 150);
	fault_clear(&l->b, 0);
}

/* Reset takes a hidden one away like any other; and without a rule none is hidden. */
static void gone(struct link *l, struct waiter *w)
{
	fault_add(&l->b, "cqe-arm,qp=%u", w->b->qp_num);
	send_one(l, w, 8);
	link_connect(l, w->a, w->b, &timing_default);
	fault_clear(&l->b, 0);
	send_one(l, w, 9);
	expect_recv(w, 9);
	CHECK_EQ(ibv_poll_cq(w->cq, 1, &(struct ibv_wc){0}), 0);
}

int main(int argc, char **argv)
{
	struct waiter w;
	struct link l;

	link_open(&l, argc, argv);
	waiter_open(&l, &w);
	race(&l, &w);
	loop(&l, &w);
	gone(&l, &w);
	waiter_close(&w);
	link_close(&l);
	return 0;
}
