// SPDX-License-Identifier: BSD-2-Clause
/*
 * NAKs among other answers, from a peer on the wire and to it: sequence NAKs that come late behind
 * RNR NAKs use up no retries; a NAK fails its own WR, though the answer of the WR before it came in
 * the same breath; what was asked for before a request that is refused is answered first; and no
 * ACK stands in for the answer of an atomic.
 *
 * The device has ADDRESS; this program is also its peer, at PEER.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdbool.h>
#include <unistd.h>

#include "common.h"
#include "wire/wire.h"

#define ADDRESS "127.77.1.1"
#define PEER "127.77.1.2"
#define PEER_QPN 0x123450
#define ROUNDS 10 /* more than retries */
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

struct wire {
	struct env e;
	struct ibv_qp *qp;
	int fd; /* at PEER:4791 */
	struct sockaddr_in to;
	struct icrc_address icrc;
};

static void wire_open(struct wire *w)
{
	struct sockaddr_in from = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
	int discover = IP_PMTUDISC_DO;
	struct ibv_qp_init_attr init;

	env_open(&w->e);
	init = env_qp_attr(&w->e);
	w->qp = ibv_create_qp(w->e.pd, &init);
	w->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(w->qp && w->fd >= 0);
	CHECK_EQ(setsockopt(w->fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof(discover)), 0);
	from.sin_addr.s_addr = inet_addr(PEER);
	CHECK_EQ(bind(w->fd, (struct sockaddr *)&from, sizeof(from)), 0);
	w->to = from;
	w->to.sin_addr.s_addr = inet_addr(ADDRESS);
	w->icrc.src_port = w->icrc.dst_port = ROCE_UDP_PORT;
	memcpy(w->icrc.src, &from.sin_addr, 4);
	memcpy(w->icrc.dst, &w->to.sin_addr, 4);
}

/* A fresh connection with us; 3 retries, and time that does not matter. */
static void wire_connect(struct wire *w)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_256,
		.dest_qp_num = PEER_QPN,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.sgid_index = 1, .hop_limit = 64}},
	};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
				  .timeout = 22, /* 17 s */
				  .retry_cnt = 3,
				  .rnr_retry = 7,
				  .max_rd_atomic = 4};

	to_state(w->qp, IBV_QPS_RESET);
	to_init(w->qp);
	memcpy(attr.ah_attr.grh.dgid.raw, gid_ipv4_prefix, sizeof(gid_ipv4_prefix));
	memcpy(attr.ah_attr.grh.dgid.raw + 12, w->icrc.src, 4);
	CHECK_EQ(ibv_modify_qp(w->qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				       IBV_QP_MIN_RNR_TIMER),
		 0);
	CHECK_EQ(ibv_modify_qp(w->qp, &rts,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
}

/* Sends two packets (payload: zeroes) in one datagram, or one: the daemon sees them at once. */
static void wire_send(struct wire *w, const struct wire_packet *first,
		      const struct wire_packet *second)
{
	const struct wire_packet *packets[2] = {first, second};
	uint8_t buf[256];
	size_t off = 0;
	int segment = 0;

	for (uint16_t i = 0; i < 2 && packets[i]; i++) {
		struct wire_packet p = *packets[i];
		size_t len;
		uint32_t icrc;

		p.pkey = 0xffff;
		p.dest_qpn = w->qp->qp_num;
		len = wire_encode(buf + off, &p);
		memset(buf + off + len, 0, p.payload_len);
		len += p.payload_len;
		icrc = icrc_compute(&w->icrc, i, buf + off, len);
		for (int k = 0; k < ICRC_LEN; k++)
			buf[off + len + (size_t)k] = (uint8_t)(icrc >> 8 * k);
		off += len + ICRC_LEN;
		if (i == 0 && second)
			segment = (int)off;
	}
	CHECK_EQ(setsockopt(w->fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)), 0);
	CHECK_EQ(sendto(w->fd, buf, off, 0, (struct sockaddr *)&w->to, sizeof(w->to)),
		 (ssize_t)off);
}

