/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What stock perftest has no option for: buffers in memory that others can map, very many QPs, and
 * standing still. Two processes, one on each of two daemons (or both on one), RC QPs in pairs.
 *
 *	rate [-o write|send|read] [-s BYTES] [-n MESSAGES] [-d DEPTH] [-q QPS] [-m MTU]
 *	     [-b malloc|memfd] [-i] [SERVER-SOCKET [CLIENT-SOCKET]]
 *
 * MESSAGES are those of all QPs together, which take turns; each has DEPTH outstanding. Prints
 * "GB/s millions-of-messages/s seconds", GB being 10^9 bytes.
 * -i: when the QPs are connected prints "connected CLIENT-PID" and goes on when stdin ends.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../verbs/common.h"

#include <vernic/control.h>

static struct {
	enum ibv_wr_opcode opcode;
	uint32_t size;
	uint64_t messages;
	uint32_t depth, qps;
	enum ibv_mtu mtu;
	bool memfd, idle;
} opt = {
	.opcode = IBV_WR_RDMA_WRITE,
	.size = 65536,
	.messages = 20000,
	.depth = 128,
	.qps = 1,
	.mtu = IBV_MTU_1024,
};

/* What the two tell each other; in memory they share. */
static struct shared {
	_Atomic unsigned int stage[2];
	union ibv_gid gid[2];
	uint32_t rkey[2];
	uint64_t addr[2];
	uint32_t qpn[]; /* QPS of each */
} * shared;

static uint32_t *qpn_of(unsigned int side)
{
	return shared->qpn + side * opt.qps;
}

struct side {
	unsigned int index; /* 0: server, 1: client */
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *buf;
	struct ibv_qp **qp;
	uint32_t *posted, *done; /* of each QP, client */
};

/* Both have come as far as this. */
static void meet(struct side *s, unsigned int stage)
{
	shared->stage[s->index] = stage;
	while (shared->stage[!s->index] < stage)
		usleep(1000);
}

/* One message's buffer, for all of them, as perftest has. */
static void side_open(struct side *s, const char *socket)
{
	struct ibv_device **list;
	struct ibv_qp_init_attr attr = {
		.cap = {opt.depth, opt.opcode == IBV_WR_SEND ? opt.depth : 1, 1, 1, 0},
		.qp_type = IBV_QPT_RC,
	};
	int cqe = (int)(opt.depth * opt.qps * 2);
	int fd = -1;

	if (socket)
		CHECK_EQ(setenv(VERNIC_SOCKET_ENV, socket, 1), 0);
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	s->ctx = ibv_open_device(list[0]);
	CHECK(s->ctx);
	ibv_free_device_list(list);
	s->pd = ibv_alloc_pd(s->ctx);
	s->cq = ibv_create_cq(s->ctx, cqe, NULL, NULL, 0);
	CHECK(s->pd && s->cq);
	if (opt.memfd) {
		fd = memfd_create("rate", MFD_CLOEXEC);
		CHECK(fd >= 0);
		CHECK_EQ(ftruncate(fd, opt.size), 0);
	}
	s->buf = mmap(NULL, opt.size, PROT_READ | PROT_WRITE,
		      opt.memfd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
	CHECK(s->buf != MAP_FAILED);
	memset(s->buf, (int)s->index + 1, opt.size);
	s->mr = ibv_reg_mr(s->pd, s->buf, opt.size,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_READ);
	CHECK(s->mr);
	attr.send_cq = attr.recv_cq = s->cq;
	s->qp = calloc(opt.qps, sizeof(struct ibv_qp *));
	s->posted = calloc(opt.qps, sizeof(*s->posted));
	s->done = calloc(opt.qps, sizeof(*s->done));
	CHECK(s->qp && s->posted && s->done);
	for (uint32_t i = 0; i < opt.qps; i++) {
		s->qp[i] = ibv_create_qp(s->pd, &attr);
		CHECK(s->qp[i]);
		qpn_of(s->index)[i] = s->qp[i]->qp_num;
	}
	CHECK_EQ(ibv_query_gid(s->ctx, 1, 1, &shared->gid[s->index]), 0);
	shared->rkey[s->index] = s->mr->rkey;
	shared->addr[s->index] = (uintptr_t)s->buf;
}

static void side_connect(struct side *s)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = opt.mtu,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 1,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = shared->gid[!s->index],
				    .sgid_index = 1,
				    .hop_limit = 64}},
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 16,
	};

	for (uint32_t i = 0; i < opt.qps; i++) {
		to_init(s->qp[i]);
		attr.qp_state = IBV_QPS_RTR;
		attr.dest_qp_num = qpn_of(!s->index)[i];
		CHECK_EQ(ibv_modify_qp(s->qp[i], &attr,
				       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
			 0);
		attr.qp_state = IBV_QPS_RTS;
		CHECK_EQ(ibv_modify_qp(s->qp[i], &attr,
				       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC),
			 0);
	}
}

static void post_receive(struct side *s, uint32_t qp)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, opt.size, s->mr->lkey};

	CHECK_EQ(post_recv_at(s->qp[qp], qp, &sge), 0);
}

