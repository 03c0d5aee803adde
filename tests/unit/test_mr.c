/* SPDX-License-Identifier: BSD-2-Clause */
/* Unit tests of the MR table and its access checks. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>

#include "object.h"

static struct device dev;
static struct pd pd = {.dev = &dev}, other_pd = {.dev = &dev};

static void setup(void)
{
	dev.mrs = mr_table_create();
	ck_assert_ptr_nonnull(dev.mrs);
}

static void teardown(void)
{
	mr_table_destroy(dev.mrs);
}

/* 200,000 registrations: no key is 0, none comes back, a removed key is not found. */
START_TEST(keys_are_fresh)
{
	static uint8_t seen[1 << 20];
	struct mr mr = {.pd = &pd};
	uint32_t random_bits = 0;

	for (int i = 0; i < 200000; i++) {
		ck_assert_int_eq(mr_table_add(dev.mrs, &mr), 0);
		ck_assert_uint_ne(mr.key, 0);
		ck_assert(!seen[mr.key >> 12]);
		seen[mr.key >> 12] = 1;
		random_bits |= mr.key & 0xfff;
		ck_assert_ptr_eq(mr_table_find(dev.mrs, mr.key), &mr);
		ck_assert_ptr_null(mr_table_find(dev.mrs, mr.key ^ 1));
		mr_table_remove(dev.mrs, &mr);
		ck_assert_ptr_null(mr_table_find(dev.mrs, mr.key));
	}
	ck_assert_uint_eq(random_bits, 0xfff);
}
END_TEST

/* The table takes 2^20 MRs, then says so, and takes another when one is gone. */
START_TEST(full_table)
{
	uint32_t n = 1 << 20;
	struct mr *mr = calloc(n + 1, sizeof(*mr));

	for (uint32_t i = 0; i < n; i++)
		ck_assert_int_eq(mr_table_add(dev.mrs, &mr[i]), 0);
	ck_assert_int_eq(mr_table_add(dev.mrs, &mr[n]), -ENOMEM);
	mr_table_remove(dev.mrs, &mr[77]);
	ck_assert_int_eq(mr_table_add(dev.mrs, &mr[n]), 0);
	ck_assert_uint_eq(mr[n].key >> 12, mr[77].key >> 12);
	free(mr);
}
END_TEST

/* Rights, PD and range; the address is translated from the iova. */
START_TEST(resolve)
{
	struct mr mr = {
		.pd = &pd,
		.mm = (struct mm *)&mr,
		.iova = 0x1000,
		.addr = 0x70000010,
		.length = 0x100,
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	struct mr top = {.pd = &pd, .iova = UINT64_MAX - 0xff, .addr = 0x5000, .length = 0x100};
	struct dma_segment seg;
	const struct {
		uint64_t va, len;
		uint32_t access;
		int result;
	} cases[] = {
		{0x1000, 0x100, 0, 0},
		{0x10ff, 1, IBV_ACCESS_LOCAL_WRITE, 0},
		{0x1100, 0, 0, 0},
		{0x1101, 0, 0, -ERANGE},
		{0xfff, 1, 0, -ERANGE},
		{0x1000, 0x101, 0, -ERANGE},
		{0x10ff, 2, 0, -ERANGE},
		{0x1001, UINT64_MAX, 0, -ERANGE},
		{UINT64_MAX, 2, 0, -ERANGE},
		{0, 0, 0, -ERANGE},
		{0x1000, 8, IBV_ACCESS_REMOTE_WRITE, -EACCES},
		{0x1000, 8, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE, -EACCES},
		{0x1000, 8, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_LOCAL_WRITE, 0},
	};

	ck_assert_int_eq(mr_table_add(dev.mrs, &mr), 0);
	ck_assert_int_eq(mr_table_add(dev.mrs, &top), 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		ck_assert_msg(mr_resolve(&pd, mr.key, cases[i].va, cases[i].len, cases[i].access,
					 &seg) == cases[i].result,
			      "case %zu", i);
		if (cases[i].result)
			continue;
		ck_assert_ptr_eq(seg.mm, mr.mm);
		ck_assert_uint_eq(seg.addr, cases[i].va - 0x1000 + 0x70000010);
		ck_assert_uint_eq(seg.len, cases[i].len);
	}
	ck_assert_int_eq(mr_resolve(&other_pd, mr.key, 0x1000, 8, 0, &seg), -EINVAL);
	ck_assert_int_eq(mr_resolve(&pd, mr.key ^ 1, 0x1000, 8, 0, &seg), -EINVAL);
	/* A region that ends where addresses end. */
	ck_assert_int_eq(mr_resolve(&pd, top.key, UINT64_MAX, 1, 0, &seg), 0);
	ck_assert_uint_eq(seg.addr, 0x50ff);
	ck_assert_int_eq(mr_resolve(&pd, top.key, UINT64_MAX, 2, 0, &seg), -ERANGE);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("mr");
	TCase *tc = tcase_create("mr");
	SRunner *r = srunner_create(s);
	int failed;

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, keys_are_fresh);
	tcase_add_test(tc, full_table);
	tcase_add_test(tc, resolve);
	suite_add_tcase(s, tc);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
