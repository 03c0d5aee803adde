/* SPDX-License-Identifier: BSD-2-Clause */
/* Unit tests of the dma queue: random operations against a model that copies one by one. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dma.h"

#define AREA 8192
#define AREAS 4 /* 0: the daemon's; the others belong to address spaces */
#define BOUNCE 4096

/* An address space: addresses are offsets into its memory; bytes from limit on are not mapped. */
struct mm {
	uint8_t *memory;
	uint64_t limit;
};

static uint8_t real[AREAS][AREA], model[AREAS][AREA];
static struct mm mms[AREAS];
static unsigned int calls;
static const uint8_t *untouched; /* NULL, or a byte that is 0 while clients are written to */

static bool no_slow_copies;

/* Copies between two iovec lists; remote ones are checked and translated. */
static int move(struct mm *mm, const struct iovec *local, unsigned nlocal,
		const struct iovec *remote, unsigned nremote, bool write)
{
	unsigned l = 0, r = 0;
	size_t lo = 0, ro = 0, left = 0;

	calls++;
	ck_assert(!write || !untouched || *untouched == 0);
	ck_assert(nlocal > 0 && nlocal <= 1024 && nremote > 0 && nremote <= 1024);
	for (unsigned i = 0; i < nlocal; i++)
		left += local[i].iov_len;
	for (unsigned i = 0; i < nremote; i++)
		left -= remote[i].iov_len;
	ck_assert_uint_eq(left, 0);
	while (l < nlocal) {
		size_t n = local[l].iov_len - lo;
		uint64_t addr = (uintptr_t)remote[r].iov_base + ro;
		uint8_t *p = (uint8_t *)local[l].iov_base + lo;

		if (remote[r].iov_len - ro < n)
			n = remote[r].iov_len - ro;
		if (addr + n > mm->limit)
			return -EFAULT;
		if (no_slow_copies && n >= DMA_LONG)
			ck_assert(write ? !dma_slow_copy(addr, (uintptr_t)p)
					: !dma_slow_copy((uintptr_t)p, addr));
		if (write)
			memcpy(mm->memory + addr, p, n);
		else
			memcpy(p, mm->memory + addr, n);
		lo += n;
		ro += n;
		if (lo == local[l].iov_len) {
			l++;
			lo = 0;
		}
		if (ro == remote[r].iov_len) {
			r++;
			ro = 0;
		}
	}
	return 0;
}

static int test_readv(struct mm *mm, const struct iovec *local, unsigned nlocal,
		      const struct iovec *remote, unsigned nremote)
{
	return move(mm, local, nlocal, remote, nremote, false);
}

static int test_writev(struct mm *mm, const struct iovec *local, unsigned nlocal,
		       const struct iovec *remote, unsigned nremote)
{
	return move(mm, local, nlocal, remote, nremote, true);
}

static const struct dma_backend backend = {test_readv, test_writev};

static uint32_t below(uint32_t n)
{
	return (uint32_t)random() % n;
}

/* @return which area a segment lies in; *offset: bytes into it */
static unsigned area_of(const struct dma_segment *s, uint64_t *offset)
{
	if (s->mm) {
		*offset = s->addr;
		return (unsigned)(s->mm - mms);
	}
	*offset = s->addr - (uintptr_t)real[0];
	return 0;
}

/* @return a segment that is not mapped */
static struct dma_segment segment(struct mm *mm, uint64_t addr, uint32_t len)
{
	return (struct dma_segment){.mm = mm, .addr = addr, .len = len};
}

/* Cuts [offset, offset + len) of an area into up to 5 segments, some of them empty. */
static struct dma_list random_list(struct dma *dma, unsigned area, uint32_t len)
{
	struct dma_list l = {.count = 1 + below(5), .len = len};
	uint32_t part = len / l.count;

