// SPDX-License-Identifier: BSD-2-Clause
/*
 * Importing, with clients that die or lie: windows that one process has bound to the memory of
 * another one, which is killed; an importer that never opens the device, while the exporter goes;
 * descriptors of anything for a connection; who claims to be somebody else. Others notice nothing,
 * nothing is left behind.
 */
#include <sys/stat.h>

#include "honest.h"
#include "raw.h"

#define REGION (256u << 10)

/* ---- by hand ------------------------------------------------------------------------------- */

/*
 * Opens the first device as the library does: it can be imported.
 * @end: whose end of a connection it claims to have, by its inode; @cookie: and by its cookie
 */
static int open_claiming(struct raw *r, int end, int cookie)
{
	static uint64_t word = UINT64_C(0x0ddba11c0ffee000);
	struct vernic_request req = {.command = VERNIC_CMD_OPEN_DEVICE};
	socklen_t len = sizeof(req.open_device.cookie);
	struct stat st;

	CHECK_EQ(raw_about(r, VERNIC_CMD_LIST_DEVICES, 0), 0);
	memcpy(req.open_device.name, r->reply.list_devices.name, VERNIC_NAME_MAX);
	req.open_device.probe_addr = (uintptr_t)&word;
	req.open_device.probe_value = word;
	CHECK_EQ(fstat(end, &st), 0);
	req.open_device.dev = st.st_dev;
	req.open_device.ino = st.st_ino;
	if (getsockopt(cookie, SOL_SOCKET, SO_COOKIE, &req.open_device.cookie, &len) != 0)
		req.open_device.cookie = 0;
	return raw_call(r, &req);
}

static int open_honestly(struct raw *r)
{
	return open_claiming(r, r->fd, r->fd);
}

static int import_with(struct raw *r, const int *fds, unsigned int count)
{
	struct vernic_request req = {.command = VERNIC_CMD_IMPORT_DEVICE};

	CHECK_EQ(raw_send(r->fd, &req, sizeof(req), fds, count), 0);
	CHECK_EQ(raw_receive(r, &r->reply, sizeof(r->reply)), sizeof(r->reply));
	return r->reply.status;
}

/* Everything that is shared. @return the PD's handle */
static uint32_t make_all(struct raw *r)
{
	static uint8_t memory[4096];
	struct vernic_request pd = {.command = VERNIC_CMD_ALLOC_PD};
	struct vernic_request dm = {.command = VERNIC_CMD_ALLOC_DM, .alloc_dm = {.length = 4096}};
	struct vernic_request mr = {.command = VERNIC_CMD_REG_MR};
	struct vernic_request mw = {.command = VERNIC_CMD_ALLOC_MW};
	uint32_t handle;

	CHECK_EQ(raw_call(r, &pd), 0);
	mr.reg_mr.pd = mw.alloc_mw.pd = handle = r->reply.handle;
	CHECK_EQ(raw_call(r, &dm), 0);
	mr.reg_mr.dm = r->reply.handle;
	mr.reg_mr.length = 4096;
	for (mr.reg_mr.kind = 0; mr.reg_mr.kind < VERNIC_MR_KIND_COUNT; mr.reg_mr.kind++) {
		mr.reg_mr.addr = mr.reg_mr.kind == VERNIC_MR_MEMORY ? (uintptr_t)memory : 0;
		CHECK_EQ(raw_call(r, &mr), 0);
	}
	mw.alloc_mw.type = IBV_MW_TYPE_1;
	CHECK_EQ(raw_call(r, &mw), 0);
	return handle;
}

