/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The I/O engine of io_uring.
 *
 * Theory of operation
 * -------------------
 * Every socket has one multishot recvmsg, which takes a buffer of a shared buffer ring for each
 * datagram. It ends when the buffers are used up or an error was pending on the socket; the next
 * call then arms it anew. A completed receive waits in `received` until io_receive() hands it out;
 * its buffer goes back to the kernel with io_recycle().
 *
 * With IORING_SETUP_DEFER_TASKRUN completions appear only when the thread enters the kernel, which
 * a look at IORING_SQ_TASKRUN says is due; so looking costs no system call. SINGLE_ISSUER ties the
 * ring to the thread that calls io_create(): that is the worker.
 */
#include "io_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <liburing.h>

#define BUFFER_GROUP 0
/* struct io_uring_recvmsg_out, address, control messages, payload; whole pages */
#define RX_NAME 32
#define RX_HEADERS (sizeof(struct io_uring_recvmsg_out) + RX_NAME + IO_RX_CONTROL)
#define RX_STRIDE (IO_RX_PAYLOAD + 4096)

/* user_data: what completed, and which */
enum {
	TAG_RECV, /* index of the socket */
	TAG_SEND, /* index of the send buffer */
	TAG_WAKE,
	TAG_CANCEL,
};
#define USER_DATA(tag, index) ((uint64_t)(index) << 8 | (tag))

/* A receive that is complete and not handed out. */
struct received {
	uint16_t buffer;
	uint16_t socket;
	uint32_t len; /* bytes, headers included */
};

struct io_uring_engine {
	struct io io;
	struct io_uring ring;
	struct io_uring_buf_ring *buffers;
	uint8_t *rx_memory;	/* IO_RX_BUFFERS of RX_STRIDE bytes */
	struct msghdr rx_shape; /* sizes of a received message's parts */
	struct received received[IO_RX_BUFFERS];
	unsigned int received_count;
	uint16_t used[IO_RX_BUFFERS]; /* buffers handed out */
	unsigned int used_count;
	struct io_tx *lone;   /* the first send of this round, while it is the only one */
	unsigned int unarmed; /* sockets and the wake-up eventfd that want arming */
	bool wake_armed;
	bool woken; /* the eventfd was written since the last sleep */
};

/* @return a submission entry; the ring is flushed if it is full */
static struct io_uring_sqe *get_sqe(struct io_uring_engine *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	while (!sqe) {
		io_uring_submit(&u->ring);
		sqe = io_uring_get_sqe(&u->ring);
	}
	return sqe;
}

/* Gives a receive buffer to the kernel. */
static void give_buffer(struct io_uring_engine *u, unsigned int index)
{
	io_uring_buf_ring_add(u->buffers, u->rx_memory + (size_t)index * RX_STRIDE, RX_STRIDE,
			      (unsigned short)index, io_uring_buf_ring_mask(IO_RX_BUFFERS), 0);
	io_uring_buf_ring_advance(u->buffers, 1);
}

/* Queues a multishot receive. */
static void queue_receive(struct io_uring_engine *u, int fd, unsigned int index)
{
	struct io_uring_sqe *sqe = get_sqe(u);

	io_uring_prep_recvmsg_multishot(sqe, fd, &u->rx_shape, 0);
	sqe->flags |= IOSQE_BUFFER_SELECT;
	sqe->buf_group = BUFFER_GROUP;
	io_uring_sqe_set_data64(sqe, USER_DATA(TAG_RECV, index));
}

/* Queues receives for what has none, and the poll of the eventfd. */
static void arm(struct io_uring_engine *u)
{
	struct io *io = &u->io;

	for (unsigned int i = 0; i < io->socket_count; i++) {
		if (io->sockets[i].armed || io->sockets[i].fd < 0)
			continue;
		queue_receive(u, io->sockets[i].fd, i);
		io->sockets[i].armed = true;
	}
	if (!u->wake_armed) {
		struct io_uring_sqe *sqe = get_sqe(u);

		io_uring_prep_poll_multishot(sqe, io->wake_fd, POLLIN);
		io_uring_sqe_set_data64(sqe, USER_DATA(TAG_WAKE, 0));
		u->wake_armed = true;
	}
	io->sockets_changed = false;
	u->unarmed = 0;
}

