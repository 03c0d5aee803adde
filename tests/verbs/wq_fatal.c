// SPDX-License-Identifier: BSD-2-Clause
/*
 * IBV_EVENT_WQ_FATAL: a WQ fails by itself when its CQ has no room for what it has to report, and
 * when its ring makes no sense; its program is told once in each life of the WQ. Destroying waits
 * for the acknowledgement.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <sys/mman.h>

#include "raw.h"

static struct env e;

static void post(struct ibv_wq *wq)
{
	struct ibv_sge sge = sge_at(&e, 0, 64);
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

	CHECK_EQ(ibv_post_wq_recv(wq, &wr, &bad), 0);
}

static void move(struct ibv_wq *wq, enum ibv_wq_state state)
{
	struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = state};

	CHECK_EQ(ibv_modify_wq(wq, &attr), 0);
}

/* @return whether there is an event now, or comes soon if one is due */
static bool event_waits(bool due)
{
	struct pollfd fd = {.fd = e.ctx->async_fd, .events = POLLIN};

	return poll(&fd, 1, due ? TEST_TIMEOUT * 1000 : 50) == 1;
}

static struct ibv_async_event next_event(void)
{
	struct ibv_async_event event;

	CHECK(event_waits(true));
	CHECK_EQ(ibv_get_async_event(e.ctx, &event), 0);
	return event;
}

static atomic_bool destroyed;

static void *destroy(void *wq)
{
	CHECK_EQ(ibv_destroy_wq(wq), 0);
	destroyed = true;
	return NULL;
}

/* More is posted than there is room for: by a client that writes its ring by hand. */
static void overwritten(void)
{
	struct vernic_request cq = {.command = VERNIC_CMD_CREATE_CQ,
				    .create_cq = {.cqe = 16, .channel = UINT32_MAX}};
	struct vernic_request wq = {.command = VERNIC_CMD_CREATE_WQ,
				    .create_wq = {.max_wr = 4, .max_sge = 1}};
	struct vernic_request change = {.command = VERNIC_CMD_MODIFY_WQ};
	struct vernic_wq_ring *ring;
	struct vernic_async_event event;
	struct pollfd events = {.events = POLLIN};
	struct raw r;
	uint32_t wq_num;

	CHECK_EQ(raw_start(&r), 0);
	CHECK_EQ(raw_open(&r), 0);
	events.fd = dup(r.fds[2]);
	CHECK(events.fd >= 0);
	CHECK_EQ(raw_about(&r, VERNIC_CMD_ALLOC_PD, 0), 0);
	wq.create_wq.pd = r.reply.handle;
	CHECK_EQ(raw_call(&r, &cq), 0);
	wq.create_wq.cq = r.reply.handle;
	CHECK_EQ(raw_call(&r, &wq), 0);
	change.handle = r.reply.handle;
	wq_num = r.reply.create_wq.wq_num;
	ring = mmap(NULL, r.reply.create_wq.size, PROT_READ | PROT_WRITE, MAP_SHARED, r.fds[0], 0);
	CHECK(ring != MAP_FAILED);
	change.modify_wq.state = IBV_WQS_RDY;
	CHECK_EQ(raw_call(&r, &change), 0);
	ring->prod = 1000000;
	change.modify_wq.state = IBV_WQS_ERR;
	CHECK_EQ(raw_call(&r, &change), 0);
	CHECK_EQ(poll(&events, 1, TEST_TIMEOUT * 1000), 1);
	CHECK_EQ(read(events.fd, &event, sizeof(event)), sizeof(event));
	CHECK_EQ(event.event_type, IBV_EVENT_WQ_FATAL);
	CHECK_EQ(event.element, change.handle);
	CHECK_EQ(event.qp_num, wq_num);
	close(events.fd);
	raw_end(&r);
}

int main(void)
{
	struct ibv_wq_init_attr attr = {.wq_type = IBV_WQT_RQ, .max_wr = 64, .max_sge = 1};
	struct ibv_async_event event;
	struct ibv_wq *wq, *other;
	struct ibv_cq *cq;
	pthread_t thread;

	env_open(&e);
	cq = ibv_create_cq(e.ctx, 4, NULL, NULL, 0);
	CHECK(cq && cq->cqe < 63);
	attr.pd = e.pd;
	attr.cq = cq;
	wq = ibv_create_wq(e.ctx, &attr);
	attr.cq = e.cq;
	other = ibv_create_wq(e.ctx, &attr);
	CHECK(wq && other);
	/* As much as there is room for is no failure. */
	move(wq, IBV_WQS_RDY);
	for (int i = 0; i < cq->cqe; i++)
		post(wq);
	move(wq, IBV_WQS_ERR);
	CHECK(!event_waits(false));
	post(wq);
	event = next_event();
	CHECK_EQ(event.event_type, IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == cq);
	ibv_ack_async_event(&event);
	event = next_event();
	CHECK_EQ(event.event_type, IBV_EVENT_WQ_FATAL);
	CHECK(event.element.wq == wq);
	ibv_ack_async_event(&event);
	CHECK_EQ(wq->events_completed, 1);
	/* Once; another WQ has nothing to do with it. */
	post(wq);
	move(other, IBV_WQS_RDY);
	post(other);
	move(other, IBV_WQS_ERR);
	CHECK(!event_waits(false));
	/* In its next life it may fail again: the CQ has not recovered. */
	move(wq, IBV_WQS_RESET);
	move(wq, IBV_WQS_RDY);
	post(wq);
	move(wq, IBV_WQS_ERR);
	event = next_event();
	CHECK_EQ(event.event_type, IBV_EVENT_WQ_FATAL);
	CHECK(event.element.wq == wq);
	/* It does not go before the event is acknowledged. */
	CHECK_EQ(pthread_create(&thread, NULL, destroy, wq), 0);
	CHECK(!event_waits(false));
	CHECK(!destroyed);
	ibv_ack_async_event(&event);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(destroyed);
	CHECK_EQ(ibv_destroy_wq(other), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	overwritten();
	env_close(&e);
	return 0;
}
