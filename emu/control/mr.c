/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory regions. */
#include <string.h>

#include <urcu-qsbr.h>

#include "control.h"

#include "../log.h"
#include "../mapping.h"

/*
 * Rights as they are kept. Of the rest HUGETLB and what is optional (relaxed ordering) ask for
 * nothing here, and ZERO_BASED the library has turned into an iova.
 */
#define MR_ACCESS                                                                    \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ON_DEMAND | \
	 VERNIC_ACCESS_FLUSH)
#define MR_ACCESS_ACCEPTED \
	(MR_ACCESS | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE)

/* @return 0; -EINVAL for rights that no MR can have; -EOPNOTSUPP: the device does not know them */
static int mr_check_access(const struct client *c, uint32_t access)
{
	if ((access & ~(uint32_t)MR_ACCESS_ACCEPTED) != 0)
		return -EINVAL;
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
	    (access & IBV_ACCESS_LOCAL_WRITE) == 0)
		return -EINVAL;
	if ((access & IBV_ACCESS_REMOTE_ATOMIC) != 0 &&
	    !device_has(&c->device->dev, DEVICE_ATOMICS))
		return -EINVAL;
	if ((access & IBV_ACCESS_ON_DEMAND) != 0 && !device_has(&c->device->dev, DEVICE_ODP))
		return -EOPNOTSUPP;
	if ((access & VERNIC_ACCESS_FLUSH) != 0 && !device_has(&c->device->dev, DEVICE_FLUSH))
		return -EOPNOTSUPP;
	return 0;
}

/* A range of the client's memory, and where it is addressed. @return 0 or -EINVAL */
static int mr_use_memory(struct client *c, struct host_mr *mr, uint64_t addr, uint64_t length,
			 uint64_t iova)
{
	/* Neither range may wrap. */
	if (length == 0 || addr > UINT64_MAX - length || iova > UINT64_MAX - (length - 1))
		return -EINVAL;
	mr->owner = c->mm;
	mr->mr.mm = c->mm;
	mr->mr.iova = iova;
	mr->mr.addr = addr;
	mr->mr.length = length;
	return 0;
}

/* Has the region's file mapped, if it can be: the memory is reached without the client's mm then. */
static void mr_map(struct host_mr *mr, int fd, uint64_t offset)
{
	uint8_t *addr;
	int err = mapping_get(fd, offset, mr->mr.length, &mr->mapping, &addr);

	if (err != 0) {
		log_debug("a region's file cannot be mapped: %s", strerror(-err));
		return;
	}
	mr->mr.mm = NULL;
	mr->mr.addr = (uintptr_t)addr;
}

/* A range of device memory; it may be empty. @return 0 or -EINVAL */
static int mr_use_dm(struct host_mr *mr, struct host_dm *dm, uint64_t offset, uint64_t length,
		     uint64_t iova)
{
	if (dm == NULL || offset > dm->length || length > dm->length - offset ||
	    iova > UINT64_MAX - length)
		return -EINVAL;
	mr->dm = dm;
	mr->mr.mm = NULL;
	mr->mr.iova = iova;
	mr->mr.addr = (uintptr_t)dm->base + offset;
	mr->mr.length = length;
	return 0;
}

/* Fills in what the region asked for covers. @return 0 or -EINVAL */
static int mr_fill(struct client *c, struct host_mr *mr, const struct vernic_request *req)
{
	uint64_t addr = req->reg_mr.addr, length = req->reg_mr.length, iova = req->reg_mr.iova;

	mr->mr.daemon_only = req->reg_mr.daemon_only != 0 || req->reg_mr.kind != VERNIC_MR_MEMORY ||
			     c->shared->clients != 1;
	switch (req->reg_mr.kind) {
	case VERNIC_MR_MEMORY:
		return mr_use_memory(c, mr, addr, length, iova);
	case VERNIC_MR_NULL:
		mr->mr.mm = mm_null();
		mr->mr.length = UINT64_MAX;
		return 0;
	case VERNIC_MR_DM:
		return mr_use_dm(mr, handle_get(&c->shared->dms, req->reg_mr.dm), addr, length,
				 iova);
	default:
		return -EINVAL;
	}
}

