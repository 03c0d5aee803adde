/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Device memory: the daemon's own, mapped by the client too, so that ibv_memcpy_to_dm() and
 * ibv_memcpy_from_dm() are copies in its process.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control.h"

/* What alloc and import say of it, and its descriptor. @return 0 or a negative errno */
static int dm_fill_reply(const struct host_dm *dm, struct message *m)
{
	int fd = fcntl(dm->fd, F_DUPFD_CLOEXEC, 3);

	if (fd < 0)
		return -errno;
	message_add_fd(m, fd);
	m->reply->alloc_dm.size = dm->size;
	m->reply->alloc_dm.length = dm->length;
	return 0;
}

/* Nothing uses it any more. */
static void dm_destroy(struct client *c, struct host_dm *dm)
{
	c->device->dm -= (uint32_t)dm->size;
	munmap(dm->base, dm->size);
	close(dm->fd);
	free(dm);
}

/* ibv_alloc_dm(3). @return EINVAL: more than a device has; ENOMEM: more than is left */
int handle_alloc_dm(struct client *c, struct message *m)
{
	uint64_t length = m->req->alloc_dm.length;
	struct host_dm *dm;
	uint32_t handle;
	int err;

	if (!device_has(&c->device->dev, DEVICE_MEMORY))
		return -EOPNOTSUPP;
	if (length == 0 || length > VERNIC_MAX_DM)
		return -EINVAL;
	dm = calloc(1, sizeof(*dm));
	if (dm == NULL)
		return -ENOMEM;
	dm->length = length;
	dm->size = round_up(length, 4096);
	err = -ENOMEM;
	if (dm->size > VERNIC_MAX_DM - c->device->dm)
		goto fail;
	err = shared_memory_create("vernic-dm", dm->size, &dm->base, &dm->fd);
	if (err != 0)
		goto fail;
	c->device->dm += (uint32_t)dm->size;
	err = handle_add(&c->shared->dms, dm, UINT32_MAX - 1, &handle);
	if (err != 0)
		goto fail_memory;
	err = dm_fill_reply(dm, m);
	if (err != 0)
		goto fail_handle;
	m->reply->handle = handle;
	return 0;
fail_handle:
	handle_remove(&c->shared->dms, handle);
fail_memory:
	dm_destroy(c, dm);
	return err;
fail:
	free(dm);
	return err;
}

/* ibv_free_dm(3). @return EBUSY while there are MRs of it */
int handle_free_dm(struct client *c, struct message *m)
{
	struct host_dm *dm = handle_get(&c->shared->dms, m->req->handle);

	if (dm == NULL)
		return -EINVAL;
	if (dm->users != 0)
		return -EBUSY;
	handle_remove(&c->shared->dms, m->req->handle);
	dm_destroy(c, dm);
	return 0;
}

/* ibv_import_dm(3) */
int handle_import_dm(struct client *c, struct message *m)
{
	const struct host_dm *dm = handle_get(&c->shared->dms, m->req->handle);

	return dm != NULL ? dm_fill_reply(dm, m) : -EINVAL;
}

void client_close_dms(struct client *c)
{
	if (!client_is_last(c))
		return;
	for (uint32_t h = 0; h < c->shared->dms.used; h++) {
		struct host_dm *dm = handle_get(&c->shared->dms, h);

		if (dm == NULL)
			continue;
		handle_remove(&c->shared->dms, h);
		dm_destroy(c, dm);
	}
}
