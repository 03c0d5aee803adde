// SPDX-License-Identifier: BSD-2-Clause
/*
 * Congestion notification, seen from a peer that this program is itself: marked packets are
 * answered with a CNP, at most one in 50 us; a CNP of the peer halves what a QP sends at once; a
 * CNP from another address, or for a QP that does not exist, does nothing.
 *
 * The device has ADDRESS; this program is at PEER and STRANGER.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>

#include "raw.h"
#include "wire/wire.h"

#define ADDRESS "127.77.0.4"
#define PEER "127.77.0.5"
#define STRANGER "127.77.0.6"
#define MTU 1024
#define WINDOW 128	 /* packets of its socket_buffer: a QP sends no more without an answer */
#define PEER_QPN 0x4321u /* ours */
#define CNP 0x81

struct wire_peer {
	int fd;
	struct sockaddr_in to;
	struct icrc_address icrc;
	uint8_t tos; /* of what arrived last */
};

static struct env e;
static struct wire_peer peer, stranger;

static void wire_open(struct wire_peer *w, const char *address)
{
	struct sockaddr_in from = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
	int discover = IP_PMTUDISC_DO, size = 4 << 20, one = 1;

	w->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(w->fd >= 0);
	CHECK_EQ(setsockopt(w->fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof(discover)), 0);
	CHECK_EQ(setsockopt(w->fd, IPPROTO_IP, IP_RECVTOS, &one, sizeof(one)), 0);
	CHECK_EQ(setsockopt(w->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)), 0);
	from.sin_addr.s_addr = inet_addr(address);
	CHECK_EQ(bind(w->fd, (struct sockaddr *)&from, sizeof(from)), 0);
	w->to = from;
	w->to.sin_addr.s_addr = inet_addr(ADDRESS);
	w->icrc.src_port = w->icrc.dst_port = ROCE_UDP_PORT;
	memcpy(w->icrc.src, &from.sin_addr, 4);
	memcpy(w->icrc.dst, &w->to.sin_addr, 4);
}

/* Sends a packet with MTU bytes of payload, or without. @tos: of the IP header */
static void wire_send(const struct wire_peer *w, const struct wire_packet *p, int tos)
{
	uint8_t buf[WIRE_MAX_HEADERS + MTU + ICRC_LEN] = {0};
	size_t len = wire_encode(buf, p) + p->payload_len;
	uint32_t icrc = icrc_compute(&w->icrc, 0, buf, len);

	for (int i = 0; i < ICRC_LEN; i++)
		buf[len + (size_t)i] = (uint8_t)(icrc >> 8 * i);
	CHECK_EQ(setsockopt(w->fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos)), 0);
	CHECK_EQ(sendto(w->fd, buf, len + ICRC_LEN, 0, (const struct sockaddr *)&w->to,
			sizeof(w->to)),
		 (ssize_t)len + ICRC_LEN);
}

/* Waits for a packet. @ms: at most. @return whether one came; checked and decoded */
static bool wire_receive(struct wire_peer *w, struct wire_packet *p, int ms)
{
	struct pollfd pfd = {.fd = w->fd, .events = POLLIN};
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	uint8_t buf[8192];
	struct iovec iov = {buf, sizeof(buf)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = sizeof(control)};
	struct icrc_address back = w->icrc;
	ssize_t len;

	if (poll(&pfd, 1, ms) != 1)
		return false;
	len = recvmsg(w->fd, &msg, 0);
	CHECK(len > 0 && CMSG_FIRSTHDR(&msg));
	w->tos = *CMSG_DATA(CMSG_FIRSTHDR(&msg));
	memcpy(back.src, w->icrc.dst, 4);
	memcpy(back.dst, w->icrc.src, 4);
	CHECK(icrc_check(&back, 0, buf, (size_t)len));
	CHECK_EQ(wire_decode(buf, (size_t)len, p), 0);
	CHECK_EQ(p->dest_qpn, PEER_QPN);
	return true;
}

/* A QP whose peer we are. Without a timeout: it sends nothing again of its own accord. */
static struct ibv_qp *connect_to_us(enum ibv_qp_type type)
{
	bool rc = type == IBV_QPT_RC;
	struct ibv_qp_init_attr init = env_qp_attr(&e);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = PEER_QPN,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.sgid_index = 1, .hop_limit = 64, .traffic_class = 0x68}},
	};
	struct ibv_qp *qp;

	memcpy(attr.ah_attr.grh.dgid.raw + 10, "\xff\xff", 2);
	memcpy(attr.ah_attr.grh.dgid.raw + 12, peer.icrc.src, 4);
	init.qp_type = type;
	qp = ibv_create_qp(e.pd, &init);
	CHECK(qp);
	to_init(qp);
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN |
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

static struct wire_packet cnp_for(const struct ibv_qp *qp)
{
	return (struct wire_packet){
		.opcode = CNP, .pkey = 0xffff, .becn = true, .dest_qpn = qp->qp_num};
}

