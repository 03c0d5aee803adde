// SPDX-License-Identifier: BSD-2-Clause
/*
 * Counters against traffic that is known packet by packet: between two QPs, and with a peer on the
 * wire that is this program. The device has ADDRESS, the peer is at PEER.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>

#include "stats.h"
#include "wire/wire.h"

#define ADDRESS "127.84.0.1"
#define PEER "127.84.0.2"
#define PEER_QPN 0x123450

#define MESSAGES 1000
#define SIZE 4096
#define MTU 1024
#define PACKETS (MESSAGES * SIZE / MTU)

static struct env e;

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr attr = env_qp_attr(&e);
	struct ibv_qp *qp = ibv_create_qp(e.pd, &attr);

	CHECK(qp);
	return qp;
}

/* Every counter of the device but those of ports is the sum of its QPs', if none has gone yet. */
static void sums_are_equal(const char *text)
{
	const char *begin = strstr(text, "\"hw_counters\":{"), *end;
	unsigned int names = 0;

	CHECK(begin);
	begin += strlen("\"hw_counters\":{");
	end = strchr(begin, '}');
	for (const char *p = begin; p < end; p = strchr(p, ',') < end ? strchr(p, ',') + 1 : end) {
		uint64_t sum = 0, value = strtoull(strchr(p, ':') + 1, NULL, 10);
		char name[64];

		snprintf(name, sizeof(name), "%.*s", (int)(strchr(p + 1, '"') - p - 1), p + 1);
		for (const char *qp = text; (qp = strstr(qp, "{\"qpn\":")) != NULL; qp++)
			sum += stats_find(qp, name);
		if (sum != value)
			fprintf(stderr, "%s\n", name);
		CHECK_EQ(sum, value);
		names++;
		if (!strchr(p, ','))
			break;
	}
	CHECK(names > 30);
}

/* 1000 SENDs of 4 KiB at an MTU of 1024: four packets each, and what comes back. */
static void known_traffic(void)
{
	struct ibv_qp *a = make_qp(), *b = make_qp();
	struct ibv_sge out = sge_at(&e, 0, SIZE), in = sge_at(&e, 32768, SIZE);
	uint64_t acks, before;
	char *text;

	connect_pair(&e, a, b);
	for (int i = 0; i < MESSAGES; i++) {
		struct ibv_wc wc[2];

		CHECK_EQ(post_recv_at(b, 0, &in), 0);
		CHECK_EQ(post_send_at(a, 0, &out, IBV_SEND_SIGNALED), 0);
		wait_wc(e.cq, 2, wc);
		CHECK_EQ(wc[0].status, IBV_WC_SUCCESS);
		CHECK_EQ(wc[1].status, IBV_WC_SUCCESS);
	}
	text = stats_text(1);
	sums_are_equal(text);
	free(text);
	CHECK_QP(a, "sent_pkts", PACKETS);
	CHECK_QP(b, "rcvd_pkts", PACKETS);
	acks = stats_qp(b->qp_num, "sent_pkts");
	CHECK(acks >= 1 && acks <= MESSAGES);
	CHECK_QP(a, "rcvd_pkts", acks);
	CHECK_QP(a, "rdma_sends", MESSAGES);
	CHECK_QP(a, "rdma_recvs", 0);
	CHECK_QP(b, "rdma_sends", 0);
	CHECK_QP(b, "rdma_recvs", MESSAGES);
	CHECK_QP(a, "completions", MESSAGES);
	CHECK_QP(a, "retransmitted_pkts", 0);
	CHECK_QP(b, "duplicate_request", 0);
	/* Of each packet BTH and ICRC, 16 bytes; of an ACK the AETH, 4. */
	CHECK_EQ(stats_device("port_xmit_data"),
		 (PACKETS * (MTU + 16) + acks * (16 + 4)) / sizeof(uint32_t));
	CHECK_EQ(stats_device("port_rcv_data"), stats_device("port_xmit_data"));
	CHECK_EQ(stats_device("port_xmit_packets"), PACKETS + acks);

	/* What was counted stays counted. */
	before = stats_device("sent_pkts");
	CHECK_EQ(before, PACKETS + acks);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	CHECK_EQ(stats_device("sent_pkts"), before);
	CHECK_EQ(stats_device("rdma_sends"), MESSAGES);
	CHECK_EQ(stats_device("rdma_recvs"), MESSAGES);
}

