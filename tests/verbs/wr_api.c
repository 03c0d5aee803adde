// SPDX-License-Identifier: BSD-2-Clause
/*
 * The work request API (ibv_wr_post(3)): what each builder and setter sends, and that a batch with
 * an error, or aborted, sends nothing.
 */
#include <arpa/inet.h>
#include <stddef.h>

#include "common.h"

#define OPS_RC                                                                            \
	(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | \
	 IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |                  \
	 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)

static struct env e;
static struct ibv_qp *a, *b;
static struct ibv_qp_ex *ex;

static struct ibv_qp *create(enum ibv_qp_type type, uint64_t ops)
{
	struct ibv_qp_init_attr base = env_qp_attr(&e);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = e.cq,
		.recv_cq = e.cq,
		.cap = base.cap,
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = e.pd,
		.send_ops_flags = ops,
	};

	return ibv_create_qp_ex(e.ctx, &attr);
}

/* Completes a batch of one: the sender's completion, or with_recv the receiver's. */
static struct ibv_wc finish(int with_recv)
{
	struct ibv_wc wc[2], *recv;

	CHECK_EQ(ibv_wr_complete(ex), 0);
	wait_wc(e.cq, with_recv ? 2 : 1, wc);
	for (int i = 0; i <= with_recv; i++)
		CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
	if (!with_recv) {
		CHECK_EQ(wc[0].wr_id, 100);
		return wc[0];
	}
	recv = &wc[wc[0].qp_num == b->qp_num ? 0 : 1];
	CHECK_EQ(recv->qp_num, b->qp_num);
	return *recv;
}

static void start(void)
{
	ibv_wr_start(ex);
	ex->wr_id = 100;
	ex->wr_flags = IBV_SEND_SIGNALED;
}

static void sends(void)
{
	struct ibv_sge in = sge_at(&e, 4096, 256);
	struct ibv_sge list[2] = {sge_at(&e, 0, 3), sge_at(&e, 16, 4)};
	struct ibv_data_buf bufs[3] = {{"one ", 4}, {"two ", 4}, {"three", 5}};
	char inlined[8] = "inlined";
	struct ibv_wc wc;

	memcpy(e.buf, "abc", 3);
	memcpy(e.buf + 16, "defg", 4);

	CHECK_EQ(post_recv_at(b, 1, &in), 0);
	start();
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, e.mr->lkey, (uintptr_t)e.buf, 3);
	wc = finish(1);
	CHECK_EQ(wc.byte_len, 3);
	CHECK(!memcmp(e.buf + 4096, "abc", 3));

	CHECK_EQ(post_recv_at(b, 1, &in), 0);
	start();
	ibv_wr_send_imm(ex, htonl(77));
	ibv_wr_set_sge_list(ex, 2, list);
	wc = finish(1);
	CHECK_EQ(wc.byte_len, 7);
	CHECK_EQ(ntohl(wc.imm_data), 77);
	CHECK(!memcmp(e.buf + 4096, "abcdefg", 7));

	CHECK_EQ(post_recv_at(b, 1, &in), 0);
	start();
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, inlined, 7);
	memset(inlined, 0, sizeof(inlined)); /* it was copied */
	wc = finish(1);
	CHECK_EQ(wc.byte_len, 7);
	CHECK(!memcmp(e.buf + 4096, "inlined", 7));

	CHECK_EQ(post_recv_at(b, 1, &in), 0);
	start();
	ibv_wr_send(ex);
	ibv_wr_set_inline_data_list(ex, 3, bufs);
	wc = finish(1);
	CHECK_EQ(wc.byte_len, 13);
	CHECK(!memcmp(e.buf + 4096, "one two three", 13));

	/* Without a data setter: a message of no bytes. */
	CHECK_EQ(post_recv_at(b, 1, &in), 0);
	start();
	ibv_wr_send(ex);
	wc = finish(1);
	CHECK_EQ(wc.byte_len, 0);
}

