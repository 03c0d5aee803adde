/* SPDX-License-Identifier: BSD-2-Clause */
/* Completion events and asynchronous events: reading and acknowledging them. */
#include <errno.h>
#include <unistd.h>

#include "internal.h"

/*
 * The CQ with this handle, with one more event of the kind counted as delivered; under
 * objects_mutex, so that ibv_destroy_cq() waits for its acknowledgement or we do not find it.
 * @return NULL: it is gone
 */
static struct cq *deliver_cq(struct context *ctx, uint32_t handle, bool completion)
{
	struct cq *cq;

	pthread_mutex_lock(&ctx->objects_mutex);
	for (cq = ctx->cqs; cq && cq->ibv.handle != handle;)
		cq = cq->next;
	if (cq && completion) {
		cq->comp_delivered++;
		vernic_store_release(&cq->ring->event_pending, 0);
		vernic_full_barrier();
	} else if (cq) {
		cq->async_delivered++;
	}
	pthread_mutex_unlock(&ctx->objects_mutex);
	return cq;
}

/* As deliver_cq(), for a SRQ. */
static struct srq *deliver_srq(struct context *ctx, uint32_t handle)
{
	struct srq *srq;

	pthread_mutex_lock(&ctx->objects_mutex);
	for (srq = ctx->srqs; srq && srq->ibv.handle != handle;)
		srq = srq->next;
	if (srq)
		srq->delivered++;
	pthread_mutex_unlock(&ctx->objects_mutex);
	return srq;
}

/* As deliver_cq(), for a QP; NULL also if its index is another QP's by now. */
static struct qp *deliver_qp(struct context *ctx, uint32_t index, uint32_t qp_num)
{
	struct qp *qp = NULL;

	pthread_mutex_lock(&ctx->objects_mutex);
	if (index < VERNIC_MAX_CONTEXT_QP)
		qp = atomic_load(&ctx->qps[index]);
	if (qp && qp->ibv.qp_num != qp_num)
		qp = NULL;
	if (qp)
		qp->delivered++;
	pthread_mutex_unlock(&ctx->objects_mutex);
	return qp;
}

/* As deliver_qp(), for a WQ. */
static struct wq *deliver_wq(struct context *ctx, uint32_t handle, uint32_t wq_num)
{
	struct wq *wq;

	pthread_mutex_lock(&ctx->objects_mutex);
	wq = wq_find(ctx, handle, wq_num);
	if (wq)
		wq->delivered++;
	pthread_mutex_unlock(&ctx->objects_mutex);
	return wq;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	struct context *ctx = to_context(channel->context);
	struct cq *found;
	uint32_t handle;
	ssize_t n;

	/* What there is to read is the parent's. */
	if (context_forked(ctx)) {
		errno = EIO;
		return -1;
	}
	do {
		n = read(channel->fd, &handle, sizeof(handle));
		if (n < 0)
			return -1;
		if (n != (ssize_t)sizeof(handle)) {
			context_died(ctx);
			errno = EIO;
			return -1;
		}
		/* Events of a CQ destroyed since are still in the pipe. */
		found = deliver_cq(ctx, handle, true);
	} while (!found);
	*cq = &found->ibv;
	*cq_context = found->ibv.cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += nevents;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

/* Translates an event, and counts it on its object. @return false: the object is gone */
static bool deliver_async(struct context *ctx, const struct vernic_async_event *raw,
			  struct ibv_async_event *event)
{
	struct cq *cq;
	struct qp *qp;
	struct srq *srq;
	struct wq *wq;

	event->event_type = raw->event_type;
	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR:
		cq = deliver_cq(ctx, raw->element, false);
		if (!cq)
			return false;
		event->element.cq = &cq->ibv;
		return true;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		qp = deliver_qp(ctx, raw->element, raw->qp_num);
		if (!qp)
			return false;
		event->element.qp = &qp->ibv;
		return true;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		srq = deliver_srq(ctx, raw->element);
		if (!srq)
			return false;
		event->element.srq = &srq->ibv;
		return true;
	case IBV_EVENT_WQ_FATAL:
		wq = deliver_wq(ctx, raw->element, raw->qp_num);
		if (!wq)
			return false;
		event->element.wq = &wq->ibv;
		return true;
	case IBV_EVENT_DEVICE_FATAL:
		event->element.port_num = 0;
		return atomic_exchange(&ctx->fatal_reported, 1) == 0;
	default:
		event->element.port_num = (int)raw->element;
		return true;
	}
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct context *ctx = to_context(context);
	struct vernic_async_event raw;
	ssize_t n;

	/* What there is to read is the parent's. */
	if (context_forked(ctx)) {
		errno = EIO;
		return -1;
	}
	do {
		n = read(context->async_fd, &raw, sizeof(raw));
		if (n < 0 && errno != ECONNRESET)
			return -1;
		if (n != (ssize_t)sizeof(raw)) {
			context_died(ctx);
			if (atomic_exchange(&ctx->fatal_reported, 1)) {
				errno = EIO;
				return -1;
			}
			event->event_type = IBV_EVENT_DEVICE_FATAL;
			event->element.port_num = 0;
			return 0;
		}
	} while (!deliver_async(ctx, &raw, event));
	return 0;
}

/* Counts an acknowledged event and wakes whoever destroys the object. */
static void ack(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *completed)
{
	pthread_mutex_lock(mutex);
	(*completed)++;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(mutex);
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	struct ibv_cq *cq = event->element.cq;
	struct ibv_qp *qp = event->element.qp;
	struct ibv_srq *srq = event->element.srq;
	struct ibv_wq *wq = event->element.wq;

	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR:
		ack(&cq->mutex, &cq->cond, &cq->async_events_completed);
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		ack(&qp->mutex, &qp->cond, &qp->events_completed);
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		ack(&srq->mutex, &srq->cond, &srq->events_completed);
		break;
	case IBV_EVENT_WQ_FATAL:
		ack(&wq->mutex, &wq->cond, &wq->events_completed);
		break;
	default:
		break;
	}
}
