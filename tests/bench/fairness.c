// SPDX-License-Identifier: BSD-2-Clause
/*
 * How QPs that send into one UDP socket share it: a process a daemon, one thread each, its QPs kept
 * busy for a slice of time; per-QP goodput, Jain's index, their sum.
 *
 *	fairness [-n QPS] [-s BYTES] [-S BYTES] [-o write|send|read] [-t SECONDS] [-w DEPTH] [-u]
 *		 RECEIVER-SOCKET SENDER-SOCKET...
 *
 * Every sender has QPS QPs to the receiver. With -S every second QP sends messages of that size
 * instead, and each half is reported for itself. -u: UC. For `read` the "senders" are what is read
 * from: one socket takes all the answers. Prints one line:
 *
 *	qps N total MB/s X jain J min MB/s A max MB/s B failed F
 */
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../verbs/common.h"

#define MAX_QPS 1024
#define MAX_SENDERS 8
#define SLOT 1048576u /* bytes of the buffer a QP has, at most */

struct peer {
	uint32_t qpn;
	uint32_t rkey;
	uint64_t addr;
	union ibv_gid gid;
};

static struct {
	unsigned int qps, depth;
	uint32_t size[2];
	enum ibv_wr_opcode opcode;
	double slice; /* s */
	bool uc;
	unsigned int senders;
} opt = {.qps = 16, .depth = 8, .size = {65536}, .opcode = IBV_WR_RDMA_WRITE, .slice = 1};

/* What the processes tell each other, in memory they share. */
static struct shared {
	_Atomic unsigned int stage[1 + MAX_SENDERS];
	_Atomic bool stop;
	_Atomic uint64_t bytes[MAX_SENDERS * MAX_QPS];
	_Atomic unsigned int failed[MAX_SENDERS * MAX_QPS]; /* enum ibv_wc_status */
	struct peer receiver[MAX_SENDERS * MAX_QPS];
	struct peer sender[MAX_SENDERS * MAX_QPS];
} * shared;

/* One process's verbs: the QPs numbered first .. first + count. */
struct side {
	struct env e;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *memory;
	unsigned int first, count;
	struct ibv_qp **qp;
};

/* A message's size on QP i. */
static uint32_t size_of(unsigned int i)
{
	return opt.size[i % 2];
}

static void side_open(struct side *s, const char *socket, unsigned int first, unsigned int count,
		      struct peer *own)
{
	struct ibv_qp_init_attr init = {
		.cap = {.max_send_wr = opt.depth,
			.max_recv_wr = 4 * opt.depth,
			.max_send_sge = 1,
			.max_recv_sge = 1},
		.qp_type = opt.uc ? IBV_QPT_UC : IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	size_t len = SLOT;

	setenv("VERNIC_SOCKET", socket, 1);
	env_open(&s->e);
	s->first = first;
	s->count = count;
	s->qp = calloc(count, sizeof(struct ibv_qp *));
	s->memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(s->qp && s->memory != MAP_FAILED);
	memset(s->memory, 1, len);
	s->mr = ibv_reg_mr(s->e.pd, s->memory, len,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_READ);
	init.send_cq = init.recv_cq = s->cq =
		ibv_create_cq(s->e.ctx, (int)(5 * opt.depth * count), NULL, NULL, 0);
	CHECK(s->mr && s->cq);
	for (unsigned int i = 0; i < count; i++) {
		s->qp[i] = ibv_create_qp(s->e.pd, &init);
		CHECK(s->qp[i]);
		own[first + i] = (struct peer){s->qp[i]->qp_num, s->mr->rkey, (uintptr_t)s->memory,
					       s->e.gid};
	}
}

static void side_connect(struct side *s, const struct peer *peer)
{
	for (unsigned int i = 0; i < s->count; i++) {
		const struct peer *p = &peer[s->first + i];
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_RTR,
			.path_mtu = IBV_MTU_4096,
			.dest_qp_num = p->qpn,
			.max_dest_rd_atomic = 16,
			.min_rnr_timer = 1,
			.ah_attr = {.is_global = 1,
				    .port_num = 1,
				    .grh = {.dgid = p->gid, .sgid_index = 1, .hop_limit = 64}},
			.timeout = 14,
			.retry_cnt = 7,
			.rnr_retry = 7,
			.max_rd_atomic = 16,
		};

		to_init(s->qp[i]);
		CHECK_EQ(ibv_modify_qp(s->qp[i], &attr,
				       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       (opt.uc ? 0
						       : IBV_QP_MAX_DEST_RD_ATOMIC |
								 IBV_QP_MIN_RNR_TIMER)),
			 0);
		attr.qp_state = IBV_QPS_RTS;
		CHECK_EQ(ibv_modify_qp(s->qp[i], &attr,
				       IBV_QP_STATE | IBV_QP_SQ_PSN |
					       (opt.uc ? 0
						       : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
								 IBV_QP_RNR_RETRY |
								 IBV_QP_MAX_QP_RD_ATOMIC)),
			 0);
	}
}