static void rdma(void)
{
	uint64_t *remote = (void *)(e.buf + 8192), *local = (void *)(e.buf + 256);
	struct ibv_wc wc;

	memcpy(e.buf, "written", 7);
	start();
	ibv_wr_rdma_write(ex, e.mr->rkey, (uintptr_t)remote);
	ibv_wr_set_sge(ex, e.mr->lkey, (uintptr_t)e.buf, 7);
	wc = finish(0);
	CHECK_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
	CHECK(!memcmp(remote, "written", 7));

	CHECK_EQ(post_recv_at(b, 1, NULL), 0);
	start();
	ibv_wr_rdma_write_imm(ex, e.mr->rkey, (uintptr_t)remote, htonl(5));
	ibv_wr_set_inline_data(ex, "inlined", 7);
	wc = finish(1);
	CHECK_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	CHECK_EQ(ntohl(wc.imm_data), 5);
	CHECK_EQ(wc.byte_len, 7);
	CHECK(!memcmp(remote, "inlined", 7));

	start();
	ibv_wr_rdma_read(ex, e.mr->rkey, (uintptr_t)remote);
	ibv_wr_set_sge(ex, e.mr->lkey, (uintptr_t)local, 7);
	wc = finish(0);
	CHECK_EQ(wc.opcode, IBV_WC_RDMA_READ);
	CHECK(!memcmp(local, "inlined", 7));

	*remote = 40;
	start();
	ibv_wr_atomic_fetch_add(ex, e.mr->rkey, (uintptr_t)remote, 2);
	ibv_wr_set_sge(ex, e.mr->lkey, (uintptr_t)local, 8);
	wc = finish(0);
	CHECK_EQ(wc.opcode, IBV_WC_FETCH_ADD);
	CHECK_EQ(*local, 40);
	CHECK_EQ(*remote, 42);
	start();
	ibv_wr_atomic_cmp_swp(ex, e.mr->rkey, (uintptr_t)remote, 42, 7);
	ibv_wr_set_sge(ex, e.mr->lkey, (uintptr_t)local, 8);
	wc = finish(0);
	CHECK_EQ(wc.opcode, IBV_WC_COMP_SWAP);
	CHECK_EQ(*local, 42);
	CHECK_EQ(*remote, 7);
}

/* A batch is posted as a whole: in order, each with its own wr_id and flags. */
static void batch(void)
{
	struct ibv_wc wc[4];

	for (uint64_t i = 0; i < 3; i++)
		CHECK_EQ(post_recv_at(b, 10 + i, NULL), 0);
	ibv_wr_start(ex);
	for (uint64_t i = 0; i < 3; i++) {
		ex->wr_id = i;
		ex->wr_flags = i == 2 ? IBV_SEND_SIGNALED : 0;
		ibv_wr_send(ex);
	}
	expect_empty(e.cq);
	CHECK_EQ(ibv_wr_complete(ex), 0);
	wait_wc(e.cq, 4, wc);
	expect_empty(e.cq);
	for (int i = 0, r = 0; i < 4; i++) {
		CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
		CHECK_EQ(wc[i].wr_id, wc[i].qp_num == b->qp_num ? 10 + r++ : 2);
	}
}

/* Nothing of a batch that is aborted, or has an error, is posted; the queue works on. */
static void nothing_posted(void)
{
	struct ibv_sge sge[3] = {sge_at(&e, 0, 1), sge_at(&e, 0, 1), sge_at(&e, 0, 1)};
	static char big[2048];
	struct ibv_wc wc[2];

	start();
	ibv_wr_send(ex);
	ibv_wr_abort(ex);

	start();
	ibv_wr_send(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 3, sge); /* max_send_sge is 2 */
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);

	start();
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, big, sizeof(big));
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);

	start();
	ibv_wr_rdma_read(ex, e.mr->rkey, (uintptr_t)e.buf);
	ibv_wr_set_inline_data(ex, big, 1);
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);

	/* Payload twice. */
	start();
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, e.mr->lkey, (uintptr_t)e.buf, 1);
	ibv_wr_set_inline_data(ex, big, 1);
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);

	/* Setters of other QP types, and before any builder. */
	start();
	ibv_wr_send(ex);
	ibv_wr_set_xrc_srqn(ex, 1);
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);
	start();
	ibv_wr_set_sge(ex, e.mr->lkey, (uintptr_t)e.buf, 1);
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);

	/* More than the queue has room for. */
	start();
	for (int i = 0; i < 1000; i++)
		ibv_wr_send(ex);
	CHECK_EQ(ibv_wr_complete(ex), ENOMEM);

	expect_empty(e.cq);
	CHECK_EQ(post_recv_at(b, 1, NULL), 0);
	CHECK_EQ(post_send_at(a, 2, NULL, IBV_SEND_SIGNALED), 0);
	wait_wc(e.cq, 2, wc);
	CHECK_EQ(wc[0].status, IBV_WC_SUCCESS);
	CHECK_EQ(wc[1].status, IBV_WC_SUCCESS);
}

