// SPDX-License-Identifier: BSD-2-Clause
/*
 * Fault status: a send WQE fails in its turn as by a local error, unsignaled too; a receive WQE
 * that a message takes fails, and its sender with it; RC, UC, UD, and receives of a SRQ.
 */
#include "faults.h"

/* Statuses a rule can be asked for, and what the peer of a receive sees then. */
static const struct {
	const char *name;
	enum ibv_wc_status status;
	enum ibv_wc_status peer;
	int event;
} statuses[] = {
	{"LOC_LEN_ERR", IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR, -1},
	{"LOC_PROT_ERR", IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR, -1},
	{"LOC_QP_OP_ERR", IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_OP_ERR, -1},
	{"LOC_ACCESS_ERR", IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR},
	{"GENERAL_ERR", IBV_WC_GENERAL_ERR, IBV_WC_REM_OP_ERR, -1},
};
#define STATUSES (sizeof(statuses) / sizeof(statuses[0]))

static struct ibv_ah *peer_ah(struct link *l)
{
	struct ibv_ah_attr attr = {.is_global = 1,
				   .port_num = 1,
				   .grh = {.dgid = l->b.e.gid, .sgid_index = 1, .hop_limit = 64}};
	struct ibv_ah *ah = ibv_create_ah(l->a.e.pd, &attr);

	CHECK(ah);
	return ah;
}

/* Sends 8 bytes to b, whatever the type. */
static void send_one(struct link *l, struct ibv_qp *a, struct ibv_qp *b, struct ibv_ah *ah,
		     uint64_t wr_id, unsigned int flags)
{
	struct ibv_sge sge = sge_at(&l->a.e, 0, 8);
	struct ibv_send_wr wr = {.wr_id = wr_id,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = flags};
	struct ibv_send_wr *bad;

	if (a->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = b->qp_num;
		wr.wr.ud.remote_qkey = 17;
	}
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
}

/* The third of four sends fails, signaled or not. */
static void send_fails(struct link *l, enum ibv_qp_type type, unsigned int flags)
{
	enum ibv_qp_state end = type == IBV_QPT_RC ? IBV_QPS_ERR : IBV_QPS_SQE;
	struct ibv_qp *a = link_qp(&l->a, type), *b = link_qp(&l->b, type);
	struct ibv_ah *ah = peer_ah(l);

	for (size_t i = 0; i < STATUSES; i++) {
		link_connect(l, a, b, &timing_default);
		fault_add(&l->a, "status=%s,qp=%u,dir=send,skip=2,count=1", statuses[i].name,
			  a->qp_num);
		for (uint64_t k = 0; k < 4; k++)
			link_recv(l, b, k, 64);
		for (uint64_t k = 0; k < 4; k++)
			send_one(l, a, b, ah, k, flags);
		for (uint64_t k = 0; k < 2 && flags; k++)
			expect_wc(&l->a, k, IBV_WC_SUCCESS);
		expect_wc(&l->a, 2, statuses[i].status);
		expect_wc(&l->a, 3, IBV_WC_WR_FLUSH_ERR);
		expect_state(a, end);
		/* What came before has arrived, and nothing else. */
		expect_wc(&l->b, 0, IBV_WC_SUCCESS);
		expect_wc(&l->b, 1, IBV_WC_SUCCESS);
		expect_empty(l->b.e.cq);
		expect_state(b, IBV_QPS_RTS);
		fault_clear(&l->a, 0);
		if (end != IBV_QPS_SQE)
			continue;
		/* It goes on from SQE. */
		to_state(a, IBV_QPS_RTS);
		send_one(l, a, b, ah, 5, IBV_SEND_SIGNALED);
		expect_wc(&l->a, 5, IBV_WC_SUCCESS);
		expect_wc(&l->b, 2, IBV_WC_SUCCESS);
	}
	CHECK_EQ(ibv_destroy_ah(ah), 0);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

/* Other requests than SENDs: only those of the rule's opcode. */
static void request_fails(struct link *l)
{
	struct ibv_qp *a = link_qp(&l->a, IBV_QPT_RC), *b = link_qp(&l->b, IBV_QPT_RC);

	link_connect(l, a, b, &timing_default);
	fault_add(&l->a, "status=REM_ACCESS_ERR,qp=%u,opcode=read", a->qp_num);
	CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, 1, 100, 0), 0);
	CHECK_EQ(link_post(l, a, IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 8, 0), 0);
	CHECK_EQ(link_post(l, a, IBV_WR_RDMA_READ, 3, 100, 0), 0);
	expect_wc(&l->a, 3, IBV_WC_REM_ACCESS_ERR);
	expect_state(a, IBV_QPS_ERR);
	fault_clear(&l->a, 0);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