	l.seg = dma_segments(dma, l.count);
	for (uint32_t i = 0; i < l.count; i++) {
		uint32_t n = i + 1 < l.count ? (below(4) ? part : 0) : len;
		uint64_t at = below(AREA - n + 1);

		l.seg[i] = segment(area ? &mms[area] : NULL, area ? at : (uintptr_t)real[0] + at,
				   n);
		l.seg[i].mapped = !area && below(2);
		len -= n;
	}
	return l;
}

/* Copies bytes through a list of segments of the model. */
static void list_copy(const struct dma_list *l, uint8_t *buf, bool write)
{
	for (uint32_t i = 0; i < l->count; i++) {
		uint64_t offset;
		uint8_t *p = model[area_of(&l->seg[i], &offset)];

		if (write)
			memcpy(p + offset, buf, l->seg[i].len);
		else
			memcpy(buf, p + offset, l->seg[i].len);
		buf += l->seg[i].len;
	}
}

static bool list_fails(const struct dma_list *l)
{
	for (uint32_t i = 0; i < l->count; i++)
		if (l->seg[i].mm && l->seg[i].len &&
		    l->seg[i].addr + l->seg[i].len > l->seg[i].mm->limit)
			return true;
	return false;
}

static uint32_t next_done;

static void done(struct dma *dma, struct dma_op *op, int error)
{
	ck_assert_uint_eq(op->arg[0], next_done);
	next_done++;
	ck_assert_int_eq(error, list_fails(&op->src) || list_fails(&op->dst) ? -EFAULT : 0);
}

static void begin(void)
{
	for (unsigned a = 0; a < AREAS; a++) {
		for (unsigned i = 0; i < AREA; i++)
			real[a][i] = model[a][i] = (uint8_t)random();
		mms[a] = (struct mm){real[a], AREA};
	}
	next_done = 0;
}

/*
 * @return whether two lists, or two segments of one, share a byte: what copying one onto the other
 * leaves is not defined then
 */
static bool overlap(const struct dma_list *a, const struct dma_list *b)
{
	for (uint32_t i = 0; i < a->count; i++)
		for (uint32_t k = 0; k < b->count; k++) {
			const struct dma_segment *s = &a->seg[i], *t = &b->seg[k];

			if (s != t && s->mm == t->mm && s->len && t->len &&
			    s->addr < t->addr + t->len && t->addr < s->addr + s->len)
				return true;
		}
	return false;
}

/* Random operations between all areas, hazards included, leave what copying one by one leaves. */
START_TEST(agrees_with_a_model)
{
	struct dma *dma = dma_create(&backend, BOUNCE);
	uint8_t buf[AREA];

	srandom((unsigned)_i);
	begin();
	for (int round = 0; round < 300; round++) {
		uint32_t ops = 1 + below(below(4) ? 20 : 700), submitted = 0;
		uint32_t max = below(3) ? 64 : AREA / 2;
		size_t bytes = 0;

		next_done = 0;
		for (uint32_t i = 0; i < ops; i++) {
			unsigned from = below(AREAS), to = below(AREAS);
			uint32_t len = below(8) ? below(max) : 0;
			struct dma_list src = random_list(dma, from, len);
			struct dma_list dst = random_list(dma, to, len);
			struct dma_op *op;

			if (overlap(&src, &dst) || overlap(&dst, &dst))
				continue;
			op = dma_submit(dma);
			ck_assert(!op->done && !op->qp && !op->barrier && op->src.count == 0);
			op->src = src;
			op->dst = dst;
			op->done = done;
			op->barrier = below(16) == 0;
			op->arg[0] = submitted++;
			bytes += len;
			ck_assert_uint_eq(dma_pending(dma), bytes);
			list_copy(&src, buf, false);
			list_copy(&dst, buf, true);
		}
		dma_flush(dma);
		ck_assert_uint_eq(next_done, submitted);
		ck_assert_uint_eq(dma_pending(dma), 0);
		ck_assert_mem_eq(real, model, sizeof(real));
	}
	dma_destroy(dma);
}
END_TEST

/* Operations whose source, or destination, is not there are told; the bytes of all others are
 * right. */
