// SPDX-License-Identifier: BSD-2-Clause
/*
 * `vernic capture`: the daemon's packets in a pcapng file.
 *
 * Theory of operation
 * -------------------
 * The daemon puts packets into rings we map (include/vernic/capture.h); we look there every few
 * milliseconds, put what the rings hold in order of time, and write it. The end is asked for: the
 * daemon's answer means that all captured packets are in the rings, so those are drained once more.
 */
#include "capture.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <vernic/capture.h>
#include <vernic/control.h>

#include "cli.h"
#include "pcapng.h"
#include "vernic_config.h"

static const char help[] =
	"Usage: vernic capture -w FILE [OPTION...]\n"
	"\n"
	"Writes the packets of the running daemon's devices to FILE, in the pcapng format that\n"
	"Wireshark and tshark read, until ^C or SIGTERM. Packets within the daemon, which no\n"
	"network interface sees, are there too, as they would be on Ethernet.\n"
	"\n"
	"Options:\n"
	"  -w, --write FILE  the file to write; '-' is standard output\n"
	"  --device NAME     only packets that this device sends or receives\n"
	"  --qp N            only packets that this queue pair sends or receives\n"
	"  --snaplen BYTES   keep no more than so many bytes of a packet\n"
	"  --buffer MIB      memory for packets not written yet, 1 to 1024. Default: 64\n"
	"  --count N         end after N packets\n"
	"  --duration SECONDS\n"
	"                    end after that time\n"
	"  --quiet           print nothing but errors and losses\n"
	"  --socket PATH     the daemon's socket. Default: $VERNIC_SOCKET, else the first that\n"
	"                    answers of $XDG_RUNTIME_DIR/vernicd.sock and\n"
	"                    /run/vernic/vernicd.sock\n"
	"  --help            print this text\n"
	"\n"
	"Exit status: 0; 1 with one line on stderr if no daemon answers, it ends, or FILE cannot\n"
	"be written; 2 for wrong usage.\n"
	"\n"
	"Examples:\n"
	"  vernic capture -w trace.pcapng\n"
	"  vernic capture -w - --quiet | tshark -r - -Y infiniband.aeth\n"
	"  vernic run --capture trace.pcapng -- ./program\n";

#define WAIT_BUSY 2	    /* ms between two looks at rings that had something */
#define WAIT_IDLE 10	    /* ms between two looks at empty ones */
#define LATE 30000000	    /* ns a worker may take from a packet to its publication */
#define MIB (1024u * 1024u) /* bytes */

/* The rings as we read them. */
struct ring_reader {
	struct vernic_capture_ring *ring;
	uint64_t cons;
	uint64_t end; /* prod as last read */
};

struct capture {
	const struct capture_options *o;
	const char *path;
	int fd;
	void *memory;
	size_t size; /* bytes mapped */
	uint64_t ring_size;
	uint32_t rings;
	struct ring_reader ring[VERNIC_MAX_WORKERS];
	char device[VERNIC_CAPTURE_DEVICES][VERNIC_NAME_MAX];
	uint32_t devices;
	/* Of each device: its number in the file, UINT32_MAX if it is not there. */
	uint32_t interface[VERNIC_CAPTURE_DEVICES];
	uint64_t written[VERNIC_CAPTURE_DEVICES];
	uint64_t packets;
	struct pcapng file;
	uint64_t start; /* ns, CLOCK_REALTIME */
};

static volatile sig_atomic_t stops; /* signals that ask for the end */

/* Signal handler. */
static void stop_signal(int number)
{
	stops++;
}

/* pcapng.give_up: asked for the end a second time. */
static bool stopped_twice(void)
{
	return stops > 1;
}

/* @return ns, CLOCK_REALTIME, the clock of records */
static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the daemon ---------------------------------------------------------------------------- */

/*
 * Asks the daemon something.
 * @passed: out: a descriptor that came with the reply, -1: none; NULL: none is expected
 * @return 0, a positive errno value that the daemon answered, or -errno
 */
static int ask(int fd, const struct vernic_request *request, struct vernic_reply *reply,
	       int *passed)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = reply, .iov_len = sizeof(*reply)};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.space,
		.msg_controllen = sizeof(control.space),
	};
	struct cmsghdr *h;
	ssize_t n;

	if (passed)
		*passed = -1;
	if (send(fd, request, sizeof(*request), MSG_NOSIGNAL) < 0)
		return -errno;
	do {
		n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? -ETIMEDOUT : -errno;
	h = CMSG_FIRSTHDR(&msg);
	if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS && passed)
		memcpy(passed, CMSG_DATA(h), sizeof(int));
	if (n != (ssize_t)sizeof(*reply))
		return n == 0 ? -ECONNRESET : -EPROTO;
	return reply->status;
}

