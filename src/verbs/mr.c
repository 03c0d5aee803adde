/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory regions.
 *
 * The daemon checks every access itself. What the library keeps is a table from lkey to address,
 * for copying small payloads when posting and polling. MRs whose memory may not be there (on
 * demand, a file's) or not be this process's are not in it: the daemon knows, and moves all their
 * bytes. It is an open hash table, read without a lock: a reader that meets a change (seq) looks
 * again. Slot arrays that were outgrown stay until the context is closed; together they are no
 * larger than the one in use.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#define MR_TABLE_MIN_SHIFT 6

struct mr_slot {
	_Atomic uint32_t key; /* 0: free */
	_Atomic uint64_t iova;
	_Atomic uint64_t length;
	_Atomic uint64_t addr;
};

struct mr_slots {
	struct mr_slots *older;
	uint32_t shift; /* log2 of the number of slots */
	struct mr_slot slot[];
};

/* Where the search for key starts. */
static uint32_t slot_home(const struct mr_slots *s, uint32_t key)
{
	return key * UINT32_C(0x9e3779b1) >> (32 - s->shift);
}

/* @return the number of slots, less one */
static uint32_t slot_mask(const struct mr_slots *s)
{
	return (UINT32_C(1) << s->shift) - 1;
}

/* Makes 2^shift empty slots. @return NULL without memory */
static struct mr_slots *slots_new(uint32_t shift)
{
	struct mr_slots *s = calloc(1, sizeof(*s) + (sizeof(struct mr_slot) << shift));

	if (s)
		s->shift = shift;
	return s;
}

int mr_table_init(struct mr_table *t)
{
	struct mr_slots *s = slots_new(MR_TABLE_MIN_SHIFT);

	if (!s)
		return ENOMEM;
	pthread_mutex_init(&t->mutex, NULL);
	atomic_store(&t->slots, s);
	return 0;
}

void mr_table_fini(struct mr_table *t)
{
	struct mr_slots *s = atomic_load(&t->slots), *older;

	if (!s)
		return;
	for (; s; s = older) {
		older = s->older;
		free(s);
	}
	pthread_mutex_destroy(&t->mutex);
}

/* Writes a slot that readers may be looking at; they find out by the table's seq. */
static void slot_copy(struct mr_slot *to, const struct mr_slot *from)
{
	atomic_store_explicit(&to->iova, from->iova, memory_order_relaxed);
	atomic_store_explicit(&to->length, from->length, memory_order_relaxed);
	atomic_store_explicit(&to->addr, from->addr, memory_order_relaxed);
	atomic_store_explicit(&to->key, from->key, memory_order_relaxed);
}

/* Puts an entry in; there is room. */
static void slots_insert(struct mr_slots *s, const struct mr_slot *entry)
{
	uint32_t mask = slot_mask(s), i = slot_home(s, entry->key);

	while (vernic_load_relaxed(&s->slot[i].key))
		i = (i + 1) & mask;
	slot_copy(&s->slot[i], entry);
}

/* Around every change: seq is odd meanwhile, and readers try again. */
static void write_begin(struct mr_table *t)
{
	atomic_store_explicit(&t->seq, t->seq + 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
}

static void write_end(struct mr_table *t)
{
	vernic_store_release(&t->seq, t->seq + 1);
}

/* Makes room for one more MR. @return 0 or ENOMEM */
static int table_reserve(struct mr_table *t)
{
	struct mr_slots *s = atomic_load(&t->slots), *bigger;

	if ((t->count + 1) * 2 <= UINT32_C(1) << s->shift)
		return 0;
	bigger = slots_new(s->shift + 1);
	if (!bigger)
		return ENOMEM;
	for (uint32_t i = 0; i <= slot_mask(s); i++) {
		if (s->slot[i].key)
			slots_insert(bigger, &s->slot[i]);
	}
	bigger->older = s;
	atomic_store_explicit(&t->slots, bigger, memory_order_release);
	return 0;
}

/* Enters a MR. @return 0 or ENOMEM */
static int table_add(struct mr_table *t, uint32_t key, uint64_t iova, uint64_t length, void *addr)
{
	struct mr_slot entry = {.key = key, .iova = iova, .length = length};
	int error;

	entry.addr = (uintptr_t)addr;
	pthread_mutex_lock(&t->mutex);
	error = table_reserve(t);
	if (!error) {
		write_begin(t);
		slots_insert(atomic_load(&t->slots), &entry);
		t->count++;
		write_end(t);
	}
	pthread_mutex_unlock(&t->mutex);
	return error;
}

/* @return the slot that has key, or one that is free */
static uint32_t slots_find(const struct mr_slots *s, uint32_t key)
{
	uint32_t mask = slot_mask(s), i = slot_home(s, key);

	while (s->slot[i].key && s->slot[i].key != key)
		i = (i + 1) & mask;
	return i;
}

/* A MR is somewhere else from now on. */
static void table_move(struct mr_table *t, uint32_t key, uint64_t length, void *addr)
{
	struct mr_slot entry = {.key = key, .iova = (uintptr_t)addr, .length = length};
	struct mr_slots *s;
	uint32_t i;

	entry.addr = (uintptr_t)addr;
	pthread_mutex_lock(&t->mutex);
	s = atomic_load(&t->slots);
	i = slots_find(s, key);
	if (s->slot[i].key) {
		write_begin(t);
		slot_copy(&s->slot[i], &entry);
		write_end(t);
	}
	pthread_mutex_unlock(&t->mutex);
}

/* Takes a MR out, and moves up the entries behind it that its slot was in the way of. */
static void table_remove(struct mr_table *t, uint32_t key)
{
	struct mr_slots *s;
	uint32_t mask, hole, i;

	pthread_mutex_lock(&t->mutex);
	s = atomic_load(&t->slots);
	mask = slot_mask(s);
	hole = slots_find(s, key);
	if (!s->slot[hole].key) {
		pthread_mutex_unlock(&t->mutex);
		return;
	}
	write_begin(t);
	for (i = (hole + 1) & mask; s->slot[i].key; i = (i + 1) & mask) {
		uint32_t home = slot_home(s, s->slot[i].key);

		if (((i - home) & mask) >= ((i - hole) & mask)) {
			slot_copy(&s->slot[hole], &s->slot[i]);
			hole = i;
		}
	}
	atomic_store_explicit(&s->slot[hole].key, 0, memory_order_relaxed);
	t->count--;
	write_end(t);
	pthread_mutex_unlock(&t->mutex);
}

/* One look at the table, which may be changing: the result counts only if it did not. */
static void *table_look(struct mr_slots *s, uint32_t lkey, uint64_t addr, uint32_t len)
{
	uint32_t mask = slot_mask(s), i = slot_home(s, lkey);

	for (uint32_t n = 0; n <= mask; n++, i = (i + 1) & mask) {
		struct mr_slot *slot = &s->slot[i];
		uint32_t key = vernic_load_relaxed(&slot->key);
		uint64_t offset, length;

		if (!key)
			return NULL;
		if (key != lkey)
			continue;
		offset = addr - atomic_load_explicit(&slot->iova, memory_order_relaxed);
		length = atomic_load_explicit(&slot->length, memory_order_relaxed);
		if (offset > length || len > length - offset)
			return NULL;
		return (void *)(uintptr_t)(atomic_load_explicit(&slot->addr, memory_order_relaxed) +
					   offset);
	}
	return NULL;
}

void *mr_table_translate(struct mr_table *t, uint32_t lkey, uint64_t addr, uint32_t len)
{
	for (int tries = 0;; tries++) {
		uint32_t seq = vernic_load_acquire(&t->seq);

		if (!(seq & 1)) {
			void *p = table_look(atomic_load_explicit(&t->slots, memory_order_acquire),
					     lkey, addr, len);

			atomic_thread_fence(memory_order_acquire);
			if (vernic_load_relaxed(&t->seq) == seq)
				return p;
		}
		if (tries > 100)
			sched_yield();
		else
			cpu_relax();
	}
}

/* ---- registering --------------------------------------------------------------------------- */

/* @return whether this kernel (5.14 or later) knows MADV_POPULATE_* */
static bool can_populate(void)
{
	static _Atomic int known; /* 0: not asked yet, 1: yes, -1: no */
	static char probe;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

	if (!known) {
		known = madvise((void *)((uintptr_t)&probe & ~(page - 1)), page,
				MADV_POPULATE_READ) == 0
				? 1
				: -1;
	}
	return known > 0;
}

/*
 * Checks that a range is mapped with the rights asked for, and brings it in, as pinning it would.
 * @return 0 or EFAULT
 */
static int populate(void *addr, size_t length, unsigned int access)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t start = (uintptr_t)addr & ~(page - 1);
	uintptr_t end = ((uintptr_t)addr + length + page - 1) & ~(page - 1);
	int advice = access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			       IBV_ACCESS_REMOTE_ATOMIC)
			     ? MADV_POPULATE_WRITE
			     : MADV_POPULATE_READ;

	/* All of the address space, which only an implicit MR can be of. */
	if (end < start || end - start < length)
		return EFAULT;
	if (!can_populate())
		return 0;
	while (madvise((void *)start, end - start, advice) < 0) {
		if (errno != EINTR && errno != EAGAIN)
			return EFAULT;
	}
	return 0;
}

