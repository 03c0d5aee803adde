/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Receive work queues that belong to no QP, and the tables that spread packets over them.
 *
 * A WQ is posted to like the RQ of a QP. Packets come to it by way of a table that a RAW_PACKET QP
 * is made with; until one is, its receives end only by being flushed.
 */
#include <string.h>

#include "control.h"

/* ---- work queues --------------------------------------------------------------------------- */

/* ibv_create_wq(3) */
int handle_create_wq(struct client *c, struct message *m)
{
	const struct ibv_device_attr *limits = &c->device->dev.attr;
	struct pd *pd = handle_get(&c->shared->pds, m->req->create_wq.pd);
	struct host_cq *cq = handle_get(&c->cqs, m->req->create_wq.cq);
	uint32_t max_wr = m->req->create_wq.max_wr, max_sge = m->req->create_wq.max_sge;
	struct host_wq *wq;
	int err;

	if (pd == NULL || cq == NULL || max_wr < 1 || max_wr > (uint32_t)limits->max_qp_wr ||
	    max_sge > (uint32_t)limits->max_sge)
		return -EINVAL;
	if (max_sge == 0)
		max_sge = 1;
	wq = calloc(1, sizeof(*wq));
	if (wq == NULL)
		return -ENOMEM;
	err = handle_add(&c->wqs, wq, VERNIC_MAX_CONTEXT_WQ, &wq->handle);
	if (err != 0)
		goto fail;
	wq->depth = round_up_pow2(max_wr);
	wq->stride =
		(uint32_t)(sizeof(struct vernic_recv_wqe) + max_sge * sizeof(struct vernic_sge));
	err = ring_memory_create(&wq->memory, "vernic-wq",
				 VERNIC_WQ_OFFSET + (size_t)wq->depth * wq->stride, m);
	if (err != 0)
		goto fail_handle;
	wq->pd = pd;
	wq->cq = cq;
	wq->ring = wq->memory.base;
	wq->state = IBV_WQS_RESET;
	/* Like QP numbers, not used again soon. */
	c->server->wq_num = c->server->wq_num % QPN_MASK + 1;
	wq->wq_num = c->server->wq_num;
	atomic_fetch_add(&pd->users, 1);
	atomic_fetch_add(&cq->cq.users, 1);
	m->reply->handle = wq->handle;
	m->reply->create_wq.wq_num = wq->wq_num;
	m->reply->create_wq.depth = wq->depth;
	m->reply->create_wq.stride = wq->stride;
	m->reply->create_wq.max_wr =
		wq->depth < (uint32_t)limits->max_qp_wr ? wq->depth : (uint32_t)limits->max_qp_wr;
	m->reply->create_wq.max_sge = max_sge;
	m->reply->create_wq.size = wq->memory.size;
	return 0;
fail_handle:
	handle_remove(&c->wqs, wq->handle);
fail:
	free(wq);
	return err;
}

struct flush_call {
	struct worker *worker;
	struct client *client;
	struct host_wq *wq;
};

/* The WQ has failed by itself: its client is told, once. Any thread, one at a time. */
static void wq_fatal(struct client *c, struct host_wq *wq)
{
	if (!wq->failed)
		client_async_event(c, IBV_EVENT_WQ_FATAL, wq->handle, wq->wq_num);
	wq->failed = true;
}

/* On a worker's thread, for CQEs are pushed by engines. @return 0 */
static int wq_flush_call(void *arg)
{
	struct flush_call *call = arg;
	struct engine *e = worker_engine(call->worker);
	struct host_wq *wq = call->wq;
	const uint8_t *base = (const uint8_t *)wq->memory.base + VERNIC_WQ_OFFSET;
	uint32_t left = vernic_load_acquire(&wq->ring->prod) - wq->cons;

	/* The client overwrote what it had posted, or took it back. */
	if (left > wq->depth) {
		wq_fatal(call->client, wq);
		return 0;
	}
	for (; left > 0; left--) {
		struct vernic_cqe cqe = {
			.timestamp = engine_time(e),
			.qp_index = wq->handle,
			.qp_num = wq->wq_num,
			.wqe = wq->cons,
			.queue = VERNIC_CQE_WQ,
			.status = IBV_WC_WR_FLUSH_ERR,
		};

		memcpy(&cqe.wr_id,
		       base + (size_t)(wq->cons & (wq->depth - 1)) * wq->stride +
			       offsetof(struct vernic_recv_wqe, wr_id),
		       sizeof(cqe.wr_id));
		wq->cons++;
		/* The CQ overran: nothing of the WQ can be reported any more. */
		if (!cq_push(e, &wq->cq->cq, &cqe, true)) {
			wq_fatal(call->client, wq);
			break;
		}
	}
	return 0;
}