/* Learns the names of the devices. @return CLI_OK, or CLI_FAILED with a line printed */
static int list_devices(struct capture *c)
{
	for (uint32_t i = 0; i < VERNIC_CAPTURE_DEVICES; i++) {
		struct vernic_request request = {
			.command = VERNIC_CMD_LIST_DEVICES,
			.list_devices.index = i,
		};
		struct vernic_reply reply;
		int err = ask(c->fd, &request, &reply, NULL);

		if (err == ENODEV)
			break;
		if (err != 0)
			return cli_fail("cannot ask the daemon at %s: %s", c->path,
					strerror(err < 0 ? -err : err));
		memcpy(c->device[i], reply.list_devices.name, VERNIC_NAME_MAX - 1);
		c->devices = i + 1;
	}
	return CLI_OK;
}

/* Has the daemon capture, and maps the rings. @return CLI_OK, or CLI_FAILED with a line printed */
static int begin(struct capture *c)
{
	struct vernic_request request = {.command = VERNIC_CMD_CAPTURE};
	struct vernic_reply reply;
	int err, rings;

	if (c->o->device)
		snprintf(request.capture.device, sizeof(request.capture.device), "%s",
			 c->o->device);
	request.capture.qpn = c->o->qpn;
	request.capture.snaplen = c->o->snaplen;
	request.capture.size = c->o->buffer;
	err = ask(c->fd, &request, &reply, &rings);
	if (err == ENODEV)
		return cli_fail("capture: the daemon has no device %s", c->o->device);
	if (err == EBUSY)
		return cli_fail("capture: the daemon has as many captures as it can have");
	if (err == ENOMEM)
		return cli_fail("capture: not enough memory for a buffer of %" PRIu64 " MiB",
				c->o->buffer / MIB);
	if (err != 0)
		return cli_fail("the daemon at %s does not capture: %s", c->path,
				strerror(err < 0 ? -err : err));
	c->rings = reply.capture.workers;
	c->ring_size = reply.capture.ring_size;
	c->size = reply.capture.size;
	if (rings < 0 || c->rings > VERNIC_MAX_WORKERS ||
	    c->size < c->rings * vernic_capture_stride(c->ring_size))
		return cli_fail("the daemon at %s sent a damaged answer", c->path);
	c->memory = mmap(NULL, c->size, PROT_READ | PROT_WRITE, MAP_SHARED, rings, 0);
	close(rings);
	if (c->memory == MAP_FAILED) {
		c->memory = NULL;
		return cli_fail("capture: cannot map the buffer: %s", strerror(errno));
	}
	for (uint32_t i = 0; i < c->rings; i++)
		c->ring[i].ring =
			(void *)((uint8_t *)c->memory + i * vernic_capture_stride(c->ring_size));
	return CLI_OK;
}

/* Has the daemon stop: afterwards the rings have all there is. @return 0 or an errno value */
static int end(struct capture *c)
{
	struct vernic_request request = {.command = VERNIC_CMD_CAPTURE, .capture.stop = 1};
	struct vernic_reply reply;

	return ask(c->fd, &request, &reply, NULL);
}

/* ---- the rings ----------------------------------------------------------------------------- */

/* @return the record at cons of a ring that has one */
static const struct vernic_capture_record *record_at(const struct capture *c,
						     const struct ring_reader *r)
{
	return (const void *)((const uint8_t *)r->ring + VERNIC_CAPTURE_DATA +
			      (r->cons & (c->ring_size - 1)));
}

/* Gives the room of a record back. */
static void release(struct ring_reader *r, const struct vernic_capture_record *record)
{
	r->cons += record->size;
	atomic_store_explicit(&r->ring->cons, r->cons, memory_order_release);
}

/*
 * The next packet of a ring, padding passed over.
 * @damaged: set if what is there cannot be
 * @return NULL if there is none
 */