/* @return 0, or EINVAL for enum ibv_access_flags that no MR can have */
static int check_access(unsigned int access)
{
	access &= ~(unsigned int)IBV_ACCESS_OPTIONAL_RANGE;
	if (access &
	    ~(unsigned int)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND |
			    IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB |
			    VERNIC_ACCESS_FLUSH))
		return EINVAL;
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
	    !(access & IBV_ACCESS_LOCAL_WRITE))
		return EINVAL;
	return 0;
}

/* A range that is to be registered. @return 0, EINVAL or EFAULT */
static int check_range(void *addr, size_t length, unsigned int access)
{
	if (length == 0 || (uintptr_t)addr + length < (uintptr_t)addr)
		return EINVAL;
	/* On demand, it need not be mapped yet. */
	return access & IBV_ACCESS_ON_DEMAND ? 0 : populate(addr, length, access);
}

struct ibv_mr *mr_register(struct ibv_pd *pd, struct vernic_request *req, void *addr)
{
	struct context *ctx = to_context(pd->context);
	struct vernic_reply reply;
	struct mr *mr;
	int error, fd;

	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return NULL;
	req->command = VERNIC_CMD_REG_MR;
	req->reg_mr.pd = pd->handle;
	fd = req->reg_mr.kind == VERNIC_MR_MEMORY && !(req->reg_mr.access & IBV_ACCESS_ON_DEMAND)
		     ? mapping_find((void *)(uintptr_t)req->reg_mr.addr, req->reg_mr.length,
				    &req->reg_mr.offset)
		     : -1;
	error = control_call_fd(ctx, req, fd, &reply, NULL, 0);
	if (fd >= 0)
		close(fd);
	if (error)
		goto err;
	if (req->reg_mr.kind == VERNIC_MR_MEMORY && !req->reg_mr.daemon_only)
		error = table_add(&ctx->mrs, reply.reg_mr.lkey, req->reg_mr.iova,
				  req->reg_mr.length, addr);
	if (error) {
		control_destroy(ctx, VERNIC_CMD_DEREG_MR, reply.handle, NULL);
		goto err;
	}
	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	mr->ibv.addr = addr;
	mr->ibv.length = req->reg_mr.length;
	mr->ibv.handle = reply.handle;
	mr->ibv.lkey = reply.reg_mr.lkey;
	mr->ibv.rkey = reply.reg_mr.rkey;
	mr->access = req->reg_mr.access;
	mr->fixed = req->reg_mr.kind != VERNIC_MR_MEMORY;
	pd_hold(pd);
	return &mr->ibv;

err:
	free(mr);
	errno = error;
	return NULL;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				unsigned int access)
{
	struct vernic_request req = {0};
	int error;

	if (access & IBV_ACCESS_ZERO_BASED)
		iova = 0;
	error = check_access(access);
	if (!error && iova + length < iova)
		error = EINVAL;
	if (!error)
		error = check_range(addr, length, access);
	if (error) {
		errno = error;
		return NULL;
	}
	req.reg_mr.addr = (uintptr_t)addr;
	req.reg_mr.length = length;
	req.reg_mr.iova = iova;
	req.reg_mr.access = access;
	req.reg_mr.kind = VERNIC_MR_MEMORY;
	req.reg_mr.daemon_only = (access & IBV_ACCESS_ON_DEMAND) != 0;
	return mr_register(pd, &req, addr);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			       int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

struct ibv_mr *mr_alloc_null(struct ibv_pd *pd)
{
	struct vernic_request req = {0};

	req.reg_mr.length = SIZE_MAX;
	req.reg_mr.access = IBV_ACCESS_LOCAL_WRITE;
	req.reg_mr.kind = VERNIC_MR_NULL;
	return mr_register(pd, &req, NULL);
}

/* ---- dma-buf: a file's pages, mapped for the daemon to reach them ---------------------------- */

/*
 * Maps a range of a file, from the page its first byte is in.
 * @skip: out, bytes in front of the range
 * @return NULL and errno: EBADF; EINVAL (beyond its end); EOPNOTSUPP: it cannot be mapped
 */
static void *map_file(int fd, uint64_t offset, size_t length, unsigned int access, size_t *skip)
{
	int prot = PROT_READ | (access & IBV_ACCESS_LOCAL_WRITE ? PROT_WRITE : 0);
	struct stat st;
	void *p;

	if (fstat(fd, &st) < 0)
		return NULL;
	if (length == 0 || offset + length < offset ||
	    (S_ISREG(st.st_mode) && offset + length > (uint64_t)st.st_size)) {
		errno = EINVAL;
		return NULL;
	}
	*skip = offset & ((uint64_t)sysconf(_SC_PAGESIZE) - 1);
	p = mmap(NULL, *skip + length, prot, MAP_SHARED, fd, (off_t)(offset - *skip));
	if (p != MAP_FAILED)
		return p;
	if (errno == ENODEV)
		errno = EOPNOTSUPP;
	return NULL;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
				 int fd, int access)
{
	struct vernic_request req = {0};
	struct ibv_mr *mr = NULL;
	uint8_t *map;
	size_t skip;
	int error;

	error = check_access((unsigned int)access);
	if (!error && iova + length < iova)
		error = EINVAL;
	if (error) {
		errno = error;
		return NULL;
	}
	map = map_file(fd, offset, length, (unsigned int)access, &skip);
	if (!map)
		return NULL;
	error = check_range(map + skip, length, (unsigned int)access);
	if (!error) {
		req.reg_mr.addr = (uintptr_t)map + skip;
		req.reg_mr.length = length;
		req.reg_mr.iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
		req.reg_mr.access = (unsigned int)access;
		/* The file may be cut short: that is for the daemon to meet. */
		req.reg_mr.daemon_only = 1;
		mr = mr_register(pd, &req, (void *)(uintptr_t)offset);
		error = errno;
	}
	if (!mr) {
		munmap(map, skip + length);
		errno = error;
		return NULL;
	}
	((struct mr *)mr)->map = map;
	((struct mr *)mr)->map_size = skip + length;
	((struct mr *)mr)->fixed = true;
	return mr;
}

/* ---- changing and ending --------------------------------------------------------------------- */

/* What can be said of a rereg without the daemon. @return 0 or a positive errno */
static int check_rereg(const struct mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
		       int access)
{
	unsigned int rights = mr->access;
	int error = 0;

	/* Device memory, a file's and the null MR are what they are. */
	if (mr->fixed || flags == 0 || flags & ~IBV_REREG_MR_FLAGS_SUPPORTED)
		return EINVAL;
	if ((flags & IBV_REREG_MR_CHANGE_PD) && (!pd || pd->context != mr->ibv.context))
		return EINVAL;
	if (flags & IBV_REREG_MR_CHANGE_ACCESS) {
		rights = (unsigned int)access;
		error = check_access(rights);
	} else if (access) {
		return EINVAL;
	}
	if (error || (flags & IBV_REREG_MR_CHANGE_TRANSLATION && !addr))
		return EINVAL;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION)
		return check_range(addr, length, rights);
	return flags & IBV_REREG_MR_CHANGE_ACCESS
		       ? check_range(mr->ibv.addr, mr->ibv.length, rights)
		       : 0;
}

