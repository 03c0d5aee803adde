/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * DMA: the queue of copy operations, and batching them.
 *
 * Theory of operation
 * -------------------
 * dma_flush() carries out a batch of operations from the head of the queue, calls their done()s,
 * and goes on until the queue is empty.
 *
 * An operation is cut into pieces that are contiguous on both sides. A batch is a list of pieces to
 * read from clients (reads) and a list of pieces to write to clients (writes). All reads are
 * carried out before all writes, both in order. What a piece becomes depends on its ends:
 *
 *	client -> client	a read into the bounce buffer and a write out of it
 *	client -> daemon	a read straight to its place
 *	daemon -> client	a write straight from its place; a small one through the bounce
 *				buffer too, where it joins its neighbour
 *	daemon -> daemon	copied at once, while the batch is being put together
 *
 * So reads run ahead of earlier writes, and copies ahead of everything. Where that would show, the
 * batch is carried out first (the check before each piece is in plan_piece()). It shows wherever a
 * client looks on: memory of a client that is mapped here (dma_segment.mapped) is the daemon's for
 * the purpose of copying, but nothing goes there ahead of earlier writes.
 *
 * A batch ends when the bounce buffer or a list is full, wherever that is in an operation: a cursor
 * says where to go on. When the backend fails, the batch is repeated operation by operation, from
 * the same cursors and to the same places in the bounce buffer, to learn which one it was. Writes
 * of a batch are begun only when all its reads are done, and its memcpy()s touch nothing of the rest
 * of it, so repeating the reads or the writes changes nothing for the innocent.
 */
#include "dma.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PIECES 512 /* of each list; the kernel takes 1024 iovecs a call */
#define MAX_PARTS 512  /* operations of a batch */
#define SMALL 256      /* bytes: copying them costs less than one more iovec */
#define MAX_SPANS 16   /* address spaces a batch writes to */
#define OP_CHUNK 128
#define ARENA_CHUNK (128 * 1024)

struct slot {
	struct dma_op op;
	int error;
};

/* Operations live in a list of chunks, so that the pointers handed out stay valid. */
struct op_chunk {
	struct op_chunk *next;
	struct slot slot[OP_CHUNK];
};

/* A place in the queue. */
struct position {
	struct op_chunk *chunk;
	uint32_t index; /* in the chunk; OP_CHUNK: the next chunk's first */
};

struct arena_chunk {
	struct arena_chunk *next;
	size_t size; /* bytes of data */
	_Alignas(16) uint8_t data[];
};

/* How far an operation is cut up. */
struct cursor {
	uint32_t src, src_off; /* segment, bytes into it */
	uint32_t dst, dst_off;
};

/* A transfer between a client and the daemon. */
struct piece {
	struct mm *mm;
	uint8_t *local;
	uint64_t remote;
	size_t len;  /* bytes */
	bool bounce; /* local is in the bounce buffer */
};

/* The bytes from lo to before hi of an address space. */
struct span {
	struct mm *mm;
	uint64_t lo, hi;
};

struct pieces {
	uint32_t count;
	struct piece piece[MAX_PIECES];
};

/* What a batch holds of one operation. */
struct part {
	struct slot *slot;
	struct cursor start;
	size_t bounce; /* bytes of the bounce buffer used before it */
	bool whole;    /* it ends in this batch */
};

struct dma {
	const struct dma_backend *backend;
	uint8_t *bounce;
	size_t bounce_size;

	struct position head, tail;
	struct op_chunk *spare; /* chunks not in the queue */
	uint32_t queued;	/* operations from head to tail */
	struct slot *last;	/* the newest one, while it is not carried out */
	size_t bytes;		/* of those not carried out, but for last */
	bool flushing;

	struct arena_chunk *arena, *arena_now; /* the first, and the one in use */
	size_t arena_used;		       /* bytes of arena_now */

	/* The batch being put together. */
	struct pieces reads, writes;
	size_t bounce_used;
	size_t copied; /* bytes that went at once */
	struct span written[MAX_SPANS]; /* covers the client side of writes */
	uint32_t written_count;
	struct span local_src; /* covers the daemon side of writes, bounce buffer excepted */
	struct span local_dst; /* covers the daemon side of reads, bounce buffer excepted */
	struct part part[MAX_PARTS];
	uint32_t parts;
};

