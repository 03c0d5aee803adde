// SPDX-License-Identifier: BSD-2-Clause
/*
 * Fault post: posting fails with the errno of the rule, from the WR it strikes on, which bad_wr
 * names; by opcode, QP and count; receives and SRQs; the work request API; with rules that come and
 * go while QPs live.
 */
#include "faults.h"

/* A list of n WRs to side b. @return what posting returned; *bad: the index of bad_wr, or n */
static int post_list(struct link *l, struct ibv_qp *qp, const enum ibv_wr_opcode *opcodes, int n,
		     int *bad)
{
	struct ibv_sge sge = sge_at(&l->a.e, 0, 8);
	struct ibv_send_wr wr[8], *bad_wr = NULL;
	int error;

	for (int i = 0; i < n; i++) {
		wr[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i,
					     .next = i + 1 < n ? &wr[i + 1] : NULL,
					     .sg_list = &sge,
					     .num_sge = 1,
					     .opcode = opcodes[i],
					     .send_flags = IBV_SEND_SIGNALED};
		wr[i].wr.rdma.remote_addr = (uintptr_t)l->b.e.buf;
		wr[i].wr.rdma.rkey = l->b.e.mr->rkey;
	}
	error = ibv_post_send(qp, wr, &bad_wr);
	*bad = bad_wr ? (int)(bad_wr - wr) : n;
	return error;
}

static void sends(struct link *l, struct ibv_qp *a, struct ibv_qp *other)
{
	static const enum ibv_wr_opcode writes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE,
						    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE};
	static const enum ibv_wr_opcode mixed[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE,
						   IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE};
	uint32_t id, second;
	int bad;

	/* The third, once. Those before it are posted, and those behind it are not. */
	id = fault_add(&l->a, "post=ENOMEM,qp=%u,skip=2,count=1", a->qp_num);
	CHECK_EQ(post_list(l, other, writes, 4, &bad), 0);
	for (uint64_t i = 0; i < 4; i++)
		expect_wc(&l->a, i, IBV_WC_SUCCESS);
	errno = 0;
	CHECK_EQ(post_list(l, a, writes, 4, &bad), ENOMEM);
	CHECK_EQ(bad, 2);
	CHECK_EQ(errno, 0);
	expect_wc(&l->a, 0, IBV_WC_SUCCESS);
	expect_wc(&l->a, 1, IBV_WC_SUCCESS);
	expect_empty(l->a.e.cq);
	/* Another rule; the first one has struck and does not do so again. By opcode. */
	second = fault_add(&l->a, "post=EAGAIN,device=%s,opcode=read",
			   ibv_get_device_name(l->a.e.ctx->device));
	CHECK_EQ(post_list(l, a, mixed, 4, &bad), EAGAIN);
	CHECK_EQ(bad, 2);
	expect_wc(&l->a, 0, IBV_WC_SUCCESS);
	expect_wc(&l->a, 1, IBV_WC_SUCCESS);
	fault_clear(&l->a, id);
	CHECK_EQ(post_list(l, a, mixed + 2, 1, &bad), EAGAIN);
	CHECK_EQ(bad, 0);
	fault_clear(&l->a, second);
	CHECK_EQ(post_list(l, a, mixed, 4, &bad), 0);
	for (uint64_t i = 0; i < 4; i++)
		expect_wc(&l->a, i, IBV_WC_SUCCESS);
	/* Of another QP, or of receives: no concern of it. */
	fault_add(&l->a, "post=EIO,qp=%u", other->qp_num);
	fault_add(&l->a, "post=EIO,dir=recv");
	CHECK_EQ(post_list(l, a, writes, 4, &bad), 0);
	for (uint64_t i = 0; i < 4; i++)
		expect_wc(&l->a, i, IBV_WC_SUCCESS);
	fault_clear(&l->a, 0);
}

/* Every second one, over many calls; the queue never leaks a slot. */
static void often(struct link *l, struct ibv_qp *a)
{
	unsigned long counts[2];
	int failed = 0;
	uint32_t id;

	id = fault_add(&l->a, "post=ENOMEM,qp=%u,nth=2", a->qp_num);
	for (uint64_t i = 0; i < 100; i++) {
		int error = link_post(l, a, IBV_WR_RDMA_WRITE, i, 200, IBV_SEND_SIGNALED);

		CHECK(error == 0 || error == ENOMEM);
		if (error)
			failed++;
		else
			expect_wc(&l->a, i, IBV_WC_SUCCESS);
	}
	CHECK_EQ(failed, 50);
	/* The list knows, whatever rules come and go. */
	fault_clear(&l->a, fault_add(&l->a, "post=EINVAL,dir=recv"));
	fault_counts(&l->a, id, counts);
	CHECK_EQ(counts[0], 100);
	CHECK_EQ(counts[1], 50);
	fault_clear(&l->a, 0);
}