static const struct vernic_capture_record *next_packet(const struct capture *c,
						       struct ring_reader *r, bool *damaged)
{
	while (r->cons != r->end) {
		const struct vernic_capture_record *record = record_at(c, r);
		uint64_t left = c->ring_size - (r->cons & (c->ring_size - 1));

		if (left > r->end - r->cons)
			left = r->end - r->cons;
		if (record->size < sizeof(*record) || record->size > left ||
		    record->size % VERNIC_CAPTURE_ALIGN != 0)
			break;
		if (record->type == VERNIC_CAPTURE_PAD) {
			release(r, record);
			continue;
		}
		if (record->type == VERNIC_CAPTURE_PACKET && record->device < c->devices &&
		    c->interface[record->device] != UINT32_MAX &&
		    sizeof(*record) + (uint64_t)record->captured + record->comment <= record->size)
			return record;
		break;
	}
	*damaged |= r->cons != r->end;
	return NULL;
}

/* Writes a packet. */
static void write_packet(struct capture *c, const struct vernic_capture_record *record)
{
	static const char unreadable[] = "payload unknown: the program had given its memory back";
	const uint8_t *data = (const uint8_t *)(record + 1);
	struct pcapng_packet packet = {
		.interface = c->interface[record->device],
		.timestamp = record->timestamp,
		.data = data,
		.captured = record->captured,
		.length = record->length,
		.inbound = record->flags & VERNIC_CAPTURE_INBOUND,
		.queue = record->worker,
		.comment = {(const char *)data + record->captured, unreadable},
		.comment_len = {record->comment},
	};

	if (record->flags & VERNIC_CAPTURE_UNREADABLE)
		packet.comment_len[1] = sizeof(unreadable) - 1;
	pcapng_packet(&c->file, &packet);
	c->written[record->device]++;
	c->packets++;
}

/* @return whether there are as many packets as were asked for */
static bool enough(const struct capture *c)
{
	return c->o->count != 0 && c->packets >= c->o->count;
}

/*
 * Writes what is in the rings, in order of time.
 * @all: also what is so new that an older packet of another ring may still come
 * @return CLI_OK, or CLI_FAILED with a line printed; any: whether there was something
 */
static int drain(struct capture *c, bool all, bool *any)
{
	uint64_t horizon = all || c->rings == 1 ? UINT64_MAX : now() - LATE;
	bool damaged = false;

	*any = false;
	for (uint32_t i = 0; i < c->rings; i++)
		c->ring[i].end = atomic_load_explicit(&c->ring[i].ring->prod, memory_order_acquire);
	while (!enough(c) && c->file.error == 0) {
		const struct vernic_capture_record *first = NULL;
		struct ring_reader *of = NULL;

		for (uint32_t i = 0; i < c->rings; i++) {
			const struct vernic_capture_record *record =
				next_packet(c, &c->ring[i], &damaged);

			if (record && (!first || record->timestamp < first->timestamp)) {
				first = record;
				of = &c->ring[i];
			}
		}
		if (!first || first->timestamp > horizon)
			break;
		write_packet(c, first);
		release(of, first);
		*any = true;
	}
	if (damaged)
		return cli_fail("capture: the daemon's buffer is damaged");
	return CLI_OK;
}

/* @return packets of a device for which there was no room */
static uint64_t lost(const struct capture *c, uint32_t device)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < c->rings; i++)
		sum += atomic_load_explicit(&c->ring[i].ring->lost[device], memory_order_relaxed);
	return sum;
}

/* ---- the file ------------------------------------------------------------------------------ */

