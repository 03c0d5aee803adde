// SPDX-License-Identifier: BSD-2-Clause
/*
 * A library to preload: gives programs that know of LIDs only the GRH that RoCE demands. Addresses
 * without one get GID index 1, and as destination the GID in $GRH_PEER (an IPv4 address), or the
 * same GID where that is not set.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include <infiniband/verbs.h>

#define GID_INDEX 1

/* @return 0, or an errno value */
static int add_grh(struct ibv_context *ctx, struct ibv_ah_attr *attr)
{
	const char *peer = getenv("GRH_PEER");
	union ibv_gid *gid = &attr->grh.dgid;

	if (attr->is_global)
		return 0;
	attr->is_global = 1;
	attr->grh = (struct ibv_global_route){.sgid_index = GID_INDEX, .hop_limit = 64};
	if (!peer)
		return ibv_query_gid(ctx, attr->port_num, GID_INDEX, gid);
	gid->raw[10] = gid->raw[11] = 0xff;
	return inet_pton(AF_INET, peer, &gid->raw[12]) == 1 ? 0 : EINVAL;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	static int (*next)(struct ibv_qp *, struct ibv_qp_attr *, int);
	struct ibv_qp_attr copy = *attr;
	int ret = 0;

	if (!next)
		next = (int (*)(struct ibv_qp *, struct ibv_qp_attr *, int))dlsym(RTLD_NEXT,
										  "ibv_modify_qp");
	if (mask & IBV_QP_AV)
		ret = add_grh(qp->context, &copy.ah_attr);
	return ret ? ret : next(qp, &copy, mask);
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	static struct ibv_ah *(*next)(struct ibv_pd *, struct ibv_ah_attr *);
	struct ibv_ah_attr copy = *attr;

	if (!next)
		next = (struct ibv_ah * (*)(struct ibv_pd *, struct ibv_ah_attr *))
			dlsym(RTLD_NEXT, "ibv_create_ah");
	errno = add_grh(pd->context, &copy);
	return errno ? NULL : next(pd, &copy);
}
