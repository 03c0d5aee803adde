// SPDX-License-Identifier: BSD-2-Clause
/*
 * A client that scribbles over everything it shares with the daemon while that works on it: rings,
 * indices, WQEs, doorbells, arm words, wake-up eventfds; and aims at a program that does nothing
 * wrong. That program notices nothing.
 *
 * The first argument is the seed to begin with, the second the seconds to spend.
 */
#include <pthread.h>
#include <stdbool.h>
#include <sys/eventfd.h>

#include "honest.h"
#include "raw.h"

#define QPS 10
#define MEMORY (64 * 1024)

/* A mapped ring. */
struct map {
	uint8_t *base;
	size_t size;
};

struct victim_qp {
	uint32_t handle;
	uint32_t qpn;
	uint32_t type;
	struct map map;
	struct vernic_reply made; /* create_qp */
};

struct hostile {
	struct raw r;
	struct honest *honest;
	uint64_t seed;
	uint8_t gid[16];
	struct map doorbells;
	const struct vernic_worker_page *pages;
	uint32_t workers, stride;
	int wake_fd[VERNIC_MAX_WORKERS];
	int channel_fd;
	uint8_t *memory;
	uint32_t pd, key;
	struct map cq[3], srq;
	struct vernic_reply srq_made;
	struct victim_qp qp[QPS];
	_Atomic int stop;
};

/* Maps what came with the last answer. */
static struct map map_ring(struct hostile *h, size_t size)
{
	struct map m = {.size = size};

	CHECK(h->r.nfds >= 1);
	m.base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, h->r.fds[0], 0);
	CHECK(m.base != MAP_FAILED);
	return m;
}

static void make_cq(struct hostile *h, unsigned int i, uint32_t channel)
{
	struct vernic_request req = {.command = VERNIC_CMD_CREATE_CQ};

	req.create_cq.cqe = 64;
	req.create_cq.channel = channel;
	CHECK_EQ(raw_call(&h->r, &req), 0);
	h->cq[i] = map_ring(h, h->r.reply.create_cq.size);
	CHECK_EQ(h->r.reply.handle, i);
}

static void make_qp(struct hostile *h, struct victim_qp *qp, uint32_t type, bool srq, uint32_t cq)
{
	struct vernic_request req = {.command = VERNIC_CMD_CREATE_QP};

	req.create_qp.pd = h->pd;
	req.create_qp.send_cq = req.create_qp.recv_cq = cq;
	req.create_qp.srq = srq ? h->srq_made.handle : UINT32_MAX;
	req.create_qp.qp_type = type;
	req.create_qp.cap = (struct ibv_qp_cap){.max_send_wr = 16,
						.max_recv_wr = 16,
						.max_send_sge = 3,
						.max_recv_sge = 3,
						.max_inline_data = 64};
	CHECK_EQ(raw_call(&h->r, &req), 0);
	qp->made = h->r.reply;
	qp->handle = h->r.reply.handle;
	qp->qpn = h->r.reply.create_qp.qp_num;
	qp->type = type;
	qp->map = map_ring(h, h->r.reply.create_qp.size);
}

static int modify(struct hostile *h, const struct victim_qp *qp, const struct ibv_qp_attr *attr,
		  int mask)
{
	struct vernic_request req = {.command = VERNIC_CMD_MODIFY_QP, .handle = qp->handle};

	req.modify_qp.attr = *attr;
	req.modify_qp.attr_mask = (uint32_t)mask;
	return raw_call(&h->r, &req);
}

