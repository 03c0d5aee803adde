/* SPDX-License-Identifier: BSD-2-Clause */
/* Completion queues and their channels: making, arming, destroying. Polling is poll.c. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#define PAGE 4096

/* What the extended polling functions can tell. */
#define WC_FLAGS_KNOWN                                                                     \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | \
	 IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK | IBV_WC_EX_WITH_FLOW_TAG)

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct vernic_request req = {.command = VERNIC_CMD_CREATE_CHANNEL};
	struct vernic_reply reply;
	struct channel *channel;
	int fd, error;

	channel = calloc(1, sizeof(*channel));
	if (!channel)
		return NULL;
	error = control_call(to_context(context), &req, &reply, &fd, 1);
	if (error) {
		free(channel);
		errno = error;
		return NULL;
	}
	/* The program says whether reading waits. */
	fcntl(fd, F_SETFL, 0);
	channel->ibv.context = context;
	channel->ibv.fd = fd;
	channel->handle = reply.handle;
	return &channel->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ibchannel)
{
	struct channel *channel = (struct channel *)ibchannel;
	struct ibv_context *context = ibchannel->context;
	int error = EBUSY;

	pthread_mutex_lock(&context->mutex);
	if (!ibchannel->refcnt)
		error = control_destroy(to_context(context), VERNIC_CMD_DESTROY_CHANNEL,
					channel->handle, NULL);
	pthread_mutex_unlock(&context->mutex);
	if (error)
		return error;
	close(ibchannel->fd);
	free(channel);
	return 0;
}

/* Counts a CQ on, or off, its channel. */
static void channel_count(struct ibv_comp_channel *channel, int n)
{
	if (!channel)
		return;
	pthread_mutex_lock(&channel->context->mutex);
	channel->refcnt += n;
	pthread_mutex_unlock(&channel->context->mutex);
}

/* Frees a CQ, half made or whole. */
static void cq_free(struct cq *cq)
{
	control_unmap(cq->ctx, cq->memory, cq->size);
	control_unmap(cq->ctx, cq->cqes, cq->cqes_size);
	pthread_mutex_destroy(&cq->ibv.mutex);
	pthread_cond_destroy(&cq->ibv.cond);
	pd_release(cq->parent);
	pd_free(cq->allocator, cq, PD_RESOURCE_CQ);
}

/* Checks what the daemon cannot, or need not. @return 0 or a positive errno */
static int check_attr(struct ibv_context *context, const struct ibv_cq_init_attr_ex *attr)
{
	const uint32_t known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED |
			       IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	bool has_flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS;
	bool has_parent = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD;

	if (attr->cqe < 1 || attr->cqe > VERNIC_MAX_CQE ||
	    attr->comp_vector >= (uint32_t)context->num_comp_vectors)
		return EINVAL;
	if ((attr->wc_flags & ~(uint64_t)WC_FLAGS_KNOWN) ||
	    (attr->comp_mask &
	     ~(uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD)) ||
	    (has_flags && (attr->flags & ~known)))
		return EOPNOTSUPP;
	if (has_parent && (!attr->parent_domain || attr->parent_domain->context != context ||
			   !to_pd(attr->parent_domain)->protection))
		return EINVAL;
	return 0;
}

