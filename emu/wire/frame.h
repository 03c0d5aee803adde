/* SPDX-License-Identifier: BSD-2-Clause */
/* What is around a RoCEv2 packet on Ethernet: MAC, IP and UDP headers. Pure. */
#ifndef VERNIC_FRAME_H
#define VERNIC_FRAME_H

#include "wire.h"

#define FRAME_MAX_HEADERS (14 + 40 + 8) /* bytes: Ethernet, IPv6, UDP */
#define FRAME_HOP_LIMIT 64		/* where it is not known */

struct frame {
	struct icrc_address addr;
	uint8_t src_mac[6];
	uint8_t dst_mac[6];
	uint8_t tos;	     /* IPv4 TOS or IPv6 traffic class */
	uint8_t hop_limit;   /* or TTL */
	uint16_t ip_id;	     /* IPv4 identification; DF is set */
	uint32_t flow_label; /* IPv6 */
};

/*
 * The MAC address of a GID, by which it is told apart in a capture: what an EUI-64 was made of,
 * else a locally administered one that holds the last four bytes of the address.
 */
void frame_mac(uint8_t mac[6], const uint8_t gid[16]);

/*
 * Fills in the addresses of both ends; they are IPv4 if both GIDs are.
 * @src_port: UDP, host order
 */
void frame_addresses(struct frame *f, const uint8_t src[16], const uint8_t dst[16],
		     uint16_t src_port);

/*
 * Writes the headers in front of a packet. The UDP checksum is 0 (none) over IPv4; over IPv6, where
 * it must not be, it is not 0 and has no meaning before frame_checksum().
 * @buf: room for FRAME_MAX_HEADERS
 * @len: bytes from the BTH to the ICRC inclusive
 * @return bytes written
 */
size_t frame_encode(uint8_t *buf, const struct frame *f, size_t len);

/*
 * Puts the UDP checksum into a frame over IPv6.
 * @frame, @len: from the Ethernet header to the ICRC, bytes
 */
void frame_checksum(uint8_t *frame, size_t len);

#endif
