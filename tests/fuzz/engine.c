// SPDX-License-Identifier: BSD-2-Clause
/*
 * Anything into the engine: an input is a program of acts on eight QPs of all types in all states:
 * trains and raw packets arrive, what was sent comes back changed or not, WQEs are posted, states
 * change, time passes, transfers fail, regions go. After every act the QPs must be consistent
 * (PSNs in order, windows kept, no more answers due than allowed), nothing outside of the regions
 * and rights is touched, each WQE completes once and in order; at the end everything drains.
 */
#include <urcu-qsbr.h>

#include "transport/qp.h"
#include "wire/bytes.h"

#include "port.h"

#define QPS 8
#define DEPTH 16
#define SGES 3
#define STRIDE 256 /* bytes of a send slot: 64 of WQE, 48 of SGEs, the rest data */
#define DATA 128
#define RECV_STRIDE 64 /* 16 of WQE, 48 of SGEs */
#define SRQ_DEPTH 32
#define CQ_DEPTH 256
#define MR_SIZE 65536
#define PAGE 4096
#define MAX_ACTS 400
#define MAX_PACKET 4200	   /* bytes of a datagram an input may write out */
#define SENT_KEPT 8	   /* bursts that may come back */
#define SEGMENT_SPARE 4096 /* bytes: where a payload may begin */

/* The client's memory: three regions, each at the address its bytes have. */
enum { MR_OPEN, MR_READABLE, MR_FOREIGN, MRS };

struct mm {
	uint8_t *base; /* MRS * MR_SIZE bytes */
};

struct side {
	struct qp *qp;
	struct vernic_qp_ring *ring;
	uint8_t *sq, *rq;
	uint32_t sq_posted, sq_done; /* WQEs */
	uint32_t rq_posted, rq_done;
	bool broken; /* the client wrote nonsense into the ring: its WQEs prove nothing */
};

struct memory {
	struct vernic_qp_ring ring;
	uint8_t sq[DEPTH * STRIDE];
	uint8_t rq[DEPTH * RECV_STRIDE];
};

/* Something that arrived: it stays in place until the round is over. */
struct arrived {
	struct arrived *next;
	uint8_t data[];
};

/* What does not depend on the input: made once. */
static struct fuzz {
	struct engine e;
	struct dma *dma;
	struct device dev;
	struct pd pd, foreign;
	struct mm mm;
	struct mr mr[MRS];
	bool registered; /* MR_OPEN is */
	struct io io;
	struct udp_port *port;
	struct path path; /* of the trains that arrive */
	struct memory memory[QPS];
	struct {
		_Alignas(
			64) uint8_t bytes[VERNIC_CQE_OFFSET + CQ_DEPTH * sizeof(struct vernic_cqe)];
	} cq_memory;
	struct vernic_srq_ring srq_ring;
	_Atomic uint32_t srq_index[SRQ_DEPTH];
	uint8_t srq_wqe[SRQ_DEPTH * RECV_STRIDE];

	/* of this input */
	struct input in;
	struct cq cq;
	uint32_t cq_cons;
	struct srq srq;
	bool slot_out[SRQ_DEPTH]; /* posted, and no CQE has named it yet */
	struct side side[QPS];
	struct arrived *arrived;
	uint32_t unmapped; /* a page of MR_OPEN that the client has taken away, + 1; 0: none */
	bool busy;	   /* the port takes nothing */
	bool echo;	   /* what is sent may arrive at once, as from a local QP */
	struct {
		uint8_t data[IO_TX_BUFFER];
		uint32_t len, segment;
	} sent[SENT_KEPT];
	uint32_t sent_count;
} f;

static uint32_t below(uint32_t n)
{
	return take_below(&f.in, n);
}

/* ---- the engine's surroundings -------------------------------------------------------------- */

/* Copies between two lists, of which the client's must lie in a region it may be in. */
static int copy(struct mm *mm, bool write, const struct iovec *local, unsigned int nlocal,
		const struct iovec *remote, unsigned int nremote)
{
	unsigned int i = 0, k = 0;
	size_t io = 0, ko = 0;

	for (unsigned int n = 0; n < nremote; n++) {
		uint64_t at = (uintptr_t)remote[n].iov_base - (uintptr_t)mm->base;
		uint64_t region = at / MR_SIZE;

		CHECK(region < MR_FOREIGN && remote[n].iov_len <= MR_SIZE - at % MR_SIZE);
		CHECK(!write || region == MR_OPEN);
		/* Not by chance: how operations are batched depends on where buffers lie. */
		if (f.unmapped && at < (uint64_t)f.unmapped * PAGE &&
		    at + remote[n].iov_len > (uint64_t)(f.unmapped - 1) * PAGE)
			return -EFAULT;
	}
	while (i < nlocal && k < nremote) {
		size_t n = local[i].iov_len - io;
		uint8_t *l = (uint8_t *)local[i].iov_base + io;
		uint8_t *r = (uint8_t *)remote[k].iov_base + ko;

		if (remote[k].iov_len - ko < n)
			n = remote[k].iov_len - ko;
		memmove(write ? r : l, write ? l : r, n);
		io += n;
		ko += n;
		if (io == local[i].iov_len) {
			i++;
			io = 0;
		}
		if (ko == remote[k].iov_len) {
			k++;
			ko = 0;
		}
	}
	return 0;
}

