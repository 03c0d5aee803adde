/* SPDX-License-Identifier: BSD-2-Clause */
/* Faults of work requests, answers and completions. */
#include "verbs_fault.h"

#include <stdlib.h>

#include "../transport/qp.h"

/* Bytes of trains held back; one beyond is lost, and sent again in time. */
#define HOLD_LIMIT (64u << 20)

/* The beginning of a payload that is placed late: a cache line, or half of less than two. */
#define WEAK_BYTES 64u

/* The time a CQE stays hidden from a program that does not arm the CQ. */
#define ARM_MS 100u

struct held_cqe {
	struct held_cqe *next;
	struct cq *cq;
	uint64_t due; /* ns */
	bool solicited;
	struct vernic_cqe cqe;
};

struct held_train {
	struct held_train *next;
	uint64_t due; /* ns; 0: it waits for those before it, and nothing of it is placed */
	bool gathered;
	bool lost; /* its payload could not be read */
	struct train train;
	struct path path;
	uint8_t data[];
};

/* What is held back of one QP, oldest first. */
struct qp_hold {
	struct cds_list_head node;
	struct qp *qp;
	struct {
		struct held_cqe *first, **end;
	} cqes[2]; /* of the send CQ, and of the receive CQ where that is another one */
	struct held_train *train, **train_end;
};

/* Has the engine ask while that can make a difference. */
static void engage(struct verbs_faults *v)
{
	bool any = fault_set_actions(v->rules) & FAULT_VERBS_ACTIONS;

	v->engine->faults = any || !cds_list_empty(&v->holds) ? v : NULL;
}

/* Has the timer fire at due, or earlier. */
static void wake_by(struct verbs_faults *v, uint64_t due)
{
	if (!timer_armed(&v->timer) || due < v->timer.deadline)
		timer_arm(&v->engine->timers, &v->timer, due);
}

/* @return what is held of a QP, made if there is nothing yet; NULL without memory */
static struct qp_hold *hold_of(struct verbs_faults *v, struct qp *qp)
{
	struct qp_hold *h = qp->hold;

	if (h != NULL)
		return h;
	h = calloc(1, sizeof(*h));
	if (h == NULL)
		return NULL;
	h->qp = qp;
	h->cqes[0].end = &h->cqes[0].first;
	h->cqes[1].end = &h->cqes[1].first;
	h->train_end = &h->train;
	cds_list_add_tail(&h->node, &v->holds);
	qp->hold = h;
	return h;
}

/* Nothing is held of the QP any more. */
static void hold_free(struct qp_hold *h)
{
	cds_list_del(&h->node);
	h->qp->hold = NULL;
	free(h);
}

/* ---- packets -------------------------------------------------------------------------------- */

/* @return the BTH opcode of the i-th packet of a train */
static int packet_opcode(const struct train *t, uint32_t i)
{
	unsigned int flags = t->first && i == 0 ? OPF_FIRST : 0;

	if (t->last && i + 1 == t->count)
		flags |= OPF_LAST | (t->imm ? OPF_IMM : 0) | (t->inv ? OPF_INV : 0);
	return wire_opcode_for(t->service, t->kind, flags);
}

/*
 * Asks about the packets of a train that arrived, one by one.
 * @packet: out: the one that is struck
 * @return the rule that strikes, or NULL
 */
static struct fault_rule *match_packets(struct verbs_faults *v, struct qp *qp, uint32_t actions,
					const struct train *t, uint32_t *packet)
{
	struct fault_subject s = {
		.point = FAULT_RX, .dev = qp->p.dev, .qpn = qp->qpn, .kind = t->kind};

	if (!(fault_set_actions(v->rules) & actions))
		return NULL;
	for (uint32_t i = 0; i < t->count; i++) {
		struct fault_rule *rule;

		s.opcode = packet_opcode(t, i);
		s.psn = (t->psn + i) & PSN_MASK;
		rule = fault_match(v->rules, actions, &s);
		if (rule != NULL) {
			*packet = i;
			return rule;
		}
	}
	return NULL;
}

uint32_t verbs_fault_request(struct engine *e, struct qp *qp, const struct train *t,
			     uint8_t *syndrome)
{
	const struct fault_rule *rule;
	uint32_t packet;

	rule = match_packets(e->faults, qp, FAULT_BIT(FAULT_RNR) | FAULT_BIT(FAULT_NAK), t,
			     &packet);
	if (rule == NULL)
		return t->count;
	*syndrome = rule->action == FAULT_RNR ? AETH_RNR_NAK : AETH_NAK | (uint8_t)rule->value;
	return packet;
}

