// SPDX-License-Identifier: BSD-2-Clause
/*
 * Files of memory that the daemon maps, in the hands of programs that mean it no good: cut short
 * here and there, in mid-traffic, made larger again, far longer than what is in them, or passed by
 * who may not write them. The daemon goes on, at its cost in memory and areas, and nobody gets at
 * what he could not have without it.
 */
#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "honest.h"
#include "raw.h"

#define PAGE 4096u
#define REGION (16 * PAGE)
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static struct env e;
static struct ibv_qp *qp[2];

static int new_file(off_t size)
{
	int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, size), 0);
	return fd;
}

static uint8_t *map(int fd, off_t offset, size_t length)
{
	uint8_t *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);

	CHECK(p != MAP_FAILED);
	return p;
}

/* Writes from the first bytes of the buffer, or reads to them. @return the status */
static enum ibv_wc_status run(enum ibv_wr_opcode opcode, uint64_t addr, uint32_t rkey, uint32_t len)
{
	struct ibv_sge sge = sge_at(&e, 0, len);
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.rdma = {.remote_addr = addr, .rkey = rkey}},
			   *bad;
	struct ibv_wc wc;

	CHECK_EQ(ibv_post_send(qp[0], &wr, &bad), 0);
	wait_wc(e.cq, 1, &wc);
	return wc.status;
}

static void reconnect(void)
{
	to_state(qp[0], IBV_QPS_RESET);
	to_state(qp[1], IBV_QPS_RESET);
	connect_pair(&e, qp[0], qp[1]);
}

/* @return the number of areas the daemon's address space has */
static unsigned int daemon_areas(pid_t pid)
{
	unsigned int lines = 0;
	char path[64];
	FILE *f;
	int c;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "r");
	CHECK(f);
	while ((c = getc(f)) != EOF)
		lines += c == '\n';
	fclose(f);
	return lines;
}

/* @return the daemon's address space, GiB */
static unsigned long daemon_space(pid_t pid)
{
	return daemon_memory(pid, "VmSize:") >> 20;
}

/* A page here and there of a file that was cut off: what was written there stays as it was. */
static void here_and_there(pid_t pid)
{
	const unsigned int pages = 600;
	int fd = new_file((off_t)pages * PAGE);
	uint8_t *p = map(fd, 0, (size_t)pages * PAGE);
	struct ibv_mr *mr = ibv_reg_mr(e.pd, p, (size_t)pages * PAGE, RIGHTS);
	unsigned int before = daemon_areas(pid);
	static const unsigned int order[] = {2, 1, 3}; /* of pages, by their remainder */

	CHECK(mr);
	CHECK_EQ(ftruncate(fd, 0), 0);
	for (unsigned int k = 0; k < 3; k++) {
		for (unsigned int n = 0; n < pages; n++) {
			unsigned int i = k == 0 ? pages - 1 - n : n;

			if (i % 4 != order[k])
				continue;
			memset(e.buf, (int)(i % 251), 64);
			CHECK_EQ(run(IBV_WR_RDMA_WRITE, (uintptr_t)p + i * PAGE, mr->rkey, 64),
				 IBV_WC_SUCCESS);
		}
	}
	for (unsigned int i = 0; i < pages; i++) {
		CHECK_EQ(run(IBV_WR_RDMA_READ, (uintptr_t)p + i * PAGE, mr->rkey, 64),
			 IBV_WC_SUCCESS);
		CHECK_EQ(e.buf[0], i % 4 == 0 ? 0 : i % 251);
	}
	CHECK(daemon_areas(pid) < before + 20);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(munmap(p, (size_t)pages * PAGE), 0);
	close(fd);
}

