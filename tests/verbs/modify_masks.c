// SPDX-License-Identifier: BSD-2-Clause
/*
 * Which attributes each transition of each QP type takes: one too few or one too many is EINVAL and
 * changes nothing; wrong values too. Which transitions there are at all. What ibv_query_qp() tells
 * afterwards.
 */
#include <stdbool.h>

#include "common.h"

enum { RC, UC, UD, TYPES };
static const enum ibv_qp_type types[TYPES] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

/* A step of the way to RTS and back, as ibv_modify_qp(3) has it. */
struct step {
	enum ibv_qp_state from, to;
	int required[TYPES];
	int optional[TYPES];
};

#define INIT_C (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define INIT_D (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)
#define RTR_UC (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define RTR_RC (RTR_UC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RTS_RC                                                                  \
	(IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | \
	 IBV_QP_MAX_QP_RD_ATOMIC)
#define OPT_UC (IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE)
#define OPT_RC (OPT_UC | IBV_QP_MIN_RNR_TIMER)
#define OPT_UD (IBV_QP_CUR_STATE | IBV_QP_QKEY)
#define RATE IBV_QP_RATE_LIMIT
#define NOTIFY IBV_QP_EN_SQD_ASYNC_NOTIFY

static const struct step steps[] = {
	{IBV_QPS_RESET, IBV_QPS_INIT, {INIT_C, INIT_C, INIT_D}, {0, 0, 0}},
	{IBV_QPS_INIT, IBV_QPS_INIT, {0, 0, 0}, {INIT_C, INIT_C, INIT_D}},
	{IBV_QPS_INIT,
	 IBV_QPS_RTR,
	 {RTR_RC, RTR_UC, 0},
	 {IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS,
	  IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},
	{IBV_QPS_RTR,
	 IBV_QPS_RTS,
	 {RTS_RC, IBV_QP_SQ_PSN, IBV_QP_SQ_PSN},
	 {OPT_RC | RATE, OPT_UC | RATE, OPT_UD | RATE}},
	{IBV_QPS_RTS, IBV_QPS_RTS, {0, 0, 0}, {OPT_RC | RATE, OPT_UC | RATE, OPT_UD | RATE}},
	{IBV_QPS_RTS, IBV_QPS_SQD, {0, 0, 0}, {NOTIFY, NOTIFY, NOTIFY}},
	{IBV_QPS_SQD, IBV_QPS_RTS, {0, 0, 0}, {OPT_RC, OPT_UC, OPT_UD}},
	{IBV_QPS_RTS, IBV_QPS_ERR, {0, 0, 0}, {0, 0, 0}},
	{IBV_QPS_ERR, IBV_QPS_RESET, {0, 0, 0}, {0, 0, 0}},
	{IBV_QPS_RESET, IBV_QPS_RESET, {0, 0, 0}, {0, 0, 0}},
};

/* Good values for everything. */
static struct ibv_qp_attr good_attr(const struct env *e, const struct ibv_qp *qp)
{
	return (struct ibv_qp_attr){
		.cur_qp_state = qp->state,
		.path_mtu = IBV_MTU_1024,
		.path_mig_state = IBV_MIG_MIGRATED,
		.qkey = 0x1234,
		.rq_psn = 0x123456,
		.sq_psn = 0xabcdef,
		.dest_qp_num = qp->qp_num,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = e->gid, .sgid_index = 1, .hop_limit = 3}},
		.max_rd_atomic = 3,
		.max_dest_rd_atomic = 5,
		.min_rnr_timer = 12,
		.port_num = 1,
		.timeout = 18,
		.retry_cnt = 6,
		.rnr_retry = 5,
		.rate_limit = 100000,
	};
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	CHECK_EQ(attr.cur_qp_state, attr.qp_state);
	return attr.qp_state;
}

/* A modify that is refused and changes nothing. */
static void refused(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	enum ibv_qp_state before = qp->state;

	if (ibv_modify_qp(qp, attr, mask) != EINVAL) {
		fprintf(stderr, "QP type %d, state %d to %d, mask 0x%x was not refused\n",
			qp->qp_type, before, attr->qp_state, mask);
		exit(1);
	}
	CHECK_EQ(qp->state, before);
	CHECK_EQ(state_of(qp), before);
}

