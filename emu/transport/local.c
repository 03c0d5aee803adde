/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Requests that send nothing: IBV_WR_LOCAL_INV and IBV_WR_BIND_MW.
 *
 * They take effect when they are begun, in the order of the SQ: everything before them has been
 * sent at least once, and what is sent again needs no rkey of ours. Their completion is a dma
 * operation, so that it is seen behind the bytes that came in through the window before.
 */
#include "internal.h"

void requester_local_done(struct qp *qp, uint32_t first, uint32_t last)
{
	struct requester *r = &qp->req;

	if (!qp_sends(qp))
		return;
	if ((int32_t)(first - r->una) < 0)
		first = r->una;
	for (uint32_t i = first; (int32_t)(last - i) >= 0 && i != r->begun; i++) {
		struct send_entry *entry = &r->entry[i & (qp->p.sq_depth - 1)];

		entry->placed |= entry_is_local(entry);
	}
	requester_advance(qp);
}

/* dma_op.done. arg[0]: the SQ index, arg[1]: other workers must have gone on */
static void local_done(struct dma *dma, struct dma_op *op, int error)
{
	struct qp *qp = op->qp;

	if (op->epoch != qp->epoch)
		return;
	/* What comes behind one that waits waits too. */
	if (op->arg[1] || qp->settle_linked)
		engine_settle(qp->engine, qp, op->arg[0]);
	else
		requester_local_done(qp, op->arg[0], op->arg[0]);
}

enum ibv_wc_status requester_local(struct qp *qp, uint32_t index, const struct vernic_send_wqe *wqe)
{
	struct dma_op *op;
	int err;

	if (!device_has(qp->p.dev, DEVICE_MEMORY_WINDOWS))
		return IBV_WC_LOC_QP_OP_ERR;
	if (wqe->opcode == IBV_WR_BIND_MW) {
		struct mw_binding binding = {
			.addr = wqe->bind.addr,
			.length = wqe->bind.length,
			.lkey = wqe->bind.lkey,
			.access = wqe->bind.access,
			.mw = wqe->bind.mw,
			.rkey = wqe->bind.rkey,
		};

		err = mw_bind(qp->p.pd, qp->qpn, &binding);
	} else {
		err = MUTATION(local_forgotten) ? 0 : mw_invalidate(qp->p.pd, qp->qpn, wqe->imm);
	}
	if (err < 0)
		return IBV_WC_MW_BIND_ERR;
	op = dma_submit(qp->engine->dma);
	op->done = local_done;
	op->qp = qp;
	op->epoch = qp->epoch;
	op->arg[0] = index;
	op->arg[1] = err > 0;
	return IBV_WC_SUCCESS;
}