/* Cut off, and made as long again, with the old region still there: a new one is of the file. */
static void made_again(void)
{
	int fd = new_file(REGION);
	uint8_t *p = map(fd, 0, REGION);
	struct ibv_mr *old = ibv_reg_mr(e.pd, p, REGION, RIGHTS), *mr;

	CHECK(old);
	for (int round = 0; round < 3; round++) {
		CHECK_EQ(ftruncate(fd, 0), 0);
		memset(e.buf, 0x11, REGION);
		CHECK_EQ(run(IBV_WR_RDMA_WRITE, (uintptr_t)p, old->rkey, REGION), IBV_WC_SUCCESS);
		CHECK_EQ(ftruncate(fd, REGION), 0);
		mr = ibv_reg_mr(e.pd, p, REGION, RIGHTS);
		CHECK(mr);
		memset(e.buf, 0x20 + round, REGION);
		CHECK_EQ(run(IBV_WR_RDMA_WRITE, (uintptr_t)p, mr->rkey, REGION), IBV_WC_SUCCESS);
		for (unsigned int i = 0; i < REGION; i++)
			CHECK_EQ(p[i], 0x20 + round);
		p[REGION - 1] = 0x99;
		CHECK_EQ(run(IBV_WR_RDMA_READ, (uintptr_t)p, mr->rkey, REGION), IBV_WC_SUCCESS);
		CHECK_EQ(e.buf[REGION - 1], 0x99);
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	}
	CHECK_EQ(ibv_dereg_mr(old), 0);
	CHECK_EQ(munmap(p, REGION), 0);
	close(fd);
}

/* Files with next to nothing in them, and longer than the daemon's address space together. */
static void sparse(pid_t pid)
{
	enum { FILES = 160 };
	static struct ibv_mr *mr[FILES];
	static uint8_t *p[FILES];
	unsigned long before = daemon_space(pid);

	for (int i = 0; i < FILES; i++) {
		/* 1 TiB each, but for one of all there can be. */
		off_t size = i == 7 ? INT64_MAX - PAGE : (off_t)1 << 40;
		int fd = new_file(size & ~(off_t)(PAGE - 1));

		p[i] = map(fd, 0, REGION);
		mr[i] = ibv_reg_mr(e.pd, p[i], REGION, RIGHTS);
		CHECK(mr[i]);
		close(fd);
	}
	CHECK(daemon_space(pid) < before + 32 * 1024);
	for (int i = 0; i < FILES; i++) {
		memset(e.buf, i, REGION);
		CHECK_EQ(run(IBV_WR_RDMA_WRITE, (uintptr_t)p[i], mr[i]->rkey, REGION),
			 IBV_WC_SUCCESS);
		CHECK(p[i][0] == i && p[i][REGION - 1] == i);
		CHECK_EQ(ibv_dereg_mr(mr[i]), 0);
		CHECK_EQ(munmap(p[i], REGION), 0);
	}
	CHECK(daemon_space(pid) < before + 1024);
}

/* A context that has our PD, to register what the library would not. */
static void import_ours(struct raw *r)
{
	struct vernic_request req = {.command = VERNIC_CMD_IMPORT_DEVICE};

	CHECK_EQ(raw_start(r), 0);
	CHECK_EQ(raw_send(r->fd, &req, sizeof(req), &e.ctx->cmd_fd, 1), 0);
	CHECK_EQ(raw_receive(r, &r->reply, sizeof(r->reply)), sizeof(r->reply));
	CHECK_EQ(r->reply.status, 0);
	CHECK_EQ(raw_open(r), 0);
}

/* Registers memory, with a descriptor for its file. @return the rkey, 0: it was refused */
static uint32_t register_with(struct raw *r, int fd, uint64_t addr, uint64_t length,
			      uint64_t offset)
{
	struct vernic_request req = {.command = VERNIC_CMD_REG_MR};

	req.reg_mr.addr = req.reg_mr.iova = addr;
	req.reg_mr.length = length;
	req.reg_mr.access = RIGHTS;
	req.reg_mr.pd = e.pd->handle;
	req.reg_mr.kind = VERNIC_MR_MEMORY;
	req.reg_mr.offset = offset;
	CHECK_EQ(raw_send(r->fd, &req, sizeof(req), &fd, 1), 0);
	CHECK_EQ(raw_receive(r, &r->reply, sizeof(r->reply)), sizeof(r->reply));
	return r->reply.status == 0 ? r->reply.reg_mr.rkey : 0;
}