/* Everybody has got to a stage. */
static void meet(unsigned int self, unsigned int stage)
{
	shared->stage[self] = stage;
	for (unsigned int i = 0; i <= opt.senders; i++)
		while (shared->stage[i] < stage)
			usleep(1000);
}

static void post_receive(struct side *s, unsigned int i)
{
	struct ibv_sge sge = {(uintptr_t)s->memory, size_of(i), s->mr->lkey};

	CHECK_EQ(post_recv_at(s->qp[i], i, &sge), 0);
}

/* Posts the next request of QP i; the buffers are all the same ones: what counts is the wire. */
static void post_request(struct side *s, unsigned int i, const struct peer *peer)
{
	struct ibv_sge sge = {(uintptr_t)s->memory, size_of(i), s->mr->lkey};
	struct ibv_send_wr wr = {
		.wr_id = i,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opt.opcode,
		.wr.rdma = {peer[s->first + i].addr, peer[s->first + i].rkey},
	};
	struct ibv_send_wr *bad;

	CHECK_EQ(ibv_post_send(s->qp[i], &wr, &bad), 0);
}

/* Keeps all QPs busy until the end. @counts: who has the bytes; the sender, or for UC the receiver
 */
static void side_run(struct side *s, unsigned int self, bool requests, bool counts,
		     const struct peer *peer)
{
	struct ibv_wc wc[32];

	for (unsigned int i = 0; i < s->count; i++)
		for (unsigned int k = 0; k < (requests ? opt.depth : 4 * opt.depth); k++) {
			if (requests)
				post_request(s, i, peer);
			else if (opt.opcode == IBV_WR_SEND)
				post_receive(s, i);
		}
	meet(self, 3);
	while (!shared->stop) {
		int n = ibv_poll_cq(s->cq, 32, wc);

		CHECK(n >= 0);
		if (n == 0)
			sched_yield();
		for (int k = 0; k < n; k++) {
			unsigned int i = (unsigned int)wc[k].wr_id;

			if (wc[k].status != IBV_WC_SUCCESS) {
				if (!shared->failed[s->first + i])
					shared->failed[s->first + i] = wc[k].status;
				continue;
			}
			if (counts)
				shared->bytes[s->first + i] += size_of(i);
			if (requests)
				post_request(s, i, peer);
			else
				post_receive(s, i);
		}
	}
}

/* The receiver's process, or the reader's. */
static void receiver(const char *socket)
{
	bool reads = opt.opcode == IBV_WR_RDMA_READ;
	static struct side s;

	side_open(&s, socket, 0, opt.qps * opt.senders, shared->receiver);
	meet(0, 1);
	side_connect(&s, shared->sender);
	meet(0, 2);
	if (reads || opt.opcode == IBV_WR_SEND) {
		side_run(&s, 0, reads, reads || opt.uc, shared->sender);
	} else {
		meet(0, 3);
		while (!shared->stop)
			usleep(1000);
	}
}