/* Without memory for its own bookkeeping the data path cannot go on. */
static void *must(void *p)
{
	if (!p) {
		fputs("vernic: out of memory in dma\n", stderr);
		abort();
	}
	return p;
}

/* ---- create, destroy, arena ------------------------------------------------------------ */

/* @size: bytes. @return a chunk of the arena, NULL without memory */
static struct arena_chunk *arena_chunk(size_t size)
{
	struct arena_chunk *c = malloc(sizeof(*c) + size);

	if (c) {
		c->next = NULL;
		c->size = size;
	}
	return c;
}

/*
 * @bounce: bytes of the bounce buffer, 4096 or more
 * @return NULL without memory
 */
struct dma *dma_create(const struct dma_backend *backend, size_t bounce)
{
	struct dma *dma = calloc(1, sizeof(*dma));

	if (!dma)
		return NULL;
	dma->backend = backend;
	dma->bounce_size = (bounce + 4095) & ~(size_t)4095;
	dma->bounce = aligned_alloc(4096, dma->bounce_size);
	dma->arena = arena_chunk(ARENA_CHUNK);
	dma->head.chunk = calloc(1, sizeof(*dma->head.chunk));
	if (!dma->bounce || !dma->arena || !dma->head.chunk) {
		dma_destroy(dma);
		return NULL;
	}
	/* The first touch of a page is dear: not on the data path. */
	memset(dma->bounce, 0, dma->bounce_size);
	dma->arena_now = dma->arena;
	dma->tail = dma->head;
	return dma;
}

/* Frees a list of op chunks. */
static void free_chunks(struct op_chunk *c)
{
	while (c) {
		struct op_chunk *next = c->next;

		free(c);
		c = next;
	}
}

/* What is still queued is dropped, without done(). */
void dma_destroy(struct dma *dma)
{
	struct arena_chunk *next;

	if (!dma)
		return;
	free_chunks(dma->head.chunk);
	free_chunks(dma->spare);
	for (struct arena_chunk *c = dma->arena; c; c = next) {
		next = c->next;
		free(c);
	}
	free(dma->bounce);
	free(dma);
}

/* Takes len bytes from the arena, aligned to 16, uninitialised. Never NULL. */
static void *arena_take(struct dma *dma, size_t len)
{
	void *p;

	len = (len + 15) & ~(size_t)15;
	if (len > dma->arena_now->size - dma->arena_used) {
		struct arena_chunk *next = dma->arena_now->next;

		if (!next || next->size < len) {
			struct arena_chunk *c =
				must(arena_chunk(len > ARENA_CHUNK ? len : ARENA_CHUNK));

			c->next = next;
			dma->arena_now->next = c;
			next = c;
		}
		dma->arena_now = next;
		dma->arena_used = 0;
	}
	p = dma->arena_now->data + dma->arena_used;
	dma->arena_used += len;
	return p;
}

/* Takes count segments from the arena, uninitialised. Never NULL; count <= 4096. */
struct dma_segment *dma_segments(struct dma *dma, uint32_t count)
{
	return arena_take(dma, count * sizeof(struct dma_segment));
}

/* Takes len bytes from the arena, for data an operation reads. Uninitialised, never NULL. */
void *dma_scratch(struct dma *dma, uint32_t len)
{
	return arena_take(dma, len);
}

/* Cuts [offset, offset + len) out of a list. The result's segments come from the arena. */
struct dma_list dma_slice(struct dma *dma, const struct dma_list *list, uint32_t offset,
			  uint32_t len)
{
	struct dma_list out = {.len = len};
	uint32_t first = 0, last, covered;

	if (len == 0)
		return out;
	while (first < list->count && offset >= list->seg[first].len)
		offset -= list->seg[first++].len;
	/* Segments first..last hold the slice; covered: their bytes from the slice's start. */
	last = first;
	covered = list->seg[first].len - offset;
	while (covered < len)
		covered += list->seg[++last].len;
	out.count = last - first + 1;
	out.seg = dma_segments(dma, out.count);
	memcpy(out.seg, &list->seg[first], out.count * sizeof(*out.seg));
	out.seg[0].addr += offset;
	out.seg[0].len -= offset;
	out.seg[out.count - 1].len -= covered - len;
	return out;
}

/* A list of one segment of the daemon's own memory. */
struct dma_list dma_local(struct dma *dma, const void *buf, uint32_t len)
{
	struct dma_list out = {.seg = dma_segments(dma, 1), .count = 1, .len = len};

