/* SPDX-License-Identifier: BSD-2-Clause */
/* The simulator's world: virtual time, and the hosts of the engines. */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOUNCE 16384
#define START (1000 * MS) /* the clock did not begin today */

struct totals totals;

/* The memories of clients are kept from seed to seed. */
static struct mm spare_mm[MAX_HOSTS];

/* ---- failure, time, memory --------------------------------------------------------------- */

void world_fail(struct world *w, const char *fmt, ...)
{
	va_list ap;

	if (world_failed(w))
		return;
	va_start(ap, fmt);
	vsnprintf(w->failure, sizeof(w->failure), fmt, ap);
	va_end(ap);
	world_trace(w, "FAILURE: %s", w->failure);
}

void world_trace(const struct world *w, const char *fmt, ...)
{
	va_list ap;

	if (!w->opt->trace)
		return;
	printf("%12.3f us  ", (double)w->now / 1e3);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
}

/* For bookkeeping of the simulator's own. */
void *must(void *p)
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

	if (end > MM_SIZE)
		must(NULL);
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

/*
 * What mr.c asks for random bits; a run must not depend on the kernel's. The build gives the name.
 */
static struct rng key_rng;
ssize_t sim_getrandom(void *buf, size_t len, unsigned int flags);
ssize_t sim_getrandom(void *buf, size_t len, unsigned int flags)
{
	uint8_t *p = buf;

	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)(rng_next(&key_rng) >> 32);
	return (ssize_t)len;
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

/* ---- hosts ------------------------------------------------------------------------------- */

void worker_rx(struct worker *k, const struct train *t)
{
	struct rx_note note = judge_rx(k, t);

	engine_rx(&k->engine, t);
	judge_rx_done(k, t, &note);
}

void worker_kick(struct worker *k)
{
	struct world *w = k->host->world;
	uint64_t when = w->now + rng_below(&w->net, 2000);

	if (!timer_armed(&k->wake) || k->wake.deadline > when)
		world_at(w, &k->wake, when);
}

/* Runs a worker's engine: what arrived, then rounds. */
static void worker_wake(struct timer *t, uint64_t now)
{
	struct worker *k = (struct worker *)((char *)t - offsetof(struct worker, wake));
	struct world *w = k->host->world;
	uint64_t deadline;
	bool more;

	k->engine.now = now;
	channel_receive(k);
	do {
		k->engine.hold = w->holds && rng_below(&w->net, 4);
		more = engine_run(&k->engine) || engine_holds(&k->engine);
		if (dma_pending(k->engine.dma))
			world_fail(w, "engine_run() left dma queued");
	} while (more && rng_below(&w->net, 4) && !world_failed(w));
	channel_release(k);
	judge_round(k, more);
	deadline = more ? now + 100 : engine_deadline(&k->engine);
	if (deadline != UINT64_MAX && (!timer_armed(&k->wake) || k->wake.deadline > deadline))
		world_at(w, &k->wake, deadline);
}

static bool sim_tx_ready(struct engine *e, const struct path *path)
{
	struct worker *k = e->host;
	struct world *w = k->host->world;

	return !rng_chance(&w->net, w->link[k->host->id][path->port_data].busy);
}

static void sim_route(struct engine *e, const struct device *dev, struct path *path)
{
	struct worker *k = e->host;
	struct world *w = k->host->world;

	path->route = ROUTE_NONE;
	for (uint32_t i = 0; i < w->hosts; i++) {
		if (memcmp(path->dgid, w->host[i].dev.gids[0].raw, 16) != 0)
			continue;
		path->route = i == k->host->id ? ROUTE_LOCAL : ROUTE_UDP;
		path->port_data = (uint8_t)i;
		path->max_train = w->link[k->host->id][i].max_train;
		path->window = w->link[k->host->id][i].window;
		path->budget = w->link[k->host->id][i].budget;
	}
}

static void sim_qp_event(struct engine *e, struct qp *qp, enum ibv_event_type type)
{
	program_qp_event(((struct worker *)e->host)->host, qp, type);
}

static void sim_cq_error(struct engine *e, struct cq *cq)
{
	world_fail(((struct worker *)e->host)->host->world, "a CQ overran");
}

static void sim_srq_limit(struct engine *e, struct srq *srq)
{
	struct client_srq *s =
		(struct client_srq *)((char *)srq - offsetof(struct client_srq, srq));
	struct world *w = s->host->world;
	uint32_t waiting = s->prod - srq->cons;

	world_trace(w, "%c: SRQ limit reached, %u waiting", 'A' + (int)s->host->id, waiting);
	if (s->armed == 0 || waiting >= s->armed)
		world_fail(w, "SRQ limit event with %u waiting, armed for %u", waiting, s->armed);
	s->armed = 0;
	s->events++;
	totals.limit_events++;
}

static void sim_cq_event(struct engine *e, struct cq *cq)
{
	program_cq_event(((struct worker *)e->host)->host);
}

static const struct engine_ops sim_ops = {
	.tx = channel_tx,
	.tx_ready = sim_tx_ready,
	.route = sim_route,
	.qp_event = sim_qp_event,
	.cq_error = sim_cq_error,
	.srq_limit = sim_srq_limit,
	.cq_event = sim_cq_event,
};

