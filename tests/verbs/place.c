// SPDX-License-Identifier: BSD-2-Clause
/*
 * ATOMIC WRITE and FLUSH, to a peer on the wire: what is answered, and that it is in place then;
 * what comes twice; rights of the QP and of the MR for each type of FLUSH, a range and a whole MR.
 * And from it: an ATOMIC WRITE is one packet, and complete when it is answered.
 *
 * The device has ADDRESS; this program is also its peer, at PEER.
 */
#include <vernic/ring.h>

#include "peer.h"

#define ADDRESS "127.12.0.1"
#define PEER "127.12.0.2"
#define PEER_QPN 0x123450
#define REGION 4096 /* the MR: as many bytes, at that offset of the buffer */
#define WAIT (TEST_TIMEOUT * 1000)

static struct env e;
static struct peer peer;
static struct ibv_qp *qp;
static uint32_t rkey; /* of the MR that requests name, which may be gone */

/* A fresh connection. @access: of the QP, besides REMOTE_WRITE */
static void connect_qp(unsigned int access)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | access,
		.path_mtu = IBV_MTU_256,
		.dest_qp_num = PEER_QPN,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = peer.gid, .sgid_index = 1, .hop_limit = 64}},
	};

	to_state(qp, IBV_QPS_RESET);
	CHECK_EQ(
		ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				       IBV_QP_MIN_RNR_TIMER),
		 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
}

/* Sends a request. @payload: bytes of value */
static void request(struct wire_packet p, uint64_t value, uint32_t payload)
{
	uint8_t buf[WIRE_MAX_HEADERS + 256 + ICRC_LEN];
	size_t len;

	p.pkey = 0xffff;
	p.dest_qpn = qp->qp_num;
	len = wire_encode(buf, &p);
	for (uint32_t i = 0; i < payload; i++)
		buf[len + i] = ((uint8_t *)&value)[i % 8];
	peer_send(&peer, buf, len + payload, 0);
}

static void write_request(uint32_t psn, uint32_t offset, uint64_t value, uint32_t len)
{
	request((struct wire_packet){.opcode = WIRE_RC | WIRE_WRITE_ONLY,
				     .psn = psn,
				     .reth = {(uintptr_t)e.buf + REGION + offset, rkey, len}},
		value, len);
}

static void atomic_write_request(uint32_t psn, uint32_t offset, uint64_t value)
{
	request((struct wire_packet){.opcode = WIRE_RC | WIRE_ATOMIC_WRITE,
				     .psn = psn,
				     .ackreq = true,
				     .reth = {(uintptr_t)e.buf + REGION + offset, rkey, 8}},
		value, 8);
}

static void flush_request(uint32_t psn, uint8_t type, uint8_t level, uint64_t va, uint32_t len)
{
	request((struct wire_packet){.opcode = WIRE_RC | WIRE_FLUSH,
				     .psn = psn,
				     .ackreq = true,
				     .feth = {type, level},
				     .reth = {va, rkey, len}},
		0, 0);
}

/* The next packet is the answer of a FLUSH or ATOMIC WRITE: a READ response without data. */
static void expect_answer(uint32_t psn, uint32_t msn)
{
	struct peer_packet in;

	CHECK(peer_receive(&peer, &in, WAIT));
	CHECK_EQ(in.pkt.opcode, WIRE_RC | WIRE_READ_RESPONSE_ONLY);
	CHECK_EQ(in.pkt.payload_len, 0);
	CHECK_EQ(in.pkt.psn, psn);
	CHECK_EQ(AETH_CLASS(in.pkt.aeth.syndrome), AETH_ACK);
	CHECK_EQ(in.pkt.aeth.msn, msn);
}

static void expect_nak(uint32_t psn, uint8_t code)
{
	struct peer_packet in;

	CHECK(peer_receive(&peer, &in, WAIT));
	CHECK_EQ(in.pkt.opcode, WIRE_RC | WIRE_ACKNOWLEDGE);
	CHECK_EQ(in.pkt.psn, psn);
	CHECK_EQ(in.pkt.aeth.syndrome, AETH_NAK | code);
}

static uint64_t word(uint32_t offset)
{
	uint64_t v;

	memcpy(&v, e.buf + REGION + offset, 8);
	return v;
}

/* WRITEs, then a FLUSH of them: when that is answered they are there, however many. */
static void flush_places(void)
{
	uint64_t va = (uintptr_t)e.buf + REGION;
	uint32_t psn = 0, msn = 0;

	connect_qp(VERNIC_ACCESS_FLUSH);
	for (uint64_t round = 1; round <= 20; round++) {
		for (uint32_t i = 0; i < 8; i++)
			write_request(psn++, i * 256, round << 8 | i, 256);
		msn += 9;
		flush_request(psn, 1 + round % 3, round % 2, round % 2 ? 0 : va, 2048);
		expect_answer(psn++, msn);
		for (uint32_t i = 0; i < 2048; i += 8)
			CHECK_EQ(word(i), round << 8 | i / 256);
	}
	/* Again: answered, with the newest MSN. */
	flush_request(psn - 1, 1, VERNIC_FLUSH_RANGE, va, 2048);
	expect_answer(psn - 1, msn);
}

/* Where nothing is flushed: of a length, key or address that is not the MR's, or a right it has
 * not. */
