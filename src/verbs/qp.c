/* SPDX-License-Identifier: BSD-2-Clause */
/* Queue pairs: making, changing, querying, destroying. Posting is post.c. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"

/* Of newer versions of <infiniband/verbs.h>, see ibv_query_qp_data_in_order(3). */
#define DATA_IN_ORDER_CAPS 1u	   /* IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS */
#define DATA_IN_ORDER_WHOLE_MSG 1u /* IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG */
#define DATA_IN_ORDER_ALIGNED 2u   /* IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES */

/* IBV_QP_EX_WITH_* of an opcode, for what a QP type may be asked to build. */
static const struct {
	uint64_t op;
	enum ibv_wr_opcode opcode;
} send_ops[] = {
	{IBV_QP_EX_WITH_RDMA_WRITE, IBV_WR_RDMA_WRITE},
	{IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM},
	{IBV_QP_EX_WITH_SEND, IBV_WR_SEND},
	{IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM},
	{IBV_QP_EX_WITH_RDMA_READ, IBV_WR_RDMA_READ},
	{IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_CMP_AND_SWP},
	{IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD},
	{IBV_QP_EX_WITH_LOCAL_INV, IBV_WR_LOCAL_INV},
	{IBV_QP_EX_WITH_BIND_MW, IBV_WR_BIND_MW},
	{IBV_QP_EX_WITH_SEND_WITH_INV, IBV_WR_SEND_WITH_INV},
	{IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_WR_ATOMIC_WRITE},
	{VERNIC_QP_EX_WITH_FLUSH, (enum ibv_wr_opcode)VERNIC_WR_FLUSH},
};

/* @return whether a QP type can build all of IBV_QP_EX_WITH_* in ops */
static bool send_ops_known(enum ibv_qp_type type, uint64_t ops)
{
	for (size_t i = 0; i < sizeof(send_ops) / sizeof(send_ops[0]); i++) {
		if (post_opcodes(type) & (1u << send_ops[i].opcode))
			ops &= ~send_ops[i].op;
	}
	return ops == 0;
}

/* Frees a QP, half made or whole. */
static void qp_free(struct qp *qp)
{
	if (qp->size)
		control_unmap(qp->ctx, qp->ring, qp->size);
	else
		free(qp->ring);
	pthread_mutex_destroy(&qp->ibv.mutex);
	pthread_cond_destroy(&qp->ibv.cond);
	pd_release(qp->ibv.pd);
	pd_free(qp->allocator, qp, PD_RESOURCE_QP);
}

/* Checks what the daemon cannot, or need not. @return 0 or a positive errno */
static int check_attr(struct ibv_context *context, const struct ibv_qp_init_attr_ex *attr)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
			       IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_XRCD;

	if (attr->comp_mask & ~known)
		return EOPNOTSUPP;
	if (!post_opcodes(attr->qp_type) && attr->qp_type != IBV_QPT_XRC_RECV)
		return attr->qp_type == IBV_QPT_RAW_PACKET || attr->qp_type == IBV_QPT_DRIVER
			       ? EOPNOTSUPP
			       : EINVAL;
	if ((attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) &&
	    !send_ops_known(attr->qp_type, attr->send_ops_flags))
		return EOPNOTSUPP;
	if (attr->qp_type == IBV_QPT_XRC_RECV)
		return (attr->comp_mask & IBV_QP_INIT_ATTR_XRCD) && attr->xrcd &&
				       attr->xrcd->context == context
			       ? 0
			       : EINVAL;
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd || !attr->send_cq ||
	    (!attr->recv_cq && attr->qp_type != IBV_QPT_XRC_SEND))
		return EINVAL;
	if (attr->pd->context != context || attr->send_cq->context != context ||
	    (attr->recv_cq && attr->recv_cq->context != context) ||
	    (attr->srq && attr->srq->context != context))
		return EINVAL;
	if (attr->srq && (attr->qp_type == IBV_QPT_UC || attr->qp_type == IBV_QPT_XRC_SEND))
		return EINVAL;
	return 0;
}

/* A ring nobody posts on: that of a XRC target QP, which has none. @return 0 or a positive errno */
static int qp_make_ring(struct qp *qp, const struct vernic_reply *reply)
{
	if (reply->create_qp.qp_index >= VERNIC_MAX_CONTEXT_QP)
		return EPROTO;
	qp->ring = aligned_alloc(VERNIC_CACHELINE, sizeof(*qp->ring));
	if (!qp->ring)
		return ENOMEM;
	*qp->ring = (struct vernic_qp_ring){0};
	qp->index = reply->create_qp.qp_index;
	return 0;
}

