// SPDX-License-Identifier: BSD-2-Clause
/*
 * Device profiles: the limits that a device of another make has, and that they are kept to; what it
 * has not at all it does not claim, and refuses. The argument is the profile of the first device.
 */
#include <fcntl.h>
#include <stdbool.h>

#include <vernic/ring.h>

#include "common.h"

/* Whether a device has them. */
struct features {
	bool windows, odp, memory, xrc, srq_resize, flush, pacing, block_loopback;
};

/* What ibv_query_device() says of each. */
static const struct expected {
	const char *name;
	int max_qp, max_qp_wr, max_sge, max_cqe, max_srq_sge, max_qp_rd_atom, max_mcast_qp_attach;
	uint32_t max_inline;
	enum ibv_atomic_cap atomic_cap;
	enum ibv_mtu mtu;
	struct features has;
} profiles[] = {
	{"default",
	 32768,
	 16384,
	 32,
	 4194304,
	 32,
	 16,
	 256,
	 1024,
	 IBV_ATOMIC_HCA,
	 IBV_MTU_4096,
	 {.windows = true,
	  .odp = true,
	  .memory = true,
	  .xrc = true,
	  .srq_resize = true,
	  .flush = true,
	  .pacing = true,
	  .block_loopback = true}},
	{"connectx",
	 65536,
	 16384,
	 30,
	 4194303,
	 31,
	 16,
	 240,
	 956,
	 IBV_ATOMIC_HCA,
	 IBV_MTU_4096,
	 {.windows = true, .odp = true, .memory = true, .xrc = true, .block_loopback = true}},
	{"rxe",
	 65536,
	 16384,
	 32,
	 32767,
	 27,
	 16,
	 56,
	 400,
	 IBV_ATOMIC_HCA,
	 IBV_MTU_4096,
	 {.windows = true, .srq_resize = true, .flush = true}},
	{"minimal", 256, 512, 2, 1024, 1, 1, 0, 0, IBV_ATOMIC_NONE, IBV_MTU_1024, {0}},
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

/* Connects two QPs; path MTU and READs at a time are as much as there may be, and not more. */
static void connect_most(struct env *e, const struct expected *x, struct ibv_qp *a,
			 struct ibv_qp *b)
{
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

	to_state(a, IBV_QPS_RESET);
	to_state(b, IBV_QPS_RESET);
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
}

/* A work request of a kind that the device may not have. */
static void try_kind(struct env *e, const struct expected *x, struct ibv_qp *a, struct ibv_qp *b,
		     enum ibv_wr_opcode opcode, bool has)
{
	struct ibv_sge sge = sge_at(e, 0, 8);
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = opcode == IBV_WR_LOCAL_INV ? 0 : 1,
				 .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	struct ibv_wc wc;

	connect_most(e, x, a, b);
	if (opcode == IBV_WR_LOCAL_INV) {
		wr.invalidate_rkey = e->mr->rkey;
	} else if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)e->buf;
		wr.wr.atomic.rkey = e->mr->rkey;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)e->buf;
		wr.wr.rdma.rkey = e->mr->rkey;
	}
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(e->cq, 1, &wc);
	CHECK_EQ(wc.status == IBV_WC_LOC_QP_OP_ERR, !has);
}

