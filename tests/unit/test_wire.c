/* SPDX-License-Identifier: BSD-2-Clause */
/* Unit tests of emu/wire: the opcode table, encoding and decoding, the ICRC. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wire/frame.h"
#include "wire/wire.h"

/* An IP packet as another implementation made it. */
struct wire_vector {
	const char *name;
	uint32_t len; /* bytes from the IP header to the ICRC */
	const uint8_t *bytes;
	bool fields; /* pkt is what it decodes to */
	struct wire_packet pkt;
};

/* A constant in network order. */
#define BE32(x) (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? (x) : __builtin_bswap32(x))

#include "wire-vectors.h"

#define VECTORS (sizeof(wire_vectors) / sizeof(wire_vectors[0]))

/* A vector taken apart. */
struct parsed {
	struct icrc_address addr;
	uint16_t ip_id;
	uint8_t data[2048]; /* a copy, from the BTH on */
	size_t len;
	uint32_t icrc;
};

/* Takes an IP packet apart. */
static void parse(const uint8_t *ip, size_t len, struct parsed *p)
{
	size_t ip_len = ip[0] >> 4 == 6 ? 40 : 20;
	const uint8_t *udp = ip + ip_len;

	memset(p, 0, sizeof(*p));
	p->addr.ipv6 = ip_len == 40;
	if (p->addr.ipv6) {
		memcpy(p->addr.src, ip + 8, 16);
		memcpy(p->addr.dst, ip + 24, 16);
	} else {
		memcpy(p->addr.src, ip + 12, 4);
		memcpy(p->addr.dst, ip + 16, 4);
		p->ip_id = (uint16_t)(ip[4] << 8 | ip[5]);
	}
	p->addr.src_port = (uint16_t)(udp[0] << 8 | udp[1]);
	p->addr.dst_port = (uint16_t)(udp[2] << 8 | udp[3]);
	p->len = len - ip_len - 8;
	memcpy(p->data, udp + 8, p->len);
	udp += 8 + p->len - ICRC_LEN;
	p->icrc = (uint32_t)udp[0] | (uint32_t)udp[1] << 8 | (uint32_t)udp[2] << 16 |
		  (uint32_t)udp[3] << 24;
}

/* Appends the ICRC. @len: bytes from the BTH to the end of the pad; @return that and the ICRC's */
static size_t seal(const struct icrc_address *addr, uint16_t ip_id, uint8_t *data, size_t len)
{
	uint32_t icrc = icrc_compute(addr, ip_id, data, len);

	for (int i = 0; i < ICRC_LEN; i++)
		data[len++] = (uint8_t)(icrc >> 8 * i);
	return len;
}

static uint64_t random_state;

/* @return pseudo-random bits, the same in every run */
static uint32_t random_bits(void)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(random_state >> 32);
}

START_TEST(opcode_table)
{
	static const unsigned services[] = {WIRE_RC, WIRE_UC, WIRE_UD, WIRE_XRC};
	static const int count[] = {25, 12, 2, 25};
	const unsigned place = OPF_FIRST | OPF_LAST | OPF_IMM | OPF_INV;

	for (unsigned s = 0; s < 4; s++) {
		int n = 0;

		for (unsigned i = services[s]; i < services[s] + 0x20; i++) {
			const struct wire_opcode *op = &wire_opcodes[i];

			if (!op->name)
				continue;
			n++;
			ck_assert_uint_ge(op->header_len, BTH_LEN);
			ck_assert_uint_le(op->header_len, WIRE_MAX_HEADERS);
			ck_assert_int_eq(wire_opcode_for(services[s], op->kind, op->flags & place),
					 (int)i);
		}
		ck_assert_int_eq(n, count[s]);
	}
	ck_assert_int_eq(wire_opcode_for(WIRE_RC, KIND_ACK, 0), 0x11);
	ck_assert_int_eq(wire_opcode_for(WIRE_UD, KIND_SEND, OPF_FIRST), -1);
	ck_assert_int_eq(wire_opcode_for(WIRE_UC, KIND_READ_REQUEST, 0), -1);
	ck_assert_int_eq(wire_opcode_for(WIRE_UC, KIND_SEND, OPF_LAST | OPF_INV), -1);
	ck_assert_int_eq(wire_opcode_for(WIRE_RC, KIND_FLUSH, 0), 0x1c);
	ck_assert_int_eq(wire_opcode_for(WIRE_RC, KIND_ATOMIC_WRITE, 0), 0x1d);
	ck_assert_int_eq(wire_opcode_for(WIRE_UC, KIND_FLUSH, 0), -1);
	ck_assert_ptr_null(wire_opcodes[0x15].name);
	ck_assert_ptr_null(wire_opcodes[0x40].name);
	ck_assert_ptr_null(wire_opcodes[0xff].name);
}
END_TEST

