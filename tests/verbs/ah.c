// SPDX-License-Identifier: BSD-2-Clause
/* Address handles: what is refused; a million rounds leak nothing; one made from a completion. */
#include <malloc.h>

#include "common.h"

int main(void)
{
	struct env e;
	struct ibv_ah_attr good, attr;
	struct ibv_port_attr port;
	struct ibv_grh grh = {0};
	struct ibv_wc wc = {.wc_flags = IBV_WC_GRH};
	struct ibv_ah *ah;
	uint8_t *ip = (uint8_t *)&grh + 20;
	size_t before;

	env_open(&e);
	CHECK_EQ(ibv_query_port(e.ctx, 1, &port), 0);
	CHECK_EQ(ibv_query_port(e.ctx, 2, &port), EINVAL);
	good = (struct ibv_ah_attr){
		.is_global = 1, .port_num = 1, .grh = {.dgid = e.gid, .sgid_index = 1}};
#define REFUSED(change)                             \
	do {                                        \
		attr = good;                        \
		change;                             \
		CHECK(!ibv_create_ah(e.pd, &attr)); \
		CHECK_EQ(errno, EINVAL);            \
	} while (0)
	REFUSED(attr.is_global = 0);
	REFUSED(attr.port_num = 2);
	REFUSED(attr.port_num = 0);
	REFUSED(attr.grh.sgid_index = (uint8_t)port.gid_tbl_len);
	REFUSED(attr.grh.sgid_index = 0); /* an IPv6 one */
	REFUSED(memset(attr.grh.dgid.raw, 0xfe, 16));

	ah = ibv_create_ah(e.pd, &good);
	CHECK(ah);
	before = mallinfo2().uordblks;
	for (int i = 0; i < 1000000; i++) {
		struct ibv_ah *one = ibv_create_ah(e.pd, &good);

		CHECK(one);
		CHECK_EQ(ibv_destroy_ah(one), 0);
	}
	CHECK(mallinfo2().uordblks < before + 65536);
	CHECK_EQ(ibv_destroy_ah(ah), 0);

	/* A GRH area with an IPv4 header: from 192.0.2.9 to our address. */
	ip[0] = 0x45;
	ip[1] = 0x20;
	ip[9] = 17;
	memcpy(ip + 12, "\xc0\x00\x02\x09", 4);
	memcpy(ip + 16, e.gid.raw + 12, 4);
	CHECK_EQ(ibv_init_ah_from_wc(e.ctx, 1, &wc, &grh, &attr), 0);
	CHECK_EQ(attr.is_global, 1);
	CHECK_EQ(attr.grh.sgid_index, 1);
	CHECK_EQ(attr.grh.traffic_class, 0x20);
	CHECK(!memcmp(attr.grh.dgid.raw + 10, "\xff\xff\xc0\x00\x02\x09", 6));
	ah = ibv_create_ah_from_wc(e.pd, &wc, &grh, 1);
	CHECK(ah);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
	env_close(&e);
	return 0;
}
