/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The work request API (ibv_wr_post(3)): work requests built by calls between ibv_wr_start() and
 * ibv_wr_complete(), which hold the send queue. The first error is kept and reported at the end;
 * then nothing of the batch is posted. Adapters do not check what is checked here: an operation the
 * QP type does not have, a missing address, payload set twice, or for what has none.
 */
#include <errno.h>

#include "internal.h"

/* @return the QP whose work request interface this is */
static struct qp *from_ex(struct ibv_qp_ex *ex)
{
	return OBJECT_OF(ex, struct qp, ex);
}

/* Keeps the first error of a batch. */
static void note(struct qp *qp, int error)
{
	if (error && !qp->wr_error)
		qp->wr_error = error;
}

/* @return the WQE that is being built, or NULL after an error */
static struct vernic_send_wqe *current(struct qp *qp)
{
	return qp->wr_error ? NULL : qp->wr_cur;
}

/* The WQE that was being built is complete, unless it wants an address and has none. */
static void finish(struct qp *qp)
{
	if (qp->wr_cur && !qp->wr_addressed)
		note(qp, EINVAL);
}

/* Begins the next WQE of the batch. @return it, or NULL after an error */
static struct vernic_send_wqe *begin(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
	struct qp *qp = from_ex(ex);

	finish(qp);
	if (qp->wr_error)
		return NULL;
	note(qp, post_begin(qp, qp->wr_head, opcode, ex->wr_id, ex->wr_flags, &qp->wr_cur));
	if (qp->wr_error)
		return NULL;
	qp->wr_head++;
	qp->wr_data = false;
	qp->wr_addressed = qp->ibv.qp_type != IBV_QPT_UD && qp->ibv.qp_type != IBV_QPT_XRC_SEND;
	return qp->wr_cur;
}

/* The same, of one that neither has a payload nor goes to another QP. */
static struct vernic_send_wqe *begin_local(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
	struct vernic_send_wqe *wqe = begin(ex, opcode);

	if (wqe)
		from_ex(ex)->wr_data = from_ex(ex)->wr_addressed = true;
	return wqe;
}

/* The functions of struct ibv_qp_ex, one for each of ibv_wr_post(3). */
static void wr_start(struct ibv_qp_ex *ex)
{
	struct qp *qp = from_ex(ex);

	qp->wr_cur = NULL;
	qp->wr_error = EIO;
	/* In a forked child the ring is not mapped, and the lock may be held for ever. */
	if (context_forked(qp->ctx))
		return;
	spin_lock(&qp->sq.lock);
	qp->wr_head = qp->sq.head;
	qp->wr_error = post_state(qp);
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct qp *qp = from_ex(ex);
	int error;

	finish(qp);
	error = qp->wr_error;
	if (!error)
		post_publish(qp, qp->wr_head);
	spin_unlock(&qp->sq.lock);
	return error;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
	spin_unlock(&from_ex(ex)->sq.lock);
}