/*
 * A file that is mapped by the daemon, for its owner, and then sealed: whoever else has a
 * descriptor of it cannot write to it, by way of the daemon neither.
 */
static void sealed(struct raw *r)
{
	static const int seals[] = {F_SEAL_FUTURE_WRITE, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK};
	uint8_t *own = map(new_file(REGION), 0, REGION);

	for (size_t i = 0; i < sizeof(seals) / sizeof(seals[0]); i++) {
		int fd = new_file(REGION);
		uint8_t *p = map(fd, 0, REGION);
		struct ibv_mr *mr = ibv_reg_mr(e.pd, p, REGION, RIGHTS);
		uint32_t rkey;

		CHECK(mr);
		memset(p, 0x5a, REGION);
		if (fcntl(fd, F_ADD_SEALS, seals[i]) != 0) {
			CHECK_EQ(errno, EINVAL); /* before Linux 5.1 */
			return;
		}
		rkey = register_with(r, fd, (uintptr_t)own, REGION, 0);
		CHECK(rkey);
		memset(e.buf, 0x66, REGION);
		CHECK_EQ(run(IBV_WR_RDMA_WRITE, (uintptr_t)own, rkey, REGION), IBV_WC_SUCCESS);
		CHECK_EQ(p[0], 0x5a);
		CHECK_EQ(p[REGION - 1], 0x5a);
		/* The owner may. */
		CHECK_EQ(run(IBV_WR_RDMA_WRITE, (uintptr_t)p, mr->rkey, REGION), IBV_WC_SUCCESS);
		CHECK_EQ(p[0], 0x66);
		CHECK_EQ(ibv_dereg_mr(mr), 0);
		munmap(p, REGION);
		close(fd);
	}
}

/* Descriptors of anything, ranges of anything: what cannot be mapped is reached otherwise. */
static void descriptors(struct raw *r)
{
	static const uint64_t offsets[] = {0,
					   1,
					   PAGE,
					   REGION,
					   REGION + 1,
					   1ull << 40,
					   INT64_MAX,
					   1ull << 63,
					   UINT64_MAX - REGION,
					   UINT64_MAX - PAGE,
					   UINT64_MAX,
					   UINT64_MAX / 2};
	uint8_t *own = map(new_file(REGION), 0, REGION);
	int fds[8], pair[2], count = 0;

	fds[count++] = new_file(REGION);
	fds[count++] = open("/proc/self/mem", O_RDWR);
	fds[count++] = open("/dev/zero", O_RDWR);
	fds[count++] = open("/", O_RDONLY | O_DIRECTORY);
	fds[count++] = open("/dev/shm", O_PATH);
	fds[count++] = r->fd;
	CHECK_EQ(pipe(pair), 0);
	fds[count++] = pair[0];
	fds[count++] = pair[1];
	memset(own, 0, REGION);
	for (int i = 0; i < count; i++) {
		for (size_t k = 0; k < sizeof(offsets) / sizeof(offsets[0]); k++) {
			uint32_t rkey =
				register_with(r, fds[i], (uintptr_t)own, REGION, offsets[k]);

			CHECK(rkey);
			memset(e.buf, i + 1, 64);
			CHECK_EQ(run(IBV_WR_RDMA_WRITE, (uintptr_t)own, rkey, 64), IBV_WC_SUCCESS);
			/* A hole of the file is no memory. */
			CHECK_EQ(own[0], i + 1);
			CHECK_EQ(raw_about(r, VERNIC_CMD_DEREG_MR, r->reply.handle), 0);
			register_with(r, fds[i], (uintptr_t)own, UINT64_MAX - (uintptr_t)own,
				      offsets[k]);
			register_with(r, fds[i], (uintptr_t)own, 1ull << 46, offsets[k]);
		}
	}
	close(fds[0]);
	close(fds[1]);
	close(fds[2]);
	close(fds[3]);
	close(fds[4]);
	close(pair[0]);
	close(pair[1]);
	munmap(own, REGION);
}

