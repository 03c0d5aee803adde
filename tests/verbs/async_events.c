// SPDX-License-Identifier: BSD-2-Clause
/*
 * Asynchronous events: each that QPs, CQs and SRQs can raise, once, with its object; and that an
 * object whose event was delivered is destroyed only when that was acknowledged.
 */
#include <pthread.h>

#include "admin.h"

/* Destroys something on another thread. */
struct destroyer {
	pthread_t thread;
	struct ibv_qp *qp;
	struct ibv_srq *srq;
	struct ibv_cq *cq;
	_Atomic int gone;
};

static void *destroy_main(void *arg)
{
	struct destroyer *d = arg;

	if (d->qp)
		CHECK_EQ(ibv_destroy_qp(d->qp), 0);
	if (d->srq)
		CHECK_EQ(ibv_destroy_srq(d->srq), 0);
	if (d->cq)
		CHECK_EQ(ibv_destroy_cq(d->cq), 0);
	d->gone = 1;
	return NULL;
}

/* Destroying waits for the acknowledgement. */
static void destroy_before_ack(struct destroyer *d, struct ibv_async_event *event)
{
	CHECK_EQ(pthread_create(&d->thread, NULL, destroy_main, d), 0);
	usleep(50000);
	CHECK(!d->gone);
	ibv_ack_async_event(event);
	CHECK_EQ(pthread_join(d->thread, NULL), 0);
	CHECK(d->gone);
}

static struct ibv_qp *make_qp(struct env *e, struct ibv_srq *srq, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp *qp;

	init.srq = srq;
	if (cq)
		init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(e->pd, &init);
	CHECK(qp);
	return qp;
}

/* Takes a QP's event, and destroys the QP before it acknowledges it. */
static void qp_event(struct env *e, enum ibv_event_type type, struct ibv_qp *qp)
{
	struct ibv_async_event event = take_event(e->ctx, type);
	struct destroyer d = {.qp = qp};

	CHECK(event.element.qp == qp);
	CHECK(!event_waits(e->ctx, 20));
	destroy_before_ack(&d, &event);
}

/* Polls until the CQ has been empty for a while. */
static void drain(struct ibv_cq *cq)
{
	double end = seconds() + 0.02;
	struct ibv_wc wc;

	while (seconds() < end) {
		if (ibv_poll_cq(cq, 1, &wc) > 0)
			end = seconds() + 0.02;
	}
}

/* The first packet reaches a QP that is in RTR. */
static void comm_est(struct env *e)
{
	struct ibv_qp *a = make_qp(e, NULL, NULL), *b = make_qp(e, NULL, NULL);
	struct ibv_sge out = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);
	struct ibv_wc wc[2];

	to_init(a);
	to_init(b);
	to_rtr(e, a, b->qp_num);
	to_rtr(e, b, a->qp_num);
	to_rts(a);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(post_recv_at(b, 0, &in), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
		wait_wc(e->cq, 2, wc);
	}
	qp_event(e, IBV_EVENT_COMM_EST, b);
	CHECK_EQ(ibv_destroy_qp(a), 0);
}

static void sq_drained(struct env *e)
{
	struct ibv_qp *a = make_qp(e, NULL, NULL), *b = make_qp(e, NULL, NULL);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
	struct ibv_sge out = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);

	connect_pair(e, a, b);
	/* If it has begun there is something to drain: the receiver is not ready. */
	CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	CHECK_EQ(post_recv_at(b, 0, &in), 0);
	qp_event(e, IBV_EVENT_SQ_DRAINED, a);
	drain(e->cq);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

/* A request the responder has no right to carry out, and one that makes no sense. */
static void responder_errors(struct env *e, enum ibv_event_type type)
{
	struct ibv_qp *a = make_qp(e, NULL, NULL), *b = make_qp(e, NULL, NULL);
	struct ibv_sge sge = sge_at(e, 0, 8);
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_wc wc;

	connect_pair(e, a, b);
	if (type == IBV_EVENT_QP_ACCESS_ERR) {
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = (uintptr_t)e->buf;
		wr.wr.rdma.rkey = e->mr->rkey + 1;
	} else {
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.remote_addr = (uintptr_t)e->buf + 4;
		wr.wr.atomic.rkey = e->mr->rkey;
	}
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(e->cq, 1, &wc);
	CHECK_EQ(wc.status,
		 type == IBV_EVENT_QP_ACCESS_ERR ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_INV_REQ_ERR);
	qp_event(e, type, b);
	drain(e->cq);
	CHECK_EQ(ibv_destroy_qp(a), 0);
}

