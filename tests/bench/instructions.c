/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a 64-byte message costs, stage by stage, for callgrind to count: always the same work in one
 * thread, so that the counts are the same each time, on any machine, whatever else runs there.
 *
 * Theory of operation
 * -------------------
 * The library is the real one, and finds a daemon: threads that answer what it asks while it is set
 * up. That daemon has two devices with an engine each, which run where main() says so, and makes no
 * system call in between.
 *
 * A round is BATCH work requests posted one by one, then each stage in its turn: the requester of
 * one engine, the responder of the other, the completer, the polls. Over the local port trains are
 * handed over as they are; over UDP the port makes packets and takes them apart, and datagrams
 * (which an io of our own keeps) are carried by hand. What this program does in the place of a host
 * or of the kernel is not counted.
 *
 * Each stage of the last round is a dump of callgrind's, named PORT-OPERATION-STAGE. With "time" the
 * stages are timed instead, in many rounds: one thread, hot caches, so the medians hardly depend on
 * load either, and two builds can be compared.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include <vernic/control.h>

#include "io.h"
#include "port/udp.h"
#include "transport/qp.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_TOGGLE_COLLECT ((void)0)
#define CALLGRIND_DUMP_STATS_AT(name) ((void)0)
#endif

#define MESSAGE 64 /* bytes */
#define BATCH 64   /* messages of a round */
#define ROUNDS 8   /* the last one is counted; before, whatever grows has grown */
#define TIMED_ROUNDS 5000
#define MAX_STAGES 16
#define DEPTH 128
#define SIDES 2
#define POLL 16 /* CQEs taken by a call */
#define SQ_DATA 128