/* Ties a QP to what the daemon made. @return 0 or a positive errno */
static int qp_map(struct qp *qp, const struct vernic_reply *reply, int fd)
{
	struct context *ctx = qp->ctx;
	uint8_t *memory;

	if (qp->ibv.qp_type == IBV_QPT_XRC_RECV)
		return qp_make_ring(qp, reply);
	qp->size = reply->create_qp.size;
	memory = control_map(fd, qp->size, PROT_READ | PROT_WRITE);
	if (!memory)
		return errno;
	qp->ring = (void *)memory;
	if (reply->create_qp.worker >= ctx->workers ||
	    reply->create_qp.qp_index >= VERNIC_MAX_CONTEXT_QP)
		return EPROTO;
	qp->doorbell =
		(void *)(ctx->doorbells + (size_t)reply->create_qp.worker * ctx->doorbell_stride);
	qp->page = &ctx->page->worker[reply->create_qp.worker];
	qp->wake_fd = ctx->wake_fd[reply->create_qp.worker];
	qp->index = reply->create_qp.qp_index;

	qp->sq.base = memory + reply->create_qp.sq_offset;
	qp->sq.mask = reply->create_qp.sq_depth - 1;
	qp->sq.stride = reply->create_qp.sq_stride;
	qp->sq.data_size = reply->create_qp.sq_data;
	qp->sq.data_offset = qp->sq.stride - qp->sq.data_size;
	qp->sq.max_wr = reply->create_qp.cap.max_send_wr;
	qp->sq.max_sge = reply->create_qp.cap.max_send_sge;
	qp->sq.max_inline = reply->create_qp.cap.max_inline_data;
	if (reply->create_qp.rq_depth) {
		qp->rq.base = memory + reply->create_qp.rq_offset;
		qp->rq.mask = reply->create_qp.rq_depth - 1;
		qp->rq.stride = reply->create_qp.rq_stride;
		qp->rq.max_wr = reply->create_qp.cap.max_recv_wr;
		qp->rq.max_sge = reply->create_qp.cap.max_recv_sge;
	}
	return 0;
}

/* What is asked of the daemon to make a QP. */
static void fill_request(struct vernic_request *req, const struct ibv_qp_init_attr_ex *attr)
{
	*req = (struct vernic_request){.command = VERNIC_CMD_CREATE_QP};
	req->create_qp.qp_type = attr->qp_type;
	if (attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS)
		req->create_qp.create_flags = attr->create_flags;
	if (attr->qp_type == IBV_QPT_XRC_RECV) {
		req->create_qp.xrcd = ((struct xrcd *)attr->xrcd)->handle;
		return;
	}
	req->create_qp.pd = attr->pd->handle;
	req->create_qp.send_cq = attr->send_cq->handle;
	req->create_qp.recv_cq = attr->recv_cq ? attr->recv_cq->handle : UINT32_MAX;
	req->create_qp.srq = attr->srq ? attr->srq->handle : UINT32_MAX;
	req->create_qp.sq_sig_all = attr->sq_sig_all != 0;
	req->create_qp.cap = attr->cap;
	if (attr->srq) {
		req->create_qp.cap.max_recv_wr = 0;
		req->create_qp.cap.max_recv_sge = 0;
	}
}

/* Asks the daemon for a QP and publishes it. @return 0 or a positive errno */
static int qp_make(struct qp *qp, const struct vernic_request *req, struct ibv_qp_cap *cap)
{
	struct context *ctx = qp->ctx;
	struct vernic_reply reply;
	int fd, error;

	pthread_mutex_lock(&ctx->qp_mutex);
	error = control_call(ctx, req, &reply, &fd, 1);
	if (error)
		goto out;
	error = qp_map(qp, &reply, fd);
	if (error) {
		control_destroy(ctx, VERNIC_CMD_DESTROY_QP, reply.handle, NULL);
		goto out;
	}
	*cap = reply.create_qp.cap;
	qp->ibv.handle = reply.handle;
	qp->ibv.qp_num = reply.create_qp.qp_num;
	atomic_store_explicit(&ctx->qps[qp->index], qp, memory_order_release);
	if (qp->index >= ctx->qp_limit)
		ctx->qp_limit = qp->index + 1;
out:
	pthread_mutex_unlock(&ctx->qp_mutex);
	return error;
}

/*
 * A QP the daemon does not know yet.
 * @pd: NULL: a XRC target has none
 * @return NULL without memory
 */
