/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * RoCEv2 on the wire: BTH and its extended headers, the opcode table, encoding, decoding. Pure:
 * bytes in, structs out.
 */
#ifndef VERNIC_WIRE_H
#define VERNIC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ROCE_UDP_PORT 4791
#define PSN_MASK 0xffffffu
#define QPN_MASK 0xffffffu
#define QPN_MULTICAST 0xffffffu

/* Bytes of each header (IBTA vol. 1, chapter 9). */
#define BTH_LEN 12
#define DETH_LEN 8
#define RETH_LEN 16
#define ATOMICETH_LEN 28
#define AETH_LEN 4
#define ATOMICACKETH_LEN 8
#define IMMDT_LEN 4
#define IETH_LEN 4
#define XRCETH_LEN 4 /* behind the BTH of every XRC request (IBTA A14) */
#define FETH_LEN 4   /* in front of the RETH of a FLUSH (IBTA A19) */
#define ICRC_LEN 4
#define CNP_RESERVED_LEN 16 /* behind the BTH of a CNP (IBTA A17.9.3) */
#define WIRE_MAX_HEADERS (BTH_LEN + ATOMICETH_LEN + IMMDT_LEN + DETH_LEN)
#define ATOMIC_WRITE_LEN 8 /* bytes of payload, no more and no less */
#define WIRE_MAX_MTU 4096

/* BTH opcode, bits 7..5: the transport service. */
enum wire_service {
	WIRE_RC = 0x00,
	WIRE_UC = 0x20,
	WIRE_RD = 0x40,
	WIRE_UD = 0x60,
	WIRE_CNP = 0x80,
	WIRE_XRC = 0xa0,
};

/* BTH opcode, bits 4..0: the operation. */
enum wire_op {
	WIRE_SEND_FIRST = 0x00,
	WIRE_SEND_MIDDLE = 0x01,
	WIRE_SEND_LAST = 0x02,
	WIRE_SEND_LAST_IMM = 0x03,
	WIRE_SEND_ONLY = 0x04,
	WIRE_SEND_ONLY_IMM = 0x05,
	WIRE_WRITE_FIRST = 0x06,
	WIRE_WRITE_MIDDLE = 0x07,
	WIRE_WRITE_LAST = 0x08,
	WIRE_WRITE_LAST_IMM = 0x09,
	WIRE_WRITE_ONLY = 0x0a,
	WIRE_WRITE_ONLY_IMM = 0x0b,
	WIRE_READ_REQUEST = 0x0c,
	WIRE_READ_RESPONSE_FIRST = 0x0d,
	WIRE_READ_RESPONSE_MIDDLE = 0x0e,
	WIRE_READ_RESPONSE_LAST = 0x0f,
	WIRE_READ_RESPONSE_ONLY = 0x10,
	WIRE_ACKNOWLEDGE = 0x11,
	WIRE_ATOMIC_ACKNOWLEDGE = 0x12,
	WIRE_COMPARE_SWAP = 0x13,
	WIRE_FETCH_ADD = 0x14,
	WIRE_SEND_LAST_INV = 0x16,
	WIRE_SEND_ONLY_INV = 0x17,
	WIRE_FLUSH = 0x1c,
	WIRE_ATOMIC_WRITE = 0x1d,
};

/* What a packet belongs to: the operation without its place in the message. */
enum wire_kind {
	KIND_NONE,
	KIND_SEND,
	KIND_WRITE,
	KIND_READ_REQUEST,
	KIND_READ_RESPONSE,
	KIND_ACK,
	KIND_ATOMIC_ACK,
	KIND_COMPARE_SWAP,
	KIND_FETCH_ADD,
	KIND_FLUSH,
	KIND_ATOMIC_WRITE,
	KIND_CNP, /* congestion notification */
	KIND_COUNT
};

