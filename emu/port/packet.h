/* SPDX-License-Identifier: BSD-2-Clause */
/* The packets a train is cut into. Pure. */
#ifndef VERNIC_PORT_PACKET_H
#define VERNIC_PORT_PACKET_H

#include "../transport/engine.h"

/* What a port knows about the packets of a train it has taken. */
struct packet_fate {
	uint8_t hop_limit;
	uint32_t sent; /* packets; what is behind them found no send buffer */
	uint16_t ip_id[256]; /* of each packet: IPv4 identification */
};

/* @return whether a train can be cut: count and payload fit its MTU */
bool packet_train_sane(const struct train *t);

/* Fills in what all packets of a train have in common. */
void packet_train_headers(const struct train *t, struct wire_packet *pkt);

/*
 * Fills in the rest for packet i of a train.
 * @pkt: went through packet_train_headers(), and may be that of the packet before
 * @return 0, or -EINVAL: the service has no such operation, or it is larger than any MTU
 */
int packet_headers(const struct train *t, uint32_t i, struct wire_packet *pkt);

/* @return bytes of a packet from the BTH to the ICRC inclusive */
static inline uint32_t packet_len(const struct wire_packet *pkt)
{
	return wire_opcodes[pkt->opcode].header_len + pkt->payload_len + pkt->pad + ICRC_LEN;
}

#endif
