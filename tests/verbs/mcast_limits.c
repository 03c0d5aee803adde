// SPDX-License-Identifier: BSD-2-Clause
/*
 * The limit of multicast groups, 2 here: it holds however QPs of several devices, which are one
 * network, join and leave, and whoever is killed meanwhile.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

#define DEVICES 2

struct member {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static void open_all(struct member m[DEVICES])
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; i < DEVICES; i++) {
		struct ibv_qp_init_attr init = {
			.qp_type = IBV_QPT_UD,
			.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1}};

		CHECK(list && list[i]);
		m[i].ctx = ibv_open_device(list[i]);
		CHECK(m[i].ctx);
		m[i].pd = ibv_alloc_pd(m[i].ctx);
		m[i].cq = ibv_create_cq(m[i].ctx, 4, NULL, NULL, 0);
		CHECK(m[i].pd && m[i].cq);
		init.send_cq = init.recv_cq = m[i].cq;
		m[i].qp = ibv_create_qp(m[i].pd, &init);
		CHECK(m[i].qp);
	}
	ibv_free_device_list(list);
}

static union ibv_gid group(int n)
{
	return (union ibv_gid){.raw = {[10] = 0xff, [11] = 0xff, 239, 23, 1, (uint8_t)n}};
}

static int attach(struct member *m, int n)
{
	union ibv_gid gid = group(n);

	return ibv_attach_mcast(m->qp, &gid, 0);
}

static int detach(struct member *m, int n)
{
	union ibv_gid gid = group(n);

	return ibv_detach_mcast(m->qp, &gid, 0);
}

/* Two groups, no more; an own one is no more than a common one. */
static void limited(struct member m[DEVICES])
{
	for (int i = 0; i < DEVICES; i++) {
		CHECK_EQ(attach(&m[i], 1), 0);
		CHECK_EQ(attach(&m[1 - i], 2), 0);
		CHECK_EQ(attach(&m[i], 3), ENOMEM);
		CHECK_EQ(attach(&m[1 - i], 3), ENOMEM);
		CHECK_EQ(attach(&m[1 - i], 1), 0);
		CHECK_EQ(detach(&m[i], 1), 0);
		CHECK_EQ(attach(&m[i], 3), ENOMEM);
		CHECK_EQ(detach(&m[1 - i], 1), 0);
		CHECK_EQ(attach(&m[i], 3), 0);
		CHECK_EQ(detach(&m[i], 3), 0);
		CHECK_EQ(detach(&m[1 - i], 2), 0);
	}
}

int main(void)
{
	struct member m[DEVICES];

	open_all(m);
	limited(m);
	/* One makes the group, the other one leaves it last: both ways, often. */
	for (int i = 0; i < 10; i++) {
		CHECK_EQ(attach(&m[i % 2], 1), 0);
		CHECK_EQ(attach(&m[1 - i % 2], 1), 0);
		CHECK_EQ(detach(&m[i % 2], 1), 0);
		CHECK_EQ(detach(&m[1 - i % 2], 1), 0);
	}
	limited(m);
	for (int i = 0; i < 6; i++) {
		int fds[2];
		pid_t pid;
		char byte;

		CHECK_EQ(pipe(fds), 0);
		CHECK_EQ(attach(&m[0], 1), 0);
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			struct member n[DEVICES];

			open_all(n);
			CHECK_EQ(attach(&n[1], 1), 0);
			CHECK_EQ(attach(&n[i % 2], 2), 0);
			CHECK_EQ(write(fds[1], "", 1), 1);
			pause();
		}
		CHECK_EQ(read(fds[0], &byte, 1), 1);
		CHECK_EQ(attach(&m[0], 3), ENOMEM);
		/* Either goes last. */
		if (i < 3)
			CHECK_EQ(detach(&m[0], 1), 0);
		CHECK_EQ(kill(pid, SIGKILL), 0);
		CHECK_EQ(waitpid(pid, NULL, 0), pid);
		for (double end = seconds() + TEST_TIMEOUT; attach(&m[1], 3) != 0;)
			CHECK(seconds() < end);
		CHECK_EQ(detach(&m[1], 3), 0);
		if (i >= 3)
			CHECK_EQ(detach(&m[0], 1), 0);
		close(fds[0]);
		close(fds[1]);
		/* Its end is dealt with in one go. */
		limited(m);
	}
	return 0;
}
