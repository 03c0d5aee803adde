/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * DMA: copies between the address spaces of clients and the daemon's own buffers.
 *
 * Theory of operation
 * -------------------
 * An operation copies a list of source segments onto a list of destination segments. A segment lies
 * in a client's address space (mm not NULL) or in the daemon's (mm NULL). dma_submit() queues;
 * dma_flush() carries the queue out and calls each operation's done() in the order of submission.
 * So an ACK or a CQE that must not be seen before its data is sent from done(). done() may submit
 * more operations; dma_flush() returns when the queue is empty.
 *
 * The order is that of a bus: an operation sees the bytes all earlier ones wrote, and the bytes of
 * one operation become visible in address order. Within that, consecutive operations are batched:
 * one readv and one writev of the address space (process_vm_*) carry as many as fit the bounce
 * buffer. The backend (struct dma_backend) is the only part with system calls; the simulator has
 * another one.
 *
 * An operation that fails (the client unmapped registered memory) has done() called with -EFAULT;
 * the others in its batch are not harmed.
 *
 * Segments come from dma_segments(), an arena that is reset when the queue has run empty: they are
 * valid until the dma_flush() after they were taken returns.
 */
#ifndef VERNIC_DMA_H
#define VERNIC_DMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <vernic/ring.h>

struct mm;
struct qp;
struct dma;

#define DMA_LONG 1024 /* bytes: where it begins to matter how fast a copy is */
#define DMA_SLOW 64   /* bytes: see dma_slow_copy() */

/*
 * @return whether a copy would be slow: the instruction by which kernels copy takes up to 20 times
 * as long on some CPUs (AMD Zen 3) when, in its page, the destination begins a little behind the
 * source (docs/performance.md)
 */
static inline bool dma_slow_copy(uint64_t to, uint64_t from)
{
	return (to - from - 1) % 4096 < DMA_SLOW - 1;
}

struct dma_segment {
	struct mm *mm; /* NULL: the daemon's own memory */
	uint64_t addr;
	uint32_t len;	  /* bytes */
	bool daemon_only; /* of a MR that the client's library cannot place bytes in */
	bool mapped;	  /* without mm: a client sees it too (mapping.h, device memory) */
};

/* A list of segments: the payload of a train, or where it goes. */
struct dma_list {
	struct dma_segment *seg;
	uint32_t count;
	uint32_t len; /* bytes, the sum */
};

struct dma_op {
	struct dma_list src;
	struct dma_list dst; /* same len; both may be empty: done() is called in turn */
	/* @error: 0 or -EFAULT */
	void (*done)(struct dma *dma, struct dma_op *op, int error);
	/* Closes the batch: nothing submitted later starts before done() has returned. */
	bool barrier;
	/* The submitter's, for done(). */
	struct qp *qp;
	void *ctx;
	uint32_t epoch; /* of the QP: a QP that was reset since ignores the operation */
	uint32_t arg[6];
	struct vernic_cqe cqe;
};

/* The system's side. Both return 0 or -EFAULT (nothing is promised about what was copied). */
struct dma_backend {
	int (*readv)(struct mm *mm, const struct iovec *local, unsigned nlocal,
		     const struct iovec *remote, unsigned nremote);
	int (*writev)(struct mm *mm, const struct iovec *local, unsigned nlocal,
		      const struct iovec *remote, unsigned nremote);
};

/*
 * @bounce: bytes of the bounce buffer, 4096 or more
 * @return NULL without memory
 */
struct dma *dma_create(const struct dma_backend *backend, size_t bounce);
void dma_destroy(struct dma *dma);

/* Takes count segments from the arena, uninitialised. Never NULL; count <= 4096. */
struct dma_segment *dma_segments(struct dma *dma, uint32_t count);

/*
 * Queues an operation and returns it for the caller to fill in (zeroed but for cqe). It is read at
 * the next dma_flush(), not before. Never NULL: the queue grows.
 */
struct dma_op *dma_submit(struct dma *dma);

/* Carries out everything queued, including what done() queues. */
void dma_flush(struct dma *dma);

/* Bytes queued and not carried out. */
size_t dma_pending(const struct dma *dma);

/* @return whether everything that was submitted is carried out */
bool dma_idle(const struct dma *dma);

/*
 * Reads or writes at once, whatever is queued: for atomics, from done() of a barrier operation.
 * @return 0 or -EFAULT
 */
int dma_read_now(struct dma *dma, struct mm *mm, uint64_t addr, void *buf, size_t len);
int dma_write_now(struct dma *dma, struct mm *mm, uint64_t addr, const void *buf, size_t len);

/* Cuts [offset, offset + len) out of a list. The result's segments come from the arena. */
struct dma_list dma_slice(struct dma *dma, const struct dma_list *list, uint32_t offset,
			  uint32_t len);

/* Takes len bytes from the arena, for data an operation reads. */
void *dma_scratch(struct dma *dma, uint32_t len);

/* A list of one segment of the daemon's own memory. */
struct dma_list dma_local(struct dma *dma, const void *buf, uint32_t len);

#endif