/* Atomics, inline data, and other kinds of work requests. */
static void connected(struct env *e, const struct expected *x)
{
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp *a, *b;
	struct ibv_sge out = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);
	struct ibv_wc wc[2];

	init.cap.max_inline_data = x->max_inline < 8 ? x->max_inline : 8;
	a = ibv_create_qp(e->pd, &init);
	b = ibv_create_qp(e->pd, &init);
	CHECK(a && b);
	connect_most(e, x, a, b);
	CHECK_EQ(post_recv_at(b, 0, &in), 0);
	CHECK_EQ(
		post_send_at(a, 0, &out, IBV_SEND_SIGNALED | (x->max_inline ? IBV_SEND_INLINE : 0)),
		0);
	wait_wc(e->cq, 2, wc);
	CHECK(wc[0].status == IBV_WC_SUCCESS && wc[1].status == IBV_WC_SUCCESS);
	if (x->max_inline == 0)
		CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_INLINE), EINVAL);
	if (x->atomic_cap == IBV_ATOMIC_NONE)
		CHECK(!ibv_reg_mr(e->pd, e->buf, 64,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
	try_kind(e, x, a, b, IBV_WR_ATOMIC_FETCH_AND_ADD, x->atomic_cap != IBV_ATOMIC_NONE);
	try_kind(e, x, a, b, IBV_WR_LOCAL_INV, x->has.windows);
	try_kind(e, x, a, b, IBV_WR_ATOMIC_WRITE, x->has.flush);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

/* Checks that what a call made is there if the device has that, and else EOPNOTSUPP. */
#define EXPECT(made, has)                                      \
	do {                                                   \
		if (has)                                       \
			CHECK(made);                           \
		else                                           \
			CHECK(!(made) && errno == EOPNOTSUPP); \
	} while (0)

static void windows(struct env *e, const struct ibv_device_attr *attr, bool has)
{
	for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++) {
		struct ibv_mw *mw = ibv_alloc_mw(e->pd, (enum ibv_mw_type)type);

		EXPECT(mw, has);
		if (mw)
			CHECK_EQ(ibv_dealloc_mw(mw), 0);
	}
	CHECK_EQ(attr->max_mw > 0, has);
	for (int i = 0; i < 3; i++) {
		static const unsigned int flags[] = {IBV_DEVICE_MEM_WINDOW,
						     IBV_DEVICE_MEM_WINDOW_TYPE_2B,
						     IBV_DEVICE_MEM_MGT_EXTENSIONS};

		CHECK_EQ((attr->device_cap_flags & flags[i]) != 0, has);
	}
	CHECK_EQ(attr->device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A, 0);
}

static void on_demand(struct env *e, const struct ibv_device_attr_ex *attr, bool has)
{
	struct ibv_mr *mr = ibv_reg_mr(e->pd, e->buf, 4096, IBV_ACCESS_ON_DEMAND);
	struct ibv_mr *all = ibv_reg_mr(e->pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND);
	struct ibv_sge sge = sge_at(e, 0, 4096);

	EXPECT(mr, has);
	EXPECT(all, has);
	CHECK_EQ(attr->odp_caps.general_caps, has ? IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT : 0);
	CHECK_EQ(attr->odp_caps.per_transport_caps.rc_odp_caps != 0, has);
	CHECK_EQ(attr->odp_caps.per_transport_caps.uc_odp_caps != 0, has);
	CHECK_EQ(attr->odp_caps.per_transport_caps.ud_odp_caps != 0, has);
	CHECK_EQ(attr->xrc_odp_caps != 0, has);
	if (mr)
		sge.lkey = mr->lkey;
	CHECK_EQ(ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1),
		 has ? 0 : EOPNOTSUPP);
	if (mr)
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	if (all)
		CHECK_EQ(ibv_dereg_mr(all), 0);
	/* Neither by way of a change; then the MR is as before. */
	mr = ibv_reg_mr(e->pd, e->buf, 4096, 0);
	CHECK(mr);
	errno = 0;
	CHECK_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_ON_DEMAND),
		 has ? 0 : IBV_REREG_MR_ERR_CMD);
	CHECK_EQ(errno, has ? 0 : EOPNOTSUPP);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

static void device_memory(struct env *e, const struct ibv_device_attr_ex *attr, bool has)
{
	struct ibv_alloc_dm_attr dattr = {.length = 64};
	struct ibv_dm *dm = ibv_alloc_dm(e->ctx, &dattr);

	EXPECT(dm, has);
	CHECK_EQ(attr->max_dm_size > 0, has);
	if (dm)
		CHECK_EQ(ibv_free_dm(dm), 0);
}