int ibv_rereg_mr(struct ibv_mr *ibmr, int flags, struct ibv_pd *pd, void *addr, size_t length,
		 int access)
{
	struct vernic_request req = {.command = VERNIC_CMD_REREG_MR, .handle = ibmr->handle};
	struct context *ctx = to_context(ibmr->context);
	struct mr *mr = (struct mr *)ibmr;
	struct vernic_reply reply;
	int error;

	error = check_rereg(mr, flags, pd, addr, length, access);
	if (error) {
		errno = error;
		return IBV_REREG_MR_ERR_INPUT;
	}
	req.rereg_mr.flags = (uint32_t)flags;
	req.rereg_mr.access = (uint32_t)access;
	if (flags & IBV_REREG_MR_CHANGE_PD)
		req.rereg_mr.pd = pd->handle;
	req.rereg_mr.addr = (uintptr_t)addr;
	req.rereg_mr.length = length;
	error = control_call(ctx, &req, &reply, NULL, 0);
	if (error) {
		errno = error;
		return IBV_REREG_MR_ERR_CMD;
	}
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		table_move(&ctx->mrs, ibmr->lkey, length, addr);
		ibmr->addr = addr;
		ibmr->length = length;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		pd_hold(pd);
		pd_release(ibmr->pd);
		ibmr->pd = pd;
	}
	if (flags & IBV_REREG_MR_CHANGE_ACCESS)
		mr->access = (unsigned int)access;
	return 0;
}