/* Opens and begins the file. @return CLI_OK, or CLI_FAILED with a line printed */
static int open_file(struct capture *c)
{
	bool output = strcmp(c->o->file, "-") == 0;
	uint32_t interfaces = 0;
	int fd = STDOUT_FILENO;

	if (!output)
		fd = open(c->o->file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return cli_fail("cannot write %s: %s", c->o->file, strerror(errno));
	if (pcapng_open(&c->file, fd, stopped_twice, "vernic " VERNIC_VERSION) != 0) {
		if (!output)
			close(fd);
		return cli_fail("out of memory");
	}
	for (uint32_t i = 0; i < c->devices; i++) {
		c->interface[i] = UINT32_MAX;
		if (c->o->device && strcmp(c->o->device, c->device[i]) != 0)
			continue;
		c->interface[i] = interfaces++;
		pcapng_interface(&c->file, c->device[i], c->o->snaplen);
	}
	pcapng_flush(&c->file);
	return CLI_OK;
}

/* Ends the file: what each device has seen. */
static void end_file(struct capture *c)
{
	uint64_t stop = now();

	for (uint32_t i = 0; i < c->devices; i++) {
		uint64_t dropped = lost(c, i);

		if (c->interface[i] != UINT32_MAX)
			pcapng_statistics(&c->file, c->interface[i], c->start, stop,
					  c->written[i] + dropped, dropped);
	}
	pcapng_flush(&c->file);
}

/* Frees the file. @return CLI_OK, or CLI_FAILED with a line printed if something went wrong */
static int close_file(struct capture *c)
{
	int err = c->file.error;

	if (c->file.fd != STDOUT_FILENO && close(c->file.fd) != 0 && err == 0)
		err = -errno;
	pcapng_close(&c->file);
	/* A reader that has seen enough is no failure. */
	if (err == 0 || err == -EPIPE)
		return CLI_OK;
	return cli_fail("cannot write %s: %s", c->o->file, strerror(-err));
}

/* ---- the whole ----------------------------------------------------------------------------- */

/* Prints how it went. */
static void print_summary(const struct capture *c)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < c->devices; i++)
		sum += lost(c, i);
	if (c->o->quiet && sum == 0)
		return;
	fprintf(stderr, "vernic: %" PRIu64 " packet%s captured, %" PRIu64 " lost\n", c->packets,
		c->packets == 1 ? "" : "s", sum);
	if (sum != 0)
		fprintf(stderr, "vernic: a larger --buffer or a smaller --snaplen may help\n");
}

/*
 * Writes packets until there is a reason to end.
 * @gone: set if the daemon has ended
 * @return CLI_OK, or CLI_FAILED with a line printed
 */
static int capture_loop(struct capture *c, bool *gone)
{
	uint64_t deadline = UINT64_MAX;
	struct pollfd polled[] = {
		{.fd = c->fd, .events = POLLIN},
		{.fd = c->file.fd}, /* POLLERR: nobody reads the pipe any more */
	};

	if (c->o->duration > 0)
		deadline = c->start + (uint64_t)(c->o->duration * 1e9);
	while (stops == 0 && !enough(c) && now() < deadline) {
		bool any;

		if (drain(c, false, &any) != CLI_OK)
			return CLI_FAILED;
		if (pcapng_flush(&c->file) != 0)
			return CLI_OK;
		if (poll(polled, 2, any ? WAIT_BUSY : WAIT_IDLE) <= 0)
			continue;
		if (polled[1].revents & POLLERR) {
			c->file.error = -EPIPE;
			return CLI_OK;
		}
		if (polled[0].revents != 0) {
			*gone = true;
			return CLI_OK;
		}
	}
	return CLI_OK;
}

/* Sets up the signals that end a capture. */
static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = stop_signal};
	sigset_t wanted;

	sigemptyset(&wanted);
	sigaddset(&wanted, SIGINT);
	sigaddset(&wanted, SIGTERM);
	sigaddset(&wanted, SIGHUP);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	sigprocmask(SIG_UNBLOCK, &wanted, NULL);
	signal(SIGPIPE, SIG_IGN);
}

/* Tells whoever started us that packets are captured from now on. */
static void report_ready(const struct capture *c)
{
	if (c->o->ready_fd >= 0) {
		if (write(c->o->ready_fd, "ready\n", 6) < 0)
			cli_fail("capture: %s", strerror(errno));
		close(c->o->ready_fd);
	}
	if (!c->o->quiet)
		fprintf(stderr, "vernic: capturing on %s\n",
			c->o->device ? c->o->device : "all devices");
}

int capture_to_file(const struct capture_options *o, int fd, const char *path)
{
	struct capture *c = calloc(1, sizeof(*c));
	int status, ended = 0;
	bool gone = false, any;

	if (!c)
		return cli_fail("out of memory");
	c->o = o;
	c->fd = fd;
	c->path = path;
	catch_signals();
	status = list_devices(c);
	if (status == CLI_OK)
		status = begin(c);
	if (status == CLI_OK)
		status = open_file(c);
	if (status != CLI_OK)
		goto out;
	c->start = now();
	report_ready(c);
	status = capture_loop(c, &gone);
	if (!gone)
		ended = end(c);
	if (status == CLI_OK)
		status = drain(c, true, &any);
	end_file(c);
	if (status == CLI_OK)
		status = close_file(c);
	else
		close_file(c);
	if (status == CLI_OK && (gone || ended != 0))
		status = cli_fail("the daemon at %s has ended", path);
	print_summary(c);
out:
	if (c->memory)
		munmap(c->memory, c->size);
	free(c);
	return status;
}

