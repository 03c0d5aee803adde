/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A peer on the wire itself, without a NIC: packets by hand from a UDP socket to a device that has
 * an address, and what comes back.
 */
#ifndef VERNIC_TEST_VERBS_PEER_H
#define VERNIC_TEST_VERBS_PEER_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"
#include "wire/wire.h"

#define PEER_PACKET 8192 /* bytes of the longest packet, its ICRC included */

struct peer {
	int fd; /* at its address, port 4791 */
	struct sockaddr_in to;
	struct icrc_address icrc;
	union ibv_gid gid; /* its own */
};

/* A packet that came. */
struct peer_packet {
	struct wire_packet pkt;
	uint8_t data[PEER_PACKET];
	size_t len; /* bytes */
};

static inline union ibv_gid gid_of(const char *address)
{
	union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};

	CHECK_EQ(inet_pton(AF_INET, address, gid.raw + 12), 1);
	return gid;
}

/* @own: the peer's address, @device: that of the device it talks to */
static inline void peer_open(struct peer *p, const char *own, const char *device)
{
	struct sockaddr_in from = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
	int discover = IP_PMTUDISC_DO;

	*p = (struct peer){.gid = gid_of(own)};
	p->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(p->fd >= 0);
	CHECK_EQ(setsockopt(p->fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof(discover)), 0);
	from.sin_addr.s_addr = inet_addr(own);
	CHECK_EQ(bind(p->fd, (struct sockaddr *)&from, sizeof(from)), 0);
	p->to = from;
	p->to.sin_addr.s_addr = inet_addr(device);
	p->icrc.src_port = p->icrc.dst_port = ROCE_UDP_PORT;
	memcpy(p->icrc.src, &from.sin_addr, 4);
	memcpy(p->icrc.dst, &p->to.sin_addr, 4);
}

/* Sends bytes as they are. */
static inline void peer_send_raw(struct peer *p, const uint8_t *data, size_t len)
{
	sendto(p->fd, data, len, MSG_DONTWAIT, (struct sockaddr *)&p->to, sizeof(p->to));
}

/*
 * Sends a packet with its ICRC.
 * @data, @len: from the BTH to the pad, with room for the ICRC behind it
 * @change: what the ICRC is changed by; 0: it is right
 */
static inline void peer_send(struct peer *p, uint8_t *data, size_t len, uint32_t change)
{
	uint32_t icrc = icrc_compute(&p->icrc, 0, data, len) ^ change;

	for (int i = 0; i < ICRC_LEN; i++)
		data[len + (size_t)i] = (uint8_t)(icrc >> 8 * i);
	peer_send_raw(p, data, len + ICRC_LEN);
}

/* Waits for the next packet, which must be a good one. @return false if none came in ms */
static inline bool peer_receive(struct peer *p, struct peer_packet *in, int ms)
{
	struct icrc_address back = p->icrc;
	struct pollfd ready = {.fd = p->fd, .events = POLLIN};
	ssize_t n;

	if (poll(&ready, 1, ms) == 0)
		return false;
	n = recv(p->fd, in->data, sizeof(in->data), 0);
	CHECK(n >= BTH_LEN + ICRC_LEN);
	in->len = (size_t)n;
	memcpy(back.src, p->icrc.dst, sizeof(back.src));
	memcpy(back.dst, p->icrc.src, sizeof(back.dst));
	CHECK(icrc_check(&back, 0, in->data, in->len));
	CHECK_EQ(wire_decode(in->data, in->len, &in->pkt), 0);
	return true;
}

#endif
