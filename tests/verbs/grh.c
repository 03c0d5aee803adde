// SPDX-License-Identifier: BSD-2-Clause
/*
 * The 40 bytes in front of a datagram: an IPv4 header in the last 20, or a GRH, with what the
 * sender's address handle says; and the address handle that leads back, made from them.
 */
#include <arpa/inet.h>

#include "common.h"

#define QKEY 0x77

static struct ibv_qp *make_qp(struct env *e)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp *qp;

	init.qp_type = IBV_QPT_UD;
	qp = ibv_create_qp(e->pd, &init);
	CHECK(qp);
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
		 0);
	to_state(qp, IBV_QPS_RTR);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	return qp;
}

/* Sends len bytes from a to b by an address handle, and waits for both completions. */
static struct ibv_wc transfer(struct env *e, struct ibv_qp *a, struct ibv_qp *b, struct ibv_ah *ah,
			      uint32_t len)
{
	struct ibv_sge out = sge_at(e, 0, len), in = sge_at(e, 4096, 1024);
	struct ibv_send_wr wr = {.sg_list = &out,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.ud = {.ah = ah, .remote_qpn = b->qp_num, .remote_qkey = QKEY}};
	struct ibv_send_wr *bad;
	struct ibv_wc wc[2];

	memset(e->buf + 4096, 0xaa, 1024);
	CHECK_EQ(post_recv_at(b, 0, &in), 0);
	CHECK_EQ(ibv_post_send(a, &wr, &bad), 0);
	wait_wc(e->cq, 2, wc);
	CHECK(wc[0].status == IBV_WC_SUCCESS && wc[1].status == IBV_WC_SUCCESS);
	return wc[wc[0].opcode == IBV_WC_RECV ? 0 : 1];
}

/* From the GID of that index to itself. */
static void round_trip(struct env *e, struct ibv_qp *a, struct ibv_qp *b, uint8_t index,
		       uint32_t len)
{
	struct ibv_ah_attr attr = {.is_global = 1,
				   .port_num = 1,
				   .sl = 3,
				   .grh = {.sgid_index = index,
					   .hop_limit = 17,
					   .traffic_class = 0x48,
					   .flow_label = 0x12345}},
			   back;
	const uint8_t *grh = e->buf + 4096;
	uint16_t udp = 8 + 12 + 8 + (uint16_t)((len + 3) & ~3u) + 4;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	int ipv4 = index != 0;

	CHECK_EQ(ibv_query_gid(e->ctx, 1, index, &attr.grh.dgid), 0);
	ah = ibv_create_ah(e->pd, &attr);
	CHECK(ah);
	wc = transfer(e, a, b, ah, len);
	CHECK_EQ(wc.byte_len, 40 + len);
	CHECK_EQ(wc.src_qp, a->qp_num);
	CHECK_EQ(wc.sl, ipv4 ? 10 : 9); /* as ConnectX says which header it is */
	CHECK(wc.wc_flags & IBV_WC_GRH);
	if (ipv4) {
		const uint8_t *ip = grh + 20;
		uint32_t sum = 0;

		CHECK_EQ(ip[0], 0x45);
		CHECK_EQ(ip[1], 0x48);
		CHECK_EQ(ip[2] << 8 | ip[3], 20 + udp);
		CHECK_EQ(ip[8], 17);
		CHECK_EQ(ip[9], 17);
		CHECK(!memcmp(ip + 12, attr.grh.dgid.raw + 12, 4));
		CHECK(!memcmp(ip + 16, attr.grh.dgid.raw + 12, 4));
		for (int i = 0; i < 20; i += 2)
			sum += (uint32_t)(ip[i] << 8 | ip[i + 1]);
		CHECK_EQ((sum & 0xffff) + (sum >> 16), 0xffff);
	} else {
		CHECK_EQ(grh[0] >> 4, 6);
		CHECK_EQ((grh[0] << 4 | grh[1] >> 4) & 0xff, 0x48);
		CHECK_EQ((grh[1] & 0xf) << 16 | grh[2] << 8 | grh[3], 0x12345);
		CHECK_EQ(grh[4] << 8 | grh[5], udp);
		CHECK_EQ(grh[7], 17);
		CHECK(!memcmp(grh + 8, attr.grh.dgid.raw, 16));
		CHECK(!memcmp(grh + 24, attr.grh.dgid.raw, 16));
	}
	CHECK(!memcmp(grh + 40, e->buf, len));
	CHECK_EQ(ibv_destroy_ah(ah), 0);

	CHECK_EQ(ibv_init_ah_from_wc(e->ctx, 1, &wc, (struct ibv_grh *)(uintptr_t)grh, &back), 0);
	CHECK(back.is_global && back.port_num == 1 && back.sl == wc.sl);
	CHECK_EQ(back.grh.sgid_index, index);
	CHECK_EQ(back.grh.traffic_class, 0x48);
	CHECK(!memcmp(&back.grh.dgid, &attr.grh.dgid, 16));
	if (!ipv4)
		CHECK_EQ(back.grh.flow_label, 0x12345);
	ah = ibv_create_ah_from_wc(e->pd, &wc, (struct ibv_grh *)(uintptr_t)grh, 1);
	CHECK(ah);
	wc = transfer(e, b, a, ah, 4);
	CHECK_EQ(wc.src_qp, b->qp_num);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
}

int main(void)
{
	static const uint32_t lengths[] = {0, 5, 24, 25, 200, 900};
	struct ibv_qp *a, *b;
	struct env e;

	env_open(&e);
	for (int i = 0; i < 1024; i++)
		e.buf[i] = (uint8_t)(i * 7);
	a = make_qp(&e);
	b = make_qp(&e);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		round_trip(&e, a, b, 0, lengths[i]);
		round_trip(&e, a, b, 1, lengths[i]);
	}
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	env_close(&e);
	return 0;
}
