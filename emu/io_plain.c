/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The I/O engine of plain calls: recvmmsg, sendmsg, ppoll.
 *
 * An empty look at a socket costs a system call, so a socket that has nothing is looked at ever
 * more rarely: every round at first, every IDLE_MAX rounds in the end. A send, a datagram or a
 * sleep that ended makes it every round again.
 */
#include "io_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define RX_BATCH 16 /* datagrams of one recvmmsg */
#define IDLE_MAX 16 /* rounds */

struct io_plain {
	struct io io;
	uint8_t *rx_memory; /* IO_RX_BUFFERS of IO_RX_PAYLOAD bytes */
	uint32_t rx_used;   /* of them, not recycled */
	uint32_t idle;	    /* rounds between two looks, less one */
	uint32_t skip;	    /* rounds until the next look */
	/* Sends that wait for room in their socket, in order. */
	struct io_tx *waiting[256];
	uint32_t waiting_head, waiting_tail; /* free-running */
	struct pollfd poll[1 + IO_MAX_SOCKETS];
	union io_address from[RX_BATCH];
	struct mmsghdr msgs[RX_BATCH];
	struct iovec iov[RX_BATCH];
	_Alignas(struct cmsghdr) uint8_t control[RX_BATCH][IO_RX_CONTROL];
};

#define WAITING_MAX (sizeof(((struct io_plain *)0)->waiting) / sizeof(struct io_tx *))

/* io_ops.destroy */
static void plain_destroy(struct io *io)
{
	struct io_plain *p = (struct io_plain *)io;

	if (p->rx_memory)
		munmap(p->rx_memory, (size_t)IO_RX_BUFFERS * IO_RX_PAYLOAD);
	free(p);
}

/*
 * One recvmmsg on a socket.
 * @return datagrams received
 */
static unsigned int plain_receive_socket(struct io_plain *p, const struct io_socket *s,
					 io_receive_fn fn, void *arg)
{
	unsigned int n = IO_RX_BUFFERS - p->rx_used;
	int got;

	if (n > RX_BATCH)
		n = RX_BATCH;
	for (unsigned int i = 0; i < n; i++) {
		uint8_t *data = p->rx_memory + (size_t)(p->rx_used + i) * IO_RX_PAYLOAD;

		p->iov[i] = (struct iovec){.iov_base = data, .iov_len = IO_RX_PAYLOAD};
		p->msgs[i].msg_hdr = (struct msghdr){
			.msg_name = &p->from[i],
			.msg_namelen = sizeof(p->from[0]),
			.msg_iov = &p->iov[i],
			.msg_iovlen = 1,
			.msg_control = p->control[i],
			.msg_controllen = IO_RX_CONTROL,
		};
	}
	got = recvmmsg(s->fd, p->msgs, n, MSG_DONTWAIT, NULL);
	if (got < 0)
		return 0; /* nothing there, or an error that an ICMP message left behind */
	for (int i = 0; i < got; i++) {
		struct msghdr *msg = &p->msgs[i].msg_hdr;
		struct io_datagram d = {
			.socket_ctx = s->ctx,
			.data = msg->msg_iov->iov_base,
			.len = p->msgs[i].msg_len,
		};

		if (msg->msg_flags & MSG_TRUNC) {
			p->io.counters.rx_dropped++;
			continue;
		}
		memcpy(&d.from, msg->msg_name, sizeof(d.from));
		io_parse_control(&d, msg->msg_control, msg->msg_controllen);
		fn(arg, &d);
	}
	p->rx_used += (uint32_t)got;
	return (unsigned int)got;
}

/* io_ops.receive: looks less often the longer nothing came, for a look is a system call. */
static unsigned int plain_receive(struct io *io, io_receive_fn fn, void *arg)
{
	struct io_plain *p = (struct io_plain *)io;
	unsigned int total = 0;

	if (io->socket_count == 0)
		return 0;
	if (p->skip > 0) {
		p->skip--;
		return 0;
	}
	for (unsigned int i = 0; i < io->socket_count && p->rx_used < IO_RX_BUFFERS; i++) {
		if (io->sockets[i].fd >= 0)
			total += plain_receive_socket(p, &io->sockets[i], fn, arg);
	}
	if (total > 0)
		p->idle = 0;
	else if (p->idle < IDLE_MAX)
		p->idle++;
	p->skip = p->idle;
	return total;
}