/* Takes a step, after having tried what is near it. */
static void take(const struct env *e, struct ibv_qp *qp, const struct step *s, int type)
{
	struct ibv_qp_attr attr = good_attr(e, qp);
	int required = s->required[type], optional = s->optional[type];

	CHECK_EQ(qp->state, s->from);
	attr.qp_state = s->to;
	for (int bit = 1; bit <= IBV_QP_RATE_LIMIT; bit <<= 1) {
		if (bit == IBV_QP_STATE)
			continue;
		if (required & bit)
			refused(qp, &attr, IBV_QP_STATE | (required & ~bit));
		else if (!(optional & bit) && !(bit == IBV_QP_CUR_STATE &&
						(s->to == IBV_QPS_RESET || s->to == IBV_QPS_ERR)))
			refused(qp, &attr, IBV_QP_STATE | required | bit);
	}
	/* The state it is said to be in is not the one it is in. */
	attr.cur_qp_state = s->from == IBV_QPS_RTS ? IBV_QPS_RTR : IBV_QPS_RTS;
	refused(qp, &attr, IBV_QP_STATE | required | IBV_QP_CUR_STATE);
	attr.cur_qp_state = s->from;
	CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | required | optional), 0);
	CHECK_EQ(qp->state, s->to);
	CHECK_EQ(state_of(qp), s->to);
}

static struct ibv_qp *make(const struct env *e, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp *qp;

	init.qp_type = type;
	qp = ibv_create_qp(e->pd, &init);
	CHECK(qp);
	CHECK_EQ(qp->state, IBV_QPS_RESET);
	return qp;
}

static void attributes(const struct env *e)
{
	for (int type = 0; type < TYPES; type++) {
		struct ibv_qp *qp = make(e, types[type]);

		for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
			take(e, qp, &steps[i], type);
		CHECK_EQ(ibv_destroy_qp(qp), 0);
	}
}

/* Brings a QP from RESET to a state. */
static void bring(const struct env *e, struct ibv_qp *qp, int type, enum ibv_qp_state state)
{
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && qp->state != state; i++) {
		struct ibv_qp_attr attr = good_attr(e, qp);

		if (qp->state != steps[i].from || steps[i].from == steps[i].to)
			continue;
		attr.qp_state = steps[i].to;
		CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | steps[i].required[type]), 0);
	}
	CHECK_EQ(qp->state, state);
}

/* Of all pairs of states only those of the table, and RESET and ERR from anywhere. */
static void transitions(const struct env *e)
{
	static const enum ibv_qp_state from[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
						 IBV_QPS_RTS,	IBV_QPS_SQD,  IBV_QPS_ERR};

	for (int type = 0; type < TYPES; type++) {
		struct ibv_qp *qp = make(e, types[type]);

		for (size_t f = 0; f < sizeof(from) / sizeof(from[0]); f++) {
			for (int to = IBV_QPS_RESET; to <= IBV_QPS_UNKNOWN; to++) {
				struct ibv_qp_attr attr;
				bool known = to == IBV_QPS_RESET || to == IBV_QPS_ERR;
				int mask = IBV_QP_STATE;

				to_state(qp, IBV_QPS_RESET);
				bring(e, qp, type, from[f]);
				for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
					if ((int)steps[i].from != (int)from[f] ||
					    (int)steps[i].to != to)
						continue;
					known = true;
					mask |= steps[i].required[type];
				}
				attr = good_attr(e, qp);
				attr.qp_state = (enum ibv_qp_state)to;
				if (to == IBV_QPS_SQD && from[f] == IBV_QPS_SQD)
					continue;
				if (known)
					CHECK_EQ(ibv_modify_qp(qp, &attr, mask), 0);
				else
					refused(qp, &attr, mask);
			}
		}
		CHECK_EQ(ibv_destroy_qp(qp), 0);
	}
}

