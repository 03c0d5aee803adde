/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Polling completion queues.
 *
 * Theory of operation
 * -------------------
 * The next CQE is valid when its lap number is right. Taking it places what payload it carries,
 * and frees the slots of the work request it completes; the consumer index is published once a
 * call. ibv_poll_cq() and the extended functions share cq_take().
 *
 * Programs poll in a loop, and often on a machine with fewer cores than there are pollers and
 * workers: after some empty polls each one gives the core away, at once if a worker is on the same
 * core, and now and then looks whether the daemon is still there. If it is not, what is
 * outstanding completes as flushed.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "internal.h"

#define CHECK_INTERVAL 10 /* ms between looks at the daemon */

/* Empty polls in a row before they yield: few where cores are few. */
static uint32_t spin_limit(void)
{
	static _Atomic uint32_t limit;
	uint32_t n = vernic_load_relaxed(&limit);
	cpu_set_t set;
	int cpus;

	if (n)
		return n;
	CPU_ZERO(&set);
	cpus = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
	n = cpus <= 1 ? 1 : cpus <= 4 ? 50 : 1000;
	atomic_store_explicit(&limit, n, memory_order_relaxed);
	return n;
}

/* @return whether a worker was last seen on the core we run on; the CQ's ring says which that is */
static bool share_core(struct cq *cq)
{
	const struct context *ctx = cq->ctx;
	uint32_t core = vernic_core();

	if (vernic_load_relaxed(&cq->ring->core) != core)
		atomic_store_explicit(&cq->ring->core, core, memory_order_relaxed);
	for (uint32_t i = 0; core != 0 && i < ctx->workers; i++) {
		if (vernic_load_relaxed(&ctx->page->worker[i].core) == core)
			return true;
	}
	return false;
}

/* An empty poll. @return whether there may be something now: the daemon turned out to be gone */
static bool poll_idle(struct cq *cq)
{
	struct timespec ts;
	uint64_t now;

	cq->empty_polls++;
	if (!share_core(cq) && cq->empty_polls < spin_limit())
		return false;
	sched_yield();
	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	now = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
	if (now - cq->checked < CHECK_INTERVAL || context_dead(cq->ctx))
		return false;
	cq->checked = now;
	control_check(cq->ctx);
	return context_dead(cq->ctx);
}

/* Places the payload a CQE carries. The daemon checked the SGEs and that it fits. */
static void scatter(struct context *ctx, const struct vernic_cqe *cqe, const struct vernic_sge *sge,
		    uint32_t count)
{
	const uint8_t *from = cqe->data;
	uint32_t left = cqe->data_len;

	if (left > VERNIC_CQE_DATA)
		left = VERNIC_CQE_DATA;
	for (uint32_t i = 0; i < count && left; i++) {
		uint32_t n = sge[i].length < left ? sge[i].length : left;
		void *to;

		if (!n)
			continue;
		to = mr_table_translate(&ctx->mrs, sge[i].lkey, sge[i].addr, n);
		if (!to)
			return; /* deregistered since */
		memcpy(to, from, n);
		from += n;
		left -= n;
	}
}

/* The same, to the SGEs of a receive WQE. */
static void scatter_recv(struct context *ctx, const struct vernic_cqe *cqe, const void *slot,
			 uint32_t max_sge)
{
	const struct vernic_recv_wqe *wqe = slot;

	scatter(ctx, cqe, (const void *)(wqe + 1), wqe->num_sge < max_sge ? wqe->num_sge : max_sge);
}

/* Takes the effects of a CQE on a SRQ that it says it is of. */
static void consume_srq(struct context *ctx, const struct vernic_cqe *cqe, struct srq *srq)
{
	if (cqe->wqe >= srq->slots)
		return;
	if (cqe->data_len)
		scatter_recv(ctx, cqe, srq->wqe + (size_t)cqe->wqe * srq->stride, srq->max_sge);
	srq_release(srq, cqe->wqe);
}

/* The same for a CQE that says it is of a XRC SRQ. @return false: not to be seen */
static bool consume_xrc(struct cq *cq, const struct vernic_cqe *cqe)
{
	struct srq *srq = cq->xrc_srqs;

	while (srq && srq->ibv.handle != cqe->qp_index)
		srq = srq->cq_next;
	if (!srq)
		return false;
	consume_srq(cq->ctx, cqe, srq);
	return cqe->queue == VERNIC_CQE_XRC_SRQ;
}

