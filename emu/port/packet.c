/* SPDX-License-Identifier: BSD-2-Clause */
/* From trains to packets. */
#include "packet.h"

#include <errno.h>
#include <string.h>

bool packet_train_sane(const struct train *t)
{
	return t->count != 0 &&
	       (t->count == 1 || t->payload.len >= (uint64_t)t->mtu * (t->count - 1));
}

void packet_train_headers(const struct train *t, struct wire_packet *pkt)
{
	memset(pkt, 0, sizeof(*pkt));
	pkt->pkey = t->pkey;
	pkt->dest_qpn = t->dst_qpn;
	pkt->reth.va = pkt->atomic.va = t->reth.va;
	pkt->reth.rkey = pkt->atomic.rkey = t->reth.rkey;
	pkt->reth.length = t->reth.length;
	pkt->xrc_srqn = t->xrc_srqn;
	pkt->feth.type = t->flush.type;
	pkt->feth.level = t->flush.level;
	pkt->atomic.swap_add = t->atomic.swap_add;
	pkt->atomic.compare = t->atomic.compare;
	pkt->aeth.syndrome = t->aeth.syndrome;
	pkt->aeth.msn = t->aeth.msn;
	pkt->atomic_orig = t->atomic_orig;
	pkt->deth.qkey = t->qkey;
	pkt->deth.src_qpn = t->src_qpn;
	pkt->imm = t->imm_data;
	pkt->becn = t->kind == KIND_CNP;
}

int packet_headers(const struct train *t, uint32_t i, struct wire_packet *pkt)
{
	bool last = i == t->count - 1;
	unsigned int flags = i == 0 && t->first ? OPF_FIRST : 0;
	int opcode;

	if (last) {
		flags |= (t->last ? OPF_LAST : 0) | (t->imm ? OPF_IMM : 0) | (t->inv ? OPF_INV : 0);
		pkt->solicited = t->solicited;
		pkt->ackreq = t->ackreq;
	}
	opcode = wire_opcode_for(t->service, t->kind, flags);
	if (opcode < 0)
		return -EINVAL;
	pkt->opcode = (uint8_t)opcode;
	pkt->psn = psn_add(t->psn, i);
	pkt->payload_len = last ? t->payload.len - t->mtu * i : t->mtu;
	pkt->pad = -pkt->payload_len & 3;
	return pkt->payload_len > WIRE_MAX_MTU ? -EINVAL : 0;
}
