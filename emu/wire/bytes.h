/* SPDX-License-Identifier: BSD-2-Clause */
/* Big-endian fields of 16 to 64 bits, at any alignment. */
#ifndef VERNIC_BYTES_H
#define VERNIC_BYTES_H

#include <stdint.h>

/* @return the field at p, in host order */
static inline uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

/* As get16(), 24 bits. */
static inline uint32_t get24(const uint8_t *p)
{
	return (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
}

/* As get16(), 32 bits. */
static inline uint32_t get32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | get24(p + 1);
}

/* As get16(), 64 bits. */
static inline uint64_t get64(const uint8_t *p)
{
	return (uint64_t)get32(p) << 32 | get32(p + 4);
}

/* Stores v at p; of a wider value the low 16 bits. */
static inline void put16(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

/* As put16(), 24 bits. */
static inline void put24(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 16);
	put16(p + 1, v);
}

/* As put16(), 32 bits. */
static inline void put32(uint8_t *p, uint32_t v)
{
	put16(p, v >> 16);
	put16(p + 2, v);
}

/* As put16(), 64 bits. */
static inline void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)(v >> 32));
	put32(p + 4, (uint32_t)v);
}

#endif
