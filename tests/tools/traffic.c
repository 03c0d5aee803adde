/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * traffic [-p PORT] [-o send|write|read|add] [-n MESSAGES] [-s BYTES] [-d DEPTH] [-T TIMEOUT]
 *         [-R RETRIES] [-u] [HOST]: messages from a client to a server, each with bytes of its own.
 *
 * Without HOST it is the server. Both print what they saw, a "KEY VALUE" a line:
 *	completed	messages that succeeded (client)
 *	status		of the first that did not, else SUCCESS (client)
 *	min_us, max_us	from post to completion, one message (client; with -d 1 only)
 *	ms		for all (client)
 *	received	receives completed (server, send)
 *	sum		the counter at the end (server, add)
 *	wrong		numbers of the messages with wrong bytes, or "none"
 * -u: UC instead of RC. TIMEOUT and RETRIES as in struct ibv_qp_attr.
 */
#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define CHECK(cond)                                                                           \
	do {                                                                                  \
		if (!(cond)) {                                                                \
			fprintf(stderr, "%s:%d: failed: %s (errno %d)\n", __FILE__, __LINE__, \
				#cond, errno);                                                \
			exit(1);                                                              \
		}                                                                             \
	} while (0)

#define TIME_LIMIT 60 /* s for a completion */
#define QUIET 500     /* ms in which nothing comes after which no more is awaited */

static struct {
	const char *host, *port;
	enum ibv_wr_opcode opcode;
	uint32_t messages, bytes, depth;
	uint8_t timeout, retries;
	bool uc;
} opt = {
	.port = "18515",
	.opcode = IBV_WR_SEND,
	.messages = 100,
	.bytes = 64,
	.depth = 1,
	.timeout = 16,
	.retries = 7,
};

/* What each tells the other. */
struct end {
	union ibv_gid gid;
	uint32_t qpn;
	uint32_t rkey;
	uint64_t addr;
};

static struct ibv_context *ctx;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *buf; /* a slot of opt.bytes for each message */

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Byte k of message n. */
static uint8_t pattern(uint32_t n, uint32_t k)
{
	return (uint8_t)((n + 1) * 2654435761u >> 16 ^ k * 31 ^ k >> 8);
}

static void fill(void)
{
	for (uint32_t n = 0; n < opt.messages; n++)
		for (uint32_t k = 0; k < opt.bytes; k++)
			buf[(size_t)n * opt.bytes + k] = pattern(n, k);
}

/* Prints which of the first n messages have wrong bytes. */
static void print_wrong(uint32_t n)
{
	bool any = false;

	printf("wrong");
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < opt.bytes; k++) {
			if (buf[(size_t)i * opt.bytes + k] == pattern(i, k))
				continue;
			printf(" %u", i);
			any = true;
			break;
		}
	}
	printf("%s\n", any ? "" : " none");
}

/* @return a TCP connection to the other one */
static int meet(void)
{
	struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
	struct addrinfo *res;
	int one = 1, fd, conn;

	hints.ai_flags = opt.host ? 0 : AI_PASSIVE;
	CHECK(getaddrinfo(opt.host, opt.port, &hints, &res) == 0);
	fd = socket(res->ai_family, res->ai_socktype, 0);
	CHECK(fd >= 0);
	if (opt.host) {
		CHECK(connect(fd, res->ai_addr, res->ai_addrlen) == 0);
		freeaddrinfo(res);
		return fd;
	}
	CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(bind(fd, res->ai_addr, res->ai_addrlen) == 0);
	CHECK(listen(fd, 1) == 0);
	conn = accept(fd, NULL, NULL);
	CHECK(conn >= 0);
	freeaddrinfo(res);
	close(fd);
	return conn;
}

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	size_t size = (size_t)opt.messages * opt.bytes;
	struct ibv_pd *pd;

	CHECK(list && list[0]);
	ctx = ibv_open_device(list[0]);
	CHECK(ctx);
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	buf = calloc(1, size + 8);
	CHECK(buf);
	mr = ibv_reg_mr(pd, buf, size + 8,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr);
	cq = ibv_create_cq(ctx, (int)opt.messages + 1, NULL, NULL, 0);
	CHECK(cq);
	qp = ibv_create_qp(pd, &(struct ibv_qp_init_attr){
				       .send_cq = cq,
				       .recv_cq = cq,
				       .cap = {.max_send_wr = opt.depth,
					       .max_recv_wr = opt.messages,
					       .max_send_sge = 1,
					       .max_recv_sge = 1},
				       .qp_type = opt.uc ? IBV_QPT_UC : IBV_QPT_RC,
				       .sq_sig_all = 1,
			       });
	CHECK(qp);
}