/* Makes host id of a world. */
static void host_init(struct world *w, uint32_t id)
{
	struct host *h = &w->host[id];

	h->world = w;
	h->id = id;
	h->mm = spare_mm[id];
	if (!h->mm.mem) {
		h->mm.mem = must(malloc(MM_SIZE));
		h->mm.model = must(malloc(MM_SIZE));
	}
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
		.features = DEVICE_FEATURES_ALL,
		.gid_count = 1,
		.mrs = must(mr_table_create()),
		.xrcs = must(xrc_table_create()),
	};
	host_gid(h->dev.gids[0].raw, id);
	h->dev.gids[0].valid = 1;
	pthread_mutex_init(&h->dev.atomic_lock, NULL);
	pthread_spin_init(&h->dev.window_lock, PTHREAD_PROCESS_PRIVATE);
	h->pd = (struct pd){.dev = &h->dev, .handle = 5};
	for (uint32_t i = 0; i < h->workers; i++) {
		struct worker *k = &h->worker[i];

		k->host = h;
		k->index = i;
		k->wake.fire = worker_wake;
		k->rx_tail = &k->rx;
		k->inbox_tail = &k->inbox;
		if (engine_init(&k->engine, &sim_ops, k, i,
				must(dma_create(&sim_dma_backend, BOUNCE))))
			must(NULL);
	}
}

/* What a seed's link does to packets. */
static void link_init(struct world *w, uint32_t from, uint32_t to)
{
	static const uint32_t max_trains[] = {4096, 16384, 32768, 61440 & ~4095};
	const struct options *o = w->opt;
	struct link *l = &w->link[from][to];
	struct rng *r = &w->net;
	uint64_t farthest;
	double harm;

	l->max_train = max_trains[rng_below(r, 4)];
	l->window = 16384u << rng_below(r, 4);
	l->budget = from == to ? 0 : l->window * rng_below(r, 4); /* 0: none */
	l->merge = rng_below(r, 3) / 2.0;
	l->busy = rng_below(r, 2) ? 0 : 0.1 * (1 + rng_below(r, 5));
	if (from == to) {
		l->lossless = true;
		l->max_train = 1u << (13 + rng_below(r, 7));
		return;
	}
	farthest = rng_below(r, 2) ? 5 * US : 200 * US;
	l->delay = 1 * US + rng_next(r) % farthest;
	/* A third of the links does no harm, some are very bad. */
	harm = rng_below(r, 3) == 0 ? 0 : 0.01 * (1 + rng_below(r, rng_below(r, 2) ? 6 : 30));
	l->loss = rng_below(r, 4) ? harm : 0;
	l->dup = rng_below(r, 4) ? harm : 0;
	l->reorder = rng_below(r, 4) ? harm : 0;
	l->corrupt = rng_below(r, 4) ? harm : 0;
	l->forge = rng_below(r, 2) ? 2 * harm : 0;
	if (o->loss >= 0)
		l->loss = o->loss;
	if (o->dup >= 0)
		l->dup = o->dup;
	if (o->reorder >= 0)
		l->reorder = o->reorder;
	if (o->corrupt >= 0)
		l->corrupt = o->corrupt;
	l->lossless = l->loss == 0 && l->dup == 0 && l->reorder == 0 && l->corrupt == 0 &&
		      l->forge == 0;
}

void world_init(struct world *w, uint64_t seed, const struct options *opt)
{
	uint32_t engines;

	*w = (struct world){.opt = opt};
	w->net.state = seed * 2;
	w->holds = seed % 2;
	w->rng.state = seed * 2 + 1;
	key_rng.state = seed * 2 + 1000003;
	rng_next(&w->net);
	rng_next(&w->rng);
	w->now = START;
	engines = 2 + rng_below(&w->rng, MAX_ENGINES - 1);
	while (engines) {
		struct host *h = &w->host[w->hosts++];

		h->workers = engines == 1 || rng_below(&w->rng, 3) ? 1 : MAX_WORKERS;
		engines -= h->workers;
	}
	for (uint32_t i = 0; i < w->hosts; i++)
		host_init(w, i);
	for (uint32_t i = 0; i < w->hosts; i++)
		for (uint32_t k = 0; k < w->hosts; k++)
			link_init(w, i, k);
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
	for (uint32_t id = 0; id < w->hosts; id++) {
		struct host *h = &w->host[id];

		for (uint32_t i = 0; i < h->workers; i++) {
			struct worker *k = &h->worker[i];
			struct dma *dma = k->engine.dma;

			channel_release(k);
			count(&k->engine);
			engine_fini(&k->engine);
			dma_destroy(dma);
		}
		mr_table_destroy(h->dev.mrs);
		xrc_table_destroy(h->dev.xrcs);
		pthread_mutex_destroy(&h->dev.atomic_lock);
		pthread_spin_destroy(&h->dev.window_lock);
		spare_mm[id] = h->mm;
	}
	if (w->last_cqe)
		totals.time += w->last_cqe - START;
	timer_heap_free(&w->events);
	channel_fini();
}

void world_free_all(void)
{
	channel_free_all();
	for (uint32_t i = 0; i < MAX_HOSTS; i++) {
		free(spare_mm[i].mem);
		free(spare_mm[i].model);
	}
}