static int backend_readv(struct mm *mm, const struct iovec *l, unsigned int nl,
			 const struct iovec *r, unsigned int nr)
{
	return copy(mm, false, l, nl, r, nr);
}

static int backend_writev(struct mm *mm, const struct iovec *l, unsigned int nl,
			  const struct iovec *r, unsigned int nr)
{
	return copy(mm, true, l, nl, r, nr);
}

static const struct dma_backend backend = {.readv = backend_readv, .writev = backend_writev};

/* What is sent has a payload that fits its packets. */
static void fuzz_tx(struct engine *e, struct qp *qp, const struct train *t)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < t->payload.count; i++)
		sum += t->payload.seg[i].len;
	CHECK(sum == t->payload.len);
	CHECK(t->count >= 1 && t->psn <= PSN_MASK && t->dst_qpn <= QPN_MASK);
	CHECK(t->payload.len <= t->path->max_train || t->count == 1);
	if (t->count > 1)
		CHECK(t->mtu == qp->mtu && sum > (t->count - 1) * t->mtu &&
		      sum <= t->count * t->mtu);
	else
		CHECK(sum <= qp->mtu);
	CHECK(t->last || sum == t->count * t->mtu);
	CHECK(qp->state != IBV_QPS_RESET && qp->state != IBV_QPS_INIT);
	udp_port_tx(f.port, t, NULL);
	if (f.echo && below(4) == 1)
		engine_rx(e, t);
}

static void port_sent(struct io *io, const uint8_t *data, uint32_t len, uint32_t segment)
{
	uint32_t i = f.sent_count++ % SENT_KEPT;

	memcpy(f.sent[i].data, data, len);
	f.sent[i].len = len;
	f.sent[i].segment = segment;
}

static bool fuzz_ready(struct engine *e, const struct path *path)
{
	return !f.busy && udp_port_ready(f.port);
}

static void fuzz_route(struct engine *e, const struct device *dev, struct path *path)
{
	path->route = ROUTE_NONE;
	path->max_train = MAX_TRAIN;
	path->window = MAX_WINDOW;
	udp_port_route(f.port, dev, path);
}

static void fuzz_qp_event(struct engine *e, struct qp *qp, enum ibv_event_type type)
{
}

static void fuzz_cq(struct engine *e, struct cq *cq)
{
}

static void fuzz_srq(struct engine *e, struct srq *srq)
{
}

static const struct engine_ops ops = {
	.tx = fuzz_tx,
	.tx_ready = fuzz_ready,
	.route = fuzz_route,
	.qp_event = fuzz_qp_event,
	.cq_error = fuzz_cq,
	.cq_event = fuzz_cq,
	.srq_limit = fuzz_srq,
};

/* QPs 2k and 2k + 1 are each other's peers. */
static const struct {
	enum ibv_qp_type type;
	bool srq;
} kinds[QPS] = {
	{IBV_QPT_RC, false}, {IBV_QPT_RC, false}, {IBV_QPT_RC, true},  {IBV_QPT_RC, false},
	{IBV_QPT_UC, false}, {IBV_QPT_UC, false}, {IBV_QPT_UD, false}, {IBV_QPT_UD, true},
};