/* The exporter goes before the importer has opened the device: nothing is there any more. */
static void never_opened(void)
{
	struct vernic_request import = {.command = VERNIC_CMD_IMPORT_PD};
	struct raw exporter, importer, next;
	long pds = status_sum("pd"), mrs = status_sum("mr");
	uint32_t pd;

	for (int opens = 0; opens < 3; opens++) {
		CHECK_EQ(raw_start(&exporter), 0);
		CHECK_EQ(open_honestly(&exporter), 0);
		pd = make_all(&exporter);
		CHECK_EQ(raw_start(&importer), 0);
		CHECK_EQ(import_with(&importer, &exporter.fd, 1), 0);
		/* Another one instead, or one more, is refused while that one is there. */
		CHECK_EQ(import_with(&importer, &exporter.fd, 1), EBUSY);
		raw_end(&exporter);
		status_expect("pd", pds);
		status_expect("mr", mrs);
		if (opens == 1) {
			import.handle = pd;
			CHECK_EQ(open_honestly(&importer), 0);
			CHECK_EQ(raw_call(&importer, &import), EINVAL);
			make_all(&importer);
			CHECK_EQ(import_with(&importer, &importer.fd, 1), EBUSY);
		} else if (opens == 2) {
			CHECK_EQ(raw_start(&next), 0);
			CHECK_EQ(open_honestly(&next), 0);
			import.handle = make_all(&next);
			CHECK_EQ(import_with(&importer, &next.fd, 1), 0);
			CHECK_EQ(open_honestly(&importer), 0);
			CHECK_EQ(raw_call(&importer, &import), 0);
			raw_end(&next);
		}
		raw_end(&importer);
		status_expect("pd", pds);
		status_expect("mr", mrs);
	}
}

/* What is no connection, no context, or somebody's own. */
static void wrong_descriptors(void)
{
	struct raw exporter, silent, r;
	int fds[8], pair[2], count = 0;

	CHECK_EQ(raw_start(&exporter), 0);
	CHECK_EQ(open_honestly(&exporter), 0);
	CHECK_EQ(raw_start(&silent), 0);
	CHECK_EQ(raw_start(&r), 0);
	CHECK_EQ(pipe(pair), 0);
	fds[count++] = pair[0];
	fds[count++] = pair[1];
	fds[count++] = open("/proc/self/mem", O_RDWR);
	fds[count++] = memfd_create("none", 0);
	fds[count++] = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	fds[count++] = pair[0];
	fds[count++] = pair[1];
	fds[count++] = silent.fd; /* it has opened nothing */
	for (int i = 0; i < count; i++)
		CHECK_EQ(import_with(&r, &fds[i], 1), EINVAL);
	CHECK_EQ(import_with(&r, &r.fd, 1), EINVAL);
	CHECK_EQ(import_with(&r, NULL, 0), EINVAL);
	CHECK_EQ(import_with(&r, (int[]){exporter.fd, exporter.fd}, 2), EINVAL);
	CHECK_EQ(import_with(&r, &exporter.fd, 1), 0);
	for (int i = 0; i < count - 1; i++)
		close(fds[i]);
	raw_end(&silent);
	raw_end(&exporter);
	raw_end(&r);
}

/* Who says that his end is another's does not get what is imported from that one. */
static void liar(void)
{
	struct vernic_request import = {.command = VERNIC_CMD_IMPORT_PD};
	struct raw exporter, other, r;
	uint32_t theirs;

	CHECK_EQ(raw_start(&exporter), 0);
	CHECK_EQ(open_honestly(&exporter), 0);
	CHECK_EQ(raw_start(&other), 0);
	CHECK_EQ(open_claiming(&other, exporter.fd, other.fd), 0);
	for (int i = 0; i < 5; i++)
		theirs = make_all(&other);
	import.handle = theirs;
	/* Inode numbers come again, cookies do not. */
	CHECK_EQ(raw_start(&r), 0);
	CHECK_EQ(import_with(&r, &exporter.fd, 1), 0);
	CHECK_EQ(open_honestly(&r), 0);
	CHECK_EQ(raw_call(&r, &import), EINVAL);
	raw_end(&r);
	raw_end(&other);
	CHECK_EQ(raw_start(&other), 0);
	CHECK_EQ(open_claiming(&other, exporter.fd, exporter.fd), 0);
	for (int i = 0; i < 5; i++)
		theirs = make_all(&other);
	CHECK_EQ(raw_start(&r), 0);
	/* It is not clear whose it is. */
	CHECK_EQ(import_with(&r, &exporter.fd, 1), EINVAL);
	raw_end(&other);
	/* Who has gone claims nothing any more. */
	for (double end = seconds() + TEST_TIMEOUT; import_with(&r, &exporter.fd, 1) != 0;)
		CHECK(seconds() < end);
	CHECK_EQ(open_honestly(&r), 0);
	import.handle = theirs;
	CHECK_EQ(raw_call(&r, &import), EINVAL);
	raw_end(&exporter);
	raw_end(&r);
}