START_TEST(decode_vectors)
{
	for (unsigned i = 0; i < VECTORS; i++) {
		const struct wire_vector *v = &wire_vectors[i];
		struct wire_packet pkt;
		struct parsed p;

		parse(v->bytes, v->len, &p);
		ck_assert_msg(wire_decode(p.data, p.len, &pkt) == 0, "%s", v->name);
		if (v->fields)
			ck_assert_msg(memcmp(&pkt, &v->pkt, sizeof(pkt)) == 0, "%s", v->name);
	}
}
END_TEST

START_TEST(encode_vectors)
{
	for (unsigned i = 0; i < VECTORS; i++) {
		const struct wire_vector *v = &wire_vectors[i];
		uint8_t buf[WIRE_MAX_HEADERS];
		struct parsed p;

		if (!v->fields)
			continue;
		parse(v->bytes, v->len, &p);
		ck_assert_msg(wire_encode(buf, &v->pkt) == v->pkt.payload_off, "%s", v->name);
		ck_assert_msg(memcmp(buf, p.data, v->pkt.payload_off) == 0, "%s", v->name);
	}
}
END_TEST

START_TEST(decode_malformed)
{
	struct wire_packet pkt = {.opcode = 0x04}, out;
	uint8_t buf[256] = {0};

	for (unsigned op = 0; op < 256; op++) {
		size_t len = wire_opcodes[op].header_len + ICRC_LEN;

		memset(buf, 0, sizeof(buf));
		buf[0] = (uint8_t)op;
		if (!wire_opcodes[op].name) {
			ck_assert_int_eq(wire_decode(buf, 64, &out), -EBADMSG);
			continue;
		}
		ck_assert_int_eq(wire_decode(buf, len, &out), 0);
		ck_assert_uint_eq(out.payload_len, 0);
		/* Every runt; the copy lets a sanitizer see a read beyond it. */
		for (size_t n = 0; n < len; n++) {
			uint8_t *copy = malloc(n ? n : 1);

			memcpy(copy, buf, n);
			ck_assert_int_eq(wire_decode(copy, n, &out), -EBADMSG);
			free(copy);
		}
		/* Payload, where the opcode may have some. */
		ck_assert_int_eq(wire_decode(buf, len + 8, &out),
				 wire_opcodes[op].flags & OPF_PAYLOAD ? 0 : -EBADMSG);
		ck_assert_int_eq(wire_decode(buf, len + 7, &out), -EBADMSG);
		buf[1] = 0x30; /* pad beyond the length */
		ck_assert_int_eq(wire_decode(buf, len, &out), -EBADMSG);
		buf[1] = 0x01; /* transport version */
		ck_assert_int_eq(wire_decode(buf, len, &out), -EBADMSG);
	}

	pkt.pad = 3;
	wire_encode(buf, &pkt);
	ck_assert_int_eq(wire_decode(buf, BTH_LEN + 4 + ICRC_LEN, &out), 0);
	ck_assert_uint_eq(out.payload_len, 1);
}
END_TEST