/* One value too far, in the step that takes it. */
static void values(const struct env *e)
{
	struct ibv_device_attr dev;
	struct ibv_qp *qp = make(e, IBV_QPT_RC);
	struct ibv_qp_attr a;
	struct ibv_port_attr port;

	CHECK_EQ(ibv_query_device(e->ctx, &dev), 0);
	CHECK_EQ(ibv_query_port(e->ctx, 1, &port), 0);
	CHECK(port.flags & IBV_QPF_GRH_REQUIRED);
#define BAD(to, mask, change)                           \
	do {                                            \
		a = good_attr(e, qp);                   \
		a.qp_state = to;                        \
		change;                                 \
		refused(qp, &a, IBV_QP_STATE | (mask)); \
	} while (0)
	BAD(IBV_QPS_INIT, INIT_C, a.port_num = 0);
	BAD(IBV_QPS_INIT, INIT_C, a.port_num = 2);
	BAD(IBV_QPS_INIT, INIT_C, a.pkey_index = port.pkey_tbl_len);
	BAD(IBV_QPS_INIT, INIT_C, a.qp_access_flags = 1u << 30);
	bring(e, qp, RC, IBV_QPS_INIT);
	BAD(IBV_QPS_RTR, RTR_RC, a.ah_attr.is_global = 0);
	BAD(IBV_QPS_RTR, RTR_RC, a.ah_attr.port_num = 2);
	BAD(IBV_QPS_RTR, RTR_RC, a.ah_attr.grh.sgid_index = 0); /* IPv6, but dgid is IPv4 */
	BAD(IBV_QPS_RTR, RTR_RC, a.ah_attr.grh.sgid_index = 255);
	BAD(IBV_QPS_RTR, RTR_RC, a.ah_attr.grh.sgid_index = (uint8_t)port.gid_tbl_len);
	BAD(IBV_QPS_RTR, RTR_RC, a.path_mtu = 0);
	BAD(IBV_QPS_RTR, RTR_RC, a.path_mtu = port.active_mtu + 1);
	BAD(IBV_QPS_RTR, RTR_RC, a.dest_qp_num = 1u << 24);
	BAD(IBV_QPS_RTR, RTR_RC, a.max_dest_rd_atomic = (uint8_t)(dev.max_qp_rd_atom + 1));
	BAD(IBV_QPS_RTR, RTR_RC, a.min_rnr_timer = 32);
	bring(e, qp, RC, IBV_QPS_RTR);
	BAD(IBV_QPS_RTS, RTS_RC, a.timeout = 32);
	BAD(IBV_QPS_RTS, RTS_RC, a.retry_cnt = 8);
	BAD(IBV_QPS_RTS, RTS_RC, a.rnr_retry = 8);
	BAD(IBV_QPS_RTS, RTS_RC, a.max_rd_atomic = (uint8_t)(dev.max_qp_init_rd_atom + 1));
	bring(e, qp, RC, IBV_QPS_RTS);
#undef BAD
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

/* What was set can be asked for; RESET forgets it. */
static void query(const struct env *e)
{
	struct ibv_qp *qp = make(e, IBV_QPT_RC);
	struct ibv_qp_attr want, got;
	struct ibv_qp_init_attr init;

	bring(e, qp, RC, IBV_QPS_RTS);
	want = good_attr(e, qp);
	CHECK_EQ(ibv_query_qp(qp, &got, -1 & ((IBV_QP_RATE_LIMIT << 1) - 1), &init), 0);
	CHECK_EQ(got.qp_state, IBV_QPS_RTS);
	CHECK_EQ(got.cur_qp_state, IBV_QPS_RTS);
	CHECK_EQ(got.path_mtu, want.path_mtu);
	CHECK_EQ(got.dest_qp_num, want.dest_qp_num);
	CHECK_EQ(got.rq_psn, want.rq_psn);
	CHECK_EQ(got.sq_psn, want.sq_psn);
	CHECK_EQ(got.qp_access_flags, want.qp_access_flags);
	CHECK_EQ(got.max_rd_atomic, want.max_rd_atomic);
	CHECK_EQ(got.max_dest_rd_atomic, want.max_dest_rd_atomic);
	CHECK_EQ(got.min_rnr_timer, want.min_rnr_timer);
	CHECK_EQ(got.port_num, want.port_num);
	CHECK_EQ(got.timeout, want.timeout);
	CHECK_EQ(got.retry_cnt, want.retry_cnt);
	CHECK_EQ(got.rnr_retry, want.rnr_retry);
	CHECK_EQ(got.ah_attr.grh.hop_limit, 3);
	CHECK_EQ(got.ah_attr.grh.sgid_index, 1);
	CHECK(!memcmp(&got.ah_attr.grh.dgid, &e->gid, sizeof(e->gid)));
	CHECK_EQ(init.qp_type, IBV_QPT_RC);
	CHECK(init.send_cq == e->cq && init.recv_cq == e->cq && !init.srq);
	CHECK(init.cap.max_send_wr >= 16 && got.cap.max_send_wr == init.cap.max_send_wr);
	to_state(qp, IBV_QPS_RESET);
	CHECK_EQ(ibv_query_qp(qp, &got, IBV_QP_STATE, &init), 0);
	CHECK_EQ(got.dest_qp_num, 0);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

/* Capabilities: at least what was asked for, or EINVAL; a SRQ only where it may be. */
static void creating(const struct env *e)
{
	struct ibv_device_attr dev;
	uint32_t last = 0;

	CHECK_EQ(ibv_query_device(e->ctx, &dev), 0);
	for (unsigned int wr = 0; wr <= 40; wr += 5) {
		struct ibv_qp_init_attr init = env_qp_attr(e);
		struct ibv_qp *qp;

		init.cap = (struct ibv_qp_cap){wr, wr + 1, wr % 4, 1 + wr % 3, 2 * wr};
		init.qp_context = &init;
		qp = ibv_create_qp(e->pd, &init);
		CHECK(qp);
		CHECK(init.cap.max_send_wr >= wr && init.cap.max_recv_wr >= wr + 1);
		CHECK(init.cap.max_send_sge >= wr % 4 && init.cap.max_recv_sge >= 1 + wr % 3);
		CHECK(init.cap.max_inline_data >= 2 * wr);
		CHECK(qp->qp_num > 1 && qp->qp_num < 0xffffff && qp->qp_num != last);
		last = qp->qp_num;
		CHECK(qp->qp_context == &init && qp->pd == e->pd && qp->send_cq == e->cq);
		CHECK(qp->recv_cq == e->cq && !qp->srq && qp->qp_type == IBV_QPT_RC);
		CHECK_EQ(ibv_destroy_qp(qp), 0);
	}
#define BAD(change, error)                                     \
	do {                                                   \
		struct ibv_qp_init_attr init = env_qp_attr(e); \
                                                               \
		change;                                        \
		errno = 0;                                     \
		CHECK(!ibv_create_qp(e->pd, &init));           \
		CHECK_EQ(errno, error);                        \
	} while (0)
	BAD(init.cap.max_send_wr = (uint32_t)dev.max_qp_wr + 1, EINVAL);
	BAD(init.cap.max_recv_wr = (uint32_t)dev.max_qp_wr + 1, EINVAL);
	BAD(init.cap.max_send_wr = UINT32_MAX, EINVAL);
	BAD(init.cap.max_send_sge = (uint32_t)dev.max_sge + 1, EINVAL);
	BAD(init.cap.max_recv_sge = (uint32_t)dev.max_sge + 1, EINVAL);
	BAD(init.cap.max_inline_data = 1u << 20, EINVAL);
	BAD(init.qp_type = IBV_QPT_DRIVER, EOPNOTSUPP);
	BAD(init.send_cq = NULL, EINVAL);
	BAD(init.recv_cq = NULL, EINVAL);
#undef BAD
}

int main(void)
{
	struct env e;

	env_open(&e);
	attributes(&e);
	transitions(&e);
	values(&e);
	query(&e);
	creating(&e);
	env_close(&e);
	return 0;
}
