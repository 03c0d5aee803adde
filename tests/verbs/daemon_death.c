// SPDX-License-Identifier: BSD-2-Clause
/*
 * The daemon is killed: IBV_EVENT_DEVICE_FATAL once, every outstanding WR flushed once, requests
 * fail with EIO, destroying works. Needs a daemon of its own.
 */
#include <signal.h>
#include <sys/socket.h>

#include "common.h"

static void kill_daemon(struct env *e)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	CHECK_EQ(getsockopt(e->ctx->cmd_fd, SOL_SOCKET, SO_PEERCRED, &cred, &len), 0);
	CHECK_EQ(kill(cred.pid, SIGKILL), 0);
}

int main(void)
{
	struct env e;
	struct ibv_qp_init_attr attr;
	struct ibv_comp_channel *channel;
	struct ibv_async_event event;
	struct ibv_device_attr dattr;
	struct ibv_sge out, in;
	struct ibv_qp *a, *b;
	struct ibv_cq *cq, *got;
	struct ibv_wc wc[16];
	void *context;
	unsigned int sends = 0, recvs = 0;

	env_open(&e);
	out = sge_at(&e, 0, 8);
	in = sge_at(&e, 4096, 64);
	channel = ibv_create_comp_channel(e.ctx);
	CHECK(channel);
	cq = ibv_create_cq(e.ctx, 64, NULL, channel, 0);
	CHECK(cq);
	CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
	attr = env_qp_attr(&e);
	attr.send_cq = attr.recv_cq = cq;
	create_pair(&e, &attr, &a, &b);
	for (uint64_t i = 0; i < 5; i++)
		CHECK_EQ(post_recv_at(a, i, &in), 0);
	for (uint64_t i = 8; i < 12; i++)
		CHECK_EQ(post_send_at(a, i, &out, 0), 0); /* nobody receives them */
	kill_daemon(&e);
	CHECK_EQ(post_send_at(a, 12, &out, 0), 0);

	CHECK_EQ(ibv_get_cq_event(channel, &got, &context), -1);
	CHECK_EQ(errno, EIO);
	wait_wc(cq, 10, wc);
	for (int i = 0; i < 10; i++) {
		CHECK_EQ(wc[i].status, IBV_WC_WR_FLUSH_ERR);
		CHECK_EQ(wc[i].qp_num, a->qp_num);
		if (wc[i].wr_id < 8)
			recvs |= 1u << wc[i].wr_id;
		else
			sends |= 1u << wc[i].wr_id;
	}
	CHECK_EQ(recvs, 0x1f);
	CHECK_EQ(sends, 0x1f00);
	expect_empty(cq);
	CHECK_EQ(post_recv_at(b, 3, &in), 0);
	wait_wc(cq, 1, wc);
	CHECK_EQ(wc[0].wr_id, 3);

	CHECK_EQ(ibv_get_async_event(e.ctx, &event), 0);
	CHECK_EQ(event.event_type, IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&event);
	CHECK_EQ(ibv_get_async_event(e.ctx, &event), -1);
	CHECK_EQ(ibv_query_device(e.ctx, &dattr), EIO);
	CHECK(!ibv_alloc_pd(e.ctx));
	CHECK_EQ(errno, EIO);

	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
	env_close(&e);
	return 0;
}
