// SPDX-License-Identifier: BSD-2-Clause
/*
 * A port that goes down: nothing is sent or received, QPs try again and fail when that is used up,
 * or go on if it comes back before; programs are told, once.
 */
#include "admin.h"
#include "stats.h"

/* As to_rts(), with a timeout of 4.096 us * 2^timeout and so many retries. */
static void to_rts_with(struct ibv_qp *qp, uint8_t timeout, uint8_t retries)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = timeout,
		.retry_cnt = retries,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
	};

	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
}

static void expect_port(const struct env *e, enum ibv_port_state state, uint8_t phys)
{
	struct ibv_port_attr port;

	CHECK_EQ(ibv_query_port(e->ctx, 1, &port), 0);
	CHECK_EQ(port.state, state);
	CHECK_EQ(port.phys_state, phys);
}

/* RC QPs from RESET to RTS, as connect_pair(). */
static void connect_with(const struct env *e, struct ibv_qp *a, struct ibv_qp *b, uint8_t timeout,
			 uint8_t retries)
{
	to_init(a);
	to_init(b);
	to_rtr(e, a, b->qp_num);
	to_rtr(e, b, a->qp_num);
	to_rts_with(a, timeout, retries);
	to_rts(b);
}

int main(void)
{
	struct ibv_qp *a, *b, *c, *d;
	struct ibv_qp_init_attr init;
	struct ibv_sge out, in;
	const char *name;
	uint64_t received;
	struct ibv_wc wc[2];
	struct env e;
	double begin;

	env_open(&e);
	name = ibv_get_device_name(e.ctx->device);
	init = env_qp_attr(&e);
	a = ibv_create_qp(e.pd, &init);
	b = ibv_create_qp(e.pd, &init);
	c = ibv_create_qp(e.pd, &init);
	d = ibv_create_qp(e.pd, &init);
	CHECK(a && b && c && d);
	out = sge_at(&e, 0, 64);
	in = sge_at(&e, 4096, 64);
	/* a gives up after 2 * 67 ms, c only after seconds. */
	connect_with(&e, a, b, 14, 1);
	connect_with(&e, c, d, 18, 7);
	expect_port(&e, IBV_PORT_ACTIVE, 5);

	CHECK_EQ(admin(VERNIC_DEVICE_PORT_DOWN, name, NULL), 0);
	expect_async(e.ctx, IBV_EVENT_PORT_ERR);
	expect_port(&e, IBV_PORT_DOWN, 3);
	received = stats_device("rcvd_pkts");
	begin = seconds();
	CHECK_EQ(post_recv_at(d, 4, &in), 0);
	CHECK_EQ(post_send_at(c, 3, &out, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(post_send_at(a, 1, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e.cq, 1, wc);
	CHECK_EQ(wc[0].wr_id, 1);
	CHECK_EQ(wc[0].status, IBV_WC_RETRY_EXC_ERR);
	CHECK(seconds() - begin > 2 * 0.067);
	CHECK_EQ(stats_device("rcvd_pkts"), received);
	CHECK_EQ(stats_qp(c->qp_num, "sent_pkts"), 0);

	/* Once: a port that is down cannot go down. */
	CHECK_EQ(admin(VERNIC_DEVICE_PORT_DOWN, name, NULL), 0);
	CHECK(!event_waits(e.ctx, 50));
	CHECK_EQ(admin(VERNIC_DEVICE_PORT_UP, name, NULL), 0);
	expect_async(e.ctx, IBV_EVENT_PORT_ACTIVE);
	expect_port(&e, IBV_PORT_ACTIVE, 5);
	wait_wc(e.cq, 2, wc);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
		CHECK(wc[i].wr_id == 3 || wc[i].wr_id == 4);
	}
	CHECK_EQ(admin(VERNIC_DEVICE_PORT_DOWN, "nobody", NULL), ENODEV);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_qp(c), 0);
	CHECK_EQ(ibv_destroy_qp(d), 0);
	env_close(&e);
	return 0;
}