#define CHECK(cond)                                                                      \
	do {                                                                             \
		if (!(cond)) {                                                           \
			fprintf(stderr, "%s:%d: failed: %s (errno %d)\n", __FILE__, __LINE__, \
				#cond, errno);                                           \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

static bool counting; /* the last round */
static bool pausing = true;
static bool timing; /* by the clock instead */

/* ---- stages --------------------------------------------------------------------------------- */

/* By the clock: the times of a stage, ns a message. */
static struct stage {
	char name[64];
	double sample[TIMED_ROUNDS];
	unsigned int count;
} stages[MAX_STAGES];
static struct timespec began;

/* Before the work of a stage. */
static void stage_begin(void)
{
	if (timing)
		clock_gettime(CLOCK_MONOTONIC, &began);
	if (counting)
		CALLGRIND_TOGGLE_COLLECT;
}

static void stage_time(const char *name)
{
	struct stage *s = stages;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	while (s->count && strcmp(s->name, name))
		s++;
	strcpy(s->name, name);
	s->sample[s->count++] = ((double)(now.tv_sec - began.tv_sec) * 1e9 +
				 (double)(now.tv_nsec - began.tv_nsec)) / BATCH;
}

/* Behind it. */
static void stage_end(const char *port, const char *operation, const char *stage)
{
	char name[64];

	if (!counting && !timing)
		return;
	if (counting)
		CALLGRIND_TOGGLE_COLLECT;
	snprintf(name, sizeof(name), "%s-%s-%s", port, operation, stage);
	if (timing)
		stage_time(name);
	else
		CALLGRIND_DUMP_STATS_AT(name);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Prints medians and lowest times. */
static void stage_print(void)
{
	for (struct stage *s = stages; s->count; s++) {
		qsort(s->sample, s->count, sizeof(s->sample[0]), by_value);
		printf("%-24s %7.1f ns, at least %7.1f\n", s->name, s->sample[s->count / 2],
		       s->sample[0]);
	}
}

/*
 * Around what stands for a host or the kernel within a stage. callgrind then does not know whose the
 * instructions behind are: a profile has these functions in it instead.
 */
static void pause_counting(void)
{
	if (counting && pausing)
		CALLGRIND_TOGGLE_COLLECT;
}

#define resume_counting pause_counting

/* ---- the client's memory, which is our own ------------------------------------------------- */

struct mm {
	int dummy;
};

static void copy_iov(const struct iovec *to, unsigned nto, const struct iovec *from, unsigned nfrom)
{
	size_t to_off = 0, from_off = 0;

	while (nto && nfrom) {
		size_t a = to->iov_len - to_off, b = from->iov_len - from_off;
		size_t n = a < b ? a : b;

		memcpy((char *)to->iov_base + to_off, (char *)from->iov_base + from_off, n);
		to_off += n;
		from_off += n;
		if (to_off == to->iov_len) {
			to++, nto--;
			to_off = 0;
		}
		if (from_off == from->iov_len) {
			from++, nfrom--;
			from_off = 0;
		}
	}
}

static int mem_readv(struct mm *mm, const struct iovec *local, unsigned nlocal,
		     const struct iovec *remote, unsigned nremote)
{
	pause_counting();
	copy_iov(local, nlocal, remote, nremote);
	resume_counting();
	return 0;
}

static int mem_writev(struct mm *mm, const struct iovec *local, unsigned nlocal,
		      const struct iovec *remote, unsigned nremote)
{
	pause_counting();
	copy_iov(remote, nremote, local, nlocal);
	resume_counting();
	return 0;
}

static const struct dma_backend backend = {mem_readv, mem_writev};

/* ---- the host ------------------------------------------------------------------------------ */

/* A train of the local port, under way. */
struct parcel {
	struct train train;
	struct path path;
	struct dma_segment seg[4];
};

struct datagram {
	uint8_t *data;
	uint32_t len, segment;
	uint8_t tos;
};

struct io {
	struct side *side;
	void *socket;
	uint8_t buffer[BATCH][IO_TX_BUFFER];
	uint32_t taken;
	struct datagram sent[BATCH];
	uint32_t sent_count;
};

struct side {
	struct device dev;
	struct pd pd;
	struct mm mm;
	struct mr mr;
	struct engine engine;
	struct dma *dma;
	struct udp_port *port;
	struct io io;
	struct cq cq;
	struct qp *qp;
	int doorbells, pages; /* memfds */
	struct vernic_doorbell *doorbell;
	struct parcel out[BATCH];
	uint32_t out_count;
};

static struct side sides[SIDES];
static uint64_t clock_ns = 1000000000;
static bool over_udp;

/* ---- io.h, for the UDP port: datagrams stay where they are until the other side takes them --- */

bool io_segments(const struct io *io)
{
	return true;
}

int io_add_socket(struct io *io, int fd, void *socket_ctx)
{
	io->socket = socket_ctx;
	return 0;
}

void io_remove_socket(struct io *io, int fd)
{
}

uint8_t *io_tx_buffer(struct io *io)
{
	CHECK(io->taken < BATCH);
	return io->buffer[io->taken++];
}

unsigned int io_tx_available(const struct io *io)
{
	return BATCH - io->taken;
}

void io_send(struct io *io, int fd, uint8_t *buffer, uint32_t len, uint32_t segment, uint8_t tos,
	     const union io_address *to)
{
	io->sent[io->sent_count++] = (struct datagram){buffer, len, segment, tos};
}

/* Hands over what the other side has sent. */
unsigned int io_receive(struct io *io, io_receive_fn fn, void *arg)
{
	struct io *from = &sides[io->side == &sides[0]].io;
	unsigned int n = from->sent_count;

	for (uint32_t i = 0; i < n; i++) {
		const struct datagram *d = &from->sent[i];
		struct io_datagram in = {
			.socket_ctx = io->socket,
			.data = d->data,
			.len = d->len,
			.segment = d->segment && d->segment < d->len ? d->segment : d->len,
			.tos = d->tos,
		};

		in.from.in4.sin_family = AF_INET;
		in.from.in4.sin_port = htons(4791);
		memcpy(&in.from.in4.sin_addr, from->side->dev.gids[0].raw + 12, 4);
		fn(arg, &in);
	}
	from->sent_count = 0;
	return n;
}

/* The other side is done with it. */
static void io_reuse(struct io *io)
{
	io->taken = 0;
}

/* ---- engine_ops ----------------------------------------------------------------------------- */

static void host_tx(struct engine *e, struct qp *qp, const struct train *t)
{
	struct side *s = e->host;
	struct parcel *p;

	if (over_udp) {
		engine_not_sent(e, t, udp_port_tx(s->port, t, NULL));
		return;
	}
	pause_counting();
	CHECK(s->out_count < BATCH && t->payload.count <= 4);
	p = &s->out[s->out_count++];
	p->train = *t;
	p->path = *t->path;
	p->train.path = &p->path;
	if (t->payload.count)
		memcpy(p->seg, t->payload.seg, t->payload.count * sizeof(p->seg[0]));
	p->train.payload.seg = p->seg;
	resume_counting();
}

static bool host_tx_ready(struct engine *e, const struct path *path)
{
	return true;
}

static void host_route(struct engine *e, const struct device *dev, struct path *path)
{
	struct side *s = e->host;

	if (over_udp) {
		CHECK(udp_port_route(s->port, dev, path));
		return;
	}
	path->route = ROUTE_LOCAL;
	path->max_train = 1u << 20;
	path->window = 8u << 20;
}

static void host_event(struct engine *e, struct qp *qp, enum ibv_event_type type)
{
	CHECK(type == IBV_EVENT_COMM_EST);
}

static void host_cq(struct engine *e, struct cq *cq)
{
	CHECK(false);
}

static void host_srq(struct engine *e, struct srq *srq)
{
	CHECK(false);
}

static uint64_t host_time(struct engine *e)
{
	return clock_ns;
}

static const struct engine_ops ops = {
	.tx = host_tx,
	.tx_ready = host_tx_ready,
	.route = host_route,
	.qp_event = host_event,
	.cq_error = host_cq,
	.srq_limit = host_srq,
	.cq_event = host_cq,
	.time = host_time,
};

/* ---- the control protocol ------------------------------------------------------------------ */

#define MAX_FDS 4 /* of an answer */

static char socket_path[108];

static void remove_socket(void)
{
	unlink(socket_path);
}

/* Memory that both halves map. @fd: out, the client's */
static void *share(size_t size, int *fd)
{
	int mem = memfd_create("bench", MFD_CLOEXEC);
	void *p;

	CHECK(mem >= 0 && ftruncate(mem, (off_t)size) == 0);
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, mem, 0);
	CHECK(p != MAP_FAILED);
	*fd = mem;
	return p;
}

static void open_side(struct side *s, struct vernic_reply *reply, int *fds)
{
	s->doorbell = share(sizeof(*s->doorbell), &fds[0]);
	share(4096, &fds[1]);
	fds[2] = eventfd(0, EFD_CLOEXEC);
	fds[3] = eventfd(0, EFD_CLOEXEC);
	reply->open_device.workers = 1;
	reply->open_device.doorbell_stride = sizeof(struct vernic_doorbell);
}

static void create_cq(struct side *s, struct vernic_reply *reply, int *fds)
{
	uint64_t size = VERNIC_CQE_OFFSET + 4 * DEPTH * sizeof(struct vernic_cqe);

	s->cq.dev = &s->dev;
	cq_init(&s->cq, share(size, &fds[0]), 4 * DEPTH);
	reply->create_cq.depth = 4 * DEPTH;
	reply->create_cq.cqe = 4 * DEPTH;
	reply->create_cq.size = size;
}

static void create_qp(struct side *s, const struct vernic_request *req, struct vernic_reply *reply,
		      int *fds)
{
	struct ibv_qp_cap cap = {
		.max_send_wr = DEPTH,
		.max_recv_wr = DEPTH,
		.max_send_sge = 1,
		.max_recv_sge = 1,
		.max_inline_data = SQ_DATA,
	};
	uint32_t sq_stride = 256, rq_stride = sizeof(struct vernic_recv_wqe) + 16;
	uint32_t sq_offset = (sizeof(struct vernic_qp_ring) + 63) & ~63u;
	uint32_t rq_offset = sq_offset + DEPTH * sq_stride;
	uint64_t size = rq_offset + DEPTH * rq_stride;
	uint8_t *memory = share(size, &fds[0]);
	struct qp_params params = {
		.dev = &s->dev,
		.pd = &s->pd,
		.send_cq = &s->cq,
		.recv_cq = &s->cq,
		.type = req->create_qp.qp_type,
		.sq_sig_all = req->create_qp.sq_sig_all,
		.cap = cap,
		.ring = (void *)memory,
		.sq = memory + sq_offset,
		.rq = memory + rq_offset,
		.sq_depth = DEPTH,
		.rq_depth = DEPTH,
		.sq_stride = sq_stride,
		.rq_stride = rq_stride,
		.sq_data = SQ_DATA,
	};

	CHECK(qp_create(&s->engine, &params, &s->qp) == 0);
	reply->create_qp.qp_num = s->qp->qpn;
	reply->create_qp.sq_depth = DEPTH;
	reply->create_qp.rq_depth = DEPTH;
	reply->create_qp.sq_stride = sq_stride;
	reply->create_qp.rq_stride = rq_stride;
	reply->create_qp.sq_offset = sq_offset;
	reply->create_qp.rq_offset = rq_offset;
	reply->create_qp.sq_data = SQ_DATA;
	reply->create_qp.cap = cap;
	reply->create_qp.size = size;
}

static int answer(struct side *s, const struct vernic_request *req, struct vernic_reply *reply,
		  int *fds)
{
	switch (req->command) {
	case VERNIC_CMD_LIST_DEVICES:
		if (req->list_devices.index >= SIDES)
			return ENODEV;
		s = &sides[req->list_devices.index];
		strcpy(reply->list_devices.name, s->dev.name);
		reply->list_devices.node_guid = s->dev.node_guid;
		reply->list_devices.index = s->dev.index;
		return 0;
	case VERNIC_CMD_QUERY_PORT:
		reply->query_port = s->dev.port_attr;
		return 0;
	case VERNIC_CMD_QUERY_DEVICE:
		reply->query_device.attr = s->dev.attr;
		return 0;
	case VERNIC_CMD_QUERY_GID:
		memcpy(reply->query_gid.gid, s->dev.gids[req->query_gid.index].raw, 16);
		reply->query_gid.type = IBV_GID_TYPE_ROCE_V2;
		reply->query_gid.used = s->dev.gid_count;
		return 0;
	case VERNIC_CMD_ALLOC_PD:
		return 0;
	case VERNIC_CMD_REG_MR:
		s->mr = (struct mr){
			.access = req->reg_mr.access,
			.pd = &s->pd,
			.mm = &s->mm,
			.iova = req->reg_mr.iova,
			.addr = req->reg_mr.addr,
			.length = req->reg_mr.length,
		};
		CHECK(mr_table_add(s->dev.mrs, &s->mr) == 0);
		reply->reg_mr.lkey = reply->reg_mr.rkey = s->mr.key;
		return 0;
	case VERNIC_CMD_CREATE_CQ:
		create_cq(s, reply, fds);
		return 0;
	case VERNIC_CMD_CREATE_QP:
		create_qp(s, req, reply, fds);
		return 0;
	case VERNIC_CMD_MODIFY_QP:
		CHECK(qp_modify(s->qp, &req->modify_qp.attr, (int)req->modify_qp.attr_mask) == 0);
		reply->modify_qp.state = s->qp->state;
		reply->modify_qp.srq_slot = VERNIC_NO_SLOT;
		return 0;
	default:
		fprintf(stderr, "the library asks for command %u\n", req->command);
		exit(1);
	}
}

/* Sends an answer, with the descriptors that are set. */
static void reply_to(int fd, const struct vernic_reply *reply, int *fds, unsigned int max)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
	} control = {0};
	struct iovec iov = {(void *)(uintptr_t)reply, sizeof(*reply)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	unsigned int n = 0;

	while (n < max && fds[n] >= 0)
		n++;
	if (n) {
		struct cmsghdr *h;

		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
		h = CMSG_FIRSTHDR(&msg);
		h->cmsg_level = SOL_SOCKET;
		h->cmsg_type = SCM_RIGHTS;
		h->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(h), fds, n * sizeof(int));
	}
	CHECK(sendmsg(fd, &msg, MSG_NOSIGNAL) == sizeof(*reply));
	while (n)
		close(fds[--n]);
}

/* A connection: its device is the one it opens. */
static void *serve(void *arg)
{
	int fd = *(int *)arg;
	struct side *s = NULL;
	struct vernic_hello hello;
	struct vernic_request req;

	free(arg);
	CHECK(recv(fd, &hello, sizeof(hello), 0) == sizeof(hello));
	CHECK(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello));
	/* The client's /proc/self/mem, which may come along, is not asked for: it is dropped. */
	while (recv(fd, &req, sizeof(req), 0) == sizeof(req)) {
		struct vernic_reply reply = {0};
		int fds[MAX_FDS] = {-1, -1, -1, -1};

		if (req.command == VERNIC_CMD_OPEN_DEVICE) {
			s = &sides[strcmp(req.open_device.name, sides[0].dev.name) != 0];
			open_side(s, &reply, fds);
		} else {
			reply.status = answer(s, &req, &reply, fds);
		}
		reply_to(fd, &reply, fds, MAX_FDS);
	}
	close(fd);
	return NULL;
}