/* INIT to RTS, towards the other end. */
static void connect_qp(const struct end *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qpn,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = peer->gid, .sgid_index = 1, .hop_limit = 64}},
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

	if (!opt.uc)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = opt.timeout;
	attr.retry_cnt = opt.retries;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (!opt.uc)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static void init_qp(void)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};

	if (!opt.uc)
		attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	CHECK(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ==
	      0);
}

/* Waits for a completion. @limit: us; @return whether one came */
static bool wait_completion(struct ibv_wc *wc, uint64_t limit)
{
	uint64_t end = now_us() + limit;
	int n;

	while ((n = ibv_poll_cq(cq, 1, wc)) == 0 && now_us() < end)
		;
	CHECK(n >= 0);
	return n == 1;
}

/* Where the bytes of message n are. ADD has all results in a row behind each other. */
static struct ibv_sge slot(uint32_t n)
{
	bool add = opt.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	uint32_t bytes = add ? 8 : opt.bytes;

	return (struct ibv_sge){(uintptr_t)buf + (uint64_t)n * bytes, bytes, mr->lkey};
}

static void post(uint32_t n, const struct end *peer)
{
	struct ibv_sge sge = slot(n);
	struct ibv_send_wr *bad, wr = {
					 .wr_id = n,
					 .sg_list = &sge,
					 .num_sge = 1,
					 .opcode = opt.opcode,
				 };

	if (opt.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = peer->addr;
		wr.wr.atomic.rkey = peer->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = peer->addr + (uint64_t)n * opt.bytes;
		wr.wr.rdma.rkey = peer->rkey;
	}
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Sends all messages, and says how it went. */
static void be_client(const struct end *peer)
{
	uint64_t begin = now_us(), posted_at = begin, min = UINT64_MAX, max = 0;
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	uint32_t posted = 0, completed = 0;

	while (completed < opt.messages && status == IBV_WC_SUCCESS) {
		struct ibv_wc wc;
		uint64_t took;

		while (posted < opt.messages && posted - completed < opt.depth) {
			posted_at = now_us();
			post(posted++, peer);
		}
		CHECK(wait_completion(&wc, TIME_LIMIT * UINT64_C(1000000)));
		took = now_us() - posted_at;
		min = took < min ? took : min;
		max = took > max ? took : max;
		status = wc.status;
		if (status == IBV_WC_SUCCESS)
			CHECK(wc.wr_id == completed++);
	}
	printf("completed %u\nstatus %s\n", completed,
	       status == IBV_WC_SUCCESS		? "SUCCESS"
	       : status == IBV_WC_RETRY_EXC_ERR ? "RETRY_EXC_ERR"
						: ibv_wc_status_str(status));
	printf("min_us %llu\nmax_us %llu\n", (unsigned long long)min, (unsigned long long)max);
	printf("ms %llu\n", (unsigned long long)(now_us() - begin) / 1000);
	if (opt.opcode == IBV_WR_RDMA_READ)
		print_wrong(completed);
	if (opt.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		for (uint64_t i = 0; i < completed; i++)
			CHECK(((uint64_t *)buf)[i] == i);
	}
}

/* Waits until nothing more is written. The sender of UC knows nothing of what arrives. */
static void wait_quiet(void)
{
	uint64_t sum, last = UINT64_MAX, since = now_us();

	while (now_us() - since < QUIET * UINT64_C(1000)) {
		sum = 0;
		for (size_t k = 0; k < (size_t)opt.messages * opt.bytes; k++)
			sum += ((volatile uint8_t *)buf)[k];
		if (sum != last)
			since = now_us();
		last = sum;
	}
}

/* Waits for the end, and says what has come. */
static void be_server(int conn)
{
	uint32_t received = 0, messages = opt.messages;
	struct ibv_wc wc;
	char end;

	CHECK(read(conn, &end, 1) == 1);
	if (opt.uc)
		wait_quiet();
	if (opt.opcode == IBV_WR_SEND) {
		while (wait_completion(&wc, QUIET * UINT64_C(1000)) &&
		       wc.status == IBV_WC_SUCCESS) {
			CHECK(wc.wr_id == received++);
			CHECK(wc.byte_len == opt.bytes);
		}
		printf("received %u\n", received);
		messages = received < messages ? received : messages;
	}
	if (opt.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		printf("sum %llu\n", (unsigned long long)*(uint64_t *)buf);
	else if (opt.opcode != IBV_WR_RDMA_READ)
		print_wrong(messages);
}

static void parse(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "p:o:n:s:d:T:R:u")) != -1) {
		switch (c) {
		case 'p':
			opt.port = optarg;
			break;
		case 'o':
			opt.opcode = !strcmp(optarg, "send")	? IBV_WR_SEND
				     : !strcmp(optarg, "write") ? IBV_WR_RDMA_WRITE
				     : !strcmp(optarg, "read")	? IBV_WR_RDMA_READ
								: IBV_WR_ATOMIC_FETCH_AND_ADD;
			break;
		case 'n':
			opt.messages = (uint32_t)atoi(optarg);
			break;
		case 's':
			opt.bytes = (uint32_t)atoi(optarg);
			break;
		case 'd':
			opt.depth = (uint32_t)atoi(optarg);
			break;
		case 'T':
			opt.timeout = (uint8_t)atoi(optarg);
			break;
		case 'R':
			opt.retries = (uint8_t)atoi(optarg);
			break;
		case 'u':
			opt.uc = true;
			break;
		default:
			exit(2);
		}
	}
	opt.host = argv[optind];
}

