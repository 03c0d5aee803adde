/* SPDX-License-Identifier: BSD-2-Clause */
/* Receive work queues without a QP, and the tables that spread packets over them. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"

/* Frees a WQ, half made or whole. */
static void wq_free(struct wq *wq)
{
	control_unmap(wq->ctx, wq->ring, wq->size);
	pd_release(wq->ibv.pd);
	pd_free(wq->allocator, wq, PD_RESOURCE_WQ);
}

/* Ties a WQ to what the daemon made. @return 0 or a positive errno */
static int wq_map(struct wq *wq, const struct vernic_reply *reply, int fd)
{
	wq->size = reply->create_wq.size;
	wq->ring = control_map(fd, wq->size, PROT_READ | PROT_WRITE);
	if (!wq->ring)
		return errno;
	wq->rq.base = (uint8_t *)wq->ring + VERNIC_WQ_OFFSET;
	wq->rq.mask = reply->create_wq.depth - 1;
	wq->rq.stride = reply->create_wq.stride;
	wq->rq.max_wr = reply->create_wq.max_wr;
	wq->rq.max_sge = reply->create_wq.max_sge;
	return reply->handle < VERNIC_MAX_CONTEXT_WQ ? 0 : EPROTO;
}

/* Checks what the daemon cannot. @return 0 or a positive errno */
static int check_attr(struct ibv_context *context, const struct ibv_wq_init_attr *attr)
{
	if (attr->comp_mask & ~(uint32_t)IBV_WQ_INIT_ATTR_FLAGS)
		return EOPNOTSUPP;
	if ((attr->comp_mask & IBV_WQ_INIT_ATTR_FLAGS) && attr->create_flags)
		return EOPNOTSUPP;
	if (attr->wq_type != IBV_WQT_RQ || !attr->pd || !attr->cq || attr->pd->context != context ||
	    attr->cq->context != context)
		return EINVAL;
	return 0;
}

/* @return the context's table of WQs, which the first one makes; NULL and errno */
static _Atomic(struct wq *) *wq_table(struct context *ctx)
{
	_Atomic(struct wq *) *table;

	pthread_mutex_lock(&ctx->objects_mutex);
	table = atomic_load(&ctx->wqs);
	if (!table) {
		table = calloc(VERNIC_MAX_CONTEXT_WQ, sizeof(*table));
		atomic_store(&ctx->wqs, table);
	}
	pthread_mutex_unlock(&ctx->objects_mutex);
	return table;
}

struct wq *wq_find(struct context *ctx, uint32_t handle, uint32_t wq_num)
{
	_Atomic(struct wq *) *table = atomic_load_explicit(&ctx->wqs, memory_order_acquire);
	struct wq *wq = table && handle < VERNIC_MAX_CONTEXT_WQ ? atomic_load(&table[handle])
								: NULL;

	return wq && wq->ibv.wq_num == wq_num ? wq : NULL;
}

static int post_wq_recv(struct ibv_wq *ibwq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct wq *wq = (struct wq *)ibwq;
	struct rq *rq = &wq->rq;
	int error = 0;

	if (context_forked(wq->ctx)) {
		*bad_wr = wr;
		return EIO;
	}
	spin_lock(&rq->lock);
	if (wq->ibv.state == IBV_WQS_RESET)
		error = EINVAL;
	for (; wr && !error; wr = wr->next) {
		error = post_rq_room(rq, rq->head, wr);
		if (error)
			break;
		post_write_recv(rq->base + (size_t)(rq->head & rq->mask) * rq->stride, wr);
		rq->head++;
	}
	if (error)
		*bad_wr = wr;
	vernic_store_release(&wq->ring->prod, rq->head);
	spin_unlock(&rq->lock);
	/* What is posted in ERR is flushed. */
	if (wq->ibv.state == IBV_WQS_ERR) {
		struct vernic_request req = {.command = VERNIC_CMD_MODIFY_WQ,
					     .handle = wq->ibv.handle,
					     .modify_wq.state = IBV_WQS_ERR};
		struct vernic_reply reply;

		control_call(wq->ctx, &req, &reply, NULL, 0);
	}
	return error;
}

struct ibv_wq *wq_create(struct ibv_context *context, struct ibv_wq_init_attr *attr)
{
	struct context *ctx = to_context(context);
	struct vernic_request req = {.command = VERNIC_CMD_CREATE_WQ};
	struct vernic_reply reply;
	_Atomic(struct wq *) *table;
	struct pd *allocator;
	struct wq *wq;
	int fd, error;

