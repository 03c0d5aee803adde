/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the machine allows, to measure Vernic against: the floor of each way bytes and wake-ups can
 * take. Each prints one number. SECONDS is how long to measure.
 *
 *	yardstick memcpy SECONDS BYTES    GB/s: streaming over 128 MiB in pieces of BYTES
 *	yardstick memcpy-hot SECONDS BYTES  GB/s: the same BYTES again and again
 *	yardstick vm SECONDS BYTES        GB/s: a third process carries BYTES from one to another by
 *	                                  process_vm_readv and process_vm_writev
 *	yardstick vm-shared ...           GB/s: the same by memcpy, both buffers being mapped
 *	yardstick hop SECONDS             us: half round trip A - third process - B - third process - A
 *	                                  through shared memory, yielding after 50 empty looks
 *	yardstick hop-spin SECONDS        the same where A and B never yield
 *	yardstick udp SECONDS BYTES       Gb/s of payload: UDP datagrams of BYTES and 44 of headers over
 *	                                  loopback, GSO and GRO, io_uring, multishot receive
 *	yardstick udp-spin SECONDS        us: half round trip of 64 bytes, two processes on two cores, never
 *	                                  waiting
 *	yardstick relay SECONDS BYTES     us: half round trip A - C - UDP - D - B and back: A and C, and B and
 *	                                  D, share memory, and everybody yields; BYTES, 4 to 60000, in a
 *	                                  datagram; from 1024 on C and D fetch them from the memory of A
 *	                                  and B and put them there
 *	yardstick futex SECONDS           us: two wake-ups: a round trip of two that sleep
 */
#include <arpa/inet.h>
#include <errno.h>
#include <liburing.h>
#include <linux/futex.h>
#include <netinet/udp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(cond)                                                                      \
	do {                                                                             \
		if (!(cond)) {                                                           \
			fprintf(stderr, "%s:%d: failed: %s (errno %d)\n", __FILE__, __LINE__, \
				#cond, errno);                                           \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

#define STREAM (128u << 20) /* bytes */
#define BOUNCE (256u << 10) /* bytes the third process has */
#define SAMPLES 1000000u

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Memory that is there. @shared: with the processes forked from now on */
static uint8_t *memory(size_t size, bool shared)
{
	uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
			  MAP_ANONYMOUS | (shared ? MAP_SHARED : MAP_PRIVATE), -1, 0);

	CHECK(p != MAP_FAILED);
	memset(p, 1, size);
	return p;
}

/* Runs fn in a process of its own, which ends with us. */
static pid_t start(void (*fn)(void *), void *arg)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fn(arg);
		_exit(0);
	}
	return pid;
}

static void stop(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* Stays on one of the cores there are: two that spin must not share one. */
static void pin(int which)
{
	cpu_set_t all, one;

	CPU_ZERO(&one);
	CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (CPU_ISSET(i, &all) && which-- == 0) {
			CPU_SET(i, &one);
			CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
			return;
		}
	}
}

/* ---- samples ------------------------------------------------------------------------------- */

static float *samples;
static unsigned int sample_count;

static void sample(double us)
{
	if (!samples)
		samples = malloc(SAMPLES * sizeof(*samples));
	CHECK(samples);
	if (sample_count < SAMPLES)
		samples[sample_count++] = (float)us;
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return x < y ? -1 : x > y;
}

static void print_median(void)
{
	CHECK(sample_count);
	qsort(samples, sample_count, sizeof(*samples), by_value);
	printf("%.3f\n", (double)samples[sample_count / 2]);
}

/* ---- copies -------------------------------------------------------------------------------- */

static void copy(double time, size_t size, bool hot)
{
	size_t span = hot ? size : STREAM, off = 0;
	uint8_t *from = memory(span, false), *to = memory(span, false);
	double begin = seconds(), now;
	uint64_t bytes = 0;

	do {
		for (unsigned int i = 0; i < 64; i++) {
			memcpy(to + off, from + off, size);
			__asm__ volatile("" ::: "memory");
			off = off + 2 * size <= span ? off + size : 0;
			bytes += size;
		}
		now = seconds();
	} while (now - begin < time);
	printf("%.3f\n", (double)bytes / (now - begin) * 1e-9);
}

