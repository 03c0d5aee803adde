/* SPDX-License-Identifier: BSD-2-Clause */
/* A worker's input and output: what the engines share. */
#include "io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define SEGMENTS_AT_ONCE 64 /* datagrams of one sendmmsg */

/*
 * Makes the send buffers of an io.
 * @return 0 or -ENOMEM
 */
static int io_tx_init(struct io *io, unsigned int count)
{
	io->tx = calloc(count, sizeof(*io->tx));
	io->tx_free = calloc(count, sizeof(*io->tx_free));
	io->tx_memory = mmap(NULL, (size_t)count * IO_TX_BUFFER, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	io->tx_count = count;
	if (io->tx_memory == MAP_FAILED)
		io->tx_memory = NULL;
	if (!io->tx || !io->tx_free || !io->tx_memory)
		return -ENOMEM;
	for (unsigned int i = 0; i < count; i++) {
		io->tx[i].buffer = io->tx_memory + (size_t)i * IO_TX_BUFFER;
		io->tx_free[i] = count - 1 - i;
	}
	io->tx_free_count = count;
	return 0;
}

int io_create(enum io_kind kind, int wake_fd, unsigned int tx_buffers, struct io **out)
{
	struct io *io = NULL;
	int flags = fcntl(wake_fd, F_GETFL);
	int ret = -EINVAL;

	/* Draining it must not wait for a writer. */
	if (flags < 0 || fcntl(wake_fd, F_SETFL, flags | O_NONBLOCK) != 0)
		return -errno;
	if (kind != IO_PLAIN)
		ret = io_uring_engine_create(wake_fd, tx_buffers, &io);
	if (kind == IO_PLAIN || (kind == IO_AUTO && ret != 0))
		ret = io_plain_engine_create(&io);
	if (ret != 0)
		return ret;
	io->wake_fd = wake_fd;
	ret = io_tx_init(io, tx_buffers);
	if (ret != 0)
		io_destroy(io);
	else
		*out = io;
	return ret;
}

void io_destroy(struct io *io)
{
	uint8_t *memory = io->tx_memory;
	size_t len = (size_t)io->tx_count * IO_TX_BUFFER;
	uint32_t *free_stack = io->tx_free;
	struct io_tx *tx = io->tx;

	/* The engine goes first: the kernel may still read the buffers. */
	io->ops->destroy(io);
	if (memory)
		munmap(memory, len);
	free(free_stack);
	free(tx);
}

const char *io_name(const struct io *io)
{
	return io->ops->name;
}

bool io_segments(const struct io *io)
{
	return !io->no_gso;
}

const struct io_counters *io_counters(const struct io *io)
{
	return &io->counters;
}

int io_add_socket(struct io *io, int fd, void *socket_ctx)
{
	unsigned int i = 0;
	int size;
	socklen_t len = sizeof(size);

	while (i < io->socket_count && (io->sockets[i].fd >= 0 || io->sockets[i].armed))
		i++;
	if (i == IO_MAX_SOCKETS)
		return -ENOSPC;
	if (getsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &size, &len) != 0)
		io->no_gso = true;
	io->sockets[i] = (struct io_socket){.fd = fd, .ctx = socket_ctx};
	if (i == io->socket_count)
		io->socket_count++;
	io->sockets_changed = true;
	return 0;
}

void io_remove_socket(struct io *io, int fd)
{
	for (unsigned int i = 0; i < io->socket_count; i++) {
		if (io->sockets[i].fd != fd)
			continue;
		io->ops->remove(io, i);
		io->sockets[i].fd = -1;
	}
}

unsigned int io_receive(struct io *io, io_receive_fn fn, void *arg)
{
	return io->ops->receive(io, fn, arg);
}

void io_recycle(struct io *io)
{
	io->ops->recycle(io);
}

uint8_t *io_tx_buffer(struct io *io)
{
	if (io->tx_free_count == 0)
		return NULL;
	return io->tx[io->tx_free[--io->tx_free_count]].buffer;
}

unsigned int io_tx_available(const struct io *io)
{
	return io->tx_free_count;
}

void io_tx_done(struct io *io, struct io_tx *tx)
{
	io->tx_free[io->tx_free_count++] = (uint32_t)(tx - io->tx);
}

/*
 * Appends a control message.
 * @msg: its msg_controllen is what is used so far
 */
static void add_control(struct msghdr *msg, int level, int type, const void *data, size_t len)
{
	struct cmsghdr *c = (struct cmsghdr *)((uint8_t *)msg->msg_control + msg->msg_controllen);

	memset(c, 0, CMSG_SPACE(len));
	c->cmsg_level = level;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(len);
	memcpy(CMSG_DATA(c), data, len);
	msg->msg_controllen += CMSG_SPACE(len);
}

