/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The control protocol spoken by hand, without libibverbs: for clients that do what the library
 * never would. And what such a test looks at from outside: the daemon's file descriptors, memory
 * and status.
 */
#ifndef VERNIC_TEST_VERBS_RAW_H
#define VERNIC_TEST_VERBS_RAW_H

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <vernic/control.h>
#include <vernic/ring.h>

#include "common.h"

#define RAW_MAX_FDS 32

/* A connection and the last answer on it. */
struct raw {
	int fd;
	struct vernic_reply reply;
	int fds[RAW_MAX_FDS]; /* that came with it; the next call closes them */
	unsigned int nfds;
};

/* A splitmix64 generator: the seed says everything. */
static inline uint64_t raw_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static inline uint32_t raw_below(uint64_t *state, uint32_t n)
{
	return (uint32_t)((raw_random(state) >> 32) * n >> 32);
}

/* Connects, without a hello. @return the fd, or -1 with errno */
static inline int raw_connect(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	const char *path = getenv(VERNIC_SOCKET_ENV);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	CHECK(path && strlen(path) < sizeof(addr.sun_path));
	strcpy(addr.sun_path, path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Sends one message with descriptors. @return 0, or -1: the daemon has hung up */
static inline int raw_send(int fd, const void *buf, size_t len, const int *fds, unsigned int nfds)
{
	union {
		char space[CMSG_SPACE(253 * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {(void *)(uintptr_t)buf, len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (nfds) {
		struct cmsghdr *h;

		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		h = CMSG_FIRSTHDR(&msg);
		h->cmsg_level = SOL_SOCKET;
		h->cmsg_type = SCM_RIGHTS;
		h->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(h), fds, nfds * sizeof(int));
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static inline void raw_close_fds(struct raw *r)
{
	while (r->nfds)
		close(r->fds[--r->nfds]);
}

/* Receives one message; its descriptors go to r. @return bytes, 0 or -1: the end */
static inline ssize_t raw_receive(struct raw *r, void *buf, size_t size)
{
	union {
		char space[CMSG_SPACE(RAW_MAX_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {buf, size};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.space,
			     .msg_controllen = sizeof(control.space)};
	ssize_t n;

	raw_close_fds(r);
	n = recvmsg(r->fd, &msg, MSG_CMSG_CLOEXEC);
	if (n < 0)
		return n;
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&msg); h; h = CMSG_NXTHDR(&msg, h)) {
		r->nfds = (unsigned int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(r->fds, CMSG_DATA(h), r->nfds * sizeof(int));
	}
	return n;
}

/* @return the status of the answer, or -1: the daemon has hung up */
static inline int raw_call(struct raw *r, const struct vernic_request *req)
{
	char text[sizeof(struct vernic_reply) + 128 * 1024];

	if (raw_send(r->fd, req, sizeof(*req), NULL, 0) != 0 ||
	    raw_receive(r, text, sizeof(text)) < (ssize_t)sizeof(r->reply))
		return -1;
	memcpy(&r->reply, text, sizeof(r->reply));
	CHECK(r->reply.status >= 0);
	return r->reply.status;
}

/* A request about one object. */
static inline int raw_about(struct raw *r, enum vernic_command command, uint32_t handle)
{
	struct vernic_request req = {.command = command, .handle = handle};

	return raw_call(r, &req);
}

/* Connects and says hello. @return 0, or -1 where no connection is to be had */
static inline int raw_start(struct raw *r)
{
	struct vernic_hello hello = {.magic = VERNIC_MAGIC, .version = VERNIC_ABI_VERSION};

	*r = (struct raw){.fd = raw_connect()};
	if (r->fd < 0)
		return -1;
	CHECK_EQ(raw_send(r->fd, &hello, sizeof(hello), NULL, 0), 0);
	CHECK_EQ(raw_receive(r, &hello, sizeof(hello)), sizeof(hello));
	CHECK_EQ(hello.status, 0);
	return 0;
}

static inline void raw_end(struct raw *r)
{
	raw_close_fds(r);
	close(r->fd);
}

/* Opens the first device. The fds of the answer are in r. */
static inline int raw_open(struct raw *r)
{
	static uint64_t word = UINT64_C(0x5ee7c0de5ee7c0de);
	struct vernic_request req = {.command = VERNIC_CMD_OPEN_DEVICE};

	CHECK_EQ(raw_about(r, VERNIC_CMD_LIST_DEVICES, 0), 0);
	memcpy(req.open_device.name, r->reply.list_devices.name, VERNIC_NAME_MAX);
	req.open_device.probe_addr = (uintptr_t)&word;
	req.open_device.probe_value = word;
	return raw_call(r, &req);
}

/* ---- the daemon from outside --------------------------------------------------------------- */

/* @return the daemon's PID */
static inline pid_t daemon_pid(void)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int fd = raw_connect();

	CHECK(fd >= 0);
	CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len), 0);
	close(fd);
	return cred.pid;
}

/* @return file descriptors the daemon has open */
static inline unsigned int daemon_fds(pid_t pid)
{
	unsigned int n = 0;
	char path[64];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* @what: a line of proc_pid_status(5), "VmRSS:". @return that of the daemon's memory, KiB */
static inline unsigned long daemon_memory(pid_t pid, const char *what)
{
	unsigned long kib = 0;
	char path[64], line[256];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "r");
	CHECK(f);
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, what, strlen(what)))
			kib = strtoul(line + strlen(what), NULL, 10);
	fclose(f);
	CHECK(kib);
	return kib;
}

/* @return the daemon's resident memory, KiB */
static inline unsigned long daemon_rss(pid_t pid)
{
	return daemon_memory(pid, "VmRSS:");
}

/* @return whether the daemon is built with a sanitizer: its memory then says nothing */
static inline int daemon_sanitized(pid_t pid)
{
	char path[64], line[4096];
	int found = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "r");
	CHECK(f);
	while (fgets(line, sizeof(line), f))
		found |= strstr(line, "libasan") || strstr(line, "libtsan");
	fclose(f);
	return found;
}

/* Waits until the daemon has no more descriptors open than before. */
static inline void daemon_expect_fds(pid_t pid, unsigned int before)
{
	double end = seconds() + TEST_TIMEOUT;

	while (daemon_fds(pid) > before) {
		CHECK(seconds() < end);
		usleep(10000);
	}
}

/* @return the sum of a number in the JSON status, over all places it is in */
static inline long status_sum(const char *key)
{
	static char text[sizeof(struct vernic_reply) + 128 * 1024];
	struct vernic_request req = {.command = VERNIC_CMD_STATUS, .status = {.json = 1}};
	char want[64];
	struct raw r;
	long sum = 0;
	ssize_t n;

	CHECK_EQ(raw_start(&r), 0);
	CHECK_EQ(raw_send(r.fd, &req, sizeof(req), NULL, 0), 0);
	n = raw_receive(&r, text, sizeof(text) - 1);
	CHECK(n > (ssize_t)sizeof(struct vernic_reply));
	text[n] = '\0';
	raw_end(&r);
	snprintf(want, sizeof(want), "\"%s\":", key);
	for (char *p = text + sizeof(struct vernic_reply); (p = strstr(p, want)); p++)
		sum += strtol(p + strlen(want), NULL, 10);
	return sum;
}

/* Waits until a number of the status is what it was. */
static inline void status_expect(const char *key, long value)
{
	double end = seconds() + TEST_TIMEOUT;

	while (status_sum(key) != value && seconds() < end)
		usleep(10000);
	if (status_sum(key) != value)
		fprintf(stderr, "status: %s\n", key);
	CHECK_EQ(status_sum(key), value);
}

#endif
