/* SPDX-License-Identifier: BSD-2-Clause */
/* The simulator's world: virtual time, the hosts of the engines, and the channel between them. */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PACKET (WIRE_MAX_HEADERS + WIRE_MAX_MTU + ICRC_LEN)
#define BOUNCE 16384
#define START (1000 * MS) /* the clock did not begin today */
/* Rounds of an engine at one point of time: more is a livelock. */
#define MAX_ROUNDS 100000
/* A QP with fewer retries left than this has its packets spared; see spared(). */
#define MERCY 3

struct packet {
	struct timer arrive; /* first: the timer is the packet */
	struct packet *next; /* free list, rx queue */
	struct packet *all;
	struct host *to;
	struct qp *qp; /* that sent it */
	uint32_t len;  /* bytes, from the BTH to the ICRC */
	uint16_t checksum;
	uint8_t data[MAX_PACKET];
};

struct totals totals;

/* Kept from seed to seed, as are the hosts' memories. */
static struct packet *all_packets, *free_packets;
static struct mm spare_mm[2];

/* ---- failure, time, memory --------------------------------------------------------------- */

void world_fail(struct world *w, const char *fmt, ...)
{
	va_list ap;

	if (world_failed(w))
		return;
	va_start(ap, fmt);
	vsnprintf(w->failure, sizeof(w->failure), fmt, ap);
	va_end(ap);
	if (w->opt->trace)
		printf("%12.3f us  FAILURE: %s\n", (double)w->now / 1e3, w->failure);
}

/* For bookkeeping of the simulator's own. */
static void *must(void *p)
{
	if (!p) {
		fputs("sim: out of memory\n", stderr);
		abort();
	}
	return p;
}

void world_at(struct world *w, struct timer *t, uint64_t when)
{
	if (timer_heap_reserve(&w->events, w->events.count + 1) != 0)
		must(NULL);
	timer_arm(&w->events, t, when);
}

bool world_step(struct world *w)
{
	struct timer *t;

	if (w->events.count == 0)
		return false;
	t = w->events.heap[0];
	if (t->deadline > w->now)
		w->now = t->deadline;
	timer_disarm(&w->events, t);
	w->steps++;
	t->fire(t, w->now);
	return true;
}

size_t mm_take(struct mm *mm, size_t len, size_t align)
{
	size_t offset = (mm->used + align - 1) / align * align, end = offset + len;

	if (end > mm->size) {
		mm->size = end * 2 > (1 << 20) ? end * 2 : 1 << 20;
		mm->mem = must(realloc(mm->mem, mm->size));
		mm->model = must(realloc(mm->model, mm->size));
	}
	memset(mm->mem + mm->used, 0xa5, end - mm->used);
	memset(mm->model + mm->used, 0xa5, end - mm->used);
	mm->used = end;
	return offset;
}

void mm_fill(struct mm *mm, size_t offset, const void *data, size_t len)
{
	memcpy(mm->mem + offset, data, len);
	memcpy(mm->model + offset, data, len);
}

/* ---- dma backend ------------------------------------------------------------------------- */

/* Copies between two iovec lists of the same length in bytes. @write: from local to remote */
static int transfer(struct mm *mm, const struct iovec *local, unsigned nlocal,
		    const struct iovec *remote, unsigned nremote, bool write)
{
	size_t lo = 0, ro = 0;
	unsigned l = 0, r = 0;

	while (l < nlocal && r < nremote) {
		uint64_t offset = (uintptr_t)remote[r].iov_base + ro - mm->base;
		uint8_t *p = (uint8_t *)local[l].iov_base + lo;
		size_t n = local[l].iov_len - lo;

		if (remote[r].iov_len - ro < n)
			n = remote[r].iov_len - ro;
		if (offset > mm->used || n > mm->used - offset) {
			world_fail(mm->world, "dma outside of the client's memory");
			return -EFAULT;
		}
		if (write)
			memcpy(mm->mem + offset, p, n);
		else
			memcpy(p, mm->mem + offset, n);
		lo += n;
		ro += n;
		if (lo == local[l].iov_len) {
			l++;
			lo = 0;
		}
		if (ro == remote[r].iov_len) {
			r++;
			ro = 0;
		}
	}
	return 0;
}

