/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A worker's input and output: UDP sockets, its wake-up eventfd, and sleeping. Two engines behind
 * one interface: io_uring (multishot recvmsg into a buffer ring, batched sends) and plain calls
 * (recvmmsg, sendmsg, poll). One thread uses an io.
 */
#ifndef VERNIC_IO_H
#define VERNIC_IO_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct io;

enum io_kind {
	IO_AUTO,  /* io_uring where the kernel lets us, else plain */
	IO_URING,
	IO_PLAIN,
};

union io_address {
	struct sockaddr sa;
	struct sockaddr_in in4;
	struct sockaddr_in6 in6;
};

/* What a socket received: one datagram, or several that GRO joined. */
struct io_datagram {
	void *socket_ctx;
	const uint8_t *data; /* valid until io_recycle() */
	uint32_t len;	     /* bytes, all segments */
	uint32_t segment;    /* bytes of each but the last; len where it is one */
	uint8_t tos;	     /* IPv4 TOS or IPv6 traffic class */
	union io_address from;
};

typedef void (*io_receive_fn)(void *arg, const struct io_datagram *d);

/* What went wrong on the way out. */
struct io_counters {
	uint64_t tx_dropped; /* sends the kernel refused */
	uint64_t rx_dropped; /* datagrams that did not fit a buffer */
};

#define IO_TX_SLACK 4096 /* bytes: what is sent may begin anywhere in the first of a send buffer */
#define IO_TX_BUFFER (65536 + IO_TX_SLACK) /* bytes of a send buffer */

/*
 * @wake_fd: an eventfd that ends io_sleep(); io drains it
 * @tx_buffers: send buffers to have
 * @out: the io
 * @return 0 or a negative errno: IO_URING where it is refused; -ENOMEM
 */
int io_create(enum io_kind kind, int wake_fd, unsigned int tx_buffers, struct io **out);
void io_destroy(struct io *io);

/* "io_uring" or "plain" */
const char *io_name(const struct io *io);

/*
 * Whether sends of several segments are cut by the kernel (GSO): then their IPv4 identifications
 * count up from 0, else each is 0. May turn false when a device refuses.
 */
bool io_segments(const struct io *io);

const struct io_counters *io_counters(const struct io *io);

/* Starts to receive on a bound non-blocking UDP socket (UDP_GRO and so on are set by its owner). */
int io_add_socket(struct io *io, int fd, void *socket_ctx);

/* Ends that, at once; the socket is its owner's to close. What has arrived is not handed over. */
void io_remove_socket(struct io *io, int fd);

/* Hands what has arrived to fn; never waits. @return datagrams handed over */
unsigned int io_receive(struct io *io, io_receive_fn fn, void *arg);

/* The data handed over so far is not needed any more. */
void io_recycle(struct io *io);

/* @return a send buffer of IO_TX_BUFFER bytes, or NULL if all are on their way */
uint8_t *io_tx_buffer(struct io *io);
unsigned int io_tx_available(const struct io *io);

/*
 * Queues a buffer of io_tx_buffer() for sending; the io frees it when it is sent.
 * @buffer: where in it the bytes begin
 * @len: bytes; 0: gives the buffer back unsent
 * @segment: UDP_SEGMENT size; 0 or >= len: one datagram
 * @tos: IPv4 TOS or IPv6 traffic class, 0: the socket's default
 */
void io_send(struct io *io, int fd, uint8_t *buffer, uint32_t len, uint32_t segment, uint8_t tos,
	     const union io_address *to);

/* Gets queued sends going; reaps finished ones. One system call at most, none if nothing is due. */
void io_submit(struct io *io);

/*
 * Sleeps until something arrives, wake_fd is written or the time is over.
 * @timeout: ns; UINT64_MAX: no limit
 */
void io_sleep(struct io *io, uint64_t timeout);

#endif