START_TEST(icrc_vectors)
{
	for (unsigned i = 0; i < VECTORS; i++) {
		const struct wire_vector *v = &wire_vectors[i];
		struct parsed p;

		parse(v->bytes, v->len, &p);
		ck_assert_msg(icrc_compute(&p.addr, p.ip_id, p.data, p.len - ICRC_LEN) == p.icrc,
			      "%s", v->name);
		ck_assert_msg(icrc_check(&p.addr, p.ip_id, p.data, p.len), "%s", v->name);
		/* The identification is not known to a socket. */
		ck_assert_msg(icrc_check(&p.addr, 0, p.data, p.len), "%s", v->name);
		ck_assert_msg(icrc_check(&p.addr, 0xffff, p.data, p.len), "%s", v->name);
	}
}
END_TEST

START_TEST(icrc_masks_congestion_bits)
{
	struct parsed p;

	parse(wire_vectors[0].bytes, wire_vectors[0].len, &p);
	p.data[4] ^= 0xc0;
	ck_assert(icrc_check(&p.addr, p.ip_id, p.data, p.len));
}
END_TEST

/* Every single flipped bit of every vector is caught, but for the congestion bits. */
START_TEST(icrc_single_bits)
{
	for (unsigned i = 0; i < VECTORS; i++) {
		struct parsed p;

		parse(wire_vectors[i].bytes, wire_vectors[i].len, &p);
		for (size_t bit = 0; bit < p.len * 8; bit++) {
			bool masked = bit / 8 == 4;

			p.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
			ck_assert_msg(icrc_check(&p.addr, 0, p.data, p.len) == masked,
				      "%s, bit %zu", wire_vectors[i].name, bit);
			p.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
	}
}
END_TEST

/*
 * Random damage: over IPv6 what gets through is nothing (2^-32); over IPv4 16 bits are not known,
 * so 2^-16 of it.
 */
START_TEST(icrc_random_damage)
{
	const int rounds = 1000000;
	int passed[2] = {0, 0};
	uint8_t data[128 + ICRC_LEN] = {4, 0x40};

	random_state = 1;
	for (int v6 = 0; v6 < 2; v6++) {
		struct icrc_address addr = {
			.ipv6 = v6, .src_port = 4791, .dst_port = 4791, .src = {1}, .dst = {2}};

		for (int i = 0; i < rounds; i++) {
			size_t len = 16 + random_bits() % 28 * 4;

			len = seal(&addr, (uint16_t)random_bits(), data, len);
			for (int k = 0; k < 4; k++)
				data[5 + random_bits() % (len - 5)] ^=
					(uint8_t)(1 + random_bits() % 255);
			passed[v6] += icrc_check(&addr, 0, data, len);
		}
	}
	ck_assert_int_eq(passed[1], 0);
	ck_assert_int_gt(passed[0], 0);
	ck_assert_int_lt(passed[0], rounds / 65536 * 3);
}
END_TEST

/* Any identification is accepted at every length; over IPv6 there is none. */
START_TEST(icrc_any_identification)
{
	static uint8_t data[65000 + ICRC_LEN];
	struct icrc_address addr = {.src_port = 4791, .dst_port = 4791, .src = {127}, .dst = {10}};

	random_state = 2;
	for (int i = 0; i < 2000; i++) {
		size_t len = BTH_LEN + random_bits() % (i % 100 ? 4096 : 64000);
		uint16_t id, hint;

		for (int k = 0; k < 64; k++)
			data[random_bits() % len] = (uint8_t)random_bits();
		addr.ipv6 = false;
		id = (uint16_t)random_bits();
		len = seal(&addr, id, data, len);
		hint = (uint16_t)random_bits();
		ck_assert(icrc_check(&addr, hint, data, len));
		ck_assert(icrc_recover(&addr, &hint, data, len));
		ck_assert_uint_eq(hint, id);
		addr.ipv6 = true;
		ck_assert(!icrc_check(&addr, 0, data, len));
	}
}
END_TEST

/* Headers around a packet are those another implementation made, but for the UDP checksum. */
START_TEST(frame_vectors)
{
	static uint8_t buf[FRAME_MAX_HEADERS + 2048];

	for (unsigned i = 0; i < VECTORS; i++) {
		const struct wire_vector *v = &wire_vectors[i];
		const uint8_t *ip = v->bytes;
		struct frame f = {.src_mac = {1, 2, 3, 4, 5, 6}, .dst_mac = {6, 5, 4, 3, 2, 1}};
		uint32_t sum = 17;
		struct parsed p;
		size_t head;

		parse(ip, v->len, &p);
		f.addr = p.addr;
		f.ip_id = p.ip_id;
		f.tos = p.addr.ipv6 ? (uint8_t)(ip[0] << 4 | ip[1] >> 4) : ip[1];
		f.hop_limit = p.addr.ipv6 ? ip[7] : ip[8];
		f.flow_label = (uint32_t)(ip[1] & 0xf) << 16 | (uint32_t)ip[2] << 8 | ip[3];
		head = frame_encode(buf, &f, p.len);
		ck_assert_uint_eq(head + p.len, 14 + v->len);
		ck_assert(!memcmp(buf, f.dst_mac, 6) && !memcmp(buf + 6, f.src_mac, 6));
		ck_assert_uint_eq(buf[12] << 8 | buf[13], p.addr.ipv6 ? 0x86dd : 0x0800);
		ck_assert_msg(!memcmp(buf + 14, ip, head - 14 - 2), "%s", v->name);
		if (!p.addr.ipv6) {
			ck_assert_uint_eq(buf[head - 2] | buf[head - 1], 0);
			continue;
		}
		/* All words from the addresses on and the rest of the pseudo header make ffff. */
		memcpy(buf + head, p.data, p.len);
		frame_checksum(buf, head + p.len);
		sum += 8 + (uint32_t)p.len;
		for (size_t k = 14 + 8; k < head + p.len; k += 2)
			sum += (uint32_t)buf[k] << 8 | buf[k + 1];
		while (sum >> 16)
			sum = (sum & 0xffff) + (sum >> 16);
		ck_assert_uint_eq(sum, 0xffff);
	}
}
END_TEST

/* MAC addresses: of an EUI-64 the one it was made of, else one of our own. */
START_TEST(frame_macs)
{
	static const uint8_t eui[16] = {0xfe, 0x80, [8] = 0x02, 0, 0x5e, 0xff, 0xfe, 1, 2, 3};
	static const uint8_t v4[16] = {[10] = 0xff, 0xff, 192, 0, 2, 1};
	static const uint8_t eui_mac[6] = {0, 0, 0x5e, 1, 2, 3};
	static const uint8_t v4_mac[6] = {2, 0, 192, 0, 2, 1};
	uint8_t mac[6];

	frame_mac(mac, eui);
	ck_assert(!memcmp(mac, eui_mac, 6));
	frame_mac(mac, v4);
	ck_assert(!memcmp(mac, v4_mac, 6));
}
END_TEST

/* A CNP as scapy 2.5 builds it (contrib.roce.cnp(), MigReq set), from 192.0.2.1 to 192.0.2.2. */
START_TEST(congestion_notification)
{
	static const uint8_t built[] = {
		0x81, 0x40, 0xff, 0xff, 0x40, 0x12, 0x34, 0x56, 0, 0, 0, 0, 0,	  0,	0,    0,
		0,    0,    0,	  0,	0,    0,    0,	  0,	0, 0, 0, 0, 0xbe, 0xff, 0x2a, 0x9e,
	};
	struct icrc_address addr = {
		.src_port = 4791, .dst_port = 4791, .src = {192, 0, 2, 1}, .dst = {192, 0, 2, 2}};
	struct wire_packet pkt;
	uint8_t buf[WIRE_MAX_HEADERS];

	ck_assert_int_eq(wire_decode(built, sizeof(built), &pkt), 0);
	ck_assert_uint_eq(wire_opcodes[pkt.opcode].kind, KIND_CNP);
	ck_assert_int_eq(wire_opcode_for(WIRE_CNP, KIND_CNP, OPF_FIRST | OPF_LAST), 0x81);
	ck_assert(pkt.becn && !pkt.fecn && !pkt.ackreq);
	ck_assert_uint_eq(pkt.dest_qpn, 0x123456);
	ck_assert_uint_eq(pkt.psn, 0);
	ck_assert_uint_eq(pkt.payload_len, 0);
	ck_assert_uint_eq(wire_encode(buf, &pkt), sizeof(built) - ICRC_LEN);
	ck_assert_int_eq(memcmp(buf, built, sizeof(built) - ICRC_LEN), 0);
	ck_assert(icrc_check(&addr, 0, built, sizeof(built)));
	/* 16 reserved bytes, no more, no less. */
	ck_assert_int_ne(wire_decode(built, sizeof(built) - 4, &pkt), 0);
}
END_TEST

/* Where XRCETH and FETH are, and which packets have them (IBTA A14, A19). */
START_TEST(xrc_and_flush_headers)
{
	struct wire_packet pkt = {
		.opcode = WIRE_XRC | WIRE_FLUSH,
		.xrc_srqn = 0x123456,
		.feth = {.type = 3, .level = 1},
		.reth = {.va = 0x1122334455667788, .rkey = 0x99aabbcc, .length = 0xddeeff01},
	};
	static const uint8_t headers[] = {
		0,    0x12, 0x34, 0x56,				/* XRCETH */
		0,    0,    0,	  0x13,				/* FETH */
		0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, /* RETH */
		0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x01,
	};
	uint8_t buf[WIRE_MAX_HEADERS + ICRC_LEN] = {0};
	struct wire_packet out;

	ck_assert_uint_eq(wire_encode(buf, &pkt), BTH_LEN + sizeof(headers));
	ck_assert_uint_eq(buf[0], 0xbc);
	ck_assert(!memcmp(buf + BTH_LEN, headers, sizeof(headers)));
	ck_assert_int_eq(wire_decode(buf, BTH_LEN + sizeof(headers) + ICRC_LEN, &out), 0);
	ck_assert_uint_eq(out.xrc_srqn, 0x123456);
	ck_assert_uint_eq(out.feth.type, 3);
	ck_assert_uint_eq(out.feth.level, 1);
	ck_assert(!memcmp(&out.reth, &pkt.reth, sizeof(out.reth)));
	/* Without the XRCETH: an answer, and RC. */
	for (unsigned op = 0; op < 0x20; op++) {
		const struct wire_opcode *xrc = &wire_opcodes[WIRE_XRC | op];
		unsigned more = xrc->flags & OPF_REQUEST ? XRCETH_LEN : 0;

		ck_assert_uint_eq(xrc->header_len, wire_opcodes[op].header_len + more);
		ck_assert_uint_eq(xrc->flags & ~OPF_XRCETH, wire_opcodes[op].flags);
	}
}
END_TEST

START_TEST(psn_arithmetic)
{
	ck_assert_int_eq(psn_diff(0, PSN_MASK), 1);
	ck_assert_int_eq(psn_diff(PSN_MASK, 0), -1);
	ck_assert_int_eq(psn_diff(0x800000, 0), -0x800000);
	ck_assert_uint_eq(psn_add(PSN_MASK, 2), 1);
	ck_assert_uint_eq(packets_of(0, 1024), 1);
	ck_assert_uint_eq(packets_of(1024, 1024), 1);
	ck_assert_uint_eq(packets_of(1025, 1024), 2);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("wire");
	TCase *t = tcase_create("wire");
	SRunner *r = srunner_create(s);
	int failed;

	suite_add_tcase(s, t);
	tcase_add_test(t, opcode_table);
	tcase_add_test(t, decode_vectors);
	tcase_add_test(t, encode_vectors);
	tcase_add_test(t, decode_malformed);
	tcase_add_test(t, icrc_vectors);
	tcase_add_test(t, icrc_masks_congestion_bits);
	tcase_add_test(t, icrc_single_bits);
	tcase_add_test(t, icrc_random_damage);
	tcase_add_test(t, icrc_any_identification);
	tcase_add_test(t, frame_vectors);
	tcase_add_test(t, frame_macs);
	tcase_add_test(t, congestion_notification);
	tcase_add_test(t, xrc_and_flush_headers);
	tcase_add_test(t, psn_arithmetic);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