static struct qp *qp_alloc(struct ibv_context *context, struct ibv_pd *pd, enum ibv_qp_type type,
			   void *qp_context)
{
	bool alone = pd_single_threaded(pd);
	struct pd *allocator;
	struct qp *qp = pd_alloc(pd, sizeof(*qp), PD_RESOURCE_QP, &allocator);

	if (!qp)
		return NULL;
	*qp = (struct qp){
		.ctx = to_context(context),
		.device = to_context(context)->device,
		.allocator = allocator,
		.sq.lock.unneeded = alone,
		.rq.lock.unneeded = alone,
		.max_msg = type == IBV_QPT_UD ? UINT32_MAX : VERNIC_MAX_MSG_SIZE,
	};
	pthread_mutex_init(&qp->ibv.mutex, NULL);
	pthread_cond_init(&qp->ibv.cond, NULL);
	qp->ibv.context = context;
	qp->ibv.qp_context = qp_context;
	qp->ibv.pd = pd;
	pd_hold(pd);
	qp->ibv.state = IBV_QPS_RESET;
	qp->ibv.qp_type = type;
	qp->sq.opcodes = post_opcodes(type);
	return qp;
}

struct ibv_qp *qp_create_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	struct vernic_request req;
	struct qp *qp;
	int error;

	error = check_attr(context, attr);
	if (error) {
		errno = error;
		return NULL;
	}
	qp = qp_alloc(context, attr->qp_type == IBV_QPT_XRC_RECV ? NULL : attr->pd, attr->qp_type,
		      attr->qp_context);
	if (!qp)
		return NULL;
	if (attr->qp_type != IBV_QPT_XRC_RECV) {
		qp->send_cq = to_cq(attr->send_cq);
		qp->recv_cq = attr->recv_cq ? to_cq(attr->recv_cq) : NULL;
		qp->srq = attr->srq ? to_srq(attr->srq) : NULL;
		qp->sq_sig_all = attr->sq_sig_all != 0;
		qp->ibv.send_cq = attr->send_cq;
		qp->ibv.recv_cq = attr->recv_cq;
		qp->ibv.srq = attr->srq;
	}
	qp->extended = (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
	if (qp->extended)
		post_wr_init(qp);
	fill_request(&req, attr);
	error = qp_make(qp, &req, &attr->cap);
	if (error) {
		qp_free(qp);
		errno = error;
		return NULL;
	}
	return &qp->ibv;
}

struct ibv_qp *qp_open(struct ibv_context *context, struct ibv_qp_open_attr *attr)
{
	const uint32_t needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
				IBV_QP_OPEN_ATTR_TYPE;
	struct vernic_request req = {.command = VERNIC_CMD_OPEN_QP};
	struct ibv_qp_attr now;
	struct ibv_qp_cap cap;
	struct qp *qp;
	int error;

	if ((attr->comp_mask & needed) != needed || attr->comp_mask >= IBV_QP_OPEN_ATTR_RESERVED ||
	    attr->qp_type != IBV_QPT_XRC_RECV || !attr->xrcd || attr->xrcd->context != context) {
		errno = EINVAL;
		return NULL;
	}
	qp = qp_alloc(context, NULL, attr->qp_type,
		      attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT ? attr->qp_context : NULL);
	if (!qp)
		return NULL;
	req.open_qp.xrcd = ((struct xrcd *)attr->xrcd)->handle;
	req.open_qp.qp_num = attr->qp_num;
	error = qp_make(qp, &req, &cap);
	if (error) {
		qp_free(qp);
		errno = error;
		return NULL;
	}
	/* It has a state already. */
	ibv_query_qp(&qp->ibv, &now, IBV_QP_STATE, NULL);
	return &qp->ibv;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex = {
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
	struct ibv_qp *qp = qp_create_ex(pd->context, &ex);

	if (qp)
		attr->cap = ex.cap;
	return qp;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *ibqp)
{
	struct qp *qp = to_qp(ibqp);

	return qp->extended ? &qp->ex : NULL;
}

/* Takes what a QP left in its CQs out of them, and gives its SRQ slots back. */
static void qp_clean(struct qp *qp, uint32_t srq_slot)
{
	if (qp->send_cq)
		cq_clean(qp->send_cq, qp->index, qp->ibv.qp_num, qp->srq);
	if (qp->recv_cq && qp->recv_cq != qp->send_cq)
		cq_clean(qp->recv_cq, qp->index, qp->ibv.qp_num, qp->srq);
	if (qp->srq && srq_slot != VERNIC_NO_SLOT)
		srq_release(qp->srq, srq_slot);
}

/* Both queues are empty again. */
static void qp_reset(struct qp *qp, uint32_t srq_slot)
{
	qp_clean(qp, srq_slot);
	spin_lock(&qp->sq.lock);
	qp->sq.head = 0;
	vernic_store_release(&qp->sq.tail, 0);
	spin_unlock(&qp->sq.lock);
	spin_lock(&qp->rq.lock);
	qp->rq.head = 0;
	vernic_store_release(&qp->rq.tail, 0);
	spin_unlock(&qp->rq.lock);
}

int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int attr_mask)
{
	struct qp *qp = to_qp(ibqp);
	struct vernic_request req = {.command = VERNIC_CMD_MODIFY_QP, .handle = ibqp->handle};
	struct vernic_reply reply;
	int error;

	req.modify_qp.attr_mask = (uint32_t)attr_mask;
	req.modify_qp.attr = *attr;
	error = control_call(qp->ctx, &req, &reply, NULL, 0);
	if (error)
		return error;
	ibqp->state = reply.modify_qp.state;
	if ((attr_mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_RESET)
		qp_reset(qp, reply.modify_qp.srq_slot);
	return 0;
}

int qp_modify_rate_limit(struct ibv_qp *ibqp, struct ibv_qp_rate_limit_attr *attr)
{
	struct vernic_request req = {.command = VERNIC_CMD_MODIFY_QP, .handle = ibqp->handle};
	struct vernic_reply reply;

	/* They say how a limit is kept to: without one they say nothing. */
	if (attr->rate_limit == 0 && (attr->max_burst_sz || attr->typical_pkt_sz))
		return EINVAL;
	req.modify_qp.attr_mask = IBV_QP_RATE_LIMIT;
	req.modify_qp.attr.rate_limit = attr->rate_limit;
	req.modify_qp.max_burst = attr->max_burst_sz;
	/* The typical packet is for adapters that do not count each one's bytes. */
	return control_call(to_context(ibqp->context), &req, &reply, NULL, 0);
}

int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int attr_mask,
		 struct ibv_qp_init_attr *init_attr)
{
	struct vernic_request req = {.command = VERNIC_CMD_QUERY_QP, .handle = ibqp->handle};
	struct vernic_reply reply;
	int error;

