/* SPDX-License-Identifier: BSD-2-Clause */
/* The engine: QP numbers, queues of work, and the round that drains them. */
#include "internal.h"

#include <stdlib.h>

/* Passes over run queue, dma and ACKs before the host gets to look at its doorbells again. */
#define ENGINE_PASSES 4

int engine_init(struct engine *e, const struct engine_ops *ops, void *host, uint32_t worker,
		struct dma *dma)
{
	*e = (struct engine){
		.ops = ops, .host = host, .worker = worker, .dma = dma, .next_slot = 1};
	CDS_INIT_LIST_HEAD(&e->run);
	CDS_INIT_LIST_HEAD(&e->settling);
	CDS_INIT_LIST_HEAD(&e->unsettled);
	CDS_INIT_LIST_HEAD(&e->acks);
	CDS_INIT_LIST_HEAD(&e->held);
	CDS_INIT_LIST_HEAD(&e->budgets);
	e->qps = calloc(ENGINE_MAX_QP, sizeof(*e->qps));
	e->generation = calloc(ENGINE_MAX_QP, sizeof(*e->generation));
	e->device = calloc(ENGINE_MAX_DEVICES, sizeof(*e->device));
	if (!e->qps || !e->generation || !e->device) {
		engine_fini(e);
		return -ENOMEM;
	}
	return 0;
}

void engine_fini(struct engine *e)
{
	free(e->qps);
	free(e->generation);
	free(e->device);
	free(e->dirty);
	timer_heap_free(&e->timers);
}

int engine_add_qp(struct engine *e, struct qp *qp)
{
	/*
	 * Slots are used in turn, so a number comes back as late as possible; slot 0 never is, so
	 * that no QPN is 0 or 1, nor is the last one, so that none is QPN_GROUP.
	 */
	for (uint32_t tries = 0; tries < ENGINE_MAX_QP; tries++) {
		uint32_t slot = e->next_slot;

		e->next_slot = slot + 2 < ENGINE_MAX_QP ? slot + 1 : 1;
		if (e->qps[slot])
			continue;
		if (timer_heap_reserve(&e->timers, engine_timers(e) + 1))
			return -ENOMEM;
		e->qps[slot] = qp;
		e->qp_count++;
		if (e->slot_end <= slot)
			e->slot_end = slot + 1;
		qp->qpn = QPN_MAKE(e->generation[slot], slot, e->worker);
		e->generation[slot]++;
		return 0;
	}
	return -ENOMEM;
}

void engine_remove_qp(struct engine *e, struct qp *qp)
{
	e->qps[QPN_SLOT(qp->qpn)] = NULL;
	e->qp_count--;
	counters_add(&e->device[qp->p.dev->index], &qp->counters);
}

struct qp *engine_find_qp(struct engine *e, uint32_t qpn)
{
	struct qp *qp = e->qps[QPN_SLOT(qpn)];

	return qp && qp->qpn == qpn ? qp : NULL;
}

void engine_schedule(struct engine *e, struct qp *qp)
{
	if (!qp->queued) {
		qp->queued = true;
		cds_list_add_tail(&qp->run_node, &e->run);
	}
}

void engine_unlink(struct engine *e, struct qp *qp)
{
	if (qp->queued)
		cds_list_del(&qp->run_node);
	if (qp->resp.ack_linked)
		cds_list_del(&qp->ack_node);
	if (qp->settle_linked)
		cds_list_del(&qp->settle_node);
	qp->queued = false;
	qp->resp.ack_linked = false;
	qp->settle_linked = false;
	timer_disarm(&e->timers, &qp->timer);
}

void engine_doorbell(struct engine *e, struct qp *qp)
{
	switch (qp->state) {
	case IBV_QPS_RTS:
		engine_schedule(e, qp);
		break;
	case IBV_QPS_ERR:
	case IBV_QPS_SQE:
		qp_flush(qp);
		break;
	default:
		break;
	}
}

/*
 * Whether a train belongs to its QP: service, partition and, for connected services, the peer's
 * addresses (IBTA 9.6.1); within this daemon its QP number too, which no packet carries.
 */
