// SPDX-License-Identifier: BSD-2-Clause
/* Receive WQs and indirection tables: states, posting, flushing, who may go before whom. */
#include "common.h"

static struct env e;

static int post(struct ibv_wq *wq, uint64_t wr_id)
{
	struct ibv_sge sge = sge_at(&e, 0, 64);
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad = NULL;
	int error = ibv_post_wq_recv(wq, &wr, &bad);

	CHECK(!error || bad == &wr);
	return error;
}

static int move(struct ibv_wq *wq, enum ibv_wq_state state)
{
	struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = state};
	int error = ibv_modify_wq(wq, &attr);

	if (!error)
		CHECK_EQ(wq->state, state);
	return error;
}

static struct ibv_wq *create(uint32_t max_wr, uint32_t max_sge)
{
	struct ibv_wq_init_attr attr = {
		.wq_context = &e,
		.wq_type = IBV_WQT_RQ,
		.max_wr = max_wr,
		.max_sge = max_sge,
		.pd = e.pd,
		.cq = e.cq,
	};
	struct ibv_wq *wq = ibv_create_wq(e.ctx, &attr);

	if (wq)
		CHECK(attr.max_wr >= max_wr && attr.max_sge >= max_sge);
	return wq;
}

/* States, and what becomes of posted receives in each. */
static void states(void)
{
	struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_STATE,
				   .wq_state = IBV_WQS_RDY,
				   .curr_wq_state = IBV_WQS_ERR};
	struct ibv_wq *wq = create(8, 1);
	struct ibv_wc wc[9];

	CHECK(wq);
	CHECK(wq->wq_context == &e && wq->pd == e.pd && wq->cq == e.cq && wq->wq_num);
	CHECK_EQ(wq->state, IBV_WQS_RESET);
	CHECK_EQ(post(wq, 0), EINVAL);
	CHECK_EQ(ibv_modify_wq(wq, &attr), EINVAL); /* it is not in ERR */
	CHECK_EQ(move(wq, IBV_WQS_ERR), EINVAL);
	CHECK_EQ(move(wq, IBV_WQS_RDY), 0);
	for (uint64_t i = 0; i < 8; i++)
		CHECK_EQ(post(wq, i), 0);
	CHECK_EQ(post(wq, 8), ENOMEM);
	expect_empty(e.cq);
	CHECK_EQ(move(wq, IBV_WQS_ERR), 0);
	wait_wc(e.cq, 8, wc);
	for (uint64_t i = 0; i < 8; i++) {
		CHECK_EQ(wc[i].status, IBV_WC_WR_FLUSH_ERR);
		CHECK_EQ(wc[i].wr_id, i);
		CHECK_EQ(wc[i].qp_num, wq->wq_num);
	}
	/* In ERR what is posted is flushed; from there the way is by RESET. */
	CHECK_EQ(post(wq, 9), 0);
	wait_wc(e.cq, 1, wc);
	CHECK_EQ(wc[0].status, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(wc[0].wr_id, 9);
	CHECK_EQ(move(wq, IBV_WQS_RDY), EINVAL);
	/* RESET empties the queue, and the CQ of what is the queue's. */
	CHECK_EQ(post(wq, 10), 0);
	CHECK_EQ(move(wq, IBV_WQS_RESET), 0);
	expect_empty(e.cq);
	CHECK_EQ(move(wq, IBV_WQS_RDY), 0);
	for (uint64_t i = 0; i < 8; i++)
		CHECK_EQ(post(wq, i), 0);
	CHECK_EQ(ibv_destroy_wq(wq), 0);
	expect_empty(e.cq);
}

static void refused(void)
{
	struct ibv_wq_init_attr attr = {
		.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = e.pd, .cq = e.cq};
	struct ibv_device_attr dattr;

	CHECK_EQ(ibv_query_device(e.ctx, &dattr), 0);
	CHECK(!create((uint32_t)dattr.max_qp_wr + 1, 1));
	CHECK_EQ(errno, EINVAL);
	CHECK(!create(1, (uint32_t)dattr.max_sge + 1));
	CHECK_EQ(errno, EINVAL);
	attr.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
	attr.create_flags = IBV_WQ_FLAGS_CVLAN_STRIPPING;
	CHECK(!ibv_create_wq(e.ctx, &attr));
	CHECK_EQ(errno, EOPNOTSUPP);
}

static void tables(void)
{
	struct ibv_wq *wq[3] = {create(4, 1), create(4, 1), NULL};
	struct ibv_rwq_ind_table_init_attr attr = {.log_ind_tbl_size = 1, .ind_tbl = wq};
	struct ibv_rwq_ind_table *table;
	struct ibv_device_attr_ex dattr;

	CHECK_EQ(ibv_query_device_ex(e.ctx, NULL, &dattr), 0);
	CHECK(dattr.max_wq_type_rq > 0 && dattr.rss_caps.max_rwq_indirection_table_size >= 2);
	CHECK(wq[0] && wq[1] && wq[0]->wq_num != wq[1]->wq_num);
	table = ibv_create_rwq_ind_table(e.ctx, &attr);
	CHECK(table);
	CHECK_EQ(ibv_destroy_wq(wq[0]), EBUSY);
	CHECK_EQ(ibv_destroy_rwq_ind_table(table), 0);
	attr.log_ind_tbl_size = 2;
	CHECK(!ibv_create_rwq_ind_table(e.ctx, &attr));
	CHECK_EQ(errno, EINVAL);
	attr.log_ind_tbl_size = 31;
	CHECK(!ibv_create_rwq_ind_table(e.ctx, &attr));
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(ibv_destroy_cq(e.cq), EBUSY);
	CHECK_EQ(ibv_dealloc_pd(e.pd), EBUSY);
	CHECK_EQ(ibv_destroy_wq(wq[0]), 0);
	CHECK_EQ(ibv_destroy_wq(wq[1]), 0);
}

int main(void)
{
	env_open(&e);
	states();
	refused();
	tables();
	env_close(&e);
	return 0;
}
