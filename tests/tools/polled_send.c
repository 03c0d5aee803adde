// SPDX-License-Identifier: BSD-2-Clause
/*
 * polled_send [COUNT]: a RC QP pair in one process; sends COUNT small messages from one to the
 * other and polls for every completion. tests/tools/syscalls counts what that asks of the kernel.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <infiniband/verbs.h>

#define DEPTH 64 /* messages under way */
#define SIZE 32	 /* bytes each */
#define GID_INDEX 1

/* Prints why and ends the program. */
__attribute__((noreturn)) static void fail(const char *what, int err)
{
	fprintf(stderr, "polled_send: %s: %s\n", what, strerror(err));
	exit(1);
}

/* Takes a QP from RESET to RTS, connected to another on the same port. */
static void connect_qp(struct ibv_qp *qp, uint32_t dest_qpn, const union ibv_gid *gid)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = dest_qpn,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.min_rnr_timer = 12,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = *gid, .sgid_index = GID_INDEX, .hop_limit = 64}},
	};
	int err;

	err = ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (err)
		fail("modify to INIT", err);
	attr.qp_state = IBV_QPS_RTR;
	err = ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER);
	if (err)
		fail("modify to RTR", err);
	attr.qp_state = IBV_QPS_RTS;
	err = ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	if (err)
		fail("modify to RTS", err);
}

/* Sends and receives count messages. */
static void exchange(struct ibv_qp *from, struct ibv_qp *to, struct ibv_cq *cq, struct ibv_mr *mr,
		     unsigned long count)
{
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = SIZE, .lkey = mr->lkey};
	struct ibv_send_wr send = {.sg_list = &sge,
				   .num_sge = 1,
				   .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED};
	struct ibv_sge into = {.addr = sge.addr + SIZE, .length = SIZE, .lkey = mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &into, .num_sge = 1};
	struct ibv_send_wr *bad_send;
	struct ibv_recv_wr *bad_recv;
	unsigned long posted = 0, sent = 0, received = 0;
	struct ibv_wc wc[16];
	int err, n;

	for (int i = 0; i < 2 * DEPTH; i++) {
		err = ibv_post_recv(to, &recv, &bad_recv);
		if (err)
			fail("post_recv", err);
	}
	while (sent < count || received < count) {
		while (posted < count && posted - sent < DEPTH && posted - received < DEPTH) {
			err = ibv_post_send(from, &send, &bad_send);
			if (err)
				fail("post_send", err);
			posted++;
		}
		n = ibv_poll_cq(cq, 16, wc);
		if (n < 0)
			fail("poll_cq", EIO);
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS) {
				fprintf(stderr, "polled_send: completion: %s\n",
					ibv_wc_status_str(wc[i].status));
				exit(1);
			}
			if (!(wc[i].opcode & IBV_WC_RECV)) {
				sent++;
				continue;
			}
			received++;
			err = ibv_post_recv(to, &recv, &bad_recv);
			if (err)
				fail("post_recv", err);
		}
	}
}

int main(int argc, char **argv)
{
	unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 0) : 100000;
	struct ibv_qp_init_attr init = {
		.cap = {.max_send_wr = DEPTH,
			.max_recv_wr = 2 * DEPTH,
			.max_send_sge = 1,
			.max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_device **list = ibv_get_device_list(NULL);
	static char buffer[2 * SIZE];
	struct timespec begin, end;
	struct ibv_context *ctx;
	struct ibv_qp *qp[2];
	union ibv_gid gid;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	double seconds;

	if (!list || !list[0])
		fail("no device", ENODEV);
	ctx = ibv_open_device(list[0]);
	if (!ctx)
		fail("open_device", errno);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(ctx);
	init.send_cq = init.recv_cq = ibv_create_cq(ctx, 4 * DEPTH, NULL, NULL, 0);
	if (!pd || !init.send_cq)
		fail("alloc_pd or create_cq", errno);
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		fail("reg_mr", errno);
	for (int i = 0; i < 2; i++) {
		qp[i] = ibv_create_qp(pd, &init);
		if (!qp[i])
			fail("create_qp", errno);
	}
	if (ibv_query_gid(ctx, 1, GID_INDEX, &gid))
		fail("query_gid", errno);
	for (int i = 0; i < 2; i++)
		connect_qp(qp[i], qp[!i]->qp_num, &gid);

	clock_gettime(CLOCK_MONOTONIC, &begin);
	exchange(qp[0], qp[1], init.send_cq, mr, count);
	clock_gettime(CLOCK_MONOTONIC, &end);
	seconds =
		(double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
	printf("%lu messages in %.3f s, %.0f a second\n", count, seconds, (double)count / seconds);

	for (int i = 0; i < 2; i++)
		ibv_destroy_qp(qp[i]);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(init.send_cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(ctx);
	return 0;
}