/* Fills in the message of tx for len bytes at data. */
static void fill_message(struct io_tx *tx, struct msghdr *msg, struct iovec *iov, void *data,
			 size_t len)
{
	int tos = tx->tos;

	*iov = (struct iovec){.iov_base = data, .iov_len = len};
	*msg = (struct msghdr){
		.msg_name = &tx->to,
		.msg_namelen = tx->to.sa.sa_family == AF_INET6 ? sizeof(tx->to.in6)
							       : sizeof(tx->to.in4),
		.msg_iov = iov,
		.msg_iovlen = 1,
	};
	if (tos == 0)
		return;
	msg->msg_control = tx->control;
	if (tx->to.sa.sa_family == AF_INET6)
		add_control(msg, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof(tos));
	else
		add_control(msg, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));
}

void io_send(struct io *io, int fd, uint8_t *buffer, uint32_t len, uint32_t segment, uint8_t tos,
	     const union io_address *to)
{
	struct io_tx *tx = &io->tx[(size_t)(buffer - io->tx_memory) / IO_TX_BUFFER];
	uint16_t gso_size;

	if (len == 0) {
		io_tx_done(io, tx);
		return;
	}
	tx->fd = fd;
	tx->segment = segment < len ? segment : 0;
	tx->tos = tos;
	tx->to = *to;
	fill_message(tx, &tx->msg, &tx->iov, buffer, len);
	if (tx->segment != 0 && io->no_gso) {
		io_tx_send_segments(io, tx);
		io_tx_done(io, tx);
		return;
	}
	if (tx->segment != 0) {
		gso_size = (uint16_t)tx->segment;
		tx->msg.msg_control = tx->control;
		add_control(&tx->msg, IPPROTO_UDP, UDP_SEGMENT, &gso_size, sizeof(gso_size));
	}
	io->ops->send(io, tx);
}

int io_tx_send_segments(struct io *io, struct io_tx *tx)
{
	struct mmsghdr msgs[SEGMENTS_AT_ONCE];
	struct iovec iov[SEGMENTS_AT_ONCE];
	uint8_t *data = tx->iov.iov_base;
	size_t left = tx->iov.iov_len;

	while (left > 0) {
		unsigned int n = 0, done = 0;

		for (; n < SEGMENTS_AT_ONCE && left > 0; n++) {
			size_t len = left < tx->segment ? left : tx->segment;

			fill_message(tx, &msgs[n].msg_hdr, &iov[n], data, len);
			data += len;
			left -= len;
		}
		while (done < n) {
			int ret = sendmmsg(tx->fd, msgs + done, n - done, MSG_DONTWAIT);

			if (ret < 0 && errno != EINTR) {
				io->counters.tx_dropped++;
				return -errno;
			}
			if (ret > 0)
				done += (unsigned int)ret;
		}
	}
	return 0;
}

void io_tx_failed(struct io *io, struct io_tx *tx, int error)
{
	/*
	 * A device without checksum offload, or a path with IPsec, does not take GSO: remember it
	 * if the same bytes pass one by one. An EINVAL may also mean segments above the MTU.
	 */
	if (tx->segment != 0 && (error == -EIO || error == -EINVAL)) {
		if (io_tx_send_segments(io, tx) == 0)
			io->no_gso = true;
		return;
	}
	io->counters.tx_dropped++;
}

void io_parse_control(struct io_datagram *d, void *control, size_t len)
{
	struct msghdr msg = {.msg_control = control, .msg_controllen = len};
	int value;

	d->segment = d->len;
	d->tos = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
			d->tos = *CMSG_DATA(c);
		} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
			memcpy(&value, CMSG_DATA(c), sizeof(value));
			d->tos = (uint8_t)value;
		} else if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
			memcpy(&value, CMSG_DATA(c), sizeof(value));
			if (value > 0 && (uint32_t)value < d->len)
				d->segment = (uint32_t)value;
		}
	}
}

void io_drain_wake(struct io *io)
{
	uint64_t value;
	struct iovec iov = {&value, sizeof(value)};

	/*
	 * Clients have this file description too: one may have emptied it, and have turned
	 * O_NONBLOCK off. Before Linux 5.8 an eventfd does not know RWF_NOWAIT.
	 */
	if (preadv2(io->wake_fd, &iov, 1, -1, RWF_NOWAIT) < 0 && errno == EOPNOTSUPP &&
	    read(io->wake_fd, &value, sizeof(value)) < 0)
		return;
}

void io_submit(struct io *io)
{
	io->ops->submit(io);
}

void io_sleep(struct io *io, uint64_t timeout)
{
	io->ops->sleep(io, timeout);
}
