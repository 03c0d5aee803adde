// SPDX-License-Identifier: BSD-2-Clause
/*
 * Bytes arrive where they should, by each opcode, at sizes around the small-payload limits, from
 * and to several SGEs, by ibv_post_send() and by the work request API, and by MRs with an iova.
 */
#include "common.h"

#define SRC 0
#define DST 32768
#define IOVA UINT64_C(0x100000)

static const uint32_t sizes[] = {1, 7, 8, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 9000};

static void fill(struct env *e, uint32_t size)
{
	static uint8_t seed;

	seed++;
	for (uint32_t i = 0; i < size; i++)
		e->buf[SRC + i] = (uint8_t)(seed + i * 7);
	memset(e->buf + DST, 0xee, size + 1);
}

static void expect_arrived(struct env *e, uint32_t size)
{
	CHECK(!memcmp(e->buf + SRC, e->buf + DST, size));
	CHECK_EQ(e->buf[DST + size], 0xee);
}

/* Cuts a range in two SGEs, or one where it has one byte only. */
static int split(const struct env *e, uint32_t offset, uint32_t size, struct ibv_sge sge[2])
{
	sge[0] = sge_at(e, offset, size - size / 3);
	sge[1] = sge_at(e, offset + size - size / 3, size / 3);
	return size / 3 ? 2 : 1;
}

static void expect_wc(const struct ibv_wc *wc, const struct ibv_qp *qp, uint64_t wr_id)
{
	CHECK_EQ(wc->status, IBV_WC_SUCCESS);
	CHECK_EQ(wc->wr_id, wr_id);
	CHECK_EQ(wc->qp_num, qp->qp_num);
}

/* Takes the two completions of a message, receive first in wc[0]. */
static void wait_both(struct env *e, struct ibv_wc wc[2])
{
	wait_wc(e->cq, 2, wc);
	if (!(wc[0].opcode & IBV_WC_RECV)) {
		struct ibv_wc t = wc[0];

		wc[0] = wc[1];
		wc[1] = t;
	}
}

static void send_recv(struct env *e, struct ibv_qp *a, struct ibv_qp *b, uint32_t size, int inl)
{
	struct ibv_sge out[2], in[2];
	struct ibv_recv_wr rwr = {.wr_id = 7, .sg_list = in}, *rbad;
	struct ibv_send_wr wr = {.wr_id = 8,
				 .sg_list = out,
				 .opcode = IBV_WR_SEND_WITH_IMM,
				 .imm_data = 0x12345678,
				 .send_flags = IBV_SEND_SIGNALED | (inl ? IBV_SEND_INLINE : 0)};
	struct ibv_send_wr *bad;
	struct ibv_wc wc[2];

	fill(e, size);
	rwr.num_sge = split(e, DST, size, in);
	wr.num_sge = split(e, SRC, size, out);
	if (inl)
		out[0].lkey = out[1].lkey = 0xdead;
	CHECK_EQ(ibv_post_recv(b, &rwr, &rbad), 0);
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_both(e, wc);
	expect_wc(&wc[0], b, 7);
	expect_wc(&wc[1], a, 8);
	CHECK_EQ(wc[0].opcode, IBV_WC_RECV);
	CHECK_EQ(wc[0].byte_len, size);
	CHECK(wc[0].wc_flags & IBV_WC_WITH_IMM);
	CHECK_EQ(wc[0].imm_data, 0x12345678);
	CHECK_EQ(wc[1].opcode, IBV_WC_SEND);
	expect_arrived(e, size);
}