static bool train_is_for(const struct qp *qp, const struct train *t)
{
	if (!qp_receives(qp))
		return false;
	/* A CNP says nothing of the service: it is for connected QPs (IBTA A17.9.3). */
	if (t->service != qp_service(qp) && !(t->kind == KIND_CNP && qp->p.type != IBV_QPT_UD))
		return false;
	if ((t->pkey & 0x7fff) != 0x7fff)
		return false;
	if (qp->p.type == IBV_QPT_UD) {
		const struct device *dev = qp->p.dev;

		/* To a group it is attached to: the host has looked. */
		if (t->group)
			return true;
		for (unsigned int i = 0; i < dev->gid_count; i++)
			if (device_gid(dev, i) && !memcmp(dev->gids[i].raw, t->path->dgid, 16))
				return true;
		return false;
	}
	/* Where the sender is known, a stranger cannot speak for the peer. */
	if (t->src_qpn && t->src_qpn != qp->attr.dest_qp_num)
		return false;
	return !memcmp(qp->path.dgid, t->path->sgid, 16) &&
	       !memcmp(qp->path.sgid, t->path->dgid, 16);
}

/* ---- counters ------------------------------------------------------------------------------ */

/* Octets of a train's packets on the wire, each from its BTH to its ICRC. */
static uint64_t train_octets(const struct train *t)
{
	/* Of a message's first packet, or of a READ response's last one too. */
	static const uint8_t extended[KIND_COUNT] = {
		[KIND_WRITE] = RETH_LEN,
		[KIND_READ_REQUEST] = RETH_LEN,
		[KIND_READ_RESPONSE] = AETH_LEN,
		[KIND_ACK] = AETH_LEN,
		[KIND_ATOMIC_ACK] = AETH_LEN + ATOMICACKETH_LEN,
		[KIND_COMPARE_SWAP] = ATOMICETH_LEN,
		[KIND_FETCH_ADD] = ATOMICETH_LEN,
		[KIND_FLUSH] = FETH_LEN + RETH_LEN,
		[KIND_ATOMIC_WRITE] = RETH_LEN,
		[KIND_CNP] = CNP_RESERVED_LEN,
	};
	uint32_t with = t->first;

	if (t->kind == KIND_READ_RESPONSE && t->last && (!t->first || t->count > 1))
		with++;
	bool xrceth = t->service == WIRE_XRC && t->kind != KIND_READ_RESPONSE &&
		      t->kind != KIND_ACK && t->kind != KIND_ATOMIC_ACK;

	return (uint64_t)t->count * (BTH_LEN + ICRC_LEN + (xrceth ? XRCETH_LEN : 0)) +
	       with * extended[t->kind] + ((t->payload.len + UINT64_C(3)) & ~UINT64_C(3)) +
	       (t->service == WIRE_UD ? DETH_LEN : 0) + (t->imm ? IMMDT_LEN : 0) +
	       (t->inv ? IETH_LEN : 0);
}

void engine_tx(struct qp *qp, const struct train *t)
{
	uint64_t octets = train_octets(t);

	qp->counters.sent_pkts += t->count;
	qp->counters.xmit_data += octets / 4;
	if (qp->pacer && kind_is_request(t->kind))
		pacer_sent(qp->pacer, qp->engine->now, octets);
	qp->engine->sent |= t->path->route == ROUTE_UDP;
	qp->engine->ops->tx(qp->engine, qp, t);
}

void engine_not_sent(struct engine *e, const struct train *t, uint32_t count)
{
	struct qp *qp = count ? engine_find_qp(e, t->src_qpn) : NULL;
	struct train sent = *t;

	if (!qp)
		return;
	qp->counters.sent_pkts -= count;
	qp->counters.send_err += count;
	qp->counters.xmit_data -= train_octets(t) / 4;
	if (count == t->count)
		return;
	/* All but the last packet have the same size. */
	sent.count -= count;
	sent.payload.len = sent.count * t->mtu;
	sent.last = sent.imm = sent.inv = false;
	qp->counters.xmit_data += train_octets(&sent) / 4;
}

/* Counts a train that is for no QP. */
static void drop_stray(struct engine *e, const struct train *t)
{
	const struct device *dev = NULL;
	struct qp_counters *c;

	if (e->ops->find_device)
		dev = e->ops->find_device(e, t->path->dgid);
	if (!dev || device_is_down(dev))
		return;
	c = &e->device[dev->index];
	c->rcvd_pkts += t->count;
	c->rcv_data += train_octets(t) / 4;
	c->rx_dropped += t->count;
}

