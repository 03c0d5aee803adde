/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Objects of another process that has passed its context's cmd_fd and their handles. What is freed
 * here is this process's view; the object goes when one of those who have it destroys it. Devices
 * are imported in context.c, device memory in dm.c.
 */
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t pd_handle)
{
	struct vernic_request req = {.command = VERNIC_CMD_IMPORT_PD, .handle = pd_handle};

	return pd_make(context, &req);
}

void ibv_unimport_pd(struct ibv_pd *pd)
{
	free(pd);
}

struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t mr_handle)
{
	struct vernic_request req = {.command = VERNIC_CMD_IMPORT_MR, .handle = mr_handle};
	struct vernic_reply reply;
	struct mr *mr;
	int error;

	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return NULL;
	req.import_mr.pd = pd->handle;
	error = control_call(to_context(pd->context), &req, &reply, NULL, 0);
	if (error) {
		free(mr);
		errno = error;
		return NULL;
	}
	/* Its address is one of another process: it stays NULL. */
	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	mr->ibv.length = reply.reg_mr.length;
	mr->ibv.handle = mr_handle;
	mr->ibv.lkey = reply.reg_mr.lkey;
	mr->ibv.rkey = reply.reg_mr.rkey;
	mr->fixed = true;
	pd_hold(pd);
	return &mr->ibv;
}

void ibv_unimport_mr(struct ibv_mr *mr)
{
	pd_release(mr->pd);
	free(mr);
}