struct ibv_cq_ex *cq_create_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	uint32_t flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
	struct ibv_pd *parent = NULL;
	struct context *ctx = to_context(context);
	struct vernic_request req = {.command = VERNIC_CMD_CREATE_CQ};
	struct vernic_reply reply;
	struct pd *allocator;
	struct cq *cq;
	int fd, error;

	error = check_attr(context, attr);
	if (error) {
		errno = error;
		return NULL;
	}
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD)
		parent = attr->parent_domain;
	cq = pd_alloc(parent, sizeof(*cq), PD_RESOURCE_CQ, &allocator);
	if (!cq)
		return NULL;
	*cq = (struct cq){
		.ctx = ctx,
		.parent = parent,
		.allocator = allocator,
		.ignore_overrun = flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
		.lock.unneeded = (flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) ||
				 pd_single_threaded(parent),
	};
	pd_hold(parent);
	pthread_mutex_init(&cq->ibv.mutex, NULL);
	pthread_cond_init(&cq->ibv.cond, NULL);

	req.create_cq.cqe = attr->cqe;
	req.create_cq.channel = attr->channel ? ((struct channel *)attr->channel)->handle
					      : UINT32_MAX;
	req.create_cq.comp_vector = attr->comp_vector;
	req.create_cq.ignore_overrun = cq->ignore_overrun;
	error = control_call(ctx, &req, &reply, &fd, 1);
	if (error)
		goto err;
	cq->size = reply.create_cq.size;
	cq->memory = control_map(fd, cq->size, PROT_READ | PROT_WRITE);
	if (!cq->memory) {
		error = errno;
		control_destroy(ctx, VERNIC_CMD_DESTROY_CQ, reply.handle, NULL);
		goto err;
	}
	cq->ring = cq->memory;
	cq->cqe = (void *)((uint8_t *)cq->memory + VERNIC_CQE_OFFSET);
	cq->mask = reply.create_cq.depth - 1;
	cq->shift = (uint32_t)__builtin_ctz(reply.create_cq.depth);
	cq->ibv.context = context;
	cq->ibv.channel = attr->channel;
	cq->ibv.cq_context = attr->cq_context;
	cq->ibv.handle = reply.handle;
	cq->ibv.cqe = (int)reply.create_cq.cqe;
	poll_ex_init(cq, attr->wc_flags);
	channel_count(attr->channel, 1);
	pthread_mutex_lock(&ctx->objects_mutex);
	cq->next = ctx->cqs;
	ctx->cqs = cq;
	pthread_mutex_unlock(&ctx->objects_mutex);
	return &cq->ex;

err:
	cq_free(cq);
	errno = error;
	return NULL;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int comp_vector)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = cqe < 0 ? 0 : (uint32_t)cqe,
		.cq_context = cq_context,
		.channel = channel,
		.comp_vector = (uint32_t)comp_vector,
	};

	return (struct ibv_cq *)cq_create_ex(context, &attr);
}

/*
 * Goes on in the ring that the daemon publishes in since a resize, where what was not polled yet is
 * copied to: its slots there are free, for the daemon keeps to the depth. The CQ's lock is held.
 * @return 0 or a positive errno
 */
static int cq_move(struct cq *cq, const struct vernic_reply *reply, int fd)
{
	uint32_t mask = reply->resize_cq.depth - 1, end = reply->resize_cq.index;
	uint32_t shift = (uint32_t)__builtin_ctz(reply->resize_cq.depth);
	struct vernic_cqe *cqe = control_map(fd, reply->resize_cq.size, PROT_READ | PROT_WRITE);

	if (!cqe)
		return errno;
	for (uint32_t i = cq->cons; i != end; i++) {
		const struct vernic_cqe *from = &cq->cqe[i & cq->mask];
		struct vernic_cqe *to = &cqe[i & mask];

		memcpy(to, from, offsetof(struct vernic_cqe, lap));
		memcpy(to->data, from->data, sizeof(to->data));
		if (cqe_presence(cq, i) != CQE_PRESENT)
			to->queue = VERNIC_CQE_NONE;
		vernic_store_release(&to->lap, (i >> shift) + 1);
	}
	/* The head stays, with what is in its page; the rest of the memory goes. */
	if (cq->cqes)
		control_unmap(cq->ctx, cq->cqes, cq->cqes_size);
	else if (cq->size > PAGE)
		madvise((uint8_t *)cq->memory + PAGE, cq->size - PAGE, MADV_REMOVE);
	cq->cqes = cqe;
	cq->cqes_size = reply->resize_cq.size;
	cq->cqe = cqe;
	cq->mask = mask;
	cq->shift = shift;
	cq->ibv.cqe = (int)reply->resize_cq.cqe;
	return 0;
}

int ibv_resize_cq(struct ibv_cq *ibcq, int cqe)
{
	struct vernic_request req = {.command = VERNIC_CMD_RESIZE_CQ, .handle = ibcq->handle};
	struct cq *cq = to_cq(ibcq);
	struct vernic_reply reply;
	int fd, error;

	if (context_forked(cq->ctx))
		return EIO;
	if (cqe < 1 || cqe > VERNIC_MAX_CQE)
		return EINVAL;
	req.resize_cq.cqe = (uint32_t)cqe;
	/* Nobody may look for CQEs, or arm, while they go where he does not look. */
	spin_lock(&cq->lock);
	vernic_store_release(&cq->ring->cons, cq->cons);
	error = control_call(cq->ctx, &req, &reply, &fd, 1);
	if (!error)
		error = cq_move(cq, &reply, fd);
	spin_unlock(&cq->lock);
	return error;
}

