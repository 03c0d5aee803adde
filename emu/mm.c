/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A client's address space, and the ways into it.
 *
 * process_vm_readv/writev is the fast way from 64 KiB on and respects page protections; it may be
 * refused (Yama, another user, seccomp, another PID namespace). /proc/self/mem, opened by the
 * client itself, needs no rights later; it ignores page protections, which registration has
 * checked.
 */
#include "mm.h"

#include <errno.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "log.h"

struct mm {
	enum mm_method method;
	pid_t pid;  /* MM_PROCESS_VM */
	int mem_fd; /* MM_PROC_MEM; -1 */
};

/* A place in a list of iovecs. */
struct mm_cursor {
	const struct iovec *iov;
	unsigned int count; /* iovecs left, the current one included */
	size_t offset;	    /* bytes done of the current one */
};

/* Iovecs of one call where a list has to be cut. */
#define MM_SLICE 64

/* Steps over bytes that are done. */
static void mm_advance(struct mm_cursor *c, size_t bytes)
{
	c->offset += bytes;
	while (c->count > 0 && c->offset >= c->iov->iov_len) {
		c->offset -= c->iov->iov_len;
		c->iov++;
		c->count--;
	}
}

/*
 * Copies out what lies next in a list.
 * @max: bytes at most
 * @return iovecs written to slice
 */
static unsigned int mm_take(const struct mm_cursor *c, struct iovec slice[MM_SLICE], size_t max)
{
	size_t offset = c->offset;
	unsigned int n = 0;

	for (unsigned int i = 0; i < c->count && n < MM_SLICE && max > 0; i++) {
		size_t len = c->iov[i].iov_len - offset;

		if (len > max)
			len = max;
		slice[n].iov_base = (char *)c->iov[i].iov_base + offset;
		slice[n++].iov_len = len;
		max -= len;
		offset = 0;
	}
	return n;
}

/* @return the sum of the lengths, bytes */
static size_t mm_total(const struct iovec *iov, unsigned int count)
{
	size_t sum = 0;

	for (unsigned int i = 0; i < count; i++)
		sum += iov[i].iov_len;
	return sum;
}

/* One system call, either way. @return bytes, or -1 with errno */
static ssize_t mm_process_vm(const struct mm *mm, bool write, const struct iovec *local,
			     unsigned int nlocal, const struct iovec *remote, unsigned int nremote)
{
	if (write)
		return process_vm_writev(mm->pid, local, nlocal, remote, nremote, 0);
	return process_vm_readv(mm->pid, local, nlocal, remote, nremote, 0);
}

/* One system call on /proc/PID/mem: the first remote range of the slice. */
static ssize_t mm_proc_mem(const struct mm *mm, bool write, const struct mm_cursor *local,
			   const struct mm_cursor *remote)
{
	struct iovec slice[MM_SLICE];
	size_t len = remote->iov->iov_len - remote->offset;
	unsigned int n = mm_take(local, slice, len);
	off_t at = (off_t)((uintptr_t)remote->iov->iov_base + remote->offset);

	if (write)
		return pwritev(mm->mem_fd, slice, (int)n, at);
	return preadv(mm->mem_fd, slice, (int)n, at);
}

/*
 * Copies between the two lists, whose sums are equal.
 * @return 0 or -EFAULT
 */
static int mm_copy(struct mm *mm, bool write, const struct iovec *local, unsigned int nlocal,
		   const struct iovec *remote, unsigned int nremote)
{
	struct mm_cursor l = {.iov = local, .count = nlocal};
	struct mm_cursor r = {.iov = remote, .count = nremote};
	size_t left = mm_total(local, nlocal);

	if (mm_total(remote, nremote) < left)
		return -EFAULT;
	if (mm->method == MM_PROCESS_VM && nlocal <= IOV_MAX && nremote <= IOV_MAX && left > 0) {
		ssize_t n = mm_process_vm(mm, write, local, nlocal, remote, nremote);

		if (n == (ssize_t)left)
			return 0;
		if (n <= 0 && errno != EINTR)
			return -EFAULT;
		if (n > 0) {
			left -= (size_t)n;
			mm_advance(&l, (size_t)n);
			mm_advance(&r, (size_t)n);
		}
	}
	/* In pieces: a long list, a partial transfer, or /proc/PID/mem. */
	mm_advance(&l, 0);
	mm_advance(&r, 0);
	while (left > 0) {
		ssize_t n;

		if (mm->method == MM_PROCESS_VM) {
			struct iovec ls[MM_SLICE], rs[MM_SLICE];
			unsigned int nl = mm_take(&l, ls, SIZE_MAX);
			unsigned int nr = mm_take(&r, rs, mm_total(ls, nl));

			n = mm_process_vm(mm, write, ls, nl, rs, nr);
		} else {
			n = mm_proc_mem(mm, write, &l, &r);
		}
		if (n < 0 && errno == EINTR)
			continue;
		/* 0: the address space is gone. */
		if (n <= 0)
			return -EFAULT;
		left -= (size_t)n;
		mm_advance(&l, (size_t)n);
		mm_advance(&r, (size_t)n);
	}
	return 0;
}

