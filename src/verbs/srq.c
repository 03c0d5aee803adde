/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared receive queues. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"

/* Frees a SRQ, half made or whole. */
static void srq_free(struct srq *srq)
{
	control_unmap(srq->ctx, srq->memory, srq->size);
	pthread_mutex_destroy(&srq->ibv.mutex);
	pthread_cond_destroy(&srq->ibv.cond);
	free(srq->free);
	pd_release(srq->ibv.pd);
	pd_free(srq->allocator, srq, PD_RESOURCE_SRQ);
}

/* Ties a SRQ to its ring memory. @return 0 or a positive errno */
static int srq_map(struct srq *srq, const struct vernic_reply *reply, int fd)
{
	srq->size = reply->create_srq.size;
	srq->memory = control_map(fd, srq->size, PROT_READ | PROT_WRITE);
	if (!srq->memory)
		return errno;
	srq->ring = srq->memory;
	srq->index = (void *)((uint8_t *)srq->memory + reply->create_srq.index_offset);
	srq->wqe = (uint8_t *)srq->memory + reply->create_srq.wqe_offset;
	srq->mask = reply->create_srq.depth - 1;
	srq->stride = reply->create_srq.stride;
	srq->max_sge = reply->create_srq.max_sge;
	srq->max_wr = reply->create_srq.max_wr;
	srq->slots = reply->create_srq.slots;
	srq->free = calloc(srq->slots, sizeof(*srq->free));
	if (!srq->free)
		return ENOMEM;
	return 0;
}

/* Checks what is asked for. @return 0 or a positive errno */
static int check_attr(struct ibv_context *context, const struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			       IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	const uint32_t xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;

	if (attr->comp_mask & ~known)
		return EOPNOTSUPP;
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd || attr->pd->context != context)
		return EINVAL;
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) || attr->srq_type == IBV_SRQT_BASIC)
		return 0;
	if (attr->srq_type != IBV_SRQT_XRC)
		return EOPNOTSUPP; /* no tag matching */
	if ((attr->comp_mask & xrc) != xrc || !attr->xrcd || attr->xrcd->context != context ||
	    !attr->cq || attr->cq->context != context)
		return EINVAL;
	return 0;
}

/* Makes CQEs of a XRC SRQ find it. */
static void join_cq(struct srq *srq, struct cq *cq)
{
	srq->cq = cq;
	spin_lock(&cq->lock);
	srq->cq_next = cq->xrc_srqs;
	cq->xrc_srqs = srq;
	spin_unlock(&cq->lock);
}

struct ibv_srq *srq_create_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	bool xrc = attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && attr->srq_type == IBV_SRQT_XRC;
	struct context *ctx = to_context(context);
	struct vernic_request req = {.command = VERNIC_CMD_CREATE_SRQ};
	struct vernic_reply reply;
	struct pd *allocator;
	struct srq *srq;
	int fd, error;

	error = check_attr(context, attr);
	if (error) {
		errno = error;
		return NULL;
	}
	srq = pd_alloc(attr->pd, sizeof(*srq), PD_RESOURCE_SRQ, &allocator);
	if (!srq)
		return NULL;
	*srq = (struct srq){.ctx = ctx, .allocator = allocator, .ibv.pd = attr->pd};
	pd_hold(attr->pd);
	pthread_mutex_init(&srq->ibv.mutex, NULL);
	pthread_cond_init(&srq->ibv.cond, NULL);
	req.create_srq.pd = attr->pd->handle;
	req.create_srq.xrcd = xrc ? ((struct xrcd *)attr->xrcd)->handle : UINT32_MAX;
	req.create_srq.cq = xrc ? attr->cq->handle : UINT32_MAX;
	req.create_srq.attr = attr->attr;
	error = control_call(ctx, &req, &reply, &fd, 1);
	if (error)
		goto err;
	error = srq_map(srq, &reply, fd);
	if (error) {
		control_destroy(ctx, VERNIC_CMD_DESTROY_SRQ, reply.handle, NULL);
		goto err;
	}
	srq->srq_num = reply.create_srq.srq_num;
	srq->ibv.context = context;
	srq->ibv.srq_context = attr->srq_context;
	srq->ibv.handle = reply.handle;
	attr->attr.max_wr = reply.create_srq.max_wr;
	attr->attr.max_sge = reply.create_srq.max_sge;
	if (xrc)
		join_cq(srq, to_cq(attr->cq));
	pthread_mutex_lock(&ctx->objects_mutex);
	srq->next = ctx->srqs;
	ctx->srqs = srq;
	pthread_mutex_unlock(&ctx->objects_mutex);
	return &srq->ibv;

