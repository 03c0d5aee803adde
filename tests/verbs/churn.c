// SPDX-License-Identifier: BSD-2-Clause
/*
 * Clients that are killed at any moment, under traffic, with events unread, while a peer process
 * talks to them, and one that is stopped for a while. Their peers get error completions, a program
 * beside them notices nothing, and the daemon keeps neither descriptors nor memory of them.
 *
 * The argument is the number of lifetimes.
 */
#include <signal.h>

#include "honest.h"
#include "raw.h"

#define GROWTH_MAX (4 * 1024) /* KiB the daemon's memory may vary */

/* Two processes introduce their QPs to each other here. */
struct meeting {
	_Atomic uint32_t qpn[2];
	_Atomic uint32_t rkey[2];
	_Atomic uint64_t addr[2];
	_Atomic unsigned long rounds[2];
};

/* Sends, writes and reads without end, whatever becomes of it. */
static void talk(struct meeting *m, int me, uint64_t seed)
{
	struct ibv_comp_channel *channel;
	struct ibv_qp_init_attr attr;
	struct ibv_srq_init_attr sattr = {.attr = {.max_wr = 64, .max_sge = 1}};
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct env e;

	env_open(&e);
	channel = ibv_create_comp_channel(e.ctx);
	CHECK(channel);
	cq = ibv_create_cq(e.ctx, 128, NULL, channel, 0);
	srq = ibv_create_srq(e.pd, &sattr);
	CHECK(cq && srq);
	attr = env_qp_attr(&e);
	attr.send_cq = attr.recv_cq = cq;
	attr.srq = seed & 1 ? srq : NULL;
	qp = ibv_create_qp(e.pd, &attr);
	CHECK(qp);
	to_init(qp);
	m->rkey[me] = e.mr->rkey;
	m->addr[me] = (uintptr_t)e.buf;
	m->qpn[me] = qp->qp_num;
	while (!m->qpn[!me])
		usleep(100);
	to_rtr(&e, qp, m->qpn[!me]);
	to_rts(qp);
	for (;; m->rounds[me]++) {
		struct ibv_sge in = sge_at(&e, 32768, 16384);
		struct ibv_sge out = sge_at(&e, 0, 1 + raw_below(&seed, 16384));
		struct ibv_send_wr wr = {.sg_list = &out,
					 .num_sge = 1,
					 .opcode = (enum ibv_wr_opcode)raw_below(&seed, 5),
					 .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED};
		struct ibv_send_wr *bad;
		struct ibv_recv_wr rwr = {.sg_list = &in, .num_sge = 1}, *rbad;
		struct ibv_wc wc[16];
		int n;

		ibv_req_notify_cq(cq, 0);
		if (attr.srq)
			ibv_post_srq_recv(srq, &rwr, &rbad);
		else
			ibv_post_recv(qp, &rwr, &rbad);
		wr.wr.rdma.remote_addr = m->addr[!me];
		wr.wr.rdma.rkey = m->rkey[!me];
		ibv_post_send(qp, &wr, &bad);
		n = ibv_poll_cq(cq, 16, wc);
		for (int i = 0; i < n; i++)
			if (wc[i].status != IBV_WC_SUCCESS)
				_exit(0); /* the peer was killed */
	}
}

static pid_t start(struct meeting *m, int me, uint64_t seed)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		talk(m, me, seed);
		_exit(0);
	}
	return pid;
}

static void end(pid_t pid, int signal)
{
	int status;

	if (signal)
		CHECK_EQ(kill(pid, signal), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
}

/* Some pairs, killed one after the other. */
static void generation(uint64_t *seed, unsigned int pairs)
{
	struct meeting *m = mmap(NULL, pairs * sizeof(*m), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid[2 * pairs];

	CHECK(m != MAP_FAILED);
	for (unsigned int i = 0; i < 2 * pairs; i++)
		pid[i] = start(&m[i / 2], (int)i % 2, raw_random(seed));
	usleep(raw_below(seed, 30000));
	for (unsigned int i = 0; i < 2 * pairs; i++) {
		end(pid[i], SIGKILL);
		usleep(raw_below(seed, 500));
	}
	munmap(m, pairs * sizeof(*m));
}

/* One of a pair is killed: the other one learns of it by its retries. */
static void survivor(uint64_t seed)
{
	struct meeting *m =
		mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t a, b;

	CHECK(m != MAP_FAILED);
	a = start(m, 0, seed);
	b = start(m, 1, seed + 1);
	while (m->rounds[0] < 10 || m->rounds[1] < 10)
		usleep(100);
	end(a, SIGKILL);
	end(b, 0);
	munmap(m, sizeof(*m));
}

/* A stopped client holds up nobody, and goes on where it was. */
static void stopped(struct honest *honest)
{
	struct meeting *m =
		mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned long before;
	pid_t a, b;

	CHECK(m != MAP_FAILED);
	a = start(m, 0, 2);
	b = start(m, 1, 4);
	while (m->rounds[0] < 10 || m->rounds[1] < 10)
		usleep(100);
	CHECK_EQ(kill(a, SIGSTOP), 0);
	for (int i = 0; i < 10; i++) {
		usleep(100000);
		honest_check(honest);
		CHECK(status_sum("qp") >= 4);
	}
	before = m->rounds[0];
	CHECK_EQ(kill(a, SIGCONT), 0);
	while (m->rounds[0] < before + 10)
		usleep(100);
	end(a, SIGKILL);
	end(b, SIGKILL);
	munmap(m, sizeof(*m));
}

int main(int argc, char **argv)
{
	unsigned int lifetimes = argc > 1 ? (unsigned int)atoi(argv[1]) : 240, pairs = 4;
	struct honest *honest = honest_start();
	pid_t daemon = daemon_pid();
	unsigned int fds = daemon_fds(daemon);
	unsigned long rss = 0;
	uint64_t seed = 1;

	for (unsigned int n = 0; n < lifetimes; n += 2 * pairs) {
		generation(&seed, pairs);
		honest_check(honest);
		/* By then all that is kept for the next client is there. */
		if (n < lifetimes / 2)
			rss = daemon_rss(daemon);
	}
	survivor(1);
	survivor(2);
	stopped(honest);
	daemon_expect_fds(daemon, fds);
	honest_stop(honest);
	status_expect("pd", 0);
	status_expect("mr", 0);
	status_expect("channel", 0);
	status_expect("cq", 0);
	status_expect("srq", 0);
	status_expect("qp", 0);
	status_expect("qps", 0);
	if (daemon_sanitized(daemon))
		return 0;
	if (daemon_rss(daemon) > rss + GROWTH_MAX)
		fprintf(stderr, "the daemon grew from %lu to %lu KiB\n", rss, daemon_rss(daemon));
	CHECK(daemon_rss(daemon) <= rss + GROWTH_MAX);
	return 0;
}
