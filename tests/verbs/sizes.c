// SPDX-License-Identifier: BSD-2-Clause
/*
 * Every opcode that carries a payload, of RC, XRC, UC and UD, with 0 and 1 bytes, around one and two
 * path MTUs, and with 1 MiB: the bytes are those that were sent, none is written behind them, and
 * the completions tell the length.
 */
#include <fcntl.h>

#include "regions.h"

#define MTU 1024 /* of link_raise_qp() and to_rtr() */
#define SPACE (1u << 20)
#define GUARD 64
/* UC over UDP resends nothing: what goes into the socket's buffer whole. */
#define UC_UDP_MAX 65536u

static const uint32_t sizes[] = {0, 1, MTU - 1, MTU, MTU + 1, 2 * MTU, SPACE};

struct area {
	uint8_t *p;
	struct ibv_mr *mr;
};

struct test {
	struct link l;
	struct ibv_qp *a, *b;
	struct ibv_srq *srq; /* of XRC, at side b */
	uint32_t srqn;
	struct area out, in;
};

static struct area make_area(struct side *s)
{
	struct area m = {.p = malloc(SPACE + GUARD)};

	CHECK(m.p);
	m.mr = ibv_reg_mr(s->e.pd, m.p, SPACE + GUARD, ALL_RIGHTS);
	CHECK(m.mr);
	return m;
}

static void free_area(struct area *m)
{
	CHECK_EQ(ibv_dereg_mr(m->mr), 0);
	free(m->p);
}

static void fill(uint8_t *p, uint32_t size)
{
	static uint8_t seed;

	seed += 3;
	for (uint32_t i = 0; i < size; i++)
		p[i] = (uint8_t)(seed + i * 7 + (i >> 8) * 13);
}