/* The daemon's socket. */
static void *listen_on(void *arg)
{
	int listener = *(int *)arg;

	for (;;) {
		pthread_t thread;
		int *fd = malloc(sizeof(*fd));

		CHECK(fd);
		*fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		CHECK(*fd >= 0);
		CHECK(pthread_create(&thread, NULL, serve, fd) == 0);
		pthread_detach(thread);
	}
}

/* Starts the daemon, and has the library find it. */
static void daemon_start(void)
{
	static int listener;
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	const char *tmp = getenv("TMPDIR");
	pthread_t thread;

	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/vernic-instructions.%d",
		 tmp ? tmp : "/tmp", (int)getpid());
	CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&addr, sizeof(addr)) == 0);
	strcpy(socket_path, addr.sun_path);
	atexit(remove_socket);
	CHECK(listen(listener, 4) == 0);
	CHECK(setenv(VERNIC_SOCKET_ENV, socket_path, 1) == 0);
	CHECK(pthread_create(&thread, NULL, listen_on, &listener) == 0);
	pthread_detach(thread);
}

/* ---- set-up --------------------------------------------------------------------------------- */

/* The client's side of it. */
struct client {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buf; /* DEPTH messages out, DEPTH messages in */
};

static struct client clients[SIDES];

static void side_init(struct side *s, unsigned int index)
{
	/* Nobody else's, in case there are several of us. */
	const uint8_t place = (uint8_t)(1 + getpid() % 250);
	const uint8_t gid[16] = {[10] = 0xff, 0xff, 127, 15, place, (uint8_t)(index + 1)};
	char error[200];

	snprintf(s->dev.name, sizeof(s->dev.name), "bench%u", index);
	s->dev.index = index;
	s->dev.node_guid = index + 1;
	s->dev.mrs = mr_table_create();
	CHECK(s->dev.mrs);
	memcpy(s->dev.gids[0].raw, gid, 16);
	s->dev.gids[0].valid = 1;
	s->dev.gid_count = 1;
	s->dev.features = DEVICE_FEATURES_ALL;
	s->dev.attr.max_qp_rd_atom = s->dev.attr.max_qp_init_rd_atom = 16;
	s->dev.port_attr = (struct ibv_port_attr){
		.state = IBV_PORT_ACTIVE,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = IBV_MTU_4096,
		.gid_tbl_len = 1,
		.pkey_tbl_len = 1,
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};
	s->pd.dev = &s->dev;
	s->dma = dma_create(&backend, 256 * 1024);
	CHECK(s->dma);
	CHECK(engine_init(&s->engine, &ops, s, 0, s->dma) == 0);
	s->io.side = s;
	if (!over_udp)
		return;
	s->port = udp_port_create(&s->io, &s->engine, engine_rx, NULL);
	CHECK(s->port);
	if (udp_port_add(s->port, &s->dev, gid, 0, 0, 1, error, sizeof(error)) != 0) {
		fprintf(stderr, "%s\n", error);
		exit(1);
	}
}

