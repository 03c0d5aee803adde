/* SPDX-License-Identifier: BSD-2-Clause */
/* Encoding and decoding of the BTH and its extended headers (IBTA vol. 1, chapter 9). */
#include "wire.h"

#include <errno.h>
#include <string.h>

#include "bytes.h"

/* BTH byte 1 */
#define BTH_SOLICITED 0x80
#define BTH_MIGREQ 0x40
#define BTH_PAD_SHIFT 4
#define BTH_TVER 0x0f
/* BTH byte 4 */
#define BTH_FECN 0x80
#define BTH_BECN 0x40
/* BTH byte 8 */
#define BTH_ACKREQ 0x80
/* FETH byte 3 */
#define FETH_TYPE 0x0f
#define FETH_LEVEL 0x30
#define FETH_LEVEL_SHIFT 4

int wire_decode(const uint8_t *data, size_t len, struct wire_packet *pkt)
{
	const struct wire_opcode *op;
	const uint8_t *p = data + BTH_LEN;
	size_t body;

	if (len < BTH_LEN + ICRC_LEN)
		return -EBADMSG;
	op = &wire_opcodes[data[0]];
	if (!op->name || len < op->header_len + (size_t)ICRC_LEN || (data[1] & BTH_TVER) != 0)
		return -EBADMSG;

	memset(pkt, 0, sizeof(*pkt));
	pkt->opcode = data[0];
	pkt->solicited = data[1] & BTH_SOLICITED;
	pkt->pad = data[1] >> BTH_PAD_SHIFT & 3;
	pkt->pkey = get16(data + 2);
	pkt->fecn = data[4] & BTH_FECN;
	pkt->becn = data[4] & BTH_BECN;
	pkt->dest_qpn = get24(data + 5);
	pkt->ackreq = data[8] & BTH_ACKREQ;
	pkt->psn = get24(data + 9);

	/* Payload and pad come in words of 4 bytes (IBTA 9.2.2). */
	body = len - op->header_len - ICRC_LEN;
	if (body % 4 != 0 || pkt->pad > body || (body != 0 && !(op->flags & OPF_PAYLOAD)))
		return -EBADMSG;
	pkt->payload_off = op->header_len;
	pkt->payload_len = (uint32_t)(body - pkt->pad);

	if (op->flags & OPF_DETH) {
		pkt->deth.qkey = get32(p);
		pkt->deth.src_qpn = get24(p + 5);
		p += DETH_LEN;
	}
	if (op->flags & OPF_XRCETH) {
		pkt->xrc_srqn = get24(p + 1);
		p += XRCETH_LEN;
	}
	if (op->flags & OPF_FETH) {
		pkt->feth.type = p[3] & FETH_TYPE;
		pkt->feth.level = (p[3] & FETH_LEVEL) >> FETH_LEVEL_SHIFT;
		p += FETH_LEN;
	}
	if (op->flags & OPF_RETH) {
		pkt->reth.va = get64(p);
		pkt->reth.rkey = get32(p + 8);
		pkt->reth.length = get32(p + 12);
		p += RETH_LEN;
	}
	if (op->flags & OPF_ATOMICETH) {
		pkt->atomic.va = get64(p);
		pkt->atomic.rkey = get32(p + 8);
		pkt->atomic.swap_add = get64(p + 12);
		pkt->atomic.compare = get64(p + 20);
		p += ATOMICETH_LEN;
	}
	if (op->flags & OPF_AETH) {
		pkt->aeth.syndrome = p[0];
		pkt->aeth.msn = get24(p + 1);
		p += AETH_LEN;
	}
	if (op->flags & OPF_ATOMICACKETH) {
		pkt->atomic_orig = get64(p);
		p += ATOMICACKETH_LEN;
	}
	if (op->flags & OPF_IMM)
		memcpy(&pkt->imm, p, IMMDT_LEN);
	if (op->flags & OPF_INV)
		pkt->imm = get32(p);
	return 0;
}

size_t wire_encode(uint8_t *buf, const struct wire_packet *pkt)
{
	const struct wire_opcode *op = &wire_opcodes[pkt->opcode];
	uint8_t *p = buf + BTH_LEN;

	buf[0] = pkt->opcode;
	buf[1] = (uint8_t)((pkt->solicited ? BTH_SOLICITED : 0) | BTH_MIGREQ |
			   (pkt->pad & 3) << BTH_PAD_SHIFT);
	put16(buf + 2, pkt->pkey);
	buf[4] = (uint8_t)((pkt->fecn ? BTH_FECN : 0) | (pkt->becn ? BTH_BECN : 0));
	put24(buf + 5, pkt->dest_qpn);
	buf[8] = pkt->ackreq ? BTH_ACKREQ : 0;
	put24(buf + 9, pkt->psn);

	if (op->flags & OPF_DETH) {
		put32(p, pkt->deth.qkey);
		p[4] = 0;
		put24(p + 5, pkt->deth.src_qpn);
		p += DETH_LEN;
	}
	if (op->flags & OPF_XRCETH) {
		put32(p, pkt->xrc_srqn & QPN_MASK);
		p += XRCETH_LEN;
	}
	if (op->flags & OPF_FETH) {
		put32(p, (pkt->feth.type & FETH_TYPE) |
				 (pkt->feth.level << FETH_LEVEL_SHIFT & FETH_LEVEL));
		p += FETH_LEN;
	}
	if (op->flags & OPF_RETH) {
		put64(p, pkt->reth.va);
		put32(p + 8, pkt->reth.rkey);
		put32(p + 12, pkt->reth.length);
		p += RETH_LEN;
	}
	if (op->flags & OPF_ATOMICETH) {
		put64(p, pkt->atomic.va);
		put32(p + 8, pkt->atomic.rkey);
		put64(p + 12, pkt->atomic.swap_add);
		put64(p + 20, pkt->atomic.compare);
		p += ATOMICETH_LEN;
	}
	if (op->flags & OPF_AETH) {
		p[0] = pkt->aeth.syndrome;
		put24(p + 1, pkt->aeth.msn);
		p += AETH_LEN;
	}
	if (op->flags & OPF_ATOMICACKETH) {
		put64(p, pkt->atomic_orig);
		p += ATOMICACKETH_LEN;
	}
	if (op->flags & OPF_IMM) {
		memcpy(p, &pkt->imm, IMMDT_LEN);
		p += IMMDT_LEN;
	}
	if (op->flags & OPF_INV) {
		put32(p, pkt->imm);
		p += IETH_LEN;
	}
	/* What is left is reserved (CNP). */
	memset(p, 0, (size_t)(buf + op->header_len - p));
	return op->header_len;
}