/* dma_backend.readv */
static int mm_readv(struct mm *mm, const struct iovec *local, unsigned int nlocal,
		    const struct iovec *remote, unsigned int nremote)
{
	if (mm->method == MM_NULL) {
		for (unsigned int i = 0; i < nlocal; i++)
			memset(local[i].iov_base, 0, local[i].iov_len);
		return 0;
	}
	return mm_copy(mm, false, local, nlocal, remote, nremote);
}

/* dma_backend.writev */
static int mm_writev(struct mm *mm, const struct iovec *local, unsigned int nlocal,
		     const struct iovec *remote, unsigned int nremote)
{
	if (mm->method == MM_NULL)
		return 0;
	return mm_copy(mm, true, local, nlocal, remote, nremote);
}

const struct dma_backend mm_dma_backend = {.readv = mm_readv, .writev = mm_writev};

/* Tries the mm's method on the word the client named. @return 0 or a negative errno */
static int mm_probe(struct mm *mm, uint64_t addr, uint64_t value)
{
	uint64_t word = 0;
	struct iovec local = {.iov_base = &word, .iov_len = sizeof(word)};
	struct iovec remote = {.iov_base = (void *)(uintptr_t)addr, .iov_len = sizeof(word)};
	int err;

	errno = 0;
	err = mm_readv(mm, &local, 1, &remote, 1);
	if (err != 0)
		return errno != 0 ? -errno : err;
	/* Another process of that number: the PID is of another namespace. */
	if (word != value)
		return -ESRCH;
	/* A filter may refuse one direction only. Nothing is written. */
	if (mm->method == MM_PROCESS_VM && process_vm_writev(mm->pid, NULL, 0, NULL, 0, 0) != 0)
		return -errno;
	return 0;
}

/* @return whether the fd is a file of procfs: reading anything else could hang a worker */
static bool mm_is_proc(int fd)
{
	struct statfs s;

	return fstatfs(fd, &s) == 0 && s.f_type == PROC_SUPER_MAGIC;
}

int mm_create(pid_t pid, int mem_fd, uint64_t probe_addr, uint64_t probe_value, struct mm **out)
{
	struct mm *mm = calloc(1, sizeof(*mm));
	int vm_err = -ESRCH, mem_err = -EBADF;

	if (mm == NULL) {
		if (mem_fd >= 0)
			close(mem_fd);
		return -ENOMEM;
	}
	mm->pid = pid;
	mm->mem_fd = mem_fd;
	mm->method = MM_PROCESS_VM;
	if (pid > 0)
		vm_err = mm_probe(mm, probe_addr, probe_value);
	if (vm_err == 0) {
		if (mem_fd >= 0)
			close(mem_fd);
		mm->mem_fd = -1;
		*out = mm;
		return 0;
	}
	mm->method = MM_PROC_MEM;
	if (mem_fd >= 0 && mm_is_proc(mem_fd))
		mem_err = mm_probe(mm, probe_addr, probe_value);
	if (mem_err == 0) {
		log_debug("process %d: process_vm_readv: %s; using /proc/self/mem", (int)pid,
			  strerror(-vm_err));
		*out = mm;
		return 0;
	}
	log_warning(
		"no way into the memory of process %d: process_vm_readv: %s; /proc/self/mem: %s",
		(int)pid, strerror(-vm_err), strerror(-mem_err));
	mm_destroy(mm);
	return vm_err;
}

struct mm *mm_null(void)
{
	static struct mm null = {.method = MM_NULL, .mem_fd = -1};

	return &null;
}

void mm_destroy(struct mm *mm)
{
	if (mm->mem_fd >= 0)
		close(mm->mem_fd);
	free(mm);
}

enum mm_method mm_method(const struct mm *mm)
{
	return mm->method;
}

const char *mm_method_name(enum mm_method m)
{
	return m == MM_PROCESS_VM ? "process_vm" : "proc_mem";
}