/* ---- trains held back ----------------------------------------------------------------------- */

/* The payload has been gathered, or could not be. */
static void train_gathered(struct dma *dma, struct dma_op *op, int error)
{
	struct held_train *held = op->ctx;

	held->gathered = true;
	held->lost = error != 0;
}

/*
 * Puts a train behind those held of its QP. Beyond the limit, and without memory, it is lost.
 * @due: see struct held_train
 */
static void hold_train(struct verbs_faults *v, struct qp_hold *h, const struct train *t,
		       uint64_t due)
{
	struct held_train *held = NULL;
	struct dma_op *op;

	if (v->bytes + t->payload.len <= HOLD_LIMIT)
		held = malloc(sizeof(*held) + t->payload.len);
	if (held == NULL)
		return;
	*held = (struct held_train){.due = due, .train = *t, .path = *t->path};
	held->train.path = &held->path;
	v->bytes += t->payload.len;
	op = dma_submit(v->engine->dma);
	op->src = t->payload;
	op->dst = dma_local(v->engine->dma, held->data, t->payload.len);
	op->done = train_gathered;
	op->ctx = held;
	*h->train_end = held;
	h->train_end = &held->next;
	if (due != 0)
		wake_by(v, due);
}

/* Takes the oldest train of a QP. */
static struct held_train *take_train(struct verbs_faults *v, struct qp_hold *h)
{
	struct held_train *held = h->train;

	h->train = held->next;
	if (h->train == NULL)
		h->train_end = &h->train;
	v->bytes -= held->train.payload.len;
	return held;
}

/* The responder has placed the train's payload. */
static void train_placed(struct dma *dma, struct dma_op *op, int error)
{
	free(op->ctx);
}

/* Hands the oldest train of a QP to the responder. */
static void deliver_train(struct verbs_faults *v, struct qp_hold *h)
{
	struct held_train *held = take_train(v, h);
	struct dma_op *op;

	if (held->lost) {
		free(held);
		return;
	}
	held->train.payload = dma_local(v->engine->dma, held->data, held->train.payload.len);
	engine_deliver(v->engine, h->qp, &held->train);
	op = dma_submit(v->engine->dma);
	op->done = train_placed;
	op->ctx = held;
}

/*
 * Asks whether a train that is next for its responder is to be placed weakly, and places its end.
 * @return ns until its beginning follows; 0: it is not struck
 */
static uint64_t begin_weak(struct verbs_faults *v, struct qp *qp, const struct train *t)
{
	const struct fault_rule *rule;
	uint32_t packet, late;

	if ((t->kind != KIND_SEND && t->kind != KIND_WRITE) || t->payload.len < 2 ||
	    t->psn != qp->resp.epsn)
		return 0;
	rule = match_packets(v, qp, FAULT_BIT(FAULT_WEAK), t, &packet);
	if (rule == NULL || rule->value == 0)
		return 0;
	late = t->payload.len < 2 * WEAK_BYTES ? t->payload.len / 2 : WEAK_BYTES;
	return responder_place_early(qp, t, late) ? rule->value : 0;
}

bool verbs_fault_rx(struct engine *e, struct qp *qp, const struct train *t)
{
	struct verbs_faults *v = e->faults;
	struct qp_hold *h = qp->hold;
	uint64_t late;

	if (h != NULL && h->train != NULL) {
		hold_train(v, h, t, 0);
		return true;
	}
	late = begin_weak(v, qp, t);
	if (late != 0)
		h = hold_of(v, qp);
	if (late == 0 || h == NULL)
		return false;
	hold_train(v, h, t, e->now + late);
	return true;
}

/*
 * Delivers the trains of a QP whose turn it is.
 * @by: those due by then go
 * @return when the next one is due, UINT64_MAX: none
 */
static uint64_t run_trains(struct verbs_faults *v, struct qp_hold *h, uint64_t now, uint64_t by)
{
	while (h->train != NULL) {
		struct held_train *held = h->train;

		/* It came this round: the next one. */
		if (!held->gathered)
			return now + 1;
		if (held->due == 0 && !held->lost && !v->hasty) {
			uint64_t late;

			held->train.payload =
				dma_local(v->engine->dma, held->data, held->train.payload.len);
			late = begin_weak(v, h->qp, &held->train);
			if (late != 0)
				held->due = now + late;
		}
		if (held->due > by)
			return held->due;
		deliver_train(v, h);
	}
	return UINT64_MAX;
}

/* ---- work requests -------------------------------------------------------------------------- */