static void sender(const char *socket, unsigned int index)
{
	static struct side s;

	side_open(&s, socket, index * opt.qps, opt.qps, shared->sender);
	meet(1 + index, 1);
	side_connect(&s, shared->receiver);
	meet(1 + index, 2);
	if (opt.opcode != IBV_WR_RDMA_READ) {
		side_run(&s, 1 + index, true, !(opt.uc && opt.opcode == IBV_WR_SEND),
			 shared->receiver);
	} else {
		meet(1 + index, 3);
		while (!shared->stop)
			usleep(1000);
	}
}

/* Reports the QPs from, from + step ... */
static void report(const uint64_t *bytes, unsigned int from, unsigned int step)
{
	double sum = 0, squares = 0, least = 1e300, most = 0;
	unsigned int n = 0, failed = 0;

	for (unsigned int i = from; i < opt.qps * opt.senders; i += step, n++) {
		double x = (double)bytes[i];

		sum += x;
		squares += x * x;
		least = x < least ? x : least;
		most = x > most ? x : most;
		failed += shared->failed[i] != 0;
	}
	printf("qps %u size %u total MB/s %.1f jain %.3f min MB/s %.3f max MB/s %.3f failed %u\n",
	       n, size_of(from), sum / opt.slice / 1e6, sum > 0 ? sum * sum / (n * squares) : 0,
	       least / opt.slice / 1e6, most / opt.slice / 1e6, failed);
}

int main(int argc, char **argv)
{
	static uint64_t before[MAX_SENDERS * MAX_QPS];
	pid_t pid[1 + MAX_SENDERS];
	int c, status, bad = 0;

	while ((c = getopt(argc, argv, "n:s:S:o:t:w:u")) != -1) {
		switch (c) {
		case 'n':
			opt.qps = (unsigned int)atoi(optarg);
			break;
		case 's':
			opt.size[0] = (uint32_t)atoi(optarg);
			break;
		case 'S':
			opt.size[1] = (uint32_t)atoi(optarg);
			break;
		case 'o':
			opt.opcode = *optarg == 'r'   ? IBV_WR_RDMA_READ
				     : *optarg == 's' ? IBV_WR_SEND
						      : IBV_WR_RDMA_WRITE;
			break;
		case 't':
			opt.slice = atof(optarg);
			break;
		case 'w':
			opt.depth = (unsigned int)atoi(optarg);
			break;
		case 'u':
			opt.uc = true;
			break;
		default:
			return 2;
		}
	}
	opt.senders = (unsigned int)(argc - optind - 1);
	CHECK(argc - optind >= 2 && opt.senders <= MAX_SENDERS && opt.qps <= MAX_QPS);
	CHECK(opt.size[0] <= SLOT && opt.size[1] <= SLOT);
	if (!opt.size[1])
		opt.size[1] = opt.size[0];
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(shared != MAP_FAILED);
	for (unsigned int i = 0; i <= opt.senders; i++) {
		pid[i] = fork();
		CHECK(pid[i] >= 0);
		if (pid[i] != 0)
			continue;
		if (i == 0)
			receiver(argv[optind]);
		else
			sender(argv[optind + (int)i], i - 1);
		_exit(0);
	}
	for (unsigned int i = 0; i <= opt.senders; i++)
		while (shared->stage[i] < 3) {
			CHECK_EQ(waitpid(-1, &status, WNOHANG), 0);
			usleep(1000);
		}
	usleep(200000); /* the windows settle */
	for (unsigned int i = 0; i < opt.qps * opt.senders; i++)
		before[i] = shared->bytes[i];
	usleep((useconds_t)(opt.slice * 1e6));
	for (unsigned int i = 0; i < opt.qps * opt.senders; i++)
		before[i] = shared->bytes[i] - before[i];
	shared->stop = true;
	for (unsigned int i = 0; i <= opt.senders; i++) {
		CHECK_EQ(waitpid(pid[i], &status, 0), pid[i]);
		bad |= status;
	}
	if (opt.size[0] == opt.size[1]) {
		report(before, 0, 1);
	} else {
		report(before, 0, 2);
		report(before, 1, 2);
	}
	for (unsigned int i = 0; i < opt.qps * opt.senders; i++)
		bad |= shared->failed[i] != 0;
	return bad != 0;
}