static void wr_send(struct ibv_qp_ex *ex)
{
	begin(ex, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
	struct vernic_send_wqe *wqe = begin(ex, IBV_WR_SEND_WITH_IMM);

	if (wqe)
		wqe->imm = imm;
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t invalidate_rkey)
{
	struct vernic_send_wqe *wqe = begin(ex, IBV_WR_SEND_WITH_INV);

	if (wqe)
		wqe->imm = invalidate_rkey;
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t invalidate_rkey)
{
	struct vernic_send_wqe *wqe = begin_local(ex, IBV_WR_LOCAL_INV);

	if (wqe)
		wqe->imm = invalidate_rkey;
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
		       const struct ibv_mw_bind_info *info)
{
	struct vernic_send_wqe *wqe = begin_local(ex, IBV_WR_BIND_MW);

	if (wqe)
		note(from_ex(ex),
		     mw && mw->type == IBV_MW_TYPE_2 ? post_set_bind(wqe, mw, rkey, info) : EINVAL);
}

/* Begins a WQE that names remote memory. */
static struct vernic_send_wqe *begin_rdma(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode,
					  uint32_t rkey, uint64_t remote_addr)
{
	struct vernic_send_wqe *wqe = begin(ex, opcode);

	if (wqe) {
		wqe->rdma.remote_addr = remote_addr;
		wqe->rdma.rkey = rkey;
	}
	return wqe;
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr)
{
	begin_rdma(ex, IBV_WR_RDMA_WRITE, rkey, remote_addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr, __be32 imm)
{
	struct vernic_send_wqe *wqe = begin_rdma(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr);

	if (wqe)
		wqe->imm = imm;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr)
{
	begin_rdma(ex, IBV_WR_RDMA_READ, rkey, remote_addr);
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr,
			      uint64_t compare, uint64_t swap)
{
	struct vernic_send_wqe *wqe = begin_rdma(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr);

	if (wqe) {
		wqe->rdma.compare_add = compare;
		wqe->rdma.swap = swap;
	}
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr,
				uint64_t add)
{
	struct vernic_send_wqe *wqe =
		begin_rdma(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr);

	if (wqe)
		wqe->rdma.compare_add = add;
}

/* atomic_wr: the 8 bytes, which are copied */
static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr,
			    const void *atomic_wr)
{
	struct vernic_send_wqe *wqe = begin_rdma(ex, IBV_WR_ATOMIC_WRITE, rkey, remote_addr);

	if (!wqe)
		return;
	from_ex(ex)->wr_data = true;
	note(from_ex(ex), post_add_inline(from_ex(ex), wqe, atomic_wr, sizeof(uint64_t)));
}

static void wr_flush(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr, size_t len,
		     uint8_t type, uint8_t level)
{
	struct vernic_send_wqe *wqe =
		begin_rdma(ex, (enum ibv_wr_opcode)VERNIC_WR_FLUSH, rkey, remote_addr);

	if (!wqe)
		return;
	from_ex(ex)->wr_data = true;
	wqe->flush.length = len;
	wqe->flush.type = type;
	wqe->flush.level = level;
}

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t remote_qpn,
			   uint32_t remote_qkey)
{
	struct qp *qp = from_ex(ex);
	struct vernic_send_wqe *wqe = current(qp);

	if (!wqe)
		return;
	note(qp, qp->ibv.qp_type == IBV_QPT_UD ? post_set_ah(wqe, ah, remote_qpn, remote_qkey)
					       : EINVAL);
	qp->wr_addressed = true;
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t remote_srqn)
{
	struct qp *qp = from_ex(ex);
	struct vernic_send_wqe *wqe = current(qp);

	if (!wqe)
		return;
	if (qp->ibv.qp_type != IBV_QPT_XRC_SEND)
		note(qp, EINVAL);
	wqe->xrc_srqn = remote_srqn;
	qp->wr_addressed = true;
}

/* The current WQE gets its payload now. @return it, or NULL where it may not, or after an error */
static struct vernic_send_wqe *current_data(struct qp *qp)
{
	if (!qp->wr_error && (!qp->wr_cur || qp->wr_data))
		note(qp, EINVAL);
	qp->wr_data = true;
	return current(qp);
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t num_sge, const struct ibv_sge *sg_list)
{
	struct qp *qp = from_ex(ex);
	struct vernic_send_wqe *wqe = current_data(qp);

	if (wqe)
		note(qp, post_set_sges(qp, wqe, sg_list, num_sge));
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};

	wr_set_sge_list(ex, 1, &sge);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t num_buf,
				    const struct ibv_data_buf *buf_list)
{
	struct qp *qp = from_ex(ex);
	struct vernic_send_wqe *wqe = current_data(qp);

	for (size_t i = 0; wqe && i < num_buf && !qp->wr_error; i++)
		note(qp, post_add_inline(qp, wqe, buf_list[i].addr, buf_list[i].length));
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct ibv_data_buf buf = {.addr = addr, .length = length};

	wr_set_inline_data_list(ex, 1, &buf);
}

void post_wr_init(struct qp *qp)
{
	struct ibv_qp_ex *ex = &qp->ex;

	ex->wr_start = wr_start;
	ex->wr_complete = wr_complete;
	ex->wr_abort = wr_abort;
	ex->wr_send = wr_send;
	ex->wr_send_imm = wr_send_imm;
	ex->wr_send_inv = wr_send_inv;
	ex->wr_local_inv = wr_local_inv;
	ex->wr_bind_mw = wr_bind_mw;
	ex->wr_rdma_write = wr_rdma_write;
	ex->wr_rdma_write_imm = wr_rdma_write_imm;
	ex->wr_rdma_read = wr_rdma_read;
	ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
	ex->wr_atomic_write = wr_atomic_write;
	qp->newer.wr_flush = wr_flush;
	ex->wr_set_ud_addr = wr_set_ud_addr;
	ex->wr_set_xrc_srqn = wr_set_xrc_srqn;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
}
