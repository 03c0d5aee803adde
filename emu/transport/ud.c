/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Unreliable datagrams, both sides: one packet a message, addressed by each WQE, 40 bytes of GRH in
 * front of what is received.
 */
#include "internal.h"
#include "wire/bytes.h"

/* Resolves the WQE's address vector into qp->path; a burst to one peer resolves it once. */
static bool ud_path(struct qp *qp, const struct vernic_send_wqe *wqe)
{
	const struct device *dev = qp->p.dev;
	const struct gid_entry *own = device_gid(dev, wqe->ud.sgid_index);
	struct path *path = &qp->path;

	if (!own)
		return false;
	if (path->sgid_index != wqe->ud.sgid_index || memcmp(path->dgid, wqe->ud.dgid, 16) ||
	    path->route == ROUTE_NONE) {
		*path = (struct path){.sgid_index = wqe->ud.sgid_index};
		memcpy(path->dgid, wqe->ud.dgid, 16);
		memcpy(path->sgid, own->raw, 16);
		qp->engine->ops->route(qp->engine, dev, path);
	}
	path->flow_label = wqe->ud.flow_label & 0xfffff;
	path->hop_limit = wqe->ud.hop_limit;
	path->traffic_class = wqe->ud.traffic_class;
	return true;
}

/* Sends the WQE just begun. @return a local error, or IBV_WC_SUCCESS */
static enum ibv_wc_status ud_send(struct qp *qp, const struct vernic_send_wqe *wqe,
				  const struct send_entry *entry)
{
	uint32_t index = qp->req.next;
	struct train t;

	if (wqe->pd != qp->p.pd->handle || !ud_path(qp, wqe))
		return IBV_WC_LOC_QP_OP_ERR;
	qp_fill_train(qp, &t, KIND_SEND);
	if (requester_payload(qp, index, entry, 0, entry->length, &t.payload))
		return IBV_WC_LOC_PROT_ERR;
	t.dst_qpn = wqe->ud.remote_qpn & QPN_MASK;
	/* The high bit asks for the QP's own Q_Key (IBTA 10.2.5). */
	t.qkey = wqe->ud.remote_qkey & 0x80000000u ? qp->attr.qkey : wqe->ud.remote_qkey;
	t.first = t.last = true;
	t.psn = entry->first_psn;
	t.mtu = entry->length;
	t.imm = entry->opcode == IBV_WR_SEND_WITH_IMM;
	t.imm_data = entry->imm;
	t.solicited = (entry->flags & IBV_SEND_SOLICITED) != 0;
	engine_tx(qp, &t);
	return IBV_WC_SUCCESS;
}

bool ud_run(struct qp *qp)
{
	struct requester *r = &qp->req;

	for (uint32_t n = 0; n < RUN_TRAINS; n++) {
		struct vernic_send_wqe wqe;
		struct send_entry *entry;

		if (qp->state != IBV_QPS_RTS)
			break;
		if (r->next != r->begun || !requester_posted(qp))
			return false;
		/* Asked before the WQE is begun: a UD WQE is sent at once or not yet. */
		if (qp->path.route != ROUTE_NONE &&
		    !qp->engine->ops->tx_ready(qp->engine, &qp->path))
			return true;
		if (qp->pacer && pacer_room(qp) == 0)
			return false;
		entry = requester_begin(qp, &wqe);
		if (entry->status == IBV_WC_SUCCESS)
			entry->status = ud_send(qp, &wqe, entry);
		if (entry->status != IBV_WC_SUCCESS) {
			/* Stops here (next != begun) until everything before it has completed. */
			entry->packets = 0;
			r->psn = entry->first_psn;
			requester_advance(qp);
			return false;
		}
		requester_complete_later(qp, r->next++);
		r->send_psn = r->max_psn = r->psn;
	}
	requester_check_drained(qp);
	return qp->state == IBV_QPS_RTS;
}