/* Has a copy of its own of the memory, and keeps it. */
struct owner {
	uint8_t *p;
	size_t size;
	_Atomic int *ready;
};

static void own(void *arg)
{
	struct owner *o = arg;

	memset(o->p, getpid() & 0xff, o->size);
	(*o->ready)++;
	for (;;)
		pause();
}

static void vm(double time, size_t size)
{
	struct owner o = {memory(size, false), size, (void *)memory(4096, true)};
	uint8_t *bounce = memory(BOUNCE, false);
	pid_t from, to;
	double begin, now;
	uint64_t bytes = 0;

	*o.ready = 0;
	from = start(own, &o);
	to = start(own, &o);
	while (*o.ready != 2)
		sched_yield();
	begin = seconds();
	do {
		for (size_t off = 0; off < size; off += BOUNCE) {
			size_t n = size - off < BOUNCE ? size - off : BOUNCE;
			struct iovec local = {bounce, n}, remote = {o.p + off, n};

			CHECK(process_vm_readv(from, &local, 1, &remote, 1, 0) == (ssize_t)n);
			CHECK(process_vm_writev(to, &local, 1, &remote, 1, 0) == (ssize_t)n);
		}
		bytes += size;
		now = seconds();
	} while (now - begin < time);
	printf("%.3f\n", (double)bytes / (now - begin) * 1e-9);
	stop(from);
	stop(to);
}

static void vm_shared(double time, size_t size)
{
	uint8_t *from = memory(size, true), *to = memory(size, true);
	double begin = seconds(), now;
	uint64_t bytes = 0;

	do {
		memcpy(to, from, size);
		__asm__ volatile("" ::: "memory");
		bytes += size;
		now = seconds();
	} while (now - begin < time);
	printf("%.3f\n", (double)bytes / (now - begin) * 1e-9);
}

/* ---- hops ---------------------------------------------------------------------------------- */

struct word {
	_Alignas(64) _Atomic uint32_t v;
};

/* Waits for the word to become v, giving the core away after 50 looks. */
static void await(struct word *w, uint32_t v)
{
	for (unsigned int i = 0; atomic_load_explicit(&w->v, memory_order_acquire) != v; i++)
		if (i >= 50)
			sched_yield();
}

/* From A to the third process, to B, back to the third process, and to A. */
enum { A_OUT, B_IN, B_OUT, A_IN, WORDS };

static void hop_third(void *arg)
{
	struct word *w = arg;

	for (uint32_t i = 1;; i++) {
		await(&w[A_OUT], i);
		w[B_IN].v = i;
		await(&w[B_OUT], i);
		w[A_IN].v = i;
	}
}

static bool ends_yield = true; /* A and B do; the third process always does */

/* Waits as A and B do. */
static void end_await(struct word *w, uint32_t v)
{
	if (ends_yield)
		await(w, v);
	else
		while (atomic_load_explicit(&w->v, memory_order_acquire) != v)
			;
}

static void hop_b(void *arg)
{
	struct word *w = arg;

	for (uint32_t i = 1;; i++) {
		end_await(&w[B_IN], i);
		w[B_OUT].v = i;
	}
}

/* What A does: sends, and waits for the answer. Prints half of what that takes. */
static void ping(struct word *w, double time, void (*wait)(struct word *, uint32_t))
{
	double begin = seconds(), last = begin, now;

	for (uint32_t i = 1; last - begin < time; i++) {
		w[A_OUT].v = i;
		wait(&w[A_IN], i);
		now = seconds();
		sample((now - last) * 1e6 / 2);
		last = now;
	}
	print_median();
}

/* @yield: whether A and B yield */
static void hop(double time, bool yield)
{
	struct word *w = (void *)memory(4096, true);
	pid_t third, b;

	ends_yield = yield;
	memset(w, 0, 4096);
	third = start(hop_third, w);
	b = start(hop_b, w);
	ping(w, time, end_await);
	stop(third);
	stop(b);
}