	out.seg[0] = (struct dma_segment){.addr = (uintptr_t)buf, .len = len};
	return out;
}

/* ---- the queue ------------------------------------------------------------------------------ */

/* @return the operation at a place of the queue, which is not its tail */
static struct slot *at(struct position *p)
{
	if (p->index == OP_CHUNK) {
		p->chunk = p->chunk->next;
		p->index = 0;
	}
	return &p->chunk->slot[p->index];
}

/*
 * Queues an operation and returns it for the caller to fill in (zeroed but for cqe). It is read
 * when the queue is next carried out, not before. Never NULL.
 */
struct dma_op *dma_submit(struct dma *dma)
{
	struct slot *slot;

	if (dma->last)
		dma->bytes += dma->last->op.src.len;
	if (dma->tail.index == OP_CHUNK && !dma->tail.chunk->next) {
		struct op_chunk *c = dma->spare;

		if (c)
			dma->spare = c->next;
		else
			c = must(malloc(sizeof(*c)));
		c->next = NULL;
		dma->tail.chunk->next = c;
	}
	slot = at(&dma->tail);
	dma->tail.index++;
	dma->queued++;
	dma->last = slot;
	memset(&slot->op, 0, offsetof(struct dma_op, cqe));
	slot->error = 0;
	return &slot->op;
}

/* @return whether everything that was submitted is carried out */
bool dma_idle(const struct dma *dma)
{
	return dma->queued == 0;
}

/* Bytes queued and not carried out. */
size_t dma_pending(const struct dma *dma)
{
	return dma->bytes + (dma->last ? dma->last->op.src.len : 0);
}

/* Removes the operation at head, which is over; a chunk all used up is kept for later. */
static void drop_head(struct dma *dma)
{
	struct op_chunk *c = dma->head.chunk;

	dma->head.index++;
	if (--dma->queued == 0) {
		/* Nothing points into the chunk: begin it again. */
		dma->head.index = 0;
		dma->tail = dma->head;
	} else if (dma->head.index == OP_CHUNK) {
		dma->head = (struct position){c->next, 0};
		c->next = dma->spare;
		dma->spare = c;
	}
}

/* ---- a batch ------------------------------------------------------------------------------ */

/* Makes a span cover [lo, lo + len). */
static void span_add(struct span *s, uint64_t lo, uint64_t len)
{
	if (s->hi == 0 || lo < s->lo)
		s->lo = lo;
	if (lo + len > s->hi)
		s->hi = lo + len;
}

/* @return whether [lo, lo + len) has a byte in a span */
static bool span_hit(const struct span *s, uint64_t lo, uint64_t len)
{
	return lo < s->hi && s->lo < lo + len;
}

/* @return whether the batch writes to [addr, addr + len) of a client */
static bool hits_written(const struct dma *dma, const struct mm *mm, uint64_t addr, uint64_t len)
{
	for (uint32_t i = 0; i < dma->written_count; i++) {
		if (dma->written[i].mm != mm || !span_hit(&dma->written[i], addr, len))
			continue;
		for (uint32_t k = 0; k < dma->writes.count; k++) {
			const struct piece *p = &dma->writes.piece[k];

			if (p->mm == mm && addr < p->remote + p->len && p->remote < addr + len)
				return true;
		}
	}
	return false;
}

/* @return whether [p, p + len) is a place of the daemon's a list of pieces covered by span uses */
static bool hits_local(const struct pieces *l, const struct span *span, const uint8_t *p,
		       size_t len)
{
	if (!span_hit(span, (uintptr_t)p, len))
		return false;
	for (uint32_t i = 0; i < l->count; i++)
		if (!l->piece[i].bounce && p < l->piece[i].local + l->piece[i].len &&
		    l->piece[i].local < p + len)
			return true;
	return false;
}

/*
 * Appends a piece to a list that has room, joined to the one before where both sides go on.
 * @bounce: local is in the bounce buffer
 */
static void add_piece(struct pieces *l, struct mm *mm, uint8_t *local, uint64_t remote, size_t len,
		      bool bounce)
{
	struct piece *p = &l->piece[l->count];

	if (l->count > 0 && p[-1].mm == mm && p[-1].local + p[-1].len == local &&
	    p[-1].remote + p[-1].len == remote && p[-1].bounce == bounce) {
		p[-1].len += len;
		return;
	}
	*p = (struct piece){mm, local, remote, len, bounce};
	l->count++;
}