/* Brings a QP from wherever it is to RTS, with a peer of any kind. */
static void revive(struct hostile *h, struct victim_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
	bool rc = qp->type == IBV_QPT_RC, ud = qp->type == IBV_QPT_UD;
	uint32_t peer = raw_below(&h->seed, 4) ? h->qp[raw_below(&h->seed, QPS)].qpn
					       : h->honest->qpn[raw_below(&h->seed, 2)];
	int err;

	CHECK_EQ(modify(h, qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	attr.qkey = 0x11111111;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			       IBV_ACCESS_REMOTE_ATOMIC;
	CHECK_EQ(modify(h, qp, &attr,
			IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				(ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
		 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_256 + raw_below(&h->seed, 3);
	attr.dest_qp_num = peer;
	attr.rq_psn = attr.sq_psn = raw_below(&h->seed, 2) ? 0 : 0xfffff0;
	attr.max_dest_rd_atomic = (uint8_t)raw_below(&h->seed, 17);
	attr.min_rnr_timer = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.sgid_index = 1;
	memcpy(attr.ah_attr.grh.dgid.raw, h->gid, 16);
	CHECK_EQ(modify(h, qp, &attr,
			IBV_QP_STATE |
				(ud ? 0
				    : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
						 IBV_QP_RQ_PSN) |
				(rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)),
		 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 1 + raw_below(&h->seed, 10);
	attr.retry_cnt = (uint8_t)raw_below(&h->seed, 8);
	attr.rnr_retry = (uint8_t)raw_below(&h->seed, 8);
	attr.max_rd_atomic = (uint8_t)raw_below(&h->seed, 17);
	err = modify(h, qp, &attr,
		     IBV_QP_STATE | IBV_QP_SQ_PSN |
			     (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_MAX_QP_RD_ATOMIC
				 : 0));
	/* From RTR on its peer, as hostile, may have brought it to ERR. */
	CHECK(err == 0 || err == EINVAL);
}

/* Any rate limit and burst, allowed or not. It lasts until the QP is revived. */
static void limit_rate(struct hostile *h, const struct victim_qp *qp)
{
	static const uint32_t values[] = {0, 1, 5000, VERNIC_MAX_RATE, VERNIC_MAX_RATE + 1,
					  UINT32_MAX};
	struct vernic_request req = {.command = VERNIC_CMD_MODIFY_QP, .handle = qp->handle};
	int err;

	req.modify_qp.attr_mask = IBV_QP_RATE_LIMIT;
	req.modify_qp.attr.rate_limit = values[raw_below(&h->seed, 6)];
	req.modify_qp.max_burst = values[raw_below(&h->seed, 6)];
	err = raw_call(&h->r, &req);
	CHECK(err == 0 || err == EINVAL);
}

static void open_all(struct hostile *h)
{
	struct vernic_request req = {.command = VERNIC_CMD_QUERY_GID};
	static const uint32_t types[] = {IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

	CHECK_EQ(raw_start(&h->r), 0);
	CHECK_EQ(raw_open(&h->r), 0);
	h->workers = h->r.reply.open_device.workers;
	h->stride = h->r.reply.open_device.doorbell_stride;
	CHECK_EQ(h->r.nfds, 3 + h->workers);
	h->doorbells = map_ring(h, (size_t)h->workers * h->stride);
	/* Nobody but the daemon writes to the workers' page. */
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, h->r.fds[1], 0) == MAP_FAILED);
	h->pages = mmap(NULL, 4096, PROT_READ, MAP_SHARED, h->r.fds[1], 0);
	CHECK(h->pages != MAP_FAILED);
	/* Nor can rings be cut under it. */
	CHECK(ftruncate(h->r.fds[0], 0) != 0);
	for (uint32_t i = 0; i < h->workers; i++) {
		h->wake_fd[i] = dup(h->r.fds[3 + i]);
		/* Ours as much as the daemon's: it must not rely on it. */
		CHECK_EQ(fcntl(h->wake_fd[i], F_SETFL, 0), 0);
	}
	req.query_gid.index = 1;
	CHECK_EQ(raw_call(&h->r, &req), 0);
	memcpy(h->gid, h->r.reply.query_gid.gid, 16);
	CHECK_EQ(raw_about(&h->r, VERNIC_CMD_ALLOC_PD, 0), 0);
	h->pd = h->r.reply.handle;
	/* What is registered is twice what can be reached. */
	h->memory = mmap(NULL, 2 * MEMORY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(h->memory != MAP_FAILED);
	CHECK_EQ(mprotect(h->memory, MEMORY, PROT_READ | PROT_WRITE), 0);
	req = (struct vernic_request){.command = VERNIC_CMD_REG_MR};
	req.reg_mr.pd = h->pd;
	req.reg_mr.addr = req.reg_mr.iova = (uintptr_t)h->memory;
	req.reg_mr.length = 2 * MEMORY;
	req.reg_mr.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	CHECK_EQ(raw_call(&h->r, &req), 0);
	h->key = h->r.reply.reg_mr.lkey;
	CHECK_EQ(raw_about(&h->r, VERNIC_CMD_CREATE_CHANNEL, 0), 0);
	h->channel_fd = dup(h->r.fds[0]);
	make_cq(h, 0, h->r.reply.handle);
	make_cq(h, 1, UINT32_MAX);
	make_cq(h, 2, UINT32_MAX);
	req = (struct vernic_request){.command = VERNIC_CMD_CREATE_SRQ};
	req.create_srq.pd = h->pd;
	req.create_srq.xrcd = UINT32_MAX;
	req.create_srq.attr = (struct ibv_srq_attr){.max_wr = 16, .max_sge = 3};
	CHECK_EQ(raw_call(&h->r, &req), 0);
	h->srq_made = h->r.reply;
	h->srq = map_ring(h, h->r.reply.create_srq.size);
	for (unsigned int i = 0; i < QPS; i++)
		make_qp(h, &h->qp[i], types[i % 4], types[i % 4] != IBV_QPT_UC && i >= 5, i % 3);
	for (unsigned int i = 0; i < QPS; i++)
		revive(h, &h->qp[i]);
}

/* A length of any kind, mostly one that a message can have. */
static uint32_t any_length(uint64_t *seed)
{
	switch (raw_below(seed, 8)) {
	case 0:
		return (uint32_t)raw_random(seed);
	case 1:
		return (1u << raw_below(seed, 32)) - 1 + raw_below(seed, 3);
	case 2:
		return 0;
	default:
		return raw_below(seed, 5000);
	}
}

static struct vernic_sge any_sge(const struct hostile *h, uint64_t *seed)
{
	return (struct vernic_sge){
		.addr = raw_below(seed, 20) ? (uintptr_t)h->memory + raw_below(seed, MEMORY)
					    : raw_random(seed),
		.length = any_length(seed),
		.lkey = raw_below(seed, 20) ? h->key : (uint32_t)raw_random(seed),
	};
}

/* A send WQE with good and bad fields, in any slot. */
static void write_send(const struct hostile *h, const struct victim_qp *qp, uint64_t *seed)
{
	static const uint8_t opcodes[] = {IBV_WR_SEND,
					  IBV_WR_SEND_WITH_IMM,
					  IBV_WR_RDMA_WRITE,
					  IBV_WR_RDMA_READ,
					  IBV_WR_RDMA_WRITE_WITH_IMM,
					  IBV_WR_ATOMIC_CMP_AND_SWP,
					  IBV_WR_ATOMIC_FETCH_AND_ADD,
					  IBV_WR_ATOMIC_WRITE,
					  VERNIC_WR_FLUSH,
					  255};
	uint32_t depth = qp->made.create_qp.sq_depth;
	uint8_t *slot = qp->map.base + qp->made.create_qp.sq_offset +
			raw_below(seed, depth) * qp->made.create_qp.sq_stride;
	struct vernic_send_wqe wqe = {
		.wr_id = raw_random(seed),
		.opcode = opcodes[raw_below(seed, sizeof(opcodes))],
		.num_sge = (uint8_t)(raw_below(seed, 30) ? raw_below(seed, 4) : raw_random(seed)),
		.flags = (uint16_t)(raw_below(seed, 3) ? IBV_SEND_SIGNALED : raw_random(seed)),
		.length = any_length(seed),
		.pd = raw_below(seed, 8) ? h->pd : (uint32_t)raw_random(seed),
	};

	if (qp->type == IBV_QPT_UD) {
		memcpy(wqe.ud.dgid, h->gid, 16);
		wqe.ud.remote_qpn = raw_below(seed, 2) ? h->qp[raw_below(seed, QPS)].qpn
						       : h->honest->qpn[raw_below(seed, 2)];
		wqe.ud.remote_qkey = raw_below(seed, 4) ? 0x11111111 : (uint32_t)raw_random(seed);
		wqe.ud.sgid_index = raw_below(seed, 4) ? 1 : (uint8_t)raw_random(seed);
	} else {
		bool theirs = raw_below(seed, 4) == 0;

		wqe.rdma.remote_addr = theirs ? h->honest->addr
					      : (uintptr_t)h->memory + raw_below(seed, MEMORY);
		wqe.rdma.rkey = theirs ? h->honest->rkey : h->key;
		if (wqe.opcode == VERNIC_WR_FLUSH) {
			wqe.flush.length = any_length(seed);
			wqe.flush.type = (uint8_t)raw_below(seed, 4);
			wqe.flush.level = (uint8_t)raw_below(seed, 3);
			wqe.num_sge = (uint8_t)(raw_below(seed, 4) == 0);
		}
	}
	for (unsigned int i = 0; i < 3; i++) {
		struct vernic_sge sge = any_sge(h, seed);

		if (wqe.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP)
			sge.length = i == 0 ? 8 : 0;
		memcpy(slot + sizeof(wqe) + i * sizeof(sge), &sge, sizeof(sge));
	}
	memcpy(slot, &wqe, sizeof(wqe));
}

static void write_recv(const struct hostile *h, uint8_t *slot, uint64_t *seed)
{
	struct vernic_recv_wqe wqe = {
		.wr_id = raw_random(seed),
		.num_sge = raw_below(seed, 20) ? raw_below(seed, 4) : (uint32_t)raw_random(seed),
	};

	for (unsigned int i = 0; i < 3; i++) {
		struct vernic_sge sge = any_sge(h, seed);

		memcpy(slot + sizeof(wqe) + i * sizeof(sge), &sge, sizeof(sge));
	}
	memcpy(slot, &wqe, sizeof(wqe));
}

static void ring(const struct hostile *h, const struct victim_qp *qp)
{
	uint32_t worker = qp->made.create_qp.worker;
	struct vernic_doorbell *db = (void *)(h->doorbells.base + worker * h->stride);

	if (vernic_ring_doorbell(db, &h->pages[worker], qp->made.create_qp.qp_index))
		CHECK_EQ(eventfd_write(h->wake_fd[worker], 1), 0);
}

/* An index moved on by a few, back, or to anywhere. */
static void move_index(_Atomic uint32_t *index, uint64_t *seed)
{
	uint32_t v = vernic_load_relaxed(index);

	switch (raw_below(seed, 16)) {
	case 0:
		v = (uint32_t)raw_random(seed);
		break;
	case 1:
		v -= raw_below(seed, 20);
		break;
	default:
		v += raw_below(seed, 6);
		break;
	}
	vernic_store_release(index, v);
}

/* Bytes of any kind over a piece of a mapping. */
static void scribble(const struct map *m, uint64_t *seed)
{
	uint32_t at = raw_below(seed, (uint32_t)m->size), len = raw_below(seed, 200);
	uint8_t value = (uint8_t)raw_random(seed);

	for (uint32_t i = 0; i < len && at + i < m->size; i++)
		m->base[at + i] = raw_below(seed, 2) ? value : (uint8_t)raw_random(seed);
}

static void disturb_cq(const struct hostile *h, uint64_t *seed)
{
	const struct map *m = &h->cq[raw_below(seed, 3)];
	struct vernic_cq_ring *cq = (void *)m->base;

	switch (raw_below(seed, 4)) {
	case 0:
		atomic_store(&cq->arm, raw_random(seed));
		break;
	case 1:
		atomic_store(&cq->event_pending, (uint32_t)raw_below(seed, 3));
		break;
	case 2:
		scribble(m, seed);
		break;
	default:
		/* Mostly all is polled, so that there is room to go on. */
		vernic_store_release(&cq->cons, (uint32_t)raw_random(seed) & 0x3ff);
		break;
	}
}

/* One act against the shared memory. */
static void act(struct hostile *h, uint64_t *seed)
{
	struct victim_qp *qp = &h->qp[raw_below(seed, QPS)];
	struct vernic_qp_ring *q = (void *)qp->map.base;
	struct vernic_srq_ring *s = (void *)h->srq.base;
	uint32_t k;

	switch (raw_below(seed, 12)) {
	case 0:
		scribble(raw_below(seed, 2) ? &qp->map : &h->srq, seed);
		break;
	case 1:
		disturb_cq(h, seed);
		break;
	case 2:
		k = raw_below(seed, h->workers);
		memset(h->doorbells.base + k * h->stride, 0xff, sizeof(struct vernic_doorbell));
		break;
	case 3:
		vernic_store_release(&q->state, (uint32_t)raw_below(seed, 9));
		break;
	case 4:
	case 5:
		for (k = 0; k < 16; k++)
			write_recv(h,
				   h->srq.base + h->srq_made.create_srq.wqe_offset +
					   k * h->srq_made.create_srq.stride,
				   seed);
		k = h->srq_made.create_srq.index_offset + 4 * raw_below(seed, 16);
		*(uint32_t *)(void *)(h->srq.base + k) =
			raw_below(seed, 4) ? raw_below(seed, 16) : (uint32_t)raw_random(seed);
		move_index(&s->prod, seed);
		break;
	case 6:
	case 7:
		if (!qp->made.create_qp.rq_depth)
			break;
		for (k = 0; k < 16; k++)
			write_recv(h,
				   qp->map.base + qp->made.create_qp.rq_offset +
					   k * qp->made.create_qp.rq_stride,
				   seed);
		move_index(&q->rq_prod, seed);
		ring(h, qp);
		break;
	default:
		for (k = 0; k < 8; k++)
			write_send(h, qp, seed);
		move_index(&q->sq_prod, seed);
		ring(h, qp);
		break;
	}
}

/* A second thread: what the daemon has checked changes before it is used. */
static void *racer(void *arg)
{
	struct hostile *h = arg;
	uint64_t seed = h->seed ^ 0xabcdef;

	while (!h->stop) {
		for (unsigned int i = 0; i < 200; i++)
			act(h, &seed);
		usleep(50);
	}
	return NULL;
}

/* A third: it takes the wake-ups away, on descriptors that block. */
static void *thief(void *arg)
{
	struct hostile *h = arg;
	struct timespec nap = {.tv_nsec = 20000};
	uint64_t value = 1;

	while (!h->stop) {
		for (uint32_t i = 0; i < h->workers; i++) {
			fcntl(h->wake_fd[i], F_SETFL, O_NONBLOCK);
			if (read(h->wake_fd[i], &value, sizeof(value)) < 0)
				value = 1;
			fcntl(h->wake_fd[i], F_SETFL, 0);
			CHECK_EQ(eventfd_write(h->wake_fd[i], 1), 0);
		}
		nanosleep(&nap, NULL);
	}
	return NULL;
}

static void attack(struct honest *honest, uint64_t seed, double time)
{
	struct hostile h = {.seed = seed, .honest = honest};
	double end = seconds() + time;
	pthread_t a, b;

	open_all(&h);
	CHECK_EQ(pthread_create(&a, NULL, racer, &h), 0);
	CHECK_EQ(pthread_create(&b, NULL, thief, &h), 0);
	while (seconds() < end) {
		for (unsigned int i = 0; i < 100; i++)
			act(&h, &h.seed);
		revive(&h, &h.qp[raw_below(&h.seed, QPS)]);
		if (raw_below(&h.seed, 4) == 0)
			limit_rate(&h, &h.qp[raw_below(&h.seed, QPS)]);
		usleep(50);
	}
	/* Half of the seeds leave without a word. */
	if (seed % 2)
		_exit(0);
	h.stop = 1;
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	raw_end(&h.r);
	exit(0);
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	double end = seconds() + (argc > 2 ? atof(argv[2]) : 8);
	struct honest *honest = honest_start();
	pid_t daemon = daemon_pid();
	unsigned int fds = daemon_fds(daemon);

	for (; seconds() < end; seed++) {
		pid_t pid = fork();
		int status;

		CHECK(pid >= 0);
		if (pid == 0)
			attack(honest, seed, 0.7);
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		if (status)
			fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
		CHECK_EQ(status, 0);
		honest_check(honest);
		daemon_expect_fds(daemon, fds);
	}
	honest_stop(honest);
	status_expect("pd", 0);
	status_expect("mr", 0);
	status_expect("cq", 0);
	status_expect("srq", 0);
	status_expect("qp", 0);
	return 0;
}