/* UD: each work request wants its address. */
static void ud(void)
{
	struct ibv_ah_attr aattr = {.is_global = 1,
				    .port_num = 1,
				    .grh = {.dgid = e.gid, .sgid_index = 1, .hop_limit = 64}};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11};
	struct ibv_sge in = sge_at(&e, 4096, 256);
	struct ibv_qp *qp = create(IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
	struct ibv_ah *ah = ibv_create_ah(e.pd, &aattr);
	struct ibv_wc wc[2];

	CHECK(qp && ah);
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
		 0);
	to_state(qp, IBV_QPS_RTR);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	ex = ibv_qp_to_qp_ex(qp);
	CHECK_EQ(post_recv_at(qp, 1, &in), 0);
	start();
	ibv_wr_send_imm(ex, htonl(9));
	ibv_wr_set_inline_data(ex, "ud", 2);
	ibv_wr_set_ud_addr(ex, ah, qp->qp_num, 0x11);
	CHECK_EQ(ibv_wr_complete(ex), 0);
	wait_wc(e.cq, 2, wc);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
		if (wc[i].opcode == IBV_WC_RECV) {
			CHECK_EQ(wc[i].byte_len, 42);
			CHECK_EQ(ntohl(wc[i].imm_data), 9);
		}
	}
	CHECK(!memcmp(e.buf + 4096 + 40, "ud", 2));
	start();
	ibv_wr_send(ex);
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);
	start();
	ibv_wr_send(ex);
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, ah, qp->qp_num, 0x11);
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);
	/* What the type does not have. */
	start();
	ibv_wr_rdma_write(ex, 1, 0);
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);
	expect_empty(e.cq);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

/* Makes a and b, who can do ops. @return 0 if the device says that it cannot; nor can a QP then */
static int open_pair(uint64_t ops, int has)
{
	a = create(IBV_QPT_RC, ops);
	if (!has) {
		CHECK(!a);
		CHECK_EQ(errno, EOPNOTSUPP);
		return 0;
	}
	b = create(IBV_QPT_RC, ops);
	CHECK(a && b);
	connect_pair(&e, a, b);
	return 1;
}