static void futex_await(struct word *w, uint32_t v)
{
	uint32_t seen;

	while ((seen = w->v) != v)
		syscall(SYS_futex, &w->v, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void futex_set(struct word *w, uint32_t v)
{
	w->v = v;
	syscall(SYS_futex, &w->v, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void futex_b(void *arg)
{
	struct word *w = arg;

	for (uint32_t i = 1;; i++) {
		futex_await(&w[0], i);
		futex_set(&w[1], i);
	}
}

static void futex(double time)
{
	struct word *w = (void *)memory(4096, true);
	double begin, last, now;
	pid_t b;

	memset(w, 0, 4096);
	b = start(futex_b, w);
	begin = last = seconds();
	for (uint32_t i = 1; last - begin < time; i++) {
		futex_set(&w[0], i);
		futex_await(&w[1], i);
		now = seconds();
		sample((now - last) * 1e6);
		last = now;
	}
	print_median();
	stop(b);
}

/* ---- UDP ----------------------------------------------------------------------------------- */

#define HEADERS 44u	 /* bytes of RoCEv2 around the payload of a WRITE's packet */
#define BUFFERS 256u	 /* of 64 KiB, to receive into */
#define WINDOW (1u << 20) /* bytes under way: nothing is lost */
#define SENDS 16u

/* A UDP socket of an address of our own. @to: connected to it, if not NULL */
static int udp_socket(struct sockaddr_in *addr, const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), size = 8 << 20;
	socklen_t len = sizeof(*addr);

	CHECK(fd >= 0);
	*addr = (struct sockaddr_in){.sin_family = AF_INET};
	addr->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(fd, (struct sockaddr *)addr, len) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)addr, &len) == 0);
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) != 0)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	CHECK(!to || connect(fd, (const struct sockaddr *)to, sizeof(*to)) == 0);
	return fd;
}

struct stream {
	struct sockaddr_in to;
	uint32_t packet, packets; /* of a send */
	_Atomic uint64_t *received;
};

/* Sends without end, a window ahead of the receiver. */
static void udp_send(void *arg)
{
	struct stream *s = arg;
	union {
		char space[CMSG_SPACE(sizeof(uint16_t))];
		struct cmsghdr align;
	} control = {0};
	uint32_t len = s->packet * s->packets;
	struct iovec iov = {memory(len, false), len};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.space,
			     .msg_controllen = sizeof(control.space)};
	struct cmsghdr *h = CMSG_FIRSTHDR(&msg);
	struct sockaddr_in own;
	struct io_uring ring;
	uint64_t sent = 0;
	uint16_t segment = (uint16_t)s->packet;
	int fd = udp_socket(&own, &s->to);

	h->cmsg_level = IPPROTO_UDP;
	h->cmsg_type = UDP_SEGMENT;
	h->cmsg_len = CMSG_LEN(sizeof(segment));
	memcpy(CMSG_DATA(h), &segment, sizeof(segment));
	CHECK(io_uring_queue_init(2 * SENDS, &ring, 0) == 0);
	for (;;) {
		struct io_uring_cqe *cqe;
		unsigned int n = 0, head, done = 0;

		while (n < SENDS && sent + len <= *s->received + WINDOW) {
			io_uring_prep_sendmsg(io_uring_get_sqe(&ring), fd, &msg, 0);
			sent += len;
			n++;
		}
		if (!n) {
			sched_yield();
			continue;
		}
		CHECK(io_uring_submit_and_wait(&ring, n) == (int)n);
		io_uring_for_each_cqe(&ring, head, cqe) {
			CHECK(cqe->res == (int)len);
			done++;
		}
		io_uring_cq_advance(&ring, done);
	}
}

