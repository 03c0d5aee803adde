/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The work request API (ibv_wr_post(3)): work requests built by calls between ibv_wr_start() and
 * ibv_wr_complete(), which hold the send queue. The first error is kept and reported at the end;
 * then nothing of the batch is posted.
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

/* Begins the next WQE of the batch. @return it, or NULL after an error */
static struct vernic_send_wqe *begin(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
	struct qp *qp = from_ex(ex);

	if (qp->wr_error)
		return NULL;
	note(qp, post_begin(qp, qp->wr_head, opcode, ex->wr_id, ex->wr_flags, &qp->wr_cur));
	if (qp->wr_error)
		return NULL;
	qp->wr_head++;
	return qp->wr_cur;
}

/* The functions of struct ibv_qp_ex, one for each of ibv_wr_post(3). */
static void wr_start(struct ibv_qp_ex *ex)
{
	struct qp *qp = from_ex(ex);

	spin_lock(&qp->sq.lock);
	qp->wr_head = qp->sq.head;
	qp->wr_cur = NULL;
	qp->wr_error = post_state(qp);
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct qp *qp = from_ex(ex);
	int error = qp->wr_error;

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

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t remote_qpn,
			   uint32_t remote_qkey)
{
	struct qp *qp = from_ex(ex);
	struct vernic_send_wqe *wqe = current(qp);

	if (wqe)
		note(qp, qp->ibv.qp_type == IBV_QPT_UD
				 ? post_set_ah(wqe, ah, remote_qpn, remote_qkey)
				 : EINVAL);
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t num_sge, const struct ibv_sge *sg_list)
{
	struct qp *qp = from_ex(ex);
	struct vernic_send_wqe *wqe = current(qp);

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
	struct vernic_send_wqe *wqe = current(qp);

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
	ex->wr_rdma_write = wr_rdma_write;
	ex->wr_rdma_write_imm = wr_rdma_write_imm;
	ex->wr_rdma_read = wr_rdma_read;
	ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
	ex->wr_set_ud_addr = wr_set_ud_addr;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
}