/* Takes a CQE's effects on its queue. @return false: its QP is gone */
static bool consume(struct cq *cq, const struct vernic_cqe *cqe)
{
	struct qp *qp = NULL;
	struct wq *wq;

	if (cqe->queue == VERNIC_CQE_WQ) {
		wq = wq_find(cq->ctx, cqe->qp_index, cqe->qp_num);
		if (wq)
			vernic_store_release(&wq->rq.tail, cqe->wqe + 1);
		return wq != NULL;
	}
	if (cqe->queue >= VERNIC_CQE_XRC_SRQ)
		return consume_xrc(cq, cqe);
	if (cqe->qp_index < VERNIC_MAX_CONTEXT_QP)
		qp = atomic_load_explicit(&cq->ctx->qps[cqe->qp_index], memory_order_acquire);
	if (!qp || qp->ibv.qp_num != cqe->qp_num)
		return false;
	switch (cqe->queue) {
	case VERNIC_CQE_SQ:
		if (cqe->data_len) {
			const struct vernic_send_wqe *wqe =
				(const void *)(qp->sq.base +
					       (size_t)(cqe->wqe & qp->sq.mask) * qp->sq.stride);

			scatter(cq->ctx, cqe, (const void *)(wqe + 1), wqe->num_sge);
		}
		vernic_store_release(&qp->sq.tail, cqe->wqe + 1);
		return true;
	case VERNIC_CQE_RQ:
		if (cqe->data_len)
			scatter_recv(cq->ctx, cqe,
				     qp->rq.base + (size_t)(cqe->wqe & qp->rq.mask) * qp->rq.stride,
				     qp->rq.max_sge);
		vernic_store_release(&qp->rq.tail, cqe->wqe + 1);
		return true;
	case VERNIC_CQE_SRQ:
		if (qp->srq)
			consume_srq(cq->ctx, cqe, qp->srq);
		return true;
	default:
		return false;
	}
}

/* ---- the daemon is gone -------------------------------------------------------------------- */

/* Flushes the oldest outstanding WR of a QP that completes on cq. @return false: there is none */
static bool flush_qp(struct cq *cq, struct qp *qp)
{
	struct vernic_cqe *cqe = &cq->flush;
	uint32_t tail;

	if (qp->send_cq == cq) {
		tail = vernic_load_acquire(&qp->sq.tail);
		if (tail != vernic_load_acquire(&qp->ring->sq_prod)) {
			const struct vernic_send_wqe *wqe =
				(const void *)(qp->sq.base +
					       (size_t)(tail & qp->sq.mask) * qp->sq.stride);

			cqe->wr_id = wqe->wr_id;
			cqe->opcode = IBV_WC_SEND;
			vernic_store_release(&qp->sq.tail, tail + 1);
			return true;
		}
	}
	if (qp->recv_cq == cq && !qp->srq) {
		tail = vernic_load_acquire(&qp->rq.tail);
		if (tail != vernic_load_acquire(&qp->ring->rq_prod)) {
			const struct vernic_recv_wqe *wqe =
				(const void *)(qp->rq.base +
					       (size_t)(tail & qp->rq.mask) * qp->rq.stride);

			cqe->wr_id = wqe->wr_id;
			cqe->opcode = IBV_WC_RECV & 0xff;
			vernic_store_release(&qp->rq.tail, tail + 1);
			return true;
		}
	}
	return false;
}

/* The same, of a WQ. */
static bool flush_wq(struct cq *cq, struct wq *wq)
{
	uint32_t tail = vernic_load_acquire(&wq->rq.tail);
	const struct vernic_recv_wqe *wqe =
		(const void *)(wq->rq.base + (size_t)(tail & wq->rq.mask) * wq->rq.stride);

	if (wq->ibv.cq != &cq->ibv || tail == vernic_load_acquire(&wq->ring->prod))
		return false;
	cq->flush.wr_id = wqe->wr_id;
	cq->flush.opcode = IBV_WC_RECV & 0xff;
	vernic_store_release(&wq->rq.tail, tail + 1);
	return true;
}

/* @return the next flushed completion, or NULL */
static const struct vernic_cqe *flush_next(struct cq *cq)
{
	struct context *ctx = cq->ctx;
	_Atomic(struct wq *) *wqs = atomic_load(&ctx->wqs);
	const struct vernic_cqe *cqe = NULL;

	/* Whoever holds it destroys a QP, and may wait for our lock: the next poll looks again. */
	if (pthread_mutex_trylock(&ctx->qp_mutex))
		return NULL;
	for (uint32_t i = 0; i < ctx->qp_limit && !cqe; i++) {
		struct qp *qp = atomic_load(&ctx->qps[i]);

		if (qp && flush_qp(cq, qp)) {
			cq->flush.status = IBV_WC_WR_FLUSH_ERR;
			cq->flush.qp_num = qp->ibv.qp_num;
			cqe = &cq->flush;
		}
	}
	for (uint32_t i = 0; wqs && i < VERNIC_MAX_CONTEXT_WQ && !cqe; i++) {
		struct wq *wq = atomic_load(&wqs[i]);

		if (wq && flush_wq(cq, wq)) {
			cq->flush.status = IBV_WC_WR_FLUSH_ERR;
			cq->flush.qp_num = wq->ibv.wq_num;
			cqe = &cq->flush;
		}
	}
	pthread_mutex_unlock(&ctx->qp_mutex);
	return cqe;
}

