// SPDX-License-Identifier: BSD-2-Clause
/*
 * XRC in one process: domains, what may be made in them and when they may be closed; every
 * operation from an initiator QP to the SRQ it names; a target QP that lives as long as it is open;
 * what is refused, and how.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <unistd.h>

#include "common.h"

#define TO 8192 /* where in the buffer the other side's data goes */

struct xrc {
	struct env e;
	int fd;
	struct ibv_xrcd *xrcd;
	struct ibv_cq *srq_cq;
	struct ibv_srq *srq;
	uint32_t srqn;
	struct ibv_qp *ini, *tgt;
};

static struct ibv_xrcd *open_xrcd(struct env *e, int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd,
		.oflags = oflags,
	};

	return ibv_open_xrcd(e->ctx, &attr);
}

static struct ibv_srq *create_srq(struct env *e, struct ibv_xrcd *xrcd, struct ibv_cq *cq)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = {.max_wr = 16, .max_sge = 2},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = e->pd,
		.xrcd = xrcd,
		.cq = cq,
	};

	return ibv_create_srq_ex(e->ctx, &attr);
}

static struct ibv_qp *create_target(struct env *e, struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.xrcd = xrcd,
	};

	return ibv_create_qp_ex(e->ctx, &attr);
}

static struct ibv_qp *open_target(struct env *e, struct ibv_xrcd *xrcd, uint32_t qpn)
{
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = qpn,
		.xrcd = xrcd,
		.qp_type = IBV_QPT_XRC_RECV,
	};

	return ibv_open_qp(e->ctx, &attr);
}

/* Connects both halves anew. @rnr_retry: of the initiator */
static void connect_xrc(struct xrc *x, uint8_t rnr_retry)
{
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
				  .timeout = 14,
				  .retry_cnt = 7,
				  .rnr_retry = rnr_retry,
				  .max_rd_atomic = 4};

	to_state(x->ini, IBV_QPS_RESET);
	to_state(x->tgt, IBV_QPS_RESET);
	to_init(x->ini);
	to_init(x->tgt);
	to_rtr(&x->e, x->ini, x->tgt->qp_num);
	to_rtr(&x->e, x->tgt, x->ini->qp_num);
	to_rts(x->tgt);
	CHECK_EQ(ibv_modify_qp(x->ini, &rts,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
}

static int post_srq(struct xrc *x, uint64_t wr_id, struct ibv_sge *sge)
{
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = sge, .num_sge = 1}, *bad;

	return ibv_post_srq_recv(x->srq, &wr, &bad);
}

/* Posts a request to the SRQ srqn and waits for its end. */
static struct ibv_wc do_send(struct xrc *x, enum ibv_wr_opcode opcode, uint32_t srqn,
			     struct ibv_sge *sge)
{
	struct ibv_send_wr wr = {
		.wr_id = 77,
		.sg_list = sge,
		.num_sge = sge ? 1 : 0,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = 0x12345678,
		.qp_type.xrc.remote_srqn = srqn,
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)x->e.buf + TO;
		wr.wr.atomic.rkey = x->e.mr->rkey;
		wr.wr.atomic.compare_add = 5;
		wr.wr.atomic.swap = 9;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)x->e.buf + TO;
		wr.wr.rdma.rkey = x->e.mr->rkey;
	}
	CHECK_EQ(ibv_post_send(x->ini, &wr, &bad), 0);
	wait_wc(x->e.cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 77);
	CHECK_EQ(wc.qp_num, x->ini->qp_num);
	return wc;
}