/* Every kind of request: the bytes of its headers are counted too. */
static void requests(void)
{
	struct ibv_qp *a = make_qp(), *b = make_qp();
	struct ibv_sge sge = sge_at(&e, 0, 8);
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	uint64_t words = stats_device("port_xmit_data");

	connect_pair(&e, a, b);
	wr.opcode = IBV_WR_RDMA_READ;
	wr.wr.rdma.remote_addr = (uintptr_t)e.buf + 32768;
	wr.wr.rdma.rkey = e.mr->rkey;
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	/* BTH RETH ICRC; BTH AETH, 8 bytes, ICRC */
	CHECK_EQ(stats_device("port_xmit_data") - words, (12 + 16 + 4 + 12 + 4 + 8 + 4) / 4);
	words = stats_device("port_xmit_data");
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.remote_addr = (uintptr_t)e.buf + 32768;
	wr.wr.atomic.rkey = e.mr->rkey;
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	/* BTH AtomicETH ICRC; BTH AETH AtomicAckETH ICRC */
	CHECK_EQ(stats_device("port_xmit_data") - words, (12 + 28 + 4 + 12 + 4 + 8 + 4) / 4);
	words = stats_device("port_xmit_data");
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = (uintptr_t)e.buf + 32768;
	wr.wr.rdma.rkey = e.mr->rkey;
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	/* BTH RETH, 8 bytes, ICRC; BTH AETH ICRC */
	CHECK_EQ(stats_device("port_xmit_data") - words, (12 + 16 + 8 + 4 + 12 + 4 + 4) / 4);
	CHECK_QP(b, "rx_read_requests", 1);
	CHECK_QP(b, "rx_atomic_requests", 1);
	CHECK_QP(b, "rx_write_requests", 1);
	CHECK_QP(a, "rdma_sends", 0);
	/* Refused. */
	wr.wr.rdma.rkey = e.mr->rkey ^ 0x5555;
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
	CHECK_QP(a, "req_remote_access_errors", 1);
	CHECK_QP(a, "req_cqe_error", 1);
	CHECK_QP(a, "req_cqe_flush_error", 0);
	CHECK_QP(b, "resp_remote_access_errors", 1);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

static void receiver_not_ready(void)
{
	struct ibv_qp *a = make_qp(), *b = make_qp();
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7};
	struct ibv_sge sge = sge_at(&e, 0, 8);
	struct ibv_wc wc[2];
	uint64_t naks;

	connect_pair(&e, a, b);
	CHECK_EQ(post_send_at(a, 0, &sge, IBV_SEND_SIGNALED), 0);
	stats_wait(a->qp_num, "rcvd_rnr_err", 2);
	CHECK_EQ(post_recv_at(b, 0, &sge), 0);
	wait_wc(e.cq, 2, wc);
	naks = stats_qp(b->qp_num, "send_rnr_err");
	CHECK(naks >= 2);
	CHECK_QP(a, "rcvd_rnr_err", naks);
	CHECK_QP(a, "rnr_nak_retry_err", naks);
	CHECK_QP(b, "out_of_buffer", naks);
	CHECK_QP(a, "retransmitted_pkts", naks);
	CHECK_QP(a, "retry_rnr_exceeded_err", 0);
	CHECK_QP(b, "rdma_recvs", 1);

	/* And a sender that does not try again. */
	to_state(a, IBV_QPS_RESET);
	to_state(b, IBV_QPS_RESET);
	to_init(a);
	to_init(b);
	to_rtr(&e, a, b->qp_num);
	to_rtr(&e, b, a->qp_num);
	to_rts(b);
	CHECK_EQ(ibv_modify_qp(a, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
	CHECK_EQ(post_send_at(a, 0, &sge, IBV_SEND_SIGNALED), 0);
	wait_wc(e.cq, 1, wc);
	CHECK_EQ(wc[0].status, IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK_QP(a, "retry_rnr_exceeded_err", 1);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

/* ---- with a peer on the wire ---------------------------------------------------------------- */

struct peer {
	int fd;
	struct sockaddr_in to;
	struct icrc_address icrc;
};

static void peer_open(struct peer *p)
{
	struct sockaddr_in from = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
	int discover = IP_PMTUDISC_DO;

	p->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(p->fd >= 0);
	CHECK_EQ(setsockopt(p->fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof(discover)), 0);
	from.sin_addr.s_addr = inet_addr(PEER);
	CHECK_EQ(bind(p->fd, (struct sockaddr *)&from, sizeof(from)), 0);
	p->to = from;
	p->to.sin_addr.s_addr = inet_addr(ADDRESS);
	p->icrc = (struct icrc_address){.src_port = ROCE_UDP_PORT, .dst_port = ROCE_UDP_PORT};
	memcpy(p->icrc.src, &from.sin_addr, 4);
	memcpy(p->icrc.dst, &p->to.sin_addr, 4);
}

/* Sends a packet, its payload zeros. @damage: XORed into its ICRC */
static void peer_put(struct peer *p, const struct wire_packet *packet, uint32_t damage)
{
	uint8_t buf[128] = {0};
	size_t len = wire_encode(buf, packet) + packet->payload_len;
	uint32_t icrc = icrc_compute(&p->icrc, 0, buf, (uint32_t)len) ^ damage;

	for (int i = 0; i < ICRC_LEN; i++)
		buf[len++] = (uint8_t)(icrc >> 8 * i);
	CHECK_EQ(sendto(p->fd, buf, len, 0, (struct sockaddr *)&p->to, sizeof(p->to)), len);
}

/* Sends a SEND Only of 8 bytes. */
static void peer_send(struct peer *p, uint32_t qpn, uint32_t psn, uint32_t damage)
{
	struct wire_packet packet = {
		.opcode = WIRE_RC | WIRE_SEND_ONLY,
		.ackreq = true,
		.pkey = 0xffff,
		.dest_qpn = qpn,
		.psn = psn,
		.payload_len = 8,
	};

	peer_put(p, &packet, damage);
}

/* Answers the request with this PSN. @syndrome: of the AETH */
static void peer_answer(struct peer *p, uint32_t qpn, uint32_t psn, uint8_t syndrome)
{
	struct wire_packet packet = {
		.opcode = WIRE_RC | WIRE_ACKNOWLEDGE,
		.pkey = 0xffff,
		.dest_qpn = qpn,
		.psn = psn,
		.aeth = {syndrome, 0},
	};

	peer_put(p, &packet, 0);
}

/* Receives a packet. @return its bytes */
static size_t peer_receive(struct peer *p)
{
	struct pollfd in = {.fd = p->fd, .events = POLLIN};
	uint8_t buf[4096];
	ssize_t n;

	CHECK_EQ(poll(&in, 1, TEST_TIMEOUT * 1000), 1);
	n = recv(p->fd, buf, sizeof(buf), 0);
	CHECK(n >= BTH_LEN + ICRC_LEN);
	return (size_t)n;
}

/* A QP whose peer is on the wire: one retry. @timeout: as in struct ibv_qp_attr */
static struct ibv_qp *make_wired(uint8_t timeout)
{
	struct ibv_qp *qp = make_qp();
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .dest_qp_num = PEER_QPN,
				   .max_dest_rd_atomic = 4,
				   .min_rnr_timer = 1,
				   .ah_attr = {.is_global = 1,
					       .port_num = 1,
					       .grh = {.sgid_index = 1, .hop_limit = 64}}};

	attr.ah_attr.grh.dgid.raw[10] = attr.ah_attr.grh.dgid.raw[11] = 0xff;
	CHECK_EQ(inet_pton(AF_INET, PEER, attr.ah_attr.grh.dgid.raw + 12), 1);
	to_init(qp);
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				       IBV_QP_MIN_RNR_TIMER),
		 0);
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = timeout, .retry_cnt = 1};
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
	return qp;
}

