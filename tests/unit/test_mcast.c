/* SPDX-License-Identifier: BSD-2-Clause */
/* Unit tests of the table of multicast groups. */
#include <check.h>

#include <urcu-qsbr.h>

#include "mcast.h"

static struct mcast_table table;
static struct device one, two;

/* A group's GID, n-th of many. */
static const uint8_t *gid(unsigned int n)
{
	static uint8_t g[16];

	memset(g, 0, sizeof(g));
	g[0] = 0xff;
	g[1] = 0x15;
	g[14] = (uint8_t)(n >> 8);
	g[15] = (uint8_t)n;
	return g;
}

static void attach(const struct device *dev, unsigned int n, uint32_t qpn, uint32_t count)
{
	struct mcast_group *g;

	ck_assert_int_eq(mcast_attach(&table, dev, gid(n), &one, qpn, &g), 0);
	ck_assert_ptr_eq(g, mcast_find(&table, dev, gid(n)));
	ck_assert_uint_eq(g->count, count);
	ck_assert_uint_eq(mcast_find_member(g, qpn)->qpn, qpn);
	ck_assert_ptr_eq(mcast_find_member(g, qpn)->dev, &one);
}

static void detach(const struct device *dev, unsigned int n, uint32_t qpn)
{
	struct mcast_group *g = mcast_find(&table, dev, gid(n));

	ck_assert_ptr_nonnull(g);
	mcast_detach(&table, g, mcast_find_member(g, qpn));
}

/* Which GIDs are those of groups. */
START_TEST(multicast_gids)
{
	uint8_t g[16] = {[10] = 0xff, 0xff, 224, 0, 0, 1};

	ck_assert(gid_is_multicast(gid(1)));
	ck_assert(gid_is_multicast(g));
	g[12] = 239;
	ck_assert(gid_is_multicast(g));
	g[12] = 240;
	ck_assert(!gid_is_multicast(g));
	g[12] = 223;
	ck_assert(!gid_is_multicast(g));
	g[12] = 224;
	g[9] = 1;
	ck_assert(!gid_is_multicast(g));
	memset(g, 0xfe, sizeof(g));
	ck_assert(!gid_is_multicast(g));
}
END_TEST

/* Each network has its own group of a GID, and a group lasts as long as it has a member. */
START_TEST(membership)
{
	attach(&one, 1, 10, 1);
	attach(&one, 1, 11, 2);
	attach(&two, 1, 12, 1);
	attach(NULL, 1, 13, 1);
	ck_assert_uint_eq(table.attached, 4);
	ck_assert_ptr_null(mcast_find(&table, &one, gid(2)));
	ck_assert_ptr_null(mcast_find_member(mcast_find(&table, &one, gid(1)), 12));
	detach(&one, 1, 10);
	ck_assert_ptr_null(mcast_find_member(mcast_find(&table, &one, gid(1)), 10));
	ck_assert_ptr_nonnull(mcast_find_member(mcast_find(&table, &one, gid(1)), 11));
	detach(&one, 1, 11);
	ck_assert_ptr_null(mcast_find(&table, &one, gid(1)));
	detach(&two, 1, 12);
	detach(NULL, 1, 13);
	ck_assert_uint_eq(table.attached, 0);
}
END_TEST

/* Many groups, those of one bucket too. */
START_TEST(many_groups)
{
	for (unsigned int i = 0; i < 2000; i++)
		attach(&one, i, 100 + i, 1);
	for (unsigned int i = 0; i < 2000; i++)
		ck_assert_ptr_nonnull(mcast_find_member(mcast_find(&table, &one, gid(i)), 100 + i));
	for (unsigned int i = 0; i < 2000; i++) {
		detach(&one, i, 100 + i);
		ck_assert_ptr_null(mcast_find(&table, &one, gid(i)));
	}
	ck_assert_uint_eq(table.attached, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("mcast");
	TCase *tc = tcase_create("mcast");
	SRunner *r = srunner_create(s);
	int failed;

	mcast_init(&table);
	tcase_add_test(tc, multicast_gids);
	tcase_add_test(tc, membership);
	tcase_add_test(tc, many_groups);
	suite_add_tcase(s, tc);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