/* Takes a receive completion in. */
static void reap_receive(struct io_uring_engine *u, const struct io_uring_cqe *cqe)
{
	unsigned int socket = (unsigned int)(cqe->user_data >> 8);
	uint16_t buffer = (uint16_t)(cqe->flags >> IORING_CQE_BUFFER_SHIFT);

	if (!(cqe->flags & IORING_CQE_F_MORE)) {
		u->io.sockets[socket].armed = false;
		u->unarmed++;
	}
	if (!(cqe->flags & IORING_CQE_F_BUFFER))
		return;
	/* Failed, or of a socket that was removed meanwhile. */
	if (cqe->res < 0 || u->io.sockets[socket].fd < 0) {
		give_buffer(u, buffer);
		return;
	}
	u->received[u->received_count++] = (struct received){
		.buffer = buffer, .socket = (uint16_t)socket, .len = (uint32_t)cqe->res};
}

/* Takes in all completions. No system call unless the kernel asks for one. */
static void reap(struct io_uring_engine *u)
{
	struct io_uring_cqe *cqe;
	unsigned int head, n = 0;
	struct io_tx *tx;
	bool woken = false;

	if (IO_URING_READ_ONCE(*u->ring.sq.kflags) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW))
		io_uring_get_events(&u->ring);
	io_uring_for_each_cqe(&u->ring, head, cqe)
	{
		n++;
		switch (cqe->user_data & 0xff) {
		case TAG_RECV:
			reap_receive(u, cqe);
			break;
		case TAG_SEND:
			tx = &u->io.tx[cqe->user_data >> 8];
			if (cqe->res < 0)
				io_tx_failed(&u->io, tx, cqe->res);
			io_tx_done(&u->io, tx);
			break;
		case TAG_WAKE:
			woken = true;
			if (!(cqe->flags & IORING_CQE_F_MORE)) {
				u->wake_armed = false;
				u->unarmed++;
			}
			break;
		}
	}
	if (n == 0)
		return;
	io_uring_cq_advance(&u->ring, n);
	if (woken) {
		io_drain_wake(&u->io);
		u->woken = true;
	}
}

/* Hands one received message out. */
static void deliver(struct io_uring_engine *u, const struct received *r, io_receive_fn fn,
		    void *arg)
{
	uint8_t *buffer = u->rx_memory + (size_t)r->buffer * RX_STRIDE;
	struct io_uring_recvmsg_out *out = (struct io_uring_recvmsg_out *)buffer;
	struct io_datagram d = {.socket_ctx = u->io.sockets[r->socket].ctx};

	if (r->len < RX_HEADERS || (out->flags & MSG_TRUNC)) {
		u->io.counters.rx_dropped++;
		return;
	}
	d.data = buffer + RX_HEADERS;
	d.len = r->len - (uint32_t)RX_HEADERS;
	memcpy(&d.from, buffer + sizeof(*out), sizeof(d.from));
	io_parse_control(&d, buffer + sizeof(*out) + RX_NAME, out->controllen);
	fn(arg, &d);
}

/* io_ops.receive */
static unsigned int uring_receive(struct io *io, io_receive_fn fn, void *arg)
{
	struct io_uring_engine *u = (struct io_uring_engine *)io;
	unsigned int n;

	reap(u);
	n = u->received_count;
	for (unsigned int i = 0; i < n; i++) {
		deliver(u, &u->received[i], fn, arg);
		u->used[u->used_count++] = u->received[i].buffer;
	}
	u->received_count = 0;
	return n;
}

/* io_ops.recycle */
static void uring_recycle(struct io *io)
{
	struct io_uring_engine *u = (struct io_uring_engine *)io;

	for (unsigned int i = 0; i < u->used_count; i++)
		give_buffer(u, u->used[i]);
	u->used_count = 0;
}

/* Queues a send. */
static void queue_send(struct io_uring_engine *u, struct io_tx *tx)
{
	struct io_uring_sqe *sqe = get_sqe(u);

	io_uring_prep_sendmsg(sqe, tx->fd, &tx->msg, 0);
	io_uring_sqe_set_data64(sqe, USER_DATA(TAG_SEND, tx - u->io.tx));
}

