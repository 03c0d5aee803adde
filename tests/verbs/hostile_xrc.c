// SPDX-License-Identifier: BSD-2-Clause
/*
 * XRC between processes of which one is killed: the SRQ goes in the middle of a message, and what
 * comes next for it, data or a fault's answer, finds it gone. And domains: who has no descriptor of
 * the file, or one of another, gets at nothing.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/file.h>

#include "faults.h"
#include "honest.h"

#define LEN 40000

static struct ibv_xrcd *open_xrcd(struct env *e, int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd,
		.oflags = oflags,
	};

	return ibv_open_xrcd(e->ctx, &attr);
}

static struct ibv_srq *create_srq(struct env *e, struct ibv_xrcd *xrcd)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = {.max_wr = 16, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = e->pd,
		.xrcd = xrcd,
		.cq = e->cq,
	};

	return ibv_create_srq_ex(e->ctx, &attr);
}

/* A side's events so far are of no interest. */
static void drop_events(struct side *s)
{
	struct pollfd fd = {.fd = s->e.ctx->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	while (poll(&fd, 1, 0) == 1) {
		CHECK_EQ(ibv_get_async_event(s->e.ctx, &event), 0);
		ibv_ack_async_event(&event);
	}
}

struct told {
	uint32_t srqn, rkey;
	uint64_t addr;
};

/* Has the SRQ, and waits to be killed. */
static void victim(int fd, int to)
{
	struct ibv_recv_wr wr = {.num_sge = 1}, *bad;
	struct ibv_sge sge;
	struct ibv_srq *srq;
	struct told told;
	struct env e;

	env_open(&e);
	srq = create_srq(&e, open_xrcd(&e, fd, 0));
	CHECK(srq);
	CHECK_EQ(ibv_get_srq_num(srq, &told.srqn), 0);
	told.addr = (uintptr_t)e.buf;
	told.rkey = e.mr->rkey;
	sge = sge_at(&e, 0, LEN);
	wr.sg_list = &sge;
	for (int i = 0; i < 4; i++)
		CHECK_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
	CHECK_EQ(write(to, &told, sizeof(told)), sizeof(told));
	for (;;)
		pause();
}

/*
 * A message stops in the middle, for its receiver is not ready; then the SRQ's process is killed.
 * @rule: what answers the rest; NULL: the responder itself
 */
static void in_the_middle(struct side *s, int fd, enum ibv_wr_opcode opcode, const char *rule,
			  bool first)
{
	struct ibv_qp_init_attr_ex tattr = {.qp_type = IBV_QPT_XRC_RECV,
					    .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp_init_attr attr = env_qp_attr(&s->e);
	struct ibv_xrcd *xrcd = open_xrcd(&s->e, fd, O_CREAT);
	struct ibv_sge sge = sge_at(&s->e, 0, LEN);
	struct ibv_send_wr wr = {.wr_id = 5,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	struct ibv_qp *ini, *tgt;
	unsigned long counts[2];
	uint32_t rnr, answer = 0;
	struct told told;
	struct ibv_wc wc;
	double end = seconds() + TEST_TIMEOUT;
	int fds[2];
	pid_t pid;
	long srqs;

	CHECK(xrcd);
	srqs = status_sum("srq");
	CHECK_EQ(pipe(fds), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		victim(fd, fds[1]);
	CHECK_EQ(read(fds[0], &told, sizeof(told)), sizeof(told));
	close(fds[0]);
	close(fds[1]);
	tattr.xrcd = xrcd;
	tgt = ibv_create_qp_ex(s->e.ctx, &tattr);
	attr.qp_type = IBV_QPT_XRC_SEND;
	ini = ibv_create_qp(s->e.pd, &attr);
	CHECK(ini && tgt);
	connect_pair(&s->e, ini, tgt);

	rnr = fault_add(s, "rnr,qp=%u,skip=%d", tgt->qp_num, first ? 0 : 10);
	wr.wr.rdma.remote_addr = told.addr;
	wr.wr.rdma.rkey = told.rkey;
	wr.qp_type.xrc.remote_srqn = told.srqn;
	CHECK_EQ(ibv_post_send(ini, &wr, &bad), 0);
	do {
		fault_counts(s, rnr, counts);
		CHECK(seconds() < end);
	} while (counts[1] == 0);
	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	status_expect("srq", srqs);
	if (rule)
		answer = fault_add(s, rule, tgt->qp_num);
	fault_clear(s, rnr);
	wait_wc(s->e.cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 5);
	CHECK(wc.status == IBV_WC_REM_INV_REQ_ERR || wc.status == IBV_WC_REM_ACCESS_ERR ||
	      wc.status == IBV_WC_REM_OP_ERR || wc.status == IBV_WC_RETRY_EXC_ERR);
	if (answer)
		fault_clear(s, answer);
	CHECK_EQ(ibv_destroy_qp(ini), 0);
	drop_events(s);
	CHECK_EQ(ibv_destroy_qp(tgt), 0);
	CHECK_EQ(ibv_close_xrcd(xrcd), 0);
}

/* The daemon holds the file, not the descriptor: neither its locks nor anybody's connection. */
static void held(struct side *s)
{
	char path[] = "/tmp/vernic-hostile-xrc-XXXXXX", byte;
	int fd = mkstemp(path), again = open(path, O_RDWR), other[2];
	struct ibv_xrcd *xrcd;

	CHECK(fd >= 0 && again >= 0);
	CHECK_EQ(flock(fd, LOCK_EX), 0);
	xrcd = open_xrcd(&s->e, fd, O_CREAT);
	CHECK(xrcd);
	CHECK_EQ(flock(again, LOCK_EX | LOCK_NB), -1);
	close(fd);
	CHECK_EQ(flock(again, LOCK_EX | LOCK_NB), 0);
	/* And it is the file: by another descriptor too. */
	CHECK(!open_xrcd(&s->e, again, O_CREAT | O_EXCL));
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(ibv_close_xrcd(xrcd), 0);
	CHECK_EQ(unlink(path), 0);
	close(again);

	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
	xrcd = open_xrcd(&s->e, other[0], O_CREAT);
	CHECK(!xrcd);
	CHECK_EQ(errno, EINVAL);
	close(other[0]);
	CHECK_EQ(read(other[1], &byte, 1), 0);
	close(other[1]);
	CHECK(!open_xrcd(&s->e, s->e.ctx->cmd_fd, O_CREAT));
}

/* Who may open what. */
static void domains(struct side *s, int fd)
{
	char path[] = "/tmp/vernic-hostile-xrc-XXXXXX";
	struct ibv_xrcd *mine = open_xrcd(&s->e, fd, O_CREAT | O_EXCL), *other, *private;
	struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_XRC_RECV,
					   .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp_open_attr oattr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_type = IBV_QPT_XRC_RECV,
	};
	int second = mkstemp(path);
	struct ibv_qp *tgt;
	struct env e;

	CHECK(mine && second >= 0);
	CHECK_EQ(unlink(path), 0);
	attr.xrcd = mine;
	tgt = ibv_create_qp_ex(s->e.ctx, &attr);
	CHECK(tgt);
	env_open(&e);
	/* Another file, which may have the inode number that ours had, and private domains. */
	CHECK(!open_xrcd(&e, second, 0));
	CHECK_EQ(errno, EAGAIN);
	CHECK(!open_xrcd(&e, -1, 0));
	other = open_xrcd(&e, second, O_CREAT);
	private = open_xrcd(&e, -1, O_CREAT);
	CHECK(other && private);
	oattr.qp_num = tgt->qp_num;
	oattr.xrcd = other;
	CHECK(!ibv_open_qp(e.ctx, &oattr));
	oattr.xrcd = private;
	CHECK(!ibv_open_qp(e.ctx, &oattr));
	CHECK_EQ(ibv_close_xrcd(other), 0);
	CHECK_EQ(ibv_close_xrcd(private), 0);
	env_close(&e);
	CHECK_EQ(ibv_destroy_qp(tgt), 0);
	CHECK_EQ(ibv_close_xrcd(mine), 0);
	close(second);
}

int main(void)
{
	static const char *const rules[] = {
		NULL,
		"nak=remote-operation,qp=%u",
		"nak=remote-access,qp=%u",
		"nak=invalid-request,qp=%u",
		"nak=sequence,qp=%u",
		"rnr,qp=%u,count=3",
		"status=LOC_PROT_ERR,dir=recv,qp=%u",
		"weak=1ms,qp=%u",
	};
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE,
						     IBV_WR_RDMA_WRITE_WITH_IMM};
	char path[] = "/tmp/vernic-hostile-xrc-XXXXXX";
	struct honest *h = honest_start();
	int fd = mkstemp(path);
	struct side s;

	CHECK(fd >= 0);
	CHECK_EQ(unlink(path), 0);
	env_open(&s.e);
	CHECK_EQ(raw_start(&s.control), 0);
	domains(&s, fd);
	held(&s);
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
		for (int k = 0; k < 3; k++) {
			in_the_middle(&s, fd, opcodes[k], rules[i], false);
			in_the_middle(&s, fd, opcodes[k], rules[i], true);
			honest_check(h);
		}
	}
	raw_end(&s.control);
	env_close(&s.e);
	honest_stop(h);
	close(fd);
	return 0;
}