int cq_modify(struct ibv_cq *ibcq, struct ibv_modify_cq_attr *attr)
{
	struct vernic_request req = {.command = VERNIC_CMD_MODIFY_CQ, .handle = ibcq->handle};
	struct vernic_reply reply;

	req.modify_cq.attr_mask = attr->attr_mask;
	req.modify_cq.count = attr->moderate.cq_count;
	req.modify_cq.period = attr->moderate.cq_period;
	return control_call(to_context(ibcq->context), &req, &reply, NULL, 0);
}

int cq_req_notify(struct ibv_cq *ibcq, int solicited_only)
{
	struct cq *cq = to_cq(ibcq);
	uint32_t i;

	spin_lock(&cq->lock);
	for (i = cq->cons; cqe_presence(cq, i) != CQE_ABSENT;)
		i++;
	cq->armed = i;
	atomic_store(&cq->ring->arm, (solicited_only ? VERNIC_ARM_SOLICITED : VERNIC_ARM_NEXT) | i);
	vernic_full_barrier();
	spin_unlock(&cq->lock);
	return 0;
}

void cq_clean(struct cq *cq, uint32_t qp_index, uint32_t qp_num, struct srq *srq)
{
	spin_lock(&cq->lock);
	for (uint32_t i = cq->cons; cqe_presence(cq, i) != CQE_ABSENT; i++) {
		struct vernic_cqe *cqe = &cq->cqe[i & cq->mask];

		if (cqe->qp_index != qp_index || cqe->qp_num != qp_num ||
		    cqe->queue == VERNIC_CQE_WQ)
			continue;
		if (cqe->queue == VERNIC_CQE_SRQ && srq)
			srq_release(srq, cqe->wqe);
		cqe->queue = VERNIC_CQE_NONE;
	}
	spin_unlock(&cq->lock);
}

void cq_clean_wq(struct cq *cq, uint32_t handle, uint32_t wq_num)
{
	spin_lock(&cq->lock);
	for (uint32_t i = cq->cons; cqe_presence(cq, i) != CQE_ABSENT; i++) {
		struct vernic_cqe *cqe = &cq->cqe[i & cq->mask];

		if (cqe->queue == VERNIC_CQE_WQ && cqe->qp_index == handle && cqe->qp_num == wq_num)
			cqe->queue = VERNIC_CQE_NONE;
	}
	spin_unlock(&cq->lock);
}

void cq_clean_xrc(struct cq *cq, const struct srq *srq)
{
	spin_lock(&cq->lock);
	for (uint32_t i = cq->cons; cqe_presence(cq, i) != CQE_ABSENT; i++) {
		struct vernic_cqe *cqe = &cq->cqe[i & cq->mask];

		if ((cqe->queue == VERNIC_CQE_XRC_SRQ || cqe->queue == VERNIC_CQE_XRC_SLOT) &&
		    cqe->qp_index == srq->ibv.handle)
			cqe->queue = VERNIC_CQE_NONE;
	}
	for (struct srq **p = &cq->xrc_srqs; *p; p = &(*p)->cq_next) {
		if (*p == srq) {
			*p = srq->cq_next;
			break;
		}
	}
	spin_unlock(&cq->lock);
}

int ibv_destroy_cq(struct ibv_cq *ibcq)
{
	struct cq *cq = to_cq(ibcq);
	struct context *ctx = cq->ctx;
	uint32_t comp, async;
	int error;

	error = control_destroy(ctx, VERNIC_CMD_DESTROY_CQ, ibcq->handle, NULL);
	if (error)
		return error;
	pthread_mutex_lock(&ctx->objects_mutex);
	for (struct cq **p = &ctx->cqs; *p; p = &(*p)->next) {
		if (*p == cq) {
			*p = cq->next;
			break;
		}
	}
	comp = cq->comp_delivered;
	async = cq->async_delivered;
	pthread_mutex_unlock(&ctx->objects_mutex);

	pthread_mutex_lock(&ibcq->mutex);
	while (!context_forked(ctx) &&
	       (ibcq->comp_events_completed != comp || ibcq->async_events_completed != async))
		pthread_cond_wait(&ibcq->cond, &ibcq->mutex);
	pthread_mutex_unlock(&ibcq->mutex);
	channel_count(ibcq->channel, -1);
	cq_free(cq);
	return 0;
}
