/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Posting work requests.
 *
 * Theory of operation
 * -------------------
 * A work request is written into the next slot of its ring; one store of the producer index shows
 * the daemon everything a call posted. Then the QP's doorbell is rung, and the worker is woken by
 * its eventfd if it says that it sleeps: the only system call here.
 *
 * Of a SEND or RDMA WRITE whose payload fits the slot's data area the payload is copied there
 * (VERNIC_SEND_COPIED), so that the daemon need not reach into this process for it. The SGEs go
 * along and are checked by the daemon; an SGE the library does not know is left to it to fail.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define OP(name) (1u << IBV_WR_##name)
#define OPS_SEND (OP(SEND) | OP(SEND_WITH_IMM) | OP(SEND_WITH_INV))
#define OPS_LOCAL (OP(LOCAL_INV) | OP(BIND_MW)) /* nothing is sent */
#define OPS_WRITE (OP(RDMA_WRITE) | OP(RDMA_WRITE_WITH_IMM))
#define OPS_ATOMIC (OP(ATOMIC_CMP_AND_SWP) | OP(ATOMIC_FETCH_AND_ADD))
#define OPS_GET (OP(RDMA_READ) | OPS_ATOMIC) /* the SGEs are written, not read */
/* Of the reliable services only. FLUSH is for ibv_wr_flush(): a WR has no place for what it names.
 */
#define OPS_PLACE (OP(ATOMIC_WRITE) | 1u << VERNIC_WR_FLUSH)

uint32_t post_opcodes(enum ibv_qp_type type)
{
	switch (type) {
	case IBV_QPT_RC:
	case IBV_QPT_XRC_SEND:
		return OPS_SEND | OPS_WRITE | OPS_GET | OPS_LOCAL | OPS_PLACE;
	case IBV_QPT_UC:
		return (OPS_SEND & ~OP(SEND_WITH_INV)) | OPS_WRITE | OPS_LOCAL;
	case IBV_QPT_UD:
		return OPS_SEND & ~OP(SEND_WITH_INV);
	default:
		return 0;
	}
}

/* Puts SGEs behind a WQE; a list of none may be NULL. */
static void write_sges(void *to, const struct ibv_sge *sge, size_t count)
{
	struct vernic_sge *out = to;

	for (size_t i = 0; i < count; i++)
		out[i] = (struct vernic_sge){sge[i].addr, sge[i].length, sge[i].lkey};
}

/* ---- posts that fail ----------------------------------------------------------------------- */

/* Copies the rules the daemon has written now; rules that were there keep their chance. */
static void copy_faults(struct post_faults *own, const struct vernic_post_faults *ring,
			uint32_t generation)
{
	struct post_faults new = {.generation = generation, .count = ring->count};

	if (new.count > VERNIC_POST_FAULTS)
		return;
	memcpy(new.fault, ring->fault, sizeof(new.fault));
	atomic_thread_fence(memory_order_acquire);
	if (vernic_load_relaxed(&ring->generation) != generation)
		return;
	for (uint32_t i = 0; i < new.count; i++) {
		for (uint32_t k = 0; k < own->count; k++) {
			if (own->fault[k].id == new.fault[i].id)
				new.fault[i].chance = own->fault[k].chance;
		}
	}
	*own = new;
}

/* Steps the rules of a queue for a post of opcode. @return the errno it fails with, or 0 */
static int post_fault(struct post_faults *own, struct vernic_post_faults *ring, unsigned int opcode)
{
	uint32_t generation = vernic_load_acquire(&ring->generation);

	if (generation != own->generation && generation % 2 == 0)
		copy_faults(own, ring, generation);
	if (generation == 0 || generation != own->generation)
		return 0;
	for (uint32_t i = 0; i < own->count; i++) {
		struct vernic_post_fault *f = &own->fault[i];

		if (!(f->opcodes & (1u << opcode)))
			continue;
		atomic_fetch_add_explicit(&ring->fault[i].matched, 1, memory_order_relaxed);
		if (!vernic_chance_strikes(&f->chance))
			continue;
		atomic_fetch_add_explicit(&ring->fault[i].struck, 1, memory_order_relaxed);
		return (int)f->error;
	}
	return 0;
}

/* The look that every post takes. */
static inline bool has_faults(const struct vernic_post_faults *ring)
{
	return vernic_load_relaxed(&ring->generation) != 0;
}

/* ---- the send queue ------------------------------------------------------------------------ */

/* @return whether the device has failed: nothing can be posted any more */
static inline bool device_failed(const struct qp *qp)
{
	return vernic_load_relaxed(&qp->device->failed) != 0;
}

/* @return 0 if the send queue takes work requests in the QP's state, else EINVAL, or EIO */
int post_state(struct qp *qp)
{
	if (device_failed(qp))
		return EIO;
	/* The daemon may have moved the QP to ERR by itself. */
	if (qp->ibv.state < IBV_QPS_RTS && vernic_load_relaxed(&qp->ring->state) != IBV_QPS_ERR)
		return EINVAL;
	return 0;
}

/* Wakes a worker. Its eventfd never blocks a writer in practice; nothing depends on the result. */
static void wake(int fd)
{
	const uint64_t one = 1;
	ssize_t n = write(fd, &one, sizeof(one));

	(void)n;
}

/* Tells the worker that something was posted to a QP. */
static void ring_doorbell(struct qp *qp)
{
	if (vernic_ring_doorbell(qp->doorbell, qp->page, qp->index))
		wake(qp->wake_fd);
}

void post_publish(struct qp *qp, uint32_t head)
{
	if (head == qp->sq.head)
		return;
	qp->sq.head = head;
	vernic_store_release(&qp->ring->sq_prod, head);
	ring_doorbell(qp);
}

/* @return the data area of the send WQE in a slot */
static uint8_t *wqe_data(const struct qp *qp, struct vernic_send_wqe *wqe)
{
	return (uint8_t *)wqe + qp->sq.data_offset;
}

/* Asks for the slot of the next WQE, if it is free. */
static void prefetch_slot(const struct qp *qp, uint32_t head)
{
	const struct sq *sq = &qp->sq;
	uint8_t *slot = sq->base + (size_t)(head & sq->mask) * sq->stride;

	if (head - vernic_load_relaxed(&sq->tail) >= sq->max_wr)
		return;
	vernic_prefetch_write(slot);
	vernic_prefetch_write(slot + sizeof(struct vernic_send_wqe));
	vernic_prefetch_write(slot + sq->data_offset);
}

/*
 * Begins a WQE in the slot of head, without payload.
 * @flags: enum ibv_send_flags
 * @return 0, EINVAL, ENOMEM if the queue is full, or what a fault rule says
 */
int post_begin(struct qp *qp, uint32_t head, enum ibv_wr_opcode opcode, uint64_t wr_id,
	       unsigned int flags, struct vernic_send_wqe **out)
{
	struct sq *sq = &qp->sq;
	struct vernic_send_wqe *wqe;

	if ((unsigned int)opcode >= 32 || !(sq->opcodes & (1u << opcode)))
		return EINVAL;
	if (head - vernic_load_acquire(&sq->tail) >= sq->max_wr)
		return ENOMEM;
	if (has_faults(&qp->ring->send_faults)) {
		int error = post_fault(&sq->faults, &qp->ring->send_faults, opcode);

		if (error)
			return error;
	}
	wqe = (void *)(sq->base + (size_t)(head & sq->mask) * sq->stride);
	prefetch_slot(qp, head + 1);
	wqe->wr_id = wr_id;
	wqe->opcode = (uint8_t)opcode;
	wqe->num_sge = 0;
	wqe->flags = flags & (IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
	wqe->length = 0;
	*out = wqe;
	return 0;
}

/* Copies the payload into the data area if the library knows all of it. */
static void copy_payload(struct qp *qp, struct vernic_send_wqe *wqe, const struct ibv_sge *sge,
			 size_t count)
{
	uint8_t *to = wqe_data(qp, wqe);

	for (size_t i = 0; i < count; i++) {
		const void *from;

		if (!sge[i].length)
			continue;
		from = mr_table_translate(&qp->ctx->mrs, sge[i].lkey, sge[i].addr, sge[i].length);
		if (!from)
			return;
		memcpy(to, from, sge[i].length);
		to += sge[i].length;
	}
	wqe->flags |= VERNIC_SEND_COPIED;
}

int post_set_sges(struct qp *qp, struct vernic_send_wqe *wqe, const struct ibv_sge *sge,
		  size_t count)
{
	uint64_t length = 0;

	if (count > qp->sq.max_sge)
		return EINVAL;
	for (size_t i = 0; i < count; i++)
		length += sge[i].length;
	if (length > qp->max_msg)
		return EINVAL;
	wqe->num_sge = (uint8_t)count;
	wqe->length = (uint32_t)length;
	write_sges(wqe + 1, sge, count);
	/* Behind a fence the payload is what READs will have brought by then. */
	if (length && length <= qp->sq.data_size && !(OPS_GET & (1u << wqe->opcode)) &&
	    !(wqe->flags & IBV_SEND_FENCE))
		copy_payload(qp, wqe, sge, count);
	return 0;
}

/* Adds bytes to the inline payload. */
int post_add_inline(struct qp *qp, struct vernic_send_wqe *wqe, const void *addr, size_t len)
{
	if ((OPS_GET & (1u << wqe->opcode)) || len > qp->sq.max_inline - wqe->length)
		return EINVAL;
	wqe->flags |= IBV_SEND_INLINE;
	memcpy(wqe_data(qp, wqe) + wqe->length, addr, len);
	wqe->length += (uint32_t)len;
	return 0;
}

int post_set_ah(struct vernic_send_wqe *wqe, struct ibv_ah *ibah, uint32_t qpn, uint32_t qkey)
{
	const struct ibv_ah_attr *attr;

	if (!ibah)
		return EINVAL;
	attr = &((struct ah *)ibah)->attr;
	wqe->pd = ibah->pd->handle;
	memcpy(wqe->ud.dgid, attr->grh.dgid.raw, sizeof(wqe->ud.dgid));
	wqe->ud.remote_qpn = qpn;
	wqe->ud.remote_qkey = qkey;
	wqe->ud.flow_label = attr->grh.flow_label;
	wqe->ud.sgid_index = attr->grh.sgid_index;
	wqe->ud.hop_limit = attr->grh.hop_limit;
	wqe->ud.traffic_class = attr->grh.traffic_class;
	wqe->ud.sl = attr->sl;
	return 0;
}

int post_set_bind(struct vernic_send_wqe *wqe, const struct ibv_mw *mw, uint32_t rkey,
		  const struct ibv_mw_bind_info *info)
{
	if (!mw)
		return EINVAL;
	wqe->bind.addr = info->addr;
	wqe->bind.length = info->length;
	wqe->bind.lkey = info->mr ? info->mr->lkey : 0;
	wqe->bind.access = info->mw_access_flags;
	wqe->bind.mw = mw->rkey;
	wqe->bind.rkey = rkey;
	return 0;
}

/* A work request that sends nothing; its SGEs have no meaning. @return 0 or EINVAL */
static int set_local(struct vernic_send_wqe *wqe, const struct ibv_send_wr *wr)
{
	if (wr->opcode == IBV_WR_LOCAL_INV)
		return 0;
	/* Type 1 is ibv_bind_mw()'s. */
	if (!wr->bind_mw.mw || wr->bind_mw.mw->type != IBV_MW_TYPE_2)
		return EINVAL;
	return post_set_bind(wqe, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
}

/* Fills in where a work request goes to. @return 0 or EINVAL */
static int set_remote(struct qp *qp, struct vernic_send_wqe *wqe, const struct ibv_send_wr *wr)
{
	if (qp->ibv.qp_type == IBV_QPT_XRC_SEND)
		wqe->xrc_srqn = wr->qp_type.xrc.remote_srqn;
	if (qp->ibv.qp_type == IBV_QPT_UD)
		return post_set_ah(wqe, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
	if (OPS_ATOMIC & (1u << wr->opcode)) {
		wqe->rdma.remote_addr = wr->wr.atomic.remote_addr;
		wqe->rdma.rkey = wr->wr.atomic.rkey;
		wqe->rdma.compare_add = wr->wr.atomic.compare_add;
		wqe->rdma.swap = wr->wr.atomic.swap;
	} else if (!(OPS_SEND & (1u << wr->opcode))) {
		if ((unsigned int)wr->opcode == VERNIC_WR_FLUSH)
			return EINVAL;
		wqe->rdma.remote_addr = wr->wr.rdma.remote_addr;
		wqe->rdma.rkey = wr->wr.rdma.rkey;
	}
	return 0;
}

/* Writes one work request into the slot of head. @return 0 or a positive errno */
static int write_send(struct qp *qp, uint32_t head, const struct ibv_send_wr *wr)
{
	struct vernic_send_wqe *wqe;
	int error;

	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->sq.max_sge)
		return EINVAL;
	error = post_begin(qp, head, wr->opcode, wr->wr_id, wr->send_flags, &wqe);
	if (error)
		return error;
	wqe->imm = wr->imm_data;
	if (OPS_LOCAL & (1u << wr->opcode))
		return set_local(wqe, wr);
	error = set_remote(qp, wqe, wr);
	if (error)
		return error;
	if (!(wr->send_flags & IBV_SEND_INLINE))
		return post_set_sges(qp, wqe, wr->sg_list, (size_t)wr->num_sge);
	if (OPS_GET & (1u << wr->opcode))
		return EINVAL;
	for (int i = 0; i < wr->num_sge && !error; i++) {
		error = post_add_inline(qp, wqe, (void *)(uintptr_t)wr->sg_list[i].addr,
					wr->sg_list[i].length);
	}
	return error;
}

int post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	struct qp *qp = to_qp(ibqp);
	uint32_t head;
	int error;

	spin_lock(&qp->sq.lock);
	head = qp->sq.head;
	error = post_state(qp);
	for (; wr && !error; wr = wr->next) {
		error = write_send(qp, head, wr);
		if (error)
			break;
		head++;
	}
	if (error)
		*bad_wr = wr;
	post_publish(qp, head);
	spin_unlock(&qp->sq.lock);
	return error;
}

/* ---- receive queues ------------------------------------------------------------------------ */

void post_write_recv(void *slot, const struct ibv_recv_wr *wr)
{
	struct vernic_recv_wqe *wqe = slot;

	wqe->wr_id = wr->wr_id;
	wqe->num_sge = (uint32_t)wr->num_sge;
	write_sges(wqe + 1, wr->sg_list, (size_t)wr->num_sge);
}

int post_rq_room(const struct rq *rq, uint32_t head, const struct ibv_recv_wr *wr)
{
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge)
		return EINVAL;
	return head - vernic_load_acquire(&rq->tail) >= rq->max_wr ? ENOMEM : 0;
}

int post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct qp *qp = to_qp(ibqp);
	struct rq *rq = &qp->rq;
	uint32_t head;
	int error = 0;

	spin_lock(&rq->lock);
	head = rq->head;
	if (qp->ibv.state == IBV_QPS_RESET || !rq->base) /* a SRQ, or XRC */
		error = EINVAL;
	else if (device_failed(qp))
		error = EIO;
	for (; wr && !error; wr = wr->next) {
		error = post_rq_room(rq, head, wr);
		if (!error && has_faults(&qp->ring->recv_faults))
			error = post_fault(&rq->faults, &qp->ring->recv_faults, 0);
		if (error)
			break;
		post_write_recv(rq->base + (size_t)(head & rq->mask) * rq->stride, wr);
		head++;
		vernic_prefetch_write(rq->base + (size_t)(head & rq->mask) * rq->stride);
	}
	if (error)
		*bad_wr = wr;
	if (head != rq->head) {
		rq->head = head;
		vernic_store_release(&qp->ring->rq_prod, head);
		/* A QP in ERR flushes what is posted; it has to hear of it. */
		vernic_full_barrier();
		if (vernic_load_relaxed(&qp->ring->state) == IBV_QPS_ERR)
			ring_doorbell(qp);
	}
	spin_unlock(&rq->lock);
	return error;
}

int post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct srq *srq = to_srq(ibsrq);
	uint32_t prod, slot;
	int error = 0;

	spin_lock(&srq->lock);
	prod = srq->prod;
	for (; wr; wr = wr->next) {
		if (vernic_load_relaxed(&srq->ctx->device->failed))
			error = EIO;
		else if (wr->num_sge < 0 || (uint32_t)wr->num_sge > srq->max_sge)
			error = EINVAL;
		else if (srq->used >= srq->max_wr)
			error = ENOMEM;
		else if (has_faults(&srq->ring->recv_faults))
			error = post_fault(&srq->faults, &srq->ring->recv_faults, 0);
		if (error) {
			*bad_wr = wr;
			break;
		}
		slot = srq->free_count ? srq->free[--srq->free_count] : srq->used;
		srq->used++;
		post_write_recv(srq->wqe + (size_t)slot * srq->stride, wr);
		atomic_store_explicit(&srq->index[prod & srq->mask], slot, memory_order_relaxed);
		prod++;
	}
	if (prod != srq->prod) {
		srq->prod = prod;
		vernic_store_release(&srq->ring->prod, prod);
	}
	spin_unlock(&srq->lock);
	return error;
}
