// SPDX-License-Identifier: BSD-2-Clause
/*
 * GIDs that come and go: IBV_EVENT_GID_CHANGE, an entry that can be used at once, one that is
 * empty, and places that are used again. Messages go by the new address.
 */
#include "admin.h"

#define ADDED (argc > 1 ? argv[1] : "192.0.2.77")

/* @return whether an entry holds something; as both queries say */
static int there(struct env *e, int index)
{
	static const union ibv_gid zero;
	struct ibv_gid_entry entry;
	union ibv_gid gid;
	int error;

	CHECK_EQ(ibv_query_gid(e->ctx, 1, index, &gid), 0);
	error = ibv_query_gid_ex(e->ctx, 1, (uint32_t)index, &entry, 0);
	CHECK(error == 0 || error == ENODATA);
	CHECK_EQ(error == 0, memcmp(&gid, &zero, sizeof(gid)) != 0);
	return error == 0;
}

int main(int argc, char **argv)
{
	struct ibv_gid_entry table[256];
	struct ibv_qp_init_attr init;
	struct ibv_ah_attr ah;
	struct ibv_port_attr port;
	struct ibv_qp *a, *b;
	struct ibv_sge out, in;
	struct ibv_wc wc[2];
	struct ibv_ah *h;
	ssize_t count;
	const char *name;
	struct env e;
	int index = 0;

	env_open(&e);
	name = ibv_get_device_name(e.ctx->device);
	CHECK_EQ(ibv_query_port(e.ctx, 1, &port), 0);
	count = ibv_query_gid_table(e.ctx, table, 256, 0);
	CHECK(count >= 2 && count < port.gid_tbl_len);
	CHECK_EQ(ibv_query_gid_table(e.ctx, table, (size_t)count, 0), count);
	CHECK_EQ(ibv_query_gid_table(e.ctx, table, (size_t)count - 1, 0), -EINVAL);
	while (there(&e, index))
		index++;
	CHECK_EQ(index, count);
	ah = (struct ibv_ah_attr){.is_global = 1,
				  .port_num = 1,
				  .grh = {.dgid = e.gid, .sgid_index = (uint8_t)index}};
	CHECK(!ibv_create_ah(e.pd, &ah));
	CHECK_EQ(errno, EINVAL);

	CHECK_EQ(admin(VERNIC_DEVICE_GID_ADD, name, ADDED), 0);
	expect_async(e.ctx, IBV_EVENT_GID_CHANGE);
	CHECK(there(&e, index));
	CHECK_EQ(ibv_query_gid_table(e.ctx, table, 256, 0), count + 1);
	CHECK_EQ(admin(VERNIC_DEVICE_GID_ADD, name, ADDED), EINVAL);
	h = ibv_create_ah(e.pd, &ah);
	CHECK(h);
	CHECK_EQ(ibv_destroy_ah(h), 0);

	/* Both ends use the new address. */
	init = env_qp_attr(&e);
	a = ibv_create_qp(e.pd, &init);
	b = ibv_create_qp(e.pd, &init);
	CHECK(a && b);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp *qp = i ? b : a;
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_RTR,
			.path_mtu = IBV_MTU_1024,
			.dest_qp_num = i ? a->qp_num : b->qp_num,
			.max_dest_rd_atomic = 1,
			.min_rnr_timer = 1,
			.ah_attr = ah,
		};

		CHECK_EQ(ibv_query_gid(e.ctx, 1, index, &attr.ah_attr.grh.dgid), 0);
		to_init(qp);
		CHECK_EQ(ibv_modify_qp(qp, &attr,
				       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
			 0);
	}
	to_rts(a);
	to_rts(b);
	out = sge_at(&e, 0, 2000);
	in = sge_at(&e, 4096, 2000);
	CHECK_EQ(post_recv_at(b, 0, &in), 0);
	CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e.cq, 2, wc);
	CHECK(wc[0].status == IBV_WC_SUCCESS && wc[1].status == IBV_WC_SUCCESS);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);

	CHECK_EQ(admin(VERNIC_DEVICE_GID_REMOVE, name, ADDED), 0);
	expect_async(e.ctx, IBV_EVENT_GID_CHANGE);
	CHECK(!there(&e, index));
	CHECK(!ibv_create_ah(e.pd, &ah));
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(ibv_query_gid_table(e.ctx, table, 256, 0), count);
	CHECK_EQ(admin(VERNIC_DEVICE_GID_REMOVE, name, ADDED), EINVAL);
	/* Again, into the place that is free again. */
	CHECK_EQ(admin(VERNIC_DEVICE_GID_ADD, name, ADDED), 0);
	expect_async(e.ctx, IBV_EVENT_GID_CHANGE);
	CHECK(there(&e, index));
	CHECK_EQ(admin(VERNIC_DEVICE_GID_ADD, name, "224.0.0.5"), EINVAL);
	CHECK_EQ(admin(VERNIC_DEVICE_GID_ADD, name, "elsewhere"), EINVAL);
	env_close(&e);
	return 0;
}
