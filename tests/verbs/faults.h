/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the tests of faults share: two sides, each a device context with its CQ and buffer, on one
 * daemon (its local port between them) or, with a path to vernicd as argument, on two joined by
 * UDP; and rules for either side's daemon.
 */
#ifndef VERNIC_TEST_VERBS_FAULTS_H
#define VERNIC_TEST_VERBS_FAULTS_H

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "raw.h"

#ifndef FAULTS_ADDRESS
#define FAULTS_ADDRESS "127.82.0.2" /* of the second daemon */
#endif

struct side {
	struct env e;
	struct raw control; /* a connection to its daemon, for rules */
};

struct link {
	struct side a, b; /* a sends, b answers */
	bool udp;
	pid_t daemon;
	char dir[32];
};

/* How a pair is connected: enum ibv_qp_attr's fields. */
struct timing {
	uint8_t min_rnr_timer, rnr_retry, timeout, retry_cnt;
};
static const struct timing timing_default = {1, 7, 14, 7};

/* Starts the second daemon, and has the library find it from now on. */
static inline void link_start_daemon(struct link *l, const char *vernicd)
{
	char socket[64], fd[16], byte;
	int fds[2];

	strcpy(l->dir, "/tmp/vernic-fault-XXXXXX");
	CHECK(mkdtemp(l->dir));
	snprintf(socket, sizeof(socket), "%s/s", l->dir);
	CHECK_EQ(pipe(fds), 0);
	l->daemon = fork();
	CHECK(l->daemon >= 0);
	if (l->daemon == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		snprintf(fd, sizeof(fd), "%d", fds[1]);
		execl(vernicd, vernicd, "--socket", socket, "--device",
		      "name=peer,addr=" FAULTS_ADDRESS, "--ready-fd", fd, NULL);
		_exit(127);
	}
	close(fds[1]);
	CHECK_EQ(read(fds[0], &byte, 1), 1);
	close(fds[0]);
	setenv(VERNIC_SOCKET_ENV, socket, 1);
}

static inline void link_open(struct link *l, int argc, char **argv)
{
	*l = (struct link){.udp = argc > 1};
	env_open(&l->a.e);
	CHECK_EQ(raw_start(&l->a.control), 0);
	if (l->udp)
		link_start_daemon(l, argv[1]);
	env_open(&l->b.e);
	CHECK_EQ(raw_start(&l->b.control), 0);
}

static inline void link_close(struct link *l)
{
	int status;

	raw_end(&l->a.control);
	raw_end(&l->b.control);
	env_close(&l->a.e);
	env_close(&l->b.e);
	if (!l->udp)
		return;
	CHECK_EQ(kill(l->daemon, SIGTERM), 0);
	CHECK_EQ(waitpid(l->daemon, &status, 0), l->daemon);
	CHECK_EQ(status, 0);
	CHECK_EQ(rmdir(l->dir), 0);
}

/* Adds a rule to a side's daemon. @return its id */
__attribute__((format(printf, 2, 3))) static inline uint32_t fault_add(struct side *s,
								       const char *format, ...)
{
	struct vernic_request req = {.command = VERNIC_CMD_FAULT_ADD};
	va_list args;

	va_start(args, format);
	vsnprintf(req.fault_add.rule, sizeof(req.fault_add.rule), format, args);
	va_end(args);
	CHECK_EQ(raw_call(&s->control, &req), 0);
	return s->control.reply.handle;
}

/* Removes a rule, or all with 0. */
static inline void fault_clear(struct side *s, uint32_t id)
{
	struct vernic_request req = {.command = VERNIC_CMD_FAULT_CLEAR, .fault_clear = {.id = id}};

	CHECK_EQ(raw_call(&s->control, &req), 0);
}

/* What the list of rules says of one: matched and struck. */
static inline void fault_counts(struct side *s, uint32_t id, unsigned long counts[2])
{
	static char text[sizeof(struct vernic_reply) + 128 * 1024];
	struct vernic_request req = {.command = VERNIC_CMD_FAULT_LIST, .fault_list = {.json = 1}};
	char want[32], *p;
	ssize_t n;

	CHECK_EQ(raw_send(s->control.fd, &req, sizeof(req), NULL, 0), 0);
	n = raw_receive(&s->control, text, sizeof(text) - 1);
	CHECK(n > (ssize_t)sizeof(struct vernic_reply));
	text[n] = '\0';
	snprintf(want, sizeof(want), "{\"id\":%u,", id);
	p = strstr(text + sizeof(struct vernic_reply), want);
	CHECK(p);
	p = strstr(p, "\"matched\":");
	CHECK(p && sscanf(p, "\"matched\":%lu,\"struck\":%lu", &counts[0], &counts[1]) == 2);
}