static int sim_readv(struct mm *mm, const struct iovec *local, unsigned nlocal,
		     const struct iovec *remote, unsigned nremote)
{
	return transfer(mm, local, nlocal, remote, nremote, false);
}

static int sim_writev(struct mm *mm, const struct iovec *local, unsigned nlocal,
		      const struct iovec *remote, unsigned nremote)
{
	return transfer(mm, local, nlocal, remote, nremote, true);
}

static const struct dma_backend sim_dma_backend = {sim_readv, sim_writev};

/* ---- packets ----------------------------------------------------------------------------- */

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

/* The addresses the ICRC covers: those of the hosts' GIDs. @from: of the sending host */
static struct icrc_address addresses(unsigned int from)
{
	return (struct icrc_address){
		.src_port = 0xc000,
		.dst_port = ROCE_UDP_PORT,
		.src = {10, 0, 0, (uint8_t)(1 + from)},
		.dst = {10, 0, 0, (uint8_t)(2 - from)},
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
	char aeth[40] = "";

	if (!w->opt->trace)
		return;
	printf("%12.3f us  %c->%c  %-9s ", (double)w->now / 1e3, p->to->id ? 'A' : 'B',
	       p->to->id ? 'B' : 'A', what);
	if (wire_decode(p->data, p->len, &pkt) != 0) {
		printf("%u bytes that do not decode\n", p->len);
		return;
	}
	if (wire_opcodes[pkt.opcode].flags & OPF_AETH)
		snprintf(aeth, sizeof(aeth), " syndrome %#04x msn %u", pkt.aeth.syndrome,
			 pkt.aeth.msn);
	printf("%-26s qp %#08x psn %8u %5u bytes%s%s\n", wire_opcodes[pkt.opcode].name,
	       pkt.dest_qpn, pkt.psn, pkt.payload_len, pkt.ackreq ? " ackreq" : "", aeth);
}

/* ---- the channel ------------------------------------------------------------------------- */

/*
 * Whether a connection's packets pass unharmed: those of a QP that has used up most of its retries.
 * So no seed ends with IBV_WC_RETRY_EXC_ERR by bad luck, and one that does has found a defect.
 */
static bool spared(const struct packet *p)
{
	const struct qp *peer = engine_find_qp(&p->to->engine, p->qp->attr.dest_qp_num);

	return p->qp->p.type == IBV_QPT_RC &&
	       (p->qp->req.retry_left < MERCY || (peer && peer->req.retry_left < MERCY));
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

static void packet_arrive(struct timer *t, uint64_t now);

/* Puts a packet on its way. @extra: ns on top of the channel's delay */
static void deliver(struct world *w, struct packet *p, uint64_t extra)
{
	struct host *from = &w->host[!p->to->id];

	if (from->link_free < w->now)
		from->link_free = w->now;
	from->link_free += 20 + p->len / 4; /* 32 Gb/s */
	p->arrive.fire = packet_arrive;
	w->in_flight++;
	world_at(w, &p->arrive, from->link_free + w->delay + extra);
}

/* Sends a finished packet through the channel. */
static void channel_send(struct world *w, struct packet *p)
{
	const struct options *o = w->opt;
	uint64_t extra = 0;

	totals.packets++;
	if (!spared(p)) {
		if (rng_chance(&w->net, o->loss)) {
			trace(w, p, "lost");
			packet_free(p);
			return;
		}
		if (rng_chance(&w->net, o->dup)) {
			struct packet *copy = packet_new();

			copy->to = p->to;
			copy->qp = p->qp;
			copy->len = p->len;
			copy->checksum = p->checksum;
			memcpy(copy->data, p->data, p->len);
			trace(w, copy, "dup");
			deliver(w, copy, rng_next(&w->net) % (4 * w->delay));
		}
		if (rng_chance(&w->net, o->corrupt)) {
			trace(w, p, "damaged");
			totals.corrupted++;
			damage(w, p);
			deliver(w, p, 0);
			return;
		}
		if (rng_chance(&w->net, o->reorder))
			extra = rng_next(&w->net) % (4 * w->delay);
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
		struct icrc_address addr = addresses(!p->to->id);
		uint32_t icrc = icrc_compute(&addr, 0, p->data, p->len);

		for (unsigned int k = 0; k < ICRC_LEN; k++)
			p->data[p->len++] = (uint8_t)(icrc >> 8 * k);
		p->checksum = checksum(p->data, p->len);
		if (error) {
			world_fail(b->world, "dma failed for a packet");
			packet_free(p);
		} else {
			channel_send(b->world, p);
		}
	}
}

/* Checks what a train must be like. @return whether it is */
static bool train_is_good(struct world *w, const struct qp *qp, const struct train *t)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < t->payload.count; i++)
		sum += t->payload.seg[i].len;
	if (sum != t->payload.len)
		world_fail(w, "train: payload of %u bytes says %u", sum, t->payload.len);
	else if (t->count == 0 || t->count > 1024)
		world_fail(w, "train: %u packets", t->count);
	else if (t->payload.len > w->max_train)
		world_fail(w, "train: %u bytes, the port takes %u", t->payload.len, w->max_train);
	else if (t->count > 1 && t->mtu != qp->mtu)
		world_fail(w, "train: MTU %u, the QP's is %u", t->mtu, qp->mtu);
	else if (t->payload.len > t->count * qp->mtu ||
		 (t->count > 1 && t->payload.len <= (t->count - 1) * t->mtu))
		world_fail(w, "train: %u bytes in %u packets", t->payload.len, t->count);
	else if (!t->last && t->payload.len != t->count * t->mtu)
		world_fail(w, "train: not the last, and not full");
	else if (t->imm && !t->last)
		world_fail(w, "train: an immediate before the last packet");
	return !world_failed(w);
}