static void init_once(void)
{
	static const uint8_t gid[16] = {[10] = 0xff, 0xff, 10, 0, 0, 1};
	static const uint32_t access[MRS] = {
		[MR_OPEN] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | VERNIC_ACCESS_FLUSH,
		[MR_READABLE] = IBV_ACCESS_REMOTE_READ,
		[MR_FOREIGN] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};

	rcu_register_thread();
	f.dma = dma_create(&backend, 8192);
	CHECK(f.dma && engine_init(&f.e, &ops, &f, 0, f.dma) == 0);
	f.dev.attr.max_qp_rd_atom = f.dev.attr.max_qp_init_rd_atom = VERNIC_MAX_RD_ATOMIC;
	f.dev.port_attr.active_mtu = IBV_MTU_4096;
	f.dev.port_attr.pkey_tbl_len = 1;
	f.dev.features = DEVICE_FEATURES_ALL;
	f.dev.gid_count = 1;
	memcpy(f.dev.gids[0].raw, gid, sizeof(gid));
	f.dev.gids[0].valid = 1;
	pthread_mutex_init(&f.dev.atomic_lock, NULL);
	pthread_spin_init(&f.dev.window_lock, PTHREAD_PROCESS_PRIVATE);
	f.dev.mrs = mr_table_create();
	CHECK(f.dev.mrs);
	memcpy(f.path.sgid, gid, sizeof(gid));
	memcpy(f.path.dgid, gid, sizeof(gid));
	f.pd = (struct pd){.dev = &f.dev, .handle = 3};
	f.foreign = (struct pd){.dev = &f.dev, .handle = 4};
	f.mm.base = aligned_alloc(4096, MRS * MR_SIZE);
	CHECK(f.mm.base);
	memset(f.mm.base, 0, MRS * MR_SIZE);
	for (unsigned int i = 0; i < MRS; i++) {
		f.mr[i] = (struct mr){.access = access[i],
				      .pd = i == MR_FOREIGN ? &f.foreign : &f.pd,
				      .mm = &f.mm,
				      .iova = 0x10000 * (1 + i),
				      .addr = (uintptr_t)f.mm.base + i * MR_SIZE,
				      .length = MR_SIZE};
		CHECK(mr_table_add(f.dev.mrs, &f.mr[i]) == 0);
	}
	f.registered = true;
	f.io.sent = port_sent;
	f.port = port_make(&f.io, &f.e, engine_rx, &f.dev, gid);
	pthread_spin_init(&f.srq.lock, PTHREAD_PROCESS_PRIVATE);
}

/* Registers MR_OPEN, or takes it back. */
static void reregister(bool registered)
{
	if (registered == f.registered)
		return;
	if (registered)
		CHECK(mr_table_add(f.dev.mrs, &f.mr[MR_OPEN]) == 0);
	else
		mr_table_remove(f.dev.mrs, &f.mr[MR_OPEN]);
	f.registered = registered;
}

static void begin(const uint8_t *data, size_t size)
{
	f.in = (struct input){data, size};
	f.e.now = 1000000000;
	f.e.next_slot = 1;
	/* QPNs are the same for each input. */
	memset(f.e.generation, 0, 2 * QPS);
	f.unmapped = 0;
	f.busy = f.echo = false;
	f.sent_count = 0;
	reregister(true);
	memset(f.memory, 0, sizeof(f.memory));
	memset(&f.cq_memory, 0, sizeof(f.cq_memory));
	cq_init(&f.cq, f.cq_memory.bytes, CQ_DEPTH);
	f.cq.dev = &f.dev;
	f.cq_cons = 0;
	atomic_store(&f.srq_ring.prod, 0);
	memset(f.slot_out, 0, sizeof(f.slot_out));
	f.srq.dev = &f.dev;
	f.srq.pd = &f.pd;
	f.srq.ring = &f.srq_ring;
	f.srq.index = f.srq_index;
	f.srq.wqe = f.srq_wqe;
	f.srq.depth = SRQ_DEPTH;
	f.srq.slot_mask = SRQ_DEPTH - 1;
	f.srq.stride = RECV_STRIDE;
	f.srq.max_sge = SGES;
	f.srq.max_wr = SRQ_DEPTH;
	f.srq.cons = f.srq.limit = 0;
	for (unsigned int i = 0; i < QPS; i++) {
		struct side *s = &f.side[i];
		struct memory *m = &f.memory[i];
		struct qp_params p = {.dev = &f.dev,
				      .pd = &f.pd,
				      .send_cq = &f.cq,
				      .recv_cq = &f.cq,
				      .srq = kinds[i].srq ? &f.srq : NULL,
				      .type = kinds[i].type,
				      .sq_sig_all = i % 2,
				      .index = i,
				      .cap = {DEPTH, DEPTH, SGES, SGES, DATA},
				      .ring = &m->ring,
				      .sq = m->sq,
				      .rq = m->rq,
				      .sq_depth = DEPTH,
				      .rq_depth = kinds[i].srq ? 0 : DEPTH,
				      .sq_stride = STRIDE,
				      .rq_stride = RECV_STRIDE,
				      .sq_data = DATA};

		*s = (struct side){.ring = &m->ring, .sq = m->sq, .rq = m->rq};
		CHECK(qp_create(&f.e, &p, &s->qp) == 0);
	}
}

/* ---- what must be true ----------------------------------------------------------------------- */