err:
	srq_free(srq);
	errno = error;
	return NULL;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex ex = {
		.srq_context = attr->srq_context,
		.attr = attr->attr,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC,
		.pd = pd,
	};
	struct ibv_srq *srq = srq_create_ex(pd->context, &ex);

	if (srq)
		attr->attr = ex.attr;
	return srq;
}

int ibv_modify_srq(struct ibv_srq *ibsrq, struct ibv_srq_attr *attr, int attr_mask)
{
	struct srq *srq = to_srq(ibsrq);
	struct vernic_request req = {.command = VERNIC_CMD_MODIFY_SRQ, .handle = ibsrq->handle};
	struct vernic_reply reply;
	int error;

	req.modify_srq.attr_mask = (uint32_t)attr_mask;
	req.modify_srq.attr = *attr;
	if (!(attr_mask & IBV_SRQ_MAX_WR))
		return control_call(srq->ctx, &req, &reply, NULL, 0);
	/* Nothing is posted while the ring changes. */
	spin_lock(&srq->lock);
	if (attr->max_wr < srq->used)
		error = EINVAL;
	else
		error = control_call(srq->ctx, &req, &reply, NULL, 0);
	if (!error) {
		srq->mask = reply.modify_srq.depth - 1;
		srq->max_wr = reply.modify_srq.max_wr;
		attr->max_wr = srq->max_wr;
	}
	spin_unlock(&srq->lock);
	return error;
}

int ibv_query_srq(struct ibv_srq *ibsrq, struct ibv_srq_attr *attr)
{
	struct vernic_request req = {.command = VERNIC_CMD_QUERY_SRQ, .handle = ibsrq->handle};
	struct vernic_reply reply;
	int error;

	error = control_call(to_context(ibsrq->context), &req, &reply, NULL, 0);
	if (!error)
		*attr = reply.query_srq;
	return error;
}

int srq_get_num(struct ibv_srq *srq, uint32_t *srq_num)
{
	*srq_num = to_srq(srq)->srq_num;
	return 0;
}

void srq_release(struct srq *srq, uint32_t slot)
{
	spin_lock(&srq->lock);
	if (slot < srq->slots && srq->used) {
		srq->used--;
		srq->free[srq->free_count++] = slot;
	}
	spin_unlock(&srq->lock);
}

int ibv_destroy_srq(struct ibv_srq *ibsrq)
{
	struct srq *srq = to_srq(ibsrq);
	struct context *ctx = srq->ctx;
	uint32_t delivered;
	int error;

	error = control_destroy(ctx, VERNIC_CMD_DESTROY_SRQ, ibsrq->handle, NULL);
	if (error)
		return error;
	if (srq->cq && !context_forked(ctx))
		cq_clean_xrc(srq->cq, srq);
	pthread_mutex_lock(&ctx->objects_mutex);
	for (struct srq **p = &ctx->srqs; *p; p = &(*p)->next) {
		if (*p == srq) {
			*p = srq->next;
			break;
		}
	}
	delivered = srq->delivered;
	pthread_mutex_unlock(&ctx->objects_mutex);

	pthread_mutex_lock(&ibsrq->mutex);
	while (!context_forked(ctx) && ibsrq->events_completed != delivered)
		pthread_cond_wait(&ibsrq->cond, &ibsrq->mutex);
	pthread_mutex_unlock(&ibsrq->mutex);
	srq_free(srq);
	return 0;
}
