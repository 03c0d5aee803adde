// SPDX-License-Identifier: BSD-2-Clause
/*
 * What may be destroyed when: EBUSY while there are users, waiting while events are not
 * acknowledged, handles of others refused; a CQ that overruns; the SRQ's limit; what is said when
 * a QP with a SRQ ends.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "common.h"

/* Waits for an event of a type; others are acknowledged and passed over. */
static struct ibv_async_event wait_event(const struct env *e, enum ibv_event_type type)
{
	struct pollfd pfd = {.fd = e->ctx->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	for (;;) {
		CHECK_EQ(poll(&pfd, 1, TEST_TIMEOUT * 1000), 1);
		CHECK_EQ(ibv_get_async_event(e->ctx, &event), 0);
		if (event.event_type == type)
			return event;
		ibv_ack_async_event(&event);
	}
}

/* No event of this type is there, nor comes within 50 ms. */
static void expect_no_event(const struct env *e, enum ibv_event_type type)
{
	struct pollfd pfd = {.fd = e->ctx->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	while (poll(&pfd, 1, 50) == 1) {
		CHECK_EQ(ibv_get_async_event(e->ctx, &event), 0);
		CHECK(event.event_type != type);
		ibv_ack_async_event(&event);
	}
}

static void busy(struct env *e)
{
	struct ibv_pd *pd = ibv_alloc_pd(e->ctx);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(e->ctx);
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_srq_init_attr sattr = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq;
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_ah_attr ah_attr = {.is_global = 1,
				      .port_num = 1,
				      .grh = {.dgid = e->gid, .sgid_index = 1, .hop_limit = 64}};
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	struct ibv_qp *qp;

	CHECK(pd && channel);
	send_cq = ibv_create_cq(e->ctx, 8, NULL, channel, 0);
	recv_cq = ibv_create_cq(e->ctx, 8, NULL, NULL, 0);
	srq = ibv_create_srq(pd, &sattr);
	CHECK(send_cq && recv_cq && srq);
	CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
	init.send_cq = send_cq;
	init.recv_cq = recv_cq;
	init.srq = srq;
	qp = ibv_create_qp(pd, &init);
	mr = ibv_reg_mr(pd, e->buf, 4096, 0);
	ah = ibv_create_ah(pd, &ah_attr);
	CHECK(qp && mr && ah);
	CHECK_EQ(ibv_destroy_srq(srq), EBUSY);
	CHECK_EQ(ibv_destroy_cq(send_cq), EBUSY);
	CHECK_EQ(ibv_destroy_cq(recv_cq), EBUSY);
	CHECK_EQ(ibv_destroy_comp_channel(channel), EBUSY);
	CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_destroy_comp_channel(channel), EBUSY);
	CHECK_EQ(ibv_destroy_cq(send_cq), 0);
	CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
	CHECK_EQ(ibv_destroy_cq(recv_cq), 0);
}

/* Objects of two opened contexts do not mix. */
static void strangers(struct env *e)
{
	struct ibv_context *ctx = ibv_open_device(e->ctx->device);
	struct ibv_comp_channel *channel;
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_cq *cq;
	struct ibv_pd *pd;

	CHECK(ctx && ctx != e->ctx);
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	channel = ibv_create_comp_channel(ctx);
	CHECK(pd && cq && channel);
	errno = 0;
	CHECK(!ibv_create_qp(pd, &init));
	CHECK_EQ(errno, EINVAL);
	init.send_cq = cq;
	CHECK(!ibv_create_qp(e->pd, &init));
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(ctx), 0);
}

/* More CQEs than there is room for: CQ_ERR, and the QPs end. */
static void overrun(struct env *e)
{
	struct ibv_cq *cq = ibv_create_cq(e->ctx, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_async_event event, fatal;
	struct ibv_sge out = sge_at(e, 0, 8);
	struct ibv_qp *a, *b;
	struct ibv_wc wc[8];

	CHECK(cq && cq->cqe >= 4);
	init.cap.max_send_wr = 64;
	b = ibv_create_qp(e->pd, &init);
	init.send_cq = cq;
	a = ibv_create_qp(e->pd, &init);
	CHECK(a && b);
	connect_pair(e, a, b);
	for (int i = 0; i < cq->cqe + 1; i++) {
		struct ibv_send_wr wr = {
			.sg_list = &out,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = (uintptr_t)e->buf, .rkey = e->mr->rkey}};
		struct ibv_send_wr *bad;

		CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	}
	event = wait_event(e, IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == cq);
	ibv_ack_async_event(&event);
	fatal = wait_event(e, IBV_EVENT_QP_FATAL);
	CHECK(fatal.element.qp == a);
	ibv_ack_async_event(&fatal);
	/* What was there before is there still. */
	for (int n = 0; n < 4;) {
		int k = ibv_poll_cq(cq, 8, wc);

		CHECK(k > 0);
		for (int i = 0; i < k && n < 4; i++, n++)
			CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
	}
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
}

