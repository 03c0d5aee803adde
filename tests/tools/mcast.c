// SPDX-License-Identifier: BSD-2-Clause
/*
 * A multicast group's receiver or sender, for two machines: `mcast recv GROUP COUNT` prints
 * "ready", then a line for each datagram, "from QPN, length N"; `mcast send GROUP COUNT` sends
 * them, each of another length, and prints its QPN. The GID is the first one of the group's kind
 * with an address.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

#define QKEY 0x11111111
#define SLOT 4096 /* bytes of a receive */

/* Ends the program unless ok. */
static void need(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "mcast: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int is_ipv4(const union ibv_gid *gid)
{
	static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(gid->raw, prefix, sizeof(prefix)) == 0;
}

/* @return the index of a GID of the group's kind; of IPv6 not the link-local one */
static uint8_t source_index(struct ibv_context *ctx, const union ibv_gid *group)
{
	union ibv_gid gid;

	for (int i = 1; ibv_query_gid(ctx, 1, i, &gid) == 0; i++) {
		if (gid.raw[0] + gid.raw[10] != 0 && is_ipv4(&gid) == is_ipv4(group))
			return (uint8_t)i;
	}
	need(0, "no address of that kind");
	return 0;
}

/* Waits for a completion, which must be good. */
static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	do {
		n = ibv_poll_cq(cq, 1, &wc);
	} while (n == 0);
	need(n == 1 && wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
	return wc;
}

int main(int argc, char **argv)
{
	union ibv_gid group = {.raw = {[10] = 0xff, [11] = 0xff}};
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_UD,
					.cap = {.max_send_wr = 1,
						.max_recv_wr = 256,
						.max_send_sge = 1,
						.max_recv_sge = 1}};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
	int count = argc > 3 ? atoi(argv[3]) : 0;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
	struct ibv_context *ctx;
	struct ibv_recv_wr *bad_recv;
	struct ibv_send_wr *bad_send;
	struct ibv_sge sge;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	char *buf;

	if (count < 1 || count > 256 ||
	    (inet_pton(AF_INET, argv[2], group.raw + 12) != 1 &&
	     inet_pton(AF_INET6, argv[2], group.raw) != 1)) {
		fputs("usage: mcast recv|send GROUP COUNT\n", stderr);
		return 2;
	}
	need(list && list[0], "no device");
	ctx = ibv_open_device(list[0]);
	need(ctx != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(ctx);
	buf = calloc((size_t)count, SLOT);
	need(pd && buf, "memory");
	mr = ibv_reg_mr(pd, buf, (size_t)count * SLOT, IBV_ACCESS_LOCAL_WRITE);
	init.send_cq = init.recv_cq = ibv_create_cq(ctx, 512, NULL, NULL, 0);
	need(mr && init.send_cq, "ibv_create_cq");
	qp = ibv_create_qp(pd, &init);
	need(qp != NULL, "ibv_create_qp");
	errno = ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	need(!errno, "INIT");
	attr.qp_state = IBV_QPS_RTR;
	errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	need(!errno, "RTR");
	attr.qp_state = IBV_QPS_RTS;
	errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
	need(!errno, "RTS");
	sge = (struct ibv_sge){(uintptr_t)buf, SLOT, mr->lkey};

	if (strcmp(argv[1], "recv") == 0) {
		struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1};

		for (int i = 0; i < count; i++) {
			sge.addr = (uintptr_t)(buf + i * SLOT);
			need(!ibv_post_recv(qp, &wr, &bad_recv), "ibv_post_recv");
		}
		errno = ibv_attach_mcast(qp, &group, 0);
		need(!errno, "ibv_attach_mcast");
		puts("ready");
		fflush(stdout);
		for (int i = 0; i < count; i++) {
			struct ibv_wc wc = completion(init.recv_cq);

			printf("from %u, length %u\n", wc.src_qp, wc.byte_len - 40);
			fflush(stdout);
		}
		errno = ibv_detach_mcast(qp, &group, 0);
		need(!errno, "ibv_detach_mcast");
		return 0;
	}
	to.grh.dgid = group;
	to.grh.sgid_index = source_index(ctx, &group);
	printf("%u\n", qp->qp_num);
	fflush(stdout);
	for (int i = 0; i < count; i++) {
		struct ibv_send_wr wr = {.sg_list = &sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_SEND,
					 .send_flags = IBV_SEND_SIGNALED,
					 .wr.ud = {.ah = ibv_create_ah(pd, &to),
						   .remote_qpn = 0xffffff,
						   .remote_qkey = QKEY}};

		need(wr.wr.ud.ah != NULL, "ibv_create_ah");
		sge.length = 10u + (uint32_t)i;
		need(!ibv_post_send(qp, &wr, &bad_send), "ibv_post_send");
		completion(init.send_cq);
		ibv_destroy_ah(wr.wr.ud.ah);
	}
	return 0;
}
