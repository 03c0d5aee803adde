/* SPDX-License-Identifier: BSD-2-Clause */
/* Completion queues and their channels: making, arming, destroying. Polling is poll.c. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

/* What the extended polling functions can tell. */
#define WC_FLAGS_KNOWN                                                                     \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | \
	 IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

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
	pthread_mutex_destroy(&cq->ibv.mutex);
	pthread_cond_destroy(&cq->ibv.cond);
	free(cq);
}

struct ibv_cq_ex *cq_create_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct context *ctx = to_context(context);
	struct vernic_request req = {.command = VERNIC_CMD_CREATE_CQ};
	struct vernic_reply reply;
	struct cq *cq;
	int fd, error;

	if (attr->cqe < 1 || attr->cqe > VERNIC_MAX_CQE ||
	    attr->comp_vector >= (uint32_t)context->num_comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	if ((attr->wc_flags & ~(uint64_t)WC_FLAGS_KNOWN) ||
	    (attr->comp_mask & ~(uint32_t)IBV_CQ_INIT_ATTR_MASK_FLAGS) ||
	    ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) &&
	     (attr->flags & ~(uint32_t)IBV_CREATE_CQ_ATTR_SINGLE_THREADED))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	cq = aligned_alloc(VERNIC_CACHELINE, sizeof(*cq));
	if (!cq)
		return NULL;
	*cq = (struct cq){.ctx = ctx};
	pthread_mutex_init(&cq->ibv.mutex, NULL);
	pthread_cond_init(&cq->ibv.cond, NULL);

	req.create_cq.cqe = attr->cqe;
	req.create_cq.channel = attr->channel ? ((struct channel *)attr->channel)->handle
					      : UINT32_MAX;
	req.create_cq.comp_vector = attr->comp_vector;
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
	cq->single_threaded = (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) &&
			      (attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	cq->ibv.context = context;
	cq->ibv.channel = attr->channel;
	cq->ibv.cq_context = attr->cq_context;
	cq->ibv.handle = reply.handle;
	cq->ibv.cqe = (int)reply.create_cq.cqe;
	poll_ex_init(cq);
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

int cq_req_notify(struct ibv_cq *ibcq, int solicited_only)
{
	struct cq *cq = to_cq(ibcq);
	uint32_t i;

	spin_lock(&cq->lock);
	for (i = cq->cons; vernic_load_acquire(&cq->cqe[i & cq->mask].lap) == (i >> cq->shift) + 1;)
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
	for (uint32_t i = cq->cons;; i++) {
		struct vernic_cqe *cqe = &cq->cqe[i & cq->mask];

		if (vernic_load_acquire(&cqe->lap) != (i >> cq->shift) + 1)
			break;
		if (cqe->qp_index != qp_index || cqe->qp_num != qp_num)
			continue;
		if (cqe->queue == VERNIC_CQE_SRQ && srq)
			srq_release(srq, cqe->wqe);
		cqe->queue = VERNIC_CQE_NONE;
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
