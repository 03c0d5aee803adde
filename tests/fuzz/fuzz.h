/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the fuzz targets share. A target is one function, LLVMFuzzerTestOneInput(), which libFuzzer
 * calls (meson -Dfuzz=true, scripts/fuzz), or the seeded program of driver.c (every other build).
 * Everything a target does follows from the bytes of its input, so an input is a reproducer.
 */
#ifndef VERNIC_TEST_FUZZ_H
#define VERNIC_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                                        \
	do {                                                                               \
		if (!(cond)) {                                                             \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                           \
		}                                                                          \
	} while (0)

/* @return 0 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An input, taken from its front; behind its end everything is 0. */
struct input {
	const uint8_t *p;
	size_t left; /* bytes */
};

/* @return the next n bytes as a number; n <= 8 */
static inline uint64_t take(struct input *in, unsigned int n)
{
	uint64_t v = 0;

	for (; n && in->left; n--, in->left--)
		v = v << 8 | *in->p++;
	return v;
}

/* @return a number below n, of as few bytes as it takes */
static inline uint32_t take_below(struct input *in, uint32_t n)
{
	return (uint32_t)(take(in, n <= 1 << 8 ? 1 : n <= 1 << 16 ? 2 : 4) % n);
}

#endif
