/* SPDX-License-Identifier: BSD-2-Clause */
/* Multicast: attaching QPs to groups and detaching them. */
#include <errno.h>
#include <string.h>

#include "internal.h"

/* One of the two commands. @return 0 or a positive errno */
static int mcast_call(enum vernic_command command, struct ibv_qp *qp, const union ibv_gid *gid,
		      uint16_t lid)
{
	struct vernic_request req = {.command = command, .handle = qp->handle};
	struct vernic_reply reply;

	if (!gid)
		return EINVAL;
	memcpy(req.mcast.gid, gid->raw, sizeof(req.mcast.gid));
	req.mcast.lid = lid;
	return control_call(to_qp(qp)->ctx, &req, &reply, NULL, 0);
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return mcast_call(VERNIC_CMD_ATTACH_MCAST, qp, gid, lid);
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	int error = mcast_call(VERNIC_CMD_DETACH_MCAST, qp, gid, lid);

	/* With the daemon all groups are gone. */
	return context_dead(to_qp(qp)->ctx) ? 0 : error;
}