static void close_pair(void)
{
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

/* Binding a window of type 2, and both ways to invalidate it. */
static void windows(void)
{
	struct ibv_mw_bind_info info = {
		.addr = (uintptr_t)e.buf, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
	struct ibv_qp *sender;
	struct ibv_device_attr dattr;
	struct ibv_mw *mw;
	struct ibv_wc wc;
	uint32_t rkey;

	CHECK_EQ(ibv_query_device(e.ctx, &dattr), 0);
	if (!open_pair(IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV |
			       IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_WRITE,
		       dattr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B))
		return;
	sender = a;
	mw = ibv_alloc_mw(e.pd, IBV_MW_TYPE_2);
	info.mr = ibv_reg_mr(e.pd, e.buf, 4096,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(mw && info.mr);
	rkey = mw->rkey;
	for (int i = 0; i < 2; i++) {
		/* b's window: b binds it, a writes through it. */
		rkey = ibv_inc_rkey(rkey);
		ex = ibv_qp_to_qp_ex(b);
		start();
		ibv_wr_bind_mw(ex, mw, rkey, &info);
		CHECK_EQ(finish(0).opcode, IBV_WC_BIND_MW);
		ex = ibv_qp_to_qp_ex(sender);
		start();
		ibv_wr_rdma_write(ex, rkey, (uintptr_t)e.buf + 8);
		ibv_wr_set_inline_data(ex, "window", 6);
		finish(0);
		CHECK(!memcmp(e.buf + 8, "window", 6));
		if (i == 0) {
			CHECK_EQ(post_recv_at(b, 1, NULL), 0);
			start();
			ibv_wr_send_inv(ex, rkey);
			wc = finish(1);
			CHECK_EQ(wc.wc_flags, IBV_WC_WITH_INV);
			CHECK_EQ(wc.invalidated_rkey, rkey);
		} else {
			ex = ibv_qp_to_qp_ex(b);
			start();
			ibv_wr_local_inv(ex, rkey);
			CHECK_EQ(finish(0).opcode, IBV_WC_LOCAL_INV);
		}
	}
	/* Neither has a payload. */
	start();
	ibv_wr_local_inv(ex, rkey);
	ibv_wr_set_sge(ex, e.mr->lkey, (uintptr_t)e.buf, 1);
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);
	/* It is gone: a write through it fails. */
	ex = ibv_qp_to_qp_ex(sender);
	start();
	ibv_wr_rdma_write(ex, rkey, (uintptr_t)e.buf);
	ibv_wr_set_inline_data(ex, "x", 1);
	CHECK_EQ(ibv_wr_complete(ex), 0);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
	close_pair();
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	CHECK_EQ(ibv_dereg_mr(info.mr), 0);
}

/* Of newer versions of <infiniband/verbs.h>. */
typedef void (*wr_flush)(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr, size_t len,
			 uint8_t type, uint8_t level);
#define FLUSH_OFFSET (offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof(wr_flush))
#define ACCESS_FLUSH_GLOBAL (1 << 8)
#define QP_EX_WITH_FLUSH (1 << 11)
#define WC_FLUSH 8
#define FLUSH_GLOBAL 1
#define FLUSH_RANGE 0

/* ATOMIC WRITE of what the program has at hand, and FLUSH behind it. */
static void place(void)
{
	const int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | ACCESS_FLUSH_GLOBAL;
	struct ibv_qp_attr attr = {.qp_access_flags = access};
	uint64_t value = 0x1122334455667788, *remote = (void *)(e.buf + 8192);
	struct ibv_device_attr_ex dattr;
	struct ibv_mr *mr;
	wr_flush flush;

	CHECK_EQ(ibv_query_device_ex(e.ctx, NULL, &dattr), 0);
	if (!open_pair(IBV_QP_EX_WITH_ATOMIC_WRITE | QP_EX_WITH_FLUSH,
		       dattr.device_cap_flags_ex >> 38 & 1))
		return;
	mr = ibv_reg_mr(e.pd, e.buf, BUF_SIZE, access | IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	CHECK_EQ(ibv_modify_qp(b, &attr, IBV_QP_ACCESS_FLAGS), 0);
	ex = ibv_qp_to_qp_ex(a);
	start();
	ibv_wr_atomic_write(ex, mr->rkey, (uintptr_t)remote, &value);
	value = 0; /* it was copied */
	CHECK_EQ(finish(0).opcode, IBV_WC_ATOMIC_WRITE);
	CHECK_EQ(*remote, 0x1122334455667788);
	memcpy(&flush, (char *)ex + FLUSH_OFFSET, sizeof(flush));
	start();
	flush(ex, mr->rkey, (uintptr_t)remote, 8, FLUSH_GLOBAL, FLUSH_RANGE);
	CHECK_EQ(finish(0).opcode, WC_FLUSH);
	start();
	flush(ex, mr->rkey, (uintptr_t)remote, 8, FLUSH_GLOBAL, FLUSH_RANGE);
	ibv_wr_set_inline_data(ex, "x", 1);
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);
	close_pair();
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

/* A QP that could not do all of send_ops_flags is not made; one without them has no such API. */
static void creation(void)
{
	struct ibv_qp_init_attr attr = env_qp_attr(&e);
	struct ibv_qp *qp;

	CHECK(!create(IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE));
	CHECK_EQ(errno, EOPNOTSUPP);
	CHECK(!create(IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ));
	CHECK_EQ(errno, EOPNOTSUPP);
	CHECK(!create(IBV_QPT_RC, IBV_QP_EX_WITH_TSO));
	CHECK_EQ(errno, EOPNOTSUPP);
	CHECK(!create(IBV_QPT_RC, UINT64_C(1) << 40));
	CHECK_EQ(errno, EOPNOTSUPP);
	CHECK(!create(IBV_QPT_DRIVER, 0));
	CHECK_EQ(errno, EOPNOTSUPP);
	qp = ibv_create_qp(e.pd, &attr);
	CHECK(qp);
	CHECK(!ibv_qp_to_qp_ex(qp));
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

int main(void)
{
	env_open(&e);
	creation();
	a = create(IBV_QPT_RC, OPS_RC);
	b = create(IBV_QPT_RC, OPS_RC);
	CHECK(a && b);
	ex = ibv_qp_to_qp_ex(a);
	CHECK(ex);
	/* Before RTS nothing is taken. */
	start();
	ibv_wr_send(ex);
	CHECK_EQ(ibv_wr_complete(ex), EINVAL);
	connect_pair(&e, a, b);
	sends();
	rdma();
	batch();
	nothing_posted();
	close_pair();
	ud();
	windows();
	place();
	env_close(&e);
	return 0;
}