static inline void link_init_qp(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 17};

	if (qp->qp_type != IBV_QPT_UD) {
		to_init(qp);
		return;
	}
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
		 0);
}

/* INIT to RTS. @to: the peer's side, and its QP's number */
static inline void link_raise_qp(struct ibv_qp *qp, const struct side *to, uint32_t peer,
				 const struct timing *t)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 4,
		.max_rd_atomic = 4,
		.min_rnr_timer = t->min_rnr_timer,
		.rnr_retry = t->rnr_retry,
		.timeout = t->timeout,
		.retry_cnt = t->retry_cnt,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = to->e.gid, .sgid_index = 1, .hop_limit = 64}},
	};
	int mask = IBV_QP_STATE;

	if (qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK_EQ(ibv_modify_qp(qp, &attr, mask), 0);
	attr.qp_state = IBV_QPS_RTS;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK_EQ(ibv_modify_qp(qp, &attr, mask), 0);
}

/* Connects a QP of side a with one of side b, from whatever state they are in. */
static inline void link_connect(struct link *l, struct ibv_qp *a, struct ibv_qp *b,
				const struct timing *t)
{
	to_state(a, IBV_QPS_RESET);
	to_state(b, IBV_QPS_RESET);
	link_init_qp(a);
	link_init_qp(b);
	link_raise_qp(a, &l->b, b->qp_num, t);
	link_raise_qp(b, &l->a, a->qp_num, t);
}

static inline struct ibv_qp *link_qp(struct side *s, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = env_qp_attr(&s->e);
	struct ibv_qp *qp;

	attr.qp_type = type;
	qp = ibv_create_qp(s->e.pd, &attr);
	CHECK(qp);
	return qp;
}

/* Posts a request of a's buffer [0, length) about b's from 0. @return as ibv_post_send() */
static inline int link_post(struct link *l, struct ibv_qp *qp, enum ibv_wr_opcode opcode,
			    uint64_t wr_id, uint32_t length, unsigned int flags)
{
	struct ibv_sge sge = sge_at(&l->a.e, 0, length);
	struct ibv_send_wr wr = {.wr_id = wr_id,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = opcode,
				 .send_flags = flags};
	struct ibv_send_wr *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = (uintptr_t)l->b.e.buf;
		wr.wr.atomic.rkey = l->b.e.mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)l->b.e.buf;
		wr.wr.rdma.rkey = l->b.e.mr->rkey;
	}
	return ibv_post_send(qp, &wr, &bad);
}

/* Posts a receive for b's buffer [0, length). */
static inline void link_recv(struct link *l, struct ibv_qp *qp, uint64_t wr_id, uint32_t length)
{
	struct ibv_sge sge = sge_at(&l->b.e, 0, length);

	CHECK_EQ(post_recv_at(qp, wr_id, &sge), 0);
}

/* The next completion of a side. */
static inline void expect_wc(struct side *s, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	wait_wc(s->e.cq, 1, &wc);
	if (wc.status != status)
		fprintf(stderr, "wr_id %llu: %s\n", (unsigned long long)wc.wr_id,
			ibv_wc_status_str(wc.status));
	CHECK_EQ(wc.status, status);
	CHECK_EQ(wc.wr_id, wr_id);
}

/* The state comes to be this one. */
static inline void expect_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	double end = seconds() + TEST_TIMEOUT;

	do {
		CHECK_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
		CHECK(seconds() < end);
	} while (attr.qp_state != state);
}

/* The next event of a side is this one, of the QP; or there is none. */
static inline void expect_event(struct side *s, struct ibv_qp *qp, enum ibv_event_type type)
{
	struct pollfd fd = {.fd = s->e.ctx->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	CHECK_EQ(poll(&fd, 1, TEST_TIMEOUT * 1000), 1);
	CHECK_EQ(ibv_get_async_event(s->e.ctx, &event), 0);
	CHECK_EQ(event.event_type, type);
	CHECK(event.element.qp == qp);
	ibv_ack_async_event(&event);
}

static inline void expect_no_event(struct side *s)
{
	struct pollfd fd = {.fd = s->e.ctx->async_fd, .events = POLLIN};

	CHECK_EQ(poll(&fd, 1, 20), 0);
}

#endif