/* Frees it, a grace period later. */
static void mr_free(struct host_mr *mr)
{
	if (mr->dm != NULL)
		mr->dm->users--;
	mapping_put(mr->mapping);
	free(mr);
}

/*
 * ibv_reg_mr(3) and its kin. The library has shown that the range is mapped with the rights.
 * @return EINVAL, ENOMEM, EOPNOTSUPP
 */
int handle_reg_mr(struct client *c, struct message *m)
{
	uint32_t access = m->req->reg_mr.access;
	struct pd *pd = handle_get(&c->shared->pds, m->req->reg_mr.pd);
	struct host_mr *mr;
	uint32_t handle;
	int err;

	if (pd == NULL)
		return -EINVAL;
	err = mr_check_access(c, access);
	if (err != 0)
		return err;
	if (c->device->mrs >= (uint32_t)c->device->dev.attr.max_mr)
		return -ENOMEM;
	mr = calloc(1, sizeof(*mr));
	if (mr == NULL)
		return -ENOMEM;
	mr->mr.access = access & MR_ACCESS;
	mr->mr.pd = pd;
	err = mr_fill(c, mr, m->req);
	if (err != 0)
		goto fail;
	if (mr->owner != NULL && m->in_count > 0)
		mr_map(mr, m->in[0], m->req->reg_mr.offset);
	err = handle_add(&c->shared->mrs, mr, UINT32_MAX - 1, &handle);
	if (err != 0)
		goto fail;
	err = mr_table_add(c->device->dev.mrs, &mr->mr);
	if (err != 0)
		goto fail_handle;
	atomic_fetch_add(&pd->users, 1);
	if (mr->dm != NULL)
		mr->dm->users++;
	c->device->mrs++;
	m->reply->handle = handle;
	m->reply->reg_mr.lkey = mr->mr.key;
	m->reply->reg_mr.rkey = mr->mr.key;
	return 0;
fail_handle:
	handle_remove(&c->shared->mrs, handle);
fail:
	mapping_put(mr->mapping);
	free(mr);
	return err;
}

/*
 * ibv_rereg_mr(3): another MR takes the place of the old one, with its key. When it returns no
 * worker knows the old one any more.
 */
int handle_rereg_mr(struct client *c, struct message *m)
{
	struct host_mr *old = handle_get(&c->shared->mrs, m->req->handle), *mr;
	uint32_t flags = m->req->rereg_mr.flags;
	uint32_t access = m->req->rereg_mr.access;
	struct pd *pd = NULL;
	int err = -EINVAL;

	if (old == NULL || flags == 0 || (flags & ~(uint32_t)IBV_REREG_MR_FLAGS_SUPPORTED) != 0)
		return -EINVAL;
	/* Only what ibv_reg_mr() makes, and only by whom it is of. */
	if (old->owner != c->mm)
		return -EINVAL;
	mr = calloc(1, sizeof(*mr));
	if (mr == NULL)
		return -ENOMEM;
	mr->mr.access = old->mr.access;
	mr->mr.pd = old->mr.pd;
	mr->owner = old->owner;
	mr->mapping = old->mapping;
	mr->mr.mm = old->mr.mm;
	mr->mr.iova = old->mr.iova;
	mr->mr.addr = old->mr.addr;
	mr->mr.length = old->mr.length;
	mr->mr.daemon_only = old->mr.daemon_only;
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		pd = handle_get(&c->shared->pds, m->req->rereg_mr.pd);
		if (pd == NULL)
			goto fail;
		mr->mr.pd = pd;
	}
	if (flags & IBV_REREG_MR_CHANGE_ACCESS) {
		err = mr_check_access(c, access);
		if (err != 0)
			goto fail;
		mr->mr.access = access & MR_ACCESS;
	}
	err = -EINVAL;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION &&
	    mr_use_memory(c, mr, m->req->rereg_mr.addr, m->req->rereg_mr.length,
			  m->req->rereg_mr.addr) != 0)
		goto fail;
	err = mr_close(&c->device->dev, &old->mr);
	if (err != 0)
		goto fail;
	mr_table_replace(c->device->dev.mrs, &old->mr, &mr->mr);
	handle_set(&c->shared->mrs, m->req->handle, mr);
	atomic_fetch_add(&mr->mr.pd->users, 1);
	atomic_fetch_sub(&old->mr.pd->users, 1);
	synchronize_rcu();
	/* The file stays mapped for what is still of it. */
	if (mr->mr.mm == NULL)
		old->mapping = NULL;
	else
		mr->mapping = NULL;
	mr_free(old);
	return 0;