/* @return the status a WQE fails with, or IBV_WC_SUCCESS */
static enum ibv_wc_status match_status(struct engine *e, const struct qp *qp,
				       enum fault_point point, uint8_t kind)
{
	const struct fault_subject s = {
		.point = point, .dev = qp->p.dev, .qpn = qp->qpn, .opcode = -1, .kind = kind};
	const struct fault_rule *rule;

	rule = fault_match(e->faults->rules, FAULT_BIT(FAULT_STATUS), &s);
	return rule != NULL ? (enum ibv_wc_status)rule->value : IBV_WC_SUCCESS;
}

enum ibv_wc_status verbs_fault_send(struct engine *e, struct qp *qp, uint8_t kind)
{
	return match_status(e, qp, FAULT_SEND, kind);
}

enum ibv_wc_status verbs_fault_recv(struct engine *e, struct qp *qp)
{
	return match_status(e, qp, FAULT_RECV, KIND_SEND);
}

/* ---- completions ---------------------------------------------------------------------------- */

/* @return whether a client waits, or may wait, for the CQ's next event */
static bool cq_armed(const struct cq *cq)
{
	return atomic_load_explicit(&cq->ring->arm, memory_order_relaxed) != 0;
}

/* @return the kind of the WQE a CQE is of; an error hides it */
static uint8_t cqe_kind(const struct vernic_cqe *cqe)
{
	static const uint8_t kinds[] = {
		[IBV_WC_SEND] = KIND_SEND,
		[IBV_WC_RDMA_WRITE] = KIND_WRITE,
		[IBV_WC_RDMA_READ] = KIND_READ_REQUEST,
		[IBV_WC_COMP_SWAP] = KIND_COMPARE_SWAP,
		[IBV_WC_FETCH_ADD] = KIND_FETCH_ADD,
		[VERNIC_WC_FLUSH] = KIND_FLUSH,
		[IBV_WC_ATOMIC_WRITE] = KIND_ATOMIC_WRITE,
	};

	if (cqe->queue != VERNIC_CQE_SQ || cqe->opcode >= sizeof(kinds))
		return KIND_SEND;
	return kinds[cqe->opcode] != KIND_NONE ? kinds[cqe->opcode] : KIND_SEND;
}

/* Takes the oldest CQE of a queue. */
static struct held_cqe *take_cqe(struct qp_hold *h, unsigned int side)
{
	struct held_cqe *held = h->cqes[side].first;

	h->cqes[side].first = held->next;
	if (held->next == NULL)
		h->cqes[side].end = &h->cqes[side].first;
	return held;
}

/* Publishes the CQEs of a QP that are due by then. @return when the next one is, UINT64_MAX: none
 */
static uint64_t run_cqes(struct qp_hold *h, unsigned int side, uint64_t by)
{
	while (h->cqes[side].first != NULL) {
		struct held_cqe *held;

		if (h->cqes[side].first->due > by)
			return h->cqes[side].first->due;
		held = take_cqe(h, side);
		if (cq_armed(held->cq))
			held->cqe.hidden = 0;
		qp_publish(h->qp, held->cq, &held->cqe, held->solicited);
		free(held);
	}
	return UINT64_MAX;
}

/*
 * Puts a CQE behind those held of its QP and CQ.
 * @side: the queue
 * @due: ns; no earlier than those before it
 * @return false without memory
 */
static bool hold_cqe(struct verbs_faults *v, struct qp *qp, unsigned int side, struct cq *cq,
		     const struct vernic_cqe *cqe, bool solicited, uint64_t due)
{
	struct held_cqe *held = malloc(sizeof(*held));
	struct qp_hold *h = hold_of(v, qp);

	if (held == NULL || h == NULL) {
		free(held);
		return false;
	}
	*held = (struct held_cqe){.cq = cq, .due = due, .solicited = solicited};
	memcpy(&held->cqe, cqe, sizeof(held->cqe));
	if (h->cqes[side].first == NULL)
		wake_by(v, due);
	*h->cqes[side].end = held;
	h->cqes[side].end = &held->next;
	return true;
}

/* @return when the newest CQE held of a queue is due, 0: there is none */
static uint64_t newest_due(const struct qp_hold *h, unsigned int side)
{
	const struct held_cqe *newest;

	if (h == NULL || h->cqes[side].first == NULL)
		return 0;
	newest = (const struct held_cqe *)((const char *)h->cqes[side].end -
					   offsetof(struct held_cqe, next));
	return newest->due;
}