static int post_recv_list(struct link *l, struct ibv_qp *qp, struct ibv_srq *srq, int *bad)
{
	struct ibv_sge sge = sge_at(&l->b.e, 0, 8);
	struct ibv_recv_wr wr[3], *bad_wr = NULL;
	int error;

	for (int i = 0; i < 3; i++)
		wr[i] = (struct ibv_recv_wr){.wr_id = (uint64_t)i,
					     .next = i < 2 ? &wr[i + 1] : NULL,
					     .sg_list = &sge,
					     .num_sge = 1};
	error = srq ? ibv_post_srq_recv(srq, wr, &bad_wr) : ibv_post_recv(qp, wr, &bad_wr);
	*bad = bad_wr ? (int)(bad_wr - wr) : 3;
	return error;
}

/* Receives, of a QP and of a SRQ that is there before the rule or comes behind it. */
static void receives(struct link *l, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *before = ibv_create_srq(l->b.e.pd, &init), *behind;
	int bad;

	CHECK(before);
	fault_add(&l->b, "post=ENOMEM,dir=recv,skip=1,count=1");
	behind = ibv_create_srq(l->b.e.pd, &init);
	CHECK(behind);
	CHECK_EQ(post_recv_list(l, b, NULL, &bad), ENOMEM);
	CHECK_EQ(bad, 1);
	CHECK_EQ(post_recv_list(l, NULL, before, &bad), ENOMEM);
	CHECK_EQ(bad, 1);
	CHECK_EQ(post_recv_list(l, NULL, behind, &bad), ENOMEM);
	CHECK_EQ(bad, 1);
	CHECK_EQ(post_recv_list(l, b, NULL, &bad), 0);
	fault_clear(&l->b, 0);
	/* 1 + 3 receives are there. */
	for (int i = 0; i < 4; i++) {
		CHECK_EQ(link_post(l, a, IBV_WR_SEND, 9, 8, IBV_SEND_SIGNALED), 0);
		expect_wc(&l->a, 9, IBV_WC_SUCCESS);
		expect_wc(&l->b, i ? (uint64_t)i - 1 : 0, IBV_WC_SUCCESS);
	}
	CHECK_EQ(ibv_destroy_srq(before), 0);
	CHECK_EQ(ibv_destroy_srq(behind), 0);
}

/* ibv_wr_*: the whole batch fails. And a QP that is made while there is a rule. */
static void work_request_api(struct link *l)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = l->a.e.cq,
		.recv_cq = l->a.e.cq,
		.cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = l->a.e.pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ,
		.sq_sig_all = 1,
	};
	struct ibv_qp *a, *b = link_qp(&l->b, IBV_QPT_RC);
	struct ibv_qp_ex *ex;
	unsigned long counts[2];
	uint32_t id;

	id = fault_add(&l->a, "post=EBUSY,opcode=read");
	a = ibv_create_qp_ex(l->a.e.ctx, &attr);
	CHECK(a);
	ex = ibv_qp_to_qp_ex(a);
	link_connect(l, a, b, &timing_default);
	for (int read = 1; read >= 0; read--) {
		ibv_wr_start(ex);
		for (int i = 0; i < 3; i++) {
			ex->wr_id = (uint64_t)i;
			if (read && i == 1)
				ibv_wr_rdma_read(ex, l->b.e.mr->rkey, (uintptr_t)l->b.e.buf);
			else
				ibv_wr_rdma_write(ex, l->b.e.mr->rkey, (uintptr_t)l->b.e.buf);
			ibv_wr_set_sge(ex, l->a.e.mr->lkey, (uintptr_t)l->a.e.buf, 8);
		}
		CHECK_EQ(ibv_wr_complete(ex), read ? EBUSY : 0);
		if (read)
			expect_empty(l->a.e.cq);
	}
	for (uint64_t i = 0; i < 3; i++)
		expect_wc(&l->a, i, IBV_WC_SUCCESS);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	fault_counts(&l->a, id, counts);
	CHECK_EQ(counts[0], 1);
	CHECK_EQ(counts[1], 1);
	fault_clear(&l->a, 0);
}

int main(int argc, char **argv)
{
	struct ibv_qp *a, *b, *other, *other_peer;
	struct link l;

	link_open(&l, argc, argv);
	a = link_qp(&l.a, IBV_QPT_RC);
	b = link_qp(&l.b, IBV_QPT_RC);
	other = link_qp(&l.a, IBV_QPT_RC);
	other_peer = link_qp(&l.b, IBV_QPT_RC);
	link_connect(&l, a, b, &timing_default);
	link_connect(&l, other, other_peer, &timing_default);
	sends(&l, a, other);
	often(&l, a);
	receives(&l, a, b);
	work_request_api(&l);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(ibv_destroy_qp(other), 0);
	CHECK_EQ(ibv_destroy_qp(other_peer), 0);
	link_close(&l);
	return 0;
}