/* Waits for the next packet the daemon sends. */
static void wire_receive(struct wire *w, struct wire_packet *p)
{
	struct pollfd ready = {.fd = w->fd, .events = POLLIN};
	static uint8_t buf[65536];
	ssize_t n;

	CHECK_EQ(poll(&ready, 1, TEST_TIMEOUT * 1000), 1);
	n = recv(w->fd, buf, sizeof(buf), 0);
	CHECK(n > 0);
	CHECK_EQ(wire_decode(buf, (size_t)n, p), 0);
	CHECK_EQ(p->dest_qpn, PEER_QPN);
}

static struct wire_packet answer(uint32_t psn, uint8_t syndrome)
{
	return (struct wire_packet){
		.opcode = (uint8_t)wire_opcode_for(WIRE_RC, KIND_ACK, OPF_FIRST | OPF_LAST),
		.psn = psn,
		.aeth = {.syndrome = syndrome}};
}

/* A responder that sends a sequence NAK for what followed the packet it has no receive for. */
static void late_sequence_naks(struct wire *w)
{
	struct wire_packet rnr = answer(0, AETH_RNR_NAK | 1), ack = answer(0, AETH_ACK);
	struct wire_packet sequence = answer(0, AETH_NAK | NAK_PSN_SEQUENCE), p;
	struct ibv_sge sge = sge_at(&w->e, 0, 8);
	struct ibv_wc wc;

	wire_connect(w);
	CHECK_EQ(post_send_at(w->qp, 1, &sge, IBV_SEND_SIGNALED), 0);
	for (int i = 0; i < ROUNDS; i++) {
		wire_receive(w, &p);
		CHECK_EQ(p.psn, 0);
		wire_send(w, &rnr, NULL);
		/* The wait is over. */
		wire_receive(w, &p);
		CHECK_EQ(p.psn, 0);
		wire_send(w, &sequence, NULL);
	}
	wire_receive(w, &p);
	wire_send(w, &ack, NULL);
	wait_wc(w->e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(wc.wr_id, 1);
}

/* The answer of an atomic, and the NAK of the WRITE behind it, in one datagram. */
static void nak_behind_answer(struct wire *w)
{
	struct wire_packet orig = {
		.opcode = (uint8_t)wire_opcode_for(WIRE_RC, KIND_ATOMIC_ACK, OPF_FIRST | OPF_LAST),
		.atomic_orig = 42};
	struct wire_packet nak = answer(1, AETH_NAK | NAK_REMOTE_ACCESS), p;
	struct ibv_sge sge = sge_at(&w->e, 0, 8);
	struct ibv_send_wr write = {.wr_id = 2,
				    .sg_list = &sge,
				    .num_sge = 1,
				    .opcode = IBV_WR_RDMA_WRITE,
				    .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr add = write, *bad;
	struct ibv_wc wc[2];

	add.wr_id = 1;
	add.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	add.next = &write;
	wire_connect(w);
	CHECK_EQ(ibv_post_send(w->qp, &add, &bad), 0);
	wire_receive(w, &p);
	CHECK_EQ(p.psn, 0);
	wire_receive(w, &p);
	CHECK_EQ(p.psn, 1);
	wire_send(w, &orig, &nak);
	wait_wc(w->e.cq, 2, wc);
	CHECK_EQ(wc[0].status, IBV_WC_SUCCESS);
	CHECK_EQ(wc[0].wr_id, 1);
	CHECK_EQ(*(uint64_t *)(void *)w->e.buf, 42);
	CHECK_EQ(wc[1].status, IBV_WC_REM_ACCESS_ERR);
	CHECK_EQ(wc[1].wr_id, 2);
}

/* An atomic, and a READ that is refused, in one datagram. */
static void answer_before_nak(struct wire *w)
{
	uint64_t *word = (uint64_t *)(void *)w->e.buf;
	struct wire_packet add = {
		.opcode = (uint8_t)wire_opcode_for(WIRE_RC, KIND_FETCH_ADD, OPF_FIRST | OPF_LAST),
		.ackreq = true,
		.atomic = {.va = (uintptr_t)word, .rkey = w->e.mr->rkey, .swap_add = 3}};
	struct wire_packet read = {.opcode = (uint8_t)wire_opcode_for(WIRE_RC, KIND_READ_REQUEST,
								      OPF_FIRST | OPF_LAST),
				   .ackreq = true,
				   .psn = 1,
				   .reth = {(uintptr_t)word, w->e.mr->rkey ^ 0x10000000, 8}};
	struct wire_packet p;

	wire_connect(w);
	*word = 39;
	wire_send(w, &add, &read);
	wire_receive(w, &p);
	CHECK_EQ(wire_opcodes[p.opcode].kind, KIND_ATOMIC_ACK);
	CHECK_EQ(p.psn, 0);
	CHECK_EQ(p.atomic_orig, 39);
	CHECK_EQ(*word, 42);
	wire_receive(w, &p);
	CHECK_EQ(wire_opcodes[p.opcode].kind, KIND_ACK);
	CHECK_EQ(p.psn, 1);
	CHECK_EQ(p.aeth.syndrome, AETH_NAK | NAK_REMOTE_ACCESS);
}

/* The next packet is an ACK for psn, or the answer of an atomic. */
static void expect(struct wire *w, unsigned int kind, uint32_t psn)
{
	struct wire_packet p;

	wire_receive(w, &p);
	CHECK_EQ(wire_opcodes[p.opcode].kind, kind);
	CHECK_EQ(p.psn, psn);
	CHECK_EQ(AETH_CLASS(p.aeth.syndrome), AETH_ACK);
}

/*
 * An ACK for the PSN of an atomic could be taken for its answer, were that lost; and an ACK behind
 * an atomic, for a duplicate before it, would have the requester ask for it before it does so
 * anyway.
 */
static void no_ack_for_answers(struct wire *w)
{
	struct wire_packet send = {
		.opcode = (uint8_t)wire_opcode_for(WIRE_RC, KIND_SEND, OPF_FIRST | OPF_LAST),
		.ackreq = true,
		.payload_len = 28}; /* as long a packet as an atomic */
	struct wire_packet add = {
		.opcode = (uint8_t)wire_opcode_for(WIRE_RC, KIND_FETCH_ADD, OPF_FIRST | OPF_LAST),
		.ackreq = true,
		.psn = 1,
		.atomic = {.va = (uintptr_t)w->e.buf, .rkey = w->e.mr->rkey, .swap_add = 3}};
	struct ibv_sge sge = sge_at(&w->e, 4096, 64);
	struct wire_packet p;

	wire_connect(w);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(post_recv_at(w->qp, 0, &sge), 0);
	/* The SEND may be acknowledged, or the answer of the atomic does that. */
	wire_send(w, &send, &add);
	wire_receive(w, &p);
	if (wire_opcodes[p.opcode].kind == KIND_ACK) {
		CHECK_EQ(p.psn, 0);
		wire_receive(w, &p);
	}
	CHECK_EQ(wire_opcodes[p.opcode].kind, KIND_ATOMIC_ACK);
	CHECK_EQ(p.psn, 1);
	/* All again. */
	wire_send(w, &send, NULL);
	expect(w, KIND_ACK, 0);
	wire_send(w, &add, NULL);
	expect(w, KIND_ATOMIC_ACK, 1);
	/* Behind the atomic the newest counts. */
	send.psn = 2;
	wire_send(w, &send, NULL);
	expect(w, KIND_ACK, 2);
	wire_send(w, &send, NULL);
	expect(w, KIND_ACK, 2);
	send.psn = 0;
	wire_send(w, &send, NULL);
	expect(w, KIND_ACK, 0);
}

int main(void)
{
	struct wire w;

	memset(&w, 0, sizeof(w));
	wire_open(&w);
	late_sequence_naks(&w);
	nak_behind_answer(&w);
	answer_before_nak(&w);
	no_ack_for_answers(&w);
	CHECK_EQ(ibv_destroy_qp(w.qp), 0);
	env_close(&w.e);
	close(w.fd);
	return 0;
}
