// SPDX-License-Identifier: BSD-2-Clause
/*
 * Arbitrary bytes into the packet decoder: it never looks beyond the packet, and what it accepts
 * means the same when encoded again. `fuzz-wire SEED SECONDS`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wire/wire.h"

#define CHECK(cond)                                                                        \
	do {                                                                               \
		if (!(cond)) {                                                             \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                           \
		}                                                                          \
	} while (0)

static uint64_t rnd(uint64_t *seed)
{
	uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* One packet, in a block of exactly its size, so that a sanitizer sees one byte too many. */
static unsigned int one(uint64_t *seed)
{
	size_t len = rnd(seed) % 120;
	uint8_t *data = malloc(len), head[WIRE_MAX_HEADERS];
	struct icrc_address addr = {.ipv6 = rnd(seed) & 1, .src_port = 1, .dst_port = 4791};
	struct wire_packet pkt, again;
	unsigned int good = 0;

	CHECK(data || len == 0);
	for (size_t i = 0; i < len; i++)
		data[i] = (uint8_t)rnd(seed);
	if (len > 1 && rnd(seed) % 8)
		data[1] &= 0xf0; /* the transport version there is */
	if (len >= BTH_LEN + ICRC_LEN)
		icrc_check(&addr, (uint16_t)rnd(seed), data, len);
	if (wire_decode(data, len, &pkt) == 0) {
		size_t n;

		CHECK(len >= BTH_LEN + ICRC_LEN);
		CHECK(wire_opcodes[pkt.opcode].name);
		CHECK(pkt.payload_off + pkt.payload_len + pkt.pad + ICRC_LEN == len);
		n = wire_encode(head, &pkt);
		CHECK(n == pkt.payload_off && n <= sizeof(head));
		memcpy(data, head, n);
		CHECK(wire_decode(data, len, &again) == 0);
		CHECK(again.psn == pkt.psn && again.dest_qpn == pkt.dest_qpn &&
		      again.reth.va == pkt.reth.va && again.reth.length == pkt.reth.length &&
		      again.atomic.compare == pkt.atomic.compare && again.imm == pkt.imm &&
		      again.aeth.syndrome == pkt.aeth.syndrome &&
		      again.atomic_orig == pkt.atomic_orig && again.deth.qkey == pkt.deth.qkey &&
		      again.pad == pkt.pad && again.payload_len == pkt.payload_len);
		good = 1;
	}
	free(data);
	return good;
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	time_t end = time(NULL) + (argc > 2 ? atoi(argv[2]) : 5);
	unsigned long packets = 0, good = 0;

	while (time(NULL) < end) {
		for (int i = 0; i < 10000; i++)
			good += one(&seed);
		packets += 10000;
	}
	CHECK(good > packets / 100);
	printf("%lu packets, %lu of them good\n", packets, good);
	return 0;
}