/* Appends a write and notes what it touches. @return false if the batch has too many mms */
static bool add_write(struct dma *dma, struct mm *mm, uint8_t *local, uint64_t remote, size_t len,
		      bool bounce)
{
	uint32_t i = 0;

	while (i < dma->written_count && dma->written[i].mm != mm)
		i++;
	if (i == MAX_SPANS)
		return false;
	if (i == dma->written_count)
		dma->written[dma->written_count++] = (struct span){.mm = mm};
	span_add(&dma->written[i], remote, len);
	if (!bounce)
		span_add(&dma->local_src, (uintptr_t)local, len);
	add_piece(&dma->writes, mm, local, remote, len, bounce);
	return true;
}

/* Empties the batch's lists, not its parts. */
static void clear_pieces(struct dma *dma)
{
	dma->reads.count = 0;
	dma->writes.count = 0;
	dma->bounce_used = 0;
	dma->copied = 0;
	dma->written_count = 0;
	dma->local_src = (struct span){0};
	dma->local_dst = (struct span){0};
}

/*
 * Copies within the daemon. A client that looks on sees the bytes in address order as far as it can
 * tell from the last ones, which programs poll on: memmove() promises no order, so the tail goes
 * behind the rest, in words, the last one by itself.
 */
static void copy_bytes(uint8_t *to, const uint8_t *from, size_t len)
{
	size_t tail = len < 64 ? len : 64, n;

	memmove(to, from, len - tail);
	to += len - tail;
	from += len - tail;
	for (; tail > 0; tail -= n, to += n, from += n) {
		uint64_t word;

		atomic_thread_fence(memory_order_release);
		n = tail % 8 ? tail % 8 : 8;
		if (n == 8) {
			memcpy(&word, from, 8);
			memcpy(to, &word, 8);
		} else {
			memmove(to, from, n);
		}
	}
}

/*
 * @return where in the bounce buffer a piece goes: behind what is there, but not where the copy in
 * or the copy out would be slow
 */
static size_t bounce_place(const struct dma *dma, uint64_t src, uint64_t dst, size_t len)
{
	uint64_t place = (uintptr_t)dma->bounce + dma->bounce_used;

	while (len >= DMA_LONG && (dma_slow_copy(place, src) || dma_slow_copy(dst, place)))
		place += DMA_SLOW;
	return place - (uintptr_t)dma->bounce;
}

/*
 * Puts one piece into the batch.
 * @src, @dst: where it is
 * @len: bytes wanted, > 0
 * @copy: carry out daemon -> daemon pieces; false where that was done before
 * @return bytes put; 0 if the batch must be carried out first
 */
static size_t plan_piece(struct dma *dma, const struct dma_segment *src,
			 const struct dma_segment *dst, size_t len, bool copy)
{
	uint8_t *from = (uint8_t *)(uintptr_t)src->addr, *to = (uint8_t *)(uintptr_t)dst->addr;
	size_t start;

	if (dma->reads.count == MAX_PIECES || dma->writes.count == MAX_PIECES)
		return 0;
	if (!src->mm && !dst->mm) {
		if (!copy)
			return len;
		/* The bytes may be on their way, or the place still be needed. */
		if (hits_local(&dma->reads, &dma->local_dst, from, len) ||
		    hits_local(&dma->reads, &dma->local_dst, to, len) ||
		    hits_local(&dma->writes, &dma->local_src, to, len))
			return 0;
		if (!dst->mapped) {
			memcpy(to, from, len);
			return len;
		}
		if (dma->reads.count || dma->writes.count)
			return 0;
		/* As much at a time as the bounce buffer lets through: done() must not wait long. */
		if (len > dma->bounce_size - dma->copied)
			len = dma->bounce_size - dma->copied;
		copy_bytes(to, from, len);
		dma->copied += len;
		return len;
	}
	if (!src->mm && !src->mapped && len <= SMALL) {
		to = dma->bounce + dma->bounce_used;
		/* The bytes may be on their way. */
		if (len > dma->bounce_size - dma->bounce_used ||
		    hits_local(&dma->reads, &dma->local_dst, from, len) ||
		    !add_write(dma, dst->mm, to, dst->addr, len, true))
			return 0;
		if (copy)
			memcpy(to, from, len);
		dma->bounce_used += len;
		return len;
	}
	/* A daemon's source read into by this batch is no matter: reads come before writes. */
	if (!src->mm)
		return add_write(dma, dst->mm, from, dst->addr, len, false) ? len : 0;
	if (hits_written(dma, src->mm, src->addr, len))
		return 0;
	if (!dst->mm) {
		if (hits_local(&dma->writes, &dma->local_src, to, len) ||
		    (dst->mapped && dma->writes.count))
			return 0;
		span_add(&dma->local_dst, dst->addr, len);
		add_piece(&dma->reads, src->mm, to, src->addr, len, false);
		return len;
	}
	start = bounce_place(dma, src->addr, dst->addr, len);
	/* Not cut below what bounce_place() minds: repeat() plans what was left of it. */
	if (start >= dma->bounce_size ||
	    (len > dma->bounce_size - start && dma->bounce_size - start < DMA_LONG))
		return 0;
	if (len > dma->bounce_size - start)
		len = dma->bounce_size - start;
	to = dma->bounce + start;
	if (!add_write(dma, dst->mm, to, dst->addr, len, true))
		return 0;
	add_piece(&dma->reads, src->mm, to, src->addr, len, true);
	dma->bounce_used = start + len;
	return len;
}