void engine_sum_counters(const struct engine *e, const struct device *dev, struct qp_counters *sum)
{
	for (uint32_t i = 0; i < ENGINE_MAX_DEVICES; i++)
		if (!dev || i == dev->index)
			counters_add(sum, &e->device[i]);
	for (uint32_t slot = 0; slot < e->slot_end; slot++)
		if (e->qps[slot] && (!dev || e->qps[slot]->p.dev == dev))
			counters_add(sum, &e->qps[slot]->counters);
}

void engine_get_counters(const struct engine *e, struct engine_counters *c)
{
	struct qp_counters sum = {0};

	engine_sum_counters(e, NULL, &sum);
	*c = (struct engine_counters){
		.tx_packets = sum.sent_pkts + sum.send_err,
		.rx_packets = sum.rcvd_pkts,
		.rx_dropped = sum.rx_dropped,
		.duplicates = sum.duplicate_request,
		.out_of_sequence = sum.out_of_sequence,
		.rnr_nak_sent = sum.send_rnr_err,
		.rnr_nak_received = sum.rcvd_rnr_err,
		.seq_nak_received = sum.rcvd_seq_err,
		.timeouts = sum.local_ack_timeout_err,
		.retransmits = sum.retransmitted_pkts,
		.completions = sum.completions,
		.np_ecn_marked_roce_packets = sum.np_ecn_marked_roce_packets,
		.np_cnp_sent = sum.np_cnp_sent,
		.rp_cnp_handled = sum.rp_cnp_handled,
		.bad_icrc = sum.rx_icrc_encapsulated,
		.malformed = sum.rx_malformed,
	};
}

/* ---- receiving, and a round ---------------------------------------------------------------- */

void engine_rx(struct engine *e, const struct train *received)
{
	struct train t = *received; /* the handlers cut it as they go */
	struct qp *qp = engine_find_qp(e, t.dst_qpn);

	if (qp && device_is_down(qp->p.dev))
		return;
	if (!qp || !train_is_for(qp, &t)) {
		drop_stray(e, &t);
		return;
	}
	qp->counters.rcvd_pkts += t.count;
	qp->counters.rcv_data += train_octets(&t) / 4;
	if (qp->state == IBV_QPS_RTR && !qp->established && qp->p.type != IBV_QPT_UD) {
		qp->established = true;
		e->ops->qp_event(e, qp, IBV_EVENT_COMM_EST);
	}
	if (t.ecn == ECN_CE && qp->p.type != IBV_QPT_UD)
		qp->counters.np_ecn_marked_roce_packets += t.count;
	if ((t.ecn == ECN_CE || t.crowded) && qp->p.type != IBV_QPT_UD)
		congestion_marked(qp, &t);
	switch (t.kind) {
	case KIND_CNP:
		congestion_notified(qp);
		break;
	case KIND_ACK:
	case KIND_ATOMIC_ACK:
	case KIND_READ_RESPONSE:
		if (qp_is_reliable(qp) && !qp_is_xrc_target(qp) && qp_sends(qp))
			completer_rx(qp, &t);
		else
			qp->counters.rx_dropped += t.count;
		break;
	default:
		if (qp->p.type == IBV_QPT_UD)
			ud_rx(qp, &t);
		else if (qp->p.type == IBV_QPT_XRC_SEND)
			qp->counters.rx_dropped += t.count; /* it only asks */
		else if (!e->faults || !e->ops->fault_rx(e, qp, &t))
			responder_rx(qp, &t);
		break;
	}
}

void engine_deliver(struct engine *e, struct qp *qp, const struct train *held)
{
	struct train t = *held;

	if (qp_receives(qp))
		responder_rx(qp, &t);
	else
		qp->counters.rx_dropped += t.count;
}

void engine_fail_device(struct engine *e, const struct device *dev)
{
	const struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	for (uint32_t slot = 0; slot < e->slot_end; slot++)
		if (e->qps[slot] && e->qps[slot]->p.dev == dev)
			qp_modify(e->qps[slot], &attr, IBV_QP_STATE);
}