/* The second receive fails: SENDs, or WRITEs with immediate. */
static void recv_fails(struct link *l, enum ibv_qp_type type, bool write)
{
	struct ibv_qp *a = link_qp(&l->a, type), *b = link_qp(&l->b, type);
	struct ibv_ah *ah = peer_ah(l);

	for (size_t i = 0; i < STATUSES; i++) {
		link_connect(l, a, b, &timing_default);
		fault_add(&l->b, "status=%s,qp=%u,dir=recv,skip=1,count=1", statuses[i].name,
			  b->qp_num);
		memset(l->a.e.buf, 1, 64);
		memset(l->b.e.buf, 2, 64);
		for (uint64_t k = 0; k < 3; k++)
			link_recv(l, b, k, 64);
		for (uint64_t k = 0; k < 3; k++) {
			if (write)
				CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE_WITH_IMM, k, 5000,
						   IBV_SEND_SIGNALED),
					 0);
			else
				send_one(l, a, b, ah, k, IBV_SEND_SIGNALED);
		}
		expect_wc(&l->b, 0, IBV_WC_SUCCESS);
		expect_wc(&l->b, 1, statuses[i].status);
		expect_wc(&l->b, 2, IBV_WC_WR_FLUSH_ERR);
		expect_state(b, IBV_QPS_ERR);
		expect_wc(&l->a, 0, IBV_WC_SUCCESS);
		if (type == IBV_QPT_RC) {
			expect_wc(&l->a, 1, statuses[i].peer);
			expect_wc(&l->a, 2, IBV_WC_WR_FLUSH_ERR);
		} else {
			expect_wc(&l->a, 1, IBV_WC_SUCCESS);
			expect_wc(&l->a, 2, IBV_WC_SUCCESS);
			expect_state(a, IBV_QPS_RTS);
		}
		if (type != IBV_QPT_UD && statuses[i].event >= 0)
			expect_event(&l->b, b, (enum ibv_event_type)statuses[i].event);
		fault_clear(&l->b, 0);
	}
	expect_no_event(&l->b);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

/* A receive of a SRQ fails: its QP goes, the SRQ and its other QP stay. */
static void srq_fails(struct link *l)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(l->b.e.pd, &init);
	struct ibv_qp_init_attr attr = env_qp_attr(&l->b.e);
	struct ibv_qp *a[2], *b[2];

	CHECK(srq);
	attr.srq = srq;
	for (int i = 0; i < 2; i++) {
		a[i] = link_qp(&l->a, IBV_QPT_RC);
		b[i] = ibv_create_qp(l->b.e.pd, &attr);
		CHECK(b[i]);
		link_connect(l, a[i], b[i], &timing_default);
	}
	fault_add(&l->b, "status=LOC_PROT_ERR,qp=%u,dir=recv", b[1]->qp_num);
	/* Again and again: every slot comes back. */
	for (uint64_t round = 0; round < 20; round++) {
		struct ibv_sge sge = sge_at(&l->b.e, 0, 64);
		struct ibv_recv_wr *bad, wr = {.wr_id = round, .sg_list = &sge, .num_sge = 1};
		bool fails = round & 1;

		CHECK_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
		send_one(l, a[fails], b[fails], NULL, round, 0);
		expect_wc(&l->b, round, fails ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS);
		if (!fails)
			continue;
		expect_wc(&l->a, round, IBV_WC_REM_OP_ERR);
		expect_event(&l->b, b[1], IBV_EVENT_QP_LAST_WQE_REACHED);
		link_connect(l, a[1], b[1], &timing_default);
	}
	fault_clear(&l->b, 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(ibv_destroy_qp(a[i]), 0);
		CHECK_EQ(ibv_destroy_qp(b[i]), 0);
	}
	CHECK_EQ(ibv_destroy_srq(srq), 0);
}

int main(int argc, char **argv)
{
	static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
	struct link l;

	link_open(&l, argc, argv);
	for (int i = 0; i < 3; i++) {
		send_fails(&l, types[i], IBV_SEND_SIGNALED);
		send_fails(&l, types[i], 0);
		recv_fails(&l, types[i], false);
	}
	recv_fails(&l, IBV_QPT_RC, true);
	recv_fails(&l, IBV_QPT_UC, true);
	request_fails(&l);
	srq_fails(&l);
	link_close(&l);
	return 0;
}
