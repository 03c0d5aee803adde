/* SPDX-License-Identifier: BSD-2-Clause */
/* The opcode table: what each BTH opcode is, which headers follow it, whether payload may. */
#include "wire.h"

#include <assert.h>

/* Bytes from the BTH to the payload, from the headers the flags name. */
#define HEADER_LEN(f)                                                                    \
	(BTH_LEN + ((f)&OPF_DETH ? DETH_LEN : 0) + ((f)&OPF_RETH ? RETH_LEN : 0) +       \
	 ((f)&OPF_ATOMICETH ? ATOMICETH_LEN : 0) + ((f)&OPF_AETH ? AETH_LEN : 0) +       \
	 ((f)&OPF_ATOMICACKETH ? ATOMICACKETH_LEN : 0) + ((f)&OPF_IMM ? IMMDT_LEN : 0) + \
	 ((f)&OPF_INV ? IETH_LEN : 0) + ((f)&OPF_XRCETH ? XRCETH_LEN : 0) +              \
	 ((f)&OPF_FETH ? FETH_LEN : 0))

#define OPCODE(service, op, k, f)            \
	[WIRE_##service | WIRE_##op] = {     \
		.name = #service " " #op,    \
		.flags = (f),                \
		.kind = KIND_##k,            \
		.header_len = HEADER_LEN(f), \
	}

#define FIRST OPF_FIRST
#define LAST OPF_LAST
#define ONLY (OPF_FIRST | OPF_LAST)

/* What every request of a service has. */
#define REQUEST_RC OPF_REQUEST
#define REQUEST_UC OPF_REQUEST
#define REQUEST_UD OPF_REQUEST
#define REQUEST_XRC (OPF_REQUEST | OPF_XRCETH)
#define DATA(service) (OPF_PAYLOAD | REQUEST_##service)

/* What all connected services share: SEND and RDMA WRITE. */
#define SEND_AND_WRITE(service)                                                         \
	OPCODE(service, SEND_FIRST, SEND, DATA(service) | FIRST),                       \
		OPCODE(service, SEND_MIDDLE, SEND, DATA(service)),                      \
		OPCODE(service, SEND_LAST, SEND, DATA(service) | LAST),                 \
		OPCODE(service, SEND_LAST_IMM, SEND, DATA(service) | LAST | OPF_IMM),   \
		OPCODE(service, SEND_ONLY, SEND, DATA(service) | ONLY),                 \
		OPCODE(service, SEND_ONLY_IMM, SEND, DATA(service) | ONLY | OPF_IMM),   \
		OPCODE(service, WRITE_FIRST, WRITE, DATA(service) | FIRST | OPF_RETH),  \
		OPCODE(service, WRITE_MIDDLE, WRITE, DATA(service)),                    \
		OPCODE(service, WRITE_LAST, WRITE, DATA(service) | LAST),               \
		OPCODE(service, WRITE_LAST_IMM, WRITE, DATA(service) | LAST | OPF_IMM), \
		OPCODE(service, WRITE_ONLY, WRITE, DATA(service) | ONLY | OPF_RETH),    \
		OPCODE(service, WRITE_ONLY_IMM, WRITE, DATA(service) | ONLY | OPF_RETH | OPF_IMM)