/* ---- anything ------------------------------------------------------------------------------ */

/* A connection that has its own device, or that of another one. */
static void join(struct raw *r, const struct raw *other)
{
	CHECK_EQ(raw_start(r), 0);
	if (other)
		CHECK_EQ(import_with(r, &other->fd, 1), 0);
	CHECK_EQ(open_honestly(r), 0);
}

/*
 * Three connections with one set of objects do anything with them: requests of small numbers, with
 * all kinds of descriptors. Now and then one of them ends, and another one comes.
 */
static void fuzz(uint64_t seed)
{
	static const uint32_t commands[] = {
		VERNIC_CMD_ALLOC_PD,	VERNIC_CMD_DEALLOC_PD,	 VERNIC_CMD_REG_MR,
		VERNIC_CMD_REG_MR,	VERNIC_CMD_REG_MR,	 VERNIC_CMD_DEREG_MR,
		VERNIC_CMD_REREG_MR,	VERNIC_CMD_ADVISE_MR,	 VERNIC_CMD_ALLOC_MW,
		VERNIC_CMD_DEALLOC_MW,	VERNIC_CMD_ALLOC_DM,	 VERNIC_CMD_FREE_DM,
		VERNIC_CMD_IMPORT_PD,	VERNIC_CMD_IMPORT_MR,	 VERNIC_CMD_IMPORT_DM,
		VERNIC_CMD_CREATE_CQ,	VERNIC_CMD_DESTROY_CQ,	 VERNIC_CMD_RESIZE_CQ,
		VERNIC_CMD_MODIFY_CQ,	VERNIC_CMD_CREATE_SRQ,	 VERNIC_CMD_MODIFY_SRQ,
		VERNIC_CMD_DESTROY_SRQ, VERNIC_CMD_CREATE_QP,	 VERNIC_CMD_OPEN_QP,
		VERNIC_CMD_MODIFY_QP,	VERNIC_CMD_DESTROY_QP,	 VERNIC_CMD_OPEN_XRCD,
		VERNIC_CMD_CLOSE_XRCD,	VERNIC_CMD_CREATE_WQ,	 VERNIC_CMD_MODIFY_WQ,
		VERNIC_CMD_DESTROY_WQ,	VERNIC_CMD_ATTACH_MCAST, VERNIC_CMD_DETACH_MCAST,
	};
	int file = memfd_create("fuzz", 0), none[2];
	double end = seconds() + 2;
	struct raw r[3];

	CHECK_EQ(ftruncate(file, REGION), 0);
	CHECK_EQ(pipe(none), 0);
	join(&r[0], NULL);
	join(&r[1], &r[0]);
	join(&r[2], &r[1]);
	while (seconds() < end) {
		uint32_t i = raw_below(&seed, 3), words[sizeof(struct vernic_request) / 4];
		struct vernic_request req;
		const int fds[] = {file, none[0], r[i].fd, r[(i + 1) % 3].fd};

		if (raw_below(&seed, 500) == 0) {
			raw_end(&r[i]);
			join(&r[i], &r[(i + 1 + raw_below(&seed, 2)) % 3]);
		}
		for (size_t k = 0; k < sizeof(words) / 4; k++)
			words[k] = raw_below(&seed, 3)
					   ? raw_below(&seed, 6)
					   : (uint32_t)raw_random(&seed) >> raw_below(&seed, 32);
		memcpy(&req, words, sizeof(req));
		req.command = commands[raw_below(&seed, sizeof(commands) / 4)];
		req.handle = raw_below(&seed, 12);
		if (req.command == VERNIC_CMD_CREATE_CQ || req.command == VERNIC_CMD_RESIZE_CQ)
			req.create_cq.cqe &= 0xfff;
		if (req.command == VERNIC_CMD_CREATE_CQ)
			req.create_cq.channel = UINT32_MAX;
		if (req.command == VERNIC_CMD_CREATE_QP) {
			static const uint32_t types[] = {IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_XRC_SEND,
							 IBV_QPT_XRC_RECV};

			req.create_qp.qp_type = types[raw_below(&seed, 4)];
			if (raw_below(&seed, 2))
				req.create_qp.srq = UINT32_MAX;
			memset(&req.create_qp.cap, 1, 1);
		}
		if (req.command == VERNIC_CMD_CREATE_SRQ && raw_below(&seed, 2))
			req.create_srq.xrcd = UINT32_MAX;
		if (req.command == VERNIC_CMD_REG_MR && raw_below(&seed, 2))
			req.reg_mr.access &= 0xff;
		if (req.command == VERNIC_CMD_ATTACH_MCAST)
			memcpy(req.mcast.gid, "\xff\x15", 2);
		CHECK_EQ(raw_send(r[i].fd, &req, sizeof(req), &fds[raw_below(&seed, 4)],
				  raw_below(&seed, 2)),
			 0);
		CHECK_EQ(raw_receive(&r[i], &r[i].reply, sizeof(r[i].reply)), sizeof(r[i].reply));
	}
	for (int i = 0; i < 3; i++)
		raw_end(&r[i]);
	close(file);
	close(none[0]);
	close(none[1]);
}