static bool kind_is_request(unsigned int kind)
{
	return kind != KIND_ACK && kind != KIND_ATOMIC_ACK && kind != KIND_READ_RESPONSE;
}

/* engine_ops.tx */
static void sim_tx(struct engine *e, struct qp *qp, const struct train *t)
{
	struct host *h = e->host;
	struct world *w = h->world;
	struct dma_segment *seg;
	struct burst *b;
	struct dma_op *op;

	if (!train_is_good(w, qp, t))
		return;
	if (t->service == WIRE_RC && kind_is_request(t->kind) &&
	    w->now < h->rnr_until[QPN_SLOT(qp->qpn)]) {
		world_fail(w, "QP %#x sends a request before its RNR timer is over", qp->qpn);
		return;
	}
	b = dma_scratch(e->dma, (uint32_t)(sizeof(*b) + t->count * sizeof(b->packet[0])));
	b->world = w;
	b->count = t->count;
	seg = dma_segments(e->dma, t->count);
	for (uint32_t i = 0; i < t->count; i++) {
		bool first = i == 0, last = i == t->count - 1;
		unsigned int flags = 0;
		struct packet *p = b->packet[i] = packet_new();
		struct wire_packet pkt = {
			.pkey = t->pkey,
			.dest_qpn = t->dst_qpn,
			.psn = psn_add(t->psn, i),
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
		p->to = &w->host[!h->id];
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

/* ---- receiving: from packets to trains --------------------------------------------------- */

static void packet_arrive(struct timer *t, uint64_t now)
{
	struct packet *p = (struct packet *)t;
	struct host *h = p->to;

	p->next = NULL;
	*h->rx_tail = p;
	h->rx_tail = &p->next;
	host_kick(h);
}

/*
 * Checks and decodes a packet.
 * @return whether it is good
 */
static bool packet_check(struct world *w, struct packet *p, struct wire_packet *pkt)
{
	struct icrc_address addr = addresses(!p->to->id);
	bool good = p->len >= BTH_LEN + ICRC_LEN && icrc_check(&addr, 0, p->data, p->len);

	/*
	 * The kernel's UDP checksum stands before the ICRC. Here it is looked at last: what only it
	 * finds has got past the ICRC check, which one corrupted packet in 8,192 may, as that check
	 * has to guess the IP header.
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
	       pkt->payload_len <= t->mtu;
}

/* Begins a train with a packet. @seg: where the train's segments go */
static void train_begin(struct train *t, const struct path *path, const struct wire_packet *pkt,
			struct dma_segment *seg)
{
	const struct wire_opcode *op = &wire_opcodes[pkt->opcode];
	bool atomic = op->flags & OPF_ATOMICETH;

	*t = (struct train){
		.path = path,
		.src_qpn = pkt->deth.src_qpn,
		.dst_qpn = pkt->dest_qpn,
		.service = pkt->opcode & 0xe0,
		.kind = op->kind,
		.first = op->flags & OPF_FIRST,
		.pkey = pkt->pkey,
		.psn = pkt->psn,
		.mtu = pkt->payload_len,
		.reth = {atomic ? pkt->atomic.va : pkt->reth.va,
			 atomic ? pkt->atomic.rkey : pkt->reth.rkey, pkt->reth.length},
		.atomic = {pkt->atomic.swap_add, pkt->atomic.compare},
		.atomic_orig = pkt->atomic_orig,
		.qkey = pkt->deth.qkey,
		.payload = {.seg = seg},
	};
}

/* Adds a packet at the end of a train. */
static void train_append(struct train *t, const struct packet *p, const struct wire_packet *pkt)
{
	const struct wire_opcode *op = &wire_opcodes[pkt->opcode];

	t->count++;
	t->last = op->flags & OPF_LAST;
	t->imm = op->flags & OPF_IMM;
	t->inv = op->flags & OPF_INV;
	t->imm_data = pkt->imm;
	t->solicited = pkt->solicited;
	t->ackreq |= pkt->ackreq;
	if (op->flags & OPF_AETH) {
		t->aeth.syndrome = pkt->aeth.syndrome;
		t->aeth.msn = pkt->aeth.msn;
	}
	t->payload.seg[t->payload.count++] = (struct dma_segment){
		.addr = (uintptr_t)(p->data + pkt->payload_off), .len = pkt->payload_len};
	t->payload.len += pkt->payload_len;
}

/* Fills in the GID of host id. */
static void host_gid(uint8_t gid[16], unsigned int id)
{
	static const uint8_t prefix[15] = {[10] = 0xff, 0xff, 10};

	memcpy(gid, prefix, sizeof(prefix));
	gid[15] = (uint8_t)(1 + id);
}

/* @return the time an RNR NAK's timer code stands for, ns (IBTA table 45) */
static uint64_t rnr_time(unsigned int code)
{
	if (code == 0)
		return 655360 * US;
	if (code == 1)
		return 10 * US;
	return (code % 2 ? 30 : 20) * US << (code - 2) / 2;
}

/*
 * Hands a train to the engine. If it was an RNR NAK that the engine took for new, the QP must not
 * send a request again before the time it named is over. The NAK of a wait that is on is no news.
 */
static void hand_in(struct host *h, const struct train *t)
{
	uint64_t *until = &h->rnr_until[QPN_SLOT(t->dst_qpn) % SIM_MAX_SLOT];
	const struct qp *qp = engine_find_qp(&h->engine, t->dst_qpn);
	uint64_t before = qp ? qp->counters.rcvd_rnr_err : 0;

	engine_rx(&h->engine, t);
	if (qp && qp->counters.rcvd_rnr_err != before && *until < h->world->now)
		*until = h->world->now + rnr_time(AETH_VALUE(t->aeth.syndrome));
}

/* Hands everything that arrived to the engine, some of it joined to trains. */
static void host_receive(struct host *h)
{
	struct world *w = h->world;
	struct path path = {
		.hop_limit = 64,
		.route = ROUTE_UDP,
		.max_train = w->max_train,
		.window = w->window,
	};
	struct train t = {0};
	struct dma_segment *seg;
	uint32_t count = 0;

	host_gid(path.sgid, !h->id);
	host_gid(path.dgid, h->id);
	for (struct packet *p = h->rx; p; p = p->next)
		count++;
	seg = dma_segments(h->engine.dma, count);
	for (struct packet *p = h->rx; p; p = p->next) {
		struct wire_packet pkt;

		w->in_flight--;
		if (!packet_check(w, p, &pkt))
			continue;
		trace(w, p, "received");
		if (!train_continues(&t, &pkt) || !rng_chance(&w->net, w->merge)) {
			if (t.count)
				hand_in(h, &t);
			train_begin(&t, &path, &pkt, seg);
		}
		train_append(&t, p, &pkt);
		seg++;
	}
	if (t.count)
		hand_in(h, &t);
}

/* ---- hosts ------------------------------------------------------------------------------- */

void host_kick(struct host *h)
{
	uint64_t when = h->world->now + rng_below(&h->world->net, 2000);

	if (!timer_armed(&h->wake) || h->wake.deadline > when)
		world_at(h->world, &h->wake, when);
}

/* Runs a host's engine: what arrived, then rounds until nothing is left to do. */
static void host_wake(struct timer *t, uint64_t now)
{
	struct host *h = (struct host *)((char *)t - offsetof(struct host, wake));
	struct world *w = h->world;
	struct packet *p, *next;
	unsigned int rounds = 0;
	bool more;

	h->engine.now = now;
	host_receive(h);
	do
		more = engine_run(&h->engine);
	while (more && ++rounds < MAX_ROUNDS && !world_failed(w));
	if (more)
		world_fail(w, "engine %c does not come to rest", 'A' + (int)h->id);
	if (dma_pending(h->engine.dma))
		world_fail(w, "engine_run() left dma queued");
	for (p = h->rx; p; p = next) {
		next = p->next;
		packet_free(p);
	}
	h->rx = NULL;
	h->rx_tail = &h->rx;
	if (engine_deadline(&h->engine) != UINT64_MAX) {
		uint64_t when = engine_deadline(&h->engine);

		if (!timer_armed(&h->wake) || h->wake.deadline > when)
			world_at(w, &h->wake, when);
	}
}

static bool sim_tx_ready(struct engine *e, const struct path *path)
{
	struct world *w = ((struct host *)e->host)->world;

	return !rng_chance(&w->net, w->busy);
}

static void sim_route(struct engine *e, const struct device *dev, struct path *path)
{
	struct host *h = e->host;
	uint8_t peer[16];

	host_gid(peer, !h->id);
	if (memcmp(path->dgid, peer, 16) != 0) {
		path->route = ROUTE_NONE;
		return;
	}
	path->route = ROUTE_UDP;
	path->max_train = h->world->max_train;
	path->window = h->world->window;
	path->budget = h->world->budget;
}

static void sim_qp_event(struct engine *e, struct qp *qp, enum ibv_event_type type)
{
	if (type != IBV_EVENT_COMM_EST)
		world_fail(((struct host *)e->host)->world, "QP event %d", type);
}

static void sim_cq_error(struct engine *e, struct cq *cq)
{
	world_fail(((struct host *)e->host)->world, "a CQ overran");
}

static void sim_srq_limit(struct engine *e, struct srq *srq)
{
	world_fail(((struct host *)e->host)->world, "SRQ event without SRQ");
}

static void sim_cq_event(struct engine *e, struct cq *cq)
{
	struct host *h = e->host;

	if (h->on_event)
		h->on_event(h);
}

static const struct engine_ops sim_ops = {
	.tx = sim_tx,
	.tx_ready = sim_tx_ready,
	.route = sim_route,
	.qp_event = sim_qp_event,
	.cq_error = sim_cq_error,
	.srq_limit = sim_srq_limit,
	.cq_event = sim_cq_event,
};

/* Makes host id of a world. */
static void host_init(struct world *w, unsigned int id)
{
	struct host *h = &w->host[id];

	h->world = w;
	h->id = id;
	h->wake.fire = host_wake;
	h->rx_tail = &h->rx;
	h->mm = spare_mm[id];
	h->mm.world = w;
	h->mm.base = UINT64_C(0x10000000000) * (1 + id) + 0x123;
	h->mm.used = 0;
	h->dev = (struct device){
		.node_guid = id + 1,
		.attr = {.max_qp_rd_atom = VERNIC_MAX_RD_ATOMIC,
			 .max_qp_init_rd_atom = VERNIC_MAX_RD_ATOMIC},
		.port_attr = {.state = IBV_PORT_ACTIVE,
			      .active_mtu = IBV_MTU_4096,
			      .max_mtu = IBV_MTU_4096,
			      .pkey_tbl_len = 1},
		.gid_count = 1,
		.mrs = must(mr_table_create()),
	};
	host_gid(h->dev.gids[0].raw, id);
	pthread_mutex_init(&h->dev.atomic_lock, NULL);
	h->pd = (struct pd){.dev = &h->dev, .handle = 5};
	if (engine_init(&h->engine, &sim_ops, h, id, must(dma_create(&sim_dma_backend, BOUNCE))))
		must(NULL);
}

void world_init(struct world *w, uint64_t seed, const struct options *opt)
{
	static const uint32_t max_trains[] = {4096, 16384, 32768, 61440 & ~4095};
	struct rng *r = &w->net;

	*w = (struct world){.opt = opt};
	w->net.state = seed * 2;
	w->prog.state = seed * 2 + 1;
	rng_next(&w->net);
	rng_next(&w->prog);
	w->now = START;
	w->delay = 1 * US + rng_next(r) % (rng_below(r, 2) ? 5 * US : 200 * US);
	w->max_train = max_trains[rng_below(r, 4)];
	w->window = 16384u << rng_below(r, 4);
	w->budget = w->window * rng_below(r, 4); /* 0: none */
	w->merge = rng_below(r, 3) / 2.0;
	w->busy = rng_below(r, 4) ? 0 : 0.2;
	host_init(w, 0);
	host_init(w, 1);
}

/* Adds up what an engine counted. */
static void count(const struct engine *e)
{
	struct engine_counters *sum = &totals.engine, c;

	engine_get_counters(e, &c);
	sum->completions += c.completions;
	sum->duplicates += c.duplicates;
	sum->out_of_sequence += c.out_of_sequence;
	sum->retransmits += c.retransmits;
	sum->timeouts += c.timeouts;
	sum->rnr_nak_received += c.rnr_nak_received;
	sum->seq_nak_received += c.seq_nak_received;
}

void world_fini(struct world *w)
{
	for (unsigned int i = 0; i < 2; i++) {
		struct host *h = &w->host[i];
		struct dma *dma = h->engine.dma;

		count(&h->engine);
		mr_table_destroy(h->dev.mrs);
		engine_fini(&h->engine);
		dma_destroy(dma);
		pthread_mutex_destroy(&h->dev.atomic_lock);
		spare_mm[i] = h->mm;
	}
	if (w->last_cqe)
		totals.time += w->last_cqe - START;
	timer_heap_free(&w->events);
	free_packets = NULL;
	for (struct packet *p = all_packets; p; p = p->all)
		packet_free(p);
}

void world_free_all(void)
{
	struct packet *next;

	for (struct packet *p = all_packets; p; p = next) {
		next = p->all;
		free(p);
	}
	for (unsigned int i = 0; i < 2; i++) {
		free(spare_mm[i].mem);
		free(spare_mm[i].model);
	}
}