/* And what the reliable ones have beyond that. */
#define RELIABLE(service)                                                                          \
	OPCODE(service, READ_REQUEST, READ_REQUEST, REQUEST_##service | ONLY | OPF_RETH),          \
		OPCODE(service, READ_RESPONSE_FIRST, READ_RESPONSE,                                \
		       OPF_PAYLOAD | FIRST | OPF_AETH),                                            \
		OPCODE(service, READ_RESPONSE_MIDDLE, READ_RESPONSE, OPF_PAYLOAD),                 \
		OPCODE(service, READ_RESPONSE_LAST, READ_RESPONSE, OPF_PAYLOAD | LAST | OPF_AETH), \
		OPCODE(service, READ_RESPONSE_ONLY, READ_RESPONSE, OPF_PAYLOAD | ONLY | OPF_AETH), \
		OPCODE(service, ACKNOWLEDGE, ACK, ONLY | OPF_AETH),                                \
		OPCODE(service, ATOMIC_ACKNOWLEDGE, ATOMIC_ACK,                                    \
		       ONLY | OPF_AETH | OPF_ATOMICACKETH),                                        \
		OPCODE(service, COMPARE_SWAP, COMPARE_SWAP,                                        \
		       REQUEST_##service | ONLY | OPF_ATOMICETH),                                  \
		OPCODE(service, FETCH_ADD, FETCH_ADD, REQUEST_##service | ONLY | OPF_ATOMICETH),   \
		OPCODE(service, SEND_LAST_INV, SEND, DATA(service) | LAST | OPF_INV),              \
		OPCODE(service, SEND_ONLY_INV, SEND, DATA(service) | ONLY | OPF_INV),              \
		OPCODE(service, FLUSH, FLUSH, REQUEST_##service | ONLY | OPF_FETH | OPF_RETH),     \
		OPCODE(service, ATOMIC_WRITE, ATOMIC_WRITE, DATA(service) | ONLY | OPF_RETH)

/* A congestion notification: its 16 reserved bytes count as a header (IBTA A17.9.3). */
#define CNP_OPCODE 0x81
#define CNP_LEN (BTH_LEN + CNP_RESERVED_LEN)

const struct wire_opcode wire_opcodes[256] = {
	SEND_AND_WRITE(RC),
	RELIABLE(RC),

	SEND_AND_WRITE(UC),

	OPCODE(UD, SEND_ONLY, SEND, DATA(UD) | ONLY | OPF_DETH),
	OPCODE(UD, SEND_ONLY_IMM, SEND, DATA(UD) | ONLY | OPF_DETH | OPF_IMM),

	SEND_AND_WRITE(XRC),
	RELIABLE(XRC),

	[CNP_OPCODE] = {.name = "CNP", .flags = ONLY, .kind = KIND_CNP, .header_len = CNP_LEN},
};

static_assert(HEADER_LEN(ONLY | OPF_RETH | OPF_IMM) == 32, "WRITE Only with immediate");
static_assert(HEADER_LEN(OPF_ATOMICETH) <= WIRE_MAX_HEADERS, "room for every header");
static_assert(CNP_LEN <= WIRE_MAX_HEADERS, "room for a CNP");

/* The operation of a kind and its place, 1 more: the same in every service. 0: there is none. */
#define IMM OPF_IMM
#define INV OPF_INV
#define PLACE (OPF_FIRST | OPF_LAST | OPF_IMM | OPF_INV)
static_assert(PLACE == 15, "an index");

static const uint8_t operations[KIND_COUNT][PLACE + 1] = {
	[KIND_SEND] = {
		[FIRST] = WIRE_SEND_FIRST + 1,
		[0] = WIRE_SEND_MIDDLE + 1,
		[LAST] = WIRE_SEND_LAST + 1,
		[LAST | IMM] = WIRE_SEND_LAST_IMM + 1,
		[LAST | INV] = WIRE_SEND_LAST_INV + 1,
		[ONLY] = WIRE_SEND_ONLY + 1,
		[ONLY | IMM] = WIRE_SEND_ONLY_IMM + 1,
		[ONLY | INV] = WIRE_SEND_ONLY_INV + 1,
	},
	[KIND_WRITE] = {
		[FIRST] = WIRE_WRITE_FIRST + 1,
		[0] = WIRE_WRITE_MIDDLE + 1,
		[LAST] = WIRE_WRITE_LAST + 1,
		[LAST | IMM] = WIRE_WRITE_LAST_IMM + 1,
		[ONLY] = WIRE_WRITE_ONLY + 1,
		[ONLY | IMM] = WIRE_WRITE_ONLY_IMM + 1,
	},
	[KIND_READ_RESPONSE] = {
		[FIRST] = WIRE_READ_RESPONSE_FIRST + 1,
		[0] = WIRE_READ_RESPONSE_MIDDLE + 1,
		[LAST] = WIRE_READ_RESPONSE_LAST + 1,
		[ONLY] = WIRE_READ_RESPONSE_ONLY + 1,
	},
	/* Messages of one packet: their place needs no saying. */
	[KIND_READ_REQUEST] = {WIRE_READ_REQUEST + 1},
	[KIND_ACK] = {WIRE_ACKNOWLEDGE + 1},
	[KIND_ATOMIC_ACK] = {WIRE_ATOMIC_ACKNOWLEDGE + 1},
	[KIND_COMPARE_SWAP] = {WIRE_COMPARE_SWAP + 1},
	[KIND_FETCH_ADD] = {WIRE_FETCH_ADD + 1},
	[KIND_FLUSH] = {WIRE_FLUSH + 1},
	[KIND_ATOMIC_WRITE] = {WIRE_ATOMIC_WRITE + 1},
	[KIND_CNP] = {(CNP_OPCODE & 0x1f) + 1},
};

int wire_opcode_for(unsigned service, unsigned kind, unsigned flags)
{
	unsigned place = flags & PLACE, opcode;

	if (kind >= KIND_COUNT)
		return -1;
	if (kind != KIND_SEND && kind != KIND_WRITE && kind != KIND_READ_RESPONSE)
		place &= ~(unsigned)ONLY;
	if (operations[kind][place] == 0)
		return -1;
	opcode = (service & 0xe0) | (operations[kind][place] - 1u);
	return wire_opcodes[opcode].kind == kind ? (int)opcode : -1;
}