START_TEST(failures_stay_alone)
{
	struct dma *dma = dma_create(&backend, BOUNCE);
	uint8_t buf[AREA];

	srandom((unsigned)_i);
	begin();
	mms[2].limit = AREA - 64;
	for (int round = 0; round < 300; round++) {
		uint32_t submitted = 0;

		next_done = 0;
		for (uint32_t i = 0; i < 40; i++) {
			uint32_t len = 1 + below(below(4) ? 200 : 3000);
			struct dma_list src = random_list(dma, below(AREAS), len);
			struct dma_list dst = random_list(dma, below(AREAS), len);
			bool bad = below(8) == 0;
			struct dma_op *op;

			if (list_fails(&src) || list_fails(&dst) || overlap(&src, &dst) ||
			    overlap(&dst, &dst))
				continue;
			if (bad) {
				struct dma_list *gone = below(2) ? &src : &dst;

				gone->count = 1;
				gone->seg[0] = segment(&mms[2], AREA - 64, len);
			} else {
				list_copy(&src, buf, false);
				list_copy(&dst, buf, true);
			}
			op = dma_submit(dma);
			op->src = src;
			op->dst = dst;
			op->done = done;
			op->arg[0] = submitted++;
		}
		dma_flush(dma);
		ck_assert_uint_eq(next_done, submitted);
		ck_assert_mem_eq(real, model, sizeof(real));
	}
	dma_destroy(dma);
}
END_TEST

/* A write that fails is told of, and those around it in the batch happen. */
START_TEST(failing_write)
{
	struct dma *dma = dma_create(&backend, BOUNCE);

	begin();
	mms[2].limit = 1000;
	for (uint32_t i = 0; i < 20; i++) {
		struct dma_op *op = dma_submit(dma);
		uint64_t to = i == 9 ? 950 : 40 * i;

		op->src = (struct dma_list){dma_segments(dma, 1), 1, 40};
		op->src.seg[0] = segment(&mms[1], 100 * i, 40);
		op->dst = (struct dma_list){dma_segments(dma, 1), 1, 40};
		op->dst.seg[0] = segment(&mms[i % 3 ? 3 : 2], to, 40);
		if (i == 9)
			op->dst.seg[0].len = op->src.seg[0].len = 100;
		else
			memcpy(model[i % 3 ? 3 : 2] + to, model[1] + 100 * i, 40);
		op->done = done;
		op->arg[0] = i;
	}
	dma_flush(dma);
	ck_assert_uint_eq(next_done, 20);
	ck_assert_mem_eq(real[3], model[3], AREA);
	ck_assert_mem_eq(real[2], model[2], 950);
	dma_destroy(dma);
}
END_TEST

/*
 * What has to be written again by itself is where it was read to, also a piece that the end of the
 * bounce buffer cuts short, wherever in their pages its ends lie.
 */
START_TEST(failing_write_at_the_end)
{
	struct dma *dma = dma_create(&backend, BOUNCE);

	for (uint32_t before = BOUNCE - 1200; before < BOUNCE; before += 7) {
		const uint32_t lens[] = {before - 8, 8, 2000};
		const uint32_t from[] = {0, 0, before - 30 + (before & 1 ? 0 : 2000)};
		const uint32_t to[] = {0, AREA, BOUNCE + (before & 1 ? 0 : before - BOUNCE + 30)};

		begin();
		for (uint32_t i = 0; i < 3; i++) {
			struct dma_op *op = dma_submit(dma);

			op->src = (struct dma_list){dma_segments(dma, 1), 1, lens[i]};
			op->src.seg[0] = segment(&mms[1], from[i], lens[i]);
			op->dst = (struct dma_list){dma_segments(dma, 1), 1, lens[i]};
			op->dst.seg[0] = segment(&mms[i == 1 ? 2 : 3], to[i], lens[i]);
			op->done = done;
			op->arg[0] = i;
		}
		memcpy(model[3], model[1], lens[0]);
		memcpy(model[3] + to[2], model[1] + from[2], lens[2]);
		dma_flush(dma);
		ck_assert_uint_eq(next_done, 3);
		ck_assert_mem_eq(real, model, sizeof(real));
	}
	dma_destroy(dma);
}
END_TEST

