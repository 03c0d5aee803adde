/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where trains go: to the host's other worker as they are, or as packets over a link that does
 * harm.
 */
#include "port/packet.h"
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PACKET (WIRE_MAX_HEADERS + WIRE_MAX_MTU + ICRC_LEN)

struct packet {
	struct timer arrive; /* first: the timer is the packet */
	struct packet *next; /* free list, rx queue */
	struct packet *all;
	struct host *from, *to;
	struct qp *qp; /* that sent it; valid while it is being sent */
	uint32_t len;  /* bytes, from the BTH to the ICRC */
	uint16_t checksum;
	uint8_t data[MAX_PACKET];
};

/* A train for another worker of the same host, its payload behind it. */
struct parcel {
	struct timer arrive;
	struct cds_list_head all;
	struct parcel *next;
	struct worker *to;
	struct train train;
	struct path path;
	uint8_t data[];
};

/* Kept from seed to seed. */
static struct packet *all_packets, *free_packets;
static CDS_LIST_HEAD(parcels); /* on their way, or being handed in */

static struct packet *packet_new(void)
{
	struct packet *p = free_packets;

	if (p) {
		free_packets = p->next;
	} else {
		p = must(malloc(sizeof(*p)));
		p->all = all_packets;
		all_packets = p;
	}
	memset(p, 0, offsetof(struct packet, all));
	return p;
}

static void packet_free(struct packet *p)
{
	p->next = free_packets;
	free_packets = p;
}

static void parcel_free(struct parcel *p)
{
	cds_list_del(&p->all);
	free(p);
}

void channel_fini(void)
{
	free_packets = NULL;
	for (struct packet *p = all_packets; p; p = p->all)
		packet_free(p);
	while (!cds_list_empty(&parcels))
		parcel_free(cds_list_first_entry(&parcels, struct parcel, all));
}

void channel_free_all(void)
{
	struct packet *next;

	for (struct packet *p = all_packets; p; p = next) {
		next = p->all;
		free(p);
	}
	all_packets = free_packets = NULL;
}

/* Fills in the GID of host id. */
void host_gid(uint8_t gid[16], uint32_t id)
{
	static const uint8_t prefix[15] = {[10] = 0xff, 0xff, 10};

	memcpy(gid, prefix, sizeof(prefix));
	gid[15] = (uint8_t)(1 + id);
}

/* The addresses the ICRC covers: those of the hosts' GIDs. */
static struct icrc_address addresses(const struct packet *p)
{
	return (struct icrc_address){
		.src_port = 0xc000,
		.dst_port = ROCE_UDP_PORT,
		.src = {10, 0, 0, (uint8_t)(1 + p->from->id)},
		.dst = {10, 0, 0, (uint8_t)(1 + p->to->id)},
	};
}

/* The UDP checksum's sum, over the payload only. */
static uint16_t checksum(const uint8_t *data, size_t len)
{
	uint32_t sum = 0;

	for (size_t i = 0; i < len; i++)
		sum += i % 2 ? data[i] : (uint32_t)data[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)sum;
}

/* Prints a packet. @what: what happens to it */
static void trace(const struct world *w, const struct packet *p, const char *what)
{
	struct wire_packet pkt;
	char more[64] = "";
	unsigned int flags;

	if (!w->opt->trace)
		return;
	if (wire_decode(p->data, p->len, &pkt) != 0) {
		world_trace(w, "%c->%c  %-9s %u bytes that do not decode", 'A' + (int)p->from->id,
			    'A' + (int)p->to->id, what, p->len);
		return;
	}
	flags = wire_opcodes[pkt.opcode].flags;
	if (flags & OPF_AETH)
		snprintf(more, sizeof(more), " syndrome %#04x msn %u", pkt.aeth.syndrome,
			 pkt.aeth.msn);
	else if (flags & OPF_RETH)
		snprintf(more, sizeof(more), " va %#llx rkey %#x len %u",
			 (unsigned long long)pkt.reth.va, pkt.reth.rkey, pkt.reth.length);
	world_trace(w, "%c->%c  %-9s %-26s qp %#08x psn %8u %5u bytes%s%s", 'A' + (int)p->from->id,
		    'A' + (int)p->to->id, what, wire_opcodes[pkt.opcode].name, pkt.dest_qpn,
		    pkt.psn, pkt.payload_len, pkt.ackreq ? " ackreq" : "", more);
}

