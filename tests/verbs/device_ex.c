// SPDX-License-Identifier: BSD-2-Clause
/*
 * What a device says of itself beyond ibv_query_device: extended attributes, ECE, order of data;
 * and what it has not, which fails with EOPNOTSUPP.
 */
#include "common.h"

static struct env e;

static void attributes(void)
{
	struct ibv_query_device_ex_input input = {.comp_mask = 1};
	struct ibv_device_attr_ex attr;
	struct ibv_device_attr plain;

	CHECK_EQ(ibv_query_device(e.ctx, &plain), 0);
	CHECK_EQ(ibv_query_device_ex(e.ctx, &input, &attr), EINVAL);
	memset(&attr, 0xff, sizeof(attr));
	CHECK_EQ(ibv_query_device_ex(e.ctx, NULL, &attr), 0);
	CHECK_EQ(attr.orig_attr.max_qp, plain.max_qp);
	CHECK_EQ(attr.orig_attr.vendor_id, plain.vendor_id);
	CHECK_EQ((uint32_t)attr.device_cap_flags_ex, plain.device_cap_flags);
	CHECK_EQ(attr.phys_port_cnt_ex, plain.phys_port_cnt);
	CHECK_EQ(attr.hca_core_clock, 1000000);
	CHECK_EQ(attr.cq_mod_caps.max_cq_count, UINT16_MAX);
	/* Not built: nothing is claimed. */
	CHECK_EQ(attr.tm_caps.max_num_tags, 0);
	CHECK_EQ(attr.tso_caps.max_tso, 0);
	CHECK_EQ(attr.raw_packet_caps, 0);
}

static void ece(void)
{
	struct ibv_qp_init_attr attr = env_qp_attr(&e);
	struct ibv_qp *qp = ibv_create_qp(e.pd, &attr);
	struct ibv_device_attr dattr;
	struct ibv_ece ece;

	CHECK(qp);
	CHECK_EQ(ibv_query_device(e.ctx, &dattr), 0);
	CHECK_EQ(ibv_query_ece(qp, &ece), 0);
	CHECK_EQ(ece.vendor_id, dattr.vendor_id);
	CHECK_EQ(ece.options, 0);
	ece.options = 0xff;
	CHECK_EQ(ibv_set_ece(qp, &ece), 0);
	CHECK_EQ(ece.options, 0); /* none of them was accepted */
	ece.vendor_id++;
	CHECK_EQ(ibv_set_ece(qp, &ece), EINVAL);
	ece.vendor_id--;
	ece.comp_mask = 1;
	CHECK_EQ(ibv_set_ece(qp, &ece), EINVAL);

	CHECK_EQ(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0), 1);
	CHECK_EQ(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 1 << 8), 0);
	CHECK_EQ(ibv_query_qp_data_in_order(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, 0), 0);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

static void not_there(void)
{
	struct ibv_srq_init_attr_ex sattr = {
		.attr = {.max_wr = 4, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
			     IBV_SRQ_INIT_ATTR_TM,
		.srq_type = IBV_SRQT_TM,
		.pd = e.pd,
		.cq = e.cq,
		.tm_cap = {.max_num_tags = 1, .max_ops = 1},
	};
	struct ibv_qp_init_attr attr = env_qp_attr(&e);
	struct ibv_flow_attr flow = {.type = IBV_FLOW_ATTR_NORMAL, .port = 1};
	struct ibv_qp *qp;

	CHECK(!ibv_create_srq_ex(e.ctx, &sattr));
	CHECK_EQ(errno, EOPNOTSUPP);
	attr.qp_type = IBV_QPT_DRIVER;
	CHECK(!ibv_create_qp(e.pd, &attr));
	CHECK_EQ(errno, EOPNOTSUPP);
	attr.qp_type = IBV_QPT_RC;
	qp = ibv_create_qp(e.pd, &attr);
	CHECK(qp);
	CHECK(!ibv_create_flow(qp, &flow));
	CHECK_EQ(errno, EOPNOTSUPP);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

int main(void)
{
	env_open(&e);
	attributes();
	ece();
	not_there();
	env_close(&e);
	return 0;
}
