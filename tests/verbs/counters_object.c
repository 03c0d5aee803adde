// SPDX-License-Identifier: BSD-2-Clause
/* Counters objects: made, given places, read, destroyed; what they cannot do is refused cleanly. */
#include "common.h"

int main(void)
{
	struct ibv_counters_init_attr init = {0};
	struct ibv_counter_attach_attr place = {.counter_desc = IBV_COUNTER_PACKETS, .index = 1};
	struct ibv_flow flow = {0};
	struct ibv_counters *c;
	uint64_t values[4];
	struct env e;

	env_open(&e);
	init.comp_mask = 1;
	CHECK(!ibv_create_counters(e.ctx, &init) && errno == EOPNOTSUPP);
	init.comp_mask = 0;
	c = ibv_create_counters(e.ctx, &init);
	CHECK(c && c->context == e.ctx);
	CHECK_EQ(ibv_attach_counters_point_flow(c, &place, NULL), 0);
	place = (struct ibv_counter_attach_attr){.counter_desc = IBV_COUNTER_BYTES, .index = 2};
	CHECK_EQ(ibv_attach_counters_point_flow(c, &place, NULL), 0);
	flow.context = e.ctx;
	CHECK_EQ(ibv_attach_counters_point_flow(c, &place, &flow), EOPNOTSUPP);
	place.index = UINT32_MAX;
	CHECK_EQ(ibv_attach_counters_point_flow(c, &place, NULL), EINVAL);
	place.index = 0;
	place.comp_mask = 1;
	CHECK_EQ(ibv_attach_counters_point_flow(c, &place, NULL), EOPNOTSUPP);

	memset(values, 0xff, sizeof(values));
	CHECK_EQ(ibv_read_counters(c, values, 2, 0), EINVAL);
	CHECK_EQ(ibv_read_counters(c, values, 3, 1u << 31), EOPNOTSUPP);
	CHECK_EQ(ibv_read_counters(c, values, 3, IBV_READ_COUNTERS_ATTR_PREFER_CACHED), 0);
	CHECK(values[0] == 0 && values[1] == 0 && values[2] == 0 && values[3] == UINT64_MAX);
	CHECK_EQ(ibv_destroy_counters(c), 0);
	env_close(&e);
	return 0;
}
