// SPDX-License-Identifier: BSD-2-Clause
/*
 * What is seen of requests on the wire: MigReq is sent as 1 and not looked at, AckReq is never
 * there in UC and UD, no more READs are under way than max_rd_atomic says; and a READ at a QP whose
 * max_dest_rd_atomic allows none is an invalid request.
 *
 * The device has ADDRESS; this program is also its peer, at PEER.
 */
#include "peer.h"

#define ADDRESS "127.21.0.1"
#define PEER "127.21.0.2"
#define PEER_QPN 0x4321
#define WAIT (TEST_TIMEOUT * 1000)

/* Bits of the bytes 1 and 8 of a BTH. */
#define MIGREQ 0x40
#define ACKREQ 0x80

static struct env e;
static struct peer peer;

/* A QP in RTS with us as its peer. @depth: max_rd_atomic and max_dest_rd_atomic */
static struct ibv_qp *make_qp(enum ibv_qp_type type, uint8_t depth)
{
	bool rc = type == IBV_QPT_RC, ud = type == IBV_QPT_UD;
	struct ibv_qp_init_attr init = env_qp_attr(&e);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		.path_mtu = IBV_MTU_256,
		.dest_qp_num = PEER_QPN,
		.max_rd_atomic = depth,
		.max_dest_rd_atomic = depth,
		.min_rnr_timer = 1,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = peer.gid, .sgid_index = 1, .hop_limit = 64}},
	};
	struct ibv_qp *qp;

	init.qp_type = type;
	qp = ibv_create_qp(e.pd, &init);
	CHECK(qp);
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
		 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE |
				       (ud ? 0
					   : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
							IBV_QP_RQ_PSN) |
				       (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)),
		 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_SQ_PSN |
				       (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
							IBV_QP_MAX_QP_RD_ATOMIC
					   : 0)),
		 0);
	return qp;
}

/* Sends a packet to a QP. @migreq: whether it says MigReq; @data, @len: its payload */
static void send_packet(struct ibv_qp *qp, struct wire_packet p, bool migreq, const void *data,
			uint32_t len)
{
	uint8_t buf[WIRE_MAX_HEADERS + 256 + ICRC_LEN];
	size_t at;

	p.pkey = 0xffff;
	p.dest_qpn = qp->qp_num;
	at = wire_encode(buf, &p);
	if (!migreq)
		buf[1] &= (uint8_t)~MIGREQ;
	if (len)
		memcpy(buf + at, data, len);
	peer_send(&peer, buf, at + len, 0);
}

/* The packets of one message of a QP type. */
static void flags(enum ibv_qp_type type)
{
	struct ibv_qp *qp = make_qp(type, 1);
	struct ibv_ah_attr to = {.is_global = 1,
				 .port_num = 1,
				 .grh = {.dgid = peer.gid, .sgid_index = 1, .hop_limit = 64}};
	struct ibv_ah *ah = ibv_create_ah(e.pd, &to);
	struct ibv_sge sge = sge_at(&e, 0, 600);
	struct ibv_send_wr *bad, wr = {.sg_list = &sge,
				       .num_sge = 1,
				       .opcode = IBV_WR_SEND,
				       .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED};
	int packets = type == IBV_QPT_UD ? 1 : 3;
	struct peer_packet in;
	bool asked = false;

	CHECK(ah);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = PEER_QPN;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
	for (int i = 0; i < packets; i++) {
		CHECK(peer_receive(&peer, &in, WAIT));
		CHECK_EQ(in.pkt.psn, i);
		CHECK(in.data[1] & MIGREQ);
		CHECK_EQ(in.pkt.ackreq, (in.data[8] & ACKREQ) != 0);
		asked |= in.pkt.ackreq;
	}
	CHECK_EQ(asked, type == IBV_QPT_RC);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
}

/* Requests that do not say MigReq are like others. */
static void migreq_ignored(void)
{
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, 1);
	struct wire_packet p = {.opcode = WIRE_RC | WIRE_WRITE_ONLY,
				.ackreq = true,
				.reth = {(uintptr_t)e.buf, e.mr->rkey, 8}};
	struct peer_packet in;

	for (uint32_t i = 0; i < 2; i++) {
		memset(e.buf, 0, 8);
		p.psn = i;
		send_packet(qp, p, i != 0, "migrated", 8);
		CHECK(peer_receive(&peer, &in, WAIT));
		CHECK_EQ(in.pkt.opcode, WIRE_RC | WIRE_ACKNOWLEDGE);
		CHECK_EQ(in.pkt.psn, i);
		CHECK_EQ(AETH_CLASS(in.pkt.aeth.syndrome), AETH_ACK);
		CHECK(!memcmp(e.buf, "migrated", 8));
	}
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

/* READs leave as earlier ones are answered; what comes twice is one of those under way. */
static void read_depth(uint8_t depth)
{
	enum { READS = 8 };
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, depth);
	struct ibv_sge sge = sge_at(&e, 0, 8);
	struct ibv_send_wr *bad,
		wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ};
	uint32_t seen = 0;
	struct peer_packet in;
	struct ibv_wc wc;

	for (int i = 0; i < READS; i++) {
		wr.send_flags = i == READS - 1 ? IBV_SEND_SIGNALED : 0;
		CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
	}
	for (uint32_t done = 0; done < READS; done++) {
		struct wire_packet answer = {.opcode = WIRE_RC | WIRE_READ_RESPONSE_ONLY,
					     .psn = done,
					     .aeth = {AETH_ACK | AETH_NO_CREDITS, done + 1}};
		uint32_t due = done + depth < READS ? done + depth : READS;

		while (seen < due) {
			CHECK(peer_receive(&peer, &in, WAIT));
			CHECK_EQ(in.pkt.opcode, WIRE_RC | WIRE_READ_REQUEST);
			CHECK(in.pkt.psn < due);
			if (in.pkt.psn >= seen)
				seen = in.pkt.psn + 1;
		}
		/* Nothing more for now. */
		while (peer_receive(&peer, &in, 20))
			CHECK(in.pkt.psn < due);
		send_packet(qp, answer, true, "answered", 8);
	}
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

static void no_reads(void)
{
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, 0);
	struct wire_packet p = {.opcode = WIRE_RC | WIRE_READ_REQUEST,
				.ackreq = true,
				.reth = {(uintptr_t)e.buf, e.mr->rkey, 8}};
	struct peer_packet in;

	send_packet(qp, p, true, NULL, 0);
	CHECK(peer_receive(&peer, &in, WAIT));
	CHECK_EQ(in.pkt.opcode, WIRE_RC | WIRE_ACKNOWLEDGE);
	CHECK_EQ(in.pkt.aeth.syndrome, AETH_NAK | NAK_INVALID_REQUEST);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

int main(void)
{
	env_open(&e);
	peer_open(&peer, PEER, ADDRESS);
	flags(IBV_QPT_RC);
	flags(IBV_QPT_UC);
	flags(IBV_QPT_UD);
	migreq_ignored();
	read_depth(1);
	read_depth(3);
	no_reads();
	close(peer.fd);
	env_close(&e);
	return 0;
}
