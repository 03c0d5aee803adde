/* SPDX-License-Identifier: BSD-2-Clause */
/* The connection to the daemon: finding it, and one request and reply at a time. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"

#define HELLO_TIMEOUT 5 /* s; whatever answers no hello is no daemon of ours */
#define MAX_FDS (3 + VERNIC_MAX_WORKERS)

/* Prints one line on stderr, once in a process: programs list devices again and again. */
static void complain(const char *path, const char *reason)
{
	static _Atomic uint32_t said;

	if (!atomic_exchange(&said, 1))
		fprintf(stderr, "vernic: cannot reach the daemon at %s: %s\n", path, reason);
}

/* Connects to the socket at path. @return the connection, or -1 and errno */
static int connect_path(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd, error;

	if (strlen(path) >= sizeof(addr.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	while (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		if (errno == EINTR)
			continue;
		error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

/* Exchanges hellos. @return 0 or a positive errno; EPROTO: said on stderr */
static int hello(int fd, const char *path)
{
	struct vernic_hello h = {.magic = VERNIC_MAGIC, .version = VERNIC_ABI_VERSION};
	struct timeval timeout = {.tv_sec = HELLO_TIMEOUT}, forever = {0};
	char reason[96];
	ssize_t n;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	do {
		n = send(fd, &h, sizeof(h), MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno;
	do {
		n = recv(fd, &h, sizeof(h), 0);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? ETIMEDOUT : errno;
	if (n != (ssize_t)sizeof(h) || h.magic != VERNIC_MAGIC) {
		complain(path, "whatever listens there is no vernicd");
		return EPROTO;
	}
	if (h.version != VERNIC_ABI_VERSION) {
		snprintf(reason, sizeof(reason),
			 "it speaks protocol version %u, this library version %u", h.version,
			 VERNIC_ABI_VERSION);
		complain(path, reason);
		return EPROTO;
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof(forever));
	return h.status;
}

int control_connect(void)
{
	const char *named = secure_getenv(VERNIC_SOCKET_ENV);
	const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
	char below_runtime[4096];
	const char *path = named;
	int fd = -1, error;

	if (path && *path) {
		fd = connect_path(path);
	} else {
		if (runtime && *runtime) {
			snprintf(below_runtime, sizeof(below_runtime), "%s/" VERNIC_SOCKET_NAME,
				 runtime);
			path = below_runtime;
			fd = connect_path(path);
		}
		if (fd < 0) {
			path = VERNIC_SOCKET_SYSTEM;
			fd = connect_path(path);
		}
		/* A socket file whose daemon is gone is as good as none. */
		if (fd < 0) {
			errno = ENOENT;
			return -1;
		}
	}
	error = fd < 0 ? errno : hello(fd, path);
	if (!error)
		return fd;
	if (error != EPROTO)
		complain(path, strerror(error));
	if (fd >= 0)
		close(fd);
	errno = error;
	return -1;
}

/* Sends a request, with a descriptor if send_fd is not -1. @return 0 or -1 and errno */
static int send_request(int ctl, const struct vernic_request *req, int send_fd)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = (void *)req, .iov_len = sizeof(*req)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cmsg;
	ssize_t n;

	if (send_fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control.space);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &send_fd, sizeof(int));
	}
	do {
		n = sendmsg(ctl, &msg, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -1 : 0;
}

/* Receives a reply and its descriptors. @return 0, or -1 if the daemon is gone or talks rubbish */
static int recv_reply(int ctl, struct vernic_reply *reply, int *fds, int max_fds)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int) * MAX_FDS)];
	} control;
	struct iovec iov = {.iov_base = reply, .iov_len = sizeof(*reply)};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	int count = 0, fd;
	ssize_t n;

	for (int i = 0; i < max_fds; i++)
		fds[i] = -1;
	do {
		n = recvmsg(ctl, &msg, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -1;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t off = 0; CMSG_LEN(off + sizeof(int)) <= c->cmsg_len;
		     off += sizeof(int)) {
			memcpy(&fd, CMSG_DATA(c) + off, sizeof(int));
			if (count < max_fds)
				fds[count++] = fd;
			else
				close(fd);
		}
	}
	return n == (ssize_t)sizeof(*reply) ? 0 : -1;
}

/* Closes what recv_reply() gave, when the reply is of no use. */
static void close_fds(int *fds, int count)
{
	for (int i = 0; i < count; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

int control_exchange(int ctl, const struct vernic_request *req, int send_fd,
		     struct vernic_reply *reply, int *fds, int max_fds)
{
	int error = 0;

	if (send_request(ctl, req, send_fd) || recv_reply(ctl, reply, fds, max_fds))
		error = EIO;
	else
		error = reply->status;
	if (error)
		close_fds(fds, max_fds);
	return error;
}

int control_call_child(struct context *ctx, const struct vernic_request *req,
		       struct vernic_reply *reply, int *fds, int max_fds)
{
	int error = 0;

	pthread_mutex_lock(&ctx->ctl_mutex);
	if (ctx->child_ctl < 0)
		error = context_open_child(ctx);
	if (!error)
		error = control_exchange(ctx->child_ctl, req, -1, reply, fds, max_fds);
	pthread_mutex_unlock(&ctx->ctl_mutex);
	return error;
}

/* @return whether a request is about the device alone, and makes nothing that is tied to others */
static bool is_of_device(uint32_t command)
{
	return command == VERNIC_CMD_QUERY_DEVICE || command == VERNIC_CMD_QUERY_PORT ||
	       command == VERNIC_CMD_QUERY_GID || command == VERNIC_CMD_ALLOC_DM;
}

int control_call(struct context *ctx, const struct vernic_request *req, struct vernic_reply *reply,
		 int *fds, int max_fds)
{
	return control_call_fd(ctx, req, -1, reply, fds, max_fds);
}

int control_call_fd(struct context *ctx, const struct vernic_request *req, int send_fd,
		    struct vernic_reply *reply, int *fds, int max_fds)
{
	int error = EIO;

	if (context_forked(ctx) && is_of_device(req->command))
		return control_call_child(ctx, req, reply, fds, max_fds);
	pthread_mutex_lock(&ctx->ctl_mutex);
	/* After fork() the connection is the parent's: a child's request would mix into its. */
	if (ctx->pid == getpid() && !context_dead(ctx)) {
		if (send_request(ctx->ctl, req, send_fd) ||
		    recv_reply(ctx->ctl, reply, fds, max_fds)) {
			context_died(ctx);
			close_fds(fds, max_fds);
		} else {
			error = reply->status;
			if (error)
				close_fds(fds, max_fds);
		}
	}
	pthread_mutex_unlock(&ctx->ctl_mutex);
	/* As the kernel's calls leave it: programs print errno, whatever a verb is to return. */
	if (error)
		errno = error;
	return error;
}

int control_destroy(struct context *ctx, enum vernic_command command, uint32_t handle,
		    struct vernic_reply *reply)
{
	struct vernic_request req = {.command = command, .handle = handle};
	struct vernic_reply own;
	int error;

	error = control_call(ctx, &req, reply ? reply : &own, NULL, 0);
	return context_dead(ctx) ? 0 : error;
}

void control_check(struct context *ctx)
{
	struct pollfd pfd = {.fd = ctx->ctl, .events = POLLRDHUP};

	if (ctx->ctl >= 0 && poll(&pfd, 1, 0) > 0 &&
	    (pfd.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)))
		context_died(ctx);
}

void *control_map(int fd, size_t size, int prot)
{
	void *p;
	int error;

	p = mmap(NULL, size, prot, MAP_SHARED, fd, 0);
	error = errno;
	close(fd);
	if (p == MAP_FAILED) {
		errno = error;
		return NULL;
	}
	/* A forked child must not post on its parent's queues. */
	madvise(p, size, MADV_DONTFORK);
	return p;
}

void control_unmap(struct context *ctx, void *p, size_t size)
{
	if (p && !context_forked(ctx))
		munmap(p, size);
}