/* Domains are named by files: by the inode, whatever the descriptor. */
static void domains(struct env *e)
{
	char path[] = "/tmp/vernic-xrc-XXXXXX";
	int fd = mkstemp(path), fd2;
	struct ibv_xrcd *a, *b;

	CHECK(fd >= 0);
	CHECK(!open_xrcd(e, fd, 0));
	CHECK_EQ(errno, EAGAIN);
	CHECK(!open_xrcd(e, -1, 0));
	CHECK_EQ(errno, EAGAIN);
	a = open_xrcd(e, fd, O_CREAT | O_EXCL);
	CHECK(a);
	fd2 = open(path, O_RDONLY);
	CHECK(fd2 >= 0);
	CHECK(!open_xrcd(e, fd2, O_CREAT | O_EXCL));
	CHECK_EQ(errno, EINVAL);
	b = open_xrcd(e, fd2, 0);
	CHECK(b);
	/* The domain outlives the first handle. */
	CHECK_EQ(ibv_close_xrcd(a), 0);
	a = open_xrcd(e, fd, 0);
	CHECK(a);
	CHECK_EQ(ibv_close_xrcd(a), 0);
	CHECK_EQ(ibv_close_xrcd(b), 0);
	CHECK(!open_xrcd(e, fd, 0));
	unlink(path);
	close(fd);
	close(fd2);
}

/* What a QP or SRQ cannot be made of, and what is not for posting. */
static void refusals(struct xrc *x)
{
	struct ibv_qp_init_attr plain = env_qp_attr(&x->e);
	struct ibv_srq_init_attr sattr = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *basic = ibv_create_srq(x->e.pd, &sattr);
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad;

	CHECK(basic);
	plain.qp_type = IBV_QPT_XRC_SEND;
	plain.srq = basic;
	CHECK(!ibv_create_qp(x->e.pd, &plain));
	CHECK_EQ(errno, EINVAL);
	plain.qp_type = IBV_QPT_XRC_RECV;
	plain.srq = NULL;
	CHECK(!ibv_create_qp(x->e.pd, &plain)); /* no domain */
	CHECK_EQ(errno, EINVAL);
	plain.qp_type = IBV_QPT_RC;
	plain.srq = x->srq;
	CHECK(!ibv_create_qp(x->e.pd, &plain)); /* its SRQ is of XRC */
	CHECK_EQ(errno, EINVAL);
	CHECK(!create_srq(&x->e, x->xrcd, NULL));
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(ibv_post_send(x->tgt, &wr, &bad), EINVAL);
	CHECK_EQ(post_recv_at(x->ini, 0, NULL), EINVAL);
	CHECK_EQ(post_recv_at(x->tgt, 0, NULL), EINVAL);
	CHECK(!open_target(&x->e, x->xrcd, x->ini->qp_num));
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(ibv_destroy_srq(basic), 0);
}

/* Every operation, at sizes with one packet and several. */
static void operations(struct xrc *x)
{
	static const uint32_t lengths[] = {0, 1, 64, 1024, 1025, 5000};
	struct ibv_sge in = sge_at(&x->e, TO, 8000), word = sge_at(&x->e, 0, 8);
	uint64_t *there = (uint64_t *)(x->e.buf + TO), *here = (uint64_t *)x->e.buf;
	struct ibv_wc wc;

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		static const enum ibv_wr_opcode ops[] = {
			IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
			IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ};
		struct ibv_sge out = sge_at(&x->e, 0, lengths[i]);

		for (size_t k = 0; k < sizeof(ops) / sizeof(ops[0]); k++) {
			bool imm = ops[k] == IBV_WR_SEND_WITH_IMM ||
				   ops[k] == IBV_WR_RDMA_WRITE_WITH_IMM;
			bool takes = imm || ops[k] == IBV_WR_SEND;

			memset(x->e.buf, (int)(1 + i + k), 8000);
			memset(x->e.buf + TO, (int)(100 + i + k), 8000);
			if (takes)
				CHECK_EQ(post_srq(x, 1000 + k, &in), 0);
			wc = do_send(x, ops[k], x->srqn, &out);
			CHECK_EQ(wc.status, IBV_WC_SUCCESS);
			if (takes) {
				wait_wc(x->srq_cq, 1, &wc);
				CHECK_EQ(wc.status, IBV_WC_SUCCESS);
				CHECK_EQ(wc.wr_id, 1000 + k);
				CHECK_EQ(wc.qp_num, x->tgt->qp_num);
				CHECK_EQ(wc.byte_len, lengths[i]);
				CHECK_EQ(wc.opcode, ops[k] == IBV_WR_RDMA_WRITE_WITH_IMM
							    ? IBV_WC_RECV_RDMA_WITH_IMM
							    : IBV_WC_RECV);
				CHECK(!imm ||
				      (wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x12345678));
			}
			CHECK(!memcmp(x->e.buf, x->e.buf + TO, lengths[i]));
		}
	}
	*there = 5;
	CHECK_EQ(do_send(x, IBV_WR_ATOMIC_CMP_AND_SWP, x->srqn, &word).status, IBV_WC_SUCCESS);
	CHECK_EQ(*here, 5);
	CHECK_EQ(do_send(x, IBV_WR_ATOMIC_FETCH_AND_ADD, x->srqn, &word).status, IBV_WC_SUCCESS);
	CHECK_EQ(*here, 9);
	CHECK_EQ(*there, 14);
	*here = 0x1122334455667788;
	wc = do_send(x, IBV_WR_ATOMIC_WRITE, x->srqn, &word);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(wc.opcode, IBV_WC_ATOMIC_WRITE);
	CHECK_EQ(*there, 0x1122334455667788);
	expect_empty(x->srq_cq);
}