static void xrc(struct env *e, const struct ibv_device_attr *attr, bool has)
{
	struct ibv_xrcd_init_attr xattr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(e->ctx, &xattr);
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp *qp;

	EXPECT(xrcd, has);
	init.qp_type = IBV_QPT_XRC_SEND;
	init.cap.max_inline_data = 0;
	qp = ibv_create_qp(e->pd, &init);
	EXPECT(qp, has);
	CHECK_EQ((attr->device_cap_flags & IBV_DEVICE_XRC) != 0, has);
	if (qp)
		CHECK_EQ(ibv_destroy_qp(qp), 0);
	if (xrcd)
		CHECK_EQ(ibv_close_xrcd(xrcd), 0);
}

static void srq_resize(struct env *e, const struct ibv_device_attr *attr, bool has)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(e->pd, &init);
	struct ibv_srq_attr sattr = {.max_wr = 16, .srq_limit = 2};

	CHECK(srq);
	CHECK_EQ((attr->device_cap_flags & IBV_DEVICE_SRQ_RESIZE) != 0, has);
	CHECK_EQ(ibv_modify_srq(srq, &sattr, IBV_SRQ_MAX_WR), has ? 0 : EOPNOTSUPP);
	CHECK_EQ(ibv_modify_srq(srq, &sattr, IBV_SRQ_LIMIT), 0);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
}

static void flush(struct env *e, const struct ibv_device_attr_ex *attr, bool has)
{
	static const unsigned int access[] = {VERNIC_ACCESS_FLUSH_GLOBAL,
					      VERNIC_ACCESS_FLUSH_PERSISTENT};
	const uint64_t flags = VERNIC_DEVICE_FLUSH_GLOBAL | VERNIC_DEVICE_FLUSH_PERSISTENT |
			       VERNIC_DEVICE_ATOMIC_WRITE;

	CHECK_EQ(attr->device_cap_flags_ex & flags, has ? flags : 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_mr *mr =
			ibv_reg_mr(e->pd, e->buf, 64, IBV_ACCESS_LOCAL_WRITE | (int)access[i]);

		EXPECT(mr, has);
		if (mr)
			CHECK_EQ(ibv_dereg_mr(mr), 0);
	}
}

static void pacing(struct env *e, const struct expected *x, const struct ibv_device_attr_ex *attr)
{
	struct ibv_qp_rate_limit_attr limit = {.rate_limit = 1000};
	struct ibv_qp_attr qattr = {.rate_limit = 1000};
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp *a, *b;

	init.cap.max_inline_data = 0;
	a = ibv_create_qp(e->pd, &init);
	b = ibv_create_qp(e->pd, &init);
	CHECK(a && b);
	connect_most(e, x, a, b);
	CHECK_EQ(attr->packet_pacing_caps.supported_qpts != 0, x->has.pacing);
	CHECK_EQ(attr->packet_pacing_caps.qp_rate_limit_max != 0, x->has.pacing);
	CHECK_EQ(ibv_modify_qp_rate_limit(a, &limit), x->has.pacing ? 0 : EOPNOTSUPP);
	CHECK_EQ(ibv_modify_qp(a, &qattr, IBV_QP_RATE_LIMIT), x->has.pacing ? 0 : EOPNOTSUPP);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

static void block_loopback(struct env *e, bool has)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = e->cq,
		.recv_cq = e->cq,
		.cap = {1, 1, 1, 1, 0},
		.qp_type = IBV_QPT_UD,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.pd = e->pd,
		.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(e->ctx, &init);

	EXPECT(qp, has);
	if (qp)
		CHECK_EQ(ibv_destroy_qp(qp), 0);
}

/* What a device has or has not: it says so, and it is so. */
static void features(struct env *e, const struct expected *x)
{
	const struct features *has = &x->has;
	struct ibv_device_attr_ex attr;

	CHECK_EQ(ibv_query_device_ex(e->ctx, NULL, &attr), 0);
	windows(e, &attr.orig_attr, has->windows);
	on_demand(e, &attr, has->odp);
	device_memory(e, &attr, has->memory);
	xrc(e, &attr.orig_attr, has->xrc);
	srq_resize(e, &attr.orig_attr, has->srq_resize);
	flush(e, &attr, has->flush);
	pacing(e, x, &attr);
	block_loopback(e, has->block_loopback);
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
	features(&e, x);
	env_close(&e);
	return 0;
}