/* Whether the PSNs, windows and queues of a QP are as qp.h says. */
static void check_qp(const struct side *s)
{
	const struct qp *qp = s->qp;
	const struct requester *r = &qp->req;
	const struct responder *p = &qp->resp;

	CHECK(atomic_load(&s->ring->state) == qp->state && qp->attr.qp_state == qp->state);
	CHECK((r->una_psn | r->send_psn | r->max_psn | r->psn | p->epsn) <= PSN_MASK);
	CHECK(p->msn <= 0xffffff && p->job_tail - p->job_head <= RESPONDER_JOBS);
	CHECK(r->begun - r->una <= DEPTH && r->next - r->una <= r->begun - r->una);
	if (qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD) {
		CHECK(psn_diff(r->una_psn, r->send_psn) <= 0);
		CHECK(psn_diff(r->send_psn, r->max_psn) <= 0);
		CHECK(psn_diff(r->max_psn, r->psn) <= 0);
		CHECK(s->broken || r->begun - r->una <= s->sq_posted - r->una);
	}
	if (qp->p.type != IBV_QPT_RC || qp->state < IBV_QPS_RTR || qp->state == IBV_QPS_ERR)
		return;
	CHECK(p->job_fresh <= qp->attr.max_dest_rd_atomic);
	CHECK(psn_diff(p->ack_psn, p->epsn) < 0);
	if (p->kind == KIND_WRITE)
		CHECK(p->offset <= p->length);
	if (qp->state < IBV_QPS_RTS)
		return;
	CHECK(r->window >= qp->mtu && r->window <= qp->path.window);
	CHECK((uint32_t)psn_diff(r->max_psn, r->una_psn) * qp->mtu <= qp->path.window);
	CHECK(r->rd_tail - r->rd_head <= VERNIC_MAX_RD_ATOMIC);
	CHECK(r->rd_entries <= r->begun - r->una);
	CHECK(r->retry_left <= qp->attr.retry_cnt && r->rnr_left <= qp->attr.rnr_retry);
}

/* A SRQ slot is the client's again: it was posted, and no other CQE has given it back. */
static void slot_back(uint32_t slot)
{
	CHECK(slot < SRQ_DEPTH && f.slot_out[slot]);
	f.slot_out[slot] = false;
}

/* Takes the CQEs: a WQE was posted, and completes once and in order. */
static void poll(void)
{
	for (;; f.cq_cons++) {
		const struct vernic_cqe *c = &f.cq.cqe[f.cq_cons % CQ_DEPTH];
		struct side *s;

		if (vernic_load_acquire(&c->lap) != f.cq_cons / CQ_DEPTH + 1)
			break;
		CHECK(c->qp_index < QPS && c->status <= IBV_WC_GENERAL_ERR);
		CHECK(c->data_len <= VERNIC_CQE_DATA);
		s = &f.side[c->qp_index];
		if (c->queue == VERNIC_CQE_SRQ) {
			CHECK(c->wr_id == c->wqe);
			slot_back(c->wqe);
		} else if (c->queue == VERNIC_CQE_SQ && !s->broken) {
			CHECK(c->wqe - s->sq_done < s->sq_posted - s->sq_done);
			CHECK(c->wr_id == c->wqe);
			s->sq_done = c->wqe + 1;
		} else if (c->queue == VERNIC_CQE_RQ && !s->broken) {
			CHECK(c->wqe == s->rq_done++ && c->wr_id == c->wqe);
			CHECK(c->wqe < s->rq_posted);
		}
	}
	vernic_store_release(&f.cq.ring->cons, f.cq_cons);
}

/* A round of the worker's. @return whether there is more to do */
static bool run_once(void)
{
	bool more = engine_run(&f.e);

	CHECK(dma_pending(f.dma) == 0);
	for (unsigned int i = 0; i < QPS; i++)
		check_qp(&f.side[i]);
	port_flush(f.port);
	while (f.arrived) {
		struct arrived *a = f.arrived;

		f.arrived = a->next;
		free(a);
	}
	return more;
}

/* Runs the engine until it rests; a busy port never lets it. */
static void settle(void)
{
	unsigned int rounds = 0;

	f.busy = false;
	while (run_once())
		CHECK(rounds++ < 10000);
}

/* ---- acts ----------------------------------------------------------------------------------- */

/* To RESET: the CQEs there are were of before. */
static void reset(struct side *s)
{
	const struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
	uint32_t slot;

	poll();
	CHECK(qp_modify(s->qp, &a, IBV_QP_STATE) == 0);
	slot = qp_take_srq_slot(s->qp);
	poll();
	if (slot != VERNIC_NO_SLOT)
		slot_back(slot);
	s->sq_posted = s->sq_done = s->rq_posted = s->rq_done = 0;
	s->broken = false;
}

