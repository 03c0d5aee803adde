// SPDX-License-Identifier: BSD-2-Clause
/* ibv_modify_cq: an event waits for enough CQEs or for long enough, and for neither when told so.
 */
#include <poll.h>

#include "common.h"

#define PERIOD 60000 /* us */
#define TRIES 20

static struct env e;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *a, *b;
static uint64_t next;

static int moderate(uint16_t count, uint16_t period)
{
	struct ibv_modify_cq_attr attr = {
		.attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = {.cq_count = count, .cq_period = period},
	};

	return ibv_modify_cq(cq, &attr);
}

/* Makes n CQEs, waits for the event of the armed CQ. @return s from the first CQE to it */
static double time_event(int n)
{
	struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
	struct ibv_sge out = sge_at(&e, 0, 8);
	struct ibv_wc wc[16];
	struct ibv_cq *got;
	void *context;
	double begin, end;

	CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
	CHECK_EQ(poll(&fd, 1, 0), 0);
	begin = seconds();
	for (int i = 0; i < n; i++) {
		CHECK_EQ(post_recv_at(b, next, NULL), 0);
		out.length = 0;
		CHECK_EQ(post_send_at(a, next++, &out, IBV_SEND_SIGNALED), 0);
	}
	wait_wc(e.cq, n, wc);
	CHECK_EQ(poll(&fd, 1, TEST_TIMEOUT * 1000), 1);
	end = seconds();
	CHECK_EQ(ibv_get_cq_event(channel, &got, &context), 0);
	CHECK(got == cq);
	ibv_ack_cq_events(cq, 1);
	wait_wc(cq, n, wc);
	return end - begin;
}

/* @return whether the event comes before the period is over, once at least */
static int ever_early(int n)
{
	for (int i = 0; i < TRIES; i++) {
		if (time_event(n) < PERIOD / 1e6)
			return 1;
	}
	return 0;
}

int main(void)
{
	struct ibv_modify_cq_attr bad = {.attr_mask = 1 << 1};
	struct ibv_qp_init_attr attr;
	struct ibv_device_attr_ex dattr;

	env_open(&e);
	CHECK_EQ(ibv_query_device_ex(e.ctx, NULL, &dattr), 0);
	CHECK(dattr.cq_mod_caps.max_cq_count >= 4 && dattr.cq_mod_caps.max_cq_period >= PERIOD);
	channel = ibv_create_comp_channel(e.ctx);
	CHECK(channel);
	cq = ibv_create_cq(e.ctx, 64, NULL, channel, 0);
	CHECK(cq);
	attr = env_qp_attr(&e);
	attr.recv_cq = cq;
	create_pair(&e, &attr, &a, &b);

	CHECK_EQ(ibv_modify_cq(cq, &bad), EINVAL);
	CHECK(ever_early(1));
	CHECK_EQ(moderate(4, PERIOD), 0);
	for (int i = 0; i < 3; i++)
		CHECK(time_event(3) >= PERIOD / 1e6);
	CHECK(ever_early(4));
	CHECK(time_event(1) >= PERIOD / 1e6);
	CHECK_EQ(moderate(0, 0), 0);
	CHECK(ever_early(1));
	/* One that is put off goes out when moderation ends, or the CQ goes away with it. */
	CHECK_EQ(moderate(8, UINT16_MAX), 0);
	CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
	CHECK_EQ(post_recv_at(b, 0, NULL), 0);
	CHECK_EQ(post_send_at(a, 0, NULL, IBV_SEND_SIGNALED), 0);

	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
	env_close(&e);
	return 0;
}
