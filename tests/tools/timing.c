// SPDX-License-Identifier: BSD-2-Clause
/*
 * Makes a peer wait, in every way there is, for a capture to show how long: prints a line for each
 * case, "CASE CODE COUNT REQUESTER_QPN RESPONDER_QPN", and uses QPs of its own for each.
 */
#include "../verbs/common.h"

struct pair {
	struct ibv_qp *a, *b;
};

/* A connected pair; b has no receives. */
static struct pair pair_open(const struct env *e, uint8_t rnr_timer, uint8_t rnr_retry,
			     uint8_t timeout, uint8_t retry_cnt)
{
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
				   .timeout = timeout,
				   .retry_cnt = retry_cnt,
				   .rnr_retry = rnr_retry,
				   .max_rd_atomic = 4,
				   .min_rnr_timer = rnr_timer};
	const int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	struct pair p = {ibv_create_qp(e->pd, &init), ibv_create_qp(e->pd, &init)};

	CHECK(p.a && p.b);
	to_init(p.a);
	to_init(p.b);
	to_rtr(e, p.a, p.b->qp_num);
	to_rtr(e, p.b, p.a->qp_num);
	CHECK_EQ(ibv_modify_qp(p.a, &attr, rts), 0);
	CHECK_EQ(ibv_modify_qp(p.b, &attr, rts | IBV_QP_MIN_RNR_TIMER), 0);
	return p;
}

static void pair_close(const struct pair *p)
{
	CHECK_EQ(ibv_destroy_qp(p->a), 0);
	CHECK_EQ(ibv_destroy_qp(p->b), 0);
}

static void report(const char *name, unsigned int code, unsigned int count, const struct pair *p)
{
	printf("%s %u %u %u %u\n", name, code, count, p->a->qp_num, p->b->qp_num);
}

/* Sends length bytes; the status they end with must be that. */
static void send_expect(const struct env *e, const struct pair *p, uint32_t length,
			enum ibv_wc_status status)
{
	struct ibv_sge out = sge_at(e, 0, length);
	struct ibv_wc wc;

	CHECK_EQ(post_send_at(p->a, 1, &out, IBV_SEND_SIGNALED), 0);
	wait_wc(e->cq, 1, &wc);
	CHECK_EQ(wc.status, status);
}

/* Each RNR timer code, once. */
static void rnr_timers(const struct env *e)
{
	for (uint8_t code = 0; code < 32; code++) {
		struct pair p = pair_open(e, code, 1, 14, 7);

		report("rnr", code, 1, &p);
		send_expect(e, &p, 8, IBV_WC_RNR_RETRY_EXC_ERR);
		pair_close(&p);
	}
}

/* Each finite number of RNR retries, and more than any of them where there is no end. */
static void rnr_retries(const struct env *e)
{
	struct ibv_sge out = sge_at(e, 0, 8), in = sge_at(e, 4096, 8);
	struct pair p;
	struct ibv_wc wc[2];

	for (uint8_t retries = 0; retries < 7; retries++) {
		p = pair_open(e, 12, retries, 14, 7);
		report("rnr", 12, retries, &p);
		send_expect(e, &p, 8, IBV_WC_RNR_RETRY_EXC_ERR);
		pair_close(&p);
	}
	p = pair_open(e, 12, 7, 14, 7);
	report("rnr-forever", 12, 7, &p);
	CHECK_EQ(post_send_at(p.a, 1, &out, IBV_SEND_SIGNALED), 0);
	for (int i = 0; i < 4; i++)
		expect_empty(e->cq);
	CHECK_EQ(post_recv_at(p.b, 2, &in), 0);
	wait_wc(e->cq, 2, wc);
	CHECK_EQ(wc[0].status | wc[1].status, IBV_WC_SUCCESS);
	pair_close(&p);
}

/* Nobody answers: timeouts, and how often it is tried. */
static void timeouts(const struct env *e)
{
	static const struct {
		uint8_t timeout, retries;
	} cases[] = {{1, 1},  {8, 2},  {12, 3}, {13, 0}, {13, 7}, {14, 1},
		     {14, 4}, {15, 2}, {16, 1}, {17, 1}, {18, 0}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pair p = pair_open(e, 1, 7, cases[i].timeout, cases[i].retries);

		to_state(p.b, IBV_QPS_RESET);
		report("timeout", cases[i].timeout, cases[i].retries, &p);
		send_expect(e, &p, 8, IBV_WC_RETRY_EXC_ERR);
		pair_close(&p);
	}
}

/* One message of many packets, for rules that delay or drop some of them. */
static void message(const struct env *e, const char *name)
{
	struct pair p = pair_open(e, 1, 7, 14, 7);
	struct ibv_sge in = sge_at(e, 32768, 20480);
	struct ibv_wc wc;

	CHECK_EQ(post_recv_at(p.b, 2, &in), 0);
	report(name, 14, 20, &p);
	send_expect(e, &p, 20480, IBV_WC_SUCCESS);
	wait_wc(e->cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	pair_close(&p);
}

int main(int argc, char **argv)
{
	struct env e;

	CHECK_EQ(argc, 2);
	env_open(&e);
	if (!strcmp(argv[1], "timers")) {
		rnr_timers(&e);
		rnr_retries(&e);
		timeouts(&e);
	} else {
		message(&e, argv[1]);
	}
	env_close(&e);
	return 0;
}
