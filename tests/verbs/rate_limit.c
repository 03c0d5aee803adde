// SPDX-License-Identifier: BSD-2-Clause
/*
 * Packet pacing: a QP with a rate limit sends no faster, by ibv_modify_qp_rate_limit() and by
 * IBV_QP_RATE_LIMIT, with the burst asked for; it goes at all; 0 ends it, and so does RESET. What
 * the peer sends is not limited. What is refused.
 */
#define FAULTS_ADDRESS "127.11.0.2" /* of the second daemon */
#include "faults.h"

#define RATE 20000u    /* kbit/s */
#define TOTAL 1048576u /* bytes of a measurement: 0.4 s at that rate */
#define DEPTH 16       /* of the SQ */
#define DATAGRAM 1024u

/* The shortest time in which bytes may leave, s. @burst: bytes that may leave at once */
static double least_time(uint32_t bytes, uint32_t rate, uint32_t burst)
{
	return (bytes - burst) * 8.0 / (rate * 1000.0);
}

/* Sends TOTAL bytes of a's. @ah: of the peer, for UD. @return the time it took, s */
static double send_total(struct link *l, struct ibv_qp *a, struct ibv_qp *b, struct ibv_ah *ah)
{
	uint32_t length = ah ? DATAGRAM : 32768, left = TOTAL / length, waiting = 0;
	double begin = seconds(), end = begin + 4 * TEST_TIMEOUT;
	struct ibv_sge sge = sge_at(&l->a.e, 0, length);
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = ah ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct ibv_wc wc[DEPTH];

	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = b->qp_num;
		wr.wr.ud.remote_qkey = 17;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)l->b.e.buf;
		wr.wr.rdma.rkey = l->b.e.mr->rkey;
	}
	while (left || waiting) {
		int n;

		for (; left && waiting < DEPTH; left--, waiting++)
			CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
		n = ibv_poll_cq(l->a.e.cq, DEPTH, wc);
		CHECK(n >= 0);
		for (int i = 0; i < n; i++)
			CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
		waiting -= (uint32_t)n;
		CHECK(seconds() < end);
	}
	return seconds() - begin;
}

/* The limit is kept to, and reached, by and large: the machine may have other things to do. */
static void expect_limited(struct link *l, struct ibv_qp *a, struct ibv_qp *b, struct ibv_ah *ah,
			   uint32_t burst)
{
	double least = least_time(TOTAL, RATE, burst), took = send_total(l, a, b, ah);

	if (took < least || took > 4 * least + 2)
		fprintf(stderr, "%u bytes in %.3f s, at %u kbit/s with a burst of %u: %.3f s\n",
			TOTAL, took, RATE, burst, least);
	CHECK(took >= least);
	CHECK(took < 4 * least + 2);
}

static uint32_t queried_rate(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK_EQ(ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT, &init), 0);
	return attr.rate_limit;
}

static int set_rate(struct ibv_qp *qp, uint32_t rate, uint32_t burst, uint16_t packet)
{
	struct ibv_qp_rate_limit_attr attr = {
		.rate_limit = rate, .max_burst_sz = burst, .typical_pkt_sz = packet};

	return ibv_modify_qp_rate_limit(qp, &attr);
}

static void limited(struct link *l, enum ibv_qp_type type)
{
	struct ibv_qp_attr by_mask = {.rate_limit = RATE};
	struct ibv_ah_attr av = {.is_global = 1,
				 .port_num = 1,
				 .grh = {.dgid = l->b.e.gid, .sgid_index = 1, .hop_limit = 64}};
	struct ibv_qp *a = link_qp(&l->a, type), *b = link_qp(&l->b, type);
	struct ibv_ah *ah = NULL;

	if (type == IBV_QPT_UD) {
		ah = ibv_create_ah(l->a.e.pd, &av);
		CHECK(ah);
	}
	link_connect(l, a, b, &timing_default);
	CHECK_EQ(set_rate(a, RATE, 0, 0), 0);
	CHECK_EQ(queried_rate(a), RATE);
	expect_limited(l, a, b, ah, 65536);
	CHECK_EQ(set_rate(a, RATE, 8192, 1024), 0);
	expect_limited(l, a, b, ah, 8192);
	CHECK_EQ(set_rate(a, 0, 0, 0), 0);
	CHECK_EQ(queried_rate(a), 0);
	CHECK(send_total(l, a, b, ah) < least_time(TOTAL, RATE, 65536));
	CHECK_EQ(ibv_modify_qp(a, &by_mask, IBV_QP_RATE_LIMIT), 0);
	expect_limited(l, a, b, ah, 65536);
	link_connect(l, a, b, &timing_default);
	CHECK_EQ(queried_rate(a), 0);
	CHECK(send_total(l, a, b, ah) < least_time(TOTAL, RATE, 65536));
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	if (ah)
		CHECK_EQ(ibv_destroy_ah(ah), 0);
}

