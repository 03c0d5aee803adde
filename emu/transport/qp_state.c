/* SPDX-License-Identifier: BSD-2-Clause */
/* QP states: which transition takes which attributes (ibv_modify_qp(3); IBTA 10.3.1, 11.2.5.2). */
#include "internal.h"

#include <assert.h>

#define STATES (IBV_QPS_ERR + 1)

static const char *const state_names[STATES] = {
	[IBV_QPS_RESET] = "RESET", [IBV_QPS_INIT] = "INIT", [IBV_QPS_RTR] = "RTR",
	[IBV_QPS_RTS] = "RTS",	   [IBV_QPS_SQD] = "SQD",   [IBV_QPS_SQE] = "SQE",
	[IBV_QPS_ERR] = "ERR",
};
static_assert(sizeof(state_names) / sizeof(state_names[0]) == IBV_QPS_ERR + 1, "one name a state");

const char *qp_state_name(enum ibv_qp_state state)
{
	return (unsigned int)state < STATES ? state_names[state] : "UNKNOWN";
}

enum { RC, UC, UD, XRC_SEND, XRC_RECV, SERVICES };

struct transition {
	bool valid;
	int required[SERVICES];
	int optional[SERVICES];
};

#define RTS_OPTIONAL_RC                                                                     \
	(IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | \
	 IBV_QP_MIN_RNR_TIMER)
#define RTS_OPTIONAL_UC \
	(IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE)
/* A XRC QP has what belongs to its half of a connection. */
#define RTS_OPTIONAL_XRC_SEND RTS_OPTIONAL_UC
#define RTS_OPTIONAL_XRC_RECV RTS_OPTIONAL_RC
#define RTS_OPTIONAL_UD (IBV_QP_CUR_STATE | IBV_QP_QKEY)

