/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory windows. Binding is the transport's. */
#include <urcu-qsbr.h>

#include "control.h"

/* ibv_alloc_mw(3) */
int handle_alloc_mw(struct client *c, struct message *m)
{
	struct pd *pd = handle_get(&c->shared->pds, m->req->alloc_mw.pd);
	uint32_t type = m->req->alloc_mw.type;
	struct mw *mw;
	uint32_t handle;
	int err;

	if (!device_has(&c->device->dev, DEVICE_MEMORY_WINDOWS))
		return -EOPNOTSUPP;
	if (pd == NULL || (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2))
		return -EINVAL;
	if (c->device->mws >= (uint32_t)c->device->dev.attr.max_mw)
		return -ENOMEM;
	mw = calloc(1, sizeof(*mw));
	if (mw == NULL)
		return -ENOMEM;
	mw->type = (enum ibv_mw_type)type;
	mw->mr.window = true;
	mw->mr.pd = pd;
	err = handle_add(&c->shared->mws, mw, UINT32_MAX - 1, &handle);
	if (err != 0)
		goto fail;
	err = mr_table_add(c->device->dev.mrs, &mw->mr);
	if (err != 0)
		goto fail_handle;
	atomic_fetch_add(&pd->users, 1);
	c->device->mws++;
	m->reply->handle = handle;
	m->reply->alloc_mw.rkey = mw->mr.key;
	return 0;
fail_handle:
	handle_remove(&c->shared->mws, handle);
fail:
	free(mw);
	return err;
}

/* Takes a window away from the workers, who may still hold it until a grace period is over. */
static void mw_unpublish(struct client *c, struct mw *mw, uint32_t handle)
{
	mr_table_remove(c->device->dev.mrs, &mw->mr);
	handle_remove(&c->shared->mws, handle);
	atomic_fetch_sub(&mw->mr.pd->users, 1);
	c->device->mws--;
}

/* ibv_dealloc_mw(3): what it was bound to is free again, and nobody gets there through it. */
int handle_dealloc_mw(struct client *c, struct message *m)
{
	struct mw *mw = handle_get(&c->shared->mws, m->req->handle);

	if (mw == NULL)
		return -EINVAL;
	mw_unpublish(c, mw, m->req->handle);
	/* A worker that found it before may be binding it. */
	synchronize_rcu();
	mw_unbind(&c->device->dev, mw);
	free(mw);
	return 0;
}

void client_unbind_mws(struct client *c)
{
	struct handle_table *mws = &c->shared->mws;

	for (uint32_t h = 0; h < mws->used; h++) {
		struct mw *mw = handle_get(mws, h);

		if (mw != NULL)
			mw_unbind_abandoned(&c->device->dev, mw);
	}
}

void client_close_mws(struct client *c)
{
	struct handle_table *mws = &c->shared->mws;
	struct mw **gone = (struct mw **)mws->object;
	uint32_t count = 0;

	if (!client_is_last(c) || mws->count == 0)
		return;
	/* One grace period for all of them: the handle table itself keeps the list. */
	for (uint32_t h = 0; h < mws->used; h++) {
		struct mw *mw = handle_get(mws, h);

		if (mw == NULL)
			continue;
		mw_unpublish(c, mw, h);
		gone[count++] = mw;
	}
	synchronize_rcu();
	for (uint32_t i = 0; i < count; i++) {
		mw_unbind(&c->device->dev, gone[i]);
		free(gone[i]);
		gone[i] = NULL;
	}
}