static void rdma(struct env *e, struct ibv_qp *a, enum ibv_wr_opcode opcode, uint32_t size)
{
	struct ibv_sge sge[2];
	struct ibv_send_wr wr = {
		.wr_id = 9, .sg_list = sge, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int read = opcode == IBV_WR_RDMA_READ;

	fill(e, size);
	wr.num_sge = split(e, read ? DST : SRC, size, sge);
	wr.wr.rdma.remote_addr = (uintptr_t)e->buf + (read ? SRC : DST);
	wr.wr.rdma.rkey = e->mr->rkey;
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(e->cq, 1, &wc);
	expect_wc(&wc, a, 9);
	CHECK_EQ(wc.opcode, read ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
	expect_arrived(e, size);
}

static void atomics(struct env *e, struct ibv_qp *a)
{
	uint64_t *target = (void *)(e->buf + DST), *result = (void *)(e->buf + SRC);
	struct ibv_sge sge = sge_at(e, SRC, 8);
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				 .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	*target = 40;
	*result = 0;
	wr.wr.atomic.remote_addr = (uintptr_t)target;
	wr.wr.atomic.rkey = e->mr->rkey;
	wr.wr.atomic.compare_add = 2;
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(e->cq, 1, &wc);
	expect_wc(&wc, a, 0);
	CHECK_EQ(wc.opcode, IBV_WC_FETCH_ADD);
	CHECK_EQ(*result, 40);
	CHECK_EQ(*target, 42);

	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.compare_add = 42;
	wr.wr.atomic.swap = 7;
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(e->cq, 1, &wc);
	expect_wc(&wc, a, 0);
	CHECK_EQ(wc.opcode, IBV_WC_COMP_SWAP);
	CHECK_EQ(*result, 42);
	CHECK_EQ(*target, 7);
}

/* The same by the work request API: a write, inline, and a send in one batch. */
static void work_requests(struct env *e, struct ibv_qp *a, struct ibv_qp *b, uint32_t size)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(a);
	struct ibv_sge in = sge_at(e, DST, size);
	struct ibv_wc wc[3];
	uint64_t inline_value = 0x1122334455667788;

	CHECK(x && !ibv_qp_to_qp_ex(b));
	fill(e, size);
	CHECK_EQ(post_recv_at(b, 20, &in), 0);
	ibv_wr_start(x);
	x->wr_id = 21;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(x, e->mr->rkey, (uintptr_t)e->buf + 60000);
	ibv_wr_set_inline_data(x, &inline_value, sizeof(inline_value));
	x->wr_id = 22;
	ibv_wr_send(x);
	ibv_wr_set_sge(x, e->mr->lkey, (uintptr_t)e->buf + SRC, size);
	CHECK_EQ(ibv_wr_complete(x), 0);
	wait_wc(e->cq, 3, wc);
	for (int i = 0, seen = 0; i < 3; i++) {
		CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
		seen += (int)wc[i].wr_id;
		CHECK(i < 2 || seen == 63);
	}
	expect_arrived(e, size);
	CHECK(!memcmp(e->buf + 60000, &inline_value, sizeof(inline_value)));

	/* An error anywhere: nothing of the batch is posted. */
	ibv_wr_start(x);
	ibv_wr_rdma_write(x, e->mr->rkey, (uintptr_t)e->buf + 60000);
	ibv_wr_set_sge(x, e->mr->lkey, (uintptr_t)e->buf, 8);
	ibv_wr_rdma_read(x, e->mr->rkey, (uintptr_t)e->buf);
	ibv_wr_set_inline_data(x, &inline_value, sizeof(inline_value));
	CHECK_EQ(ibv_wr_complete(x), EINVAL);
	ibv_wr_start(x);
	ibv_wr_send(x);
	ibv_wr_abort(x);
	expect_empty(e->cq);
}

/* Both ends name their memory by the iova. */
static void iova(struct env *e, struct ibv_qp *a, uint32_t size)
{
	struct ibv_mr *mr = ibv_reg_mr_iova(e->pd, e->buf, BUF_SIZE, IOVA,
					    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
						    IBV_ACCESS_REMOTE_READ);
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	CHECK(mr);
	for (int read = 0; read < 2; read++) {
		fill(e, size);
		sge = (struct ibv_sge){IOVA + (read ? DST : SRC), size, mr->lkey};
		wr.opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = IOVA + (read ? SRC : DST);
		wr.wr.rdma.rkey = mr->rkey;
		CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
		wait_wc(e->cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		expect_arrived(e, size);
	}
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

int main(void)
{
	struct env e;
	struct ibv_qp_init_attr attr;
	struct ibv_qp_init_attr_ex ex;
	struct ibv_qp *a, *b;

	env_open(&e);
	attr = env_qp_attr(&e);
	ex = (struct ibv_qp_init_attr_ex){
		.send_cq = e.cq,
		.recv_cq = e.cq,
		.cap = attr.cap,
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = e.pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE |
				  IBV_QP_EX_WITH_RDMA_READ,
	};
	a = ibv_create_qp_ex(e.ctx, &ex);
	b = ibv_create_qp(e.pd, &attr);
	CHECK(a && b);
	ex.send_ops_flags = IBV_QP_EX_WITH_TSO;
	CHECK(!ibv_create_qp_ex(e.ctx, &ex));
	CHECK_EQ(errno, EOPNOTSUPP);
	connect_pair(&e, a, b);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		send_recv(&e, a, b, sizes[i], 0);
		if (sizes[i] <= 64)
			send_recv(&e, b, a, sizes[i], 1);
		rdma(&e, a, IBV_WR_RDMA_WRITE, sizes[i]);
		rdma(&e, b, IBV_WR_RDMA_READ, sizes[i]);
		work_requests(&e, a, b, sizes[i]);
		if (!getenv("TEST_NO_IOVA"))
			iova(&e, a, sizes[i]);
	}
	atomics(&e, a);
	expect_empty(e.cq);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	env_close(&e);
	return 0;
}
