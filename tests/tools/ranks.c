// SPDX-License-Identifier: BSD-2-Clause
/*
 * An MPI program that checks what it gets: messages of 0 bytes to 4 MiB around a ring, many at once
 * and in another order than they are received in, collectives, and a window with puts, gets and
 * atomics. Rank 0 prints a line at the end; what is wrong ends the job.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#define FLIGHT 48      /* messages under way at once to each other rank */
#define ROUNDS 20      /* of atomics */
#define SHARE  1000000 /* bytes of a window that belong to one rank */

static int rank, ranks;
static uint64_t checked; /* bytes */

/* Ends the job unless ok. */
static void need(int ok, const char *what, long detail)
{
	if (ok)
		return;
	fprintf(stderr, "ranks: rank %d of %d: %s (%ld)\n", rank, ranks, what, detail);
	MPI_Abort(MPI_COMM_WORLD, 1);
	abort();
}

/* Memory of its own for each message: what was freed is not there any more. */
static uint8_t *buffer(size_t size)
{
	uint8_t *p = malloc(size ? size : 1);

	need(p != NULL, "no memory for a message", (long)size);
	return p;
}

/* The byte at i of what `from` sends; word tells messages of a rank from each other. */
static uint8_t pattern(int from, long word, size_t i)
{
	return (uint8_t)(i * 7 + (i >> 8) + (i >> 16) + (size_t)from * 29 + (size_t)word * 101 + 1);
}

static void fill(uint8_t *p, size_t size, int from, long word)
{
	for (size_t i = 0; i < size; i++)
		p[i] = pattern(from, word, i);
}

static void check(const uint8_t *p, size_t size, int from, long word, const char *what)
{
	for (size_t i = 0; i < size; i++)
		need(p[i] == pattern(from, word, i), what, (long)i);
	checked += size;
}

/* Each size from rank to rank, all at the same time. */
static void ring(void)
{
	static const size_t sizes[] = {0,    1,	    7,	    8,	    63,	     64,      1000, 4096,
				       8191, 16384, 65535, 65536, 300001, 1 << 20, 4 << 20};
	int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;

	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		uint8_t *out = buffer(sizes[k]), *in = buffer(sizes[k]);
		MPI_Status status;
		int count;

		fill(out, sizes[k], rank, (long)k);
		memset(in, 0, sizes[k]);
		MPI_Sendrecv(out, (int)sizes[k], MPI_BYTE, next, (int)k, in, (int)sizes[k],
			     MPI_BYTE, previous, (int)k, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &count);
		need(count == (int)sizes[k] && status.MPI_SOURCE == previous, "a wrong message",
		     count);
		check(in, sizes[k], previous, (long)k, "wrong bytes around the ring");
		free(out);
		free(in);
	}
}

/* Many messages to everybody, received last to first: most come unexpectedly. */
static void flight(void)
{
	size_t n = (size_t)ranks * FLIGHT;
	MPI_Request *sends = malloc(n * sizeof(*sends));
	uint8_t **out = malloc(n * sizeof(*out));
	int used = 0;

	need(sends && out, "no memory", (long)n);
	for (int to = 0; to < ranks; to++) {
		for (int k = 0; k < FLIGHT; k++, used++) {
			out[used] = buffer((size_t)(k * k * 40));
			fill(out[used], (size_t)(k * k * 40), rank, k);
			MPI_Isend(out[used], k * k * 40, MPI_BYTE, to, k, MPI_COMM_WORLD,
				  &sends[used]);
		}
	}
	for (int from = ranks - 1; from >= 0; from--) {
		for (int k = FLIGHT - 1; k >= 0; k--) {
			uint8_t *in = buffer((size_t)(k * k * 40));

			MPI_Recv(in, k * k * 40, MPI_BYTE, from, k, MPI_COMM_WORLD,
				 MPI_STATUS_IGNORE);
			check(in, (size_t)(k * k * 40), from, k, "wrong bytes of many");
			free(in);
		}
	}
	MPI_Waitall(used, sends, MPI_STATUSES_IGNORE);
	for (int i = 0; i < used; i++)
		free(out[i]);
	free(out);
	free(sends);
}

static void collectives(void)
{
	static const int counts[] = {1, 100, 5000, 200000};

	for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
		size_t bytes = (size_t)counts[k] * sizeof(int64_t);
		int64_t *in = malloc(bytes), *out = malloc(bytes);
		uint8_t *all = buffer((size_t)counts[k]);

		need(in && out, "no memory", counts[k]);
		for (int i = 0; i < counts[k]; i++)
			in[i] = (int64_t)(i + 1) * (rank + 1);
		MPI_Allreduce(in, out, counts[k], MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < counts[k]; i++)
			need(out[i] == (int64_t)(i + 1) * ranks * (ranks + 1) / 2, "a wrong sum",
			     i);
		checked += bytes;

		if (rank == ranks - 1)
			fill(all, (size_t)counts[k], rank, (long)k);
		MPI_Bcast(all, counts[k], MPI_BYTE, ranks - 1, MPI_COMM_WORLD);
		check(all, (size_t)counts[k], ranks - 1, (long)k, "wrong bytes of a broadcast");
		free(in);
		free(out);
		free(all);
	}
}

/* Each rank puts into the next one's window, gets from the previous one's, and counts in the first's. */
static void window(void)
{
	int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	uint8_t *mine, *in = buffer(SHARE), *out = buffer(SHARE);
	int64_t one = 1, before, last = -1;
	int64_t *counter;
	MPI_Win bytes, words;

	MPI_Win_allocate(2 * SHARE, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &bytes);
	MPI_Win_allocate(sizeof(*counter), sizeof(*counter), MPI_INFO_NULL, MPI_COMM_WORLD,
			 &counter, &words);
	fill(mine, SHARE, rank, 1);
	*counter = 0;
	fill(out, SHARE, rank, 2);
	MPI_Win_fence(0, bytes);
	MPI_Put(out, SHARE, MPI_BYTE, next, SHARE, SHARE, MPI_BYTE, bytes);
	MPI_Get(in, SHARE, MPI_BYTE, previous, 0, SHARE, MPI_BYTE, bytes);
	MPI_Win_fence(0, bytes);
	check(mine + SHARE, SHARE, previous, 2, "wrong bytes of a put");
	check(in, SHARE, previous, 1, "wrong bytes of a get");

	MPI_Win_fence(0, words);
	MPI_Win_lock_all(0, words);
	for (int i = 0; i < ROUNDS; i++) {
		MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, words);
		MPI_Win_flush(0, words);
		need(before > last && before < (int64_t)ROUNDS * ranks, "a count went back",
		     (long)before);
		last = before;
	}
	MPI_Win_unlock_all(words);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, words);
	MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_NO_OP, words);
	MPI_Win_unlock(0, words);
	need(before == (int64_t)ROUNDS * ranks, "a wrong count", (long)before);

	MPI_Win_free(&words);
	MPI_Win_free(&bytes);
	free(in);
	free(out);
}

int main(int argc, char **argv)
{
	uint64_t total;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	ring();
	flight();
	collectives();
	window();
	MPI_Reduce(&checked, &total, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks, %llu bytes checked\n", ranks, (unsigned long long)total);
	MPI_Finalize();
	return 0;
}