	error = control_call(to_context(ibqp->context), &req, &reply, NULL, 0);
	if (error)
		return error;
	*attr = reply.query_qp.attr;
	attr->cap = reply.query_qp.cap;
	ibqp->state = attr->qp_state;
	if (init_attr) {
		*init_attr = (struct ibv_qp_init_attr){
			.qp_context = ibqp->qp_context,
			.send_cq = ibqp->send_cq,
			.recv_cq = ibqp->recv_cq,
			.srq = ibqp->srq,
			.cap = reply.query_qp.cap,
			.qp_type = ibqp->qp_type,
			.sq_sig_all = (int)reply.query_qp.sq_sig_all,
		};
	}
	return 0;
}

int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	const uint32_t ops = 1u << IBV_WR_SEND | 1u << IBV_WR_SEND_WITH_IMM |
			     1u << IBV_WR_SEND_WITH_INV | 1u << IBV_WR_RDMA_WRITE |
			     1u << IBV_WR_RDMA_WRITE_WITH_IMM | 1u << IBV_WR_RDMA_READ;

	if (flags & ~DATA_IN_ORDER_CAPS || (unsigned int)op >= 32 ||
	    !(ops & post_opcodes(qp->qp_type) & (1u << op)))
		return 0;
	/* The daemon places the bytes of a QP's messages in order of address and of sending. */
	return flags ? DATA_IN_ORDER_WHOLE_MSG | DATA_IN_ORDER_ALIGNED : 1;
}

int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	struct qp *qp = to_qp(ibqp);
	struct context *ctx = qp->ctx;
	struct vernic_reply reply = {.modify_qp.srq_slot = VERNIC_NO_SLOT};
	uint32_t delivered;
	int error;

	/* No other thread gets a QP of the same index before this one is out of the tables. */
	pthread_mutex_lock(&ctx->qp_mutex);
	error = control_destroy(ctx, VERNIC_CMD_DESTROY_QP, ibqp->handle, &reply);
	if (error) {
		pthread_mutex_unlock(&ctx->qp_mutex);
		return error;
	}
	if (!context_forked(ctx))
		qp_clean(qp, context_dead(ctx) ? VERNIC_NO_SLOT : reply.modify_qp.srq_slot);
	pthread_mutex_lock(&ctx->objects_mutex);
	atomic_store(&ctx->qps[qp->index], NULL);
	delivered = qp->delivered;
	pthread_mutex_unlock(&ctx->objects_mutex);
	pthread_mutex_unlock(&ctx->qp_mutex);

	pthread_mutex_lock(&ibqp->mutex);
	while (!context_forked(ctx) && ibqp->events_completed != delivered)
		pthread_cond_wait(&ibqp->cond, &ibqp->mutex);
	pthread_mutex_unlock(&ibqp->mutex);
	qp_free(qp);
	return 0;
}

/* ---- enhanced connection establishment ------------------------------------------------------ */

/* We have a vendor_id, and no options yet: all that are asked for are declined. */
int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	*ece = (struct ibv_ece){.vendor_id = VERNIC_VENDOR_ID};
	return 0;
}

/* On return ece has the options that were accepted. @return EINVAL: another vendor's */
int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	if (ece->comp_mask || ece->vendor_id != VERNIC_VENDOR_ID) {
		errno = EINVAL;
		return EINVAL;
	}
	ece->options = 0;
	return 0;
}
