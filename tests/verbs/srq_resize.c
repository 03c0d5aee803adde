// SPDX-License-Identifier: BSD-2-Clause
/*
 * Resizing a SRQ: what is posted stays, in order; there is room for as many as it says and no more;
 * and it does not shrink below what is outstanding. With a limit in the same call.
 */
#include <poll.h>

#include "common.h"

struct resize {
	struct env e;
	struct ibv_srq *srq;
	struct ibv_qp *a, *b;
	uint64_t posted, received; /* wr_ids */
};

static int post(struct resize *r)
{
	struct ibv_sge sge = sge_at(&r->e, 4096, 64);
	struct ibv_recv_wr wr = {.wr_id = r->posted, .sg_list = &sge, .num_sge = 1}, *bad;
	int error = ibv_post_srq_recv(r->srq, &wr, &bad);

	r->posted += error == 0;
	return error;
}

/* Sends n messages; they take the receives in the order of their posting. */
static void receive(struct resize *r, uint32_t n)
{
	struct ibv_sge out = sge_at(&r->e, 0, 16);
	struct ibv_wc wc[2];

	while (n--) {
		memset(r->e.buf, (int)r->received, 16);
		CHECK_EQ(post_send_at(r->a, UINT64_MAX, &out, IBV_SEND_SIGNALED), 0);
		wait_wc(r->e.cq, 2, wc);
		for (int i = 0; i < 2; i++) {
			CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
			if (wc[i].opcode & IBV_WC_RECV)
				CHECK_EQ(wc[i].wr_id, r->received);
		}
		CHECK(!memcmp(r->e.buf, r->e.buf + 4096, 16));
		r->received++;
	}
}

static int resize(struct resize *r, uint32_t max_wr, int limit)
{
	struct ibv_srq_attr attr = {.max_wr = max_wr, .srq_limit = (uint32_t)limit};
	int mask = IBV_SRQ_MAX_WR | (limit >= 0 ? IBV_SRQ_LIMIT : 0);
	int error = ibv_modify_srq(r->srq, &attr, mask);

	if (!error)
		CHECK(attr.max_wr >= max_wr);
	return error;
}

static uint32_t max_wr(struct resize *r)
{
	struct ibv_srq_attr attr;

	CHECK_EQ(ibv_query_srq(r->srq, &attr), 0);
	return attr.max_wr;
}

/* Fills it: it takes as many as it says. */
static void fill(struct resize *r)
{
	while (r->posted - r->received < max_wr(r))
		CHECK_EQ(post(r), 0);
	CHECK_EQ(post(r), ENOMEM);
}

int main(void)
{
	struct ibv_srq_init_attr sattr = {.attr = {.max_wr = 8, .max_sge = 2}};
	struct ibv_qp_init_attr attr;
	struct ibv_async_event event;
	struct ibv_device_attr dev;
	struct resize r = {0};
	struct pollfd ready;

	env_open(&r.e);
	CHECK_EQ(ibv_query_device(r.e.ctx, &dev), 0);
	CHECK(dev.device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
	r.srq = ibv_create_srq(r.e.pd, &sattr);
	CHECK(r.srq);
	attr = env_qp_attr(&r.e);
	r.a = ibv_create_qp(r.e.pd, &attr);
	attr.srq = r.srq;
	r.b = ibv_create_qp(r.e.pd, &attr);
	CHECK(r.a && r.b);
	connect_pair(&r.e, r.a, r.b);

	CHECK_EQ(max_wr(&r), 8);
	/* The ring's place when it grows is not its beginning. */
	for (int round = 0; round < 3; round++) {
		fill(&r);
		receive(&r, 5);
	}
	fill(&r);
	CHECK_EQ(resize(&r, 100, -1), 0);
	CHECK(max_wr(&r) >= 100);
	fill(&r);
	receive(&r, 37);
	/* Smaller than what is outstanding: as it was. */
	CHECK_EQ(resize(&r, 8, -1), EINVAL);
	CHECK(max_wr(&r) >= 100);
	receive(&r, (uint32_t)(r.posted - r.received) - 6);
	CHECK_EQ(resize(&r, 8, 4), 0);
	CHECK_EQ(max_wr(&r), 8);
	CHECK_EQ(r.posted - r.received, 6);
	fill(&r);
	receive(&r, 5); /* 3 are left */
	ready = (struct pollfd){.fd = r.e.ctx->async_fd, .events = POLLIN};
	do {
		CHECK_EQ(poll(&ready, 1, TEST_TIMEOUT * 1000), 1);
		CHECK_EQ(ibv_get_async_event(r.e.ctx, &event), 0);
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_COMM_EST);
	CHECK_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(event.element.srq == r.srq);
	receive(&r, 3);
	/* To the end of what there may be, and beyond. */
	CHECK_EQ(resize(&r, (uint32_t)dev.max_srq_wr, -1), 0);
	CHECK_EQ(max_wr(&r), dev.max_srq_wr);
	CHECK_EQ(resize(&r, (uint32_t)dev.max_srq_wr + 1, -1), EINVAL);
	CHECK_EQ(resize(&r, 0, -1), EINVAL);
	CHECK_EQ(resize(&r, 16, 17), EINVAL);
	CHECK_EQ(max_wr(&r), dev.max_srq_wr);
	fill(&r);
	receive(&r, 3);

	CHECK_EQ(ibv_destroy_qp(r.a), 0);
	CHECK_EQ(ibv_destroy_qp(r.b), 0);
	CHECK_EQ(ibv_destroy_srq(r.srq), 0);
	env_close(&r.e);
	return 0;
}