/* Brings a QP to a state by way of RESET. */
static void revive(struct side *s)
{
	bool rc = s->qp->p.type == IBV_QPT_RC, ud = s->qp->p.type == IBV_QPT_UD;
	struct side *peer = &f.side[(s - f.side) ^ 1];
	uint32_t stop = below(16), bits = (uint32_t)take(&f.in, 2);
	struct ibv_qp_attr a = {
		.port_num = 1,
		.qkey = 1,
		.qp_access_flags = bits & 1 ? IBV_ACCESS_REMOTE_READ
					    : IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						      IBV_ACCESS_REMOTE_ATOMIC,
		.path_mtu = (enum ibv_mtu)(IBV_MTU_256 + (bits >> 1) % 5),
		.dest_qp_num = peer->qp->qpn,
		.rq_psn = bits & 0x20 ? PSN_MASK - 3 : 0,
		.sq_psn = bits & 0x40 ? PSN_MASK - 3 : 0,
		.max_dest_rd_atomic = (uint8_t)(bits & 0x80 ? 1 : 4),
		.max_rd_atomic = (uint8_t)(bits & 0x100 ? 1 : 4),
		.timeout = (uint8_t)(bits & 0x200 ? 0 : 12),
		.retry_cnt = (uint8_t)(bits >> 10 & 7),
		.rnr_retry = (uint8_t)(bits >> 13 & 7),
		.min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1},
	};

	memcpy(a.ah_attr.grh.dgid.raw, f.dev.gids[0].raw, 16);
	reset(s);
	if (stop == 1)
		return;
	a.qp_state = IBV_QPS_INIT;
	CHECK(qp_modify(s->qp, &a,
			IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				(ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0);
	if (stop == 2)
		return;
	a.qp_state = IBV_QPS_RTR;
	CHECK(qp_modify(
		      s->qp, &a,
		      IBV_QP_STATE |
			      (ud ? 0
				  : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
			      (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)) == 0);
	if (stop == 3)
		return;
	a.qp_state = IBV_QPS_RTS;
	CHECK(qp_modify(s->qp, &a,
			IBV_QP_STATE | IBV_QP_SQ_PSN |
				(rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						 IBV_QP_MAX_QP_RD_ATOMIC
				    : 0)) == 0);
}

/* Any state from any other: taken or refused. */
static void modify(struct side *s)
{
	struct ibv_qp_attr a = {.qp_state = (enum ibv_qp_state)below(8), .en_sqd_async_notify = 1};
	int mask = IBV_QP_STATE | (below(8) == 1 ? IBV_QP_EN_SQD_ASYNC_NOTIFY : 0);

	if (a.qp_state == IBV_QPS_RESET)
		reset(s);
	else
		qp_modify(s->qp, &a, mask);
}

static uint32_t any_length(void)
{
	switch (below(10)) {
	case 0:
		return below(20000);
	case 1:
		return (1u << below(32)) - 1 + below(3);
	case 2:
		return (uint32_t)take(&f.in, 4);
	case 3:
		return 256u << below(5);
	case 4:
		return 8;
	default:
		return below(256);
	}
}

/* A key and an address: mostly of the open region, and aligned. */
static uint32_t any_place(uint64_t *va)
{
	uint32_t b = below(64), mr = b == 1 ? MR_READABLE : b == 2 ? MR_FOREIGN : MR_OPEN;

	*va = f.mr[mr].iova + (b & 4 ? below(MR_SIZE) : 8 * below(64));
	if (b == 3)
		*va = take(&f.in, 8);
	return b == 11 ? (uint32_t)take(&f.in, 4) : f.mr[mr].key;
}

static void write_sges(uint8_t *p, bool eight)
{
	for (unsigned int i = 0; i < SGES; i++) {
		struct vernic_sge sge;

		sge.lkey = any_place(&sge.addr);
		sge.length = !eight ? any_length() : i ? 0 : 8;
		memcpy(p + i * sizeof(sge), &sge, sizeof(sge));
	}
}

static void post_send(struct side *s)
{
	static const uint8_t opcodes[] = {IBV_WR_SEND,
					  IBV_WR_RDMA_WRITE,
					  IBV_WR_RDMA_READ,
					  IBV_WR_SEND_WITH_IMM,
					  IBV_WR_RDMA_WRITE_WITH_IMM,
					  IBV_WR_ATOMIC_CMP_AND_SWP,
					  IBV_WR_ATOMIC_FETCH_AND_ADD,
					  200};
	struct vernic_send_wqe w = {.wr_id = s->sq_posted, .opcode = opcodes[below(8)]};
	uint8_t *slot = s->sq + (s->sq_posted % DEPTH) * STRIDE;
	uint32_t bits = below(256);

	if (s->sq_posted - s->sq_done >= DEPTH || s->qp->state < IBV_QPS_RTS)
		return;
	w.num_sge = (uint8_t)(bits & 7) <= SGES + 1 ? bits & 7 : 1;
	w.flags = bits & 8 ? IBV_SEND_SIGNALED : 0;
	if (bits & 16)
		w.flags |= (uint16_t)take(&f.in, 2) & (0x1f | VERNIC_SEND_COPIED);
	if (bits & 32)
		w.length = any_length();
	if (s->qp->p.type == IBV_QPT_UD) {
		memcpy(w.ud.dgid, f.dev.gids[0].raw, 16);
		w.ud.remote_qpn = f.side[(s - f.side) ^ 1].qp->qpn;
		w.ud.remote_qkey = 1;
		w.pd = f.pd.handle;
	} else {
		w.rdma.rkey = any_place(&w.rdma.remote_addr);
	}
	memcpy(slot, &w, sizeof(w));
	write_sges(slot + sizeof(w), w.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
					     w.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD);
	s->sq_posted++;
	vernic_store_release(&s->ring->sq_prod, s->sq_posted);
	engine_doorbell(&f.e, s->qp);
}

static void post_srq(void)
{
	uint32_t prod = atomic_load(&f.srq_ring.prod), slot = 0;
	struct vernic_recv_wqe w = {.num_sge = below(SGES + 2)};

	while (slot < SRQ_DEPTH && f.slot_out[slot])
		slot++;
	if (slot == SRQ_DEPTH)
		return;
	w.wr_id = slot;
	memcpy(f.srq_wqe + slot * RECV_STRIDE, &w, sizeof(w));
	write_sges(f.srq_wqe + slot * RECV_STRIDE + sizeof(w), false);
	f.slot_out[slot] = true;
	atomic_store(&f.srq_index[prod % SRQ_DEPTH], slot);
	vernic_store_release(&f.srq_ring.prod, prod + 1);
}

static void post_recv(struct side *s)
{
	struct vernic_recv_wqe w = {.wr_id = s->rq_posted, .num_sge = below(SGES + 2)};
	uint8_t *slot = s->rq + (s->rq_posted % DEPTH) * RECV_STRIDE;

	if (s->qp->p.srq) {
		post_srq();
		return;
	}
	if (s->rq_posted - s->rq_done >= DEPTH || s->qp->state == IBV_QPS_RESET || s->broken)
		return;
	memcpy(slot, &w, sizeof(w));
	write_sges(slot + sizeof(w), false);
	s->rq_posted++;
	vernic_store_release(&s->ring->rq_prod, s->rq_posted);
	engine_doorbell(&f.e, s->qp);
}

/* The client writes anything into its rings. */
static void scribble(struct side *s)
{
	s->broken = true;
	if (below(2))
		vernic_store_release(&s->ring->sq_prod, (uint32_t)take(&f.in, 4));
	else
		vernic_store_release(&s->ring->rq_prod, (uint32_t)take(&f.in, 4));
	engine_doorbell(&f.e, s->qp);
}

/* A PSN near something the QP knows, or anywhere. */
static uint32_t any_psn(const struct qp *qp)
{
	uint32_t b = below(256);
	const uint32_t near[] = {qp->resp.epsn, qp->req.una_psn, qp->req.send_psn, qp->req.max_psn};
	uint32_t psn = b >> 6 == 3 && b & 32 ? (uint32_t)take(&f.in, 3) : near[b >> 6];

	/* Half of them exact. */
	return (psn + (b & 16 ? (b & 15) - 8 : 0)) & PSN_MASK;
}

static struct arrived *arrive(size_t size)
{
	struct arrived *a = malloc(sizeof(*a) + size);

	CHECK(a);
	a->next = f.arrived;
	f.arrived = a;
	return a;
}

/*
 * A train as a port may hand it in: all packets but the last have the payload of the first, the
 * last has no more; ACKs and requests without payload are single.
 */
static void train_arrives(struct qp *qp)
{
	static const uint8_t syndromes[] = {0x1f, 0x00, 0x20, 0x2e, 0x60, 0x61, 0x62, 0x63,
					    0x64, 0x65, 0x7f, 0x40, 0x80, 0xff, 0x1f, 0x1f};
	static const uint8_t services[] = {
		[IBV_QPT_RC] = WIRE_RC, [IBV_QPT_UC] = WIRE_UC, [IBV_QPT_UD] = WIRE_UD};
	static uint8_t bytes[SEGMENT_SPARE + WIRE_MAX_MTU];
	uint32_t bits = (uint32_t)take(&f.in, 2), odd = below(256), tail;
	uint32_t mtu = bits & 0xc ? qp->mtu : 256u << (bits >> 13) % 5;
	struct train t = {
		.path = &f.path,
		.dst_qpn = odd == 1 ? (uint32_t)take(&f.in, 3) : qp->qpn,
		.service = odd == 2 ? (uint8_t)(below(6) << 5) : services[qp->p.type],
		.kind = (uint8_t)(KIND_SEND + below(KIND_COUNT - KIND_SEND)),
		.first = bits & 1,
		.last = bits & 2,
		.solicited = bits & 0x10,
		.ackreq = bits & 0x20,
		.pkey = odd == 3 ? (uint16_t)take(&f.in, 2) : 0xffff,
		.psn = any_psn(qp),
		.count = 1,
		.imm_data = 0x1234,
		.aeth = {syndromes[bits >> 6 & 15], 1},
		.atomic = {1, 0},
		.atomic_orig = 7,
		.qkey = odd != 4,
	};

	if (qp->p.type == IBV_QPT_UD)
		t.src_qpn = 5;
	t.reth.rkey = any_place(&t.reth.va);
	t.imm = t.last && bits & 0x400;
	if (mtu == 0)
		mtu = 256;
	if (t.kind == KIND_SEND || t.kind == KIND_WRITE || t.kind == KIND_READ_RESPONSE) {
		if (!(t.first && t.last && bits & 0x800))
			t.count = 1 + below(12);
		tail = bits & 0x1000 ? mtu : below(mtu + 1);
		t.mtu = t.count > 1 ? mtu : tail;
		t.payload.seg = dma_segments(f.dma, t.count);
		t.payload.count = t.count;
		for (uint32_t i = 0; i < t.count; i++) {
			uint32_t len = i + 1 < t.count ? mtu : tail;

			t.payload.seg[i] =
				(struct dma_segment){.addr = (uintptr_t)bytes + 64 * i, .len = len};
			t.payload.len += len;
		}
		/* Mostly a length that is right, so that more is reached. */
		t.reth.length = bits & 0x8000 ? any_length() : t.payload.len;
	} else {
		t.first = t.last = true;
		t.imm = false;
		t.reth.length = any_length();
		t.flush.type = bits >> 6 & 3;
		t.flush.level = bits >> 8 & 1;
	}
	if (t.kind == KIND_ATOMIC_WRITE) {
		t.mtu = bits & 0x1000 ? below(mtu + 1) : ATOMIC_WRITE_LEN;
		t.payload = dma_local(f.dma, bytes, t.mtu);
		t.reth.length = bits & 0x8000 ? t.reth.length : ATOMIC_WRITE_LEN;
	}
	engine_rx(&f.e, &t);
}

/*
 * A packet arrives that the input writes out, behind a byte for each thing that is put right in it:
 * a random packet would get nowhere.
 */
static void packet_arrives(const struct qp *qp)
{
	uint32_t fix = below(256), len = below(MAX_PACKET), psn = any_psn(qp);
	const struct wire_opcode *op;
	uint64_t va;
	uint32_t key = any_place(&va);
	struct arrived *a;
	uint8_t *p;

	if (fix & 1)
		len &= ~3u;
	if (len < BTH_LEN + ICRC_LEN && fix & 2)
		len = BTH_LEN + ICRC_LEN;
	a = arrive(len);
	p = a->data;
	memset(p, 0, len);
	memcpy(p, f.in.p, len < f.in.left ? len : f.in.left);
	take(&f.in, 8); /* what is written out may be read again as acts, but for its start */
	if (len >= BTH_LEN + ICRC_LEN) {
		op = &wire_opcodes[p[0]];
		if (fix & 4)
			p[1] &= 0xf0;
		if (fix & 8) {
			put16(p + 2, 0xffff);
			put24(p + 5, qp->qpn);
		}
		if (fix & 16)
			put24(p + 9, psn);
		if (fix & 32 && op->flags & (OPF_RETH | OPF_ATOMICETH) && len >= op->header_len) {
			put64(p + BTH_LEN, va);
			put32(p + BTH_LEN + 8, key);
			if (op->flags & OPF_RETH && op->flags & OPF_PAYLOAD && fix & 64)
				put32(p + BTH_LEN + 12, len - op->header_len - ICRC_LEN);
		}
		if (fix & 128)
			port_seal(f.port, 0, p, len - ICRC_LEN);
	}
	if (len)
		port_receive(f.port, p, len, len);
}

/* Something that was sent arrives: as it was, some packets of it, or damaged behind its ICRC. */
static void sent_arrives(void)
{
	uint32_t kept = f.sent_count < SENT_KEPT ? f.sent_count : SENT_KEPT;
	uint32_t how = below(4), which = below(SENT_KEPT), len, segment;
	struct arrived *a;

	if (kept == 0)
		return;
	which = (f.sent_count - 1 - which % kept) % SENT_KEPT;
	len = f.sent[which].len;
	segment = f.sent[which].segment;
	a = arrive(len);
	memcpy(a->data, f.sent[which].data, len);
	if (how == 1) { /* without its end */
		uint32_t packets = 1 + below((len - 1) / segment + 1);

		if (packets * segment < len)
			len = packets * segment;
	} else if (how == 2) { /* without its beginning: the identifications are others then */
		uint32_t skip = below((len - 1) / segment + 1) * segment;

		port_receive(f.port, a->data + skip, len - skip, segment);
		return;
	} else if (how == 3) {
		uint32_t at = below(64), n = len < segment ? len : segment;

		a->data[at % n] ^= (uint8_t)take(&f.in, 1);
		port_seal(f.port, 0, a->data, n - ICRC_LEN);
	}
	port_receive(f.port, a->data, len, segment);
}

static void act(void)
{
	uint32_t what = below(256);
	struct side *s = &f.side[what % QPS];

	switch (what / QPS) {
	case 0:
	case 1:
	case 2:
	case 3:
		run_once(); /* the control thread's turn is between two rounds */
		revive(s);
		break;
	case 4:
	case 5:
	case 6:
	case 7:
		post_send(s);
		break;
	case 8:
	case 9:
	case 10:
		post_recv(s);
		break;
	case 11:
	case 12:
	case 13:
	case 14:
	case 15:
		train_arrives(s->qp);
		break;
	case 16:
	case 17:
		packet_arrives(s->qp);
		break;
	case 18:
	case 19:
	case 20:
	case 21:
	case 22:
		sent_arrives();
		break;
	case 23:
		f.e.now += UINT64_C(1) << below(36);
		break;
	case 24:
		run_once();
		modify(s);
		break;
	case 25:
		f.unmapped = below(MR_SIZE / PAGE + 1);
		f.echo = below(2);
		f.busy = below(2);
		break;
	case 26:
		run_once();
		reregister(below(2));
		break;
	case 27:
		if (below(8) == 1)
			scribble(s);
		f.srq.limit = below(4);
		break;
	case 28:
	case 29:
		poll();
		break;
	default:
		run_once();
		break;
	}
	check_qp(s);
}

/*
 * Everything drains: in ERR every WQE completes, in RESET nothing of before is left, and the QPs
 * go.
 */
static void end(void)
{
	const struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	uint32_t out = 0;

	f.unmapped = 0;
	f.echo = false;
	settle();
	poll();
	/* Time heals: what waits for an answer fails in the end, and nothing runs on for ever. */
	for (unsigned int i = 0; i < 64 && engine_deadline(&f.e) != UINT64_MAX; i++) {
		f.e.now = engine_deadline(&f.e);
		settle();
		poll();
	}
	for (unsigned int i = 0; i < QPS; i++) {
		struct side *s = &f.side[i];

		CHECK(qp_modify(s->qp, &error, IBV_QP_STATE) == 0);
		settle();
		poll();
		/* Posted in RESET or lost in an overrun: no CQE tells of it. */
		if (f.cq.overflow || s->broken)
			continue;
		CHECK(s->qp->req.una == s->sq_posted && s->qp->req.rd_entries == 0);
		CHECK(s->qp->p.srq || s->rq_done == s->rq_posted);
	}
	for (unsigned int i = 0; i < QPS; i++) {
		reset(&f.side[i]);
		CHECK(!f.side[i].qp->queued && !timer_armed(&f.side[i].qp->timer));
		check_qp(&f.side[i]);
	}
	/* What is left of the SRQ's slots is in its ring, or its CQE was lost. */
	for (unsigned int i = 0; i < SRQ_DEPTH; i++)
		out += f.slot_out[i];
	CHECK(f.cq.overflow || out == atomic_load(&f.srq_ring.prod) - f.srq.cons);
	CHECK(!run_once());
	for (unsigned int i = 0; i < QPS; i++)
		qp_destroy(f.side[i].qp);
	CHECK(f.e.qp_count == 0 && f.e.budget_count == 0 && engine_deadline(&f.e) == UINT64_MAX);
	CHECK(cds_list_empty(&f.e.run) && cds_list_empty(&f.e.acks) && dma_pending(f.dma) == 0);
	pthread_spin_destroy(&f.cq.lock);
	rcu_quiescent_state();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!f.dma)
		init_once();
	begin(data, size);
	for (unsigned int n = 0; n < MAX_ACTS && f.in.left; n++)
		act();
	end();
	return 0;
}