/* Moves to RESET and ERR are valid from everywhere and take nothing; they are not in the table. */
static const struct transition transitions[STATES][STATES] = {
	[IBV_QPS_RESET][IBV_QPS_INIT] =
		{
			.valid = true,
			.required = {IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
				     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
				     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
				     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
				     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
		},
	[IBV_QPS_INIT][IBV_QPS_INIT] =
		{
			.valid = true,
			.optional = {IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
				     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
				     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
				     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
				     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
		},
	[IBV_QPS_INIT][IBV_QPS_RTR] =
		{
			.valid = true,
			.required = {IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
				     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
				     0,
				     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
				     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
			.optional = {IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
				     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
				     IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
				     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
				     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
		},
	[IBV_QPS_RTR][IBV_QPS_RTS] =
		{
			.valid = true,
			.required = {IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
				     IBV_QP_SQ_PSN, IBV_QP_SQ_PSN,
				     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
				     IBV_QP_TIMEOUT | IBV_QP_SQ_PSN},
			.optional = {RTS_OPTIONAL_RC | IBV_QP_RATE_LIMIT,
				     RTS_OPTIONAL_UC | IBV_QP_RATE_LIMIT,
				     RTS_OPTIONAL_UD | IBV_QP_RATE_LIMIT,
				     RTS_OPTIONAL_XRC_SEND | IBV_QP_RATE_LIMIT,
				     RTS_OPTIONAL_XRC_RECV},
		},
	[IBV_QPS_RTS][IBV_QPS_RTS] =
		{
			.valid = true,
			.optional = {RTS_OPTIONAL_RC | IBV_QP_RATE_LIMIT,
				     RTS_OPTIONAL_UC | IBV_QP_RATE_LIMIT,
				     RTS_OPTIONAL_UD | IBV_QP_RATE_LIMIT,
				     RTS_OPTIONAL_XRC_SEND | IBV_QP_RATE_LIMIT,
				     RTS_OPTIONAL_XRC_RECV},
		},
	[IBV_QPS_RTS][IBV_QPS_SQD] =
		{
			.valid = true,
			.optional = {IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY,
				     IBV_QP_EN_SQD_ASYNC_NOTIFY,
				     IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY},
		},
	[IBV_QPS_SQD][IBV_QPS_RTS] =
		{
			.valid = true,
			.optional = {RTS_OPTIONAL_RC, RTS_OPTIONAL_UC, RTS_OPTIONAL_UD,
				     RTS_OPTIONAL_XRC_SEND, RTS_OPTIONAL_XRC_RECV},
		},
	[IBV_QPS_SQD][IBV_QPS_SQD] =
		{
			.valid = true,
			.optional = {IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH |
					     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX |
					     IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE,
				     IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS |
					     IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE,
				     IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
				     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
					     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS |
					     IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE,
				     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH |
					     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX |
					     IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
		},
	[IBV_QPS_SQE][IBV_QPS_RTS] =
		{
			.valid = true,
			.optional = {0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS,
				     IBV_QP_CUR_STATE | IBV_QP_QKEY},
		},
};

/* An address vector must name this port, a GID of it, and one of the same family to go to. */
static bool av_is_good(const struct device *dev, const struct ibv_ah_attr *ah)
{
	const struct gid_entry *own = device_gid(dev, ah->grh.sgid_index);

	return ah->port_num == 1 && ah->is_global && own &&
	       gid_is_ipv4(ah->grh.dgid.raw) == gid_is_ipv4(own->raw);
}

/* @return whether the attributes given have values the device allows */
static bool values_are_good(const struct device *dev, const struct ibv_qp_attr *a, int mask)
{
	/* Any a MR can have: programs use one set for both. Only the remote rights mean something.
	 */
	const unsigned int access =
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |
		IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE |
		VERNIC_ACCESS_FLUSH;

	return !((mask & IBV_QP_PORT && a->port_num != 1) ||
		 (mask & IBV_QP_PKEY_INDEX && a->pkey_index >= dev->port_attr.pkey_tbl_len) ||
		 (mask & IBV_QP_ACCESS_FLAGS && a->qp_access_flags & ~access) ||
		 (mask & IBV_QP_AV && !av_is_good(dev, &a->ah_attr)) ||
		 (mask & IBV_QP_PATH_MTU &&
		  (a->path_mtu < IBV_MTU_256 || a->path_mtu > dev->port_attr.active_mtu)) ||
		 (mask & IBV_QP_DEST_QPN && a->dest_qp_num & ~QPN_MASK) ||
		 (mask & IBV_QP_MAX_QP_RD_ATOMIC &&
		  a->max_rd_atomic > dev->attr.max_qp_init_rd_atom) ||
		 (mask & IBV_QP_MAX_DEST_RD_ATOMIC &&
		  a->max_dest_rd_atomic > dev->attr.max_qp_rd_atom) ||
		 (mask & IBV_QP_MIN_RNR_TIMER && a->min_rnr_timer > 31) ||
		 (mask & IBV_QP_TIMEOUT && a->timeout > 31) ||
		 (mask & IBV_QP_RETRY_CNT && a->retry_cnt > 7) ||
		 (mask & IBV_QP_RNR_RETRY && a->rnr_retry > 7) ||
		 (mask & IBV_QP_RATE_LIMIT && a->rate_limit > VERNIC_MAX_RATE) ||
		 (mask & IBV_QP_ALT_PATH) || /* no second port to migrate to */
		 (mask & IBV_QP_PATH_MIG_STATE && a->path_mig_state != IBV_MIG_MIGRATED));
}

int qp_state_mask(const struct qp *qp, int mask)
{
	switch (qp->p.type) {
	case IBV_QPT_XRC_SEND:
		return mask & ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	case IBV_QPT_XRC_RECV:
		return mask & ~(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
	default:
		return mask;
	}
}

int qp_state_check(const struct qp *qp, const struct ibv_qp_attr *attr, int mask,
		   enum ibv_qp_state *next)
{
	static const uint8_t services[] = {
		[IBV_QPT_RC] = RC,
		[IBV_QPT_UC] = UC,
		[IBV_QPT_UD] = UD,
		[IBV_QPT_XRC_SEND] = XRC_SEND,
		[IBV_QPT_XRC_RECV] = XRC_RECV,
	};
	int service = services[qp->p.type];
	const struct transition *t;
	int given = mask & ~IBV_QP_STATE;

	*next = mask & IBV_QP_STATE ? attr->qp_state : qp->state;
	if ((unsigned int)*next >= STATES)
		return -EINVAL;
	if (mask & IBV_QP_CUR_STATE && attr->cur_qp_state != qp->state)
		return -EINVAL;
	if (mask & IBV_QP_STATE && (*next == IBV_QPS_RESET || *next == IBV_QPS_ERR))
		return given & ~IBV_QP_CUR_STATE ? -EINVAL : 0;
	t = &transitions[qp->state][*next];
	if (!t->valid || (given & t->required[service]) != t->required[service] ||
	    given & ~(t->required[service] | t->optional[service]))
		return -EINVAL;
	return values_are_good(qp->p.dev, attr, given) ? 0 : -EINVAL;
}
