/* SPDX-License-Identifier: BSD-2-Clause */
/* Client memory the daemon maps. */
#include "mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/*
 * Files mapped at one time, and how long one and all of them may be, bytes: a file may be much
 * longer than what is in it, and the daemon's address space is for all.
 */
#define MAPPINGS 1024
#define MAPPING_LONGEST (UINT64_C(1) << 40)
#define MAPPINGS_LONGEST (UINT64_C(1) << 44)

/*
 * The handler reads base, length and page from whatever thread the signal hits; base is 0 where
 * there is no mapping, and is stored last.
 */
struct mapping {
	_Atomic uintptr_t base;
	_Atomic size_t length; /* bytes, whole pages */
	_Atomic size_t page;   /* bytes of a page of the file */
	/* From here to its end it is the file's no more, and no use for new regions; 0: all is. */
	_Atomic uintptr_t torn;
	atomic_flag tearing; /* held by the handler */
	dev_t dev;
	ino_t ino;
	uint32_t users;
};

static struct mapping mappings[MAPPINGS];
static uint64_t mapped; /* bytes, of all */

/*
 * A page of a mapping is gone: puts zeros in its place, and in that of all behind it, which were
 * cut off with it. Page by page, a client that cuts a large file could make the daemon have more
 * areas than a process may.
 * @start, @end: of the page and of the mapping
 * @return whether it could
 */
static bool tear(struct mapping *m, uintptr_t start, uintptr_t end)
{
	uintptr_t torn;
	bool ok = true;

	/* Whoever holds it is in this function too, and waits for nothing. */
	while (atomic_flag_test_and_set_explicit(&m->tearing, memory_order_acquire))
		;
	torn = atomic_load_explicit(&m->torn, memory_order_relaxed);
	if (torn != 0)
		end = torn;
	/* What another thread, or an earlier fault, has replaced may have been written to since. */
	if (start < end)
		ok = mmap((void *)start, end - start, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
			  0) != MAP_FAILED;
	if (start < end && ok)
		atomic_store_explicit(&m->torn, start, memory_order_relaxed);
	atomic_flag_clear_explicit(&m->tearing, memory_order_release);
	return ok;
}

/* The handler of SIGBUS. Any thread; async-signal-safe. */
static void mapping_fault(int signal, siginfo_t *info, void *context)
{
	uintptr_t addr = (uintptr_t)info->si_addr;
	int error = errno;

	(void)context;
	for (struct mapping *m = mappings; m < mappings + MAPPINGS; m++) {
		uintptr_t base = atomic_load_explicit(&m->base, memory_order_acquire);
		size_t length = atomic_load_explicit(&m->length, memory_order_relaxed);
		size_t page = atomic_load_explicit(&m->page, memory_order_relaxed);

		if (base == 0 || addr < base || addr - base >= length)
			continue;
		addr &= ~(uintptr_t)(page - 1);
		if (!tear(m, addr, base + length))
			break;
		errno = error;
		return;
	}
	/* A defect of the daemon's own, or no memory: end as without a handler. */
	struct sigaction dfl = {.sa_handler = SIG_DFL};
	sigaction(signal, &dfl, NULL);
}

int mapping_init(void)
{
	struct sigaction action = {.sa_sigaction = mapping_fault, .sa_flags = SA_SIGINFO};

	sigemptyset(&action.sa_mask);
	return sigaction(SIGBUS, &action, NULL) == 0 ? 0 : -errno;
}

/*
 * Looks whether a file may be mapped: only memory, for a page of anything else could keep a worker
 * waiting for a server of the client's; and only what the client itself may map to write. That a
 * mapping is here already, made before the file was sealed, is nobody else's right.
 * @page: out: bytes of a page
 */