/* Properties of an opcode, from the one table. */
enum wire_opcode_flags {
	OPF_FIRST = 1 << 0, /* begins a message (Only: both) */
	OPF_LAST = 1 << 1,  /* ends a message */
	OPF_IMM = 1 << 2,
	OPF_INV = 1 << 3,
	OPF_RETH = 1 << 4,
	OPF_AETH = 1 << 5,
	OPF_DETH = 1 << 6,
	OPF_ATOMICETH = 1 << 7,
	OPF_ATOMICACKETH = 1 << 8,
	OPF_PAYLOAD = 1 << 9,  /* may carry payload */
	OPF_REQUEST = 1 << 10, /* goes to the responder; else to the completer */
	OPF_XRCETH = 1 << 11,
	OPF_FETH = 1 << 12,
};

struct wire_opcode {
	const char *name;	/* NULL: not defined */
	uint16_t flags;		/* enum wire_opcode_flags */
	uint8_t kind;		/* enum wire_kind */
	uint8_t header_len;	/* bytes from BTH to payload */
};

/* Indexed by the BTH opcode. */
extern const struct wire_opcode wire_opcodes[256];

/*
 * The BTH opcode of a packet.
 * @service: enum wire_service
 * @kind: enum wire_kind
 * @flags: OPF_FIRST, OPF_LAST, OPF_IMM, OPF_INV as they apply
 * @return the opcode, or -1 where the service has none such
 */
int wire_opcode_for(unsigned service, unsigned kind, unsigned flags);

/* The headers of one packet, decoded: fields in host order, GIDs as bytes. */
struct wire_packet {
	uint8_t opcode;
	bool solicited;
	bool ackreq;
	bool fecn; /* BTH resv8a: FECN and BECN */
	bool becn;
	uint8_t pad;	 /* bytes, 0..3 */
	uint16_t pkey;
	uint32_t dest_qpn;
	uint32_t psn;
	uint32_t xrc_srqn;
	struct {
		uint8_t type;  /* VERNIC_FLUSH_GLOBAL | VERNIC_FLUSH_PERSISTENT */
		uint8_t level; /* VERNIC_FLUSH_RANGE, VERNIC_FLUSH_MR */
	} feth;
	struct {
		uint64_t va;
		uint32_t rkey;
		uint32_t length;
	} reth;
	struct {
		uint64_t va;
		uint32_t rkey;
		uint64_t swap_add;
		uint64_t compare;
	} atomic;
	struct {
		uint8_t syndrome;
		uint32_t msn;
	} aeth;
	uint64_t atomic_orig;
	struct {
		uint32_t qkey;
		uint32_t src_qpn;
	} deth;
	uint32_t imm; /* network order, as ibv_wc carries it; or the rkey of IETH in host order */
	uint32_t payload_off; /* bytes from the BTH */
	uint32_t payload_len; /* bytes, without pad */
};

/*
 * Decodes a packet.
 * @data, @len: from the BTH to the ICRC inclusive, bytes
 * @return 0, or -EBADMSG: a runt, an unknown opcode, a transport version other than 0, pad beyond
 * the length, a length that is no multiple of 4, payload where the opcode has none
 */
int wire_decode(const uint8_t *data, size_t len, struct wire_packet *pkt);

/*
 * Encodes BTH and the extended headers the opcode has.
 * @buf: room for WIRE_MAX_HEADERS
 * @return their length in bytes. MigReq is 1, version 0.
 */
size_t wire_encode(uint8_t *buf, const struct wire_packet *pkt);

/* AETH syndrome (IBTA 9.7.5.2.1). */
#define AETH_ACK 0x00
#define AETH_RNR_NAK 0x20
#define AETH_NAK 0x60
#define AETH_CLASS(syndrome) ((syndrome) & 0x60)
#define AETH_VALUE(syndrome) ((syndrome) & 0x1f)
#define AETH_NO_CREDITS 0x1f

enum aeth_nak {
	NAK_PSN_SEQUENCE = 0,
	NAK_INVALID_REQUEST = 1,
	NAK_REMOTE_ACCESS = 2,
	NAK_REMOTE_OPERATION = 3,
	NAK_INVALID_RD_REQUEST = 4,
};

