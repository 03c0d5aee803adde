// SPDX-License-Identifier: BSD-2-Clause
/*
 * XRC between processes: a message comes by the target QP of one process into the SRQ of another;
 * the target stays while anybody has it open; and a SRQ goes with its process, for all to notice.
 */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

#define MESSAGES 20
#define LEN 3000

struct told {
	uint32_t srqn;
	uint64_t addr;
	uint32_t rkey;
};

static struct ibv_xrcd *open_xrcd(struct env *e, int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd,
		.oflags = oflags,
	};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(e->ctx, &attr);

	CHECK(xrcd);
	return xrcd;
}

static void get(int fd, void *buf, size_t len)
{
	CHECK_EQ(read(fd, buf, len), len);
}

static void put(int fd, const void *buf, size_t len)
{
	CHECK_EQ(write(fd, buf, len), len);
}

/* The process that has the SRQ, and in the end the target QP alone. */
static void receiver(int fd, int from, int to)
{
	struct ibv_srq_init_attr_ex sattr = {
		.attr = {.max_wr = MESSAGES, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
	};
	struct ibv_qp_open_attr oattr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_recv_wr wr = {.num_sge = 1}, *bad;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct ibv_sge sge;
	struct ibv_wc wc;
	struct told told;
	struct env e;
	uint32_t qpn;
	char byte = 0;

	env_open(&e);
	xrcd = open_xrcd(&e, fd, 0);
	sattr.pd = e.pd;
	sattr.cq = e.cq;
	sattr.xrcd = xrcd;
	srq = ibv_create_srq_ex(e.ctx, &sattr);
	CHECK(srq);
	CHECK_EQ(ibv_get_srq_num(srq, &told.srqn), 0);
	told.addr = (uintptr_t)e.buf;
	told.rkey = e.mr->rkey;
	get(from, &qpn, sizeof(qpn));
	oattr.qp_num = qpn;
	oattr.xrcd = xrcd;
	CHECK(ibv_open_qp(e.ctx, &oattr));
	wr.sg_list = &sge;
	for (uint32_t i = 0; i < MESSAGES; i++) {
		sge = sge_at(&e, 4096 + i % 4 * 4096, LEN);
		wr.wr_id = i;
		CHECK_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
	}
	put(to, &told, sizeof(told));
	for (uint32_t i = 0; i < MESSAGES; i++) {
		uint32_t len = i % 2 ? LEN : 8;

		wait_wc(e.cq, 1, &wc);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK_EQ(wc.wr_id, i);
		CHECK_EQ(wc.qp_num, qpn);
		CHECK_EQ(wc.byte_len, len);
		for (uint32_t k = 0; k < len; k++)
			CHECK_EQ(e.buf[4096 + i % 4 * 4096 + k], i + 1);
		/* One at a time: the buffers are few. */
		put(to, &byte, 1);
	}
	/* A RDMA WRITE is for the memory of the SRQ's process. */
	get(from, &byte, 1);
	CHECK_EQ(e.buf[0], 0x77);
	/* Ends without tidying up, and with a receive taken from the SRQ by nobody. */
	_exit(0);
}

static struct ibv_wc do_send(struct ibv_qp *ini, struct ibv_cq *cq, enum ibv_wr_opcode opcode,
			     const struct told *told, struct ibv_sge *sge)
{
	struct ibv_send_wr wr = {
		.sg_list = sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = told->addr, .rkey = told->rkey},
		.qp_type.xrc.remote_srqn = told->srqn,
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	CHECK_EQ(ibv_post_send(ini, &wr, &bad), 0);
	wait_wc(cq, 1, &wc);
	return wc;
}

int main(void)
{
	struct ibv_qp_init_attr_ex tattr = {.qp_type = IBV_QPT_XRC_RECV,
					    .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	char path[] = "/tmp/vernic-xrc-XXXXXX", byte = 0;
	int to_child[2], to_parent[2], status;
	int fd = mkstemp(path);
	struct ibv_qp_init_attr attr;
	struct ibv_qp *ini, *tgt;
	struct ibv_xrcd *xrcd;
	struct told told;
	struct ibv_sge sge;
	struct env e;
	uint32_t qpn;
	pid_t child;

	CHECK(fd >= 0);
	unlink(path);
	CHECK(!pipe(to_child) && !pipe(to_parent));
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		close(to_child[1]);
		close(to_parent[0]);
		get(to_child[0], &byte, 1); /* the domain is there */
		receiver(fd, to_child[0], to_parent[1]);
	}
	close(to_child[0]);
	close(to_parent[1]);
	env_open(&e);
	xrcd = open_xrcd(&e, fd, O_CREAT | O_EXCL);
	put(to_child[1], &byte, 1);
	tattr.xrcd = xrcd;
	tgt = ibv_create_qp_ex(e.ctx, &tattr);
	attr = env_qp_attr(&e);
	attr.qp_type = IBV_QPT_XRC_SEND;
	ini = ibv_create_qp(e.pd, &attr);
	CHECK(ini && tgt);
	connect_pair(&e, ini, tgt);
	qpn = tgt->qp_num;
	put(to_child[1], &qpn, sizeof(qpn));
	get(to_parent[0], &told, sizeof(told));
	for (uint32_t i = 0; i < MESSAGES; i++) {
		/* Half way the target is the other process's alone, and so is the domain. */
		if (i == MESSAGES / 2) {
			CHECK_EQ(ibv_destroy_qp(tgt), 0);
			CHECK_EQ(ibv_close_xrcd(xrcd), 0);
		}
		memset(e.buf, (int)i + 1, LEN);
		sge = sge_at(&e, 0, i % 2 ? LEN : 8);
		CHECK_EQ(do_send(ini, e.cq, IBV_WR_SEND, &told, &sge).status, IBV_WC_SUCCESS);
		get(to_parent[0], &byte, 1);
	}
	/* Our own rkey is none of the SRQ's PD: then the connection would end. */
	e.buf[0] = 0x77;
	sge = sge_at(&e, 0, 1);
	CHECK_EQ(do_send(ini, e.cq, IBV_WR_RDMA_WRITE, &told, &sge).status, IBV_WC_SUCCESS);
	put(to_child[1], &byte, 1);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* With the process the SRQ has gone, and the target. */
	CHECK_EQ(do_send(ini, e.cq, IBV_WR_SEND, &told, &sge).status, IBV_WC_RETRY_EXC_ERR);
	CHECK_EQ(ibv_destroy_qp(ini), 0);
	env_close(&e);
	return 0;
}
