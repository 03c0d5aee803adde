/* SPDX-License-Identifier: BSD-2-Clause */
/* Unit tests of mapped client memory: what may be mapped, sharing, files that are cut short. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mapping.h"

#define PAGE 4096u

/* @return a memfd of some pages, each filled with its number + 1 */
static int file_of(unsigned pages)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	uint8_t page[PAGE];

	ck_assert_int_ge(fd, 0);
	for (unsigned i = 0; i < pages; i++) {
		memset(page, (int)i + 1, PAGE);
		ck_assert_int_eq(write(fd, page, PAGE), PAGE);
	}
	return fd;
}

/* Bytes here are bytes there, at any offset; a file is mapped once. */
START_TEST(shares_memory)
{
	int fd = file_of(8);
	struct mapping *a, *b;
	uint8_t *pa, *pb, byte;

	ck_assert_int_eq(mapping_get(fd, 3 * PAGE + 5, 2 * PAGE, &a, &pa), 0);
	ck_assert_int_eq(mapping_get(fd, PAGE, 10, &b, &pb), 0);
	ck_assert_ptr_eq(a, b);
	ck_assert_uint_eq(pa[0], 4);
	ck_assert_uint_eq(pb[0], 2);
	pa[0] = 99;
	ck_assert_int_eq(pread(fd, &byte, 1, 3 * PAGE + 5), 1);
	ck_assert_uint_eq(byte, 99);
	mapping_put(a);
	ck_assert_uint_eq(pb[9], 2);
	mapping_put(b);
	close(fd);
}
END_TEST

/* A file that grew is mapped anew; what was mapped stays. */
START_TEST(grows)
{
	int fd = file_of(2);
	struct mapping *a, *b;
	uint8_t *pa, *pb;

	ck_assert_int_eq(mapping_get(fd, 0, 2 * PAGE, &a, &pa), 0);
	ck_assert_int_eq(mapping_get(fd, 0, 2 * PAGE + 1, &b, &pb), -EINVAL);
	ck_assert_int_eq(ftruncate(fd, 4 * PAGE), 0);
	ck_assert_int_eq(mapping_get(fd, 0, 3 * PAGE, &b, &pb), -ENODATA);
	ck_assert_int_eq(pwrite(fd, "abc", 3, 2 * PAGE), 3);
	ck_assert_int_eq(mapping_get(fd, 0, 3 * PAGE, &b, &pb), 0);
	pb[1] = 77;
	ck_assert_uint_eq(pa[1], 77);
	mapping_put(b);
	mapping_put(a);
	close(fd);
}
END_TEST

/* Refused: no memory file, read-only, sealed, past the end, wrapped, holes. */
START_TEST(refuses)
{
	char path[32];
	int fd = file_of(2), other;
	struct mapping *m;
	uint8_t *p;

	ck_assert_int_eq(mapping_get(fd, 0, 0, &m, &p), -EINVAL);
	ck_assert_int_eq(mapping_get(fd, 2 * PAGE, 1, &m, &p), -EINVAL);
	ck_assert_int_eq(mapping_get(fd, UINT64_MAX - 1, 4, &m, &p), -EINVAL);
	ck_assert_int_eq(mapping_get(fd, 1, UINT64_MAX, &m, &p), -EINVAL);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	other = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(mapping_get(other, 0, 1, &m, &p), -EINVAL);
	close(other);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
	ck_assert_int_lt(mapping_get(fd, 0, 1, &m, &p), 0);
	close(fd);

	other = open("/dev/zero", O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(mapping_get(other, 0, 1, &m, &p), -EINVAL);
	close(other);
	ck_assert_int_eq(mapping_get(-1, 0, 1, &m, &p), -EINVAL);
	fd = memfd_create("test", MFD_CLOEXEC);
	ck_assert_int_eq(ftruncate(fd, 2 * PAGE), 0);
	ck_assert_int_eq(mapping_get(fd, 0, PAGE, &m, &p), -ENODATA);
	close(fd);
}
END_TEST

/* The file is cut short: loads and stores go on, into pages of their own. */
START_TEST(survives_truncation)
{
	int fd = file_of(4);
	struct mapping *m;
	uint8_t *p;

	ck_assert_int_eq(mapping_get(fd, 0, 4 * PAGE, &m, &p), 0);
	ck_assert_int_eq(ftruncate(fd, PAGE), 0);
	ck_assert_uint_eq(p[3 * PAGE], 0);
	memset(p + PAGE, 7, 3 * PAGE);
	ck_assert_uint_eq(p[2 * PAGE + 100], 7);
	ck_assert_uint_eq(p[10], 1);
	mapping_put(m);
	close(fd);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("mapping");
	TCase *tc = tcase_create("mapping");
	SRunner *runner;
	int failed;

	if (mapping_init() != 0)
		return 1;
	tcase_add_test(tc, shares_memory);
	tcase_add_test(tc, grows);
	tcase_add_test(tc, refuses);
	tcase_add_test(tc, survives_truncation);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
