// SPDX-License-Identifier: BSD-2-Clause
/*
 * A peer on the wire that sends anything: every opcode in every state, PSNs, lengths and keys at
 * random, good and bad ICRCs, runts, answers to nothing. QPs that talk to it may fail; the daemon,
 * a program beside it and memory outside the registered region do not.
 *
 * The device has ADDRESS; this program is also its peer, at PEER. Arguments: seed, seconds.
 */
#include "honest.h"
#include "peer.h"
#include "raw.h"

#define ADDRESS "127.77.0.1"
#define PEER "127.77.0.2"
#define QPS 5
#define REGION 16384 /* bytes registered for remote access, in the middle of the buffer */

struct target {
	struct ibv_qp *qp;
	enum ibv_qp_type type;
	uint32_t psn; /* a guess at what it expects */
};

struct attack {
	struct env e;
	struct ibv_mr *mr;
	struct peer peer;
	struct target target[QPS];
	uint64_t seed;
};

static const enum ibv_qp_type types[QPS] = {IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
					    IBV_QPT_RC};

/* Brings a QP to RTR or RTS, the peer being us. */
static void revive(struct attack *a, struct target *t)
{
	bool rc = t->type == IBV_QPT_RC, ud = t->type == IBV_QPT_UD;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
		.path_mtu = IBV_MTU_256,
		.dest_qp_num = 0x123450,
		.max_dest_rd_atomic = 4,
		.max_rd_atomic = 4,
		.min_rnr_timer = 1,
		.timeout = 8,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = a->peer.gid, .sgid_index = 1, .hop_limit = 64}}};
	struct ibv_sge in = {(uintptr_t)a->e.buf + REGION, REGION, a->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &in,
				 .num_sge = 1,
				 .opcode = raw_below(&a->seed, 2) ? IBV_WR_RDMA_READ : IBV_WR_SEND,
				 .wr.rdma.rkey = 1};
	struct ibv_send_wr *bad;

	to_state(t->qp, IBV_QPS_RESET);
	t->psn = 0;
	CHECK_EQ(ibv_modify_qp(t->qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
		 0);
	for (int i = 0; i < 16; i++)
		CHECK_EQ(post_recv_at(t->qp, 0, &in), 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_EQ(ibv_modify_qp(t->qp, &attr,
			       IBV_QP_STATE |
				       (ud ? 0
					   : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
							IBV_QP_RQ_PSN) |
				       (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)),
		 0);
	if (ud || raw_below(&a->seed, 4) == 0)
		return;
	attr.qp_state = IBV_QPS_RTS;
	/* A packet on its way may have ended it already. */
	if (ibv_modify_qp(t->qp, &attr,
			  IBV_QP_STATE | IBV_QP_SQ_PSN |
				  (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						   IBV_QP_MAX_QP_RD_ATOMIC
				      : 0)) != 0)
		return;
	/* Something outstanding, for ghosts to answer. */
	if (rc)
		for (int i = 0; i < 4; i++)
			CHECK_EQ(ibv_post_send(t->qp, &wr, &bad), 0);
}

static uint32_t any_length(uint64_t *seed)
{
	switch (raw_below(seed, 6)) {
	case 0:
		return (uint32_t)raw_random(seed);
	case 1:
		return (1u << raw_below(seed, 32)) - 1 + raw_below(seed, 3);
	case 2:
		return 256 * raw_below(seed, 64);
	default:
		return raw_below(seed, 1024);
	}
}

/* Builds a packet. @return its length, bytes */
static size_t build(struct attack *a, struct target *t, uint8_t *buf)
{
	static const uint8_t syndromes[] = {0x1f, 0,	0x20, 0x60, 0x61,
					    0x62, 0x63, 0x64, 0x7f, 0xff};
	uint64_t *seed = &a->seed;
	uint8_t service = t->type == IBV_QPT_RC	  ? WIRE_RC
			  : t->type == IBV_QPT_UC ? WIRE_UC
						  : WIRE_UD;
	struct wire_packet p = {
		.solicited = raw_below(seed, 2),
		.ackreq = raw_below(seed, 2),
		.pkey = raw_below(seed, 30) ? 0xffff : (uint16_t)raw_random(seed),
		.dest_qpn = raw_below(seed, 30) ? t->qp->qp_num
						: (uint32_t)raw_random(seed) & QPN_MASK,
		.psn = raw_below(seed, 8) ? t->psn : t->psn + raw_below(seed, 9) - 4,
		.reth = {(uintptr_t)a->e.buf + REGION + raw_below(seed, REGION), a->mr->rkey,
			 any_length(seed)},
		.aeth = {syndromes[raw_below(seed, sizeof(syndromes))],
			 (uint32_t)raw_random(seed) & PSN_MASK},
		.atomic_orig = raw_random(seed),
		.deth = {raw_below(seed, 4) != 0, (uint32_t)raw_random(seed) & QPN_MASK},
		.imm = (uint32_t)raw_random(seed),
	};
	uint32_t len, pad;
	size_t head;

	do
		p.opcode = raw_below(seed, 40) ? service | raw_below(seed, 24)
					       : (uint8_t)raw_random(seed);
	while (!wire_opcodes[p.opcode].name);
	if (raw_below(seed, 20) == 0)
		p.psn = (uint32_t)raw_random(seed);
	p.psn &= PSN_MASK;
	if (raw_below(seed, 20) == 0)
		p.reth.rkey = (uint32_t)raw_random(seed);
	if (raw_below(seed, 20) == 0)
		p.reth.va = raw_random(seed);
	p.atomic.va = p.reth.va & ~UINT64_C(7);
	p.atomic.rkey = p.reth.rkey;
	p.atomic.swap_add = raw_random(seed);
	len = raw_below(seed, 3) ? 256 : raw_below(seed, 700);
	if (!(wire_opcodes[p.opcode].flags & OPF_PAYLOAD) && raw_below(seed, 20))
		len = 0;
	if (wire_opcodes[p.opcode].flags & OPF_RETH && raw_below(seed, 2))
		p.reth.length = len;
	p.payload_len = len;
	p.pad = pad = -len & 3;
	if (raw_below(seed, 50) == 0)
		p.pad = (uint8_t)raw_below(seed, 4);
	head = wire_encode(buf, &p);
	memset(buf + head, (int)raw_random(seed), len + pad);
	/* What it expects next, if it took this one. */
	if (wire_opcodes[p.opcode].flags & OPF_REQUEST && p.psn == t->psn)
		t->psn = (t->psn + 1) & PSN_MASK;
	return head + len + pad;
}

static void send_one(struct attack *a)
{
	struct target *t = &a->target[raw_below(&a->seed, QPS)];
	uint8_t buf[2048] = {0};
	size_t len = build(a, t, buf);
	uint32_t change = 0;

	if (raw_below(&a->seed, 60) == 0)
		buf[raw_below(&a->seed, (uint32_t)len)] ^= (uint8_t)raw_random(&a->seed);
	if (raw_below(&a->seed, 60) == 0)
		len = raw_below(&a->seed, (uint32_t)len + 1);
	if (raw_below(&a->seed, 30) == 0)
		change = 1u << raw_below(&a->seed, 32);
	if (len < BTH_LEN)
		peer_send_raw(&a->peer, buf, len);
	else
		peer_send(&a->peer, buf, len, change);
	/* What it answers is of no interest. */
	while (recv(a->peer.fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
		;
}

static void attack_open(struct attack *a)
{
	env_open(&a->e);
	/* Only the part in the middle. */
	a->mr = ibv_reg_mr(a->e.pd, a->e.buf + REGION, REGION,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(a->mr);
	peer_open(&a->peer, PEER, ADDRESS);
	for (unsigned int i = 0; i < QPS; i++) {
		struct ibv_qp_init_attr init = env_qp_attr(&a->e);

		init.qp_type = types[i];
		a->target[i].type = types[i];
		a->target[i].qp = ibv_create_qp(a->e.pd, &init);
		CHECK(a->target[i].qp);
		revive(a, &a->target[i]);
	}
}

int main(int argc, char **argv)
{
	static struct attack a;
	union ibv_gid own = gid_of(ADDRESS);
	struct honest *honest = honest_start();
	double end;
	long packets = 0;

	a.seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	end = seconds() + (argc > 2 ? atof(argv[2]) : 5);
	attack_open(&a);
	CHECK(!memcmp(&own, &a.e.gid, sizeof(own)));
	memset(a.e.buf, 0x77, BUF_SIZE);
	while (seconds() < end) {
		struct ibv_wc wc[16];

		for (int i = 0; i < 40; i++, packets++)
			send_one(&a);
		while (ibv_poll_cq(a.e.cq, 16, wc) > 0)
			;
		revive(&a, &a.target[raw_below(&a.seed, QPS)]);
	}
	honest_check(honest);
	honest_stop(honest);
	for (unsigned int i = 0; i < QPS; i++)
		CHECK_EQ(ibv_destroy_qp(a.target[i].qp), 0);
	for (int i = 0; i < BUF_SIZE; i++)
		CHECK((i >= REGION && i < 2 * REGION) || a.e.buf[i] == 0x77);
	CHECK(status_sum("rx_datagrams") > packets / 4);
	CHECK(status_sum("bad_icrc") > 0);
	CHECK(status_sum("malformed") > 0);
	CHECK(status_sum("tx_datagrams") > 0);
	CHECK_EQ(ibv_dereg_mr(a.mr), 0);
	env_close(&a.e);
	close(a.peer.fd);
	return 0;
}