static bool takes_receive(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
	       opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool has_imm(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* Posts a receive for so many bytes, and some more. */
static void post_receive(struct test *t, uint32_t size)
{
	struct ibv_sge sge = {(uintptr_t)t->in.p, size + GUARD, t->in.mr->lkey};
	struct ibv_recv_wr *bad, wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1};

	if (t->srq)
		CHECK_EQ(ibv_post_srq_recv(t->srq, &wr, &bad), 0);
	else
		CHECK_EQ(ibv_post_recv(t->b, &wr, &bad), 0);
}

static void expect_receive(struct test *t, enum ibv_wr_opcode opcode, uint32_t size)
{
	struct ibv_wc wc;

	wait_wc(t->l.b.e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(wc.wr_id, 2);
	CHECK_EQ(wc.byte_len, size);
	CHECK_EQ(wc.opcode, opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM
								 : IBV_WC_RECV);
	CHECK_EQ(wc.wc_flags & IBV_WC_WITH_IMM, has_imm(opcode) ? IBV_WC_WITH_IMM : 0);
	if (has_imm(opcode))
		CHECK_EQ(wc.imm_data, 0xabcd);
}

/*
 * Unreliable, and without a receive: it arrives when it arrives. Not by memcmp(), which may call equal
 * what changes meanwhile: where it sees a difference it looks again to tell which is less.
 */
static void wait_bytes(const volatile uint8_t *p, const uint8_t *like, uint32_t size)
{
	double end = seconds() + TEST_TIMEOUT;

	for (uint32_t i = 0; i < size; i++)
		while (p[i] != like[i])
			CHECK(seconds() < end);
}

static void run(struct test *t, enum ibv_wr_opcode opcode, uint32_t size)
{
	bool read = opcode == IBV_WR_RDMA_READ;
	struct ibv_sge sge = {(uintptr_t)t->out.p, size, t->out.mr->lkey};
	struct ibv_send_wr *bad, wr = {.wr_id = 1,
				       .sg_list = &sge,
				       .num_sge = 1,
				       .opcode = opcode,
				       .send_flags = IBV_SEND_SIGNALED,
				       .imm_data = 0xabcd,
				       .wr.rdma = {(uintptr_t)t->in.p, t->in.mr->rkey},
				       .qp_type.xrc.remote_srqn = t->srqn};
	uint8_t *from = read ? t->in.p : t->out.p, *to = read ? t->out.p : t->in.p;
	struct ibv_wc wc;

	fill(from, size);
	memset(to, 0xee, size + GUARD);
	if (takes_receive(opcode))
		post_receive(t, size);
	CHECK_EQ(ibv_post_send(t->a, &wr, &bad), 0);
	wait_wc(t->l.a.e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(wc.wr_id, 1);
	if (read)
		CHECK_EQ(wc.byte_len, size);
	if (takes_receive(opcode))
		expect_receive(t, opcode, size);
	if (t->a->qp_type == IBV_QPT_UC)
		wait_bytes(to, from, size);
	CHECK(!memcmp(to, from, size));
	CHECK(all_are(to + size, 0xee, GUARD));
}

static void run_all(struct test *t)
{
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
						     IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
						     IBV_WR_RDMA_READ};

	bool uc = t->a->qp_type == IBV_QPT_UC;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t size = uc && t->l.udp && sizes[i] > UC_UDP_MAX ? UC_UDP_MAX : sizes[i];

		for (size_t k = 0; k < sizeof(opcodes) / sizeof(opcodes[0]); k++) {
			if (opcodes[k] != IBV_WR_RDMA_READ || !uc)
				run(t, opcodes[k], size);
		}
	}
}

static void connected(struct test *t, enum ibv_qp_type type)
{
	t->a = link_qp(&t->l.a, type);
	t->b = link_qp(&t->l.b, type);
	link_connect(&t->l, t->a, t->b, &timing_default);
	run_all(t);
	CHECK_EQ(ibv_destroy_qp(t->a), 0);
	CHECK_EQ(ibv_destroy_qp(t->b), 0);
}

static void xrc(struct test *t)
{
	struct env *a = &t->l.a.e, *b = &t->l.b.e;
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(b->ctx, &domain);
	struct ibv_srq_init_attr_ex srq = {
		.attr = {.max_wr = 4, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = b->pd,
		.xrcd = xrcd,
		.cq = b->cq,
	};
	struct ibv_qp_init_attr_ex target = {.qp_type = IBV_QPT_XRC_RECV,
					     .comp_mask = IBV_QP_INIT_ATTR_XRCD,
					     .xrcd = xrcd};

	CHECK(xrcd);
	t->srq = ibv_create_srq_ex(b->ctx, &srq);
	t->a = link_qp(&t->l.a, IBV_QPT_XRC_SEND);
	t->b = ibv_create_qp_ex(b->ctx, &target);
	CHECK(t->srq && t->b);
	CHECK_EQ(ibv_get_srq_num(t->srq, &t->srqn), 0);
	to_init(t->a);
	to_init(t->b);
	to_rtr(b, t->a, t->b->qp_num);
	to_rtr(a, t->b, t->a->qp_num);
	to_rts(t->a);
	to_rts(t->b);
	run_all(t);
	CHECK_EQ(ibv_destroy_qp(t->a), 0);
	CHECK_EQ(ibv_destroy_qp(t->b), 0);
	CHECK_EQ(ibv_destroy_srq(t->srq), 0);
	CHECK_EQ(ibv_close_xrcd(xrcd), 0);
	t->srq = NULL;
}

/* A datagram has the port's MTU at most, and 40 bytes in front of it. */
static void datagrams(struct test *t)
{
	static const uint32_t lengths[] = {0, 1, MTU - 1, MTU, MTU + 1, 2 * MTU, 4096};
	struct ibv_ah_attr attr = {.is_global = 1,
				   .port_num = 1,
				   .grh = {.dgid = t->l.b.e.gid, .sgid_index = 1, .hop_limit = 64}};
	struct ibv_ah *ah = ibv_create_ah(t->l.a.e.pd, &attr);

	CHECK(ah);
	t->a = link_qp(&t->l.a, IBV_QPT_UD);
	t->b = link_qp(&t->l.b, IBV_QPT_UD);
	link_connect(&t->l, t->a, t->b, &timing_default);
	for (size_t i = 0; i < 2 * sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint32_t size = lengths[i / 2];
		struct ibv_sge sge = {(uintptr_t)t->out.p, size, t->out.mr->lkey};
		struct ibv_send_wr *bad,
			wr = {.sg_list = &sge,
			      .num_sge = 1,
			      .opcode = i % 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
			      .send_flags = IBV_SEND_SIGNALED,
			      .imm_data = 0xabcd,
			      .wr.ud = {.ah = ah, .remote_qpn = t->b->qp_num, .remote_qkey = 17}};

		fill(t->out.p, size);
		memset(t->in.p, 0xee, 40 + size + GUARD);
		post_receive(t, 40 + size);
		CHECK_EQ(ibv_post_send(t->a, &wr, &bad), 0);
		CHECK_EQ(next_status(&t->l.a), IBV_WC_SUCCESS);
		expect_receive(t, wr.opcode, 40 + size);
		CHECK(!memcmp(t->in.p + 40, t->out.p, size));
		CHECK(all_are(t->in.p + 40 + size, 0xee, GUARD));
	}
	CHECK_EQ(ibv_destroy_qp(t->a), 0);
	CHECK_EQ(ibv_destroy_qp(t->b), 0);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
}

int main(int argc, char **argv)
{
	struct test t = {0};

	link_open(&t.l, argc, argv);
	t.out = make_area(&t.l.a);
	t.in = make_area(&t.l.b);
	connected(&t, IBV_QPT_RC);
	connected(&t, IBV_QPT_UC);
	xrc(&t);
	datagrams(&t);
	free_area(&t.out);
	free_area(&t.in);
	link_close(&t.l);
	return 0;
}