static bool file_fits(int fd, struct stat *st, uint64_t offset, uint64_t length, size_t *page)
{
	struct statfs fs;
	int flags = fcntl(fd, F_GETFL), seals = fcntl(fd, F_GET_SEALS);

	if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) != O_RDWR)
		return false;
	/* Only files of memory have seals. */
	if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0)
		return false;
	if (fstat(fd, st) != 0 || !S_ISREG(st->st_mode) || fstatfs(fd, &fs) != 0)
		return false;
	if (fs.f_type == TMPFS_MAGIC)
		*page = (size_t)sysconf(_SC_PAGESIZE);
	else if (fs.f_type == HUGETLBFS_MAGIC)
		*page = (size_t)fs.f_bsize;
	else
		return false;
	return (uint64_t)st->st_size >= length && offset <= (uint64_t)st->st_size - length;
}

/* @return whether every page of [p, p + length) is in memory: touching a hole would make a page */
static bool all_there(uint8_t *p, uint64_t length, size_t page)
{
	uintptr_t start = (uintptr_t)p & ~(uintptr_t)(page - 1);
	uintptr_t end = ((uintptr_t)p + length + page - 1) & ~(uintptr_t)(page - 1);
	size_t small = (size_t)sysconf(_SC_PAGESIZE), left = (end - start) / small;
	unsigned char there[4096];

	while (left > 0) {
		size_t n = left < sizeof(there) ? left : sizeof(there);

		if (mincore((void *)start, n * small, there) != 0)
			return false;
		for (size_t i = 0; i < n; i++) {
			if (!(there[i] & 1))
				return false;
		}
		start += n * small;
		left -= n;
	}
	return true;
}

/* @return the mapping of a file that is long enough, or NULL and a free place, or NULL for both */
static struct mapping *mapping_find(const struct stat *st, uint64_t end, struct mapping **place)
{
	*place = NULL;
	for (struct mapping *m = mappings; m < mappings + MAPPINGS; m++) {
		if (m->users == 0) {
			if (*place == NULL)
				*place = m;
		} else if (m->dev == st->st_dev && m->ino == st->st_ino && m->length >= end &&
			   atomic_load_explicit(&m->torn, memory_order_relaxed) == 0) {
			return m;
		}
	}
	return NULL;
}

int mapping_get(int fd, uint64_t offset, uint64_t length, struct mapping **out, uint8_t **addr)
{
	struct mapping *m, *place;
	struct stat st;
	size_t page, size;
	void *base;

	if (length == 0 || !file_fits(fd, &st, offset, length, &page))
		return -EINVAL;
	m = mapping_find(&st, offset + length, &place);
	if (m == NULL) {
		if (place == NULL || (uint64_t)st.st_size > MAPPING_LONGEST)
			return -ENOSPC;
		m = place;
		size = ((size_t)st.st_size + page - 1) & ~(page - 1);
		if (size > MAPPINGS_LONGEST - mapped)
			return -ENOSPC;
		base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (base == MAP_FAILED)
			return -errno;
		madvise(base, size, MADV_DONTDUMP);
		mapped += size;
		atomic_store_explicit(&m->torn, 0, memory_order_relaxed);
		m->dev = st.st_dev;
		m->ino = st.st_ino;
		atomic_store_explicit(&m->length, size, memory_order_relaxed);
		atomic_store_explicit(&m->page, page, memory_order_relaxed);
		atomic_store_explicit(&m->base, (uintptr_t)base, memory_order_release);
	}
	m->users++;
	*addr = (uint8_t *)m->base + offset;
	if (!all_there(*addr, length, page)) {
		mapping_put(m);
		return -ENODATA;
	}
	/* So that no worker takes the faults. If the file is cut just now, they are taken later. */
	base = (void *)((uintptr_t)*addr & ~(uintptr_t)(page - 1));
	madvise(base, (size_t)(*addr + length - (uint8_t *)base), MADV_POPULATE_WRITE);
	*out = m;
	return 0;
}

void mapping_put(struct mapping *m)
{
	uintptr_t base;

	if (m == NULL || --m->users > 0)
		return;
	base = m->base;
	atomic_store_explicit(&m->base, 0, memory_order_release);
	munmap((void *)base, m->length);
	mapped -= m->length;
}