static void trace_train(const struct world *w, const struct host *h, const struct train *t,
			const char *what)
{
	world_trace(w, "%c     %-9s kind %u%s%s%s qp %#08x psn %8u x%u %5u bytes", 'A' + (int)h->id,
		    what, t->kind, t->first ? " first" : "", t->last ? " last" : "",
		    t->imm ? " imm" : "", t->dst_qpn, t->psn, t->count, t->payload.len);
}

/* ---- harm ---------------------------------------------------------------------------------- */

/*
 * Whether a connection's packets pass unharmed: those of a QP that must have used up most of its
 * retries. So no seed ends with IBV_WC_RETRY_EXC_ERR by bad luck, and one that does has found a
 * defect.
 */
static bool spared(const struct packet *p)
{
	const struct side *s = side_of(p->from->world->prog, p->qp);

	return is_reliable(s) &&
	       ((s->out && judge_is_in_need(s->out)) || (s->in && judge_is_in_need(s->in)));
}

/* Turns a few bits around, or cuts the packet short. */
static void damage(struct world *w, struct packet *p)
{
	if (rng_below(&w->net, 4) == 0) {
		p->len = rng_below(&w->net, p->len);
		return;
	}
	for (uint32_t n = 1 + rng_below(&w->net, 4); n > 0; n--) {
		uint32_t bit = rng_below(&w->net, 8 * p->len);

		if (bit / 8 == 4)
			continue; /* FECN and BECN: no ICRC covers them, and they harm nothing */
		p->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
}

/* Puts the ICRC behind a packet, and notes its checksum. */
static void seal(struct packet *p)
{
	struct icrc_address addr = addresses(p);
	uint32_t icrc = icrc_compute(&addr, 0, p->data, p->len);

	for (unsigned int k = 0; k < ICRC_LEN; k++)
		p->data[p->len++] = (uint8_t)(icrc >> 8 * k);
	p->checksum = checksum(p->data, p->len);
}

static void packet_arrive(struct timer *t, uint64_t now);

/* Puts a packet on its way. @extra: ns on top of the link's delay */
static void deliver(struct world *w, struct packet *p, uint64_t extra)
{
	struct host *from = p->from;

	if (from->link_free < w->now)
		from->link_free = w->now;
	from->link_free += 20 + p->len / 4; /* 32 Gb/s */
	p->arrive.fire = packet_arrive;
	w->in_flight++;
	world_at(w, &p->arrive, from->link_free + w->link[from->id][p->to->id].delay + extra);
}

static struct packet *packet_copy(const struct packet *p)
{
	struct packet *copy = packet_new();

	copy->from = p->from;
	copy->to = p->to;
	copy->qp = p->qp;
	copy->len = p->len;
	copy->checksum = p->checksum;
	memcpy(copy->data, p->data, p->len);
	return copy;
}

/*
 * In front of a packet in the middle of a UC message, one of the other kind with the same PSN: what
 * a peer that was reset, or a stranger, may send. It ends the message (IBTA 9.8.2.2.2).
 */
static void forge(struct world *w, const struct packet *p)
{
	struct wire_packet pkt;
	struct packet *copy;
	unsigned int kind;
	int opcode;

	if (p->qp->p.type != IBV_QPT_UC || wire_decode(p->data, p->len, &pkt) != 0 ||
	    wire_opcodes[pkt.opcode].flags & OPF_FIRST)
		return;
	kind = wire_opcodes[pkt.opcode].kind == KIND_SEND ? KIND_WRITE : KIND_SEND;
	opcode = wire_opcode_for(WIRE_UC, kind, 0);
	/* A packet in the middle is full. */
	if (opcode < 0 || pkt.payload_len != p->qp->mtu)
		return;
	copy = packet_copy(p);
	pkt.opcode = (uint8_t)opcode;
	copy->len = (uint32_t)wire_encode(copy->data, &pkt);
	memcpy(copy->data + copy->len, p->data + pkt.payload_off, pkt.payload_len);
	copy->len += pkt.payload_len;
	seal(copy);
	trace(w, copy, "forged");
	totals.forged++;
	deliver(w, copy, 0);
}

/* Sends a finished packet over its link. */
static void link_send(struct world *w, struct packet *p)
{
	const struct link *l = &w->link[p->from->id][p->to->id];
	uint64_t extra = 0;

	totals.packets++;
	if (!spared(p)) {
		if (rng_chance(&w->net, l->forge))
			forge(w, p);
		if (rng_chance(&w->net, l->loss)) {
			trace(w, p, "lost");
			packet_free(p);
			return;
		}
		if (rng_chance(&w->net, l->dup)) {
			struct packet *copy = packet_copy(p);

			trace(w, copy, "dup");
			if (rng_below(&w->net, 2))
				extra = rng_next(&w->net) % (4 * l->delay);
			deliver(w, copy, extra);
			extra = 0;
		}
		if (rng_chance(&w->net, l->corrupt)) {
			trace(w, p, "damaged");
			totals.corrupted++;
			damage(w, p);
			deliver(w, p, 0);
			return;
		}
		if (rng_chance(&w->net, l->reorder))
			extra = rng_next(&w->net) % (4 * l->delay);
	}
	trace(w, p, extra ? "late" : "sent");
	deliver(w, p, extra);
}

/* ---- sending: from a train to packets ---------------------------------------------------- */

struct burst {
	struct world *world;
	uint32_t count;
	struct packet *packet[];
};

/* The payload is in the packets: they leave. */
static void gathered(struct dma *dma, struct dma_op *op, int error)
{
	struct burst *b = op->ctx;

	for (uint32_t i = 0; i < b->count; i++) {
		struct packet *p = b->packet[i];

		seal(p);
		if (error) {
			world_fail(b->world, "dma failed for a packet");
			packet_free(p);
		} else {
			link_send(b->world, p);
		}
	}
}

/* Makes packets of a train and sends them. */
static void packets_tx(struct host *h, struct host *to, struct engine *e, struct qp *qp,
		       const struct train *t)
{
	struct world *w = h->world;
	struct dma_segment *seg = dma_segments(e->dma, t->count);
	struct burst *b =
		dma_scratch(e->dma, (uint32_t)(sizeof(*b) + t->count * sizeof(b->packet[0])));
	struct dma_op *op;

	b->world = w;
	b->count = t->count;
	for (uint32_t i = 0; i < t->count; i++) {
		bool first = i == 0, last = i == t->count - 1;
		unsigned int flags = 0;
		struct packet *p = b->packet[i] = packet_new();
		struct wire_packet pkt = {
			.pkey = t->pkey,
			.dest_qpn = t->dst_qpn,
			.psn = psn_add(t->psn, i),
			.xrc_srqn = t->xrc_srqn,
			.feth = {t->flush.type, t->flush.level},
			.reth = {t->reth.va, t->reth.rkey, t->reth.length},
			.atomic = {t->reth.va, t->reth.rkey, t->atomic.swap_add, t->atomic.compare},
			.aeth = {t->aeth.syndrome, t->aeth.msn},
			.atomic_orig = t->atomic_orig,
			.deth = {t->qkey, t->src_qpn},
			.imm = t->imm_data,
			.solicited = last && t->solicited,
			.ackreq = last && t->ackreq,
			.payload_len = last ? t->payload.len - i * t->mtu : t->mtu,
		};
		int opcode;
		size_t head;

		if (first && t->first)
			flags |= OPF_FIRST;
		if (last)
			flags |= (t->last ? OPF_LAST : 0) | (t->imm ? OPF_IMM : 0) |
				 (t->inv ? OPF_INV : 0);
		opcode = wire_opcode_for(t->service, t->kind, flags);
		if (opcode < 0) {
			world_fail(w, "train: no opcode for kind %u flags %#x", t->kind, flags);
			b->count = i;
			packet_free(p);
			break;
		}
		pkt.opcode = (uint8_t)opcode;
		pkt.pad = -pkt.payload_len & 3;
		head = wire_encode(p->data, &pkt);
		memset(p->data + head + pkt.payload_len, 0, pkt.pad);
		p->from = h;
		p->to = to;
		p->qp = qp;
		p->len = (uint32_t)head + pkt.payload_len + pkt.pad;
		seg[i] = (struct dma_segment){.addr = (uintptr_t)(p->data + head),
					      .len = pkt.payload_len};
	}
	op = dma_submit(e->dma);
	op->done = gathered;
	op->ctx = b;
	if (t->payload.len) {
		op->src = t->payload;
		op->dst = (struct dma_list){seg, b->count, t->payload.len};
	}
}

/* A train for the other worker is on its way. */
static void parcel_arrive(struct timer *t, uint64_t now)
{
	struct parcel *p = (struct parcel *)t;

	p->next = NULL;
	*p->to->inbox_tail = p;
	p->to->inbox_tail = &p->next;
	worker_kick(p->to);
}

static void parcel_gathered(struct dma *dma, struct dma_op *op, int error)
{
	struct parcel *p = op->ctx;
	struct world *w = p->to->host->world;

	w->in_flight++;
	p->arrive.fire = parcel_arrive;
	/* The heap keeps no order between equals, the inbox must. */
	if (p->to->host->link_free <= w->now)
		p->to->host->link_free = w->now;
	world_at(w, &p->arrive, ++p->to->host->link_free);
}

/* Sends a train to the host's other worker. */
static void parcel_tx(struct worker *to, struct engine *e, const struct train *t)
{
	struct parcel *p = must(calloc(1, sizeof(*p) + t->payload.len));
	struct dma_op *op;

	cds_list_add(&p->all, &parcels);
	p->to = to;
	p->train = *t;
	p->path = *t->path;
	p->train.path = &p->path;
	op = dma_submit(e->dma);
	op->src = t->payload;
	op->dst = dma_local(e->dma, p->data, t->payload.len);
	op->done = parcel_gathered;
	op->ctx = p;
}

/* engine_ops.tx */
void channel_tx(struct engine *e, struct qp *qp, const struct train *t)
{
	struct worker *k = e->host;
	struct host *h = k->host;
	struct world *w = h->world;

	judge_tx(h, qp, t);
	if (world_failed(w))
		return;
	if (t->path->route == ROUTE_UDP) {
		packets_tx(h, &w->host[t->path->port_data], e, qp, t);
	} else if (t->path->route == ROUTE_LOCAL) {
		uint32_t owner = QPN_WORKER(t->dst_qpn);

		totals.local_trains++;
		trace_train(w, h, t, owner == k->index ? "handed" : "passed");
		if (owner == k->index)
			worker_rx(k, t);
		else if (owner < h->workers)
			parcel_tx(&h->worker[owner], e, t);
	}
}

/* ---- receiving: from packets to trains --------------------------------------------------- */

static void packet_arrive(struct timer *t, uint64_t now)
{
	struct packet *p = (struct packet *)t;
	struct wire_packet pkt;
	uint32_t worker = 0;
	struct worker *k;

	/* A socket for each worker, and the kernel looks at the QPN: no more than a guess. */
	if (wire_decode(p->data, p->len, &pkt) == 0)
		worker = QPN_WORKER(pkt.dest_qpn);
	k = &p->to->worker[worker < p->to->workers ? worker : 0];
	p->next = NULL;
	*k->rx_tail = p;
	k->rx_tail = &p->next;
	worker_kick(k);
}

/*
 * Checks and decodes a packet.
 * @return whether it is good
 */
static bool packet_check(struct world *w, struct packet *p, struct wire_packet *pkt)
{
	struct icrc_address addr = addresses(p);
	bool good = p->len >= BTH_LEN + ICRC_LEN && icrc_check(&addr, 0, p->data, p->len);

	/*
	 * The kernel's UDP checksum stands before the ICRC. Here it is looked at last: what only it
	 * finds has got past the ICRC check, which one corrupted packet in 65,536 may, as that
	 * check has to guess the IP identification.
	 */
	if (good && checksum(p->data, p->len) != p->checksum) {
		totals.icrc_missed++;
		good = false;
	}
	if (good && wire_decode(p->data, p->len, pkt) != 0) {
		world_fail(w, "a good packet does not decode");
		good = false;
	}
	if (!good)
		trace(w, p, "rejected");
	return good;
}

/* @return whether a packet goes on where train t ends */
static bool train_continues(const struct train *t, const struct wire_packet *pkt)
{
	const struct wire_opcode *op = &wire_opcodes[pkt->opcode];

	return t->count > 0 && !t->last && !(op->flags & OPF_FIRST) && op->kind == t->kind &&
	       (pkt->opcode & 0xe0) == t->service && pkt->dest_qpn == t->dst_qpn &&
	       pkt->psn == psn_add(t->psn, t->count) && t->payload.len == t->count * t->mtu &&
	       pkt->xrc_srqn == t->xrc_srqn && pkt->payload_len <= t->mtu;
}

/* Begins a train with a packet. @seg: where the train's segments go */
static void train_begin(struct train *t, const struct path *path, const struct wire_packet *pkt,
			struct dma_segment *seg)
{
	*t = (struct train){.path = path, .mtu = pkt->payload_len, .payload = {.seg = seg}};
	packet_begins(t, pkt);
}

/* Adds a packet at the end of a train. */
static void train_append(struct train *t, const struct packet *p, const struct wire_packet *pkt)
{
	t->count++;
	packet_ends(t, pkt);
	t->payload.seg[t->payload.count++] = (struct dma_segment){
		.addr = (uintptr_t)(p->data + pkt->payload_off), .len = pkt->payload_len};
	t->payload.len += pkt->payload_len;
}

/* The path of what host from sent to host to. */
static struct path arrival_path(struct host *from, struct host *to)
{
	struct world *w = to->world;
	struct path path = {
		.hop_limit = 64,
		.route = ROUTE_UDP,
		.max_train = w->link[to->id][from->id].max_train,
		.window = w->link[to->id][from->id].window,
	};

	host_gid(path.sgid, from->id);
	host_gid(path.dgid, to->id);
	return path;
}

void channel_receive(struct worker *k)
{
	struct host *h = k->host;
	struct world *w = h->world;
	struct path path[MAX_HOSTS];
	struct train t = {0};
	struct dma_segment *seg;
	struct host *last_from = NULL;
	uint32_t count = 0;

	for (uint32_t i = 0; i < w->hosts; i++)
		path[i] = arrival_path(&w->host[i], h);
	for (struct packet *p = k->rx; p; p = p->next)
		count++;
	seg = dma_segments(k->engine.dma, count);
	for (struct packet *p = k->rx; p; p = p->next) {
		struct wire_packet pkt;

		w->in_flight--;
		if (!packet_check(w, p, &pkt))
			continue;
		trace(w, p, "received");
		if (last_from != p->from || !train_continues(&t, &pkt) ||
		    !rng_chance(&w->net, w->link[p->from->id][h->id].merge)) {
			if (t.count)
				worker_rx(k, &t);
			train_begin(&t, &path[p->from->id], &pkt, seg);
		}
		train_append(&t, p, &pkt);
		last_from = p->from;
		seg++;
	}
	if (t.count)
		worker_rx(k, &t);
	for (struct parcel *p = k->inbox; p; p = p->next) {
		w->in_flight--;
		p->train.payload = dma_local(k->engine.dma, p->data, p->train.payload.len);
		trace_train(w, h, &p->train, "taken");
		worker_rx(k, &p->train);
	}
}

void channel_release(struct worker *k)
{
	struct packet *p, *next;
	struct parcel *q, *next_parcel;

	for (p = k->rx; p; p = next) {
		next = p->next;
		packet_free(p);
	}
	k->rx = NULL;
	k->rx_tail = &k->rx;
	for (q = k->inbox; q; q = next_parcel) {
		next_parcel = q->next;
		parcel_free(q);
	}
	k->inbox = NULL;
	k->inbox_tail = &k->inbox;
}