/*
 * What goes to memory that a client sees too comes behind earlier writes to clients, be it a copy
 * or a read straight to its place.
 */
START_TEST(mapped_in_order)
{
	struct dma *dma = dma_create(&backend, BOUNCE);

	begin();
	real[0][0] = model[0][0] = 0;
	real[0][4000] = model[0][4000] = real[1][300] = model[1][300] = 1;
	untouched = real[0];
	for (uint32_t i = 0; i < 2; i++) {
		struct dma_op *op = dma_submit(dma);

		op->src = (struct dma_list){dma_segments(dma, 1), 1, 40};
		op->dst = (struct dma_list){dma_segments(dma, 1), 1, 40};
		op->src.seg[0] = segment(&mms[1], 300, 40);
		op->dst.seg[0] = segment(&mms[3], 500, 40);
		if (i == 1) {
			op->dst.seg[0] = segment(NULL, (uintptr_t)real[0], 40);
			op->dst.seg[0].mapped = true;
			if (_i)
				op->src.seg[0] = segment(NULL, (uintptr_t)real[0] + 4000, 40);
		}
		op->done = done;
		op->arg[0] = i;
	}
	dma_flush(dma);
	ck_assert_uint_eq(next_done, 2);
	ck_assert_uint_eq(real[0][0], 1);
	ck_assert_uint_eq(real[3][500], 1);
	untouched = NULL;
	dma_destroy(dma);
}
END_TEST

static unsigned int chain_left;

static void chain(struct dma *dma, struct dma_op *op, int error)
{
	uint8_t byte;

	ck_assert_int_eq(dma_read_now(dma, op->dst.seg[0].mm, op->dst.seg[0].addr, &byte, 1), 0);
	ck_assert_uint_eq(byte, real[0][0]);
	dma_flush(dma); /* does nothing here */
	if (chain_left > 0) {
		struct dma_op *next = dma_submit(dma);

		chain_left--;
		next->src = op->src;
		next->dst = op->dst;
		next->dst.seg = dma_segments(dma, 1);
		next->dst.seg[0] = op->dst.seg[0];
		next->dst.seg[0].addr = (next->dst.seg[0].addr + 1) % 4096;
		next->done = chain;
	}
}

/* done() may submit: each round's bytes are there before its done(). */
START_TEST(done_submits)
{
	struct dma *dma = dma_create(&backend, BOUNCE);

	begin();
	chain_left = 100000;
	for (unsigned i = 0; i < 300; i++) {
		struct dma_op *op = dma_submit(dma);

		op->src = dma_local(dma, real[0], 1);
		op->dst = (struct dma_list){dma_segments(dma, 1), 1, 1};
		op->dst.seg[0] = segment(&mms[1 + i % 2], i, 1);
		op->done = chain;
	}
	dma_flush(dma);
	ck_assert_uint_eq(chain_left, 0);
	ck_assert_uint_eq(dma_pending(dma), 0);
	dma_destroy(dma);
}
END_TEST

/* Every slice of a list has the bytes it should have. */
START_TEST(slices)
{
	struct dma *dma = dma_create(&backend, BOUNCE);
	struct dma_list all = {dma_segments(dma, 4), 4, 17};
	static const uint32_t lens[4] = {5, 0, 1, 11};
	uint8_t buf[17], expect[17];

	begin();
	for (unsigned i = 0; i < 4; i++)
		all.seg[i] = segment(&mms[1], 1000 - 100 * i, lens[i]);
	list_copy(&all, expect, false);
	for (uint32_t from = 0; from <= 17; from++)
		for (uint32_t len = 0; from + len <= 17; len++) {
			struct dma_list s = dma_slice(dma, &all, from, len);
			uint32_t sum = 0;

			for (uint32_t i = 0; i < s.count; i++)
				sum += s.seg[i].len;
			ck_assert_uint_eq(sum, len);
			ck_assert_uint_eq(s.len, len);
			list_copy(&s, buf, false);
			ck_assert_mem_eq(buf, expect + from, len);
		}
	dma_destroy(dma);
}
END_TEST