/* ---- taking CQEs --------------------------------------------------------------------------- */

/* @return whether a CQE that a fault hides is not to be seen yet */
static bool is_hidden(const struct cq *cq, const struct vernic_cqe *cqe)
{
	struct timespec ts;
	uint64_t now;

	if (cqe->queue == VERNIC_CQE_NONE || (int32_t)(cq->cons - cq->armed) < 0)
		return false;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	now = (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
	return now - cqe->timestamp < cqe->hidden * UINT64_C(1000000);
}

/*
 * Copies a CQE that the daemon may overwrite at any time.
 * @return the copy, or NULL: it was overwritten meanwhile
 */
static const struct vernic_cqe *cq_copy(struct cq *cq, const struct vernic_cqe *cqe)
{
	memcpy(&cq->copy, (const void *)cqe, sizeof(*cqe));
	atomic_thread_fence(memory_order_acquire);
	return cqe_presence(cq, cq->cons) == CQE_PRESENT ? &cq->copy : NULL;
}

/*
 * Takes the next completion. It stays readable until the consumer index is published, or the next
 * call. The CQ's lock is held.
 * @return NULL: there is none
 */
static const struct vernic_cqe *cq_take(struct cq *cq)
{
	for (;;) {
		const struct vernic_cqe *cqe = &cq->cqe[cq->cons & cq->mask];
		enum cqe_presence presence = cqe_presence(cq, cq->cons);

		if (presence == CQE_ABSENT)
			return context_dead(cq->ctx) ? flush_next(cq) : NULL;
		/* It is lost; what overwrote it comes when its turn does. */
		if (presence == CQE_OVERWRITTEN) {
			cq->cons++;
			continue;
		}
		if (cq->ignore_overrun) {
			cqe = cq_copy(cq, cqe);
			if (!cqe)
				continue;
		}
		if (cqe->hidden && is_hidden(cq, cqe))
			return NULL;
		cq->cons++;
		if (consume(cq, cqe))
			return cqe;
	}
}

/* Lets the daemon have the CQEs taken so far. */
static void cq_publish(struct cq *cq)
{
	vernic_store_release(&cq->ring->cons, cq->cons);
}

/* Translates a CQE. */
static void fill_wc(struct ibv_wc *wc, const struct vernic_cqe *cqe)
{
	wc->wr_id = cqe->wr_id;
	wc->status = cqe->status;
	wc->opcode = cqe->opcode;
	wc->vendor_err = cqe->vendor_err;
	wc->byte_len = cqe->byte_len;
	wc->imm_data = cqe->imm;
	wc->qp_num = cqe->qp_num;
	wc->src_qp = cqe->src_qp;
	wc->wc_flags = cqe->wc_flags;
	wc->pkey_index = cqe->pkey_index;
	wc->slid = 0;
	wc->sl = cqe->sl;
	wc->dlid_path_bits = 0;
}

/* Takes up to num_entries completions. @return how many */
static int take_batch(struct cq *cq, int num_entries, struct ibv_wc *wc)
{
	const struct vernic_cqe *cqe;
	uint32_t before;
	int n = 0;

	spin_lock(&cq->lock);
	before = cq->cons;
	while (n < num_entries && (cqe = cq_take(cq)))
		fill_wc(&wc[n++], cqe);
	if (cq->cons != before)
		cq_publish(cq);
	if (n)
		cq->empty_polls = 0;
	spin_unlock(&cq->lock);
	return n;
}

int poll_cq(struct ibv_cq *ibcq, int num_entries, struct ibv_wc *wc)
{
	struct cq *cq = to_cq(ibcq);
	int n = take_batch(cq, num_entries, wc);

	if (n == 0 && poll_idle(cq))
		n = take_batch(cq, num_entries, wc);
	return n;
}

/* ---- extended polling: ibv_create_cq_ex(3) ------------------------------------------------- */

/* @return the CQ whose extended interface this is */
static struct cq *from_ex(struct ibv_cq_ex *ex)
{
	return OBJECT_OF(ex, struct cq, ex);
}

/* The functions of struct ibv_cq_ex, one for each of ibv_create_cq_ex(3). */
static int ex_next_poll(struct ibv_cq_ex *ex)
{
	struct cq *cq = from_ex(ex);
	const struct vernic_cqe *cqe = cq_take(cq);

	if (!cqe)
		return ENOENT;
	cq->cur = cqe;
	ex->wr_id = cqe->wr_id;
	ex->status = cqe->status;
	return 0;
}

/* Success takes the CQ until ex_end_poll(). */
static int ex_start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct cq *cq = from_ex(ex);
	int error;

	if (context_forked(cq->ctx))
		return EIO;
	if (attr->comp_mask)
		return EINVAL;
	do {
		spin_lock(&cq->lock);
		error = ex_next_poll(ex);
		if (!error) {
			cq->empty_polls = 0;
			return 0;
		}
		/* CQEs of QPs that are gone may have been passed over. */
		cq_publish(cq);
		spin_unlock(&cq->lock);
	} while (poll_idle(cq));
	return error;
}

