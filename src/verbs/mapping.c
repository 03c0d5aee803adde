/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The file behind a region, for the daemon to map: memory that is shared (memfd, /dev/shm,
 * hugetlbfs) is copied to and from at the speed of memory then. What is not found, or not shared,
 * is reached as any other memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "internal.h"

/* Below that the way through the kernel costs little more, and looking costs as much. */
#define MAPPING_MIN 16384

/* A line of /proc/self/maps (proc(5)). */
struct area {
	uintptr_t start, end;
	uint64_t offset; /* of start in the file */
	dev_t dev;
	ino_t ino;
	char path[256]; /* cut short if longer */
};

/* @return whether it is the file of the area, and may be written */
static bool same_file(int fd, const struct area *a)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_dev == a->dev && st.st_ino == a->ino &&
	       (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}

/* Finds the shared, writable area that holds [addr, addr + length) as a whole. */
static bool find_area(uintptr_t addr, size_t length, struct area *a)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512], perms[5];
	bool found = false;

	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f)) {
		unsigned int major, minor;
		uintmax_t offset, ino;
		int n = 0;

		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %jx %x:%x %ju %n", &a->start,
			   &a->end, perms, &offset, &major, &minor, &ino, &n) < 7 ||
		    a->end <= addr)
			continue;
		if (a->start > addr || a->end - addr < length || strncmp(perms, "rw", 2) != 0 ||
		    perms[3] != 's' || ino == 0)
			break;
		line[strcspn(line, "\n")] = 0;
		snprintf(a->path, sizeof(a->path), "%.255s", line + n);
		a->offset = offset;
		a->dev = makedev(major, minor);
		a->ino = (ino_t)ino;
		found = true;
	}
	fclose(f);
	return found;
}

/* A descriptor of the process that is the file of the area. @return a copy of it, or -1 */
static int own_descriptor(const struct area *a)
{
	int fd, limit = (int)sysconf(_SC_OPEN_MAX), misses = 0;

	/* Descriptors are dense: behind a long gap there are none. */
	for (fd = 0; fd < limit && misses < 256; fd++) {
		if (same_file(fd, a))
			return fcntl(fd, F_DUPFD_CLOEXEC, 0);
		misses = fcntl(fd, F_GETFD) < 0 ? misses + 1 : 0;
	}
	return -1;
}

int mapping_find(const void *addr, size_t length, uint64_t *offset)
{
	static const char shm[] = "/dev/shm/";
	char path[64];
	struct area a;
	int fd, error = errno;

	if (length < MAPPING_MIN || !find_area((uintptr_t)addr, length, &a))
		return -1;
	*offset = a.offset + ((uintptr_t)addr - a.start);
	/* This works whatever became of name and descriptors, but takes a capability. */
	snprintf(path, sizeof(path), "/proc/self/map_files/%" PRIxPTR "-%" PRIxPTR, a.start, a.end);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fd = own_descriptor(&a);
	/* Opening has effects on some files (a device's): those of memory have known places. */
	if (fd < 0 && (strncmp(a.path, shm, sizeof(shm) - 1) == 0 || strstr(a.path, "huge")))
		fd = open(a.path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (fd >= 0 && !same_file(fd, &a)) {
		close(fd);
		fd = -1;
	}
	errno = error;
	return fd;
}