/* Of a completion with an error only wr_id, status, qp_num and vendor_err mean something. */
static void spoil_cqe(struct vernic_cqe *cqe, struct vernic_chance *chance)
{
	uint64_t bits = vernic_chance_random(chance);

	cqe->opcode = (uint8_t)bits;
	cqe->wc_flags = (uint8_t)(bits >> 8);
	cqe->sl = (uint8_t)(bits >> 16) & 15;
	cqe->pkey_index = (uint16_t)(bits >> 24);
	cqe->byte_len = (uint32_t)(bits >> 32);
	bits = vernic_chance_random(chance);
	cqe->imm = (uint32_t)bits;
	cqe->src_qp = (uint32_t)(bits >> 32);
}

bool verbs_fault_cqe(struct engine *e, struct qp *qp, struct cq *cq, struct vernic_cqe *cqe,
		     bool solicited)
{
	struct verbs_faults *v = e->faults;
	unsigned int side = cq == qp->p.send_cq ? 0 : 1;
	uint64_t after = newest_due(qp->hold, side);
	uint64_t due = 0;
	uint32_t actions = FAULT_BIT(FAULT_CQE_DELAY);
	const struct fault_subject s = {
		.point = cqe->queue == VERNIC_CQE_SQ ? FAULT_CQE_SEND : FAULT_CQE_RECV,
		.dev = qp->p.dev,
		.qpn = qp->qpn,
		.opcode = -1,
		.kind = cqe_kind(cqe),
	};
	struct fault_rule *rule;

	if (cqe->status != IBV_WC_SUCCESS) {
		rule = fault_match(v->rules, FAULT_BIT(FAULT_CQE_RUBBISH), &s);
		if (rule != NULL)
			spoil_cqe(cqe, &rule->chance);
	}
	/* One that the client is about to be woken for cannot be there without an event. */
	if (cq->channel != NULL && !cq_armed(cq))
		actions |= FAULT_BIT(FAULT_CQE_ARM);
	rule = fault_match(v->rules, actions, &s);
	if (rule != NULL && rule->action == FAULT_CQE_ARM)
		cqe->hidden = ARM_MS;
	else if (rule != NULL)
		due = e->now + rule->value +
		      (rule->jitter ? vernic_chance_random(&rule->chance) % (rule->jitter + 1) : 0);
	if (due < after)
		due = after;
	if (due == 0)
		return false;
	if (hold_cqe(v, qp, side, cq, cqe, solicited, due))
		return true;
	/* Without memory: now, and those before it too. */
	if (qp->hold != NULL)
		run_cqes(qp->hold, side, UINT64_MAX);
	return false;
}

/* ---- letting go ----------------------------------------------------------------------------- */

/* Something is due. */
static void fire(struct timer *t, uint64_t now)
{
	struct verbs_faults *v =
		(struct verbs_faults *)((char *)t - offsetof(struct verbs_faults, timer));
	uint64_t by = v->hasty ? UINT64_MAX : now, first = UINT64_MAX;
	struct qp_hold *h, *next;

	cds_list_for_each_entry_safe (h, next, &v->holds, node) {
		uint64_t due[] = {run_trains(v, h, now, by), run_cqes(h, 0, by),
				  run_cqes(h, 1, by)};

		for (unsigned int i = 0; i < 3; i++)
			first = due[i] < first ? due[i] : first;
		if (h->train == NULL && h->cqes[0].first == NULL && h->cqes[1].first == NULL)
			hold_free(h);
	}
	v->hasty = false;
	if (first != UINT64_MAX)
		wake_by(v, first);
	engage(v);
}

void verbs_fault_release(struct engine *e, struct qp *qp)
{
	struct verbs_faults *v = e->faults;
	struct qp_hold *h = qp->hold;

	if (h == NULL)
		return;
	while (h->train != NULL)
		free(take_train(v, h));
	for (unsigned int side = 0; side < 2; side++) {
		while (h->cqes[side].first != NULL) {
			struct held_cqe *held = take_cqe(h, side);

			/* An overrun says nothing any more to a QP that is going. */
			cq_push(e, held->cq, &held->cqe, held->solicited);
			free(held);
		}
	}
	hold_free(h);
	engage(v);
}

/* ---- life ----------------------------------------------------------------------------------- */

void verbs_faults_init(struct verbs_faults *v, struct engine *e, struct fault_set *rules)
{
	*v = (struct verbs_faults){.engine = e, .rules = rules, .timer = {.fire = fire}};
	CDS_INIT_LIST_HEAD(&v->holds);
}

void verbs_faults_fini(struct verbs_faults *v)
{
	timer_disarm(&v->engine->timers, &v->timer);
	v->engine->faults = NULL;
}

void verbs_faults_changed(struct verbs_faults *v, bool removed)
{
	if (removed && !cds_list_empty(&v->holds)) {
		v->hasty = true;
		wake_by(v, 0);
	}
	engage(v);
}