static void udp(double time, uint32_t payload)
{
	uint8_t *buffers = memory((size_t)BUFFERS << 16, false);
	struct stream s = {.packet = payload + HEADERS, .received = (void *)memory(4096, true)};
	struct io_uring_buf_reg reg = {.ring_entries = BUFFERS, .bgid = 1};
	struct msghdr msg = {.msg_controllen = CMSG_SPACE(sizeof(int))};
	struct io_uring_buf_ring *br = NULL;
	struct io_uring ring;
	bool armed = false;
	double begin = 0, now;
	uint64_t bytes = 0, first = 0;
	int fd = udp_socket(&s.to, NULL), one = 1;
	pid_t sender;

	s.packets = 65000 / s.packet < 60 ? 65000 / s.packet : 60;
	*s.received = 0;
	CHECK(setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof(one)) == 0);
	CHECK(io_uring_queue_init(BUFFERS, &ring, 0) == 0);
	CHECK(posix_memalign((void **)&br, 4096, BUFFERS * sizeof(struct io_uring_buf)) == 0);
	reg.ring_addr = (uintptr_t)br;
	CHECK(io_uring_register_buf_ring(&ring, &reg, 0) == 0);
	io_uring_buf_ring_init(br);
	for (unsigned int i = 0; i < BUFFERS; i++)
		io_uring_buf_ring_add(br, buffers + ((size_t)i << 16), 1 << 16, (unsigned short)i,
				      io_uring_buf_ring_mask(BUFFERS), (int)i);
	io_uring_buf_ring_advance(br, BUFFERS);
	sender = start(udp_send, &s);
	do {
		struct io_uring_cqe *cqe;
		unsigned int head, n = 0, given = 0;

		if (!armed) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

			io_uring_prep_recvmsg_multishot(sqe, fd, &msg, 0);
			sqe->flags |= IOSQE_BUFFER_SELECT;
			sqe->buf_group = 1;
			armed = true;
		}
		CHECK(io_uring_submit_and_wait(&ring, 1) >= 0);
		io_uring_for_each_cqe(&ring, head, cqe) {
			n++;
			armed &= (cqe->flags & IORING_CQE_F_MORE) != 0;
			if (cqe->res < 0) {
				CHECK(cqe->res == -ENOBUFS);
				continue;
			}
			/* The header in front says how much there is. */
			unsigned short id = (unsigned short)(cqe->flags >> IORING_CQE_BUFFER_SHIFT);
			uint8_t *p = buffers + ((size_t)id << 16);

			bytes += ((struct io_uring_recvmsg_out *)(void *)p)->payloadlen;
			io_uring_buf_ring_add(br, p, 1 << 16, id, io_uring_buf_ring_mask(BUFFERS),
					      (int)given++);
		}
		io_uring_cq_advance(&ring, n);
		io_uring_buf_ring_advance(br, (int)given);
		atomic_store_explicit(s.received, bytes, memory_order_release);
		now = seconds();
		if (begin == 0 && bytes > 8 * WINDOW) {
			begin = now;
			first = bytes;
		}
	} while (begin == 0 || now - begin < time);
	printf("%.3f\n", (double)(bytes - first) * payload / s.packet * 8 / (now - begin) * 1e-9);
	stop(sender);
	io_uring_queue_exit(&ring);
	free(br);
}

struct spin {
	int fd;
};