struct late_ack {
	struct ibv_async_event event;
	_Atomic int acked;
};

static void *ack_later(void *arg)
{
	struct late_ack *l = arg;

	usleep(100000);
	l->acked = 1;
	ibv_ack_async_event(&l->event);
	return NULL;
}

/* The SRQ's limit speaks once; a QP on it says LAST_WQE_REACHED once; both wait to be heard. */
static void srq_events(struct env *e)
{
	struct ibv_srq_init_attr sattr = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(e->pd, &sattr);
	struct ibv_srq_attr limit = {.srq_limit = 4}, query;
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_sge out = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);
	struct ibv_recv_wr rwr = {.sg_list = &in, .num_sge = 1}, *bad;
	struct late_ack late = {0};
	struct ibv_qp *a, *b;
	struct ibv_wc wc[2];
	pthread_t thread;

	CHECK(srq);
	a = ibv_create_qp(e->pd, &init);
	init.srq = srq;
	b = ibv_create_qp(e->pd, &init);
	CHECK(a && b);
	connect_pair(e, a, b);
	for (int i = 0; i < 6; i++)
		CHECK_EQ(ibv_post_srq_recv(srq, &rwr, &bad), 0);
	CHECK_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
	CHECK_EQ(ibv_query_srq(srq, &query), 0);
	CHECK_EQ(query.srq_limit, 4);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
		wait_wc(e->cq, 2, wc);
	}
	expect_no_event(e, IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e->cq, 2, wc);
	late.event = wait_event(e, IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(late.event.element.srq == srq);
	CHECK_EQ(ibv_query_srq(srq, &query), 0);
	CHECK_EQ(query.srq_limit, 0);
	CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e->cq, 2, wc);
	expect_no_event(e, IBV_EVENT_SRQ_LIMIT_REACHED);
	limit.srq_limit = 1000;
	CHECK_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), EINVAL);

	to_state(b, IBV_QPS_ERR);
	{
		struct ibv_async_event last = wait_event(e, IBV_EVENT_QP_LAST_WQE_REACHED);

		CHECK(last.element.qp == b);
		ibv_ack_async_event(&last);
	}
	to_state(b, IBV_QPS_ERR);
	expect_no_event(e, IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(pthread_create(&thread, NULL, ack_later, &late), 0);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	CHECK_EQ(late.acked, 1);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* Destroying a QP waits for its event to be acknowledged. */
static void late_qp(struct env *e)
{
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp *a = ibv_create_qp(e->pd, &init), *b = ibv_create_qp(e->pd, &init);
	struct ibv_qp_attr sqd = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
	struct late_ack late = {0};
	pthread_t thread;

	CHECK(a && b);
	connect_pair(e, a, b);
	CHECK_EQ(ibv_modify_qp(a, &sqd, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	late.event = wait_event(e, IBV_EVENT_SQ_DRAINED);
	CHECK(late.event.element.qp == a);
	CHECK_EQ(pthread_create(&thread, NULL, ack_later, &late), 0);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(late.acked, 1);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

/* A QP number is not used again at once. */
static void numbers(struct env *e)
{
	enum { KEEP = 1000 };
	static uint32_t used[KEEP];
	struct ibv_qp_init_attr init = env_qp_attr(e);

	for (int i = 0; i < KEEP; i++) {
		struct ibv_qp *qp = ibv_create_qp(e->pd, &init);

		CHECK(qp);
		used[i] = qp->qp_num;
		for (int k = 0; k < i; k++)
			CHECK(used[k] != used[i]);
		CHECK_EQ(ibv_destroy_qp(qp), 0);
	}
}

int main(void)
{
	struct env e;

	env_open(&e);
	busy(&e);
	strangers(&e);
	overrun(&e);
	srq_events(&e);
	late_qp(&e);
	numbers(&e);
	env_close(&e);
	return 0;
}