/* ---- in mid-traffic -------------------------------------------------------------------------- */

struct cutter {
	int fd;
	_Atomic int stop;
};

/* Cuts the file short, makes it longer, and makes holes, all the time. */
static void *cut(void *arg)
{
	struct cutter *c = arg;
	uint64_t seed = 42;

	while (!c->stop) {
		off_t from = (off_t)raw_below(&seed, 16) * PAGE;

		if (raw_below(&seed, 2))
			fallocate(c->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from,
				  4 * PAGE);
		else
			CHECK_EQ(ftruncate(c->fd, from), 0);
		CHECK_EQ(ftruncate(c->fd, REGION), 0);
	}
	return NULL;
}

static void mid_traffic(struct honest *h)
{
	enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
	struct cutter c = {.fd = new_file(REGION)};
	unsigned long good = 0;
	pthread_t thread;
	double end;

	CHECK_EQ(pthread_create(&thread, NULL, cut, &c), 0);
	end = seconds() + 2;
	while (seconds() < end) {
		uint8_t *p = map(c.fd, 0, REGION);
		struct ibv_mr *mr = ibv_reg_mr(e.pd, p, REGION, RIGHTS);

		/* The library could not bring the pages in: they were just cut off. */
		for (int i = 0; mr && i < 20; i++) {
			if (run(ops[i % 2], (uintptr_t)p, mr->rkey, REGION) == IBV_WC_SUCCESS)
				good++;
			else
				reconnect();
		}
		CHECK(!mr || ibv_dereg_mr(mr) == 0);
		CHECK_EQ(munmap(p, REGION), 0);
	}
	c.stop = 1;
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(good > 0);
	close(c.fd);
	honest_check(h);
}

/* The same by a process that is killed in the middle. */
static void killed(struct honest *h)
{
	for (int i = 0; i < 10; i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid == 0) {
			struct ibv_qp_init_attr attr;

			env_open(&e);
			attr = env_qp_attr(&e);
			qp[0] = ibv_create_qp(e.pd, &attr);
			qp[1] = ibv_create_qp(e.pd, &attr);
			CHECK(qp[0] && qp[1]);
			connect_pair(&e, qp[0], qp[1]);
			for (;;)
				mid_traffic(h);
		}
		usleep(20000 + 7000 * (useconds_t)i);
		CHECK_EQ(kill(pid, SIGKILL), 0);
		CHECK_EQ(waitpid(pid, NULL, 0), pid);
		honest_check(h);
	}
}

int main(void)
{
	struct honest *h = honest_start();
	struct ibv_qp_init_attr attr;
	pid_t pid = daemon_pid();
	unsigned int fds = daemon_fds(pid);
	struct raw r;

	killed(h);
	env_open(&e);
	attr = env_qp_attr(&e);
	qp[0] = ibv_create_qp(e.pd, &attr);
	qp[1] = ibv_create_qp(e.pd, &attr);
	CHECK(qp[0] && qp[1]);
	connect_pair(&e, qp[0], qp[1]);
	here_and_there(pid);
	made_again();
	sparse(pid);
	import_ours(&r);
	sealed(&r);
	descriptors(&r);
	honest_check(h);
	mid_traffic(h);
	CHECK_EQ(ibv_destroy_qp(qp[0]), 0);
	CHECK_EQ(ibv_destroy_qp(qp[1]), 0);
	honest_stop(h);
	/* What the other one has registered on our PD goes with it: then there is our MR only. */
	raw_end(&r);
	status_expect("mr", 2);
	env_close(&e);
	status_expect("mr", 0);
	daemon_expect_fds(pid, fds);
	return 0;
}
