/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Chance: which of the things a fault rule matches it strikes. Both halves step it (the library
 * for posts that shall fail, the daemon for everything else), so it is part of the contract.
 *
 * Deterministic: the same seed and the same number of steps strike the same things.
 */
#ifndef VERNIC_CHANCE_H
#define VERNIC_CHANCE_H

#include <stdbool.h>
#include <stdint.h>

struct vernic_chance {
	uint64_t state;	      /* of the generator; never 0 */
	uint64_t probability; /* in 2^-32: 1 << 32 strikes always */
	uint32_t skip;	      /* matches that pass first */
	uint32_t nth;	      /* strikes every nth match behind those; 0, 1: each */
	uint32_t burst;	      /* matches struck in a row once one is; 0, 1: it alone */
	uint32_t left;	      /* strikes left; UINT32_MAX: no end */
	/* where it is */
	uint32_t seen;	    /* matches since the last nth */
	uint32_t burst_left; /* of the burst under way */
};

/* Starts the generator. Seeds that differ by little give sequences that have nothing in common. */
static inline void vernic_chance_seed(struct vernic_chance *c, uint64_t seed)
{
	/* One step of splitmix64, whose every bit depends on every bit of the seed. */
	seed += UINT64_C(0x9e3779b97f4a7c15);
	seed = (seed ^ seed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	seed = (seed ^ seed >> 27) * UINT64_C(0x94d049bb133111eb);
	seed ^= seed >> 31;
	c->state = seed != 0 ? seed : 1;
}

/* @return the next 64 bits of the generator (xorshift64*) */
static inline uint64_t vernic_chance_random(struct vernic_chance *c)
{
	c->state ^= c->state >> 12;
	c->state ^= c->state << 25;
	c->state ^= c->state >> 27;
	return c->state * UINT64_C(0x2545f4914f6cdd1d);
}

/* Steps: one more thing matched. @return whether the rule strikes it */
static inline bool vernic_chance_strikes(struct vernic_chance *c)
{
	if (c->left == 0)
		return false;
	if (c->burst_left > 0) {
		c->burst_left--;
	} else {
		if (c->skip > 0) {
			c->skip--;
			return false;
		}
		if (c->nth > 1 && ++c->seen < c->nth)
			return false;
		c->seen = 0;
		if ((vernic_chance_random(c) >> 32) >= c->probability)
			return false;
		c->burst_left = c->burst > 1 ? c->burst - 1 : 0;
	}
	if (c->left != UINT32_MAX)
		c->left--;
	return true;
}

#endif