/* The target reports an access error, and is in ERR. */
static void expect_access_event(struct xrc *x)
{
	struct pollfd ready = {.fd = x->e.ctx->async_fd, .events = POLLIN};
	struct ibv_async_event event;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	do {
		CHECK_EQ(poll(&ready, 1, TEST_TIMEOUT * 1000), 1);
		CHECK_EQ(ibv_get_async_event(x->e.ctx, &event), 0);
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_COMM_EST);
	CHECK_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
	CHECK(event.element.qp == x->tgt);
	CHECK_EQ(ibv_query_qp(x->tgt, &attr, IBV_QP_STATE, &init), 0);
	CHECK_EQ(attr.qp_state, IBV_QPS_ERR);
}

/* A SRQ that is not there, or of another domain: for WRITEs too. */
static void violations(struct xrc *x)
{
	struct ibv_xrcd *other = open_xrcd(&x->e, -1, O_CREAT);
	struct ibv_srq *stranger;
	struct ibv_sge out = sge_at(&x->e, 0, 8);
	uint32_t number;

	CHECK(other);
	stranger = create_srq(&x->e, other, x->srq_cq);
	CHECK(stranger);
	CHECK_EQ(ibv_get_srq_num(stranger, &number), 0);
	CHECK(number && number != x->srqn);
	for (int write = 0; write < 2; write++) {
		enum ibv_wr_opcode op = write ? IBV_WR_RDMA_WRITE : IBV_WR_SEND;

		x->e.buf[TO] = 0;
		connect_xrc(x, 7);
		CHECK_EQ(do_send(x, op, x->srqn ^ 0x800000, &out).status, IBV_WC_REM_INV_REQ_ERR);
		expect_access_event(x);
		connect_xrc(x, 7);
		CHECK_EQ(do_send(x, op, number, &out).status, IBV_WC_REM_ACCESS_ERR);
		expect_access_event(x);
		CHECK_EQ(x->e.buf[TO], 0);
	}
	CHECK_EQ(ibv_destroy_srq(stranger), 0);
	CHECK_EQ(ibv_close_xrcd(other), 0);
	/* Gone since. */
	connect_xrc(x, 7);
	CHECK_EQ(do_send(x, IBV_WR_SEND, number, &out).status, IBV_WC_REM_INV_REQ_ERR);
	expect_access_event(x);
}