int main(int argc, char **argv)
{
	struct end mine = {0}, peer;
	int conn;

	parse(argc, argv);
	open_device();
	conn = meet();
	CHECK(ibv_query_gid(ctx, 1, 1, &mine.gid) == 0);
	mine.qpn = qp->qp_num;
	mine.rkey = mr->rkey;
	mine.addr = (uintptr_t)buf;
	init_qp();
	/* The one that sends the bytes has them. */
	if (opt.opcode != IBV_WR_ATOMIC_FETCH_AND_ADD &&
	    (opt.opcode == IBV_WR_RDMA_READ) == !opt.host)
		fill();
	for (uint32_t n = 0; !opt.host && opt.opcode == IBV_WR_SEND && n < opt.messages; n++) {
		struct ibv_sge sge = slot(n);
		struct ibv_recv_wr *bad, wr = {.wr_id = n, .sg_list = &sge, .num_sge = 1};

		CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	}
	CHECK(write(conn, &mine, sizeof(mine)) == sizeof(mine));
	CHECK(recv(conn, &peer, sizeof(peer), MSG_WAITALL) == sizeof(peer));
	connect_qp(&peer);
	/* Nothing is sent before both are ready. */
	CHECK(write(conn, "r", 1) == 1);
	CHECK(read(conn, &(char){0}, 1) == 1);
	if (opt.host) {
		be_client(&peer);
		CHECK(write(conn, "e", 1) == 1);
		/* The server has looked before the QP goes. */
		CHECK(read(conn, &(char){0}, 1) == 0);
	} else {
		be_server(conn);
	}
	fflush(stdout);
	return 0;
}