static void client_init(struct client *c, struct ibv_device *dev)
{
	struct ibv_context *ctx = ibv_open_device(dev);
	struct ibv_qp_init_attr attr = {
		.cap = {DEPTH, DEPTH, 1, 1, 0},
		.qp_type = IBV_QPT_RC,
	};

	CHECK(ctx);
	c->pd = ibv_alloc_pd(ctx);
	c->cq = ibv_create_cq(ctx, 4 * DEPTH, NULL, NULL, 0);
	c->buf = aligned_alloc(4096, 2 * DEPTH * MESSAGE);
	CHECK(c->pd && c->cq && c->buf);
	memset(c->buf, 0, 2 * DEPTH * MESSAGE);
	c->mr = ibv_reg_mr(c->pd, c->buf, 2 * DEPTH * MESSAGE,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(c->mr);
	attr.send_cq = attr.recv_cq = c->cq;
	c->qp = ibv_create_qp(c->pd, &attr);
	CHECK(c->qp);
}

static void client_connect(struct client *c, const struct client *peer, const struct side *to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}},
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	memcpy(attr.ah_attr.grh.dgid.raw, to->dev.gids[0].raw, 16);
	CHECK(ibv_modify_qp(c->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						  IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(c->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						  IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						  IBV_QP_MAX_DEST_RD_ATOMIC |
						  IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(c->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						  IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						  IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* ---- a round -------------------------------------------------------------------------------- */

/* Sends what a side's engine has sent. */
static void flush(struct side *s)
{
	if (over_udp)
		udp_port_flush(s->port);
}

/* Hands a side what the other one has sent, and lets its engine run. */
static void deliver(struct side *s, struct side *from)
{
	if (over_udp)
		udp_port_receive(s->port);
	for (uint32_t i = 0; i < from->out_count; i++)
		engine_rx(&s->engine, &from->out[i].train);
	from->out_count = 0;
	CHECK(!engine_run(&s->engine));
	flush(s);
	pause_counting();
	io_reuse(&from->io);
	resume_counting();
}

/* Takes n completions. */
static void take(struct client *c, unsigned int n)
{
	struct ibv_wc wc[POLL];

	while (n) {
		int got = ibv_poll_cq(c->cq, POLL, wc);

		CHECK(got > 0 && (unsigned int)got <= n && wc[0].status == IBV_WC_SUCCESS);
		n -= (unsigned int)got;
	}
}

static void post_receives(struct client *c)
{
	for (unsigned int i = 0; i < BATCH; i++) {
		struct ibv_sge sge = {(uintptr_t)c->buf + (DEPTH + i) * MESSAGE, MESSAGE,
				      c->mr->lkey};
		struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

		CHECK(ibv_post_recv(c->qp, &wr, &bad) == 0);
	}
}

static void post_sends(struct client *c, const struct client *peer, enum ibv_wr_opcode opcode)
{
	for (unsigned int i = 0; i < BATCH; i++) {
		struct ibv_sge sge = {(uintptr_t)c->buf + i * MESSAGE, MESSAGE, c->mr->lkey};
		struct ibv_send_wr wr = {
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = opcode,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {(uintptr_t)peer->buf + (DEPTH + i) * MESSAGE, peer->mr->rkey},
		};
		struct ibv_send_wr *bad;

		CHECK(ibv_post_send(c->qp, &wr, &bad) == 0);
	}
}

/* One round of WRITEs or SENDs from side 0 to side 1. */
static void run_round(const char *name, enum ibv_wr_opcode opcode)
{
	const char *port = over_udp ? "udp" : "local";
	struct client *c = &clients[0], *peer = &clients[1];
	struct side *s = &sides[0], *to = &sides[1];

	memset(c->buf, (int)(clock_ns / 1000), BATCH * MESSAGE);
	if (opcode == IBV_WR_SEND) {
		stage_begin();
		post_receives(peer);
		stage_end(port, name, "post-receive");
	}
	stage_begin();
	post_sends(c, peer, opcode);
	stage_end(port, name, "post");

	clock_ns += 1000;
	s->engine.now = to->engine.now = clock_ns;
	CHECK(atomic_exchange(&s->doorbell->summary[0], 0) == 1);
	CHECK(atomic_exchange(&s->doorbell->bits[0], 0) == 1);
	stage_begin();
	engine_doorbell(&s->engine, s->qp);
	CHECK(!engine_run(&s->engine));
	flush(s);
	stage_end(port, name, "requester");

	stage_begin();
	deliver(to, s);
	stage_end(port, name, "responder");

	stage_begin();
	deliver(s, to);
	stage_end(port, name, "completer");

	stage_begin();
	take(c, BATCH);
	stage_end(port, name, "poll");
	if (opcode == IBV_WR_SEND) {
		stage_begin();
		take(peer, BATCH);
		stage_end(port, name, "poll-receive");
	}
	CHECK(memcmp(c->buf, peer->buf + DEPTH * MESSAGE, BATCH * MESSAGE) == 0);
	memset(peer->buf + DEPTH * MESSAGE, 0xff, BATCH * MESSAGE);
}

static void run(const char *name, enum ibv_wr_opcode opcode)
{
	unsigned int rounds = timing ? TIMED_ROUNDS : ROUNDS;

	for (unsigned int i = 1; i <= rounds; i++) {
		counting = !timing && i == rounds;
		run_round(name, opcode);
	}
	counting = false;
}

/* What the figures depend on. */
static void print_build(void)
{
#ifdef __clang__
	printf("clang ");
#else
	printf("gcc ");
#endif
#if !__has_include(<valgrind/callgrind.h>)
	printf("without callgrind.h, ");
#endif
	printf("%s, %s, %s\n", __VERSION__, BENCH_OPTIMIZATION, BENCH_CPU);
}

int main(int argc, char **argv)
{
	struct ibv_device **list;

	if (argc == 2 && !strcmp(argv[1], "build")) {
		print_build();
		return 0;
	}
	if (argc < 2 || argc > 3 || (strcmp(argv[1], "local") && strcmp(argv[1], "udp"))) {
		fprintf(stderr, "usage: instructions build | local [profile | time] | udp [profile | time]\n");
		return 2;
	}
	pausing = argc == 2;
	timing = argc == 3 && !strcmp(argv[2], "time");
	over_udp = !strcmp(argv[1], "udp");
	for (unsigned int i = 0; i < SIDES; i++)
		side_init(&sides[i], i);
	daemon_start();
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && list[1]);
	for (unsigned int i = 0; i < SIDES; i++)
		client_init(&clients[i], list[i]);
	ibv_free_device_list(list);
	for (unsigned int i = 0; i < SIDES; i++)
		client_connect(&clients[i], &clients[!i], &sides[!i]);
	run("write", IBV_WR_RDMA_WRITE);
	run("send", IBV_WR_SEND);
	stage_print();
	return 0;
}