/*
 * Puts what it can of an operation into the batch.
 * @c: where to go on; moved
 * @end: where to stop, or NULL
 * @copy: as in plan_piece()
 * @return whether the operation's end was reached
 */
static bool plan_op(struct dma *dma, const struct dma_op *op, struct cursor *c,
		    const struct cursor *end, bool copy)
{
	while (c->src < op->src.count && c->dst < op->dst.count) {
		struct dma_segment src = op->src.seg[c->src], dst = op->dst.seg[c->dst];
		size_t len, n;

		if (end && c->src == end->src && c->src_off == end->src_off && c->dst == end->dst &&
		    c->dst_off == end->dst_off)
			return false;
		src.addr += c->src_off;
		dst.addr += c->dst_off;
		len = src.len - c->src_off;
		if (dst.len - c->dst_off < len)
			len = dst.len - c->dst_off;
		if (end && c->src == end->src && c->dst == end->dst && end->src_off - c->src_off < len)
			len = end->src_off - c->src_off;
		n = len ? plan_piece(dma, &src, &dst, len, copy) : 0;
		if (n == 0 && len != 0)
			return false;
		c->src_off += (uint32_t)n;
		c->dst_off += (uint32_t)n;
		if (c->src_off == op->src.seg[c->src].len) {
			c->src++;
			c->src_off = 0;
		}
		if (c->dst_off == op->dst.seg[c->dst].len) {
			c->dst++;
			c->dst_off = 0;
		}
	}
	return true;
}

/*
 * Carries out a list of pieces, with one call for each run of the same address space.
 * @call: the backend's
 * @return 0 or -EFAULT
 */
static int transfer(const struct pieces *l, int (*call)(struct mm *, const struct iovec *, unsigned,
							const struct iovec *, unsigned))
{
	struct iovec local[MAX_PIECES], remote[MAX_PIECES];
	uint32_t i = 0;

	while (i < l->count) {
		struct mm *mm = l->piece[i].mm;
		unsigned nlocal = 0, nremote = 0;
		int error;

		for (; i < l->count && l->piece[i].mm == mm; i++) {
			const struct piece *p = &l->piece[i];
			uint8_t *addr = (uint8_t *)(uintptr_t)p->remote;
			struct iovec *v = &local[nlocal], *w = &remote[nremote];

			if (nlocal && (uint8_t *)v[-1].iov_base + v[-1].iov_len == p->local)
				v[-1].iov_len += p->len;
			else
				local[nlocal++] = (struct iovec){p->local, p->len};
			if (nremote && (uint8_t *)w[-1].iov_base + w[-1].iov_len == addr)
				w[-1].iov_len += p->len;
			else
				remote[nremote++] = (struct iovec){addr, p->len};
		}
		error = call(mm, local, nlocal, remote, nremote);
		if (error)
			return error;
	}
	return 0;
}

/*
 * Reads from each page of the mapped segments of a list. One that is gone is replaced by that
 * (mapping.h), which a system call that meets it does not bring about.
 */