/* Lets each QP of the run queue do a share of its work; who has more comes again. */
static void run_queues(struct engine *e)
{
	struct cds_list_head batch;

	CDS_INIT_LIST_HEAD(&batch);
	cds_list_splice(&e->run, &batch);
	CDS_INIT_LIST_HEAD(&e->run);
	while (!cds_list_empty(&batch)) {
		struct qp *qp = cds_list_first_entry(&batch, struct qp, run_node);
		bool more;

		cds_list_del(&qp->run_node);
		qp->queued = false;
		more = responder_run(qp);
		more |= qp->p.type == IBV_QPT_UD ? ud_run(qp) : requester_run(qp);
		if (more)
			engine_schedule(e, qp);
	}
}

/*
 * Sends the ACK or NAK of each QP that owes one. A lone ACK costs a system call, and the peer
 * another; in a dialogue the client answers soon, and the ACK travels in the same datagram.
 */
static void send_acks(struct engine *e)
{
	struct cds_list_head batch;

	CDS_INIT_LIST_HEAD(&batch);
	cds_list_splice(&e->acks, &batch);
	CDS_INIT_LIST_HEAD(&e->acks);
	while (!cds_list_empty(&batch)) {
		struct qp *qp = cds_list_first_entry(&batch, struct qp, ack_node);

		cds_list_del(&qp->ack_node);
		if (e->hold && !e->sent && responder_may_hold(qp)) {
			cds_list_add_tail(&qp->ack_node, &e->held);
			continue;
		}
		qp->resp.ack_linked = false;
		responder_acknowledge(qp);
	}
}

void engine_release(struct engine *e)
{
	if (!engine_holds(e))
		return;
	cds_list_splice(&e->held, &e->acks);
	CDS_INIT_LIST_HEAD(&e->held);
	e->hold = false;
	send_acks(e);
}

void engine_settle(struct engine *e, struct qp *qp, uint32_t index)
{
	if (!e->ops->grace_begin) {
		requester_local_done(qp, index, index);
		return;
	}
	qp->settle_newest = index;
	if (qp->settle_linked)
		return;
	qp->settle_linked = true;
	qp->settle_first = qp->settle_last = index;
	cds_list_add_tail(&qp->settle_node, &e->unsettled);
}

/* The others have gone on since a QP was put on engine.settling. */
static void settled(struct engine *e, struct qp *qp)
{
	uint32_t first = qp->settle_first, last = qp->settle_last;

	cds_list_del(&qp->settle_node);
	qp->settle_linked = false;
	if (qp->settle_newest != last) {
		uint32_t newest = qp->settle_newest;

		engine_settle(e, qp, last + 1);
		qp->settle_newest = newest;
	}
	requester_local_done(qp, first, last);
}

/* Completes what waited for other workers. @return whether something goes on waiting */
static bool run_settling(struct engine *e)
{
	if (!cds_list_empty(&e->settling)) {
		if (!e->ops->grace_over(e))
			return true;
		while (!cds_list_empty(&e->settling))
			settled(e, cds_list_first_entry(&e->settling, struct qp, settle_node));
	}
	if (cds_list_empty(&e->unsettled))
		return false;
	e->ops->grace_begin(e);
	cds_list_splice(&e->unsettled, &e->settling);
	CDS_INIT_LIST_HEAD(&e->unsettled);
	for (struct cds_list_head *n = e->settling.next; n != &e->settling; n = n->next) {
		struct qp *qp = caa_container_of(n, struct qp, settle_node);

		qp->settle_last = qp->settle_newest;
	}
	return true;
}

bool engine_run(struct engine *e)
{
	bool waits;

	e->sent = false;
	cds_list_splice(&e->held, &e->acks);
	CDS_INIT_LIST_HEAD(&e->held);
	timer_run(&e->timers, e->now);
	for (int pass = 0; pass < ENGINE_PASSES; pass++) {
		run_queues(e);
		dma_flush(e->dma);
		send_acks(e);
		dma_flush(e->dma);
		if (cds_list_empty(&e->run) && cds_list_empty(&e->acks))
			break;
	}
	waits = run_settling(e);
	engine_notify_cqs(e);
	return waits || !cds_list_empty(&e->run) || !cds_list_empty(&e->acks);
}