static void flush_rights(void)
{
	uint64_t va = (uintptr_t)e.buf + REGION;
	struct ibv_mr *all = e.mr;

	connect_qp(VERNIC_ACCESS_FLUSH_GLOBAL);
	flush_request(0, VERNIC_FLUSH_PERSISTENT, VERNIC_FLUSH_RANGE, va, 8);
	expect_nak(0, NAK_INVALID_REQUEST);
	connect_qp(VERNIC_ACCESS_FLUSH);
	flush_request(0, VERNIC_FLUSH_GLOBAL, VERNIC_FLUSH_RANGE, va + 1, REGION);
	expect_nak(0, NAK_REMOTE_ACCESS);
	connect_qp(VERNIC_ACCESS_FLUSH);
	flush_request(0, VERNIC_FLUSH_GLOBAL, VERNIC_FLUSH_MR + 1, va, 8);
	expect_nak(0, NAK_INVALID_REQUEST);
	/* A range of nothing, and of all. */
	connect_qp(VERNIC_ACCESS_FLUSH);
	flush_request(0, VERNIC_FLUSH_GLOBAL, VERNIC_FLUSH_RANGE, va, 0);
	expect_answer(0, 1);
	flush_request(1, VERNIC_FLUSH_GLOBAL, VERNIC_FLUSH_RANGE, va, REGION);
	expect_answer(1, 2);
	e.mr = ibv_reg_mr(e.pd, e.buf + REGION, REGION,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				  VERNIC_ACCESS_FLUSH_PERSISTENT);
	CHECK(e.mr);
	rkey = e.mr->rkey;
	flush_request(2, VERNIC_FLUSH_PERSISTENT, VERNIC_FLUSH_MR, 0, 0);
	expect_answer(2, 3);
	flush_request(3, VERNIC_FLUSH_GLOBAL, VERNIC_FLUSH_MR, 0, 0);
	expect_nak(3, NAK_REMOTE_ACCESS);
	CHECK_EQ(ibv_dereg_mr(e.mr), 0);
	connect_qp(VERNIC_ACCESS_FLUSH);
	flush_request(0, VERNIC_FLUSH_PERSISTENT, VERNIC_FLUSH_MR, 0, 0); /* of no MR any more */
	expect_nak(0, NAK_REMOTE_ACCESS);
	e.mr = all;
	rkey = e.mr->rkey;
}

/* Written once, answered as often as it comes. */
static void atomic_writes(void)
{
	connect_qp(0);
	atomic_write_request(0, 0, 0x1111111111111111);
	expect_answer(0, 1);
	CHECK_EQ(word(0), 0x1111111111111111);
	atomic_write_request(1, 0, 0x2222222222222222);
	expect_answer(1, 2);
	atomic_write_request(0, 0, 0x1111111111111111);
	expect_answer(0, 2);
	CHECK_EQ(word(0), 0x2222222222222222);
	to_state(qp, IBV_QPS_RESET);
}

/* From the device: the packet, and its completion when it is answered, not before. */
static void requester(void)
{
	struct ibv_sge sge = sge_at(&e, 0, 8);
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_ATOMIC_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = 0x1122334455667788, .rkey = 0x99},
	};
	struct wire_packet answer = {.opcode = WIRE_RC | WIRE_READ_RESPONSE_ONLY};
	struct ibv_send_wr *bad;
	struct peer_packet in;
	struct ibv_wc wc;

	connect_qp(0);
	memcpy(e.buf, "12345678", 8);
	for (uint32_t i = 0; i < 2; i++) {
		wr.send_flags = IBV_SEND_SIGNALED | (i ? IBV_SEND_INLINE : 0);
		CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
		CHECK(peer_receive(&peer, &in, WAIT));
		CHECK_EQ(in.pkt.opcode, WIRE_RC | WIRE_ATOMIC_WRITE);
		CHECK_EQ(in.pkt.psn, i);
		CHECK_EQ(in.pkt.reth.va, 0x1122334455667788);
		CHECK_EQ(in.pkt.reth.rkey, 0x99);
		CHECK_EQ(in.pkt.reth.length, 8);
		CHECK_EQ(in.pkt.payload_len, 8);
		CHECK(!memcmp(in.data + in.pkt.payload_off, "12345678", 8));
		CHECK_EQ(ibv_poll_cq(e.cq, 1, &wc), 0);
		answer.psn = i;
		answer.aeth.syndrome = AETH_ACK | AETH_NO_CREDITS;
		answer.aeth.msn = i + 1;
		request(answer, 0, 0);
		wait_wc(e.cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK_EQ(wc.opcode, IBV_WC_ATOMIC_WRITE);
	}
	/* Of any other length it does not leave. */
	sge.length = 4;
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
	to_state(qp, IBV_QPS_RESET);
	/* An answer with data, which nobody asked for. */
	connect_qp(0);
	sge.length = 8;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
	CHECK(peer_receive(&peer, &in, WAIT));
	answer.psn = 0;
	request(answer, 0, 8);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_BAD_RESP_ERR);
	to_state(qp, IBV_QPS_RESET);
}

int main(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_mr *all;

	env_open(&e);
	peer_open(&peer, PEER, ADDRESS);
	all = e.mr;
	e.mr = ibv_reg_mr(e.pd, e.buf + REGION, REGION,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | VERNIC_ACCESS_FLUSH);
	CHECK(e.mr);
	rkey = e.mr->rkey;
	init = env_qp_attr(&e);
	qp = ibv_create_qp(e.pd, &init);
	CHECK(qp);
	flush_places();
	flush_rights();
	atomic_writes();
	CHECK_EQ(ibv_dereg_mr(e.mr), 0);
	e.mr = all;
	requester();
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	env_close(&e);
	return 0;
}