/* The IP identity of a packet, as the ICRC covers it. */
struct icrc_address {
	bool ipv6;
	uint16_t src_port; /* UDP, host order */
	uint16_t dst_port;
	uint8_t src[16];   /* IPv4: the first 4 bytes; network order */
	uint8_t dst[16];
};

/*
 * ICRC of a RoCEv2 packet (IBTA A17.3.3): the value, to be stored least significant byte first.
 * @addr: addresses and ports
 * @ip_id: IPv4 identification (DF is taken as set); ignored for IPv6
 * @data, @len: from the BTH to the end of the pad, bytes
 */
uint32_t icrc_compute(const struct icrc_address *addr, uint16_t ip_id, const uint8_t *data,
		      size_t len);

/*
 * Checks the ICRC of a packet whose IPv4 identification is not known: any value of those 16 bits is
 * accepted, nothing else. The flags are DF alone.
 * @ip_id_hint: the identification tried first
 * @data, @len: from the BTH to the ICRC inclusive, bytes; len >= BTH_LEN + ICRC_LEN
 * @return true if good
 */
bool icrc_check(const struct icrc_address *addr, uint16_t ip_id_hint, const uint8_t *data,
		size_t len);

/*
 * As icrc_check(), and says what the identification was.
 * @ip_id: in: the identification tried first; out: unchanged if the ICRC is bad, or over IPv6
 */
bool icrc_recover(const struct icrc_address *addr, uint16_t *ip_id, const uint8_t *data,
		  size_t len);

#define IPV4_DF 0x40 /* in the byte behind the identification */

/* ---- ECN (RFC 3168) -------------------------------------------------------------------------- */

/* The two low bits of the IPv4 TOS and the IPv6 traffic class. */
enum {
	ECN_MASK = 3,
	ECN_ECT0 = 2, /* the sender answers marks */
	ECN_CE = 3,   /* congestion experienced */
};

/* ---- GIDs ---------------------------------------------------------------------------------- */

/* What is in front of the four bytes of an IPv4 address in a GID (::ffff:a.b.c.d). */
static const uint8_t gid_ipv4_prefix[12] = {[10] = 0xff, [11] = 0xff};

/* @return whether a GID stands for an IPv4 address */
static inline bool gid_is_ipv4(const uint8_t gid[16])
{
	return memcmp(gid, gid_ipv4_prefix, sizeof(gid_ipv4_prefix)) == 0;
}

/* Makes a GID of an IPv4 address. @address: four bytes, network order */
static inline void gid_from_ipv4(uint8_t gid[16], const void *address)
{
	memcpy(gid, gid_ipv4_prefix, sizeof(gid_ipv4_prefix));
	memcpy(gid + 12, address, 4);
}

/* @return whether a GID is a link-local IPv6 address */
static inline bool gid_is_link_local(const uint8_t gid[16])
{
	return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

/* Copies the address in a GID as struct icrc_address has it. */
static inline void icrc_address_bytes(uint8_t out[16], const uint8_t gid[16], bool ipv6)
{
	if (ipv6)
		memcpy(out, gid, 16);
	else
		memcpy(out, gid + 12, 4);
}

/* ---- PSN arithmetic (24 bits) -------------------------------------------------------------- */

/* @return a - b as a signed number, -2^23 .. 2^23 - 1 */
static inline int32_t psn_diff(uint32_t a, uint32_t b)
{
	return (int32_t)((a - b) << 8) >> 8;
}

/* @return a + n, wrapped */
static inline uint32_t psn_add(uint32_t a, uint32_t n)
{
	return (a + n) & PSN_MASK;
}

/* @return bytes / mtu: an MTU is a power of two, and each message would divide three times */
static inline uint32_t full_packets(uint32_t bytes, uint32_t mtu)
{
	return bytes >> __builtin_ctz(mtu);
}

/* Packets of a message of length bytes at an MTU: at least one. */
static inline uint32_t packets_of(uint32_t length, uint32_t mtu)
{
	return length == 0 ? 1 : full_packets(length - 1, mtu) + 1;
}

#endif
