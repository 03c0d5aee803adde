/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Protection domains, parent domains and thread domains.
 *
 * A parent domain is a PD of this library: it has the handle of the PD it was made from, so that
 * the daemon takes one for the other. What the library keeps for a queue made on it comes from the
 * program's allocator (the queues' rings are the daemon's memory), and with a thread domain the
 * queue's lock is left out.
 */
#include <errno.h>
#include <stdlib.h>

#include <rdma/ib_user_ioctl_verbs.h>

#include "internal.h"

/* From the program's objects to ours. */
static struct td *to_td(struct ibv_td *td)
{
	return (struct td *)td;
}

struct ibv_pd *pd_make(struct ibv_context *context, const struct vernic_request *req)
{
	struct vernic_reply reply;
	struct pd *pd;
	int error;

	pd = calloc(1, sizeof(*pd));
	if (!pd)
		return NULL;
	error = control_call(to_context(context), req, &reply, NULL, 0);
	if (error) {
		free(pd);
		errno = error;
		return NULL;
	}
	pd->ibv.context = context;
	pd->ibv.handle = reply.handle;
	return &pd->ibv;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct vernic_request req = {.command = VERNIC_CMD_ALLOC_PD};

	return pd_make(context, &req);
}

/* Frees a parent domain that nothing was made on, or is any more. */
static void parent_free(struct pd *pd)
{
	if (pd->td)
		atomic_fetch_sub(&pd->td->users, 1);
	atomic_fetch_sub(&pd->protection->users, 1);
	free(pd);
}

int ibv_dealloc_pd(struct ibv_pd *ibpd)
{
	struct pd *pd = to_pd(ibpd);
	int error;

	/* Of these users the daemon knows nothing. */
	if (vernic_load_relaxed(&pd->ahs) || vernic_load_relaxed(&pd->users))
		return EBUSY;
	if (pd->protection) {
		parent_free(pd);
		return 0;
	}
	error = control_destroy(to_context(ibpd->context), VERNIC_CMD_DEALLOC_PD, ibpd->handle,
				NULL);
	if (!error)
		free(pd);
	return error;
}

/* ---- parent domains: ibv_alloc_parent_domain(3) -------------------------------------------- */

struct ibv_pd *pd_alloc_parent(struct ibv_context *context,
			       struct ibv_parent_domain_init_attr *attr)
{
	const uint32_t known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			       IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	struct pd *pd;

	if (!attr->pd || attr->pd->context != context || to_pd(attr->pd)->protection ||
	    (attr->td && attr->td->context != context) || (attr->comp_mask & ~known) ||
	    ((attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) &&
	     (!attr->alloc || !attr->free))) {
		errno = EINVAL;
		return NULL;
	}
	pd = calloc(1, sizeof(*pd));
	if (!pd)
		return NULL;
	pd->ibv.context = context;
	pd->ibv.handle = attr->pd->handle;
	pd->protection = to_pd(attr->pd);
	atomic_fetch_add(&pd->protection->users, 1);
	if (attr->td) {
		pd->td = to_td(attr->td);
		atomic_fetch_add(&pd->td->users, 1);
	}
	if (attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
		pd->alloc = attr->alloc;
		pd->free = attr->free;
	}
	if (attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
		pd->context = attr->pd_context;
	return &pd->ibv;
}

void pd_hold(struct ibv_pd *ibpd)
{
	if (ibpd && to_pd(ibpd)->protection)
		atomic_fetch_add(&to_pd(ibpd)->users, 1);
}

void pd_release(struct ibv_pd *ibpd)
{
	if (ibpd && to_pd(ibpd)->protection)
		atomic_fetch_sub(&to_pd(ibpd)->users, 1);
}

bool pd_single_threaded(const struct ibv_pd *ibpd)
{
	return ibpd && ((const struct pd *)ibpd)->td;
}

/* The resource_type of allocators: whose it is above, what it is below. */
static uint64_t resource_type(enum pd_resource resource)
{
	return (uint64_t)RDMA_DRIVER_UNKNOWN << 32 | resource;
}

void *pd_alloc(struct ibv_pd *ibpd, size_t size, enum pd_resource resource, struct pd **owner)
{
	struct pd *pd = to_pd(ibpd);
	void *p;

	*owner = NULL;
	size = (size + VERNIC_CACHELINE - 1) & ~(size_t)(VERNIC_CACHELINE - 1);
	if (!pd || !pd->alloc)
		return aligned_alloc(VERNIC_CACHELINE, size);
	p = pd->alloc(ibpd, pd->context, size, VERNIC_CACHELINE, resource_type(resource));
	if (p == IBV_ALLOCATOR_USE_DEFAULT)
		return aligned_alloc(VERNIC_CACHELINE, size);
	if (!p) {
		errno = ENOMEM;
		return NULL;
	}
	if ((uintptr_t)p % VERNIC_CACHELINE) {
		pd->free(ibpd, pd->context, p, resource_type(resource));
		errno = EINVAL;
		return NULL;
	}
	*owner = pd;
	return p;
}

void pd_free(struct pd *owner, void *p, enum pd_resource resource)
{
	if (owner)
		owner->free(&owner->ibv, owner->context, p, resource_type(resource));
	else
		free(p);
}

/* ---- thread domains: ibv_alloc_td(3) ------------------------------------------------------- */

struct ibv_td *td_alloc(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	struct td *td;

	if (attr->comp_mask) {
		errno = EINVAL;
		return NULL;
	}
	td = calloc(1, sizeof(*td));
	if (!td)
		return NULL;
	td->ibv.context = context;
	return &td->ibv;
}

int td_dealloc(struct ibv_td *ibtd)
{
	struct td *td = to_td(ibtd);

	if (vernic_load_relaxed(&td->users))
		return EBUSY;
	free(td);
	return 0;
}
