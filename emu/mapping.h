/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Client memory the daemon maps: regions in memory that can be shared (memfd, /dev/shm, hugetlbfs).
 *
 * Theory of operation
 * -------------------
 * The library finds the file behind a region and passes it when registering; the daemon maps it and
 * copies with plain loads and stores, where the other ways into a client's memory cost a system
 * call and, between two clients, a second copy. A file is mapped once, as a whole, however many
 * regions and clients share it: so a byte has one address here, and dma can tell what overlaps.
 *
 * The file may be cut short under the mapping. An adapter keeps the pages it has pinned; here those
 * that are gone are replaced by ones nobody else sees (SIGBUS), with the same effect: the daemon
 * goes on, and the bytes are lost to the program that cut its own file. Regions of the file that
 * are registered later get a mapping of their own.
 */
#ifndef VERNIC_MAPPING_H
#define VERNIC_MAPPING_H

#include <stdint.h>

struct mapping;

/* Installs the handler of SIGBUS. Once, before the first mapping_get(). @return 0 or -errno */
int mapping_init(void);

/*
 * Maps the file that holds a region. Control thread.
 * @fd: stays the caller's
 * @offset, @length: of the region in the file, bytes
 * @addr: out: where the region's first byte is
 * @return 0; -EINVAL: a file of another kind, one that may not be written, or shorter; -ENODATA: it
 * has holes there; -ENOSPC: too many files, or too long ones; what mmap(2) says
 */
int mapping_get(int fd, uint64_t offset, uint64_t length, struct mapping **m, uint8_t **addr);

/* Gives it up; no worker may still use it for that region. Control thread. NULL: nothing. */
void mapping_put(struct mapping *m);

#endif
