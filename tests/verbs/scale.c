// SPDX-License-Identifier: BSD-2-Clause
/*
 * Very many of everything, and very often: the time of one operation does not grow with what there
 * is or was, and neither does the daemon's memory. `scale FACTOR` does FACTOR per cent of it.
 */
#include <stdbool.h>

#include "raw.h"

#define QPS 10000
#define MRS 100000
#define MR_ROUNDS 200000
#define AH_ROUNDS 1000000
#define CONNECT_ROUNDS 5000

/* What grows does so each time; what other programs on the machine do, they do now and then. */
#define ATTEMPTS 4

static unsigned int percent = 100;
static pid_t daemon_process;

static unsigned int scaled(unsigned int n)
{
	return (unsigned int)((uint64_t)n * percent / 100) & ~7u;
}

/* Parts of equal work: what they took. */
struct pace {
	const char *name;
	double start;
	double part[4]; /* s */
	unsigned int next, parts;
	unsigned int each; /* operations a part */
};

static struct pace pace_start(const char *name, unsigned int operations)
{
	return (struct pace){
		.name = name, .start = seconds(), .each = operations / 4, .next = operations / 4};
}

/* Operation i (from 0) was done. */
static void pace_step(struct pace *p, unsigned int i)
{
	if (i + 1 != p->next || p->parts == 4)
		return;
	p->part[p->parts] = seconds() - p->start;
	p->start = seconds();
	p->parts++;
	p->next += p->each;
}

/* @return whether the last quarter took about what the first one did */
static bool pace_is_steady(const struct pace *p)
{
	double first = p->part[0] < p->part[1] ? p->part[0] : p->part[1];
	double last = p->part[2] < p->part[3] ? p->part[2] : p->part[3];

	CHECK_EQ(p->parts, 4);
	printf("%-16s %9.2f us each, then %9.2f us\n", p->name, first * 1e6 / p->each,
	       last * 1e6 / p->each);
	return last < 2.5 * first + 0.1;
}

/* The daemon's memory is what it was, give or take some MiB. */
static void expect_memory(const char *name, unsigned long before)
{
	unsigned long now = daemon_rss(daemon_process);

	if (now > before + 6144 && !daemon_sanitized(daemon_process)) {
		fprintf(stderr, "%s: the daemon grew from %lu to %lu KiB\n", name, before, now);
		exit(1);
	}
}

/* Many QPs in one process, connected in pairs, a message on each; the last one made works too. */
static bool many_qps(struct env *e, unsigned int n)
{
	struct ibv_qp **qp = calloc(n, sizeof(struct ibv_qp *));
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct pace create = pace_start("create QP", n), connect, message, destroy;
	struct ibv_sge out = sge_at(e, 0, 200), in = sge_at(e, 4096, 200);
	struct ibv_wc wc[2];
	bool steady;

	CHECK(qp);
	for (unsigned int i = 0; i < n; i++) {
		qp[i] = ibv_create_qp(e->pd, &init);
		CHECK(qp[i]);
		pace_step(&create, i);
	}
	connect = pace_start("connect pair", n / 2);
	for (unsigned int i = 0; i < n / 2; i++) {
		connect_pair(e, qp[i], qp[n - 1 - i]);
		pace_step(&connect, i);
	}
	message = pace_start("message", n);
	for (unsigned int i = 0; i < n; i++) {
		CHECK_EQ(post_recv_at(qp[n - 1 - i], i, &in), 0);
		CHECK_EQ(post_send_at(qp[i], i, &out, IBV_SEND_SIGNALED), 0);
		wait_wc(e->cq, 2, wc);
		for (int k = 0; k < 2; k++) {
			CHECK_EQ(wc[k].status, IBV_WC_SUCCESS);
			CHECK_EQ(wc[k].wr_id, i);
		}
		pace_step(&message, i);
	}
	destroy = pace_start("destroy QP", n);
	for (unsigned int i = 0; i < n; i++) {
		CHECK_EQ(ibv_destroy_qp(qp[i]), 0);
		pace_step(&destroy, i);
	}
	free(qp);
	/* All four are printed, whatever the first says. */
	steady = pace_is_steady(&create);
	steady = pace_is_steady(&connect) && steady;
	steady = pace_is_steady(&message) && steady;
	return pace_is_steady(&destroy) && steady;
}

