// SPDX-License-Identifier: BSD-2-Clause
/*
 * Multicast: a datagram to a group reaches every attached QP but the sender's own, with the group
 * in its GRH; who is not attached, or has another Q_Key, gets nothing. What cannot be attached, and
 * what cannot be destroyed meanwhile. Arguments: the group; the index of the GID to send from.
 */
#include <arpa/inet.h>
#include <unistd.h>

#include "common.h"

#define QKEY 0x1234
#define MAX_QPS 16

struct member {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	const struct env *e;
	uint32_t slot; /* of its env's buffer, KiB */
};

/*
 * A UD QP in RTS with receives. The first of each device asks not to get what it sends itself; the
 * others do not get theirs either.
 */
static void member_open(struct member *m, const struct env *e, uint32_t slot, uint32_t qkey)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey};
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_sge in = sge_at(e, 1024 * (slot + 1), 1024);
	struct ibv_qp_init_attr_ex ex;

	*m = (struct member){.e = e, .slot = slot};
	m->cq = ibv_create_cq(e->ctx, 64, NULL, NULL, 0);
	CHECK(m->cq);
	ex = (struct ibv_qp_init_attr_ex){
		.send_cq = m->cq,
		.recv_cq = m->cq,
		.cap = init.cap,
		.qp_type = IBV_QPT_UD,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.pd = e->pd,
		.create_flags = slot == 0 ? IBV_QP_CREATE_BLOCK_SELF_MCAST_LB : 0,
	};
	m->qp = ibv_create_qp_ex(e->ctx, &ex);
	CHECK(m->qp);
	CHECK_EQ(ibv_modify_qp(m->qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
		 0);
	to_state(m->qp, IBV_QPS_RTR);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(m->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	for (int i = 0; i < 16; i++)
		CHECK_EQ(post_recv_at(m->qp, 7, &in), 0);
}

/* Sends a datagram and waits until it has left. */
static void send_to(struct member *m, struct ibv_ah *ah, uint32_t qpn)
{
	struct ibv_sge out = sge_at(m->e, 0, 300);
	struct ibv_send_wr wr = {.wr_id = 1,
				 .sg_list = &out,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND_WITH_IMM,
				 .imm_data = htonl(77),
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.ud = {.ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY}};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	CHECK_EQ(ibv_post_send(m->qp, &wr, &bad), 0);
	wait_wc(m->cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(wc.opcode, IBV_WC_SEND);
}

/* The datagram has come: from that QP, to that group. @return its completion */
static struct ibv_wc expect_datagram(struct member *m, const struct member *from,
				     const union ibv_gid *group)
{
	const uint8_t *in = m->e->buf + 1024 * (m->slot + 1);
	struct ibv_wc wc;

	wait_wc(m->cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(wc.opcode, IBV_WC_RECV);
	CHECK_EQ(wc.byte_len, 340);
	CHECK_EQ(wc.src_qp, from->qp->qp_num);
	CHECK_EQ(ntohl(wc.imm_data), 77);
	CHECK(wc.wc_flags & IBV_WC_GRH);
	CHECK(!memcmp(in + 40, from->e->buf, 300));
	if (group->raw[0] == 0xff)
		CHECK(!memcmp(in + 24, group->raw, 16));
	else
		CHECK(!memcmp(in + 36, group->raw + 12, 4));
	return wc;
}

/* An answer to what came goes to the sender alone, by an address handle made from it. */
static void answer(struct member *m, struct ibv_wc *wc, struct member *to)
{
	struct ibv_grh *grh = (struct ibv_grh *)(m->e->buf + 1024 * (m->slot + 1));
	struct ibv_ah *ah = ibv_create_ah_from_wc(m->e->pd, wc, grh, 1);
	struct ibv_wc got;

	CHECK(ah);
	send_to(m, ah, wc->src_qp);
	wait_wc(to->cq, 1, &got);
	CHECK_EQ(got.status, IBV_WC_SUCCESS);
	CHECK_EQ(got.src_qp, m->qp->qp_num);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
}

/* What is refused. */
static void refused(struct env *e, struct member *m, const union ibv_gid *group)
{
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp *rc = ibv_create_qp(e->pd, &init);

	CHECK(rc);
	CHECK_EQ(ibv_attach_mcast(rc, group, 0), EINVAL);
	CHECK_EQ(ibv_detach_mcast(m->qp, group, 0), EINVAL);
	CHECK_EQ(ibv_attach_mcast(m->qp, &e->gid, 0), EINVAL);
	CHECK_EQ(ibv_attach_mcast(m->qp, group, 0), 0);
	CHECK_EQ(ibv_attach_mcast(m->qp, group, 0), 0);
	CHECK_EQ(ibv_destroy_qp(m->qp), EBUSY);
	CHECK_EQ(ibv_detach_mcast(m->qp, group, 0), 0);
	CHECK_EQ(ibv_detach_mcast(m->qp, group, 0), EINVAL);
	CHECK_EQ(ibv_destroy_qp(rc), 0);
}

int main(int argc, char **argv)
{
	const char *text = argc > 1 ? argv[1] : "239.14.0.1";
	int sgid_index = argc > 2 ? atoi(argv[2]) : 1;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct member m[MAX_QPS], wrong, stranger;
	union ibv_gid group = {.raw = {[10] = 0xff, [11] = 0xff}};
	struct env env[4];
	struct ibv_ah *ah;
	struct ibv_wc wc;
	int devices, n = 0;

	CHECK(inet_pton(AF_INET, text, group.raw + 12) == 1 ||
	      inet_pton(AF_INET6, text, group.raw) == 1);
	/* Three QPs on each device; those of one network are one group. */
	CHECK(list && list[0]);
	for (devices = 0; devices < 4 && list[devices]; devices++) {
		struct ibv_device *one[] = {list[devices], NULL};
		struct env *e = &env[devices];

		e->ctx = ibv_open_device(one[0]);
		CHECK(e->ctx);
		e->pd = ibv_alloc_pd(e->ctx);
		e->cq = ibv_create_cq(e->ctx, 64, NULL, NULL, 0);
		e->buf = aligned_alloc(4096, BUF_SIZE);
		CHECK(e->pd && e->cq && e->buf);
		memset(e->buf, 0x30 + devices, BUF_SIZE);
		e->mr = ibv_reg_mr(e->pd, e->buf, BUF_SIZE, IBV_ACCESS_LOCAL_WRITE);
		CHECK(e->mr);
		CHECK_EQ(ibv_query_gid(e->ctx, 1, sgid_index, &e->gid), 0);
		for (uint32_t i = 0; i < 3; i++)
			member_open(&m[n++], e, i, QKEY);
	}
	member_open(&wrong, &env[0], 3, QKEY + 1);
	member_open(&stranger, &env[0], 4, QKEY);
	refused(&env[0], &m[0], &group);

	ah = ibv_create_ah(env[0].pd,
			   &(struct ibv_ah_attr){.is_global = 1,
						 .port_num = 1,
						 .grh = {.dgid = group,
							 .sgid_index = (uint8_t)sgid_index,
							 .hop_limit = 64}});
	CHECK(ah);
	CHECK_EQ(ibv_attach_mcast(wrong.qp, &group, 0), 0);
	for (int i = 0; i < n; i++)
		CHECK_EQ(ibv_attach_mcast(m[i].qp, &group, 0), 0);
	/* From one of them: the others get it. */
	send_to(&m[0], ah, 0xffffff);
	for (int i = 1; i < n; i++) {
		wc = expect_datagram(&m[i], &m[0], &group);
		answer(&m[i], &wc, &m[0]);
	}
	/* From one that is not attached: all of them. To a QP by way of the group: nobody. */
	send_to(&stranger, ah, m[1].qp->qp_num);
	send_to(&stranger, ah, 0xffffff);
	for (int i = 0; i < n; i++)
		expect_datagram(&m[i], &stranger, &group);
	/* Not to who has left. */
	CHECK_EQ(ibv_detach_mcast(m[n - 1].qp, &group, 0), 0);
	send_to(&stranger, ah, 0xffffff);
	for (int i = 0; i < n - 1; i++)
		expect_datagram(&m[i], &stranger, &group);
	for (int i = 0; i < n; i++)
		expect_empty(m[i].cq);
	expect_empty(wrong.cq);
	expect_empty(stranger.cq);

	CHECK_EQ(ibv_detach_mcast(wrong.qp, &group, 0), 0);
	for (int i = 0; i < n - 1; i++)
		CHECK_EQ(ibv_detach_mcast(m[i].qp, &group, 0), 0);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
	for (int i = 0; i < n; i++)
		CHECK_EQ(ibv_destroy_qp(m[i].qp), 0);
	/* The rest is left to the daemon, one of them attached. */
	CHECK_EQ(ibv_attach_mcast(stranger.qp, &group, 0), 0);
	_exit(0);
}
