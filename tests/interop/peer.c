// SPDX-License-Identifier: BSD-2-Clause
/*
 * peer [OPTION...] [HOST]: one of two programs that do the same list of tests with each other over
 * any two devices, every byte and every completion checked. Without HOST it waits for the other.
 *
 * Both meet over TCP and go through the tests in step; each test is done in both directions: first
 * the program that was given HOST is the active one, the requester, then the other. For each the
 * former prints "ok NAME" or "not ok NAME: who: what", with what was seen where it is of interest.
 * The programs must be of one architecture: they exchange structures.
 */
#include <endian.h>
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define REGION (2u << 20) /* bytes of each part of the buffer */
#define GUARD 64u	  /* bytes behind what a message may write */
#define POISON 0x5a
#define LIMIT 30.0 /* s for a completion to come */
#define QUIET 0.3  /* s in which what does not come would have come */
#define DEPTH 256  /* WRs of a queue */
#define BATCH 16   /* WRs of a batch; each has a part of every region */
#define SLOT (REGION / BATCH)
#define QKEY 0x11223344u
#define GRH 40u /* bytes in front of a UD payload */

/* Parts of the buffer. */
enum { OUT, IN, LENT, GOT, REGIONS };

/* What each tells the other of itself. */
struct side {
	char name[32];
	union ibv_gid gid;
	uint64_t addr; /* of the buffer */
	uint32_t rkey;
	uint32_t readable_rkey; /* a MR of the buffer without remote rights */
	uint32_t other_pd_rkey;
	uint32_t gone_rkey;
	uint32_t qpn;
	uint32_t psn;
	uint32_t mtu; /* enum ibv_mtu: active */
	uint32_t rxe; /* it is Linux's rxe */
};

enum message_type { HELLO = 1, STEP, END };

struct message {
	uint32_t type;
	uint32_t ok;
	struct side side;
	char text[200];
};

/* What a test wants of its connection. */
struct want {
	int access;	       /* taken away from the passive side's qp_access_flags */
	uint8_t depth;	       /* READs and atomics outstanding; 0: 4 */
	uint8_t depth_at_peer; /* what the passive side allows; 0: the same */
	uint8_t rnr_retry;     /* 0: 7, for ever */
	uint8_t timeout;       /* 0: 17 */
	uint8_t retry_cnt;     /* 0: 7 */
	uint32_t psn;	       /* 0: any */
	bool srq;
};

struct peer;

struct test {
	const char *group;
	const char *name;
	enum ibv_qp_type type;
	bool (*run)(struct peer *p, const struct test *t);
	int arg;
	struct want want;
};

struct peer {
	int sock;
	bool connects;	 /* was given HOST */
	bool active;	 /* the requester of this test */
	bool other_over; /* the other has ended the test, with this */
	struct message other_end;
	uint32_t max_size; /* bytes, of the messages of the size tests */
	uint32_t rounds;
	int gid_index;
	uint32_t mtu; /* bytes */
	enum ibv_mtu path_mtu;
	uint64_t seed; /* both count it up alike */

	struct ibv_context *ctx;
	struct ibv_pd *pd, *other_pd;
	struct ibv_mr *mr, *readable, *other_mr;
	struct ibv_cq *scq, *rcq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	uint8_t *buf;
	struct side me, you;
	char why[160];	  /* the first thing that failed here */
	char remark[200]; /* what was seen */
};

/* ---- failing ----------------------------------------------------------------------------------
 */

/* Notes what failed, once. @return false */
__attribute__((format(printf, 2, 3))) static bool fail(struct peer *p, const char *format, ...)
{
	va_list args;

	if (!p->why[0]) {
		va_start(args, format);
		vsnprintf(p->why, sizeof(p->why), format, args);
		va_end(args);
	}
	return false;
}

