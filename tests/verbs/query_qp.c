// SPDX-License-Identifier: BSD-2-Clause
/* ibv_query_qp tells every attribute as it was set, and those of creation as they became. */
#include "common.h"

#define ALL 0x1ffffff /* every IBV_QP_* bit */

static struct env e;

static struct ibv_qp_attr query(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	memset(&attr, 0xa5, sizeof(attr));
	memset(&init, 0xa5, sizeof(init));
	CHECK_EQ(ibv_query_qp(qp, &attr, ALL, &init), 0);
	CHECK_EQ(attr.qp_state, state);
	CHECK_EQ(attr.cur_qp_state, state);
	CHECK_EQ(qp->state, state);
	CHECK(init.qp_context == qp->qp_context && init.send_cq == qp->send_cq);
	CHECK(init.recv_cq == qp->recv_cq && init.srq == qp->srq);
	CHECK_EQ(init.qp_type, qp->qp_type);
	CHECK_EQ(init.sq_sig_all, 1);
	CHECK(!memcmp(&init.cap, &attr.cap, sizeof(attr.cap)));
	CHECK(attr.cap.max_send_wr >= 16 && attr.cap.max_send_sge >= 2);
	CHECK(attr.cap.max_inline_data >= 64);
	CHECK_EQ(attr.path_mig_state, IBV_MIG_MIGRATED);
	return attr;
}

static void rc(void)
{
	struct ibv_qp_init_attr init = env_qp_attr(&e);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ,
		.path_mtu = IBV_MTU_512,
		.dest_qp_num = 0x123456,
		.rq_psn = 0xabcdef,
		.max_dest_rd_atomic = 3,
		.min_rnr_timer = 21,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .sl = 2,
			    .grh = {.dgid = e.gid,
				    .sgid_index = 1,
				    .hop_limit = 37,
				    .traffic_class = 104,
				    .flow_label = 0x54321}},
		.sq_psn = 0x765432,
		.max_rd_atomic = 5,
		.timeout = 17,
		.retry_cnt = 6,
		.rnr_retry = 3,
	};
	struct ibv_qp_attr got;
	struct ibv_qp *qp;

	init.sq_sig_all = 1;
	init.qp_context = &e;
	qp = ibv_create_qp(e.pd, &init);
	CHECK(qp);
	query(qp, IBV_QPS_RESET);
	CHECK_EQ(
		ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		0);
	got = query(qp, IBV_QPS_INIT);
	CHECK_EQ(got.port_num, 1);
	CHECK_EQ(got.pkey_index, 0);
	CHECK_EQ(got.qp_access_flags, IBV_ACCESS_REMOTE_READ);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				       IBV_QP_MIN_RNR_TIMER),
		 0);
	got = query(qp, IBV_QPS_RTR);
	CHECK_EQ(got.path_mtu, IBV_MTU_512);
	CHECK_EQ(got.dest_qp_num, 0x123456);
	CHECK_EQ(got.rq_psn, 0xabcdef);
	CHECK_EQ(got.max_dest_rd_atomic, 3);
	CHECK_EQ(got.min_rnr_timer, 21);
	CHECK_EQ(got.ah_attr.is_global, 1);
	CHECK_EQ(got.ah_attr.port_num, 1);
	CHECK_EQ(got.ah_attr.sl, 2);
	CHECK(!memcmp(&got.ah_attr.grh.dgid, &e.gid, sizeof(e.gid)));
	CHECK_EQ(got.ah_attr.grh.sgid_index, 1);
	CHECK_EQ(got.ah_attr.grh.hop_limit, 37);
	CHECK_EQ(got.ah_attr.grh.traffic_class, 104);
	CHECK_EQ(got.ah_attr.grh.flow_label, 0x54321);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
	got = query(qp, IBV_QPS_RTS);
	CHECK_EQ(got.sq_psn, 0x765432);
	CHECK_EQ(got.max_rd_atomic, 5);
	CHECK_EQ(got.timeout, 17);
	CHECK_EQ(got.retry_cnt, 6);
	CHECK_EQ(got.rnr_retry, 3);
	CHECK_EQ(got.dest_qp_num, 0x123456);
	to_state(qp, IBV_QPS_SQD);
	got = query(qp, IBV_QPS_SQD);
	CHECK_EQ(got.sq_draining, 0);
	to_state(qp, IBV_QPS_ERR);
	query(qp, IBV_QPS_ERR);
	/* RESET takes all back. */
	to_state(qp, IBV_QPS_RESET);
	got = query(qp, IBV_QPS_RESET);
	CHECK_EQ(got.dest_qp_num, 0);
	CHECK_EQ(got.timeout, 0);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

static void ud(void)
{
	struct ibv_qp_init_attr init = env_qp_attr(&e);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234567, .sq_psn = 0x45};
	struct ibv_qp_attr got;
	struct ibv_qp *qp;

	init.sq_sig_all = 1;
	init.qp_type = IBV_QPT_UD;
	qp = ibv_create_qp(e.pd, &init);
	CHECK(qp);
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
		 0);
	got = query(qp, IBV_QPS_INIT);
	CHECK_EQ(got.qkey, 0x1234567);
	to_state(qp, IBV_QPS_RTR);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	got = query(qp, IBV_QPS_RTS);
	CHECK_EQ(got.sq_psn, 0x45);
	CHECK_EQ(got.qkey, 0x1234567);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

int main(void)
{
	env_open(&e);
	rc();
	ud();
	env_close(&e);
	return 0;
}