/*
 * ibv_modify_wq(3), states only. To ERR, also from there: flushes what is posted.
 * @return EINVAL: no such move
 */
int handle_modify_wq(struct client *c, struct message *m)
{
	struct host_wq *wq = handle_get(&c->wqs, m->req->handle);
	uint32_t next = m->req->modify_wq.state;
	struct flush_call call;

	if (wq == NULL || next > IBV_WQS_ERR)
		return -EINVAL;
	/* Out of ERR, and into it, there is one way each. */
	if ((wq->state == IBV_WQS_ERR && next == IBV_WQS_RDY) ||
	    (wq->state == IBV_WQS_RESET && next == IBV_WQS_ERR))
		return -EINVAL;
	wq->state = next;
	if (next == IBV_WQS_RESET) {
		wq->cons = 0;
		wq->failed = false;
		vernic_store_release(&wq->ring->prod, 0);
	} else if (next == IBV_WQS_ERR) {
		call = (struct flush_call){.worker = c->host->worker[0], .client = c, .wq = wq};
		worker_call(call.worker, wq_flush_call, &call);
	}
	return 0;
}

/* No table has it. */
static void wq_destroy(struct client *c, struct host_wq *wq)
{
	handle_remove(&c->wqs, wq->handle);
	atomic_fetch_sub(&wq->pd->users, 1);
	atomic_fetch_sub(&wq->cq->cq.users, 1);
	ring_memory_destroy(&wq->memory);
	free(wq);
}

/* ibv_destroy_wq(3). @return EBUSY while tables have it */
int handle_destroy_wq(struct client *c, struct message *m)
{
	struct host_wq *wq = handle_get(&c->wqs, m->req->handle);

	if (wq == NULL)
		return -EINVAL;
	if (wq->users != 0)
		return -EBUSY;
	wq_destroy(c, wq);
	return 0;
}

/* ---- indirection tables -------------------------------------------------------------------- */

/* ibv_create_rwq_ind_table(3) */
int handle_create_rwq_table(struct client *c, struct message *m)
{
	uint32_t log_size = m->req->create_rwq_table.log_size, size;
	struct host_rwq_table *table;
	int err;

	if (log_size > VERNIC_MAX_RWQ_LOG)
		return -EINVAL;
	size = 1u << log_size;
	for (uint32_t i = 0; i < size; i++) {
		if (handle_get(&c->wqs, m->req->create_rwq_table.wq[i]) == NULL)
			return -EINVAL;
	}
	table = calloc(1, sizeof(*table));
	if (table == NULL)
		return -ENOMEM;
	err = handle_add(&c->rwq_tables, table, VERNIC_MAX_CONTEXT_WQ, &table->handle);
	if (err != 0) {
		free(table);
		return err;
	}
	table->size = size;
	for (uint32_t i = 0; i < size; i++) {
		table->wq[i] = handle_get(&c->wqs, m->req->create_rwq_table.wq[i]);
		table->wq[i]->users++;
	}
	m->reply->handle = table->handle;
	return 0;
}

/* No QP has it. */
static void rwq_table_destroy(struct client *c, struct host_rwq_table *table)
{
	for (uint32_t i = 0; i < table->size; i++)
		table->wq[i]->users--;
	handle_remove(&c->rwq_tables, table->handle);
	free(table);
}

/* ibv_destroy_rwq_ind_table(3) */
int handle_destroy_rwq_table(struct client *c, struct message *m)
{
	struct host_rwq_table *table = handle_get(&c->rwq_tables, m->req->handle);

	if (table == NULL)
		return -EINVAL;
	rwq_table_destroy(c, table);
	return 0;
}

void client_close_wqs(struct client *c)
{
	for (uint32_t h = 0; h < c->rwq_tables.used; h++) {
		struct host_rwq_table *table = handle_get(&c->rwq_tables, h);

		if (table != NULL)
			rwq_table_destroy(c, table);
	}
	for (uint32_t h = 0; h < c->wqs.used; h++) {
		struct host_wq *wq = handle_get(&c->wqs, h);

		if (wq != NULL)
			wq_destroy(c, wq);
	}
}
