/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The invariant CRC of RoCEv2 (IBTA A17.3.3).
 *
 * Theory of operation
 * -------------------
 * The ICRC is the CRC-32 of 8 bytes ff, the IP and UDP headers and the packet from its BTH on, with
 * the fields that may change on the way read as ff. It covers the IPv4 identification, which a UDP
 * socket does not show (and the flags, but those are DF alone in RoCEv2). But CRC is linear: if a
 * received packet differs from the one the check assumes in those bits only, the difference D of
 * the two CRCs is what the difference d of the bits makes of an empty register: D = Z^n(d), Z being
 * the step of the register over one zero byte and n the bytes from the field to the end. Z can be
 * undone, so icrc_check() computes d = Z^-n(D) and accepts if d lies within the identification; 16
 * of d's 32 bits must be 0, whatever the field's value.
 *
 * Z^-n is put together of Z^-1, Z^-2, Z^-4, ... Each is a 32x32 bit matrix, kept as four tables by
 * byte, so that a step costs four look-ups.
 */
#include "wire.h"

#include <pthread.h>
#include <string.h>

#include <isa-l/crc.h>

#include "bytes.h"

#define IPV4_LEN 20
#define IPV6_LEN 40
#define UDP_LEN 8
#define LRH_LEN 8 /* bytes of ff in place of an InfiniBand local route header */
#define PROTOCOL_UDP 17
#define BTH_RESV8A 4 /* offset of FECN and BECN */

#define CRC32_POLYNOMIAL 0xedb88320u /* reflected */
#define BACK_POWERS 16		     /* covers any UDP length */
/* The identification as the register sees it: the first byte is the lowest. */
#define UNKNOWN_BITS 0x0000ffffu

/* A linear map of the CRC register: t[j][b] is the image of byte b at place j. */
struct crc_map {
	uint32_t t[4][256];
};

static struct crc_map back_map[BACK_POWERS]; /* Z^-(2^k) */
static pthread_once_t back_once = PTHREAD_ONCE_INIT;

/* @return the image of v */
static uint32_t crc_map_apply(const struct crc_map *m, uint32_t v)
{
	return m->t[0][v & 0xff] ^ m->t[1][v >> 8 & 0xff] ^ m->t[2][v >> 16 & 0xff] ^
	       m->t[3][v >> 24];
}

/* @return the register eight zero bits earlier */
static uint32_t crc_byte_back(uint32_t v)
{
	/* The polynomial was fed in where the top bit says so: it is 1 there, a shift's is 0. */
	for (int i = 0; i < 8; i++)
		v = v & 0x80000000u ? (v ^ CRC32_POLYNOMIAL) << 1 | 1 : v << 1;
	return v;
}

/* Fills back_map. */
static void crc_maps_init(void)
{
	for (unsigned k = 0; k < BACK_POWERS; k++) {
		for (unsigned j = 0; j < 4; j++) {
			for (uint32_t b = 0; b < 256; b++) {
				uint32_t v = b << 8 * j;
				const struct crc_map *half = &back_map[k ? k - 1 : 0];

				back_map[k].t[j][b] =
					k ? crc_map_apply(half, crc_map_apply(half, v))
					  : crc_byte_back(v);
			}
		}
	}
}

/*
 * Runs the register back over zero bytes.
 * @n: bytes, less than 2^BACK_POWERS
 * @return Z^-n(v)
 */
static uint32_t crc_back(uint32_t v, size_t n)
{
	pthread_once(&back_once, crc_maps_init);
	for (unsigned k = 0; n != 0; k++, n >>= 1) {
		if (n & 1)
			v = crc_map_apply(&back_map[k], v);
	}
	return v;
}

/*
 * Writes what the ICRC covers in front of the BTH.
 * @p: room for LRH_LEN + IPV6_LEN + UDP_LEN
 * @len: bytes from the BTH to the end of the pad
 * @return bytes written
 */
static size_t icrc_pseudo_header(uint8_t *p, const struct icrc_address *addr, uint16_t ip_id,
				 size_t len)
{
	uint32_t udp_len = UDP_LEN + (uint32_t)len + ICRC_LEN;
	uint8_t *ip = p + LRH_LEN;
	uint8_t *udp;

	memset(p, 0xff, LRH_LEN);
	if (addr->ipv6) {
		ip[0] = 0x6f; /* version; traffic class and flow label may change */
		memset(ip + 1, 0xff, 3);
		put16(ip + 4, udp_len);
		ip[6] = PROTOCOL_UDP;
		ip[7] = 0xff; /* hop limit */
		memcpy(ip + 8, addr->src, 16);
		memcpy(ip + 24, addr->dst, 16);
		udp = ip + IPV6_LEN;
	} else {
		ip[0] = 0x45;
		ip[1] = 0xff; /* TOS */
		put16(ip + 2, IPV4_LEN + udp_len);
		put16(ip + 4, ip_id);
		ip[6] = IPV4_DF;
		ip[7] = 0;
		ip[8] = 0xff; /* TTL */
		ip[9] = PROTOCOL_UDP;
		put16(ip + 10, 0xffff);
		memcpy(ip + 12, addr->src, 4);
		memcpy(ip + 16, addr->dst, 4);
		udp = ip + IPV4_LEN;
	}
	put16(udp, addr->src_port);
	put16(udp + 2, addr->dst_port);
	put16(udp + 4, udp_len);
	put16(udp + 6, 0xffff);
	return (size_t)(udp + UDP_LEN - p);
}

uint32_t icrc_compute(const struct icrc_address *addr, uint16_t ip_id, const uint8_t *data,
		      size_t len)
{
	uint8_t head[LRH_LEN + IPV6_LEN + UDP_LEN + BTH_LEN];
	size_t n = icrc_pseudo_header(head, addr, ip_id, len);
	uint32_t crc;

	memcpy(head + n, data, BTH_LEN);
	head[n + BTH_RESV8A] = 0xff;
	crc = crc32_gzip_refl(0, head, n + BTH_LEN);
	return crc32_gzip_refl(crc, data + BTH_LEN, len - BTH_LEN);
}

bool icrc_recover(const struct icrc_address *addr, uint16_t *ip_id, const uint8_t *data, size_t len)
{
	const uint8_t *p = data + len - ICRC_LEN;
	uint32_t received = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
			    (uint32_t)p[3] << 24;
	uint32_t difference;
	size_t behind; /* bytes from the identification to the ICRC */

	len -= ICRC_LEN;
	difference = received ^ icrc_compute(addr, *ip_id, data, len);
	if (difference == 0)
		return true;
	behind = IPV4_LEN - 4 + UDP_LEN + len;
	if (addr->ipv6 || behind >= (size_t)1 << BACK_POWERS)
		return false;
	difference = crc_back(difference, behind);
	if ((difference & ~UNKNOWN_BITS) != 0)
		return false;
	*ip_id ^= (uint16_t)((difference & 0xff) << 8 | difference >> 8);
	return true;
}

bool icrc_check(const struct icrc_address *addr, uint16_t ip_id_hint, const uint8_t *data,
		size_t len)
{
	return icrc_recover(addr, &ip_id_hint, data, len);
}