int ibv_dereg_mr(struct ibv_mr *ibmr)
{
	struct context *ctx = to_context(ibmr->context);
	struct mr *mr = (struct mr *)ibmr;
	int error;

	error = control_destroy(ctx, VERNIC_CMD_DEREG_MR, ibmr->handle, NULL);
	if (error)
		return error;
	table_remove(&ctx->mrs, ibmr->lkey);
	pd_release(ibmr->pd);
	if (mr->map)
		munmap(mr->map, mr->map_size);
	free(mr);
	return 0;
}

/* ---- on-demand paging: all memory is, in software ------------------------------------------ */

/* One range of ibv_advise_mr(3). @return 0 or a positive errno */
static int advise(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, const struct ibv_sge *sge)
{
	struct vernic_request req = {.command = VERNIC_CMD_ADVISE_MR};
	bool write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	struct vernic_reply reply;
	int error;

	req.advise_mr.addr = sge->addr;
	req.advise_mr.length = sge->length;
	req.advise_mr.lkey = sge->lkey;
	req.advise_mr.pd = pd->handle;
	req.advise_mr.advice = advice;
	error = control_call(to_context(pd->context), &req, &reply, NULL, 0);
	/* The device has no page tables to bring up to date: there is nothing but the page faults.
	 */
	if (error || advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT || !sge->length)
		return error;
	return populate((void *)(uintptr_t)reply.advise_mr.addr, sge->length,
			write ? IBV_ACCESS_LOCAL_WRITE : 0);
}

int mr_advise(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
	      struct ibv_sge *sg_list, uint32_t num_sge)
{
	int error = 0;

	if (advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return ENOTSUP;
	if (flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH || num_sge == 0)
		return EINVAL;
	for (uint32_t i = 0; i < num_sge && !error; i++)
		error = advise(pd, advice, &sg_list[i]);
	return error;
}