	error = check_attr(context, attr);
	if (error) {
		errno = error;
		return NULL;
	}
	table = wq_table(ctx);
	if (!table)
		return NULL;
	wq = pd_alloc(attr->pd, sizeof(*wq), PD_RESOURCE_WQ, &allocator);
	if (!wq)
		return NULL;
	*wq = (struct wq){
		.ctx = ctx,
		.allocator = allocator,
		.rq.lock.unneeded = pd_single_threaded(attr->pd),
		.ibv = {.context = context,
			.pd = attr->pd,
			.cq = attr->cq,
			.state = IBV_WQS_RESET,
			.wq_type = IBV_WQT_RQ,
			.post_recv = post_wq_recv},
	};
	pd_hold(attr->pd);
	req.create_wq.pd = attr->pd->handle;
	req.create_wq.cq = attr->cq->handle;
	req.create_wq.max_wr = attr->max_wr;
	req.create_wq.max_sge = attr->max_sge;
	pthread_mutex_lock(&ctx->qp_mutex);
	error = control_call(ctx, &req, &reply, &fd, 1);
	if (error)
		goto err;
	error = wq_map(wq, &reply, fd);
	if (error) {
		control_destroy(ctx, VERNIC_CMD_DESTROY_WQ, reply.handle, NULL);
		goto err;
	}
	attr->max_wr = wq->rq.max_wr;
	attr->max_sge = wq->rq.max_sge;
	wq->ibv.handle = reply.handle;
	wq->ibv.wq_num = reply.create_wq.wq_num;
	atomic_store_explicit(&table[wq->ibv.handle], wq, memory_order_release);
	pthread_mutex_unlock(&ctx->qp_mutex);
	return &wq->ibv;

err:
	pthread_mutex_unlock(&ctx->qp_mutex);
	wq_free(wq);
	errno = error;
	return NULL;
}

int wq_modify(struct ibv_wq *ibwq, struct ibv_wq_attr *attr)
{
	struct vernic_request req = {.command = VERNIC_CMD_MODIFY_WQ, .handle = ibwq->handle};
	struct wq *wq = (struct wq *)ibwq;
	struct vernic_reply reply;
	int error;

	if (attr->attr_mask &
	    ~(uint32_t)(IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_FLAGS))
		return EINVAL;
	if ((attr->attr_mask & IBV_WQ_ATTR_CURR_STATE) && attr->curr_wq_state != ibwq->state)
		return EINVAL;
	if ((attr->attr_mask & IBV_WQ_ATTR_FLAGS) && (attr->flags_mask || attr->flags))
		return EOPNOTSUPP;
	if (!(attr->attr_mask & IBV_WQ_ATTR_STATE))
		return 0;
	req.modify_wq.state = attr->wq_state;
	spin_lock(&wq->rq.lock);
	error = control_call(wq->ctx, &req, &reply, NULL, 0);
	if (!error) {
		ibwq->state = attr->wq_state;
		if (ibwq->state == IBV_WQS_RESET) {
			wq->rq.head = 0;
			vernic_store_release(&wq->rq.tail, 0);
		}
	}
	spin_unlock(&wq->rq.lock);
	if (!error && attr->wq_state == IBV_WQS_RESET)
		cq_clean_wq(to_cq(ibwq->cq), ibwq->handle, ibwq->wq_num);
	return error;
}

int wq_destroy(struct ibv_wq *ibwq)
{
	struct wq *wq = (struct wq *)ibwq;
	struct context *ctx = wq->ctx;
	uint32_t delivered = 0;
	int error;

	/* As for QPs: nobody gets its handle, or looks at it, before it is out of the table. */
	pthread_mutex_lock(&ctx->qp_mutex);
	error = control_destroy(ctx, VERNIC_CMD_DESTROY_WQ, ibwq->handle, NULL);
	if (!error) {
		if (!context_forked(ctx))
			cq_clean_wq(to_cq(ibwq->cq), ibwq->handle, ibwq->wq_num);
		pthread_mutex_lock(&ctx->objects_mutex);
		atomic_store(&atomic_load(&ctx->wqs)[ibwq->handle], NULL);
		delivered = wq->delivered;
		pthread_mutex_unlock(&ctx->objects_mutex);
	}
	pthread_mutex_unlock(&ctx->qp_mutex);
	if (error)
		return error;
	pthread_mutex_lock(&ibwq->mutex);
	while (!context_forked(ctx) && ibwq->events_completed != delivered)
		pthread_cond_wait(&ibwq->cond, &ibwq->mutex);
	pthread_mutex_unlock(&ibwq->mutex);
	wq_free(wq);
	return 0;
}

/* ---- indirection tables -------------------------------------------------------------------- */

struct ibv_rwq_ind_table *rwq_table_create(struct ibv_context *context,
					   struct ibv_rwq_ind_table_init_attr *attr)
{
	struct vernic_request req = {.command = VERNIC_CMD_CREATE_RWQ_TABLE};
	struct ibv_rwq_ind_table *table;
	struct vernic_reply reply;
	int error = EINVAL;

	if (attr->comp_mask) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (attr->log_ind_tbl_size > VERNIC_MAX_RWQ_LOG) {
		errno = EINVAL;
		return NULL;
	}
	table = calloc(1, sizeof(*table));
	if (!table)
		return NULL;
	req.create_rwq_table.log_size = attr->log_ind_tbl_size;
	for (uint32_t i = 0; i < 1u << attr->log_ind_tbl_size; i++) {
		if (!attr->ind_tbl[i] || attr->ind_tbl[i]->context != context)
			goto err;
		req.create_rwq_table.wq[i] = attr->ind_tbl[i]->handle;
	}
	error = control_call(to_context(context), &req, &reply, NULL, 0);
	if (error)
		goto err;
	table->context = context;
	table->ind_tbl_handle = (int)reply.handle;
	table->ind_tbl_num = (int)reply.handle;
	return table;

err:
	free(table);
	errno = error;
	return NULL;
}

int rwq_table_destroy(struct ibv_rwq_ind_table *table)
{
	int error = control_destroy(to_context(table->context), VERNIC_CMD_DESTROY_RWQ_TABLE,
				    (uint32_t)table->ind_tbl_handle, NULL);

	if (!error)
		free(table);
	return error;
}