/* ---- the command line ---------------------------------------------------------------------- */

void capture_defaults(struct capture_options *o)
{
	*o = (struct capture_options){
		.snaplen = VERNIC_CAPTURE_SNAPLEN,
		.buffer = 64 * MIB,
		.ready_fd = -1,
	};
}

/*
 * Reads a number of an option.
 * @min, @max: both allowed
 * @return CLI_OK, or CLI_USAGE with a line printed
 */
static int parse_number(const char *option, const char *text, uint64_t min, uint64_t max,
			uint64_t *value)
{
	char *end_of;

	errno = 0;
	*value = strtoull(text, &end_of, 0);
	if (text[0] >= '0' && text[0] <= '9' && *end_of == '\0' && errno == 0 && *value >= min &&
	    *value <= max)
		return CLI_OK;
	cli_fail("capture: %s: '%s' is not a number from %" PRIu64 " to %" PRIu64, option, text,
		 min, max);
	return CLI_USAGE;
}

/* As parse_number(), of seconds. */
static int parse_seconds(const char *option, const char *text, double *value)
{
	char *end_of;

	*value = strtod(text, &end_of);
	if (text[0] >= '0' && text[0] <= '9' && *end_of == '\0' && *value > 0 && *value < 1e9)
		return CLI_OK;
	cli_fail("capture: %s: '%s' is not a number of seconds", option, text);
	return CLI_USAGE;
}

/* Reads the command line. @return CLI_OK; or, with *done set or not CLI_OK, the exit status */
static int parse_options(int argc, char **argv, struct capture_options *o, const char **socket,
			 bool *done)
{
	static const struct option options[] = {
		{"write", required_argument, NULL, 'w'},
		{"device", required_argument, NULL, 'd'},
		{"qp", required_argument, NULL, 'q'},
		{"snaplen", required_argument, NULL, 'n'},
		{"buffer", required_argument, NULL, 'b'},
		{"count", required_argument, NULL, 'c'},
		{"duration", required_argument, NULL, 't'},
		{"quiet", no_argument, NULL, 'Q'},
		{"socket", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	int opt, status = CLI_OK;
	uint64_t value;

	opterr = 0;
	while (status == CLI_OK && (opt = getopt_long(argc, argv, ":w:h", options, NULL)) != -1) {
		switch (opt) {
		case 'w':
			o->file = optarg;
			break;
		case 'd':
			o->device = optarg;
			break;
		case 'q':
			status = parse_number("--qp", optarg, 1, 0xffffff, &value);
			o->qpn = (uint32_t)value;
			break;
		case 'n':
			status = parse_number("--snaplen", optarg, 1, VERNIC_CAPTURE_SNAPLEN,
					      &value);
			o->snaplen = (uint32_t)value;
			break;
		case 'b':
			status = parse_number("--buffer", optarg, 1, VERNIC_CAPTURE_MAX / MIB,
					      &value);
			o->buffer = value * MIB;
			break;
		case 'c':
			status = parse_number("--count", optarg, 1, UINT64_MAX - 1, &o->count);
			break;
		case 't':
			status = parse_seconds("--duration", optarg, &o->duration);
			break;
		case 'Q':
			o->quiet = true;
			break;
		case 's':
			*socket = optarg;
			break;
		case 'h':
			fputs(help, stdout);
			*done = true;
			return CLI_OK;
		default:
			return cli_bad_option("capture", opt, argv);
		}
	}
	if (status != CLI_OK)
		return status;
	if (cli_no_word("capture", argv[optind]) != CLI_OK)
		return CLI_USAGE;
	if (!o->file) {
		cli_fail("capture: no file given: -w FILE (see 'vernic capture --help')");
		return CLI_USAGE;
	}
	if (strcmp(o->file, "-") == 0 && isatty(STDOUT_FILENO)) {
		cli_fail("capture: standard output is a terminal: redirect it, or name a file");
		return CLI_USAGE;
	}
	return CLI_OK;
}

int cli_capture(int argc, char **argv)
{
	struct capture_options o;
	const char *socket = NULL;
	char found[CLI_SOCKET_MAX];
	bool done = false;
	int status, fd;

	capture_defaults(&o);
	status = parse_options(argc, argv, &o, &socket, &done);
	if (status != CLI_OK || done)
		return status;
	if (cli_find_daemon(socket, false, found, &fd) != CLI_OK)
		return CLI_FAILED;
	status = capture_to_file(&o, fd, found);
	close(fd);
	return status;
}
