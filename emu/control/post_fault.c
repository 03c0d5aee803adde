/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Posts that fail. Whether one does, the client's library decides: here its queues are told by
 * which rules.
 */
#include <string.h>

#include "control.h"

/* @return 1 << enum ibv_wr_opcode of the work requests a rule is about */
static uint32_t rule_opcodes(const struct fault_rule *rule)
{
	static const struct {
		uint8_t kind;
		uint8_t opcode;
	} ops[] = {
		{KIND_SEND, IBV_WR_SEND},
		{KIND_SEND, IBV_WR_SEND_WITH_IMM},
		{KIND_SEND, IBV_WR_SEND_WITH_INV},
		{KIND_WRITE, IBV_WR_RDMA_WRITE},
		{KIND_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM},
		{KIND_READ_REQUEST, IBV_WR_RDMA_READ},
		{KIND_COMPARE_SWAP, IBV_WR_ATOMIC_CMP_AND_SWP},
		{KIND_FETCH_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD},
		{KIND_FLUSH, VERNIC_WR_FLUSH},
		{KIND_ATOMIC_WRITE, IBV_WR_ATOMIC_WRITE},
	};
	uint32_t opcodes = 0;

	if (rule->any_opcode)
		return UINT32_MAX;
	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		if (rule->kinds & 1u << ops[i].kind)
			opcodes |= 1u << ops[i].opcode;
	}
	return opcodes;
}

/* Takes what a queue's client has counted. */
static void collect(struct server *s, struct vernic_post_faults *from)
{
	uint32_t count = from->count;

	for (uint32_t i = 0; i < count && i < VERNIC_POST_FAULTS; i++) {
		struct vernic_post_fault *f = &from->fault[i];
		uint64_t matched = atomic_exchange(&f->matched, 0);
		uint64_t struck = atomic_exchange(&f->struck, 0);

		for (uint32_t k = 0; k < s->fault_count; k++) {
			if (s->fault[k].rule.id != f->id)
				continue;
			s->fault[k].rule.matched += matched;
			s->fault[k].rule.struck += struck;
		}
	}
}

/*
 * Writes the rules about a queue into its ring; those beyond VERNIC_POST_FAULTS have no effect.
 * @qpn: 0 of a SRQ, which rules about a QP do not concern
 * @point: FAULT_SEND or FAULT_RECV
 */
static void write_rules(struct vernic_post_faults *to, const struct client *c, uint32_t qpn,
			enum fault_point point)
{
	struct server *s = c->server;
	uint32_t count = 0;

	collect(s, to);
	vernic_store_release(&to->generation, s->post_generation | 1);
	vernic_full_barrier();
	for (uint32_t i = 0; i < s->fault_count && count < VERNIC_POST_FAULTS; i++) {
		const struct fault_rule *rule = &s->fault[i].rule;
		struct vernic_post_fault *f = &to->fault[count];

		if (rule->action != FAULT_POST || !(rule->points & point) ||
		    (rule->qpn != 0 && rule->qpn != qpn) ||
		    (rule->device[0] != '\0' && strcmp(rule->device, c->device->dev.name) != 0))
			continue;
		*f = (struct vernic_post_fault){
			.id = rule->id,
			.error = (uint32_t)rule->value,
			.opcodes = point == FAULT_SEND ? rule_opcodes(rule) : UINT32_MAX,
			.chance = rule->chance,
		};
		vernic_chance_seed(&f->chance, rule->seed != 0 ? rule->seed : 1 + rule->id);
		count++;
	}
	to->count = count;
	vernic_store_release(&to->generation, count ? s->post_generation : 0);
}

void qp_write_post_faults(struct client *c, struct host_qp *qp)
{
	struct vernic_qp_ring *ring = qp->memory.base;

	write_rules(&ring->send_faults, c, qp->qpn, FAULT_SEND);
	write_rules(&ring->recv_faults, c, qp->qpn, FAULT_RECV);
}

void srq_write_post_faults(struct client *c, struct host_srq *srq)
{
	write_rules(&srq->srq.ring->recv_faults, c, 0, FAULT_RECV);
}

void qp_collect_post_faults(struct client *c, struct host_qp *qp)
{
	struct vernic_qp_ring *ring = qp->memory.base;

	collect(c->server, &ring->send_faults);
	collect(c->server, &ring->recv_faults);
}

void srq_collect_post_faults(struct client *c, struct host_srq *srq)
{
	collect(c->server, &srq->srq.ring->recv_faults);
}

/* Does something for all queues there are. */
static void each_queue(struct server *s, void (*qp_fn)(struct client *, struct host_qp *),
		       void (*srq_fn)(struct client *, struct host_srq *))
{
	struct client *c;

	cds_list_for_each_entry (c, &s->clients, node) {
		for (uint32_t h = 0; h < c->qps.used; h++) {
			struct host_qp *qp = handle_get(&c->qps, h);

			if (qp != NULL && qp->target == NULL) /* nobody posts on a XRC target */
				qp_fn(c, qp);
		}
		for (uint32_t h = 0; h < c->srqs.used; h++) {
			struct host_srq *srq = handle_get(&c->srqs, h);

			if (srq != NULL)
				srq_fn(c, srq);
		}
	}
}

void server_write_post_faults(struct server *s)
{
	/* Even, and never 0. */
	s->post_generation = s->post_generation + 2 != 0 ? s->post_generation + 2 : 2;
	each_queue(s, qp_write_post_faults, srq_write_post_faults);
}

void server_collect_post_faults(struct server *s)
{
	each_queue(s, qp_collect_post_faults, srq_collect_post_faults);
}