/* io_ops.recycle */
static void plain_recycle(struct io *io)
{
	((struct io_plain *)io)->rx_used = 0;
}

/* @return false if the socket has no room now */
static bool plain_send_one(struct io_plain *p, struct io_tx *tx)
{
	ssize_t ret;

	do {
		ret = sendmsg(tx->fd, &tx->msg, MSG_DONTWAIT);
	} while (ret < 0 && errno == EINTR);
	if (ret < 0 && errno == EAGAIN)
		return false;
	if (ret < 0)
		io_tx_failed(&p->io, tx, -errno);
	io_tx_done(&p->io, tx);
	return true;
}

/* io_ops.send: at once if it may; behind a socket that has no room everything waits. */
static void plain_send(struct io *io, struct io_tx *tx)
{
	struct io_plain *p = (struct io_plain *)io;

	p->skip = p->idle = 0; /* an answer is likely */
	if (p->waiting_head == p->waiting_tail && plain_send_one(p, tx))
		return;
	if (p->waiting_tail - p->waiting_head == WAITING_MAX) {
		io->counters.tx_dropped++;
		io_tx_done(io, tx);
		return;
	}
	p->waiting[p->waiting_tail++ % WAITING_MAX] = tx;
}

/* io_ops.submit: tries again what waits. */
static void plain_submit(struct io *io)
{
	struct io_plain *p = (struct io_plain *)io;

	while (p->waiting_head != p->waiting_tail &&
	       plain_send_one(p, p->waiting[p->waiting_head % WAITING_MAX]))
		p->waiting_head++;
}

/* io_ops.sleep */
static void plain_sleep(struct io *io, uint64_t timeout)
{
	struct io_plain *p = (struct io_plain *)io;
	struct timespec ts = {.tv_sec = (time_t)(timeout / 1000000000u),
			      .tv_nsec = (long)(timeout % 1000000000u)};
	int blocked = p->waiting_head == p->waiting_tail
			      ? -1
			      : p->waiting[p->waiting_head % WAITING_MAX]->fd;
	int ret;

	p->poll[0] = (struct pollfd){.fd = io->wake_fd, .events = POLLIN};
	for (unsigned int i = 0; i < io->socket_count; i++) {
		int fd = io->sockets[i].fd;

		p->poll[1 + i] = (struct pollfd){
			.fd = fd, .events = (short)(POLLIN | (fd == blocked ? POLLOUT : 0))};
	}
	ret = ppoll(p->poll, 1 + io->socket_count, timeout == UINT64_MAX ? NULL : &ts, NULL);
	p->skip = p->idle = 0;
	if (ret > 0 && p->poll[0].revents)
		io_drain_wake(io);
}

/* io_ops.remove: what waits for room in the socket is dropped. */
static void plain_remove(struct io *io, unsigned int index)
{
	struct io_plain *p = (struct io_plain *)io;
	unsigned int left = 0, count = p->waiting_tail - p->waiting_head;

	for (unsigned int i = 0; i < count; i++) {
		struct io_tx *tx = p->waiting[(p->waiting_head + i) % WAITING_MAX];

		if (tx->fd == io->sockets[index].fd)
			io_tx_done(io, tx);
		else
			p->waiting[(p->waiting_head + left++) % WAITING_MAX] = tx;
	}
	p->waiting_tail = p->waiting_head + left;
}

static const struct io_ops plain_ops = {
	.name = "plain",
	.destroy = plain_destroy,
	.receive = plain_receive,
	.recycle = plain_recycle,
	.send = plain_send,
	.submit = plain_submit,
	.sleep = plain_sleep,
	.remove = plain_remove,
};

int io_plain_engine_create(struct io **out)
{
	struct io_plain *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->io.ops = &plain_ops;
	p->rx_memory = mmap(NULL, (size_t)IO_RX_BUFFERS * IO_RX_PAYLOAD, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p->rx_memory == MAP_FAILED) {
		free(p);
		return -ENOMEM;
	}
	*out = &p->io;
	return 0;
}
