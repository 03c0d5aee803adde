/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory regions. */
#include <string.h>

#include <urcu-qsbr.h>

#include "control.h"

#include "../log.h"
#include "../mapping.h"

#define MR_ACCESS_SUPPORTED                                                          \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |     \
	 IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE)

/* Has the region's file mapped, if it can be: the memory is reached without the client's mm then. */
static void mr_map(struct mr *mr, int fd, uint64_t offset)
{
	uint8_t *addr;
	int err = mapping_get(fd, offset, mr->length, &mr->mapping, &addr);

	if (err != 0) {
		log_debug("a region's file cannot be mapped: %s", strerror(-err));
		return;
	}
	mr->mm = NULL;
	mr->addr = (uintptr_t)addr;
}

/* Frees a region that no worker can hold any more. */
static void mr_free(struct mr *mr)
{
	mapping_put(mr->mapping);
	free(mr);
}

/*
 * ibv_reg_mr(3). The library has shown that the range is mapped with the rights.
 * @return EOPNOTSUPP for on-demand paging; EINVAL
 */
int handle_reg_mr(struct client *c, struct message *m)
{
	uint64_t addr = m->req->reg_mr.addr;
	uint64_t length = m->req->reg_mr.length;
	uint64_t iova = m->req->reg_mr.iova;
	uint32_t access = m->req->reg_mr.access;
	struct pd *pd = handle_get(&c->pds, m->req->reg_mr.pd);
	struct mr *mr;
	uint32_t handle;
	int err;

	if (pd == NULL || length == 0)
		return -EINVAL;
	if ((access & IBV_ACCESS_ON_DEMAND) != 0)
		return -EOPNOTSUPP;
	if ((access & ~(uint32_t)MR_ACCESS_SUPPORTED) != 0)
		return -EINVAL;
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
	    (access & IBV_ACCESS_LOCAL_WRITE) == 0)
		return -EINVAL;
	/* Neither range may wrap. */
	if (addr > UINT64_MAX - length || iova > UINT64_MAX - (length - 1))
		return -EINVAL;
	if (c->device->mrs >= (uint32_t)c->device->dev.attr.max_mr)
		return -ENOMEM;
	mr = calloc(1, sizeof(*mr));
	if (mr == NULL)
		return -ENOMEM;
	mr->access = access;
	mr->pd = pd;
	mr->mm = c->mm;
	mr->iova = iova;
	mr->addr = addr;
	mr->length = length;
	if (m->in_count > 0)
		mr_map(mr, m->in[0], m->req->reg_mr.offset);
	err = handle_add(&c->mrs, mr, UINT32_MAX - 1, &handle);
	if (err != 0)
		goto fail;
	err = mr_table_add(c->device->dev.mrs, mr);
	if (err != 0)
		goto fail_handle;
	atomic_fetch_add(&pd->users, 1);
	c->device->mrs++;
	m->reply->handle = handle;
	m->reply->reg_mr.lkey = mr->key;
	m->reply->reg_mr.rkey = mr->key;
	return 0;
fail_handle:
	handle_remove(&c->mrs, handle);
fail:
	mr_free(mr);
	return err;
}

/* Takes a region away from the workers, who may still hold it until a grace period is over. */
static void mr_unpublish(struct client *c, struct mr *mr, uint32_t handle)
{
	mr_table_remove(c->device->dev.mrs, mr);
	atomic_fetch_sub(&mr->pd->users, 1);
	handle_remove(&c->mrs, handle);
	c->device->mrs--;
}

/* ibv_dereg_mr(3): when it returns, no worker touches that memory any more. */
int handle_dereg_mr(struct client *c, struct message *m)
{
	struct mr *mr = handle_get(&c->mrs, m->req->handle);

	if (mr == NULL)
		return -EINVAL;
	mr_unpublish(c, mr, m->req->handle);
	synchronize_rcu();
	mr_free(mr);
	return 0;
}

void client_close_mrs(struct client *c)
{
	struct mr **gone;
	uint32_t count = 0;

	if (c->mrs.count == 0)
		return;
	/* One grace period for all of them: the handle table itself keeps the list. */
	gone = (struct mr **)c->mrs.object;
	for (uint32_t h = 0; h < c->mrs.used; h++) {
		struct mr *mr = handle_get(&c->mrs, h);

		if (mr == NULL)
			continue;
		mr_unpublish(c, mr, h);
		gone[count++] = mr;
	}
	synchronize_rcu();
	for (uint32_t i = 0; i < count; i++)
		mr_free(gone[i]);
}
