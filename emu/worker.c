/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Workers.
 *
 * Theory of operation
 * -------------------
 * A worker is a thread with an engine and all the engine needs: an io, a UDP port, a dma. Nobody
 * else touches those. Others reach a worker in three ways, all lock-free on the worker's side:
 * clients ring doorbells in shared memory, the control thread puts a function in the mailbox, and
 * other workers put trains for its QPs in the inbox. Each of them then looks at the worker's
 * `sleeping` word and writes the wake-up eventfd if it is set; the worker sets it, and only then
 * looks a last time, with a full barrier between.
 *
 * A worker with nothing to do spins a little, then yields, then sleeps: waking a sleeper costs ten
 * times what a yield costs, but an idle daemon shall cost nothing. Worker and clients tell each
 * other which core they are on: who waits for somebody on the same core does not spin.
 *
 * A train for a QP of another worker is gathered, as a dma operation like every other one, into a
 * buffer that goes along; so trains and the bytes they carry keep their order.
 */
#include "worker.h"

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <urcu-qsbr.h>

#include "client.h"
#include "mm.h"

#define WORKER_BOUNCE (256 * 1024) /* bytes; dma carries pieces of this size */
#define WORKER_TX_BUFFERS 64	   /* of IO_TX_BUFFER bytes each */

/* Limits of local paths: nothing is lost there, so only memory and fairness bound them. */
#define LOCAL_MAX_TRAIN (1u << 20) /* bytes */
#define LOCAL_WINDOW (8u << 20)	   /* bytes */

/* Bytes that may wait in an inbox; a train beyond is lost, and sent again in time. */
#define INBOX_LIMIT (64u << 20)

/*
 * How long an idle worker stays awake. With fewer CPUs than threads that want one, the client
 * needs the CPU that spinning would take; yielding gives it away and still answers within a
 * microsecond or two where nobody wants it.
 */
struct patience {
	uint64_t spin;	/* ns of emptiness before the first yield */
	uint64_t awake; /* ns of emptiness before sleep */
};
static const struct patience patience_one_cpu = {.spin = 0, .awake = 200000};
static const struct patience patience_few_cpus = {.spin = 2000, .awake = 500000};
static const struct patience patience_many_cpus = {.spin = 80000, .awake = 1000000};

/* A function for the worker's thread. */
struct mail {
	int (*fn)(void *);
	void *arg;
	int result;
};

/* A train on its way to a QP of another worker. */
struct inbox_item {
	struct inbox_item *next;
	struct worker *to;
	struct train train;
	struct path path;
	uint8_t data[];
};

struct worker {
	struct host *host;
	uint32_t index;
	pthread_t thread;
	struct engine engine;
	struct dma *dma;
	struct io *io;
	struct udp_port *udp;
	struct capture_set capture;
	struct fault_set *faults;
	struct tap tap;
	struct verbs_faults verbs_faults;
	bool has_udp; /* a device has sockets: the port wants polling */
	int wake_fd;
	struct vernic_worker_page *page;
	struct patience patience;
	struct cds_list_head doorbells; /* struct doorbell_set */
	bool stop;			/* set on the worker's thread */

	_Atomic uint64_t rounds;	    /* that are over */
	uint64_t grace[VERNIC_MAX_WORKERS]; /* the other workers' when a grace period began */

	_Atomic(struct mail *) mailbox;
	sem_t answered; /* posted when the mail was run, and when start-up is over */

	_Atomic(struct inbox_item *) inbox; /* newest first */
	_Atomic uint32_t inbox_bytes;
	struct inbox_item *arrived; /* handed to the engine this round */

	/* Of start-up. */
	int start_error;
	char *error;
	size_t error_len;
};