/* Nobody answers. */
static void retries_exceeded(struct peer *p)
{
	struct ibv_qp *qp = make_wired(8);
	struct ibv_sge sge = sge_at(&e, 0, 8);
	struct ibv_wc wc[2];
	uint64_t sent;

	CHECK_EQ(post_send_at(qp, 0, &sge, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(post_recv_at(qp, 0, &sge), 0);
	wait_wc(e.cq, 2, wc);
	/* What is sent between two timeouts, on suspicion, is no retry. */
	sent = stats_qp(qp->qp_num, "sent_pkts");
	CHECK(sent >= 2);
	for (uint64_t i = 0; i < sent; i++)
		CHECK_EQ(peer_receive(p), 12 + 8 + 4);
	CHECK_QP(qp, "retransmitted_pkts", sent - 1);
	CHECK_QP(qp, "local_ack_timeout_err", 2);
	CHECK_QP(qp, "completer_retry_err", sent - 1);
	CHECK_QP(qp, "retry_exceeded_err", 1);
	CHECK_QP(qp, "rdma_sends", 0);
	CHECK_QP(qp, "req_cqe_error", 1);
	CHECK_QP(qp, "resp_cqe_error", 1);
	CHECK_QP(qp, "resp_cqe_flush_error", 1);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

/* It says that a packet is missing, then that it does not like it. */
static void negative_answers(struct peer *p)
{
	struct ibv_qp *qp = make_wired(0); /* no timeout: nothing is sent but for an answer */
	struct ibv_sge sge = sge_at(&e, 0, 8);
	struct ibv_wc wc;

	CHECK_EQ(post_send_at(qp, 0, &sge, IBV_SEND_SIGNALED), 0);
	peer_receive(p);
	peer_answer(p, qp->qp_num, 0, AETH_NAK | NAK_PSN_SEQUENCE);
	peer_receive(p);
	CHECK_QP(qp, "rcvd_seq_err", 1);
	CHECK_QP(qp, "packet_seq_err", 1);
	CHECK_QP(qp, "completer_retry_err", 1);
	CHECK_QP(qp, "retransmitted_pkts", 1);
	CHECK_QP(qp, "sent_pkts", 2);
	peer_answer(p, qp->qp_num, 0, AETH_NAK | NAK_INVALID_REQUEST);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_REM_INV_REQ_ERR);
	CHECK_QP(qp, "req_remote_invalid_request", 1);
	CHECK_QP(qp, "rcvd_pkts", 2);
	CHECK_QP(qp, "retry_exceeded_err", 0);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

/* What a good, a repeated, an early and a damaged packet count as. */
static void odd_packets(struct peer *p)
{
	struct ibv_qp *qp = make_wired(0);
	uint32_t qpn = qp->qp_num;
	struct ibv_sge sge = sge_at(&e, 0, 8);
	uint64_t bad = stats_device("rx_icrc_encapsulated"), dropped = stats_device("rx_dropped");
	uint64_t malformed = stats_device("rx_malformed"), errors = stats_device("port_rcv_errors");
	struct ibv_wc wc;
	char runt = 0;

	for (int i = 0; i < 2; i++)
		CHECK_EQ(post_recv_at(qp, 0, &sge), 0);
	/* Good; an ACK comes back. */
	peer_send(p, qpn, 0, 0);
	CHECK_EQ(peer_receive(p), 12 + 4 + 4);
	wait_wc(e.cq, 1, &wc);
	CHECK_QP(qp, "rcvd_pkts", 1);
	CHECK_QP(qp, "sent_pkts", 1);
	CHECK_QP(qp, "rdma_recvs", 1);
	/* Once more: another ACK. */
	peer_send(p, qpn, 0, 0);
	peer_receive(p);
	CHECK_QP(qp, "duplicate_request", 1);
	CHECK_QP(qp, "sent_pkts", 2);
	/* A gap: one NAK, however many packets are behind it. */
	peer_send(p, qpn, 5, 0);
	peer_receive(p);
	peer_send(p, qpn, 6, 0);
	stats_wait(qpn, "out_of_sequence", 2);
	CHECK_QP(qp, "out_of_seq_request", 1);
	CHECK_QP(qp, "sent_pkts", 3);
	/* Counted for the device: no word in them can be trusted, or none leads to a QP. */
	peer_send(p, qpn, 1, 1);
	peer_send(p, 0xffff0, 1, 0);
	CHECK_EQ(sendto(p->fd, &runt, 1, 0, (struct sockaddr *)&p->to, sizeof(p->to)), 1);
	/* What was missing; when it has arrived, so have those. */
	peer_send(p, qpn, 1, 0);
	peer_receive(p);
	wait_wc(e.cq, 1, &wc);
	CHECK_QP(qp, "rcvd_pkts", 5);
	CHECK_QP(qp, "duplicate_request", 1);
	CHECK_QP(qp, "rdma_recvs", 2);
	CHECK_QP(qp, "rx_icrc_encapsulated", 0);
	CHECK_EQ(stats_device("rx_icrc_encapsulated"), bad + 1);
	CHECK_EQ(stats_device("rx_dropped"), dropped + 1);
	CHECK_EQ(stats_device("rx_malformed"), malformed + 1);
	CHECK_EQ(stats_device("port_rcv_errors"), errors + 2);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
}

/* The names of rxe in Linux 6.1, so that what reads those finds them. */
static void names(void)
{
	static const char *const rxe[] = {"sent_pkts",		 "rcvd_pkts",
					  "duplicate_request",	 "out_of_seq_request",
					  "rcvd_rnr_err",	 "send_rnr_err",
					  "rcvd_seq_err",	 "ack_deferred",
					  "retry_exceeded_err",	 "retry_rnr_exceeded_err",
					  "completer_retry_err", "send_err",
					  "link_downed",	 "rdma_sends",
					  "rdma_recvs"};
	char *text = stats_text(0);

	for (unsigned int i = 0; i < sizeof(rxe) / sizeof(rxe[0]); i++)
		stats_find(text, rxe[i]);
	free(text);
}

/* An answer that is far longer than a message. */
static void many_qps(void)
{
	enum { MANY = 2000 };
	static struct ibv_qp *qp[MANY];
	unsigned int seen = 0;
	char *text;

	for (unsigned int i = 0; i < MANY; i++)
		qp[i] = make_qp();
	text = stats_text(1);
	for (const char *p = text; (p = strstr(p, "{\"qpn\":")) != NULL; p++)
		seen++;
	CHECK_EQ(seen, MANY);
	CHECK(strlen(text) > 1000000);
	CHECK(!strcmp(text + strlen(text) - 6, "}]}]}\n"));
	for (unsigned int i = 0; i < MANY; i++)
		CHECK(stats_qp_in(text, qp[i]->qp_num));
	free(text);
	for (unsigned int i = 0; i < MANY; i++)
		CHECK_EQ(ibv_destroy_qp(qp[i]), 0);
}

/* Requests that are not what they should be. */
static void bad_requests(void)
{
	struct vernic_request req = {.command = VERNIC_CMD_STATS};
	struct raw r;

	CHECK_EQ(raw_start(&r), 0);
	strcpy(req.stats.device, "nosuch");
	CHECK_EQ(raw_call(&r, &req), ENODEV);
	memset(req.stats.device, 'x', sizeof(req.stats.device));
	CHECK_EQ(raw_call(&r, &req), EINVAL);
	raw_end(&r);
}

int main(void)
{
	struct peer p;

	env_open(&e);
	peer_open(&p);
	known_traffic(); /* first: it compares the sums of QPs with all there was */
	requests();
	receiver_not_ready();
	retries_exceeded(&p);
	negative_answers(&p);
	odd_packets(&p);
	names();
	many_qps();
	bad_requests();
	close(p.fd);
	env_close(&e);
	return 0;
}
