/* SPDX-License-Identifier: BSD-2-Clause */
/* The packets a train is cut into, and the train that packets make. Pure. */
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

/*
 * The way back: what a packet says that is the first of its train. Path, MTU, count and payload are
 * the caller's, and so is the sender where the packet does not name it.
 */
static inline void packet_begins(struct train *t, const struct wire_packet *pkt)
{
	const struct wire_opcode *op = &wire_opcodes[pkt->opcode];
	bool atomic = op->flags & OPF_ATOMICETH;

	t->dst_qpn = pkt->dest_qpn;
	t->service = pkt->opcode & 0xe0;
	t->kind = op->kind;
	t->first = op->flags & OPF_FIRST;
	t->pkey = pkt->pkey;
	t->psn = pkt->psn;
	t->reth.va = atomic ? pkt->atomic.va : pkt->reth.va;
	t->reth.rkey = atomic ? pkt->atomic.rkey : pkt->reth.rkey;
	t->reth.length = pkt->reth.length;
	t->xrc_srqn = pkt->xrc_srqn;
	t->flush.type = pkt->feth.type;
	t->flush.level = pkt->feth.level;
	t->atomic.swap_add = pkt->atomic.swap_add;
	t->atomic.compare = pkt->atomic.compare;
	t->atomic_orig = pkt->atomic_orig;
	if (op->flags & OPF_DETH) {
		t->qkey = pkt->deth.qkey;
		t->src_qpn = pkt->deth.src_qpn;
	}
	t->ackreq = false;
}

/* And what it says as the last one so far. */
static inline void packet_ends(struct train *t, const struct wire_packet *pkt)
{
	const struct wire_opcode *op = &wire_opcodes[pkt->opcode];

	t->last = op->flags & OPF_LAST;
	t->imm = op->flags & OPF_IMM;
	t->inv = op->flags & OPF_INV;
	t->imm_data = pkt->imm;
	t->solicited = pkt->solicited;
	t->ackreq |= pkt->ackreq; /* one ACK, for the last packet, answers all */
	if (op->flags & OPF_AETH) {
		t->aeth.syndrome = pkt->aeth.syndrome;
		t->aeth.msn = pkt->aeth.msn;
	}
}

#endif