/* The server: nothing but receives, if those are wanted. */
static void serve(struct side *s)
{
	uint64_t left = opt.opcode == IBV_WR_SEND ? opt.messages : 0;
	struct ibv_wc wc[16];

	while (left) {
		int n = ibv_poll_cq(s->cq, 16, wc);

		CHECK(n >= 0);
		for (int i = 0; i < n; i++) {
			CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
			post_receive(s, (uint32_t)wc[i].wr_id);
		}
		left -= (uint64_t)n;
	}
}

/*
 * The client: QPs post in turn. As perftest does it, one WR a call, and a completion for some of
 * them: here for a quarter of the depth.
 */
static void work(struct side *s)
{
	uint32_t every = opt.depth >= 8 ? opt.depth / 4 : 1;
	struct ibv_sge sge = {(uintptr_t)s->buf, opt.size, s->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opt.opcode}, *bad;
	uint64_t posted = 0, done = 0;
	struct ibv_wc wc[16];

	wr.wr.rdma.remote_addr = shared->addr[0];
	wr.wr.rdma.rkey = shared->rkey[0];
	while (done < opt.messages) {
		int n;

		for (uint32_t i = 0; i < opt.qps && posted < opt.messages; i++) {
			uint32_t burst = opt.qps == 1 ? opt.depth : every;

			while (burst-- && s->posted[i] - s->done[i] < opt.depth &&
			       posted < opt.messages) {
				s->posted[i]++;
				posted++;
				/* The last ones tell of themselves, whatever their number. */
				wr.send_flags = s->posted[i] % every == 0 ||
								posted + opt.qps * every > opt.messages
							? IBV_SEND_SIGNALED
							: 0;
				wr.wr_id = (uint64_t)s->posted[i] << 32 | i;
				CHECK_EQ(ibv_post_send(s->qp[i], &wr, &bad), 0);
			}
		}
		n = ibv_poll_cq(s->cq, 16, wc);
		CHECK(n >= 0);
		for (int k = 0; k < n; k++) {
			uint32_t i = (uint32_t)wc[k].wr_id;

			CHECK_EQ(wc[k].status, IBV_WC_SUCCESS);
			/* This one, and those before it that were silent. */
			done += (uint32_t)(wc[k].wr_id >> 32) - s->done[i];
			s->done[i] = (uint32_t)(wc[k].wr_id >> 32);
		}
	}
}

static void run(struct side *s, const char *socket)
{
	double begin, took;
	char c;

	side_open(s, socket);
	meet(s, 1);
	side_connect(s);
	if (s->index == 0 && opt.opcode == IBV_WR_SEND)
		for (uint32_t i = 0; i < opt.qps; i++)
			for (uint32_t k = 0; k < opt.depth; k++)
				post_receive(s, i);
	meet(s, 2);
	if (opt.idle && s->index == 1) {
		printf("connected %d\n", (int)getpid());
		fflush(stdout);
		while (read(0, &c, 1) > 0)
			;
	}
	meet(s, 3);
	begin = seconds();
	if (s->index == 0)
		serve(s);
	else
		work(s);
	took = seconds() - begin;
	if (s->index == 1)
		printf("%.3f %.4f %.2f\n", (double)opt.size * (double)opt.messages / took * 1e-9,
		       (double)opt.messages / took * 1e-6, took);
	/* A server that leaves takes its QPs along, and with them what is to be answered. */
	meet(s, 4);
	CHECK_EQ(ibv_dereg_mr(s->mr), 0);
	free(s->qp);
	free(s->posted);
	free(s->done);
}

static void usage(void)
{
	fprintf(stderr, "usage: rate [-o write|send|read] [-s BYTES] [-n MESSAGES] [-d DEPTH] "
			"[-q QPS] [-m MTU] [-b malloc|memfd] [-i] [SERVER-SOCKET [CLIENT-SOCKET]]\n");
	exit(2);
}

int main(int argc, char **argv)
{
	struct side s = {0};
	int c, status;
	pid_t pid;

	while ((c = getopt(argc, argv, "o:s:n:d:q:m:b:i")) != -1) {
		unsigned long value = optarg ? strtoul(optarg, NULL, 10) : 0;

		switch (c) {
		case 'o':
			opt.opcode = !strcmp(optarg, "send")   ? IBV_WR_SEND
				     : !strcmp(optarg, "read") ? IBV_WR_RDMA_READ
							       : IBV_WR_RDMA_WRITE;
			break;
		case 's':
			opt.size = (uint32_t)value;
			break;
		case 'n':
			opt.messages = value;
			break;
		case 'd':
			opt.depth = (uint32_t)value;
			break;
		case 'q':
			opt.qps = (uint32_t)value;
			break;
		case 'm':
			opt.mtu = value >= 4096 ? IBV_MTU_4096 : IBV_MTU_1024;
			break;
		case 'b':
			opt.memfd = !strcmp(optarg, "memfd");
			break;
		case 'i':
			opt.idle = true;
			break;
		default:
			usage();
		}
	}
	if (!opt.size || !opt.messages || !opt.depth || !opt.qps || argc - optind > 2)
		usage();
	shared = mmap(NULL, sizeof(*shared) + 2 * opt.qps * sizeof(uint32_t), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	pid = fork();
	CHECK(pid >= 0);
	s.index = pid != 0;
	run(&s, optind < argc ? argv[optind + (s.index && argc - optind > 1)] : NULL);
	if (pid == 0)
		return 0;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	return status != 0;
}