/* Scratch memory of any size is usable and does not overlap. */
START_TEST(scratch)
{
	struct dma *dma = dma_create(&backend, BOUNCE);

	for (unsigned round = 0; round < 3; round++) {
		uint8_t *p[50];

		for (unsigned i = 0; i < 50; i++) {
			p[i] = dma_scratch(dma, i * 10000 + 1);
			memset(p[i], (int)i, i * 10000 + 1);
		}
		for (unsigned i = 0; i < 50; i++)
			ck_assert(p[i][0] == i && p[i][i * 10000] == i);
		dma_flush(dma);
	}
	dma_destroy(dma);
}
END_TEST

/* Small operations of one address space are batched into few calls; their cost is shown. */
START_TEST(batches)
{
	struct dma *dma = dma_create(&backend, 65536);
	struct timespec a, b;
	unsigned int rounds = 2000, n = 256;
	double ns;

	begin();
	calls = 0;
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (unsigned r = 0; r < rounds; r++) {
		for (unsigned i = 0; i < n; i++) {
			struct dma_op *op = dma_submit(dma);

			op->src = (struct dma_list){dma_segments(dma, 1), 1, 16};
			op->src.seg[0] = segment(&mms[1], i * 32, 16);
			op->dst = (struct dma_list){dma_segments(dma, 1), 1, 16};
			op->dst.seg[0] = segment(&mms[2], i * 32, 16);
		}
		dma_flush(dma);
	}
	clock_gettime(CLOCK_MONOTONIC, &b);
	ns = (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec);
	printf("%.1f ns an operation, the test's own memcpy loop included\n", ns / rounds / n);
	ck_assert_uint_eq(calls, 2 * rounds);
	dma_destroy(dma);
}
END_TEST

/* Wherever buffers lie in their pages, the bounce buffer is not where a copy would be slow. */
START_TEST(places)
{
	static const uint32_t at[] = {0, 1, 16, 63, 64, 100, 2048, 4032, 4080, 4095};
	struct dma *dma = dma_create(&backend, 65536);
	unsigned n = sizeof(at) / sizeof(at[0]);

	begin();
	no_slow_copies = true;
	for (unsigned i = 0; i < n * n * n; i++) {
		const uint32_t lens[] = {1024 + at[i % n] % 100, 3000}, src = at[i / n % n];

		for (unsigned k = 0; k < 2; k++) {
			struct dma_op *op = dma_submit(dma);

			op->src = (struct dma_list){dma_segments(dma, 1), 1, lens[k]};
			op->src.seg[0] = segment(&mms[1], src, lens[k]);
			op->dst = (struct dma_list){dma_segments(dma, 1), 1, lens[k]};
			op->dst.seg[0] = segment(&mms[2], at[i / n / n], lens[k]);
		}
		dma_flush(dma);
		ck_assert_mem_eq(mms[2].memory + at[i / n / n], mms[1].memory + src, 3000);
	}
	no_slow_copies = false;
	dma_destroy(dma);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("dma");
	TCase *tc = tcase_create("dma");
	SRunner *r = srunner_create(s);
	int failed;

	tcase_add_loop_test(tc, agrees_with_a_model, 1, 9);
	tcase_add_loop_test(tc, failures_stay_alone, 1, 5);
	tcase_add_test(tc, failing_write);
	tcase_add_test(tc, failing_write_at_the_end);
	tcase_add_test(tc, done_submits);
	tcase_add_loop_test(tc, mapped_in_order, 0, 2);
	tcase_add_test(tc, slices);
	tcase_add_test(tc, scratch);
	tcase_add_test(tc, places);
	tcase_add_test(tc, batches);
	suite_add_tcase(s, tc);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
