// SPDX-License-Identifier: BSD-2-Clause
/*
 * Device profiles: the limits that a device of another make has, and that they are kept to. The
 * argument is the profile of the first device.
 */
#include "common.h"

/* What ibv_query_device() says of each. */
static const struct expected {
	const char *name;
	int max_qp, max_qp_wr, max_sge, max_cqe, max_srq_sge, max_qp_rd_atom, max_mcast_qp_attach;
	uint32_t max_inline;
	enum ibv_atomic_cap atomic_cap;
	enum ibv_mtu mtu;
} profiles[] = {
	{"default", 32768, 16384, 32, 4194304, 32, 16, 256, 1024, IBV_ATOMIC_HCA, IBV_MTU_4096},
	{"connectx", 65536, 16384, 30, 4194303, 31, 16, 240, 956, IBV_ATOMIC_HCA, IBV_MTU_4096},
	{"rxe", 65536, 16384, 32, 32767, 27, 16, 56, 400, IBV_ATOMIC_HCA, IBV_MTU_4096},
	{"minimal", 256, 512, 2, 1024, 1, 1, 0, 0, IBV_ATOMIC_NONE, IBV_MTU_1024},
};

static void queried(const struct env *e, const struct expected *x)
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;

	CHECK_EQ(ibv_query_device(e->ctx, &attr), 0);
	CHECK_EQ(ibv_query_port(e->ctx, 1, &port), 0);
	CHECK_EQ(attr.max_qp, x->max_qp);
	CHECK_EQ(attr.max_qp_wr, x->max_qp_wr);
	CHECK_EQ(attr.max_sge, x->max_sge);
	CHECK_EQ(attr.max_cqe, x->max_cqe);
	CHECK_EQ(attr.max_srq_sge, x->max_srq_sge);
	CHECK_EQ(attr.max_qp_rd_atom, x->max_qp_rd_atom);
	CHECK_EQ(attr.max_mcast_qp_attach, x->max_mcast_qp_attach);
	CHECK_EQ(attr.atomic_cap, x->atomic_cap);
	CHECK_EQ(port.active_mtu, x->mtu);
}

/* @return the errno of making a QP with one capability changed, 0 if it was made */
static int try_qp(struct env *e, const struct ibv_qp_cap *cap)
{
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp *qp;

	init.cap = *cap;
	qp = ibv_create_qp(e->pd, &init);
	if (!qp)
		return errno;
	CHECK(init.cap.max_send_wr >= cap->max_send_wr);
	CHECK(init.cap.max_send_sge >= cap->max_send_sge);
	CHECK(init.cap.max_inline_data >= cap->max_inline_data);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	return 0;
}

/* A limit can be reached and not exceeded. */
static void enforced(struct env *e, const struct expected *x)
{
	const struct ibv_qp_cap good = {
		.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};
	struct ibv_cq *cq;

#define LIMIT(field, max)                          \
	do {                                       \
		struct ibv_qp_cap cap = good;      \
		cap.field = (uint32_t)(max);       \
		CHECK_EQ(try_qp(e, &cap), 0);      \
		cap.field++;                       \
		CHECK_EQ(try_qp(e, &cap), EINVAL); \
	} while (0)
	LIMIT(max_send_wr, x->max_qp_wr);
	LIMIT(max_recv_wr, x->max_qp_wr);
	LIMIT(max_send_sge, x->max_sge);
	LIMIT(max_recv_sge, x->max_sge);
	LIMIT(max_inline_data, x->max_inline);
	if (x->max_cqe < 100000) {
		cq = ibv_create_cq(e->ctx, x->max_cqe, NULL, NULL, 0);
		CHECK(cq);
		CHECK_EQ(ibv_destroy_cq(cq), 0);
	}
	CHECK(!ibv_create_cq(e->ctx, x->max_cqe + 1, NULL, NULL, 0));
	CHECK_EQ(errno, EINVAL);
}

/* Path MTU, READs at a time, atomics, inline data. */
static void connected(struct env *e, const struct expected *x)
{
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp *a, *b;
	struct ibv_sge out = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);
	struct ibv_send_wr wr = {.sg_list = &out,
				 .num_sge = 1,
				 .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = x->mtu + 1,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 1,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = e->gid, .sgid_index = 1, .hop_limit = 64}},
	};
	const int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	struct ibv_qp_attr to_init_attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .max_rd_atomic = 1};
	struct ibv_wc wc[2];

	init.cap.max_inline_data = x->max_inline < 8 ? x->max_inline : 8;
	a = ibv_create_qp(e->pd, &init);
	b = ibv_create_qp(e->pd, &init);
	CHECK(a && b);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp *qp = i ? b : a;

		CHECK_EQ(ibv_modify_qp(qp, &to_init_attr,
				       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS),
			 0);
		rtr.dest_qp_num = i ? a->qp_num : b->qp_num;
		rtr.path_mtu = x->mtu + 1;
		CHECK_EQ(ibv_modify_qp(qp, &rtr, mask), EINVAL);
		rtr.path_mtu = x->mtu;
		rtr.max_dest_rd_atomic = (uint8_t)(x->max_qp_rd_atom + 1);
		CHECK_EQ(ibv_modify_qp(qp, &rtr, mask), EINVAL);
		rtr.max_dest_rd_atomic = (uint8_t)x->max_qp_rd_atom;
		CHECK_EQ(ibv_modify_qp(qp, &rtr, mask), 0);
		CHECK_EQ(ibv_modify_qp(qp, &rts,
				       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC),
			 0);
	}
	CHECK_EQ(post_recv_at(b, 0, &in), 0);
	CHECK_EQ(
		post_send_at(a, 0, &out, IBV_SEND_SIGNALED | (x->max_inline ? IBV_SEND_INLINE : 0)),
		0);
	wait_wc(e->cq, 2, wc);
	CHECK(wc[0].status == IBV_WC_SUCCESS && wc[1].status == IBV_WC_SUCCESS);
	if (x->max_inline == 0)
		CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_INLINE), EINVAL);
	if (x->atomic_cap == IBV_ATOMIC_NONE) {
		CHECK(!ibv_reg_mr(e->pd, e->buf, 64,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
		wr.wr.atomic.remote_addr = (uintptr_t)e->buf;
		wr.wr.atomic.rkey = e->mr->rkey;
		CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
		wait_wc(e->cq, 1, wc);
		CHECK_EQ(wc[0].status, IBV_WC_LOC_QP_OP_ERR);
	}
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	const struct expected *x = profiles;
	struct env e = {0};

	CHECK(argc > 1 && list && list[0]);
	while (strcmp(x->name, argv[1]) != 0)
		x++;
	e.ctx = ibv_open_device(list[0]);
	CHECK(e.ctx);
	ibv_free_device_list(list);
	e.pd = ibv_alloc_pd(e.ctx);
	e.cq = ibv_create_cq(e.ctx, 64, NULL, NULL, 0);
	e.buf = aligned_alloc(4096, BUF_SIZE);
	CHECK(e.pd && e.cq && e.buf);
	e.mr = ibv_reg_mr(e.pd, e.buf, BUF_SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(e.mr);
	CHECK_EQ(ibv_query_gid(e.ctx, 1, 1, &e.gid), 0);
	queried(&e, x);
	enforced(&e, x);
	connected(&e, x);
	env_close(&e);
	return 0;
}
