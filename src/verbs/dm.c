/* SPDX-License-Identifier: BSD-2-Clause */
/* Device memory: the daemon's, mapped here for ibv_memcpy_to_dm() and ibv_memcpy_from_dm(). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"

#define DM_MAX_ALIGN 12 /* log2: every allocation begins a page */
#define DM_UNIT 4	/* bytes: copies are in whole ones, as adapters want it */

struct dm {
	struct ibv_dm ibv;
	uint8_t *memory;
	size_t size; /* bytes mapped */
	size_t length;
	bool child; /* made by a forked child, which is all that can use it */
};

/* @return 0, or EINVAL where a copy is not within the memory, or not in whole units */
static int check_copy(const struct dm *dm, uint64_t offset, size_t length)
{
	if (offset % DM_UNIT || length % DM_UNIT || offset > dm->length ||
	    length > dm->length - offset)
		return EINVAL;
	return 0;
}

/* ibv_memcpy_to_dm(3) */
static int dm_write(struct ibv_dm *ibdm, uint64_t offset, const void *host, size_t length)
{
	struct dm *dm = (struct dm *)ibdm;
	int error = check_copy(dm, offset, length);

	if (!error)
		memcpy(dm->memory + offset, host, length);
	return error;
}

/* ibv_memcpy_from_dm(3) */
static int dm_read(void *host, struct ibv_dm *ibdm, uint64_t offset, size_t length)
{
	struct dm *dm = (struct dm *)ibdm;
	int error = check_copy(dm, offset, length);

	if (!error)
		memcpy(host, dm->memory + offset, length);
	return error;
}

/* Has the daemon free it. @return 0 or a positive errno */
static int dm_destroy(struct dm *dm)
{
	struct vernic_request req = {.command = VERNIC_CMD_FREE_DM, .handle = dm->ibv.handle};
	struct context *ctx = to_context(dm->ibv.context);
	struct vernic_reply reply;

	if (dm->child)
		return control_call_child(ctx, &req, &reply, NULL, 0);
	return control_destroy(ctx, VERNIC_CMD_FREE_DM, dm->ibv.handle, NULL);
}

/* A request whose reply is of alloc_dm: maps the memory. @return NULL and errno */
static struct dm *dm_get(struct ibv_context *context, const struct vernic_request *req)
{
	struct vernic_reply reply;
	struct dm *dm;
	int fd, error;

	dm = calloc(1, sizeof(*dm));
	if (!dm)
		return NULL;
	dm->child = context_forked(to_context(context));
	dm->ibv.context = context;
	error = control_call(to_context(context), req, &reply, &fd, 1);
	if (error)
		goto err;
	dm->ibv.handle = reply.handle;
	dm->memory = control_map(fd, reply.alloc_dm.size, PROT_READ | PROT_WRITE);
	if (!dm->memory) {
		error = errno;
		if (req->command == VERNIC_CMD_ALLOC_DM)
			dm_destroy(dm);
		goto err;
	}
	dm->size = reply.alloc_dm.size;
	dm->length = reply.alloc_dm.length;
	dm->ibv.memcpy_to_dm = dm_write;
	dm->ibv.memcpy_from_dm = dm_read;
	return dm;

err:
	free(dm);
	errno = error;
	return NULL;
}

/* Frees what is of this process. */
static void dm_put(struct dm *dm)
{
	if (dm->child)
		munmap(dm->memory, dm->size);
	else
		control_unmap(to_context(dm->ibv.context), dm->memory, dm->size);
	free(dm);
}

struct ibv_dm *dm_alloc(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)
{
	struct vernic_request req = {.command = VERNIC_CMD_ALLOC_DM};
	struct dm *dm;

	if (attr->comp_mask || attr->log_align_req > DM_MAX_ALIGN) {
		errno = EINVAL;
		return NULL;
	}
	req.alloc_dm.length = attr->length;
	dm = dm_get(context, &req);
	return dm ? &dm->ibv : NULL;
}

int dm_free(struct ibv_dm *ibdm)
{
	int error = dm_destroy((struct dm *)ibdm);

	if (!error)
		dm_put((struct dm *)ibdm);
	return error;
}

struct ibv_mr *dm_reg_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t dm_offset, size_t length,
			 unsigned int access)
{
	struct vernic_request req = {0};

	/* Device memory has no addresses of the process (ibv_alloc_dm(3)). */
	if (!(access & IBV_ACCESS_ZERO_BASED) || pd->context != dm->context) {
		errno = EINVAL;
		return NULL;
	}
	req.reg_mr.addr = dm_offset;
	req.reg_mr.length = length;
	req.reg_mr.access = access;
	req.reg_mr.kind = VERNIC_MR_DM;
	req.reg_mr.dm = dm->handle;
	return mr_register(pd, &req, NULL);
}

struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t dm_handle)
{
	struct vernic_request req = {.command = VERNIC_CMD_IMPORT_DM, .handle = dm_handle};
	struct dm *dm = dm_get(context, &req);

	if (!dm)
		return NULL;
	dm->ibv.handle = dm_handle;
	return &dm->ibv;
}

void ibv_unimport_dm(struct ibv_dm *dm)
{
	dm_put((struct dm *)dm);
}