/* io_ops.send: sent by uring_submit() */
static void uring_send(struct io *io, struct io_tx *tx)
{
	struct io_uring_engine *u = (struct io_uring_engine *)io;

	if (!u->lone && io_uring_sq_ready(&u->ring) == 0) {
		u->lone = tx;
		return;
	}
	if (u->lone)
		queue_send(u, u->lone);
	u->lone = NULL;
	queue_send(u, tx);
}

/* Sends what is sent alone: a call of its own is cheaper then than the ring. */
static void send_lone(struct io_uring_engine *u)
{
	struct io_tx *tx = u->lone;

	u->lone = NULL;
	if (sendmsg(tx->fd, &tx->msg, MSG_DONTWAIT) < 0) {
		if (errno == EAGAIN || errno == EINTR) {
			queue_send(u, tx);
			return;
		}
		io_tx_failed(&u->io, tx, -errno);
	}
	io_tx_done(&u->io, tx);
}

/* io_ops.submit */
static void uring_submit(struct io *io)
{
	struct io_uring_engine *u = (struct io_uring_engine *)io;

	/* Buffers that are all in use end a receive: it is armed again when some came back. */
	if ((u->unarmed != 0 && u->used_count < IO_RX_BUFFERS) || io->sockets_changed)
		arm(u);
	if (u->lone)
		send_lone(u);
	if (io_uring_sq_ready(&u->ring) != 0)
		io_uring_submit_and_get_events(&u->ring);
	reap(u);
}

/* io_ops.sleep */
static void uring_sleep(struct io *io, uint64_t timeout)
{
	struct io_uring_engine *u = (struct io_uring_engine *)io;
	struct __kernel_timespec ts = {.tv_sec = (long long)(timeout / 1000000000u),
				       .tv_nsec = (long long)(timeout % 1000000000u)};
	struct io_uring_cqe *cqe;

	uring_submit(io);
	if (u->received_count == 0 && !u->woken)
		io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1,
						 timeout == UINT64_MAX ? NULL : &ts, NULL);
	reap(u);
	u->woken = false;
}

/* io_ops.remove: the receive holds the socket, and with it the address. */
static void uring_remove(struct io *io, unsigned int index)
{
	struct io_uring_engine *u = (struct io_uring_engine *)io;
	struct io_uring_sync_cancel_reg reg = {
		.addr = USER_DATA(TAG_RECV, index),
		.fd = -1,
		.timeout = {.tv_sec = 1},
	};
	unsigned int n = 0;

	if (io->sockets[index].armed) {
		io_uring_register_sync_cancel(&u->ring, &reg);
		io_uring_get_events(&u->ring);
	}
	reap(u);
	for (unsigned int i = 0; i < u->received_count; i++) {
		if (u->received[i].socket == index)
			give_buffer(u, u->received[i].buffer);
		else
			u->received[n++] = u->received[i];
	}
	u->received_count = n;
}

/*
 * Ends all requests. They hold the sockets, and the kernel takes a ring apart some time after it
 * was closed: until then the addresses would seem to be in use.
 */
static void cancel_all(struct io_uring *ring)
{
	struct io_uring_sync_cancel_reg reg = {
		.flags = IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL,
		.timeout = {.tv_sec = 1},
	};

	io_uring_register_sync_cancel(ring, &reg);
	io_uring_get_events(ring);
}

/* io_ops.destroy; also of an engine that is not complete */
static void uring_destroy(struct io *io)
{
	struct io_uring_engine *u = (struct io_uring_engine *)io;

	if (u->ring.ring_fd >= 0) {
		cancel_all(&u->ring);
		io_uring_queue_exit(&u->ring);
	}
	if (u->buffers)
		munmap(u->buffers, IO_RX_BUFFERS * sizeof(struct io_uring_buf));
	if (u->rx_memory)
		munmap(u->rx_memory, (size_t)IO_RX_BUFFERS * RX_STRIDE);
	free(u);
}

static const struct io_ops uring_ops = {
	.name = "io_uring",
	.destroy = uring_destroy,
	.receive = uring_receive,
	.recycle = uring_recycle,
	.send = uring_send,
	.submit = uring_submit,
	.sleep = uring_sleep,
	.remove = uring_remove,
};

