// SPDX-License-Identifier: BSD-2-Clause
/*
 * Extended polling: fields, batches, ENOENT on an empty CQ; times that lie where the clocks were;
 * only fields that were asked for.
 */
#include "common.h"

static uint64_t now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* The device's clock, which ibv_wc_read_completion_ts() is of. */
static uint64_t raw_clock(struct ibv_context *ctx)
{
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK | 1 << 9};

	CHECK_EQ(ibv_query_rt_values_ex(ctx, &values), 0);
	CHECK_EQ(values.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
	CHECK_EQ(values.raw_clock.tv_sec, 0);
	return (uint64_t)values.raw_clock.tv_nsec;
}

/* Fields that were not asked for cannot be read, as on adapters. */
static void only_what_was_asked_for(struct ibv_context *ctx)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 1, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &attr);

	CHECK(cq);
	CHECK(cq->read_opcode && cq->read_vendor_err && cq->read_wc_flags && cq->read_byte_len);
	CHECK(!cq->read_imm_data && !cq->read_qp_num && !cq->read_completion_ts);
	CHECK_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	attr.wc_flags = IBV_WC_EX_WITH_CVLAN;
	CHECK(!ibv_create_cq_ex(ctx, &attr));
	CHECK_EQ(errno, EOPNOTSUPP);
	attr.wc_flags = 0;
	attr.comp_mask = 1 << 5;
	CHECK(!ibv_create_cq_ex(ctx, &attr));
	CHECK_EQ(errno, EOPNOTSUPP);
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	cq = ibv_create_cq_ex(ctx, &attr);
	CHECK(cq);
	CHECK_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

int main(void)
{
	struct env e;
	struct ibv_cq_init_attr_ex cattr = {
		.cqe = 64,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK | IBV_WC_EX_WITH_FLOW_TAG,
	};
	struct ibv_poll_cq_attr pattr = {0};
	struct ibv_qp_init_attr attr;
	struct ibv_device_attr_ex dattr;
	struct ibv_cq_ex *cq;
	struct ibv_qp *a, *b;
	struct ibv_sge out, in;
	struct ibv_wc wc[8];
	uint64_t last = 0, raw, wall;
	int n, error;

	env_open(&e);
	CHECK_EQ(ibv_query_device_ex(e.ctx, NULL, &dattr), 0);
	CHECK_EQ(dattr.completion_timestamp_mask, UINT64_MAX);
	CHECK_EQ(dattr.hca_core_clock, 1000000); /* kHz */
	only_what_was_asked_for(e.ctx);
	out = sge_at(&e, 0, 8);
	in = sge_at(&e, 4096, 64);
	cattr.wc_flags |= IBV_WC_EX_WITH_TM_INFO;
	CHECK(!ibv_create_cq_ex(e.ctx, &cattr));
	CHECK_EQ(errno, EOPNOTSUPP);
	cattr.wc_flags &= ~(uint64_t)IBV_WC_EX_WITH_TM_INFO;
	cq = ibv_create_cq_ex(e.ctx, &cattr);
	CHECK(cq);
	attr = env_qp_attr(&e);
	attr.recv_cq = ibv_cq_ex_to_cq(cq);
	create_pair(&e, &attr, &a, &b);
	pattr.comp_mask = 1;
	CHECK_EQ(ibv_start_poll(cq, &pattr), EINVAL);
	pattr.comp_mask = 0;
	CHECK_EQ(ibv_start_poll(cq, &pattr), ENOENT);
	raw = raw_clock(e.ctx);
	wall = now_ns(CLOCK_REALTIME);
	for (uint64_t i = 0; i < 4; i++)
		CHECK_EQ(post_recv_at(b, i, &in), 0);
	for (uint64_t i = 0; i < 4; i++)
		CHECK_EQ(post_send_at(a, i, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e.cq, 4, wc);
	for (n = 0; n < 4;) {
		error = ibv_start_poll(cq, &pattr);
		if (error == ENOENT)
			continue;
		while (!error) {
			CHECK_EQ(cq->status, IBV_WC_SUCCESS);
			CHECK_EQ(cq->wr_id, n);
			CHECK_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
			CHECK_EQ(ibv_wc_read_byte_len(cq), 8);
			CHECK_EQ(ibv_wc_read_qp_num(cq), b->qp_num);
			CHECK_EQ(ibv_wc_read_src_qp(cq), a->qp_num);
			CHECK_EQ(ibv_wc_read_wc_flags(cq), 0);
			CHECK_EQ(ibv_wc_read_slid(cq), 0);
			CHECK_EQ(ibv_wc_read_sl(cq), 0);
			CHECK_EQ(ibv_wc_read_dlid_path_bits(cq), 0);
			CHECK_EQ(ibv_wc_read_flow_tag(cq), 0);
			CHECK(ibv_wc_read_completion_ts(cq) >= last);
			last = ibv_wc_read_completion_ts(cq);
			/* The round that made it may have begun just before. */
			CHECK(last > raw - 1000000000 && last <= raw_clock(e.ctx));
			CHECK(ibv_wc_read_completion_wallclock_ns(cq) > wall - 1000000000 &&
			      ibv_wc_read_completion_wallclock_ns(cq) <
				      now_ns(CLOCK_REALTIME) + 1000000000);
			n++;
			error = ibv_next_poll(cq);
		}
		ibv_end_poll(cq);
	}
	/* The old call works on it too. */
	CHECK_EQ(post_recv_at(b, 9, &in), 0);
	CHECK_EQ(post_send_at(a, 9, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(ibv_cq_ex_to_cq(cq), 1, wc);
	CHECK_EQ(wc[0].wr_id, 9);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	env_close(&e);
	return 0;
}