/* Wakes a worker that sleeps; the caller has stored what the worker shall see. */
static void worker_wake(struct worker *w)
{
	uint64_t one = 1;

	vernic_full_barrier();
	if (vernic_load_relaxed(&w->page->sleeping) == 0)
		return;
	/* EAGAIN means the count is at its limit: it is awake already. */
	if (write(w->wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_error("worker %u: wake-up: %s", w->index, strerror(errno));
}

/* ---- mailbox ---------------------------------------------------------------------------- */

int worker_call(struct worker *w, int (*fn)(void *), void *arg)
{
	struct mail mail = {.fn = fn, .arg = arg};

	atomic_store(&w->mailbox, &mail);
	worker_wake(w);
	while (sem_wait(&w->answered) != 0)
		;
	return mail.result;
}

/* Runs what is in the mailbox. @return whether something was */
static bool worker_read_mail(struct worker *w)
{
	struct mail *mail = atomic_load_explicit(&w->mailbox, memory_order_acquire);

	if (mail == NULL)
		return false;
	atomic_store_explicit(&w->mailbox, NULL, memory_order_relaxed);
	engine_release(&w->engine);
	mail->result = mail->fn(mail->arg);
	sem_post(&w->answered);
	return true;
}

/* ---- doorbells -------------------------------------------------------------------------- */

/* @return whether a doorbell was rung and not taken yet */
static bool worker_doorbells_pending(const struct worker *w)
{
	struct doorbell_set *set;

	cds_list_for_each_entry (set, &w->doorbells, node) {
		for (unsigned int i = 0; i < set->words; i++) {
			if (atomic_load_explicit(&set->db->summary[i], memory_order_relaxed) != 0)
				return true;
		}
	}
	return false;
}

/* Takes one word of doorbell bits. A client may set any bit: those without a QP mean nothing. */
static void worker_take_bits(struct worker *w, struct doorbell_set *set, unsigned int word)
{
	uint64_t bits = atomic_exchange(&set->db->bits[word], 0);
	struct qp **row = set->row[word];

	if (row == NULL)
		return;
	for (; bits != 0; bits &= bits - 1) {
		struct qp *qp = row[__builtin_ctzll(bits)];

		if (qp != NULL)
			engine_doorbell(&w->engine, qp);
	}
}

/* Takes the doorbells of all clients. @return whether there were any */
static bool worker_scan_doorbells(struct worker *w)
{
	struct doorbell_set *set;
	bool any = false;

	cds_list_for_each_entry (set, &w->doorbells, node) {
		for (unsigned int i = 0; i < set->words; i++) {
			_Atomic uint64_t *summary = &set->db->summary[i];
			uint64_t words;

			/* An exchange would take the cache line away from the client each round. */
			if (atomic_load_explicit(summary, memory_order_relaxed) == 0)
				continue;
			any = true;
			for (words = atomic_exchange(summary, 0); words != 0; words &= words - 1)
				worker_take_bits(w, set,
						 i * 64 + (unsigned int)__builtin_ctzll(words));
		}
	}
	return any;
}

/* ---- inbox ------------------------------------------------------------------------------ */

/* The payload is in the item: hands it to its worker. */
static void inbox_gathered(struct dma *dma, struct dma_op *op, int error)
{
	struct inbox_item *item = op->ctx;
	struct worker *to = item->to;

	/* The client took back registered memory: as if the train was lost. */
	if (error != 0) {
		atomic_fetch_sub(&to->inbox_bytes, item->train.payload.len);
		free(item);
		return;
	}
	item->next = atomic_load(&to->inbox);
	while (!atomic_compare_exchange_weak(&to->inbox, &item->next, item))
		;
	worker_wake(to);
}

/* Sends a train to a QP of another worker. */
static void inbox_send(struct worker *from, struct worker *to, const struct train *t)
{
	struct inbox_item *item;
	struct dma_op *op;

	item = atomic_load(&to->inbox_bytes) <= INBOX_LIMIT ? malloc(sizeof(*item) + t->payload.len)
							    : NULL;
	if (item == NULL) {
		/* To a group it was sent, whomever it does not reach. */
		if (!t->group)
			engine_not_sent(&from->engine, t, t->count);
		return;
	}
	item->to = to;
	item->train = *t;
	item->path = *t->path;
	item->train.path = &item->path;
	atomic_fetch_add(&to->inbox_bytes, t->payload.len);
	op = dma_submit(from->dma);
	op->src = t->payload;
	op->dst = dma_local(from->dma, item->data, t->payload.len);
	op->done = inbox_gathered;
	op->ctx = item;
}

/* Sends a train to a QP of this daemon. Whether its device has that address, its engine checks. */
static void worker_tx_local(struct worker *w, const struct train *t);

/*
 * Hands a train to the QPs of the group it is for, but not to the one that sent it: what arrives
 * through a socket for those of its device, any other for those of private devices.
 */
static void worker_rx_group(struct worker *w, const struct train *t)
{
	bool wire = t->path->route == ROUTE_UDP;
	const struct device *dev = wire ? udp_port_device(w->udp, t->path) : NULL;
	const struct mcast_group *g = mcast_find(&w->host->mcast, dev, t->path->dgid);
	const struct mcast_member *m;
	struct train copy = *t;

	if (g == NULL) {
		/* It is counted as what reaches no QP is. */
		engine_rx(&w->engine, t);
		return;
	}
	copy.group = true;
	cds_list_for_each_entry_rcu (m, &g->members, node) {
		if (m->qpn == t->src_qpn && (!wire || device_owns_gid(dev, t->path->sgid)))
			continue;
		copy.dst_qpn = m->qpn;
		worker_tx_local(w, &copy);
	}
}

/* Hands in a train that arrived, past captures and tap. */
static void worker_rx(struct engine *e, const struct train *t)
{
	struct worker *w = e->host;

	if (t->dst_qpn == QPN_GROUP) {
		worker_rx_group(w, t);
		return;
	}
	/* One of this daemon's may have left from where a capture does not look. */
	if (capture_active(&w->capture) && t->path->route == ROUTE_LOCAL) {
		const struct qp *qp = engine_find_qp(e, t->dst_qpn);

		if (qp != NULL)
			capture_train(&w->capture, qp->p.dev, qp->qpn, CAPTURE_RX, t, NULL);
	}
	if (w->tap.active || t->icrc_xor != 0)
		tap_rx(&w->tap, t);
	else
		engine_rx(e, t);
}

/* Hands in what other workers sent. It stays in place until inbox_release(). */
static bool inbox_receive(struct worker *w)
{
	struct inbox_item *item, *next;

	if (atomic_load_explicit(&w->inbox, memory_order_relaxed) == NULL)
		return false;
	for (item = atomic_exchange(&w->inbox, NULL); item != NULL; item = next) {
		next = item->next;
		item->next = w->arrived;
		w->arrived = item;
	}
	for (item = w->arrived; item != NULL; item = item->next) {
		item->train.payload = dma_local(w->dma, item->data, item->train.payload.len);
		worker_rx(&w->engine, &item->train);
	}
	return true;
}

/* Frees what inbox_receive() handed in. */
static void inbox_release(struct worker *w)
{
	while (w->arrived != NULL) {
		struct inbox_item *item = w->arrived;

		w->arrived = item->next;
		atomic_fetch_sub(&w->inbox_bytes, item->train.payload.len);
		free(item);
	}
}

/* ---- what the engine asks of its host --------------------------------------------------- */

/* As declared above. */
static void worker_tx_local(struct worker *w, const struct train *t)
{
	uint32_t owner = QPN_WORKER(t->dst_qpn);

	if (owner == w->index || t->dst_qpn == QPN_GROUP)
		worker_rx(&w->engine, t);
	else if (owner < w->host->workers)
		inbox_send(w, w->host->worker[owner], t);
}

/*
 * Hands a train to its port, past the captures.
 * @dev, @qpn: the QP that sends it
 * @note: what a fault did to it, for the captures; NULL: none did
 */
static void worker_port_tx(struct worker *w, const struct device *dev, uint32_t qpn,
			   const struct train *t, const char *note)
{
	bool capture = capture_active(&w->capture);
	struct packet_fate fate;
	struct train captured;

	if (device_is_down(dev)) {
		engine_not_sent(&w->engine, t, t->count);
		return;
	}
	switch ((enum route)t->path->route) {
	case ROUTE_LOCAL:
		if (capture) {
			captured = *t;
			captured.captured =
				(uint8_t)capture_train(&w->capture, dev, qpn, CAPTURE_TX, t, note);
			t = &captured;
		}
		worker_tx_local(w, t);
		break;
	case ROUTE_UDP:
		engine_not_sent(&w->engine, t, udp_port_tx(w->udp, t, capture ? &fate : NULL));
		if (capture)
			capture_sent(&w->capture, dev, qpn, t, &fate, note);
		break;
	case ROUTE_NONE:
		engine_not_sent(&w->engine, t, t->count);
		if (capture)
			capture_train(&w->capture, dev, qpn, CAPTURE_TX, t,
				      note != NULL ? note : "lost: no route");
		break;
	}
}

/* engine_ops.tx */
static void worker_tx(struct engine *e, struct qp *qp, const struct train *t)
{
	struct worker *w = e->host;

	if (w->tap.active)
		tap_tx(&w->tap, qp->p.dev, qp->qpn, t);
	else
		worker_port_tx(w, qp->p.dev, qp->qpn, t, NULL);
}

/* engine_ops.tx_ready */
static bool worker_tx_ready(struct engine *e, const struct path *path)
{
	struct worker *w = e->host;

	return path->route != ROUTE_UDP || udp_port_ready(w->udp);
}

/* engine_ops.route: an address of this daemon is never reached through a socket. */
static void worker_route(struct engine *e, const struct device *dev, struct path *path)
{
	struct worker *w = e->host;

	path->route = ROUTE_NONE;
	path->max_train = LOCAL_MAX_TRAIN;
	path->window = LOCAL_WINDOW;
	/* Private devices are a network of their own, whose groups the wire knows nothing of. */
	if (gid_is_multicast(path->dgid) ? !((const struct host_device *)dev)->udp
					 : host_owns_gid(w->host, path->dgid))
		path->route = ROUTE_LOCAL;
	else if (w->has_udp)
		udp_port_route(w->udp, dev, path);
}

/* engine_ops.time */
static uint64_t worker_time(struct engine *e)
{
	return host_now();
}

/* engine_ops.qp_event */
static void worker_qp_event(struct engine *e, struct qp *qp, enum ibv_event_type type)
{
	struct qp_opener *opener;

	if (qp->p.type != IBV_QPT_XRC_RECV) {
		client_async_event(qp->p.client, type, qp->p.index, qp->qpn);
		return;
	}
	cds_list_for_each_entry (opener, &qp->openers, node)
		client_async_event(opener->client, type, opener->index, qp->qpn);
}

/* engine_ops.cq_error */
static void worker_cq_error(struct engine *e, struct cq *cq)
{
	client_async_event(cq->client, IBV_EVENT_CQ_ERR, cq->handle, 0);
}

/* engine_ops.srq_limit */
static void worker_srq_limit(struct engine *e, struct srq *srq)
{
	client_async_event(srq->client, IBV_EVENT_SRQ_LIMIT_REACHED, srq->handle, 0);
}

/* engine_ops.cq_event */
static void worker_cq_event(struct engine *e, struct cq *cq)
{
	client_cq_event(cq);
}

/* engine_ops.find_device */
static const struct device *worker_find_device(struct engine *e, const uint8_t gid[16])
{
	const struct worker *w = e->host;

	return host_find_device(w->host, gid);
}

static_assert(CONFIG_MAX_DEVICES <= ENGINE_MAX_DEVICES, "engines count for every device");

/* engine_ops.grace_begin */
static void worker_grace_begin(struct engine *e)
{
	struct worker *w = e->host;

	for (unsigned int i = 0; i < w->host->workers; i++)
		w->grace[i] =
			atomic_load_explicit(&w->host->worker[i]->rounds, memory_order_relaxed);
}

/* engine_ops.grace_over: who sleeps is between two rounds */
static bool worker_grace_over(struct engine *e)
{
	struct worker *w = e->host;

	for (unsigned int i = 0; i < w->host->workers; i++) {
		struct worker *other = w->host->worker[i];

		if (other != w &&
		    atomic_load_explicit(&other->rounds, memory_order_acquire) == w->grace[i] &&
		    vernic_load_acquire(&other->page->sleeping) == 0)
			return false;
	}
	return true;
}

static const struct engine_ops worker_engine_ops = {
	.tx = worker_tx,
	.tx_ready = worker_tx_ready,
	.route = worker_route,
	.qp_event = worker_qp_event,
	.cq_error = worker_cq_error,
	.srq_limit = worker_srq_limit,
	.cq_event = worker_cq_event,
	.grace_begin = worker_grace_begin,
	.grace_over = worker_grace_over,
	.time = worker_time,
	.find_device = worker_find_device,
	.fault_rx = verbs_fault_rx,
	.fault_request = verbs_fault_request,
	.fault_send = verbs_fault_send,
	.fault_recv = verbs_fault_recv,
	.fault_cqe = verbs_fault_cqe,
	.fault_release = verbs_fault_release,
};

/* ---- what the tap asks of its host ------------------------------------------------------ */

/* tap_ops.send */
static void worker_tap_send(void *host, const struct device *dev, uint32_t qpn,
			    const struct train *t, const char *note)
{
	worker_port_tx(host, dev, qpn, t, note);
}

/* tap_ops.receive */
static void worker_tap_receive(void *host, const struct train *t)
{
	struct worker *w = host;

	engine_rx(&w->engine, t);
}

/* tap_ops.note */
static void worker_tap_note(void *host, enum fault_point point, const struct device *dev,
			    uint32_t qpn, const struct train *t, const char *note)
{
	struct worker *w = host;

	if (capture_active(&w->capture))
		capture_train(&w->capture, dev, qpn, point == FAULT_RX ? CAPTURE_RX : CAPTURE_TX, t,
			      note);
}

/* tap_ops.ready */
static bool worker_tap_ready(void *host, const struct path *path)
{
	struct worker *w = host;

	return worker_tx_ready(&w->engine, path);
}

static const struct tap_ops worker_tap_ops = {
	.send = worker_tap_send,
	.receive = worker_tap_receive,
	.note = worker_tap_note,
	.ready = worker_tap_ready,
};

/* ---- the loop --------------------------------------------------------------------------- */

/* One round. @return whether there was, or is, something to do */
static bool worker_round(struct worker *w)
{
	bool busy;

	busy = worker_read_mail(w);
	busy |= worker_scan_doorbells(w);
	/* Not before the doorbells: a timeout counts from when the client posted, not earlier. */
	w->engine.now = host_now();
	if (w->tap.active)
		busy |= tap_run(&w->tap);
	if (w->has_udp)
		busy |= udp_port_receive(w->udp) > 0;
	busy |= inbox_receive(w);
	busy |= engine_run(&w->engine);
	if (w->has_udp) {
		udp_port_flush(w->udp);
		io_submit(w->io);
		io_recycle(w->io);
	}
	inbox_release(w);
	tap_release(&w->tap);
	rcu_quiescent_state();
	atomic_store_explicit(&w->rounds, w->rounds + 1, memory_order_release);
	return busy;
}

/* Sleeps until something wants the worker. */
static void worker_sleep(struct worker *w)
{
	uint64_t deadline, late, now;

	vernic_store_release(&w->page->sleeping, 1);
	vernic_full_barrier();
	if (worker_doorbells_pending(w) || atomic_load(&w->mailbox) != NULL ||
	    atomic_load(&w->inbox) != NULL)
		goto out;
	deadline = engine_deadline(&w->engine);
	late = tap_deadline(&w->tap);
	if (late < deadline)
		deadline = late;
	now = host_now();
	if (deadline <= now)
		goto out;
	/* Asleep it holds no reference: nobody has to wait for its quiescent state. */
	rcu_thread_offline();
	io_sleep(w->io, deadline == UINT64_MAX ? UINT64_MAX : deadline - now);
	rcu_thread_online();
out:
	vernic_store_release(&w->page->sleeping, 0);
}

/* Says which core the worker is on: who waits for it there gives the core away at once. */
static void worker_note_core(struct worker *w)
{
	uint32_t core = vernic_core();

	if (core == w->engine.core)
		return;
	w->engine.core = core;
	vernic_store_release(&w->page->core, core);
}

/* Leaves the core to its other hardware thread for a moment. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Rounds until worker_stop(). */
static void worker_loop(struct worker *w)
{
	uint64_t idle_since = 0; /* ns; 0: it is not */
	bool release = false;	 /* ACKs that are held go out this round */

	while (!w->stop) {
		uint64_t idle;

		w->engine.hold = !release;
		release = false;
		worker_note_core(w);
		if (worker_round(w)) {
			idle_since = 0;
			continue;
		}
		if (idle_since == 0)
			idle_since = w->engine.now;
		idle = w->engine.now - idle_since;
		/* Who received something and waits on this core cannot see it before it has it. */
		if (idle < w->patience.spin && !w->engine.awaited) {
			cpu_relax();
		} else if (idle < w->patience.awake || engine_holds(&w->engine)) {
			sched_yield();
			w->engine.awaited = false;
			/* The client has had its chance to answer. */
			release = engine_holds(&w->engine);
		} else {
			worker_sleep(w);
			idle_since = 0;
		}
	}
}

/* Binds the socket of an entry of a GID table. @return 0 or a negative errno with error written */
static int worker_bind_one(struct worker *w, struct host_device *d, unsigned int index, char *error,
			   size_t error_len)
{
	const struct gid_entry *gid = &d->dev.gids[index];
	int err;

	err = udp_port_add(w->udp, &d->dev, gid->raw, gid->ifindex, w->index, w->host->workers,
			   error, error_len);
	if (err == 0)
		w->has_udp = true;
	return err;
}

/* Binds the sockets of a device. @return 0 or a negative errno with error written */
static int worker_bind_all(struct worker *w, struct host_device *d, char *error, size_t error_len)
{
	int err = 0;

	for (unsigned int k = 0; err == 0 && k < d->dev.gid_count; k++) {
		if (device_gid(&d->dev, k) != NULL && d->bound[k])
			err = worker_bind_one(w, d, k, error, error_len);
	}
	return err;
}

/* Binds the sockets of all devices. @return 0 or a negative errno with w->error written */
static int worker_bind(struct worker *w)
{
	struct host_device *d;
	unsigned int i;
	int err = 0;

	host_for_each_device (w->host, i, d) {
		if (err == 0)
			err = worker_bind_all(w, d, w->error, w->error_len);
	}
	return err;
}

/* Makes what the worker needs, on its own thread. @return 0 or a negative errno */
static int worker_setup(struct worker *w, enum io_kind io_kind)
{
	int err = -ENOMEM;

	w->faults = fault_set_create(w->index);
	w->dma = dma_create(&mm_dma_backend, WORKER_BOUNCE);
	if (w->faults == NULL || w->dma == NULL) {
		snprintf(w->error, w->error_len, "worker %u: out of memory", w->index);
		goto fail_dma;
	}
	w->capture.worker = w->index;
	w->capture.dma = w->dma;
	err = engine_init(&w->engine, &worker_engine_ops, w, w->index, w->dma);
	if (err != 0) {
		snprintf(w->error, w->error_len, "worker %u: out of memory", w->index);
		goto fail_dma;
	}
	err = io_create(io_kind, w->wake_fd, WORKER_TX_BUFFERS, &w->io);
	if (err != 0) {
		snprintf(w->error, w->error_len, "worker %u: %s: %s", w->index,
			 io_kind == IO_URING ? "io_uring" : "input and output", strerror(-err));
		goto fail_engine;
	}
	w->udp = udp_port_create(w->io, &w->engine, worker_rx, &w->capture);
	if (w->udp == NULL) {
		err = -ENOMEM;
		snprintf(w->error, w->error_len, "worker %u: out of memory", w->index);
		goto fail_io;
	}
	tap_init(&w->tap, &worker_tap_ops, w, &w->engine, w->faults);
	verbs_faults_init(&w->verbs_faults, &w->engine, w->faults);
	err = worker_bind(w);
	if (err == 0)
		return 0;
	udp_port_destroy(w->udp);
fail_io:
	io_destroy(w->io);
fail_engine:
	engine_fini(&w->engine);
fail_dma:
	dma_destroy(w->dma);
	fault_set_destroy(w->faults);
	return err;
}

/* Undoes worker_setup(), and frees what other workers still sent here. */
static void worker_teardown(struct worker *w)
{
	struct inbox_item *item, *next;

	tap_fini(&w->tap);
	verbs_faults_fini(&w->verbs_faults);
	fault_set_destroy(w->faults);
	udp_port_destroy(w->udp);
	io_destroy(w->io);
	engine_fini(&w->engine);
	dma_destroy(w->dma);
	for (item = atomic_exchange(&w->inbox, NULL); item != NULL; item = next) {
		next = item->next;
		free(item);
	}
}

/* The thread. An io belongs to the thread that made it, so everything is made here. */
static void *worker_main(void *arg)
{
	struct worker *w = arg;
	char name[16];

	snprintf(name, sizeof(name), "worker %u", w->index);
	pthread_setname_np(pthread_self(), name);
	w->start_error = worker_setup(w, w->host->io);
	if (w->start_error != 0) {
		sem_post(&w->answered);
		return NULL;
	}
	rcu_register_thread();
	sem_post(&w->answered);
	worker_loop(w);
	rcu_unregister_thread();
	worker_teardown(w);
	return NULL;
}

/* Says how patient a worker may be on the CPUs the daemon has. */
static struct patience worker_choose_patience(unsigned int workers)
{
	cpu_set_t set;
	unsigned int cpus = 1;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		cpus = (unsigned int)CPU_COUNT(&set);
	if (cpus == 1)
		return patience_one_cpu;
	/* Two clients beside the workers: a pair that talks through them. */
	return cpus < workers + 2 ? patience_few_cpus : patience_many_cpus;
}

int worker_start(struct host *host, unsigned int index, char *error, size_t error_len)
{
	struct worker *w = alloc_lines(sizeof(*w));
	sigset_t all, before;
	int err;

	if (w == NULL) {
		snprintf(error, error_len, "worker %u: out of memory", index);
		return -ENOMEM;
	}
	w->host = host;
	w->index = index;
	w->page = &host->page->worker[index];
	w->error = error;
	w->error_len = error_len;
	w->patience = worker_choose_patience(host->workers);
	CDS_INIT_LIST_HEAD(&w->doorbells);
	sem_init(&w->answered, 0, 0);
	w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (w->wake_fd < 0) {
		err = -errno;
		snprintf(error, error_len, "worker %u: eventfd: %s", index, strerror(-err));
		goto fail;
	}
	/* Signals are the control thread's, but for those of the own memory (mapping.h). */
	sigfillset(&all);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = -pthread_create(&w->thread, NULL, worker_main, w);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err != 0) {
		snprintf(error, error_len, "worker %u: thread: %s", index, strerror(-err));
		goto fail_fd;
	}
	while (sem_wait(&w->answered) != 0)
		;
	err = w->start_error;
	if (err != 0) {
		pthread_join(w->thread, NULL);
		goto fail_fd;
	}
	host->worker[index] = w;
	return 0;
fail_fd:
	close(w->wake_fd);
fail:
	sem_destroy(&w->answered);
	free(w);
	return err;
}

/* worker_call(): the loop ends with this round. */
static int worker_stop_call(void *arg)
{
	struct worker *w = arg;

	w->stop = true;
	return 0;
}

void worker_stop(struct worker *w)
{
	worker_call(w, worker_stop_call, w);
	pthread_join(w->thread, NULL);
	w->host->worker[w->index] = NULL;
	close(w->wake_fd);
	sem_destroy(&w->answered);
	free(w);
}

struct engine *worker_engine(struct worker *w)
{
	return &w->engine;
}

int worker_wake_fd(const struct worker *w)
{
	return w->wake_fd;
}

/* ---- calls ------------------------------------------------------------------------------ */

struct doorbells_call {
	struct worker *w;
	struct doorbell_set *set;
};

/* worker_call() of worker_add_doorbells() */
static int worker_add_doorbells_call(void *arg)
{
	struct doorbells_call *call = arg;

	cds_list_add_tail(&call->set->node, &call->w->doorbells);
	return 0;
}

void worker_add_doorbells(struct worker *w, struct doorbell_set *set)
{
	struct doorbells_call call = {.w = w, .set = set};

	worker_call(w, worker_add_doorbells_call, &call);
}

/* worker_call() of worker_remove_doorbells() */
static int worker_remove_doorbells_call(void *arg)
{
	struct doorbells_call *call = arg;

	cds_list_del(&call->set->node);
	return 0;
}

void worker_remove_doorbells(struct worker *w, struct doorbell_set *set)
{
	struct doorbells_call call = {.w = w, .set = set};

	worker_call(w, worker_remove_doorbells_call, &call);
}

struct status_call {
	struct worker *w;
	struct worker_status *status;
};

/* worker_call() of worker_get_status() */
static int worker_get_status_call(void *arg)
{
	struct status_call *call = arg;
	struct worker *w = call->w;

	call->status->io = io_name(w->io);
	call->status->qps = w->engine.qp_count;
	engine_get_counters(&w->engine, &call->status->engine);
	call->status->udp = *udp_port_counters(w->udp);
	return 0;
}

void worker_get_status(struct worker *w, struct worker_status *status)
{
	struct status_call call = {.w = w, .status = status};

	worker_call(w, worker_get_status_call, &call);
}

struct capture_call {
	struct worker *w;
	uint32_t id;
	const struct capture_params *params;
};

/* worker_call() of worker_capture_start() */
static int worker_capture_start_call(void *arg)
{
	struct capture_call *call = arg;

	capture_start(&call->w->capture, call->id, call->params);
	return 0;
}

void worker_capture_start(struct worker *w, uint32_t id, const struct capture_params *params)
{
	struct capture_call call = {.w = w, .id = id, .params = params};

	worker_call(w, worker_capture_start_call, &call);
}

/* worker_call() of worker_capture_stop() */
static int worker_capture_stop_call(void *arg)
{
	struct capture_call *call = arg;

	capture_stop(&call->w->capture, call->id);
	return 0;
}

void worker_capture_stop(struct worker *w, uint32_t id)
{
	struct capture_call call = {.w = w, .id = id};

	worker_call(w, worker_capture_stop_call, &call);
}

struct device_call {
	struct worker *w;
	struct host_device *d;
	int index; /* of the GID table; -1: all */
	const uint8_t *gid;
	uint32_t ifindex;
	char *error;
	size_t error_len;
};

/* worker_call() of worker_bind_device() */
static int worker_bind_device_call(void *arg)
{
	struct device_call *call = arg;

	if (call->index < 0)
		return worker_bind_all(call->w, call->d, call->error, call->error_len);
	return worker_bind_one(call->w, call->d, (unsigned int)call->index, call->error,
			       call->error_len);
}

int worker_bind_device(struct worker *w, struct host_device *d, int index, char *error,
		       size_t error_len)
{
	struct device_call call = {
		.w = w, .d = d, .index = index, .error = error, .error_len = error_len};

	return worker_call(w, worker_bind_device_call, &call);
}

/* worker_call() of worker_unbind() */
static int worker_unbind_call(void *arg)
{
	struct device_call *call = arg;

	udp_port_remove(call->w->udp, &call->d->dev, call->gid);
	return 0;
}

void worker_unbind(struct worker *w, struct host_device *d, const uint8_t *gid)
{
	struct device_call call = {.w = w, .d = d, .gid = gid};

	worker_call(w, worker_unbind_call, &call);
}

/* worker_call() of worker_join() */
static int worker_join_call(void *arg)
{
	struct device_call *call = arg;
	int err;

	err = udp_port_join(call->w->udp, &call->d->dev, call->gid, call->ifindex, call->error,
			    call->error_len);
	if (err == 0)
		call->w->has_udp = true;
	return err;
}

int worker_join(struct worker *w, struct host_device *d, const uint8_t gid[16], uint32_t ifindex,
		char *error, size_t error_len)
{
	struct device_call call = {.w = w,
				   .d = d,
				   .gid = gid,
				   .ifindex = ifindex,
				   .error = error,
				   .error_len = error_len};

	return worker_call(w, worker_join_call, &call);
}

/* worker_call() of worker_fail_device() */
static int worker_fail_device_call(void *arg)
{
	struct device_call *call = arg;

	engine_fail_device(&call->w->engine, &call->d->dev);
	return 0;
}

void worker_fail_device(struct worker *w, struct host_device *d)
{
	struct device_call call = {.w = w, .d = d};

	worker_call(w, worker_fail_device_call, &call);
}

/* worker_call() of worker_forget_device() */
static int worker_forget_device_call(void *arg)
{
	struct device_call *call = arg;

	tap_forget_device(&call->w->tap, &call->d->dev);
	capture_forget_device(&call->w->capture, &call->d->dev);
	call->w->engine.device[call->d->dev.index] = (struct qp_counters){0};
	return 0;
}

void worker_forget_device(struct worker *w, struct host_device *d)
{
	struct device_call call = {.w = w, .d = d};

	worker_call(w, worker_forget_device_call, &call);
}

struct fault_call {
	struct worker *w;
	const struct fault_rule *rule;
	uint32_t id;
	struct worker_faults *faults;
};

/* Tells who asks the rules. */
static void worker_faults_changed(struct worker *w, bool removed)
{
	tap_changed(&w->tap, removed);
	verbs_faults_changed(&w->verbs_faults, removed);
}

/* worker_call() of worker_add_fault() */
static int worker_add_fault_call(void *arg)
{
	struct fault_call *call = arg;
	int err = fault_set_add(call->w->faults, call->rule);

	if (err == 0)
		worker_faults_changed(call->w, false);
	return err;
}

int worker_add_fault(struct worker *w, const struct fault_rule *rule)
{
	struct fault_call call = {.w = w, .rule = rule};

	return worker_call(w, worker_add_fault_call, &call);
}

/* worker_call() of worker_remove_faults() */
static int worker_remove_faults_call(void *arg)
{
	struct fault_call *call = arg;

	fault_set_remove(call->w->faults, call->id);
	worker_faults_changed(call->w, true);
	return 0;
}

void worker_remove_faults(struct worker *w, uint32_t id)
{
	struct fault_call call = {.w = w, .id = id};

	worker_call(w, worker_remove_faults_call, &call);
}

/* worker_call() of worker_get_faults() */
static int worker_get_faults_call(void *arg)
{
	struct fault_call *call = arg;
	const struct fault_rule *r;
	uint32_t i;

	for (i = 0; (r = fault_set_rule(call->w->faults, i)) != NULL; i++) {
		call->faults->matched[i] += r->matched;
		call->faults->struck[i] += r->struck;
	}
	call->faults->held += call->w->tap.held.count;
	call->faults->lost += call->w->tap.counters.lost;
	return 0;
}

void worker_get_faults(struct worker *w, struct worker_faults *faults)
{
	struct fault_call call = {.w = w, .faults = faults};

	worker_call(w, worker_get_faults_call, &call);
}
