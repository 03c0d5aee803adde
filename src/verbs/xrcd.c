/* SPDX-License-Identifier: BSD-2-Clause */
/* XRC domains. */
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

struct ibv_xrcd *xrcd_open(struct ibv_context *context, struct ibv_xrcd_init_attr *attr)
{
	const uint32_t needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	struct vernic_request req = {.command = VERNIC_CMD_OPEN_XRCD};
	struct vernic_reply reply;
	struct xrcd *xrcd;
	int error;

	if (attr->comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if ((attr->comp_mask & needed) != needed) {
		errno = EINVAL;
		return NULL;
	}
	if (attr->fd < -1) {
		errno = EBADF;
		return NULL;
	}
	xrcd = calloc(1, sizeof(*xrcd));
	if (!xrcd)
		return NULL;
	req.open_xrcd.oflags = (uint32_t)attr->oflags;
	error = control_call_fd(to_context(context), &req, attr->fd, &reply, NULL, 0);
	if (error) {
		free(xrcd);
		errno = error;
		return NULL;
	}
	xrcd->ibv.context = context;
	xrcd->handle = reply.handle;
	return &xrcd->ibv;
}

int xrcd_close(struct ibv_xrcd *ibxrcd)
{
	struct xrcd *xrcd = (struct xrcd *)ibxrcd;
	int error;

	error = control_destroy(to_context(ibxrcd->context), VERNIC_CMD_CLOSE_XRCD, xrcd->handle,
				NULL);
	if (!error)
		free(xrcd);
	return error;
}