/* In a test: ends it on this side. */
#define EXPECT(cond)                                                                      \
	do {                                                                              \
		if (!(cond))                                                              \
			return fail(p, "line %d: %s (errno %d)", __LINE__, #cond, errno); \
	} while (0)

#define EXPECT_EQ(a, b)                                                                        \
	do {                                                                                   \
		long long a_ = (long long)(a), b_ = (long long)(b);                            \
		if (a_ != b_)                                                                  \
			return fail(p, "line %d: %s is %lld, not %lld", __LINE__, #a, a_, b_); \
	} while (0)

/* Outside of one: ends the program. */
#define NEED(cond)                                                                  \
	do {                                                                        \
		if (!(cond)) {                                                      \
			fprintf(stderr, "peer: line %d: %s: %s\n", __LINE__, #cond, \
				strerror(errno));                                   \
			exit(2);                                                    \
		}                                                                   \
	} while (0)

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void pause_ms(unsigned int ms)
{
	usleep(ms * 1000);
}

/* ---- the other program ------------------------------------------------------------------------
 */

static void put_message(struct peer *p, enum message_type type, bool ok, const char *text)
{
	struct message m = {.type = type, .ok = ok, .side = p->me};

	snprintf(m.text, sizeof(m.text), "%s", text);
	NEED(send(p->sock, &m, sizeof(m), MSG_NOSIGNAL) == sizeof(m));
}

static void get_message(struct peer *p, struct message *m)
{
	ssize_t n = recv(p->sock, m, sizeof(*m), MSG_WAITALL);

	if (n != sizeof(*m)) {
		fprintf(stderr, "peer: the other program is gone\n");
		exit(2);
	}
}

/* Waits until the other is here too. @return false if it has ended the test */
static bool step(struct peer *p)
{
	struct message m;

	put_message(p, STEP, true, "");
	get_message(p, &m);
	if (m.type == STEP)
		return true;
	p->other_over = true;
	p->other_end = m;
	return fail(p, "ended by the other");
}

#define STEP_OR_END(p)                \
	do {                          \
		if (!step(p))         \
			return false; \
	} while (0)

/* Ends a test. @other: set to the other's words. @return whether both did well */
static bool end_test(struct peer *p, bool ok, struct message *other)
{
	put_message(p, END, ok, ok ? p->remark : p->why);
	if (p->other_over)
		*other = p->other_end;
	while (!p->other_over && other->type != END)
		get_message(p, other);
	return ok && !p->other_over && other->ok;
}

/* ---- data -------------------------------------------------------------------------------------
 */

static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* Writes len bytes that seed says. */
static void fill(uint8_t *p, uint32_t len, uint64_t seed)
{
	for (uint32_t i = 0; i < len; i += 8) {
		uint64_t word = next_random(&seed);

		memcpy(p + i, &word, len - i < 8 ? len - i : 8);
	}
}

/* @return the offset of the first byte that differs, or -1 */
static int64_t differs(const uint8_t *p, uint32_t len, uint64_t seed)
{
	for (uint32_t i = 0; i < len; i += 8) {
		uint64_t word = next_random(&seed);

		if (memcmp(p + i, &word, len - i < 8 ? len - i : 8) != 0)
			return i;
	}
	return -1;
}

/* Prepares a place for len bytes and the guard behind them. */
static void poison(uint8_t *p, uint32_t len)
{
	memset(p, POISON, len + GUARD);
}

/* The len bytes are those that seed says, and nothing was written behind them. */
static bool check_data(struct peer *p, const uint8_t *data, uint32_t len, uint64_t seed)
{
	int64_t at = differs(data, len, seed);

	if (at >= 0)
		return fail(p, "data differs at byte %lld of %u", (long long)at, len);
	for (uint32_t i = 0; i < GUARD; i++)
		if (data[len + i] != POISON)
			return fail(p, "byte %u behind a message of %u was written", i, len);
	return true;
}

static uint8_t *part(const struct peer *p, int region)
{
	return p->buf + region * (REGION + 4096u);
}

/* The same of the other program, as it addresses it. */
static uint64_t remote(const struct peer *p, int region)
{
	return p->you.addr + (uint64_t)region * (REGION + 4096u);
}

/* ---- verbs ------------------------------------------------------------------------------------
 */

/* Waits for a completion. @return false: none came in time */
static bool wait_wc(struct peer *p, struct ibv_cq *cq, struct ibv_wc *wc)
{
	double end = seconds() + LIMIT;
	int n;

	for (unsigned int polls = 0; (n = ibv_poll_cq(cq, 1, wc)) == 0; polls++) {
		if (seconds() > end)
			return fail(p, "no %s completion in %.0f s",
				    cq == p->scq ? "send" : "receive", LIMIT);
		/* The cores are shared with the emulated machine that the other may be in. */
		if (polls > 100)
			usleep(50);
	}
	return n == 1 ? true : fail(p, "ibv_poll_cq: %d", n);
}

/* @return whether a completion came within the time */
static bool try_wc(struct ibv_cq *cq, struct ibv_wc *wc, double time)
{
	double end = seconds() + time;

	do {
		if (ibv_poll_cq(cq, 1, wc) == 1)
			return true;
		usleep(200);
	} while (seconds() < end);
	return false;
}

static int post_recv(struct peer *p, uint64_t wr_id, const uint8_t *at, uint32_t len)
{
	struct ibv_sge sge = {(uintptr_t)at, len, p->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = len ? 1 : 0}, *bad;

	return p->srq ? ibv_post_srq_recv(p->srq, &wr, &bad) : ibv_post_recv(p->qp, &wr, &bad);
}

static bool is_atomic(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

static bool is_send(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}

static bool has_imm(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* @return whether the responder needs a receive for it */
static bool takes_recv(enum ibv_wr_opcode opcode)
{
	return is_send(opcode) || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static enum ibv_wc_opcode wc_opcode(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	default:
		return IBV_WC_SEND;
	}
}

/* One signaled WR of one SGE; the remote address and the atomic's operands may be set by hand. */
static struct ibv_send_wr make_wr(struct peer *p, enum ibv_wr_opcode opcode, struct ibv_sge *sge,
				  uint64_t remote_addr)
{
	struct ibv_send_wr wr = {
		.wr_id = p->seed,
		.sg_list = sge,
		.num_sge = sge->length ? 1 : 0,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htobe32(0xfeed0000u | (uint16_t)p->seed),
	};

	if (is_atomic(opcode)) {
		wr.wr.atomic.remote_addr = remote_addr;
		wr.wr.atomic.rkey = p->you.rkey;
	} else {
		wr.wr.rdma.remote_addr = remote_addr;
		wr.wr.rdma.rkey = p->you.rkey;
	}
	return wr;
}

/* Posts one WR and waits for its success. */
static bool do_wr(struct peer *p, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	EXPECT_EQ(ibv_post_send(p->qp, wr, &bad), 0);
	if (!wait_wc(p, p->scq, &wc))
		return false;
	if (wc.status != IBV_WC_SUCCESS)
		return fail(p, "send status: %s", ibv_wc_status_str(wc.status));
	EXPECT_EQ(wc.wr_id, wr->wr_id);
	EXPECT_EQ(wc.opcode, wc_opcode(wr->opcode));
	EXPECT_EQ(wc.qp_num, p->qp->qp_num);
	return true;
}

/* Waits for a receive's completion and checks all of it. @imm: host order, if the opcode has one */
static bool check_recv(struct peer *p, enum ibv_wr_opcode opcode, uint64_t wr_id, uint32_t len,
		       uint32_t imm)
{
	struct ibv_wc wc;

	if (!wait_wc(p, p->rcq, &wc))
		return false;
	if (wc.status != IBV_WC_SUCCESS)
		return fail(p, "receive status: %s", ibv_wc_status_str(wc.status));
	EXPECT_EQ(wc.opcode, is_send(opcode) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM);
	EXPECT_EQ(wc.wr_id, wr_id);
	EXPECT_EQ(wc.byte_len, len);
	EXPECT_EQ(wc.qp_num, p->qp->qp_num);
	EXPECT_EQ((wc.wc_flags & IBV_WC_WITH_IMM) != 0, has_imm(opcode));
	if (has_imm(opcode))
		EXPECT_EQ(be32toh(wc.imm_data), imm);
	return true;
}

static bool make_qp(struct peer *p, const struct test *t)
{
	struct ibv_qp_init_attr init = {
		.send_cq = p->scq,
		.recv_cq = p->rcq,
		.cap = {DEPTH, DEPTH, 4, 4, 32},
		.qp_type = t->type,
	};

	if (t->want.srq) {
		struct ibv_srq_init_attr srq = {.attr = {.max_wr = DEPTH, .max_sge = 4}};

		p->srq = ibv_create_srq(p->pd, &srq);
		EXPECT(p->srq);
		init.srq = p->srq;
	}
	p->qp = ibv_create_qp(p->pd, &init);
	EXPECT(p->qp);
	p->me.qpn = p->qp->qp_num;
	p->me.psn = t->want.psn ? t->want.psn
				: (uint32_t)(p->qp->qp_num * 7919 + p->seed) & 0xffffff;
	return true;
}

static struct ibv_ah_attr ah_attr(const struct peer *p)
{
	return (struct ibv_ah_attr){
		.is_global = 1,
		.port_num = 1,
		.grh = {.dgid = p->you.gid, .sgid_index = (uint8_t)p->gid_index, .hop_limit = 64},
	};
}

/* Brings the QP from RESET to RTS. */
static bool connect_qp(struct peer *p, const struct test *t)
{
	const struct want *w = &t->want;
	int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	uint8_t depth = w->depth ? w->depth : 4;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	a.qp_access_flags = p->active ? access : access & ~w->access;
	if (t->type == IBV_QPT_UD)
		mask |= IBV_QP_QKEY;
	else
		mask |= IBV_QP_ACCESS_FLAGS;
	if (t->type == IBV_QPT_UC)
		a.qp_access_flags &= IBV_ACCESS_REMOTE_WRITE;
	EXPECT_EQ(ibv_modify_qp(p->qp, &a, mask), 0);

	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = p->path_mtu;
	a.dest_qp_num = p->you.qpn;
	a.rq_psn = p->you.psn;
	a.max_dest_rd_atomic = !p->active && w->depth_at_peer ? w->depth_at_peer : depth;
	a.min_rnr_timer = 12; /* 0.64 ms */
	a.ah_attr = ah_attr(p);
	mask = IBV_QP_STATE;
	if (t->type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (t->type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	EXPECT_EQ(ibv_modify_qp(p->qp, &a, mask), 0);

	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = p->me.psn;
	a.timeout = w->timeout ? w->timeout : 17; /* 0.54 s: an emulated machine takes its time */
	a.retry_cnt = w->retry_cnt ? w->retry_cnt : 7;
	a.rnr_retry = w->rnr_retry ? w->rnr_retry : 7;
	a.max_rd_atomic = depth;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (t->type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC;
	EXPECT_EQ(ibv_modify_qp(p->qp, &a, mask), 0);
	return true;
}

static bool to_state(struct peer *p, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = {.qp_state = state};

	EXPECT_EQ(ibv_modify_qp(p->qp, &a, IBV_QP_STATE), 0);
	return true;
}

/* ---- tests: every opcode, every size ----------------------------------------------------------
 */

/* One message of an opcode, and its data. */
static bool transfer(struct peer *p, enum ibv_wr_opcode opcode, uint32_t len)
{
	bool read = opcode == IBV_WR_RDMA_READ;
	uint64_t seed = ++p->seed;
	uint32_t imm = 0xfeed0000u | (uint16_t)seed;
	struct ibv_sge sge = {(uintptr_t)part(p, read ? GOT : OUT), len, p->mr->lkey};
	struct ibv_send_wr wr = make_wr(p, opcode, &sge, remote(p, read ? LENT : IN));

	if (p->active) {
		if (read)
			poison(part(p, GOT), len);
		else
			fill(part(p, OUT), len, seed);
		STEP_OR_END(p);
		if (!do_wr(p, &wr))
			return false;
		if (read && !check_data(p, part(p, GOT), len, seed))
			return false;
		STEP_OR_END(p);
		return true;
	}
	if (read)
		fill(part(p, LENT), len, seed);
	else
		poison(part(p, IN), len);
	if (takes_recv(opcode))
		EXPECT_EQ(post_recv(p, seed, part(p, IN), is_send(opcode) ? len : 0), 0);
	STEP_OR_END(p);
	if (takes_recv(opcode) && !check_recv(p, opcode, seed, len, imm))
		return false;
	if (p->qp->qp_type == IBV_QPT_UC && opcode == IBV_WR_RDMA_WRITE) {
		/* Nothing tells when it is there. */
		double end = seconds() + LIMIT;

		while (differs(part(p, IN), len, seed) >= 0 && seconds() < end)
			usleep(1000);
	}
	STEP_OR_END(p);
	return read || check_data(p, part(p, IN), len, seed);
}

static bool run_sizes(struct peer *p, const struct test *t)
{
	uint32_t m = p->mtu, sizes[] = {0, 1, m - 1, m, m + 1, 2 * m, 3 * m - 1, 65536, 1u << 20};
	/* Nobody resends what UC loses, so no more at once than queues on the way can hold. */
	uint32_t most = t->type == IBV_QPT_UC && p->max_size > 65536 ? 65536 : p->max_size;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		if (sizes[i] <= most && !transfer(p, (enum ibv_wr_opcode)t->arg, sizes[i]))
			return fail(p, "%u bytes", sizes[i]);
	return true;
}

/* Inline data, of several SGEs, in several packets or one. */
static bool run_inline(struct peer *p, const struct test *t)
{
	uint64_t seed = ++p->seed;
	uint8_t *out = part(p, OUT);
	struct ibv_sge sge[2] = {{(uintptr_t)out, 5, 0}, {(uintptr_t)out + 5, 27, 0}};
	struct ibv_send_wr wr = make_wr(p, IBV_WR_SEND, sge, 0);

	wr.num_sge = 2;
	wr.send_flags |= IBV_SEND_INLINE;
	if (p->active) {
		fill(out, 32, seed);
		STEP_OR_END(p);
		return do_wr(p, &wr);
	}
	poison(part(p, IN), 32);
	EXPECT_EQ(post_recv(p, seed, part(p, IN), 32), 0);
	STEP_OR_END(p);
	return check_recv(p, IBV_WR_SEND, seed, 32, 0) && check_data(p, part(p, IN), 32, seed);
}

/* Scattered on both sides, at odd addresses and lengths. */
static bool run_scatter(struct peer *p, const struct test *t)
{
	enum ibv_wr_opcode opcode = (enum ibv_wr_opcode)t->arg;
	bool read = opcode == IBV_WR_RDMA_READ;
	uint32_t len = 3 * p->mtu + 77, cut[4] = {1, p->mtu + 3, 7, len - p->mtu - 11};
	uint64_t seed = ++p->seed;
	/* The active one's SGEs; those of the passive one's receive are in the reverse order. */
	uint8_t *at = part(p, !p->active ? IN : read ? GOT : OUT);
	struct ibv_sge sge[4];
	uint32_t off = 0;

	for (int i = 0; i < 4; i++) {
		uint32_t n = cut[p->active ? i : 3 - i];

		/* A hole of 3 bytes in front of each. */
		sge[i] = (struct ibv_sge){(uintptr_t)at + off + 3 * (i + 1), n, p->mr->lkey};
		off += n;
	}
	if (!p->active) {
		struct ibv_recv_wr wr = {.wr_id = seed, .sg_list = sge, .num_sge = 4}, *bad;

		poison(at, len + 1);
		fill(part(p, LENT) + 1, len, seed);
		if (is_send(opcode))
			EXPECT_EQ(ibv_post_recv(p->qp, &wr, &bad), 0);
	} else {
		poison(at, len + 1);
		fill(part(p, LENT), len, seed); /* here: a place to work */
		off = 0;
		for (int i = 0; !read && i < 4; i++) {
			memcpy((void *)(uintptr_t)sge[i].addr, part(p, LENT) + off, sge[i].length);
			off += sge[i].length;
		}
	}
	STEP_OR_END(p);
	if (p->active) {
		struct ibv_send_wr wr = make_wr(p, opcode, sge, remote(p, read ? LENT : IN) + 1);

		wr.num_sge = 4;
		if (!do_wr(p, &wr))
			return false;
	} else if (is_send(opcode) && !check_recv(p, opcode, seed, len, 0)) {
		return false;
	}
	STEP_OR_END(p);
	if (!p->active && opcode == IBV_WR_RDMA_WRITE)
		return check_data(p, part(p, IN) + 1, len, seed);
	if (p->active ? read : is_send(opcode)) {
		fill(part(p, OUT), len, seed);
		off = 0;
		for (int i = 0; i < 4; i++) {
			const uint8_t *got = (const uint8_t *)(uintptr_t)sge[i].addr;

			EXPECT(!memcmp(got, part(p, OUT) + off, sge[i].length));
			EXPECT_EQ(got[-1], POISON);
			EXPECT_EQ(got[sge[i].length], POISON);
			off += sge[i].length;
		}
	}
	return true;
}

/* Each atomic: what it returns, and what it leaves. */
static bool run_atomics(struct peer *p, const struct test *t)
{
	static const struct {
		enum ibv_wr_opcode opcode;
		uint64_t before, compare_add, swap, after;
	} rows[] = {
		{IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 7, 0, 12},
		{IBV_WR_ATOMIC_FETCH_AND_ADD, UINT64_MAX, 2, 0, 1},
		{IBV_WR_ATOMIC_FETCH_AND_ADD, 0x0123456789abcdef, 0, 0, 0x0123456789abcdef},
		{IBV_WR_ATOMIC_CMP_AND_SWP, 0x0123456789abcdef, 0x0123456789abcdef,
		 0xfedcba9876543210, 0xfedcba9876543210},
		{IBV_WR_ATOMIC_CMP_AND_SWP, 0x0123456789abcdef, 0x0123456789abcdee, 1,
		 0x0123456789abcdef},
	};
	uint64_t *word = (uint64_t *)(void *)part(p, p->active ? GOT : IN);

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct ibv_sge sge = {(uintptr_t)word, 8, p->mr->lkey};
		struct ibv_send_wr wr = make_wr(p, rows[i].opcode, &sge, remote(p, IN));

		wr.wr.atomic.compare_add = rows[i].compare_add;
		wr.wr.atomic.swap = rows[i].swap;
		word[0] = p->active ? 0xbad : rows[i].before;
		word[1] = 0xbeef;
		STEP_OR_END(p);
		if (p->active) {
			if (!do_wr(p, &wr))
				return false;
			EXPECT(word[0] == rows[i].before);
		}
		STEP_OR_END(p);
		if (!p->active)
			EXPECT(word[0] == rows[i].after);
		EXPECT_EQ(word[1], 0xbeef);
	}
	return true;
}

/* ---- tests: many at once ----------------------------------------------------------------------
 */

/* One WR of a batch: the requester and the responder make the same of the same seed. */
struct item {
	enum ibv_wr_opcode opcode;
	uint32_t len;
	uint32_t imm;
	uint64_t seed;
	uint64_t before, compare_add, swap, after; /* atomics */
};

enum { MIXED, RD_ONLY };

static struct item make_item(const struct peer *p, uint64_t batch_seed, unsigned int i, int kind)
{
	static const enum ibv_wr_opcode opcodes[] = {
		IBV_WR_RDMA_READ,
		IBV_WR_ATOMIC_FETCH_AND_ADD,
		IBV_WR_ATOMIC_CMP_AND_SWP,
		IBV_WR_RDMA_READ,
		IBV_WR_SEND,
		IBV_WR_SEND_WITH_IMM,
		IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_RDMA_WRITE,
	};
	uint64_t state = batch_seed * 64 + i;
	struct item it = {.seed = next_random(&state)};
	uint32_t most = SLOT - GUARD < p->max_size ? SLOT - GUARD : p->max_size;

	it.opcode = opcodes[next_random(&state) % (kind == RD_ONLY ? 4 : 8)];
	/* Half of them at most some packets, one in eight empty. */
	it.len = (uint32_t)next_random(&state);
	it.len %= it.len & 0x100 ? most + 1 : 4 * p->mtu < most ? 4 * p->mtu : most;
	if (next_random(&state) % 8 == 0)
		it.len = 0;
	it.imm = (uint32_t)next_random(&state);
	if (is_atomic(it.opcode)) {
		it.len = 8;
		it.before = next_random(&state);
		it.compare_add = next_random(&state);
		if (it.opcode == IBV_WR_ATOMIC_CMP_AND_SWP && it.compare_add & 1)
			it.compare_add = it.before;
		it.swap = next_random(&state);
		it.after = it.before + it.compare_add;
		if (it.opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
			it.after = it.compare_add == it.before ? it.swap : it.before;
	}
	return it;
}

/* Prepares for what the other will request. */
static bool batch_prepare(struct peer *p, uint64_t seed, int kind)
{
	for (unsigned int i = 0; i < BATCH; i++) {
		struct item it = make_item(p, seed, i, kind);

		if (it.opcode == IBV_WR_RDMA_READ)
			fill(part(p, LENT) + i * SLOT, it.len, it.seed);
		else
			poison(part(p, IN) + i * SLOT, it.len);
		if (is_atomic(it.opcode))
			memcpy(part(p, IN) + i * SLOT, &it.before, 8);
		if (takes_recv(it.opcode))
			EXPECT_EQ(post_recv(p, i, part(p, IN) + i * SLOT,
					    is_send(it.opcode) ? it.len : 0),
				  0);
	}
	return true;
}

/* Checks what the other has requested. */
static bool batch_check(struct peer *p, uint64_t seed, int kind)
{
	for (unsigned int i = 0; i < BATCH; i++) {
		struct item it = make_item(p, seed, i, kind);

		if (takes_recv(it.opcode) && !check_recv(p, it.opcode, i, it.len, it.imm))
			return false;
	}
	return true;
}

static bool batch_check_data(struct peer *p, uint64_t seed, int kind)
{
	for (unsigned int i = 0; i < BATCH; i++) {
		struct item it = make_item(p, seed, i, kind);
		const uint8_t *at = part(p, IN) + i * SLOT;

		if (is_atomic(it.opcode))
			EXPECT(!memcmp(at, &it.after, 8));
		else if (it.opcode != IBV_WR_RDMA_READ && !check_data(p, at, it.len, it.seed))
			return false;
	}
	return true;
}

/* Posts a batch in one call, only the last WR signaled. */
static bool batch_post(struct peer *p, uint64_t seed, int kind)
{
	struct ibv_send_wr wr[BATCH], *bad;
	struct ibv_sge sge[BATCH];

	for (unsigned int i = 0; i < BATCH; i++) {
		struct item it = make_item(p, seed, i, kind);
		bool in = is_atomic(it.opcode) || it.opcode == IBV_WR_RDMA_READ;
		uint8_t *at = part(p, in ? GOT : OUT) + i * SLOT;
		int region = it.opcode == IBV_WR_RDMA_READ ? LENT : IN;

		sge[i] = (struct ibv_sge){(uintptr_t)at, it.len, p->mr->lkey};
		wr[i] = make_wr(p, it.opcode, &sge[i], remote(p, region) + i * SLOT);
		wr[i].wr_id = i;
		wr[i].imm_data = htobe32(it.imm);
		wr[i].send_flags = i == BATCH - 1 ? IBV_SEND_SIGNALED : 0;
		wr[i].next = i == BATCH - 1 ? NULL : &wr[i + 1];
		if (is_atomic(it.opcode)) {
			wr[i].wr.atomic.compare_add = it.compare_add;
			wr[i].wr.atomic.swap = it.swap;
		}
		if (in)
			poison(at, it.len);
		else
			fill(at, it.len, it.seed);
	}
	EXPECT_EQ(ibv_post_send(p->qp, wr, &bad), 0);
	return true;
}

/* Waits for a batch of ours and checks what came back. */
static bool batch_finish(struct peer *p, uint64_t seed, int kind)
{
	struct ibv_wc wc;

	if (!wait_wc(p, p->scq, &wc))
		return false;
	if (wc.status != IBV_WC_SUCCESS)
		return fail(p, "WR %llu of a batch: %s", (unsigned long long)wc.wr_id,
			    ibv_wc_status_str(wc.status));
	EXPECT_EQ(wc.wr_id, BATCH - 1);
	for (unsigned int i = 0; i < BATCH; i++) {
		struct item it = make_item(p, seed, i, kind);
		const uint8_t *at = part(p, GOT) + i * SLOT;

		if (is_atomic(it.opcode))
			EXPECT(!memcmp(at, &it.before, 8));
		else if (it.opcode == IBV_WR_RDMA_READ && !check_data(p, at, it.len, it.seed))
			return false;
	}
	return true;
}

/* Batches of random WRs. arg: MIXED or RD_ONLY */
static bool run_batches(struct peer *p, const struct test *t)
{
	for (uint32_t round = 0; round < p->rounds; round++) {
		uint64_t seed = ++p->seed;

		if (!p->active && !batch_prepare(p, seed, t->arg))
			return false;
		STEP_OR_END(p);
		if (p->active ? !batch_post(p, seed, t->arg) || !batch_finish(p, seed, t->arg)
			      : !batch_check(p, seed, t->arg))
			return fail(p, "round %u", round);
		STEP_OR_END(p);
		if (!p->active && !batch_check_data(p, seed, t->arg))
			return fail(p, "round %u", round);
	}
	return true;
}

/* The same, both sides at once. */
static bool run_both_ways(struct peer *p, const struct test *t)
{
	for (uint32_t round = 0; round < p->rounds; round++) {
		uint64_t mine = p->seed + (p->active ? 1 : 2);
		uint64_t theirs = p->seed + (p->active ? 2 : 1);

		p->seed += 2;
		if (!batch_prepare(p, theirs, t->arg))
			return false;
		STEP_OR_END(p);
		if (!batch_post(p, mine, t->arg) || !batch_finish(p, mine, t->arg) ||
		    !batch_check(p, theirs, t->arg))
			return false;
		STEP_OR_END(p);
		if (!batch_check_data(p, theirs, t->arg))
			return false;
	}
	return true;
}

/* ---- tests: receives that come late -----------------------------------------------------------
 */

/* Some messages, the receive of each posted only when it has long been refused. */
static bool run_late(struct peer *p, const struct test *t)
{
	enum ibv_wr_opcode opcode = (enum ibv_wr_opcode)t->arg;
	uint32_t len = 3 * p->mtu + 5;
	uint64_t seed = ++p->seed;

	if (p->active) {
		struct ibv_send_wr wr, *bad;
		struct ibv_wc wc;

		STEP_OR_END(p);
		for (unsigned int i = 0; i < 4; i++) {
			struct ibv_sge sge = {(uintptr_t)part(p, OUT) + i * SLOT, len, p->mr->lkey};

			fill(part(p, OUT) + i * SLOT, len, seed + i);
			wr = make_wr(p, opcode, &sge, remote(p, IN) + i * SLOT);
			wr.imm_data = htobe32(i);
			EXPECT_EQ(ibv_post_send(p->qp, &wr, &bad), 0);
		}
		for (unsigned int i = 0; i < 4; i++) {
			if (!wait_wc(p, p->scq, &wc))
				return false;
			EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
		}
		return true;
	}
	for (unsigned int i = 0; i < 4; i++)
		poison(part(p, IN) + i * SLOT, len);
	STEP_OR_END(p);
	for (unsigned int i = 0; i < 4; i++) {
		pause_ms(50);
		EXPECT_EQ(post_recv(p, i, part(p, IN) + i * SLOT, is_send(opcode) ? len : 0), 0);
		if (!check_recv(p, opcode, i, len, i) ||
		    !check_data(p, part(p, IN) + i * SLOT, len, seed + i))
			return false;
	}
	return true;
}

/* ---- tests: what must fail --------------------------------------------------------------------
 */

enum fault {
	GOOD,
	BAD_KEY,
	GONE,	/* a MR that was deregistered */
	RANGE,	/* ends outside */
	RIGHTS, /* a MR without remote rights */
	OTHER_PD,
	MISALIGNED,
	SHORT, /* receive: one byte less than the message */
	NO_RECV,
	DEAD, /* the responder's QP is in ERR */
	RESET,
	NOT_ENABLED, /* as GOOD; the QP's access flags refuse it */
	RD_DEPTH,    /* more outstanding than the responder allows */
};

#define S(status) (1u << IBV_WC_##status)
#define NOTHING (1u << 31) /* no completion */

struct error_row {
	const char *name;
	enum ibv_wr_opcode opcode;
	uint32_t packets; /* 0: no bytes */
	enum fault fault;
	uint32_t expected;	/* statuses of the requester */
	uint32_t expected_recv; /* of the responder's receive */
	/* What else they are where the responder is Linux's rxe. */
	uint32_t rxe, rxe_recv;
};

static const struct error_row error_rows[] = {
	{"WRITE, bad rkey", IBV_WR_RDMA_WRITE, 1, BAD_KEY, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"WRITE, bad rkey, long", IBV_WR_RDMA_WRITE, 9, BAD_KEY, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"WRITE, MR gone", IBV_WR_RDMA_WRITE, 1, GONE, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"WRITE, beyond the MR", IBV_WR_RDMA_WRITE, 3, RANGE, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"WRITE, no right", IBV_WR_RDMA_WRITE, 1, RIGHTS, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"WRITE, other PD", IBV_WR_RDMA_WRITE, 1, OTHER_PD, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"WRITE of nothing, bad rkey", IBV_WR_RDMA_WRITE, 0, BAD_KEY, S(SUCCESS), NOTHING, 0, 0},
	{"WRITE_WITH_IMM, bad rkey", IBV_WR_RDMA_WRITE_WITH_IMM, 1, BAD_KEY, S(REM_ACCESS_ERR),
	 S(LOC_ACCESS_ERR) | S(LOC_PROT_ERR) | S(WR_FLUSH_ERR), 0, S(REM_ACCESS_ERR)},
	{"READ, bad rkey", IBV_WR_RDMA_READ, 1, BAD_KEY, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"READ, bad rkey, long", IBV_WR_RDMA_READ, 9, BAD_KEY, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"READ, MR gone", IBV_WR_RDMA_READ, 1, GONE, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"READ, beyond the MR", IBV_WR_RDMA_READ, 3, RANGE, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"READ, no right", IBV_WR_RDMA_READ, 1, RIGHTS, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"READ, other PD", IBV_WR_RDMA_READ, 1, OTHER_PD, S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"READ of nothing, bad rkey", IBV_WR_RDMA_READ, 0, BAD_KEY, S(SUCCESS), NOTHING, 0, 0},
	{"FETCH_ADD, bad rkey", IBV_WR_ATOMIC_FETCH_AND_ADD, 1, BAD_KEY, S(REM_ACCESS_ERR), NOTHING,
	 0, 0},
	{"FETCH_ADD, no right", IBV_WR_ATOMIC_FETCH_AND_ADD, 1, RIGHTS, S(REM_ACCESS_ERR), NOTHING,
	 0, 0},
	{"CMP_SWP, other PD", IBV_WR_ATOMIC_CMP_AND_SWP, 1, OTHER_PD, S(REM_ACCESS_ERR), NOTHING, 0,
	 0},
	{"FETCH_ADD, misaligned", IBV_WR_ATOMIC_FETCH_AND_ADD, 1, MISALIGNED, S(REM_INV_REQ_ERR),
	 NOTHING, 0, 0},
	{"SEND, receive too short", IBV_WR_SEND, 1, SHORT, S(REM_INV_REQ_ERR), S(LOC_LEN_ERR),
	 S(REM_OP_ERR), S(LOC_QP_OP_ERR)},
	{"SEND, receive too short, long", IBV_WR_SEND, 9, SHORT, S(REM_INV_REQ_ERR), S(LOC_LEN_ERR),
	 S(REM_OP_ERR), S(LOC_QP_OP_ERR)},
	{"SEND, receive with bad lkey", IBV_WR_SEND, 1, BAD_KEY, S(REM_OP_ERR), S(LOC_PROT_ERR), 0,
	 S(LOC_QP_OP_ERR)},
	{"SEND, no receive, 2 retries", IBV_WR_SEND, 1, NO_RECV, S(RNR_RETRY_EXC_ERR), NOTHING, 0,
	 0},
	{"WRITE_WITH_IMM, no receive, 2 retries", IBV_WR_RDMA_WRITE_WITH_IMM, 1, NO_RECV,
	 S(RNR_RETRY_EXC_ERR), NOTHING, 0, 0},
	{"SEND to a QP in ERR", IBV_WR_SEND, 1, DEAD, S(RETRY_EXC_ERR), S(WR_FLUSH_ERR), 0, 0},
	{"READ from a QP in ERR", IBV_WR_RDMA_READ, 1, DEAD, S(RETRY_EXC_ERR), NOTHING, 0, 0},
	{"WRITE to a QP in RESET", IBV_WR_RDMA_WRITE, 1, RESET, S(RETRY_EXC_ERR), NOTHING, 0, 0},
	{"WRITE not enabled", IBV_WR_RDMA_WRITE, 1, NOT_ENABLED,
	 S(REM_INV_REQ_ERR) | S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"READ not enabled", IBV_WR_RDMA_READ, 1, NOT_ENABLED,
	 S(REM_INV_REQ_ERR) | S(REM_ACCESS_ERR), NOTHING, 0, 0},
	{"FETCH_ADD not enabled", IBV_WR_ATOMIC_FETCH_AND_ADD, 1, NOT_ENABLED,
	 S(REM_INV_REQ_ERR) | S(REM_ACCESS_ERR), NOTHING, 0, 0},
};
#define ERROR_ROWS (sizeof(error_rows) / sizeof(error_rows[0]))

/* Posts the receive of a row, if it has one. */
static bool error_recv(struct peer *p, const struct error_row *row, uint32_t len)
{
	struct ibv_sge sge = {(uintptr_t)part(p, IN), len, p->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;

	if (row->fault == SHORT)
		sge.length = len - 1;
	if (row->fault == BAD_KEY && is_send(row->opcode))
		sge.lkey = p->me.gone_rkey;
	if (takes_recv(row->opcode) && row->fault != NO_RECV)
		EXPECT_EQ(ibv_post_recv(p->qp, &wr, &bad), 0);
	return true;
}

/* Sets the remote address and key that the row wants. */
static void error_remote(struct peer *p, const struct error_row *row, uint64_t *addr, uint32_t *key)
{
	uint32_t keys[] = {[BAD_KEY] = 0x00c0ffee,
			   [GONE] = p->you.gone_rkey,
			   [RIGHTS] = p->you.readable_rkey,
			   [OTHER_PD] = p->you.other_pd_rkey};

	if (row->fault <= OTHER_PD && row->fault != RANGE && row->fault != GOOD)
		*key = keys[row->fault];
	if (row->fault == RANGE) /* the last byte of the message is outside */
		*addr = p->you.addr + REGIONS * (REGION + 4096u) - row->packets * p->mtu + 1;
	if (row->fault == MISALIGNED)
		*addr += 4;
}

static bool run_error(struct peer *p, const struct test *t)
{
	const struct error_row *row = &error_rows[t->arg];
	uint32_t len = is_atomic(row->opcode) ? 8 : row->packets * p->mtu;
	struct ibv_sge sge = {(uintptr_t)part(p, GOT), len, p->mr->lkey};
	struct ibv_send_wr wr = make_wr(p, row->opcode, &sge, remote(p, IN)), *bad;
	bool rxe = p->active ? p->you.rxe : p->me.rxe;
	uint32_t expected = row->expected | (rxe ? row->rxe : 0);
	uint32_t expected_recv = row->expected_recv | (rxe ? row->rxe_recv : 0);
	struct ibv_wc wc;
	int err;

	if (!p->active) {
		if (!error_recv(p, row, len))
			return false;
		if ((row->fault == DEAD && !to_state(p, IBV_QPS_ERR)) ||
		    (row->fault == RESET && !to_state(p, IBV_QPS_RESET)))
			return false;
		poison(part(p, IN), len);
		STEP_OR_END(p);
		STEP_OR_END(p); /* the requester has its completion */
		if (!try_wc(p->rcq, &wc, row->expected_recv & NOTHING ? QUIET : LIMIT)) {
			EXPECT(row->expected_recv & NOTHING);
		} else {
			snprintf(p->remark, sizeof(p->remark), "%s", ibv_wc_status_str(wc.status));
			if (!(expected_recv & 1u << wc.status))
				return fail(p, "receive status: %s", ibv_wc_status_str(wc.status));
		}
		/* What was refused has changed nothing. */
		if (row->opcode == IBV_WR_RDMA_WRITE || is_atomic(row->opcode))
			for (uint32_t i = 0; i < len; i++)
				EXPECT_EQ(part(p, IN)[i], POISON);
		return true;
	}
	if (is_atomic(row->opcode))
		error_remote(p, row, &wr.wr.atomic.remote_addr, &wr.wr.atomic.rkey);
	else
		error_remote(p, row, &wr.wr.rdma.remote_addr, &wr.wr.rdma.rkey);
	STEP_OR_END(p);
	err = ibv_post_send(p->qp, &wr, &bad);
	if (row->fault == MISALIGNED && err == EINVAL) {
		/* rxe looks before it sends. */
		snprintf(p->remark, sizeof(p->remark), "EINVAL from ibv_post_send");
		return step(p);
	}
	EXPECT_EQ(err, 0);
	if (!wait_wc(p, p->scq, &wc))
		return false;
	snprintf(p->remark, sizeof(p->remark), "%s", ibv_wc_status_str(wc.status));
	EXPECT_EQ(wc.wr_id, wr.wr_id);
	if (!(expected & 1u << wc.status))
		return fail(p, "send status: %s", ibv_wc_status_str(wc.status));
	if (wc.status != IBV_WC_SUCCESS) {
		/* Whatever is posted now is flushed. */
		wr.wr_id = 99;
		EXPECT_EQ(ibv_post_send(p->qp, &wr, &bad), 0);
		if (!wait_wc(p, p->scq, &wc))
			return false;
		EXPECT_EQ(wc.wr_id, 99);
		EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
	}
	STEP_OR_END(p);
	return true;
}

/* More READs at once than the responder has said it takes. */
static bool run_too_many(struct peer *p, const struct test *t)
{
	struct ibv_wc wc = {.status = IBV_WC_SUCCESS};

	fill(part(p, LENT), 2 * p->mtu, 1);
	STEP_OR_END(p);
	if (p->active) {
		for (int i = 0; i < 16; i++) {
			struct ibv_sge sge = {(uintptr_t)part(p, GOT), 2 * p->mtu, p->mr->lkey};
			struct ibv_send_wr wr = make_wr(p, IBV_WR_RDMA_READ, &sge, remote(p, LENT)),
					   *bad;

			EXPECT_EQ(ibv_post_send(p->qp, &wr, &bad), 0);
		}
		for (int i = 0; i < 16 && wc.status == IBV_WC_SUCCESS; i++)
			if (!wait_wc(p, p->scq, &wc))
				return false;
		snprintf(p->remark, sizeof(p->remark), "%s", ibv_wc_status_str(wc.status));
		if (wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_REM_INV_REQ_ERR)
			return fail(p, "send status: %s", ibv_wc_status_str(wc.status));
	}
	STEP_OR_END(p);
	return true;
}

/* What was asked for before a request that is refused is still done and answered. */
static bool run_before(struct peer *p, const struct test *t)
{
	uint32_t len = 32768;
	uint64_t *word = (uint64_t *)(void *)part(p, IN);
	struct ibv_sge sge[] = {{(uintptr_t)part(p, GOT), len, p->mr->lkey},
				{(uintptr_t)part(p, OUT), 8, p->mr->lkey},
				{(uintptr_t)part(p, OUT) + 64, len, p->mr->lkey}};
	struct ibv_send_wr wr[] = {make_wr(p, IBV_WR_RDMA_READ, &sge[0], remote(p, LENT)),
				   make_wr(p, IBV_WR_ATOMIC_FETCH_AND_ADD, &sge[1], remote(p, IN)),
				   make_wr(p, IBV_WR_RDMA_WRITE, &sge[2], remote(p, IN) + 64)};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	wr[0].next = &wr[1];
	wr[1].next = &wr[2];
	wr[1].wr.atomic.compare_add = 3;
	wr[2].wr.rdma.rkey = p->you.gone_rkey;
	fill(part(p, LENT), len, 9);
	poison(part(p, GOT), len);
	*word = 39;
	STEP_OR_END(p);
	if (p->active) {
		EXPECT_EQ(ibv_post_send(p->qp, wr, &bad), 0);
		for (int i = 0; i < 3; i++) {
			if (!wait_wc(p, p->scq, &wc))
				return false;
			if (wc.status != (i < 2 ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR))
				return fail(p, "status %d: %s", i, ibv_wc_status_str(wc.status));
		}
		EXPECT_EQ(*(uint64_t *)(void *)part(p, OUT), 39);
		if (!check_data(p, part(p, GOT), len, 9))
			return false;
	}
	STEP_OR_END(p);
	EXPECT_EQ(*word, p->active ? 39 : 42);
	return true;
}

/* ---- tests: datagrams -------------------------------------------------------------------------
 */

/* The 40 bytes in front of a datagram: where it came from and went to. */
static bool check_grh(struct peer *p, const uint8_t *grh, uint32_t len)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	if (!memcmp(p->me.gid.raw, mapped, 12)) {
		EXPECT_EQ(grh[20], 0x45);
		EXPECT_EQ(grh[29], IPPROTO_UDP);
		EXPECT(!memcmp(grh + 32, p->you.gid.raw + 12, 4));
		EXPECT(!memcmp(grh + 36, p->me.gid.raw + 12, 4));
	} else {
		EXPECT_EQ(grh[0] >> 4, 6);
		EXPECT(!memcmp(grh + 8, p->you.gid.raw, 16));
		EXPECT(!memcmp(grh + 24, p->me.gid.raw, 16));
	}
	return true;
}

/* One datagram. @return false if the test failed */
static bool datagram(struct peer *p, struct ibv_ah *ah, enum ibv_wr_opcode opcode, uint32_t len)
{
	uint64_t seed = ++p->seed;
	uint32_t imm = 0xfeed0000u | (uint16_t)seed;
	struct ibv_sge sge = {(uintptr_t)part(p, OUT), len, p->mr->lkey};
	struct ibv_send_wr wr = make_wr(p, opcode, &sge, 0);
	struct ibv_wc wc;

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = p->you.qpn;
	wr.wr.ud.remote_qkey = QKEY;
	if (p->active) {
		fill(part(p, OUT), len, seed);
		STEP_OR_END(p);
		if (!do_wr(p, &wr))
			return false;
		STEP_OR_END(p);
		return true;
	}
	poison(part(p, IN), GRH + len);
	EXPECT_EQ(post_recv(p, seed, part(p, IN), GRH + len), 0);
	STEP_OR_END(p);
	if (!wait_wc(p, p->rcq, &wc))
		return false;
	EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
	EXPECT_EQ(wc.opcode, IBV_WC_RECV);
	EXPECT_EQ(wc.wr_id, seed);
	EXPECT_EQ(wc.byte_len, GRH + len);
	EXPECT_EQ(wc.src_qp, p->you.qpn);
	EXPECT(wc.wc_flags & IBV_WC_GRH);
	EXPECT_EQ((wc.wc_flags & IBV_WC_WITH_IMM) != 0, has_imm(opcode));
	if (has_imm(opcode))
		EXPECT_EQ(be32toh(wc.imm_data), imm);
	if (!check_grh(p, part(p, IN), len) || !check_data(p, part(p, IN) + GRH, len, seed))
		return false;
	STEP_OR_END(p);
	return true;
}

static bool run_datagrams(struct peer *p, const struct test *t)
{
	/* The path MTU is the port's: a datagram knows no other. */
	uint32_t mine = 128u << p->me.mtu, yours = 128u << p->you.mtu;
	uint32_t m = mine < yours ? mine : yours;
	uint32_t sizes[] = {0, 1, 2, 3, 4, 255, 256, m - 1, m};
	struct ibv_ah_attr attr = ah_attr(p);
	struct ibv_ah *ah = ibv_create_ah(p->pd, &attr);
	bool ok = true;

	EXPECT(ah);
	for (size_t i = 0; ok && i < sizeof(sizes) / sizeof(sizes[0]); i++)
		ok = datagram(p, ah, (enum ibv_wr_opcode)t->arg, sizes[i]) ||
		     fail(p, "%u bytes", sizes[i]);
	ibv_destroy_ah(ah);
	return ok;
}

/* The passive one answers with an address handle made from the completion and the GRH. */
static bool run_reply(struct peer *p, const struct test *t)
{
	struct ibv_ah_attr attr = ah_attr(p);
	struct ibv_sge sge = {(uintptr_t)part(p, OUT), 100, p->mr->lkey};
	struct ibv_send_wr wr = make_wr(p, IBV_WR_SEND, &sge, 0);
	struct ibv_wc wc;

	wr.wr.ud.remote_qkey = QKEY;
	poison(part(p, IN), GRH + 100);
	EXPECT_EQ(post_recv(p, 5, part(p, IN), GRH + 100), 0);
	STEP_OR_END(p);
	fill(part(p, OUT), 100, p->active ? 1 : 2);
	if (p->active) {
		wr.wr.ud.remote_qpn = p->you.qpn;
		wr.wr.ud.ah = ibv_create_ah(p->pd, &attr);
		EXPECT(wr.wr.ud.ah);
		if (!do_wr(p, &wr))
			return false;
	}
	if (!wait_wc(p, p->rcq, &wc))
		return false;
	EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
	if (!check_data(p, part(p, IN) + GRH, 100, p->active ? 2 : 1))
		return false;
	if (!p->active) {
		wr.wr.ud.ah = ibv_create_ah_from_wc(p->pd, &wc, (void *)part(p, IN), 1);
		EXPECT(wr.wr.ud.ah);
		wr.wr.ud.remote_qpn = wc.src_qp;
		if (!do_wr(p, &wr))
			return false;
	}
	ibv_destroy_ah(wr.wr.ud.ah);
	return true;
}

/* A wrong Q_Key, a wrong QPN and a receive too short are not seen; what comes behind them is. */
static bool run_unwanted(struct peer *p, const struct test *t)
{
	struct ibv_ah_attr attr = ah_attr(p);
	struct ibv_sge sge = {(uintptr_t)part(p, OUT), 100, p->mr->lkey};
	struct ibv_wc wc;

	if (p->active) {
		struct ibv_ah *ah = ibv_create_ah(p->pd, &attr);

		EXPECT(ah);
		fill(part(p, OUT), 100, 3);
		STEP_OR_END(p);
		for (int i = 0; i < 3; i++) {
			struct ibv_send_wr wr = make_wr(p, IBV_WR_SEND_WITH_IMM, &sge, 0);

			wr.imm_data = htobe32((uint32_t)i);
			wr.wr.ud.ah = ah;
			wr.wr.ud.remote_qpn = p->you.qpn ^ (i == 1 ? 0x800000 : 0);
			wr.wr.ud.remote_qkey = i == 0 ? QKEY + 1 : QKEY;
			if (!do_wr(p, &wr))
				return false;
		}
		ibv_destroy_ah(ah);
		return true;
	}
	poison(part(p, IN), GRH + 100);
	EXPECT_EQ(post_recv(p, 5, part(p, IN), GRH + 100), 0);
	STEP_OR_END(p);
	if (!wait_wc(p, p->rcq, &wc))
		return false;
	EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
	EXPECT_EQ(be32toh(wc.imm_data), 2);
	EXPECT(!try_wc(p->rcq, &wc, QUIET));
	return check_data(p, part(p, IN) + GRH, 100, 3);
}

/* ---- tests: unreliable services that lose something -------------------------------------------
 */

/*
 * Many messages, of which any may be missing: what is reported is whole, right, and in order.
 * A receive's length says nothing of the message it gets, so each carries its number.
 */
static bool run_lossy(struct peer *p, const struct test *t)
{
	bool ud = t->type == IBV_QPT_UD;
	uint32_t count = 200, skip = ud ? GRH : 0, got = 0;
	uint32_t len = ud ? 200 : 3 * p->mtu + 9;
	struct ibv_ah_attr attr = ah_attr(p);
	struct ibv_ah *ah = ud ? ibv_create_ah(p->pd, &attr) : NULL;
	int64_t last = -1;
	struct ibv_wc wc;

	if (p->active) {
		STEP_OR_END(p);
		for (uint32_t i = 0; i < count; i++) {
			struct ibv_sge sge = {(uintptr_t)part(p, OUT), len, p->mr->lkey};
			struct ibv_send_wr wr = make_wr(p, IBV_WR_SEND_WITH_IMM, &sge, 0);

			fill(part(p, OUT), len, i);
			wr.imm_data = htobe32(i);
			if (ud) {
				wr.wr.ud.ah = ah;
				wr.wr.ud.remote_qpn = p->you.qpn;
				wr.wr.ud.remote_qkey = QKEY;
			}
			if (!do_wr(p, &wr))
				return false;
		}
		STEP_OR_END(p);
		STEP_OR_END(p);
	} else {
		/* 200 messages of 16 KiB do not fit: the places are used in turn. */
		uint32_t places = DEPTH / 2, place = (REGION - GUARD) / places;
		bool over = false;

		EXPECT(place >= len + skip);
		for (uint32_t i = 0; i < places; i++)
			EXPECT_EQ(post_recv(p, i, part(p, IN) + i * place, place), 0);
		STEP_OR_END(p);
		while (!over || try_wc(p->rcq, &wc, QUIET)) {
			if (!over) {
				struct timeval zero = {0};
				fd_set set;

				FD_ZERO(&set);
				FD_SET(p->sock, &set);
				if (ibv_poll_cq(p->rcq, 1, &wc) != 1) {
					/* Has the other sent all of them? */
					if (select(p->sock + 1, &set, NULL, NULL, &zero) == 1) {
						STEP_OR_END(p);
						over = true;
					}
					continue;
				}
			}
			EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
			EXPECT_EQ(wc.byte_len, len + skip);
			EXPECT((int64_t)be32toh(wc.imm_data) > last);
			last = be32toh(wc.imm_data);
			EXPECT_EQ(
				differs(part(p, IN) + wc.wr_id * place + skip, len, (uint64_t)last),
				-1);
			EXPECT_EQ(post_recv(p, wc.wr_id, part(p, IN) + wc.wr_id * place, place), 0);
			got++;
		}
		snprintf(p->remark, sizeof(p->remark), "%u of %u came", got, count);
		EXPECT(got > count / 10);
		STEP_OR_END(p);
	}
	if (ah)
		ibv_destroy_ah(ah);
	return true;
}

/* ---- the list ---------------------------------------------------------------------------------
 */

static const struct test tests[] = {
	{"rc", "RC SEND", IBV_QPT_RC, run_sizes, IBV_WR_SEND, {0}},
	{"rc", "RC SEND_WITH_IMM", IBV_QPT_RC, run_sizes, IBV_WR_SEND_WITH_IMM, {0}},
	{"rc", "RC WRITE", IBV_QPT_RC, run_sizes, IBV_WR_RDMA_WRITE, {0}},
	{"rc", "RC WRITE_WITH_IMM", IBV_QPT_RC, run_sizes, IBV_WR_RDMA_WRITE_WITH_IMM, {0}},
	{"rc", "RC READ", IBV_QPT_RC, run_sizes, IBV_WR_RDMA_READ, {0}},
	{"rc", "RC FETCH_ADD, CMP_SWP", IBV_QPT_RC, run_atomics, 0, {0}},
	{"rc", "RC SEND, PSNs wrap", IBV_QPT_RC, run_sizes, IBV_WR_SEND, {.psn = 0xfffffd}},
	{"rc", "RC READ, PSNs wrap", IBV_QPT_RC, run_sizes, IBV_WR_RDMA_READ, {.psn = 0xfffffd}},
	{"rc", "RC SEND to a SRQ", IBV_QPT_RC, run_sizes, IBV_WR_SEND, {.srq = true}},
	{"rc", "RC SEND, inline", IBV_QPT_RC, run_inline, 0, {0}},
	{"rc", "RC SEND, scattered", IBV_QPT_RC, run_scatter, IBV_WR_SEND, {0}},
	{"rc", "RC WRITE, gathered", IBV_QPT_RC, run_scatter, IBV_WR_RDMA_WRITE, {0}},
	{"rc", "RC READ, scattered", IBV_QPT_RC, run_scatter, IBV_WR_RDMA_READ, {0}},
	{"depth", "RC READ and atomics, depth 1", IBV_QPT_RC, run_batches, RD_ONLY, {.depth = 1}},
	{"depth", "RC READ and atomics, depth 16", IBV_QPT_RC, run_batches, RD_ONLY, {.depth = 16}},
	{"stress", "RC, all opcodes mixed", IBV_QPT_RC, run_batches, MIXED, {.depth = 16}},
	{"stress",
	 "RC, all opcodes mixed, both ways",
	 IBV_QPT_RC,
	 run_both_ways,
	 MIXED,
	 {.depth = 8}},
	{"rnr", "RC SEND, receives late", IBV_QPT_RC, run_late, IBV_WR_SEND, {0}},
	{"rnr",
	 "RC WRITE_WITH_IMM, receives late",
	 IBV_QPT_RC,
	 run_late,
	 IBV_WR_RDMA_WRITE_WITH_IMM,
	 {0}},
	{"uc", "UC SEND", IBV_QPT_UC, run_sizes, IBV_WR_SEND, {0}},
	{"uc", "UC SEND_WITH_IMM", IBV_QPT_UC, run_sizes, IBV_WR_SEND_WITH_IMM, {0}},
	{"uc", "UC WRITE", IBV_QPT_UC, run_sizes, IBV_WR_RDMA_WRITE, {0}},
	{"uc", "UC WRITE_WITH_IMM", IBV_QPT_UC, run_sizes, IBV_WR_RDMA_WRITE_WITH_IMM, {0}},
	{"ud", "UD SEND", IBV_QPT_UD, run_datagrams, IBV_WR_SEND, {0}},
	{"ud", "UD SEND_WITH_IMM", IBV_QPT_UD, run_datagrams, IBV_WR_SEND_WITH_IMM, {0}},
	{"ud", "UD, AH from a completion", IBV_QPT_UD, run_reply, 0, {0}},
	{"ud", "UD, unwanted datagrams", IBV_QPT_UD, run_unwanted, 0, {0}},
	{"lossy", "UC SEND_WITH_IMM, some lost", IBV_QPT_UC, run_lossy, 0, {0}},
	{"lossy", "UD SEND_WITH_IMM, some lost", IBV_QPT_UD, run_lossy, 0, {0}},
	{"error", "READ, FETCH_ADD, then WRITE with bad rkey", IBV_QPT_RC, run_before, 0, {0}},
	{"error",
	 "RC READ, more than the responder allows",
	 IBV_QPT_RC,
	 run_too_many,
	 0,
	 {.depth = 16, .depth_at_peer = 1}},
};
#define TESTS (sizeof(tests) / sizeof(tests[0]))

/* @return the test a row of error_rows[] makes */
static struct test error_test(unsigned int row)
{
	const struct error_row *e = &error_rows[row];
	struct test t = {"error", e->name, IBV_QPT_RC, run_error, (int)row, {0}};

	if (e->fault == NO_RECV)
		t.want.rnr_retry = 2;
	if (e->fault == DEAD || e->fault == RESET) {
		t.want.timeout = 12; /* 17 ms */
		t.want.retry_cnt = 3;
	}
	if (e->fault == NOT_ENABLED)
		t.want.access = e->opcode == IBV_WR_RDMA_WRITE	? IBV_ACCESS_REMOTE_WRITE
				: e->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
								: IBV_ACCESS_REMOTE_ATOMIC;
	return t;
}

/* One test, in one direction. @return whether it went well on both sides */
static bool run_test(struct peer *p, const struct test *t, bool active)
{
	struct message other = {0};
	struct ibv_wc wc;
	bool ok;

	p->active = active;
	p->other_over = false;
	p->why[0] = p->remark[0] = '\0';
	p->qp = NULL;
	p->srq = NULL;
	ok = make_qp(p, t);
	put_message(p, HELLO, ok, p->why);
	get_message(p, &other);
	p->you = other.side;
	ok = ok && other.ok && connect_qp(p, t) && step(p) && t->run(p, t);
	ok = end_test(p, ok, &other);
	if (p->connects) {
		const char *mine = p->remark, *theirs = other.text;
		const char *requester = active ? mine : theirs, *responder = active ? theirs : mine;

		if (ok)
			printf("ok %s, %s to %s%s%s%s%s\n", t->name,
			       active ? p->me.name : p->you.name, active ? p->you.name : p->me.name,
			       *requester ? ": " : "", requester, *responder ? "; receive: " : "",
			       responder);
		else
			printf("not ok %s, %s to %s: %s: %s; %s: %s\n", t->name,
			       active ? p->me.name : p->you.name, active ? p->you.name : p->me.name,
			       p->me.name, p->why, p->you.name, theirs);
		fflush(stdout);
	}
	if (p->qp)
		NEED(ibv_destroy_qp(p->qp) == 0);
	if (p->srq)
		NEED(ibv_destroy_srq(p->srq) == 0);
	while (ibv_poll_cq(p->scq, 1, &wc) == 1 || ibv_poll_cq(p->rcq, 1, &wc) == 1)
		;
	/* Whatever one side did not count up when it failed. */
	p->seed = (p->seed / 1000000 + 1) * 1000000;
	return ok;
}

/* ---- meeting ----------------------------------------------------------------------------------
 */

static int meet(const char *host, const char *port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				 .ai_flags = host ? 0 : AI_PASSIVE,
				 .ai_family = host ? AF_UNSPEC : AF_INET6};
	double end = seconds() + LIMIT;
	struct addrinfo *ai;
	int fd, one = 1;

	NEED(getaddrinfo(host, port, &hints, &ai) == 0);
	for (;;) {
		fd = socket(ai->ai_family, ai->ai_socktype, 0);
		NEED(fd >= 0);
		if (!host || connect(fd, ai->ai_addr, ai->ai_addrlen) == 0)
			break;
		NEED((errno == ECONNREFUSED || errno == EHOSTUNREACH) && seconds() < end);
		close(fd);
		usleep(50000);
	}
	if (!host) {
		int listening = fd;

		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		NEED(bind(fd, ai->ai_addr, ai->ai_addrlen) == 0 && listen(fd, 1) == 0);
		fd = accept(listening, NULL, NULL);
		NEED(fd >= 0);
		close(listening);
	}
	freeaddrinfo(ai);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void open_device(struct peer *p, const char *name)
{
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			IBV_ACCESS_REMOTE_ATOMIC;
	size_t size = REGIONS * (REGION + 4096u);
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr port;
	struct ibv_mr *gone;

	for (int i = 0; list && list[i] && !p->ctx; i++)
		if (!name || !strcmp(ibv_get_device_name(list[i]), name))
			p->ctx = ibv_open_device(list[i]);
	NEED(p->ctx);
	p->pd = ibv_alloc_pd(p->ctx);
	p->other_pd = ibv_alloc_pd(p->ctx);
	p->scq = ibv_create_cq(p->ctx, 2 * DEPTH, NULL, NULL, 0);
	p->rcq = ibv_create_cq(p->ctx, 2 * DEPTH, NULL, NULL, 0);
	NEED(p->pd && p->other_pd && p->scq && p->rcq);
	p->buf = aligned_alloc(4096, size);
	NEED(p->buf);
	memset(p->buf, 0, size);
	p->mr = ibv_reg_mr(p->pd, p->buf, size, all);
	p->readable = ibv_reg_mr(p->pd, p->buf, size, 0);
	p->other_mr = ibv_reg_mr(p->other_pd, p->buf, size, all);
	gone = ibv_reg_mr(p->pd, p->buf, size, all);
	NEED(p->mr && p->readable && p->other_mr && gone);
	p->me.gone_rkey = gone->rkey;
	NEED(ibv_dereg_mr(gone) == 0);
	NEED(ibv_query_gid(p->ctx, 1, p->gid_index, &p->me.gid) == 0);
	NEED(ibv_query_port(p->ctx, 1, &port) == 0);
	p->me.mtu = port.active_mtu;
	p->me.rxe = !strncmp(ibv_get_device_name(p->ctx->device), "rxe", 3);
	p->me.addr = (uintptr_t)p->buf;
	p->me.rkey = p->mr->rkey;
	p->me.readable_rkey = p->readable->rkey;
	p->me.other_pd_rkey = p->other_mr->rkey;
}

static void close_device(struct peer *p)
{
	NEED(ibv_dereg_mr(p->mr) == 0 && ibv_dereg_mr(p->readable) == 0 &&
	     ibv_dereg_mr(p->other_mr) == 0);
	NEED(ibv_destroy_cq(p->scq) == 0 && ibv_destroy_cq(p->rcq) == 0);
	NEED(ibv_dealloc_pd(p->pd) == 0 && ibv_dealloc_pd(p->other_pd) == 0);
	NEED(ibv_close_device(p->ctx) == 0);
	free(p->buf);
}

/* @return whether a test was asked for; groups: NULL or a list with commas, or part of a name */
static bool wanted(const char *groups, const struct test *t)
{
	size_t len = strlen(t->group);

	if (!groups)
		return strcmp(t->group, "lossy") != 0;
	for (const char *g = groups; g; g = strchr(g, ',')) {
		g += *g == ',';
		if (!strncmp(g, t->group, len) && (g[len] == ',' || !g[len]))
			return true;
	}
	return strstr(t->name, groups) != NULL;
}

static int usage(void)
{
	fprintf(stderr, "usage: peer [-d DEVICE] [-g GID-INDEX] [-m PATH-MTU] [-p PORT] [-l NAME]\n"
			"            [-t GROUP[,GROUP...]] [-n ROUNDS] [-x MAX-SIZE] [HOST]\n"
			"groups: rc depth stress rnr uc ud error lossy; both must be given the "
			"same -m, -n, "
			"-t, -x\n");
	return 2;
}

int main(int argc, char **argv)
{
	struct peer p = {.path_mtu = IBV_MTU_1024, .max_size = 1u << 20, .rounds = 10};
	const char *device = NULL, *port = "18515", *groups = NULL;
	bool ok = true;
	int c;

	snprintf(p.me.name, sizeof(p.me.name), "peer");
	while ((c = getopt(argc, argv, "d:g:m:p:l:t:n:x:")) != -1) {
		switch (c) {
		case 'd':
			device = optarg;
			break;
		case 'g':
			p.gid_index = atoi(optarg);
			break;
		case 'm':
			p.path_mtu = IBV_MTU_256;
			while (p.path_mtu < IBV_MTU_4096 && 128 << p.path_mtu != atoi(optarg))
				p.path_mtu++;
			break;
		case 'p':
			port = optarg;
			break;
		case 'l':
			snprintf(p.me.name, sizeof(p.me.name), "%s", optarg);
			break;
		case 't':
			groups = optarg;
			break;
		case 'n':
			p.rounds = (uint32_t)atoi(optarg);
			break;
		case 'x':
			p.max_size = (uint32_t)atoi(optarg);
			break;
		default:
			return usage();
		}
	}
	if (argc - optind > 1)
		return usage();
	p.mtu = 128u << p.path_mtu;
	p.connects = argc > optind;
	open_device(&p, device);
	p.sock = meet(p.connects ? argv[optind] : NULL, port);
	for (unsigned int i = 0; i < TESTS + ERROR_ROWS; i++) {
		struct test t = i < TESTS ? tests[i] : error_test(i - TESTS);

		if (!wanted(groups, &t))
			continue;
		ok &= run_test(&p, &t, p.connects);
		ok &= run_test(&p, &t, !p.connects);
	}
	close(p.sock);
	close_device(&p);
	return ok ? 0 : 1;
}