static void touch_mapped(const struct dma_list *l)
{
	for (uint32_t i = 0; i < l->count; i++) {
		const volatile uint8_t *p = (const uint8_t *)(uintptr_t)l->seg[i].addr;
		uint32_t len = l->seg[i].len;

		if (!l->seg[i].mapped || len == 0)
			continue;
		for (uint32_t at = 0; at < len; at += 4096)
			(void)p[at];
		(void)p[len - 1];
	}
}

/*
 * Repeats a batch operation by operation and notes which fail.
 * @reads: whether the reads are to be repeated; else they are in place
 * @end: where the batch ends in its last operation
 */
static void repeat(struct dma *dma, bool reads, const struct cursor *end)
{
	for (int write = !reads; write < 2; write++) {
		for (uint32_t i = 0; i < dma->parts; i++) {
			struct part *part = &dma->part[i];
			struct cursor c = part->start;
			int error;

			if (part->slot->error)
				continue;
			touch_mapped(&part->slot->op.src);
			touch_mapped(&part->slot->op.dst);
			clear_pieces(dma);
			dma->bounce_used = part->bounce;
			plan_op(dma, &part->slot->op, &c, part->whole ? NULL : end, false);
			error = write ? transfer(&dma->writes, dma->backend->writev)
				      : transfer(&dma->reads, dma->backend->readv);
			if (error)
				part->slot->error = -EFAULT;
		}
	}
}

/*
 * Carries out one batch from the head of the queue, and calls the done()s of the operations that
 * end in it.
 * @c: where to go on in the first operation; moved to where to go on in the next batch
 */
static void run_batch(struct dma *dma, struct cursor *c)
{
	struct position p = dma->head;
	uint32_t left = dma->queued;
	bool whole = true;

	clear_pieces(dma);
	dma->parts = 0;
	while (whole && left > 0 && dma->parts < MAX_PARTS) {
		struct slot *slot = at(&p);
		struct part *part = &dma->part[dma->parts++];

		*part = (struct part){slot, *c, dma->bounce_used, true};
		if (!slot->error)
			part->whole = plan_op(dma, &slot->op, c, NULL, true);
		whole = part->whole;
		if (whole) {
			*c = (struct cursor){0};
			p.index++;
			left--;
			if (slot->op.barrier)
				break;
		}
	}
	if (transfer(&dma->reads, dma->backend->readv) != 0)
		repeat(dma, true, c);
	else if (transfer(&dma->writes, dma->backend->writev) != 0)
		repeat(dma, false, c);
	if (!whole)
		dma->parts--;

	for (uint32_t i = 0; i < dma->parts; i++) {
		if (dma->part[i].slot == dma->last)
			dma->last = NULL;
		else
			dma->bytes -= dma->part[i].slot->op.src.len;
	}
	for (uint32_t i = 0; i < dma->parts; i++) {
		struct slot *slot = dma->part[i].slot;

		if (slot->op.done)
			slot->op.done(dma, &slot->op, slot->error);
		at(&dma->head);
		drop_head(dma);
	}
}

/*
 * Carries out everything queued, including what done() queues. Called from done() it does nothing:
 * the outer call goes on.
 */
void dma_flush(struct dma *dma)
{
	struct cursor c = {0};

	if (dma->flushing)
		return;
	dma->flushing = true;
	while (dma->queued)
		run_batch(dma, &c);
	dma->arena_now = dma->arena;
	dma->arena_used = 0;
	dma->flushing = false;
}

/* Reads at once, whatever is queued. @return 0 or -EFAULT */
int dma_read_now(struct dma *dma, struct mm *mm, uint64_t addr, void *buf, size_t len)
{
	struct iovec local = {buf, len}, remote = {(void *)(uintptr_t)addr, len};

	if (!mm) {
		memcpy(buf, remote.iov_base, len);
		return 0;
	}
	return dma->backend->readv(mm, &local, 1, &remote, 1) ? -EFAULT : 0;
}

/* Writes at once, whatever is queued. @return 0 or -EFAULT */
int dma_write_now(struct dma *dma, struct mm *mm, uint64_t addr, const void *buf, size_t len)
{
	struct iovec local = {(void *)(uintptr_t)buf, len};
	struct iovec remote = {(void *)(uintptr_t)addr, len};

	if (!mm) {
		memcpy(remote.iov_base, buf, len);
		return 0;
	}
	return dma->backend->writev(mm, &local, 1, &remote, 1) ? -EFAULT : 0;
}
