/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The UDP port with an io that has no sockets: a target hands datagrams in and gets to see those
 * sent. The port itself is the product's, taken in as a whole because a socket of its list is made
 * here by hand.
 */
#ifndef VERNIC_TEST_FUZZ_PORT_H
#define VERNIC_TEST_FUZZ_PORT_H

#include <limits.h>

#include "port/udp.c"

#include "fuzz.h"

#define PORT_BUFFERS 32

struct io {
	void (*sent)(struct io *io, const uint8_t *data, uint32_t len, uint32_t segment);
	const struct io_datagram *arrived;
	uint32_t used;
	uint8_t *buffer[PORT_BUFFERS];
};

unsigned int io_tx_available(const struct io *io)
{
	return PORT_BUFFERS - io->used;
}

uint8_t *io_tx_buffer(struct io *io)
{
	return io->used < PORT_BUFFERS ? io->buffer[io->used++] : NULL;
}

void io_send(struct io *io, int fd, uint8_t *buffer, uint32_t len, uint32_t segment, uint8_t tos,
	     const union io_address *to)
{
	CHECK(len <= IO_TX_BUFFER);
	if (len)
		io->sent(io, buffer, len, segment);
}

bool io_segments(const struct io *io)
{
	return true;
}

unsigned int io_receive(struct io *io, io_receive_fn fn, void *arg)
{
	fn(arg, io->arrived);
	return 1;
}

int io_add_socket(struct io *io, int fd, void *socket_ctx)
{
	return 0;
}

void io_remove_socket(struct io *io, int fd)
{
}

/* Nobody captures. */
void capture_received(struct capture_set *c, const struct device *dev, uint32_t qpn,
		      const struct frame *frame, const uint8_t *data, uint32_t len,
		      const char *comment)
{
	abort();
}

/* Makes a port with one socket, of a device and its address. @rx: gets what arrives */
static inline struct udp_port *port_make(struct io *io, struct engine *e, udp_port_rx_fn rx,
					 const struct device *dev, const uint8_t gid[16])
{
	struct udp_port *p;
	struct udp_socket *s;

	for (unsigned int i = 0; i < PORT_BUFFERS; i++) {
		io->buffer[i] = malloc(IO_TX_BUFFER);
		CHECK(io->buffer[i]);
	}
	p = udp_port_create(io, e, rx, NULL);
	CHECK(p);
	s = &p->sockets[p->socket_count++];
	*s = (struct udp_socket){
		.fd = INT_MAX, .ipv6 = !gid_is_ipv4(gid), .dev = dev, .window = MAX_WINDOW};
	memcpy(s->gid, gid, sizeof(s->gid));
	s->local.ipv6 = s->ipv6;
	s->local.src_port = s->local.dst_port = ROCE_UDP_PORT;
	icrc_address_bytes(s->local.src, gid, s->ipv6);
	return p;
}

/* What was sent so far leaves; its buffers are free again. */
static inline void port_flush(struct udp_port *p)
{
	udp_port_flush(p);
	p->io->used = 0;
}

/* The addresses of a packet from the socket's own address to it. */
static inline struct icrc_address port_addresses(const struct udp_port *p)
{
	struct icrc_address a = p->sockets[0].local;

	memcpy(a.dst, a.src, sizeof(a.dst));
	return a;
}

/* Writes the ICRC of a packet behind its len bytes. */
static inline void port_seal(const struct udp_port *p, uint16_t id, uint8_t *data, size_t len)
{
	struct icrc_address a = port_addresses(p);
	uint32_t icrc = icrc_compute(&a, id, data, len);

	for (unsigned int k = 0; k < ICRC_LEN; k++)
		data[len + k] = (uint8_t)(icrc >> 8 * k);
}

/* A datagram arrives, from the socket's own address. @segment: bytes of each packet but the last */
static inline void port_receive(struct udp_port *p, const uint8_t *data, uint32_t len,
				uint32_t segment)
{
	struct io_datagram d = {
		.socket_ctx = &p->sockets[0], .data = data, .len = len, .segment = segment};

	address_from_gid(&d.from, p->sockets[0].gid, 0);
	p->io->arrived = &d;
	udp_port_receive(p);
}

#endif