static void ex_end_poll(struct ibv_cq_ex *ex)
{
	struct cq *cq = from_ex(ex);

	cq_publish(cq);
	spin_unlock(&cq->lock);
}

static enum ibv_wc_opcode ex_read_opcode(struct ibv_cq_ex *ex)
{
	return from_ex(ex)->cur->opcode;
}

static uint32_t ex_read_vendor_err(struct ibv_cq_ex *ex)
{
	return from_ex(ex)->cur->vendor_err;
}

static uint32_t ex_read_byte_len(struct ibv_cq_ex *ex)
{
	return from_ex(ex)->cur->byte_len;
}

static __be32 ex_read_imm_data(struct ibv_cq_ex *ex)
{
	return from_ex(ex)->cur->imm;
}

static uint32_t ex_read_qp_num(struct ibv_cq_ex *ex)
{
	return from_ex(ex)->cur->qp_num;
}

static uint32_t ex_read_src_qp(struct ibv_cq_ex *ex)
{
	return from_ex(ex)->cur->src_qp;
}

static unsigned int ex_read_wc_flags(struct ibv_cq_ex *ex)
{
	return from_ex(ex)->cur->wc_flags;
}

/* RoCE has no LIDs. */
static uint32_t ex_read_slid(struct ibv_cq_ex *ex)
{
	return 0;
}

static uint8_t ex_read_sl(struct ibv_cq_ex *ex)
{
	return from_ex(ex)->cur->sl;
}

static uint8_t ex_read_dlid_path_bits(struct ibv_cq_ex *ex)
{
	return 0;
}

static uint64_t ex_read_completion_ts(struct ibv_cq_ex *ex)
{
	return from_ex(ex)->cur->timestamp;
}

/* @return a time in ns */
static uint64_t timespec_ns(const struct timespec *ts)
{
	return (uint64_t)ts->tv_sec * 1000000000 + (uint64_t)ts->tv_nsec;
}

static uint64_t ex_read_completion_wallclock_ns(struct ibv_cq_ex *ex)
{
	struct timespec wall, mono;

	clock_gettime(CLOCK_REALTIME, &wall);
	clock_gettime(CLOCK_MONOTONIC, &mono);
	return from_ex(ex)->cur->timestamp + (timespec_ns(&wall) - timespec_ns(&mono));
}

/* No flow rule sets one (ibv_create_flow(3)). */
static uint32_t ex_read_flow_tag(struct ibv_cq_ex *ex)
{
	return 0;
}

/* As adapters have it, a field that was not asked for has no function: reading it crashes. */
void poll_ex_init(struct cq *cq, uint64_t wc_flags)
{
	struct ibv_cq_ex *ex = &cq->ex;

	ex->start_poll = ex_start_poll;
	ex->next_poll = ex_next_poll;
	ex->end_poll = ex_end_poll;
	ex->read_opcode = ex_read_opcode;
	ex->read_vendor_err = ex_read_vendor_err;
	ex->read_wc_flags = ex_read_wc_flags;
	if (wc_flags & IBV_WC_EX_WITH_BYTE_LEN)
		ex->read_byte_len = ex_read_byte_len;
	if (wc_flags & IBV_WC_EX_WITH_IMM)
		ex->read_imm_data = ex_read_imm_data;
	if (wc_flags & IBV_WC_EX_WITH_QP_NUM)
		ex->read_qp_num = ex_read_qp_num;
	if (wc_flags & IBV_WC_EX_WITH_SRC_QP)
		ex->read_src_qp = ex_read_src_qp;
	if (wc_flags & IBV_WC_EX_WITH_SLID)
		ex->read_slid = ex_read_slid;
	if (wc_flags & IBV_WC_EX_WITH_SL)
		ex->read_sl = ex_read_sl;
	if (wc_flags & IBV_WC_EX_WITH_DLID_PATH_BITS)
		ex->read_dlid_path_bits = ex_read_dlid_path_bits;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		ex->read_completion_ts = ex_read_completion_ts;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		ex->read_completion_wallclock_ns = ex_read_completion_wallclock_ns;
	if (wc_flags & IBV_WC_EX_WITH_FLOW_TAG)
		ex->read_flow_tag = ex_read_flow_tag;
}