fail:
	free(mr);
	return err;
}

/* ibv_advise_mr(3), one range: where it is in the client's memory, if it may be fetched. */
int handle_advise_mr(struct client *c, struct message *m)
{
	const struct pd *pd = handle_get(&c->shared->pds, m->req->advise_mr.pd);
	const struct mr *mr = mr_table_at(c->device->dev.mrs, m->req->advise_mr.lkey);
	bool write = m->req->advise_mr.advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	struct dma_segment seg;

	if (!device_has(&c->device->dev, DEVICE_ODP))
		return -EOPNOTSUPP;
	if (pd == NULL || (mr != NULL && mr->window))
		return -EINVAL;
	if (mr == NULL || mr->key != m->req->advise_mr.lkey)
		return -EFAULT;
	if (mr->pd != pd)
		return -EPERM;
	if ((mr->access & IBV_ACCESS_ON_DEMAND) == 0)
		return -EINVAL;
	if (write && (mr->access & IBV_ACCESS_LOCAL_WRITE) == 0)
		return -EPERM;
	if (mr->mm != c->mm ||
	    mr_access(mr, m->req->advise_mr.addr, m->req->advise_mr.length, 0, &seg) != 0)
		return -EFAULT;
	m->reply->advise_mr.addr = seg.addr;
	return 0;
}

/* Takes a region away from the workers, who may still hold it until a grace period is over. */
static void mr_unpublish(struct client *c, struct host_mr *mr, uint32_t handle)
{
	mr_table_remove(c->device->dev.mrs, &mr->mr);
	atomic_fetch_sub(&mr->mr.pd->users, 1);
	handle_remove(&c->shared->mrs, handle);
	c->device->mrs--;
}
/*
 * ibv_dereg_mr(3): when it returns, no worker touches that memory any more.
 * @return EBUSY while a window is bound to it
 */
int handle_dereg_mr(struct client *c, struct message *m)
{
	struct host_mr *mr = handle_get(&c->shared->mrs, m->req->handle);
	int err;

	if (mr == NULL)
		return -EINVAL;
	err = mr_close(&c->device->dev, &mr->mr);
	if (err != 0)
		return err;
	mr_unpublish(c, mr, m->req->handle);
	synchronize_rcu();
	mr_free(mr);
	return 0;
}

/* Those of the client's memory; of the last client, all. */
void client_close_mrs(struct client *c)
{
	struct handle_table *mrs = &c->shared->mrs;
	struct host_mr *gone = NULL, *next;

	for (uint32_t h = 0; h < mrs->used; h++) {
		struct host_mr *mr = handle_get(mrs, h);

		if (mr == NULL || (mr->owner != c->mm && !client_is_last(c)))
			continue;
		mr_unpublish(c, mr, h);
		mr_abandon(&c->device->dev, &mr->mr);
		mr->next = gone;
		gone = mr;
	}
	if (gone == NULL)
		return;
	/* One grace period for all of them, and for who came to them by a window. */
	client_unbind_mws(c);
	synchronize_rcu();
	for (; gone != NULL; gone = next) {
		next = gone->next;
		mr_free(gone);
	}
}