/* ---- windows on the memory of a process that is killed --------------------------------------- */

struct letter {
	uint32_t pd, mr;
	uint64_t addr;
};

/* Registers memory, shows it, and waits to be killed. */
static void victim(int socket, bool shared)
{
	int fd = shared ? memfd_create("victim", 0) : -1;
	struct letter l;
	struct ibv_mr *mr;
	struct env e;
	uint8_t *p;

	env_open(&e);
	CHECK(!shared || ftruncate(fd, REGION) == 0);
	p = mmap(NULL, REGION, PROT_READ | PROT_WRITE,
		 shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
	CHECK(p != MAP_FAILED);
	mr = ibv_reg_mr(e.pd, p, REGION, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(mr);
	l = (struct letter){e.pd->handle, mr->handle, (uintptr_t)p};
	CHECK_EQ(raw_send(socket, &l, sizeof(l), &e.ctx->cmd_fd, 1), 0);
	for (;;)
		pause();
}

/* One WRITE. @return its status */
static enum ibv_wc_status write_to(const struct env *e, struct ibv_qp *qp, uint64_t addr,
				   uint32_t rkey, uint32_t len)
{
	struct ibv_sge sge = sge_at(e, 0, len);
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.rdma = {.remote_addr = addr, .rkey = rkey}},
			   *bad;
	struct ibv_wc wc;

	CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
	wait_wc(e->cq, 1, &wc);
	return wc.status;
}

static void reconnect(const struct env *e, struct ibv_qp *qp[2])
{
	to_state(qp[0], IBV_QPS_RESET);
	to_state(qp[1], IBV_QPS_RESET);
	connect_pair(e, qp[0], qp[1]);
}

/* The other process: imports, binds a window, and looks what is left of it. */
static void binder(int socket, pid_t exporter, int us)
{
	struct raw r = {.fd = socket};
	struct ibv_mw_bind bind = {.wr_id = 1, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_qp_init_attr attr;
	double end = seconds() + TEST_TIMEOUT;
	enum ibv_wc_status status;
	struct ibv_mw *mw, *second;
	struct ibv_qp *qp[2];
	struct ibv_mr *mr;
	struct env e = {0};
	struct letter l;
	struct ibv_wc wc;

	CHECK_EQ(raw_receive(&r, &l, sizeof(l)), sizeof(l));
	CHECK_EQ(r.nfds, 1);
	e.ctx = ibv_import_device(r.fds[0]);
	CHECK(e.ctx);
	e.pd = ibv_import_pd(e.ctx, l.pd);
	mr = e.pd ? ibv_import_mr(e.pd, l.mr) : NULL;
	e.cq = ibv_create_cq(e.ctx, 64, NULL, NULL, 0);
	e.buf = calloc(1, BUF_SIZE);
	CHECK(mr && e.cq && e.buf);
	e.mr = ibv_reg_mr(e.pd, e.buf, BUF_SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(e.mr);
	CHECK_EQ(ibv_query_gid(e.ctx, 1, 1, &e.gid), 0);
	attr = env_qp_attr(&e);
	qp[0] = ibv_create_qp(e.pd, &attr);
	qp[1] = ibv_create_qp(e.pd, &attr);
	mw = ibv_alloc_mw(e.pd, IBV_MW_TYPE_1);
	second = ibv_alloc_mw(e.pd, IBV_MW_TYPE_1);
	CHECK(qp[0] && qp[1] && mw && second);
	connect_pair(&e, qp[0], qp[1]);
	bind.bind_info = (struct ibv_mw_bind_info){
		.mr = mr,
		.addr = l.addr,
		.length = REGION,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	CHECK_EQ(ibv_bind_mw(qp[1], mw, &bind), 0);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(write_to(&e, qp[0], l.addr, mw->rkey, 5000), IBV_WC_SUCCESS);

	/* In the middle of it, or with nothing under way. */
	if (us >= 0) {
		pid_t killer = fork();

		CHECK(killer >= 0);
		if (killer == 0) {
			usleep((useconds_t)us);
			kill(exporter, SIGKILL);
			_exit(0);
		}
	} else {
		CHECK_EQ(kill(exporter, SIGKILL), 0);
	}
	do {
		status = write_to(&e, qp[0], l.addr + 4096, mw->rkey, BUF_SIZE);
		CHECK(seconds() < end);
		if (status != IBV_WC_SUCCESS && status != IBV_WC_REM_ACCESS_ERR)
			reconnect(&e, qp); /* the memory went first */
	} while (status != IBV_WC_REM_ACCESS_ERR);
	reconnect(&e, qp);
	/* It has gone, and stays so: for the window, for a bind, for what is sent from there. */
	CHECK_EQ(write_to(&e, qp[0], l.addr, mw->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	reconnect(&e, qp);
	CHECK_EQ(ibv_bind_mw(qp[1], second, &bind), 0);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_MW_BIND_ERR);
	reconnect(&e, qp);
	/* The window itself is as good as new. */
	bind.bind_info.length = 0;
	CHECK_EQ(ibv_bind_mw(qp[1], mw, &bind), 0);
	wait_wc(e.cq, 1, &wc);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	CHECK_EQ(ibv_dealloc_mw(second), 0);
	_exit(0);
}

static void killed(bool shared, int us)
{
	pid_t exporter, importer;
	int fds[2], status;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
	exporter = fork();
	CHECK(exporter >= 0);
	if (exporter == 0)
		victim(fds[0], shared);
	importer = fork();
	CHECK(importer >= 0);
	if (importer == 0)
		binder(fds[1], exporter, us);
	CHECK_EQ(waitpid(importer, &status, 0), importer);
	kill(exporter, SIGKILL);
	CHECK_EQ(status, 0);
	CHECK_EQ(waitpid(exporter, &status, 0), exporter);
	close(fds[0]);
	close(fds[1]);
}

int main(void)
{
	struct honest *h = honest_start();
	pid_t pid = daemon_pid();
	unsigned int fds = daemon_fds(pid);

	never_opened();
	honest_check(h);
	wrong_descriptors();
	honest_check(h);
	liar();
	honest_check(h);
	for (uint64_t seed = 1; seed <= 2; seed++) {
		fuzz(seed);
		honest_check(h);
	}
	for (int shared = 0; shared < 2; shared++) {
		killed(shared, -1);
		for (int i = 0; i < 8; i++)
			killed(shared, i * 300);
		honest_check(h);
	}
	daemon_expect_fds(pid, fds);
	honest_stop(h);
	status_expect("pd", 0);
	status_expect("mr", 0);
	status_expect("qp", 0);
	return 0;
}
