// SPDX-License-Identifier: BSD-2-Clause
/*
 * A switch with slow ports: forwards frames between two interfaces, each way at a rate, from a
 *queue of limited length; marks IP packets that are capable of it (ECT) when the queue is longer
 *than asked. Ends on SIGTERM and prints what it did.
 *
 *	slow_switch INTERFACE INTERFACE MBIT QUEUE-BYTES MARK-BYTES
 */
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <arpa/inet.h>
#include <time.h>
#include <unistd.h>

#define MAX_FRAME 2048
#define SLOTS 8192 /* frames a queue has room for */

struct queue {
	int from, to;
	uint32_t head, tail; /* free-running */
	uint64_t free_at;    /* ns: when the line is free */
	struct {
		uint64_t leave; /* ns */
		uint32_t len;
		uint8_t data[MAX_FRAME];
	} * slot;
};

static uint64_t mbit, queue_bytes, mark_bytes;
static unsigned long forwarded, marked, dropped;

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void fail(const char *what)
{
	fprintf(stderr, "slow_switch: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int open_port(const char *name)
{
	struct sockaddr_ll a = {.sll_family = AF_PACKET,
				.sll_protocol = htons(ETH_P_ALL),
				.sll_ifindex = (int)if_nametoindex(name)};
	struct packet_mreq promisc = {.mr_ifindex = a.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int size = 64 << 20;

	if (fd < 0 || a.sll_ifindex == 0)
		fail(name);
	/* What is lost shall be lost in the queue. */
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) != 0)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 ||
	    setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promisc, sizeof(promisc)) != 0)
		fail(name);
	return fd;
}

/* Marks a frame, if it is an IP packet with ECT. @return whether it did */
static bool mark(uint8_t *frame, uint32_t len)
{
	uint8_t *ip = frame + ETH_HLEN;

	if (len < ETH_HLEN + 40)
		return false;
	if (frame[12] == 8 && frame[13] == 0) {
		uint32_t sum = 0;

		if ((ip[1] & 3) == 0 || (ip[1] & 3) == 3)
			return false;
		ip[1] |= 3;
		ip[10] = ip[11] = 0;
		for (int i = 0; i < (ip[0] & 15) * 4; i += 2)
			sum += (uint32_t)ip[i] << 8 | ip[i + 1];
		sum = (sum & 0xffff) + (sum >> 16);
		sum += sum >> 16;
		ip[10] = (uint8_t)(~sum >> 8);
		ip[11] = (uint8_t)~sum;
		return true;
	}
	if (frame[12] == 0x86 && frame[13] == 0xdd) {
		if ((ip[1] >> 4 & 3) == 0 || (ip[1] >> 4 & 3) == 3)
			return false;
		ip[1] |= 0x30;
		return true;
	}
	return false;
}

/* Takes in all frames that have arrived. */
static void take(struct queue *q)
{
	for (;;) {
		struct sockaddr_ll from;
		socklen_t from_len = sizeof(from);
		uint8_t *data = q->slot[q->tail % SLOTS].data;
		ssize_t n = recvfrom(q->from, data, MAX_FRAME, MSG_TRUNC, (struct sockaddr *)&from,
				     &from_len);
		uint64_t now = now_ns(), waiting;

		if (n < 0)
			return;
		if (from.sll_pkttype == PACKET_OUTGOING)
			continue;
		if (q->free_at < now)
			q->free_at = now;
		waiting = (q->free_at - now) * mbit / 8000;
		if (n > MAX_FRAME || waiting + (uint64_t)n > queue_bytes ||
		    q->tail + 1 - q->head == SLOTS) {
			dropped++;
			continue;
		}
		if (waiting > mark_bytes && mark(data, (uint32_t)n))
			marked++;
		q->free_at += (uint64_t)n * 8000 / mbit;
		q->slot[q->tail % SLOTS].len = (uint32_t)n;
		q->slot[q->tail++ % SLOTS].leave = q->free_at;
	}
}

/* Sends what is due. @return when the next frame is, ns */
static uint64_t give(struct queue *q)
{
	uint64_t now = now_ns();

	for (; q->head != q->tail && q->slot[q->head % SLOTS].leave <= now; q->head++) {
		if (send(q->to, q->slot[q->head % SLOTS].data, q->slot[q->head % SLOTS].len, 0) < 0)
			dropped++;
		else
			forwarded++;
	}
	return q->head != q->tail ? q->slot[q->head % SLOTS].leave : UINT64_MAX;
}

int main(int argc, char **argv)
{
	struct queue queue[2] = {0};
	struct pollfd pfd[3];
	sigset_t set;

	if (argc != 6) {
		fputs("usage: slow_switch INTERFACE INTERFACE MBIT QUEUE-BYTES MARK-BYTES\n",
		      stderr);
		return 2;
	}
	mbit = strtoull(argv[3], NULL, 10);
	queue_bytes = strtoull(argv[4], NULL, 10);
	mark_bytes = strtoull(argv[5], NULL, 10);
	for (int i = 0; i < 2; i++) {
		queue[i].from = queue[!i].to = open_port(argv[1 + i]);
		queue[i].slot = calloc(SLOTS, sizeof(*queue[i].slot));
		if (!queue[i].slot || mbit == 0)
			fail("start");
		pfd[i] = (struct pollfd){.fd = queue[i].from, .events = POLLIN};
	}
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	pfd[2] = (struct pollfd){.fd = signalfd(-1, &set, 0), .events = POLLIN};
	puts("ready");
	fflush(stdout);
	while (pfd[2].revents == 0) {
		uint64_t next = UINT64_MAX, now;
		struct timespec wait = {.tv_sec = 1};

		for (int i = 0; i < 2; i++) {
			uint64_t due;

			take(&queue[i]);
			due = give(&queue[i]);
			next = due < next ? due : next;
		}
		now = now_ns();
		if (next < now + 1000000000u)
			wait = (struct timespec){.tv_nsec = next > now ? (long)(next - now) : 0};
		if (ppoll(pfd, 3, &wait, NULL) < 0)
			fail("poll");
	}
	printf("forwarded %lu marked %lu dropped %lu\n", forwarded, marked, dropped);
	return 0;
}