/* Takes what the QP sends without an answer. @next: PSN it begins with. @return packets */
static uint32_t take_flight(uint32_t next)
{
	struct wire_packet p;
	uint32_t n = 0;

	/* All of a window comes at once: a pause is its end. */
	while (wire_receive(&peer, &p, n == 0 ? 20000 : 50)) {
		CHECK_EQ(p.psn, next + n);
		CHECK_EQ(peer.tos, 0x68 | ECN_ECT0);
		n++;
	}
	return n;
}

/* Acknowledges all before psn. */
static void acknowledge(const struct ibv_qp *qp, uint32_t psn)
{
	struct wire_packet p = {.opcode = WIRE_RC | WIRE_ACKNOWLEDGE,
				.pkey = 0xffff,
				.dest_qpn = qp->qp_num,
				.psn = psn - 1,
				.aeth = {AETH_ACK | AETH_NO_CREDITS, 0}};

	wire_send(&peer, &p, 0);
}

static void reaction(void)
{
	struct ibv_qp *qp = connect_to_us(IBV_QPT_RC);
	struct ibv_sge sge = sge_at(&e, 0, BUF_SIZE);
	struct wire_packet p = cnp_for(qp);
	uint32_t psn = 0, before, after;
	long handled = status_sum("rp_cnp_handled");

	for (int i = 0; i < 16; i++)
		CHECK_EQ(post_send_at(qp, 1, &sge, IBV_SEND_SIGNALED), 0);
	/* It begins with little. */
	psn = take_flight(0);
	acknowledge(qp, psn);
	before = take_flight(psn);
	CHECK(before > psn && before <= WINDOW);
	psn += before;
	/* Nobody but the peer slows it down; a CNP for nobody is no harm. */
	wire_send(&stranger, &p, 0);
	p.dest_qpn ^= 0x10;
	wire_send(&peer, &p, 0);
	p.dest_qpn ^= 0x10;
	acknowledge(qp, psn);
	after = take_flight(psn);
	CHECK_EQ(after, before);
	CHECK_EQ(status_sum("rp_cnp_handled"), handled);
	psn += after;
	/* The peer does. */
	wire_send(&peer, &p, 0);
	acknowledge(qp, psn);
	after = take_flight(psn);
	CHECK(after <= before * 3 / 4); /* a half, and a step up for each window of the ACK */
	CHECK(after >= 4);
	CHECK_EQ(status_sum("rp_cnp_handled"), handled + 1);
	/* And it recovers. */
	for (int i = 0; i < 3; i++) {
		psn += after;
		acknowledge(qp, psn);
		before = after;
		after = take_flight(psn);
		CHECK(after >= before);
	}
	CHECK(after > WINDOW / 2);
	CHECK(psn + after < 1024); /* or there was no more to send */
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

static void notification(enum ibv_qp_type type)
{
	struct ibv_qp *qp = connect_to_us(type);
	uint8_t service = type == IBV_QPT_RC ? WIRE_RC : WIRE_UC;
	struct wire_packet w = {.opcode = service | WIRE_WRITE_ONLY,
				.pkey = 0xffff,
				.dest_qpn = qp->qp_num,
				.reth = {(uintptr_t)e.buf, e.mr->rkey, MTU},
				.payload_len = MTU};
	long marked = status_sum("np_ecn_marked_roce_packets");
	long sent = status_sum("np_cnp_sent"), handled;
	unsigned int cnps = 0;
	struct wire_packet p;

	/* Not marked: no CNP. */
	wire_send(&peer, &w, ECN_ECT0);
	CHECK(!wire_receive(&peer, &p, type == IBV_QPT_RC ? 0 : 100) || p.opcode != CNP);
	for (w.psn = 1; w.psn <= 20; w.psn++)
		wire_send(&peer, &w, ECN_CE);
	while (wire_receive(&peer, &p, cnps == 0 ? 20000 : 100)) {
		if (p.opcode != CNP)
			continue;
		CHECK(p.becn);
		CHECK_EQ(p.psn, 0);
		CHECK_EQ(peer.tos & ECN_MASK, 0);
		cnps++;
	}
	CHECK(cnps >= 1 && cnps <= 20);
	CHECK_EQ(status_sum("np_cnp_sent"), sent + cnps);
	CHECK_EQ(status_sum("np_ecn_marked_roce_packets"), marked + 20);
	/* The other way round. */
	handled = status_sum("rp_cnp_handled");
	w = cnp_for(qp);
	wire_send(&peer, &w, 0);
	for (double end = seconds() + TEST_TIMEOUT; status_sum("rp_cnp_handled") == handled;)
		CHECK(seconds() < end);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

int main(void)
{
	env_open(&e);
	wire_open(&peer, PEER);
	wire_open(&stranger, STRANGER);
	reaction();
	notification(IBV_QPT_RC);
	notification(IBV_QPT_UC);
	env_close(&e);
	return 0;
}
