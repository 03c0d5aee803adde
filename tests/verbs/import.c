// SPDX-License-Identifier: BSD-2-Clause
/*
 * Sharing between two processes: one passes its cmd_fd and handles, the other imports the device,
 * the PD, a MR and device memory, uses the first one's memory as its own, and goes; then one whose
 * exporter has gone.
 */
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

#define DM_LEN 4096

/* What the exporter tells the importer, with its cmd_fd. */
struct letter {
	uint32_t pd, mr, dm;
	uint64_t addr; /* of the MR, at the exporter */
	uint32_t rkey;
	uint32_t other_pd; /* the MR is not of it */
};

static void post_letter(int socket, const struct letter *l, int fd)
{
	char space[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {(void *)l, sizeof(*l)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = space,
			     .msg_controllen = sizeof(space)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	CHECK_EQ(sendmsg(socket, &msg, 0), sizeof(*l));
}

/* @return the descriptor that came */
static int get_letter(int socket, struct letter *l)
{
	char space[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {l, sizeof(*l)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = space,
			     .msg_controllen = sizeof(space)};
	int fd;

	CHECK_EQ(recvmsg(socket, &msg, 0), sizeof(*l));
	CHECK(CMSG_FIRSTHDR(&msg));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

/* Waits for the other process to say that it is there, or says so. */
static void hear(int socket)
{
	char byte;

	CHECK_EQ(read(socket, &byte, 1), 1);
}

static void say(int socket)
{
	CHECK_EQ(write(socket, "", 1), 1);
}

/* A pair of QPs on one PD of this process. */
static void make_pair(const struct env *e, struct ibv_qp *qp[2])
{
	struct ibv_qp_init_attr attr = env_qp_attr(e);

	qp[0] = ibv_create_qp(e->pd, &attr);
	qp[1] = ibv_create_qp(e->pd, &attr);
	CHECK(qp[0] && qp[1]);
	connect_pair(e, qp[0], qp[1]);
}

/* Sends between SGEs over a pair. @return the statuses, ORed */
static int send_between(const struct env *e, struct ibv_qp *qp[2], struct ibv_sge *from,
			struct ibv_sge *to)
{
	struct ibv_wc wc[2];

	CHECK_EQ(post_recv_at(qp[1], 0, to), 0);
	CHECK_EQ(post_send_at(qp[0], 0, from, IBV_SEND_SIGNALED), 0);
	wait_wc(e->cq, 2, wc);
	return wc[0].status | wc[1].status;
}

/* The exporter's memory, by the imported MR, as source and as destination. */
static void use_mr(const struct env *e, struct ibv_qp *qp[2], const struct ibv_mr *mr,
		   const struct letter *l)
{
	for (uint32_t len = 8; len <= 4096; len *= 8) {
		struct ibv_sge theirs = {l->addr, len, mr->lkey}, own = sge_at(e, 0, len);

		memset(e->buf, 0, len);
		CHECK_EQ(send_between(e, qp, &theirs, &own), IBV_WC_SUCCESS);
		for (uint32_t i = 0; i < len; i++)
			CHECK_EQ(e->buf[i], 0xe1);
		theirs.addr += 8192;
		memset(e->buf, 0x1e, len);
		CHECK_EQ(send_between(e, qp, &own, &theirs), IBV_WC_SUCCESS);
	}
}

static void importer(int socket)
{
	struct ibv_device **list;
	struct ibv_mr *mr, *dm_mr;
	struct ibv_qp *qp[2];
	struct ibv_sge theirs;
	struct ibv_pd *pd;
	struct ibv_dm *dm;
	struct env e = {0};
	struct letter l;
	uint8_t byte[4];
	int fd = get_letter(socket, &l);

	/* A context of its own does not know the other's handles. */
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	e.ctx = ibv_open_device(list[0]);
	CHECK(e.ctx);
	CHECK(!ibv_import_pd(e.ctx, l.pd));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_import_dm(e.ctx, l.dm));
	CHECK_EQ(ibv_close_device(e.ctx), 0);
	CHECK(!ibv_import_device(-1));
	CHECK_EQ(errno, EBADF);
	CHECK(!ibv_import_device(0)); /* no context's */
	CHECK_EQ(errno, EINVAL);

	e.ctx = ibv_import_device(fd);
	CHECK(e.ctx && e.ctx->device == list[0] && e.ctx->cmd_fd == fd);
	ibv_free_device_list(list);
	e.pd = ibv_import_pd(e.ctx, l.pd);
	CHECK(e.pd && e.pd->context == e.ctx && e.pd->handle == l.pd);
	CHECK(!ibv_import_pd(e.ctx, 12345));
	pd = ibv_import_pd(e.ctx, l.other_pd);
	CHECK(pd);
	CHECK(!ibv_import_mr(pd, l.mr));
	CHECK_EQ(errno, EINVAL);
	ibv_unimport_pd(pd);
	mr = ibv_import_mr(e.pd, l.mr);
	CHECK(mr && mr->rkey == l.rkey && mr->length == BUF_SIZE && mr->handle == l.mr);

	e.cq = ibv_create_cq(e.ctx, 64, NULL, NULL, 0);
	e.buf = calloc(1, BUF_SIZE);
	e.mr = ibv_reg_mr(e.pd, e.buf, BUF_SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(e.cq && e.buf && e.mr);
	CHECK_EQ(ibv_query_gid(e.ctx, 1, 1, &e.gid), 0);
	make_pair(&e, qp);
	use_mr(&e, qp, mr, &l);

	dm = ibv_import_dm(e.ctx, l.dm);
	CHECK(dm && dm->handle == l.dm);
	CHECK_EQ(ibv_memcpy_from_dm(byte, dm, 0, 4), 0);
	CHECK_EQ(byte[0], 0xd1);
	CHECK_EQ(ibv_memcpy_to_dm(dm, 4, (uint8_t[4]){1, 2, 3, 4}, 4), 0);
	CHECK_EQ(ibv_memcpy_to_dm(dm, DM_LEN, byte, 4), EINVAL);
	dm_mr = ibv_reg_dm_mr(e.pd, dm, 0, DM_LEN, IBV_ACCESS_ZERO_BASED);
	CHECK(dm_mr);
	CHECK_EQ(ibv_dereg_mr(dm_mr), 0);
	say(socket);

	/* The exporter goes: its memory with it, the PD and what is of this process stay. */
	hear(socket);
	theirs = (struct ibv_sge){l.addr, 8, mr->lkey};
	CHECK_EQ(post_send_at(qp[0], 0, &theirs, IBV_SEND_SIGNALED), 0);
	wait_wc(e.cq, 1, &(struct ibv_wc){0});
	to_state(qp[0], IBV_QPS_RESET);
	to_state(qp[1], IBV_QPS_RESET);
	connect_pair(&e, qp[0], qp[1]);
	CHECK_EQ(send_between(&e, qp, &(struct ibv_sge){(uintptr_t)e.buf, 8, e.mr->lkey},
			      &(struct ibv_sge){(uintptr_t)e.buf + 64, 8, e.mr->lkey}),
		 IBV_WC_SUCCESS);
	ibv_unimport_dm(dm);
	ibv_unimport_mr(mr);
	CHECK_EQ(ibv_destroy_qp(qp[0]), 0);
	CHECK_EQ(ibv_destroy_qp(qp[1]), 0);
	CHECK_EQ(ibv_dereg_mr(e.mr), 0);
	CHECK_EQ(ibv_destroy_cq(e.cq), 0);
	ibv_unimport_pd(e.pd);
	CHECK_EQ(ibv_close_device(e.ctx), 0);
	free(e.buf);
	_exit(0);
}

static void exporter(int socket)
{
	struct ibv_alloc_dm_attr attr = {.length = DM_LEN};
	struct ibv_pd *other;
	struct ibv_qp *qp[2];
	struct ibv_dm *dm;
	struct letter l;
	struct env e;
	uint8_t byte[4];

	env_open(&e);
	other = ibv_alloc_pd(e.ctx);
	dm = ibv_alloc_dm(e.ctx, &attr);
	CHECK(other && dm);
	CHECK_EQ(ibv_memcpy_to_dm(dm, 0, (uint8_t[4]){0xd1, 0, 0, 0}, 4), 0);
	memset(e.buf, 0xe1, BUF_SIZE);
	l = (struct letter){e.pd->handle,     e.mr->handle, dm->handle,
			    (uintptr_t)e.buf, e.mr->rkey,   other->handle};
	post_letter(socket, &l, e.ctx->cmd_fd);
	hear(socket);
	for (uint32_t i = 0; i < 4096; i++)
		CHECK_EQ(e.buf[8192 + i], 0x1e);
	CHECK_EQ(ibv_memcpy_from_dm(byte, dm, 4, 4), 0);
	CHECK_EQ(byte[2], 3);
	/* Small messages go on after the import. */
	make_pair(&e, qp);
	CHECK_EQ(send_between(&e, qp, &(struct ibv_sge){(uintptr_t)e.buf, 8, e.mr->lkey},
			      &(struct ibv_sge){(uintptr_t)e.buf + 64, 8, e.mr->lkey}),
		 IBV_WC_SUCCESS);
	CHECK_EQ(memcmp(e.buf, e.buf + 64, 8), 0);
	/* Used by the other process. */
	CHECK_EQ(ibv_dealloc_pd(e.pd), EBUSY);
	_exit(0);
}

int main(void)
{
	int fds[2], status;
	pid_t exports, imports;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
	exports = fork();
	CHECK(exports >= 0);
	if (exports == 0)
		exporter(fds[0]);
	imports = fork();
	CHECK(imports >= 0);
	if (imports == 0)
		importer(fds[1]);
	CHECK_EQ(waitpid(exports, &status, 0), exports);
	CHECK_EQ(status, 0);
	say(fds[0]);
	CHECK_EQ(waitpid(imports, &status, 0), imports);
	CHECK_EQ(status, 0);
	return 0;
}