static bool many_mrs(struct env *e, unsigned int n)
{
	struct ibv_mr **mr = calloc(n, sizeof(struct ibv_mr *));
	struct pace reg = pace_start("register", n), dereg;
	bool steady;

	CHECK(mr);
	for (unsigned int i = 0; i < n; i++) {
		mr[i] = ibv_reg_mr(e->pd, e->buf + i % 60000, 16, IBV_ACCESS_LOCAL_WRITE);
		CHECK(mr[i]);
		pace_step(&reg, i);
	}
	dereg = pace_start("deregister", n);
	for (unsigned int i = 0; i < n; i++) {
		CHECK_EQ(ibv_dereg_mr(mr[i]), 0);
		pace_step(&dereg, i);
	}
	free(mr);
	steady = pace_is_steady(&reg);
	return pace_is_steady(&dereg) && steady;
}

static bool mr_rounds(struct env *e, unsigned int n)
{
	struct pace p = pace_start("reg and dereg", n);

	for (unsigned int i = 0; i < n; i++) {
		struct ibv_mr *mr = ibv_reg_mr(e->pd, e->buf, 4096, IBV_ACCESS_LOCAL_WRITE);

		CHECK(mr);
		CHECK_EQ(ibv_dereg_mr(mr), 0);
		pace_step(&p, i);
	}
	return pace_is_steady(&p);
}

static bool ah_rounds(struct env *e, unsigned int n)
{
	struct ibv_ah_attr attr = {.is_global = 1,
				   .port_num = 1,
				   .grh = {.dgid = e->gid, .sgid_index = 1, .hop_limit = 64}};
	struct pace p = pace_start("AH", n);

	for (unsigned int i = 0; i < n; i++) {
		struct ibv_ah *ah = ibv_create_ah(e->pd, &attr);

		CHECK(ah);
		CHECK_EQ(ibv_destroy_ah(ah), 0);
		pace_step(&p, i);
	}
	return pace_is_steady(&p);
}

/* Connections one after another, each for one message. */
static bool connect_rounds(struct env *e, unsigned int n)
{
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_sge out = sge_at(e, 0, 3000), in = sge_at(e, 4096, 3000);
	struct pace p = pace_start("connection", n);
	struct ibv_wc wc[2];

	for (unsigned int i = 0; i < n; i++) {
		struct ibv_cq *cq = ibv_create_cq(e->ctx, 16, NULL, NULL, 0);
		struct ibv_qp *a, *b;

		CHECK(cq);
		init.send_cq = init.recv_cq = cq;
		a = ibv_create_qp(e->pd, &init);
		b = ibv_create_qp(e->pd, &init);
		CHECK(a && b);
		connect_pair(e, a, b);
		CHECK_EQ(post_recv_at(b, i, &in), 0);
		CHECK_EQ(post_send_at(a, i, &out, IBV_SEND_SIGNALED), 0);
		wait_wc(cq, 2, wc);
		CHECK_EQ(wc[0].status | wc[1].status, IBV_WC_SUCCESS);
		CHECK_EQ(ibv_destroy_qp(a), 0);
		CHECK_EQ(ibv_destroy_qp(b), 0);
		CHECK_EQ(ibv_destroy_cq(cq), 0);
		pace_step(&p, i);
	}
	return pace_is_steady(&p);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		bool (*run)(struct env *e, unsigned int n);
		unsigned int n;
	} parts[] = {
		{"many QPs", many_qps, QPS},
		{"many MRs", many_mrs, MRS},
		{"MR rounds", mr_rounds, MR_ROUNDS},
		{"AH rounds", ah_rounds, AH_ROUNDS},
		{"connections", connect_rounds, CONNECT_ROUNDS},
	};
	unsigned long rss;
	struct env e;

	percent = argc > 1 ? (unsigned int)atoi(argv[1]) : 100;
	daemon_process = daemon_pid();
	env_open(&e);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		/* Once for the tables to grow, which are kept. */
		parts[i].run(&e, i < 2 ? scaled(parts[i].n) : 800);
		rss = daemon_rss(daemon_process);
		for (int k = 1; !parts[i].run(&e, scaled(parts[i].n)); k++)
			CHECK(k < ATTEMPTS);
		expect_memory(parts[i].name, rss);
	}
	env_close(&e);
	return 0;
}