static void srq_events(struct env *e)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(e->pd, &init);
	struct ibv_srq_attr limit = {.srq_limit = 3};
	struct ibv_sge out = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);
	struct ibv_recv_wr wr = {.sg_list = &in, .num_sge = 1}, *bad;
	struct ibv_async_event event;
	struct destroyer d = {0};
	struct ibv_qp *a, *b;
	struct ibv_wc wc[2];

	CHECK(srq);
	a = make_qp(e, NULL, NULL);
	b = make_qp(e, srq, NULL);
	connect_pair(e, a, b);
	for (int i = 0; i < 5; i++)
		CHECK_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
	CHECK_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
	for (int i = 0; i < 5; i++) {
		CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
		wait_wc(e->cq, 2, wc);
		if (i == 1)
			CHECK(!event_waits(e->ctx, 20));
	}
	event = take_event(e->ctx, IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(event.element.srq == srq);
	/* Once, and then it is not armed any more. */
	CHECK(!event_waits(e->ctx, 20));
	CHECK_EQ(ibv_query_srq(srq, &limit), 0);
	CHECK_EQ(limit.srq_limit, 0);
	to_state(b, IBV_QPS_ERR);
	to_state(b, IBV_QPS_ERR);
	qp_event(e, IBV_EVENT_QP_LAST_WQE_REACHED, b);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	d.srq = srq;
	destroy_before_ack(&d, &event);
}

/* A CQ that overruns: it says so, and its QP is done for. */
static void cq_overrun(struct env *e)
{
	struct ibv_cq *cq = ibv_create_cq(e->ctx, 2, NULL, NULL, 0);
	struct ibv_qp *a, *b;
	struct ibv_sge out = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);
	struct ibv_async_event cq_event, event;
	struct destroyer d = {0};

	CHECK(cq);
	a = make_qp(e, NULL, NULL);
	b = make_qp(e, NULL, cq);
	connect_pair(e, a, b);
	for (int i = 0; i <= cq->cqe; i++) {
		CHECK_EQ(post_recv_at(b, 0, &in), 0);
		CHECK_EQ(post_send_at(a, 0, &out, 0), 0);
	}
	cq_event = take_event(e->ctx, IBV_EVENT_CQ_ERR);
	CHECK(cq_event.element.cq == cq);
	event = take_event(e->ctx, IBV_EVENT_QP_FATAL);
	CHECK(event.element.qp == b);
	ibv_ack_async_event(&event);
	drain(e->cq);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	d.cq = cq;
	destroy_before_ack(&d, &cq_event);
}

/* An event that was not read when its object went is not delivered. */
static void unread(struct env *e)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(e->pd, &init);
	struct ibv_qp *a = make_qp(e, srq, NULL), *b = make_qp(e, srq, NULL);

	CHECK(srq);
	connect_pair(e, a, b);
	to_state(a, IBV_QPS_ERR);
	CHECK(event_waits(e->ctx, TEST_TIMEOUT * 1000));
	CHECK_EQ(ibv_destroy_qp(a), 0);
	to_state(b, IBV_QPS_ERR);
	qp_event(e, IBV_EVENT_QP_LAST_WQE_REACHED, b);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
}

int main(void)
{
	struct env e;

	env_open(&e);
	comm_est(&e);
	sq_drained(&e);
	responder_errors(&e, IBV_EVENT_QP_ACCESS_ERR);
	responder_errors(&e, IBV_EVENT_QP_REQ_ERR);
	srq_events(&e);
	cq_overrun(&e);
	unread(&e);
	env_close(&e);
	return 0;
}
