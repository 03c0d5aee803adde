// SPDX-License-Identifier: BSD-2-Clause
/*
 * Runs a fuzz target without libFuzzer: `fuzz-NAME SEED SECONDS [CORPUS]`. First the inputs of the
 * corpus directory as they are, then changed ones and random ones, until the time is over. Each
 * follows from its number; a run that fails says which it was.
 */
#include <dirent.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

#define INPUT_MAX 4096 /* bytes */
#define MAX_CORPUS 1024

/* The sanitizers', where they are there. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static struct {
	uint8_t *data;
	size_t size;
} corpus[MAX_CORPUS];
static unsigned int corpus_count;
static uint64_t number; /* of the input under way: the seed it is made from */

static uint64_t rnd(uint64_t *seed)
{
	uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static void say_number(void)
{
	dprintf(2, "input %llu failed: run with SEED %llu, SECONDS 0, and the same corpus\n",
		(unsigned long long)number, (unsigned long long)number);
}

static void on_abort(int sig)
{
	say_number();
	signal(sig, SIG_DFL);
	raise(sig);
}

static void corpus_read(const char *dir)
{
	struct dirent **names;
	int n = scandir(dir, &names, NULL, alphasort);

	CHECK(n >= 0);
	for (int i = 0; i < n; i++) {
		char path[4096];
		FILE *f;

		snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
		if (names[i]->d_name[0] != '.' && corpus_count < MAX_CORPUS &&
		    (f = fopen(path, "rb")) != NULL) {
			uint8_t *data = malloc(INPUT_MAX);

			CHECK(data);
			corpus[corpus_count].size = fread(data, 1, INPUT_MAX, f);
			corpus[corpus_count++].data = data;
			fclose(f);
		}
		free(names[i]);
	}
	free(names);
	CHECK(corpus_count > 0);
}

/* Runs one input, in a block of exactly its size: a sanitizer sees one byte too many. */
static void run(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);

	CHECK(copy);
	memcpy(copy, data, size);
	LLVMFuzzerTestOneInput(copy, size);
	free(copy);
}

/* Makes an input of a seed, and runs it: a few changes to one of the corpus, or anything. */
static void run_seed(uint64_t seed)
{
	static uint8_t buf[INPUT_MAX];
	size_t size;

	if (corpus_count && rnd(&seed) % 4) {
		unsigned int k = (unsigned int)(rnd(&seed) % corpus_count);
		unsigned int changes = (unsigned int)(rnd(&seed) % 8);

		size = corpus[k].size;
		memcpy(buf, corpus[k].data, size);
		for (; changes && size; changes--) {
			size_t at = rnd(&seed) % size;

			switch (rnd(&seed) % 4) {
			case 0:
				buf[at] = (uint8_t)rnd(&seed);
				break;
			case 1:
				buf[at] ^= (uint8_t)(1u << rnd(&seed) % 8);
				break;
			case 2: /* a byte goes */
				memmove(buf + at, buf + at + 1, --size - at);
				break;
			default: /* one more */
				if (size < INPUT_MAX) {
					memmove(buf + at + 1, buf + at, size++ - at);
					buf[at] = (uint8_t)rnd(&seed);
				}
				break;
			}
		}
	} else {
		size = rnd(&seed) % (rnd(&seed) % 2 ? INPUT_MAX : 128);
		for (size_t i = 0; i < size; i++)
			buf[i] = (uint8_t)rnd(&seed);
	}
	run(buf, size);
}

int main(int argc, char **argv)
{
	struct timespec now;
	unsigned long runs = 0;
	time_t end;

	number = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	signal(SIGABRT, on_abort);
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(say_number);
	if (argc > 3)
		corpus_read(argv[3]);
	clock_gettime(CLOCK_MONOTONIC, &now);
	end = now.tv_sec + (argc > 2 ? atoi(argv[2]) : 5);
	for (unsigned int i = 0; i < corpus_count; i++)
		run(corpus[i].data, corpus[i].size);
	do {
		run_seed(number);
		number++;
		if (++runs % 16 == 0)
			clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < end);
	printf("%u inputs of the corpus, %lu others\n", corpus_count, runs);
	for (unsigned int i = 0; i < corpus_count; i++)
		free(corpus[i].data);
	return 0;
}
