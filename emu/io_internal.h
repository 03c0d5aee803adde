/* SPDX-License-Identifier: BSD-2-Clause */
/* What the two engines of io.h share: the send buffers, the sockets, control messages. */
#ifndef VERNIC_IO_INTERNAL_H
#define VERNIC_IO_INTERNAL_H

#include "io.h"

#include <sys/uio.h>

#define IO_MAX_SOCKETS 256
#define IO_RX_BUFFERS 32
#define IO_RX_PAYLOAD 65536 /* bytes: more than any UDP payload */
#define IO_RX_CONTROL 128   /* bytes of control messages: TOS or class, GRO size */
#define IO_TX_CONTROL 64    /* bytes of control messages: TOS or class, GSO size */

struct io_socket {
	int fd; /* -1: removed, the entry may be used again unless it is still armed */
	void *ctx;
	bool armed; /* io_uring: its multishot recvmsg runs */
};

/* A send buffer on its way. msg refers to the rest, so it must not move. */
struct io_tx {
	uint8_t *buffer;
	int fd;
	uint32_t segment; /* 0: one datagram */
	uint8_t tos;
	union io_address to;
	struct iovec iov;
	struct msghdr msg;
	_Alignas(struct cmsghdr) uint8_t control[IO_TX_CONTROL];
};

struct io_ops {
	const char *name;
	void (*destroy)(struct io *io);
	unsigned int (*receive)(struct io *io, io_receive_fn fn, void *arg);
	void (*recycle)(struct io *io);
	void (*send)(struct io *io, struct io_tx *tx);
	void (*submit)(struct io *io);
	void (*sleep)(struct io *io, uint64_t timeout);
	/* The socket of that index is going; its fd is still there. */
	void (*remove)(struct io *io, unsigned int index);
};

/* The engines' structs begin with it. */
struct io {
	const struct io_ops *ops;
	int wake_fd;
	bool no_gso; /* the kernel, or a device, does not cut datagrams into segments */
	struct io_counters counters;
	struct io_socket sockets[IO_MAX_SOCKETS];
	unsigned int socket_count; /* removed ones included */
	bool sockets_changed;	   /* one was added: io_uring clears it */
	uint8_t *tx_memory;	   /* tx_count buffers */
	struct io_tx *tx;
	uint32_t *tx_free; /* a stack: the buffer sent last is still in the cache */
	uint32_t tx_free_count;
	uint32_t tx_count;
};

/* @return an io with its sockets and send buffers to come, or a negative errno */
int io_uring_engine_create(int wake_fd, unsigned int tx_buffers, struct io **out);
int io_plain_engine_create(struct io **out);

/* The buffer of tx may be used again. */
void io_tx_done(struct io *io, struct io_tx *tx);

/*
 * Deals with a send that failed.
 * @error: the negative errno
 */
void io_tx_failed(struct io *io, struct io_tx *tx, int error);

/* Sends the segments of tx as datagrams of their own, now. @return 0 or a negative errno */
int io_tx_send_segments(struct io *io, struct io_tx *tx);

/* Fills in d->segment (from d->len) and d->tos from control messages. */
void io_parse_control(struct io_datagram *d, void *control, size_t len);

/* Empties the wake-up eventfd. */
void io_drain_wake(struct io *io);

#endif
