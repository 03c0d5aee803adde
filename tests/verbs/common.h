/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the test programs of this directory share: a device, a PD, a CQ, a buffer, and pairs of
 * connected QPs in one process. A failing check ends the program with a line that names it.
 */
#ifndef VERNIC_TEST_VERBS_COMMON_H
#define VERNIC_TEST_VERBS_COMMON_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <infiniband/verbs.h>

#define CHECK(cond)                                                                           \
	do {                                                                                  \
		if (!(cond)) {                                                                \
			fprintf(stderr, "%s:%d: failed: %s (errno %d)\n", __FILE__, __LINE__, \
				#cond, errno);                                                \
			exit(1);                                                              \
		}                                                                             \
	} while (0)

#define CHECK_EQ(a, b)                                                                            \
	do {                                                                                      \
		long long a_ = (long long)(a), b_ = (long long)(b);                               \
		if (a_ != b_) {                                                                   \
			fprintf(stderr, "%s:%d: %s is %lld, not %s (%lld)\n", __FILE__, __LINE__, \
				#a, a_, #b, b_);                                                  \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

#define TEST_SKIP 77
#define TEST_TIMEOUT 20 /* s for a completion to come */
#define BUF_SIZE 65536

struct env {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *buf;	   /* BUF_SIZE bytes, all rights */
	union ibv_gid gid; /* of index 1, an IPv4 address */
};

static inline void env_open(struct env *e)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	e->ctx = ibv_open_device(list[0]);
	CHECK(e->ctx);
	ibv_free_device_list(list);
	e->pd = ibv_alloc_pd(e->ctx);
	CHECK(e->pd);
	e->cq = ibv_create_cq(e->ctx, 256, NULL, NULL, 0);
	CHECK(e->cq);
	e->buf = aligned_alloc(4096, BUF_SIZE);
	CHECK(e->buf);
	memset(e->buf, 0, BUF_SIZE);
	e->mr = ibv_reg_mr(e->pd, e->buf, BUF_SIZE,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(e->mr);
	CHECK_EQ(ibv_query_gid(e->ctx, 1, 1, &e->gid), 0);
}

static inline void env_close(struct env *e)
{
	CHECK_EQ(ibv_dereg_mr(e->mr), 0);
	CHECK_EQ(ibv_destroy_cq(e->cq), 0);
	CHECK_EQ(ibv_dealloc_pd(e->pd), 0);
	CHECK_EQ(ibv_close_device(e->ctx), 0);
	free(e->buf);
}

/* Attributes of a RC QP: 16 WRs each way, 2 SGEs, 64 bytes inline. */
static inline struct ibv_qp_init_attr env_qp_attr(const struct env *e)
{
	return (struct ibv_qp_init_attr){
		.send_cq = e->cq,
		.recv_cq = e->cq,
		.cap = {.max_send_wr = 16,
			.max_recv_wr = 16,
			.max_send_sge = 2,
			.max_recv_sge = 2,
			.max_inline_data = 64},
		.qp_type = IBV_QPT_RC,
	};
}

static inline void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};

	CHECK_EQ(
		ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		0);
}

static inline void to_rtr(const struct env *e, struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = e->gid, .sgid_index = 1, .hop_limit = 64}},
	};

	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				       IBV_QP_MIN_RNR_TIMER),
		 0);
}

static inline void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
	};

	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
}

static inline void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};

	CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	CHECK_EQ(qp->state, state);
}

/* Brings two RC QPs from RESET to RTS, each the other's peer. */
static inline void connect_pair(const struct env *e, struct ibv_qp *a, struct ibv_qp *b)
{
	to_init(a);
	to_init(b);
	to_rtr(e, a, b->qp_num);
	to_rtr(e, b, a->qp_num);
	to_rts(a);
	to_rts(b);
}

/* Makes two RC QPs and connects them. @attr: out: what their capacities are */
static inline void create_pair(const struct env *e, struct ibv_qp_init_attr *attr, struct ibv_qp **a,
			       struct ibv_qp **b)
{
	*a = ibv_create_qp(e->pd, attr);
	*b = ibv_create_qp(e->pd, attr);
	CHECK(*a && *b);
	connect_pair(e, *a, *b);
}

static inline struct ibv_sge sge_at(const struct env *e, uint32_t offset, uint32_t length)
{
	return (struct ibv_sge){(uintptr_t)e->buf + offset, length, e->mr->lkey};
}

static inline int post_recv_at(struct ibv_qp *qp, uint64_t wr_id, struct ibv_sge *sge)
{
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = sge, .num_sge = sge ? 1 : 0};
	struct ibv_recv_wr *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

static inline int post_send_at(struct ibv_qp *qp, uint64_t wr_id, struct ibv_sge *sge,
			       unsigned int flags)
{
	struct ibv_send_wr wr = {.wr_id = wr_id,
				 .sg_list = sge,
				 .num_sge = sge ? 1 : 0,
				 .opcode = IBV_WR_SEND,
				 .send_flags = flags};
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static inline double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Waits for n completions. */
static inline void wait_wc(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	double end = seconds() + TEST_TIMEOUT;

	for (int got = 0, k; got < n; got += k) {
		k = ibv_poll_cq(cq, n - got, wc + got);
		CHECK(k >= 0);
		CHECK(k || seconds() < end);
	}
}

/* The CQ is empty, and stays so for 50 ms. */
static inline void expect_empty(struct ibv_cq *cq)
{
	double end = seconds() + 0.05;
	struct ibv_wc wc;

	do {
		CHECK_EQ(ibv_poll_cq(cq, 1, &wc), 0);
	} while (seconds() < end);
}

#endif
