/* SPDX-License-Identifier: BSD-2-Clause */
/* Protection domains. */
#include "control.h"

/* ibv_alloc_pd(3) */
int handle_alloc_pd(struct client *c, struct message *m)
{
	struct pd *pd;
	int err;

	if (c->device->pds >= (uint32_t)c->device->dev.attr.max_pd)
		return -ENOMEM;
	pd = calloc(1, sizeof(*pd));
	if (pd == NULL)
		return -ENOMEM;
	pd->dev = &c->device->dev;
	err = handle_add(&c->shared->pds, pd, UINT32_MAX - 1, &pd->handle);
	if (err != 0) {
		free(pd);
		return err;
	}
	c->device->pds++;
	m->reply->handle = pd->handle;
	return 0;
}

/* Nothing uses it any more. */
static void pd_destroy(struct client *c, struct pd *pd)
{
	handle_remove(&c->shared->pds, pd->handle);
	c->device->pds--;
	free(pd);
}

/* ibv_dealloc_pd(3). @return EBUSY while there are objects on it */
int handle_dealloc_pd(struct client *c, struct message *m)
{
	struct pd *pd = handle_get(&c->shared->pds, m->req->handle);

	if (pd == NULL)
		return -EINVAL;
	if (atomic_load(&pd->users) != 0)
		return -EBUSY;
	pd_destroy(c, pd);
	return 0;
}

void client_close_pds(struct client *c)
{
	if (!client_is_last(c))
		return;
	for (uint32_t h = 0; h < c->shared->pds.used; h++) {
		struct pd *pd = handle_get(&c->shared->pds, h);

		if (pd != NULL)
			pd_destroy(c, pd);
	}
}
