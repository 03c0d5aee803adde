/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A client's address space, and the ways into it: process_vm_readv/writev, or pread/pwrite on the
 * client's own /proc/self/mem.
 */
#ifndef VERNIC_MM_H
#define VERNIC_MM_H

#include <stdint.h>
#include <sys/types.h>

#include "dma.h"

enum mm_method {
	MM_PROCESS_VM,
	MM_PROC_MEM,
	MM_NULL, /* mm_null() */
};

struct mm;

/*
 * Finds a way into a client's memory by reading a word it named.
 * @pid: as the daemon sees it; 0: not visible
 * @mem_fd: the client's /proc/self/mem, or -1; the mm owns it from here on, error or not
 * @return 0, or a negative errno where no way works
 */
int mm_create(pid_t pid, int mem_fd, uint64_t probe_addr, uint64_t probe_value, struct mm **out);
void mm_destroy(struct mm *mm);
/* An address space of which every byte reads as 0, and where writes are lost. */
struct mm *mm_null(void);
enum mm_method mm_method(const struct mm *mm);
const char *mm_method_name(enum mm_method m);

extern const struct dma_backend mm_dma_backend;

#endif