/*
 * Makes the ring with the best flags the kernel takes.
 * @return 0 or a negative errno
 */
static int ring_init(struct io_uring *ring, unsigned int entries)
{
	static const unsigned int flags[] = {
		IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		0,
	};
	int ret = -EINVAL;

	for (unsigned int i = 0; i < 3 && ret == -EINVAL; i++) {
		struct io_uring_params params = {
			.flags = flags[i] | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
			.cq_entries = 4 * entries,
		};

		ret = io_uring_queue_init_params(entries, ring, &params);
		if (ret == 0 && !(params.features & IORING_FEAT_EXT_ARG)) {
			io_uring_queue_exit(ring);
			ret = -EOPNOTSUPP;
		}
	}
	return ret;
}

/*
 * Registers the receive buffers.
 * @return 0 or a negative errno, -EINVAL where the kernel has no buffer rings
 */
static int buffers_init(struct io_uring_engine *u)
{
	struct io_uring_buf_reg reg = {.ring_entries = IO_RX_BUFFERS, .bgid = BUFFER_GROUP};
	void *p = mmap(NULL, IO_RX_BUFFERS * sizeof(struct io_uring_buf), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ret;

	if (p == MAP_FAILED)
		return -ENOMEM;
	u->buffers = p;
	p = mmap(NULL, (size_t)IO_RX_BUFFERS * RX_STRIDE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -ENOMEM;
	u->rx_memory = p;
	reg.ring_addr = (uintptr_t)u->buffers;
	ret = io_uring_register_buf_ring(&u->ring, &reg, 0);
	if (ret != 0)
		return ret;
	io_uring_buf_ring_init(u->buffers);
	for (unsigned int i = 0; i < IO_RX_BUFFERS; i++)
		give_buffer(u, i);
	u->rx_shape.msg_namelen = RX_NAME;
	u->rx_shape.msg_controllen = IO_RX_CONTROL;
	return 0;
}

/*
 * Tries a multishot receive on a socket pair, and cancels it.
 * @return 0, or a negative errno where the kernel does not know it
 */
static int probe_multishot(struct io_uring_engine *u)
{
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
	bool received = false, cancelled = false, ended = false;
	int pair[2];
	int ret = 0;

	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0)
		return -errno;
	if (send(pair[1], "", 1, 0) != 1)
		ret = -errno;
	queue_receive(u, pair[0], 0);
	io_uring_submit(&u->ring);
	sqe = get_sqe(u);
	io_uring_prep_cancel64(sqe, USER_DATA(TAG_RECV, 0), 0);
	io_uring_sqe_set_data64(sqe, USER_DATA(TAG_CANCEL, 0));
	io_uring_submit(&u->ring);
	while (ret == 0 && !(cancelled && ended)) {
		ret = io_uring_wait_cqe(&u->ring, &cqe);
		if (ret != 0)
			break;
		if ((cqe->user_data & 0xff) == TAG_CANCEL)
			cancelled = true;
		else if (!(cqe->flags & IORING_CQE_F_MORE))
			ended = true;
		else if (cqe->res == (int)RX_HEADERS + 1)
			received = true;
		if (cqe->flags & IORING_CQE_F_BUFFER)
			give_buffer(u, cqe->flags >> IORING_CQE_BUFFER_SHIFT);
		io_uring_cqe_seen(&u->ring, cqe);
	}
	close(pair[0]);
	close(pair[1]);
	return ret == 0 && !received ? -EOPNOTSUPP : ret;
}

int io_uring_engine_create(int wake_fd, unsigned int tx_buffers, struct io **out)
{
	struct io_uring_engine *u = calloc(1, sizeof(*u));
	unsigned int entries = 64;
	int ret;

	if (!u)
		return -ENOMEM;
	u->io.ops = &uring_ops;
	u->io.wake_fd = wake_fd;
	u->unarmed = 1;
	u->ring.ring_fd = -1;
	while (entries < tx_buffers + 16)
		entries *= 2;
	ret = ring_init(&u->ring, entries);
	if (ret == 0)
		ret = buffers_init(u);
	if (ret == 0)
		ret = probe_multishot(u);
	if (ret != 0) {
		uring_destroy(&u->io);
		return ret;
	}
	*out = &u->io;
	return 0;
}
