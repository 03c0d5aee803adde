/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared receive queues, and SGE lists in general. */
#include "internal.h"

bool srq_take(struct engine *e, struct srq *srq, struct recv_wqe *wqe)
{
	bool limit_reached = false;
	bool taken = false;
	uint32_t prod, waiting;

	pthread_spin_lock(&srq->lock);
	prod = vernic_load_acquire(&srq->ring->prod);
	waiting = prod - srq->cons;
	if (waiting != 0 && waiting <= srq->depth) {
		uint32_t slot = vernic_load_relaxed(&srq->index[srq->cons & (srq->depth - 1)]) &
				srq->slot_mask;
		const uint8_t *p = srq->wqe + (size_t)slot * srq->stride;
		struct vernic_recv_wqe head;

		copy_out(&head, p, sizeof(head));
		wqe->wr_id = head.wr_id;
		wqe->slot = slot;
		wqe->num_sge = head.num_sge <= srq->max_sge ? head.num_sge : 0;
		copy_out(wqe->sge, p + sizeof(head), wqe->num_sge * sizeof(wqe->sge[0]));
		srq->cons++;
		taken = true;
		if (srq->limit && waiting - 1 < srq->limit && !MUTATION(srq_limit_silent)) {
			srq->limit = 0;
			limit_reached = true;
		}
	}
	pthread_spin_unlock(&srq->lock);
	if (limit_reached)
		e->ops->srq_limit(e, srq);
	return taken;
}

int sge_resolve(struct dma *dma, const struct pd *pd, const struct vernic_sge *sge, uint32_t count,
		uint32_t offset, uint32_t len, uint32_t access, struct dma_list *list)
{
	*list = (struct dma_list){.len = len};
	if (len == 0)
		return 0;
	list->seg = dma_segments(dma, count);
	for (uint32_t i = 0; i < count && len; i++) {
		uint32_t n;
		int err;

		if (offset >= sge[i].length) {
			offset -= sge[i].length;
			continue;
		}
		n = sge[i].length - offset < len ? sge[i].length - offset : len;
		err = mr_resolve(pd, sge[i].lkey, sge[i].addr + offset, n, access,
				 &list->seg[list->count]);
		if (err)
			return err;
		list->count++;
		offset = 0;
		len -= n;
	}
	return len ? -EMSGSIZE : 0;
}

bool sge_readable(const struct pd *pd, const struct vernic_sge *sge, uint32_t count)
{
	struct dma_segment seg;

	for (uint32_t i = 0; i < count; i++)
		if (sge[i].length &&
		    mr_resolve(pd, sge[i].lkey, sge[i].addr, sge[i].length, 0, &seg))
			return false;
	return true;
}
