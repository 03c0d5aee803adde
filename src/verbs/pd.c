/* SPDX-License-Identifier: BSD-2-Clause */
/* Protection domains. */
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct vernic_request req = {.command = VERNIC_CMD_ALLOC_PD};
	struct vernic_reply reply;
	struct pd *pd;
	int error;

	pd = calloc(1, sizeof(*pd));
	if (!pd)
		return NULL;
	error = control_call(to_context(context), &req, &reply, NULL, 0);
	if (error) {
		free(pd);
		errno = error;
		return NULL;
	}
	pd->ibv.context = context;
	pd->ibv.handle = reply.handle;
	return &pd->ibv;
}

int ibv_dealloc_pd(struct ibv_pd *ibpd)
{
	struct pd *pd = (struct pd *)ibpd;
	int error;

	/* Address handles are unknown to the daemon. */
	if (vernic_load_relaxed(&pd->ahs))
		return EBUSY;
	error = control_destroy(to_context(ibpd->context), VERNIC_CMD_DEALLOC_PD, ibpd->handle,
				NULL);
	if (!error)
		free(pd);
	return error;
}