/* A limit may come with the move to RTS; another one counts for what waits already. */
static void changed(struct link *l)
{
	struct ibv_qp *a = link_qp(&l->a, IBV_QPT_RC), *b = link_qp(&l->b, IBV_QPT_RC);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
				   .timeout = 14,
				   .retry_cnt = 7,
				   .rnr_retry = 7,
				   .max_rd_atomic = 4,
				   .rate_limit = 1};
	struct ibv_wc wc;

	link_connect(l, a, b, &timing_default);
	to_state(a, IBV_QPS_RESET);
	to_init(a);
	to_rtr(&l->b.e, a, b->qp_num);
	CHECK_EQ(ibv_modify_qp(a, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RATE_LIMIT),
		 0);
	CHECK_EQ(queried_rate(a), 1);
	/* The first has the burst, the others would take minutes. */
	for (int i = 0; i < 3; i++)
		CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, 1, 60000, IBV_SEND_SIGNALED), 0);
	wait_wc(l->a.e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	expect_empty(l->a.e.cq);
	CHECK_EQ(set_rate(a, 1000000, 0, 0), 0);
	wait_wc(l->a.e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	wait_wc(l->a.e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	/* Waits again, and 0 lets it go. */
	CHECK_EQ(set_rate(a, 1, 1, 0), 0);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, 1, 4000, IBV_SEND_SIGNALED), 0);
	expect_empty(l->a.e.cq);
	CHECK_EQ(set_rate(a, 0, 0, 0), 0);
	for (int i = 0; i < 3; i++) {
		wait_wc(l->a.e.cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	}
	/* Nobody is left behind by a QP that waits. */
	CHECK_EQ(set_rate(a, 1, 0, 0), 0);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(link_post(l, a, IBV_WR_RDMA_WRITE, 1, 60000, IBV_SEND_SIGNALED), 0);
	wait_wc(l->a.e.cq, 1, &wc);
	to_state(a, IBV_QPS_ERR);
	for (int i = 0; i < 2; i++) {
		wait_wc(l->a.e.cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
	}
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

/* What a READ brings is sent by the peer, and by a request of its own: neither is limited here. */
static void answers(struct link *l)
{
	struct ibv_qp *a = link_qp(&l->a, IBV_QPT_RC), *b = link_qp(&l->b, IBV_QPT_RC);
	double begin;

	link_connect(l, a, b, &timing_default);
	CHECK_EQ(set_rate(a, 100, 0, 0), 0);
	CHECK_EQ(set_rate(b, 100, 0, 0), 0);
	begin = seconds();
	for (int i = 0; i < 8; i++) {
		CHECK_EQ(link_post(l, a, IBV_WR_RDMA_READ, 2, 60000, IBV_SEND_SIGNALED), 0);
		expect_wc(&l->a, 2, IBV_WC_SUCCESS);
	}
	CHECK(seconds() - begin < least_time(8 * 60000, 100, 65536));
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

static void refused(struct link *l)
{
	const uint32_t types = 1u << IBV_QPT_RC | 1u << IBV_QPT_UC | 1u << IBV_QPT_UD |
			       1u << IBV_QPT_XRC_SEND;
	struct ibv_qp *a = link_qp(&l->a, IBV_QPT_RC), *b = link_qp(&l->b, IBV_QPT_RC);
	struct ibv_device_attr_ex dev;
	struct ibv_qp_attr attr = {0};
	uint32_t max;

	CHECK_EQ(ibv_query_device_ex(l->a.e.ctx, NULL, &dev), 0);
	CHECK_EQ(dev.packet_pacing_caps.supported_qpts, types);
	CHECK_EQ(dev.packet_pacing_caps.qp_rate_limit_min, 1);
	max = dev.packet_pacing_caps.qp_rate_limit_max;
	CHECK(max >= RATE);
	CHECK_EQ(set_rate(a, RATE, 0, 0), EINVAL); /* RESET */
	link_connect(l, a, b, &timing_default);
	CHECK_EQ(set_rate(a, max, UINT32_MAX, UINT16_MAX), 0);
	CHECK_EQ(set_rate(a, max + 1, 0, 0), EINVAL);
	CHECK_EQ(queried_rate(a), max);
	CHECK_EQ(set_rate(a, 0, 1, 0), EINVAL);
	CHECK_EQ(set_rate(a, 0, 0, 1), EINVAL);
	attr.rate_limit = max + 1;
	CHECK_EQ(ibv_modify_qp(a, &attr, IBV_QP_RATE_LIMIT), EINVAL);
	attr.rate_limit = RATE;
	attr.qp_state = IBV_QPS_SQD;
	CHECK_EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT), EINVAL);
	CHECK_EQ(a->state, IBV_QPS_RTS);
	CHECK_EQ(queried_rate(a), max);
	to_state(a, IBV_QPS_SQD);
	CHECK_EQ(set_rate(a, RATE, 0, 0), EINVAL);
	to_state(a, IBV_QPS_ERR);
	CHECK_EQ(set_rate(a, RATE, 0, 0), EINVAL);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

int main(int argc, char **argv)
{
	struct link l;

	link_open(&l, argc, argv);
	refused(&l);
	limited(&l, IBV_QPT_RC);
	limited(&l, IBV_QPT_UC);
	limited(&l, IBV_QPT_UD);
	changed(&l);
	answers(&l);
	link_close(&l);
	return 0;
}