/* @return the checksum of an IPv4 header without options whose checksum field is 0 */
static uint16_t ipv4_checksum(const uint8_t *header)
{
	uint32_t sum = 0;

	for (int i = 0; i < 20; i += 2)
		sum += get16(header + i);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* The 40 bytes in front of a UD payload: a GRH, or 20 unused bytes and an IPv4 header. */
static void fill_grh(uint8_t grh[VERNIC_GRH_LEN], const struct train *t)
{
	const struct path *path = t->path;
	uint32_t payload = BTH_LEN + DETH_LEN + (t->imm ? IMMDT_LEN : 0) + t->payload.len +
			   (-t->payload.len & 3) + ICRC_LEN;

	memset(grh, 0, VERNIC_GRH_LEN);
	if (gid_is_ipv4(path->dgid)) {
		uint8_t *ip = grh + 20;
		ip[0] = 0x45;
		ip[1] = path->traffic_class;
		put16(ip + 2, payload + 8 + 20);
		ip[6] = 0x40; /* don't fragment */
		ip[8] = path->hop_limit;
		ip[9] = 17; /* UDP */
		memcpy(ip + 12, path->sgid + 12, 4);
		memcpy(ip + 16, path->dgid + 12, 4);
		put16(ip + 10, ipv4_checksum(ip));
		return;
	}
	put32(grh, 6u << 28 | (uint32_t)path->traffic_class << 20 | (path->flow_label & 0xfffff));
	put16(grh + 4, payload + 8);
	grh[6] = 17; /* UDP, as it was on the wire */
	grh[7] = path->hop_limit;
	memcpy(grh + 8, path->sgid, 16);
	memcpy(grh + 24, path->dgid, 16);
}

/*
 * What a completion says in the place of a service level, which RoCE does not carry: which L3 header
 * the datagram had, the flag of IBTA A17.4.5.1. As ConnectX adapters do it, which UCX relies on: 8
 * for RoCEv2, and 1 for IPv6 or 2 for IPv4.
 */
static uint8_t header_type(const struct path *path)
{
	return 8 | (gid_is_ipv4(path->dgid) ? 2 : 1);
}

/* dma_op.done of a datagram. arg[0]: solicited */
static void received(struct dma *dma, struct dma_op *op, int error)
{
	struct qp *qp = op->qp;

	if (op->epoch != qp->epoch)
		return;
	if (error)
		op->cqe.status = IBV_WC_LOC_PROT_ERR;
	qp_complete(qp, qp->p.recv_cq, &op->cqe, op->arg[0] || error);
	if (error)
		qp_error(qp, -1);
}

/* Nothing is seen of what is too long, unwanted or wrongly keyed; the QP stays up (IBTA 9.8.3). */
void ud_rx(struct qp *qp, struct train *t)
{
	uint32_t len = VERNIC_GRH_LEN + t->payload.len;
	struct dma *dma = qp->engine->dma;
	struct dma_list dst;
	struct dma_op *op;
	uint8_t *grh;
	int err;

	if (t->kind != KIND_SEND || !t->first || !t->last ||
	    (t->qkey != qp->attr.qkey && !MUTATION(ud_qkey_ignored))) {
		qp->counters.rx_dropped++;
		return;
	}
	if (!responder_take_wqe(qp)) {
		qp->counters.rx_dropped++;
		qp->counters.out_of_buffer++;
		return;
	}
	err = responder_resolve(qp, 0, len, &dst);
	if (err == -EMSGSIZE) {
		/* The receive stays for the next message. */
		qp->counters.rx_dropped++;
		qp->counters.resp_local_length_error++;
		return;
	}
	op = dma_submit(dma);
	op->done = received;
	op->qp = qp;
	op->epoch = qp->epoch;
	op->arg[0] = t->solicited;
	responder_fill_cqe(qp, &op->cqe);
	qp->resp.have_wqe = false;
	if (err)
		op->cqe.status = IBV_WC_LOC_PROT_ERR;
	else if (qp->engine->faults)
		op->cqe.status = qp->engine->ops->fault_recv(qp->engine, qp);
	if (op->cqe.status != IBV_WC_SUCCESS) {
		qp_error(qp, -1);
		return;
	}
	op->cqe.opcode = IBV_WC_RECV;
	op->cqe.byte_len = len;
	op->cqe.wc_flags = IBV_WC_GRH | (t->imm ? IBV_WC_WITH_IMM : 0);
	op->cqe.imm = t->imm ? t->imm_data : 0;
	op->cqe.src_qp = t->src_qpn;
	op->cqe.sl = header_type(t->path);
	if (len <= cq_data_room(qp->p.recv_cq) && list_is_local(&t->payload) &&
	    list_is_placeable(&dst)) {
		fill_grh(op->cqe.data, t);
		list_copy(op->cqe.data + VERNIC_GRH_LEN, &t->payload);
		op->cqe.data_len = (uint8_t)len;
		return;
	}
	grh = dma_scratch(dma, VERNIC_GRH_LEN);
	fill_grh(grh, t);
	op->src.seg = dma_segments(dma, t->payload.count + 1);
	op->src.seg[0] = (struct dma_segment){.addr = (uintptr_t)grh, .len = VERNIC_GRH_LEN};
	if (t->payload.count)
		memcpy(op->src.seg + 1, t->payload.seg, t->payload.count * sizeof(*t->payload.seg));
	op->src.count = t->payload.count + 1;
	op->src.len = len;
	op->dst = dst;
}