/* Receives that are not there, or do not do. The SRQ's others stay where they are. */
static void receives(struct xrc *x)
{
	struct ibv_sge out = sge_at(&x->e, 0, 100), small = sge_at(&x->e, TO, 10);
	struct ibv_sge in = sge_at(&x->e, TO, 100);
	struct ibv_wc wc;

	connect_xrc(x, 0);
	CHECK_EQ(do_send(x, IBV_WR_SEND, x->srqn, &out).status, IBV_WC_RNR_RETRY_EXC_ERR);
	connect_xrc(x, 7);
	CHECK_EQ(post_srq(x, 1, &small), 0);
	CHECK_EQ(post_srq(x, 2, &in), 0);
	CHECK_EQ(do_send(x, IBV_WR_SEND, x->srqn, &out).status, IBV_WC_REM_INV_REQ_ERR);
	wait_wc(x->srq_cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
	CHECK_EQ(wc.wr_id, 1);
	expect_empty(x->srq_cq);
	connect_xrc(x, 7);
	CHECK_EQ(do_send(x, IBV_WR_SEND, x->srqn, &out).status, IBV_WC_SUCCESS);
	wait_wc(x->srq_cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 2);
}

/* It goes when the last handle does; what is made in a domain, or on a CQ, keeps it. */
static void lifetime(struct xrc *x)
{
	struct ibv_sge out = sge_at(&x->e, 0, 8), in = sge_at(&x->e, TO, 8);
	struct ibv_qp *again = open_target(&x->e, x->xrcd, x->tgt->qp_num);
	uint32_t qpn = x->tgt->qp_num;
	struct ibv_wc wc;

	CHECK(again && again != x->tgt);
	CHECK_EQ(again->qp_num, qpn);
	CHECK_EQ(again->state, IBV_QPS_RTS);
	CHECK_EQ(ibv_close_xrcd(x->xrcd), EBUSY);
	CHECK_EQ(ibv_destroy_cq(x->srq_cq), EBUSY);
	CHECK_EQ(ibv_destroy_qp(x->tgt), 0);
	x->tgt = again;
	CHECK_EQ(post_srq(x, 5, &in), 0);
	CHECK_EQ(do_send(x, IBV_WR_SEND, x->srqn, &out).status, IBV_WC_SUCCESS);
	wait_wc(x->srq_cq, 1, &wc);
	CHECK_EQ(wc.qp_num, qpn);
	CHECK_EQ(ibv_destroy_qp(again), 0);
	CHECK(!open_target(&x->e, x->xrcd, qpn));
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(ibv_close_xrcd(x->xrcd), EBUSY); /* the SRQ */
	/* A CQE of a SRQ that goes is not seen any more. */
	CHECK_EQ(ibv_destroy_srq(x->srq), 0);
	CHECK_EQ(ibv_close_xrcd(x->xrcd), 0);
	CHECK_EQ(ibv_destroy_cq(x->srq_cq), 0);
}

int main(void)
{
	struct ibv_qp_init_attr attr;
	struct ibv_device_attr dev;
	struct xrc x = {0};

	env_open(&x.e);
	CHECK_EQ(ibv_query_device(x.e.ctx, &dev), 0);
	CHECK(dev.device_cap_flags & IBV_DEVICE_XRC);
	domains(&x.e);
	x.xrcd = open_xrcd(&x.e, -1, O_CREAT);
	x.srq_cq = ibv_create_cq(x.e.ctx, 64, NULL, NULL, 0);
	CHECK(x.xrcd && x.srq_cq);
	x.srq = create_srq(&x.e, x.xrcd, x.srq_cq);
	CHECK(x.srq);
	CHECK_EQ(ibv_get_srq_num(x.srq, &x.srqn), 0);
	CHECK(x.srqn && x.srqn <= 0xffffff);
	attr = env_qp_attr(&x.e);
	attr.qp_type = IBV_QPT_XRC_SEND;
	attr.recv_cq = NULL;
	x.ini = ibv_create_qp(x.e.pd, &attr);
	x.tgt = create_target(&x.e, x.xrcd);
	CHECK(x.ini && x.tgt);
	refusals(&x);
	connect_xrc(&x, 7);
	operations(&x);
	violations(&x);
	receives(&x);
	lifetime(&x);
	CHECK_EQ(ibv_destroy_qp(x.ini), 0);
	env_close(&x.e);
	return 0;
}
