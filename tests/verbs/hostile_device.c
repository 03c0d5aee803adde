// SPDX-License-Identifier: BSD-2-Clause
/*
 * Devices that are removed under everything that can be under way: programs in mid-traffic, killed
 * before or after, packets that a fault holds back for longer than the device lives, a capture of
 * it, groups with members, target QPs, imports. Another device gets its name, its number and its
 * place in memory, and none of what was left. The other device's programs notice nothing.
 */
#include "admin.h"
#include "honest.h"

#define NAME "passing"
#define HELD_MS 150

static void open_passing(struct env *e)
{
	memset(e, 0, sizeof(*e));
	struct ibv_device *dev = find_device(NAME);

	CHECK(dev);
	e->ctx = ibv_open_device(dev);
	CHECK(e->ctx);
	e->pd = ibv_alloc_pd(e->ctx);
	e->cq = ibv_create_cq(e->ctx, 256, NULL, NULL, 0);
	e->buf = aligned_alloc(4096, BUF_SIZE);
	CHECK(e->pd && e->cq && e->buf);
	e->mr = ibv_reg_mr(e->pd, e->buf, BUF_SIZE,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(e->mr);
	CHECK_EQ(ibv_query_gid(e->ctx, 1, 1, &e->gid), 0);
}

/* A member of a group, for the daemon to take away. */
static void join(struct env *e)
{
	union ibv_gid group = {.raw = {[10] = 0xff, [11] = 0xff, 239, 23, 0, 1}};
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp *qp;

	init.qp_type = IBV_QPT_UD;
	qp = ibv_create_qp(e->pd, &init);
	CHECK(qp);
	CHECK_EQ(ibv_attach_mcast(qp, &group, 0), 0);
}

/* WRITEs and SENDs until the device is no more, or this process. */
static void traffic(int ready)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp *qp[2];
	struct ibv_sge sge;
	struct ibv_wc wc[16];
	struct env e;

	open_passing(&e);
	join(&e);
	init = env_qp_attr(&e);
	qp[0] = ibv_create_qp(e.pd, &init);
	qp[1] = ibv_create_qp(e.pd, &init);
	CHECK(qp[0] && qp[1]);
	connect_pair(&e, qp[0], qp[1]);
	sge = sge_at(&e, 0, 9000);
	for (unsigned long n = 0;; n++) {
		struct ibv_send_wr wr = {.sg_list = &sge,
					 .num_sge = 1,
					 .opcode = n % 2 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
					 .send_flags = IBV_SEND_SIGNALED,
					 .wr.rdma = {(uintptr_t)e.buf + 16384, e.mr->rkey}},
				   *bad;

		if (n % 2)
			post_recv_at(qp[1], n, &sge);
		if (ibv_post_send(qp[0], &wr, &bad) == EIO)
			break;
		if (n == 8)
			CHECK_EQ(write(ready, "", 1), 1);
		while (ibv_poll_cq(e.cq, 16, wc) > 0)
			;
	}
	_exit(0);
}

/* Starts it. @return its PID; it is at work */
static pid_t start_traffic(void)
{
	int fds[2];
	char byte;
	pid_t pid;

	CHECK_EQ(pipe(fds), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		close(fds[0]);
		traffic(fds[1]);
	}
	close(fds[1]);
	CHECK_EQ(read(fds[0], &byte, 1), 1);
	close(fds[0]);
	return pid;
}

static void end_traffic(pid_t pid, int sig)
{
	int status;

	if (sig)
		CHECK_EQ(kill(pid, sig), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(sig || status == 0);
}

/* A rule of the daemon, until the connection ends. */
static void add_rule(struct raw *r, const char *rule)
{
	struct vernic_request req = {.command = VERNIC_CMD_FAULT_ADD, .fault_add.temporary = 1};

	strcpy(req.fault_add.rule, rule);
	CHECK_EQ(raw_start(r), 0);
	CHECK_EQ(raw_call(r, &req), 0);
}

/* Captures what the device sends, until the connection ends. */
static void add_capture(struct raw *r)
{
	struct vernic_request req = {.command = VERNIC_CMD_CAPTURE,
				     .capture = {.device = NAME, .snaplen = 128, .size = 1 << 20}};

	CHECK_EQ(raw_start(r), 0);
	CHECK_EQ(raw_call(r, &req), 0);
}

/* Waits until what was held would have gone, with the honest ones at work. */
static void outlast(struct honest *h)
{
	double end = seconds() + 2 * HELD_MS * 1e-3;

	do
		honest_check(h);
	while (seconds() < end);
}

/* @what: who goes first: the process, killed; the device; the process, which notices */
static void remove_under(struct honest *h, const char *rule, int what)
{
	long qps = status_sum("qp");
	struct raw rules, capture;
	pid_t pid;

	CHECK_EQ(admin_add("name=" NAME), 0);
	if (rule)
		add_rule(&rules, rule);
	add_capture(&capture);
	pid = start_traffic();
	if (what == 0) {
		end_traffic(pid, SIGKILL);
		CHECK_EQ(admin(VERNIC_DEVICE_REMOVE, NAME, NULL), 0);
	} else {
		CHECK_EQ(admin(VERNIC_DEVICE_REMOVE, NAME, NULL), 0);
		end_traffic(pid, what == 1 ? SIGKILL : 0);
	}
	status_expect("qp", qps);
	/* Its place in memory is another's at once. */
	CHECK_EQ(admin_add("name=" NAME), 0);
	if (rule)
		outlast(h);
	pid = start_traffic();
	end_traffic(pid, SIGKILL);
	CHECK_EQ(admin(VERNIC_DEVICE_REMOVE, NAME, NULL), 0);
	status_expect("qp", qps);
	raw_end(&capture);
	if (rule)
		raw_end(&rules);
	honest_check(h);
}

int main(void)
{
	static const char *const rules[] = {
		NULL,
		"delay=150ms,device=" NAME,
		"delay=150ms,device=" NAME ",dir=rx",
		"delay=150ms,device=" NAME ",dir=tx,jitter=100ms",
		"reorder=2,device=" NAME,
		"cqe-delay=150ms,device=" NAME,
	};
	struct honest *h = honest_start();
	pid_t pid = daemon_pid();
	unsigned int fds = daemon_fds(pid);

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
		for (int what = 0; what < 3; what++) {
			/* All three of the first two; of the others one. */
			if (i < 2 || (size_t)what == i % 3)
				remove_under(h, rules[i], what);
		}
	}
	/* As fast as can be. */
	for (int i = 0; i < 9; i++)
		remove_under(h, NULL, i % 3);
	honest_stop(h);
	status_expect("qp", 0);
	daemon_expect_fds(pid, fds);
	return 0;
}