static void udp_spin_b(void *arg)
{
	struct spin *s = arg;
	char buf[64];

	pin(1);
	for (;;)
		if (recv(s->fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
			send(s->fd, buf, sizeof(buf), MSG_DONTWAIT);
}

static void udp_spin(double time)
{
	struct sockaddr_in a, b;
	struct spin s;
	double begin, last, now;
	char buf[64] = {0};
	int fd = udp_socket(&a, NULL);
	pid_t pid;

	s.fd = udp_socket(&b, &a);
	CHECK(connect(fd, (struct sockaddr *)&b, sizeof(b)) == 0);
	pid = start(udp_spin_b, &s);
	pin(0);
	begin = last = seconds();
	while (last - begin < time) {
		CHECK(send(fd, buf, sizeof(buf), 0) == sizeof(buf));
		while (recv(fd, buf, sizeof(buf), MSG_DONTWAIT) < 0)
			CHECK(errno == EAGAIN);
		now = seconds();
		sample((now - last) * 1e6 / 2);
		last = now;
	}
	print_median();
	stop(pid);
}

/* What stands between a program and the wire in the simplest case. */
struct relay {
	struct word *in, *out; /* to and from the program */
	int fd;
	uint32_t bytes;
	pid_t program;
	uint8_t *memory; /* of the program, at that address */
};

/* Copies a message from the program's memory, or to it. */
static void relay_copy(const struct relay *r, uint8_t *message, bool fetch)
{
	struct iovec local = {message, r->bytes}, remote = {r->memory, r->bytes};
	ssize_t n;

	if (r->bytes < 1024)
		return;
	n = fetch ? process_vm_readv(r->program, &local, 1, &remote, 1, 0)
		  : process_vm_writev(r->program, &local, 1, &remote, 1, 0);
	CHECK(n == (ssize_t)r->bytes);
}

/* Carries words to the socket and back. */
static void relay_side(void *arg)
{
	struct relay *r = arg;
	uint8_t *message = memory(1 << 16, false);
	uint32_t out = 0, in;
	unsigned int idle = 0;

	for (;;) {
		uint32_t v = atomic_load_explicit(&r->out->v, memory_order_acquire);

		if (v != out) {
			out = v;
			relay_copy(r, message, true);
			memcpy(message, &out, sizeof(out));
			CHECK(send(r->fd, message, r->bytes, 0) == (ssize_t)r->bytes);
			idle = 0;
		}
		if (recv(r->fd, message, r->bytes, MSG_DONTWAIT) > 0) {
			memcpy(&in, message, sizeof(in));
			relay_copy(r, message, false);
			r->in->v = in;
			idle = 0;
		}
		/* A look at a socket costs what 20 looks at memory do. */
		if (++idle > 2)
			sched_yield();
	}
}

static void relay(double time, uint32_t bytes)
{
	struct word *w = (void *)memory(4096, true);
	uint8_t *buffer = memory(1 << 16, false);
	struct sockaddr_in a, b;
	struct relay c = {.in = &w[A_IN], .out = &w[A_OUT], .fd = udp_socket(&a, NULL),
			  .bytes = bytes, .program = getpid(), .memory = buffer};
	struct relay d = {.in = &w[B_IN], .out = &w[B_OUT], .fd = udp_socket(&b, &a),
			  .bytes = bytes, .memory = buffer};
	pid_t pids[3];

	memset(w, 0, 4096);
	CHECK(connect(c.fd, (struct sockaddr *)&b, sizeof(b)) == 0);
	d.program = pids[0] = start(hop_b, w);
	pids[1] = start(relay_side, &c);
	pids[2] = start(relay_side, &d);
	ping(w, time, await);
	for (int i = 0; i < 3; i++)
		stop(pids[i]);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	double time = argc > 2 ? atof(argv[2]) : 0;
	size_t size = argc > 3 ? strtoul(argv[3], NULL, 10) : 65536;

	if (time <= 0 || size == 0 || size > STREAM)
		what = "";
	if (!strcmp(what, "memcpy"))
		copy(time, size, false);
	else if (!strcmp(what, "memcpy-hot"))
		copy(time, size, true);
	else if (!strcmp(what, "vm"))
		vm(time, size);
	else if (!strcmp(what, "vm-shared"))
		vm_shared(time, size);
	else if (!strcmp(what, "hop"))
		hop(time, true);
	else if (!strcmp(what, "hop-spin"))
		hop(time, false);
	else if (!strcmp(what, "udp") && size <= 16384)
		udp(time, (uint32_t)size);
	else if (!strcmp(what, "udp-spin"))
		udp_spin(time);
	else if (!strcmp(what, "relay") && size >= 4 && size <= 60000)
		relay(time, (uint32_t)size);
	else if (!strcmp(what, "futex"))
		futex(time);
	else {
		fprintf(stderr, "usage: yardstick memcpy|memcpy-hot|vm|vm-shared|hop|hop-spin|udp|"
				"udp-spin|relay|futex SECONDS [BYTES]\n");
		return 2;
	}
	return 0;
}
