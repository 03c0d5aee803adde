// SPDX-License-Identifier: BSD-2-Clause
/*
 * Arbitrary trains into the engine: every operation in every state, PSNs near what is expected and
 * anywhere, lengths, keys, syndromes. A plain seeded program: `fuzz-engine_rx SEED SECONDS`. Meant
 * to be built with sanitizers; by itself it checks that memory beyond a region is never touched,
 * that each WQE completes at most once, and that the engine comes to rest.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <urcu-qsbr.h>

#include "transport/qp.h"

#define QPS 6
#define DEPTH 16
#define SGES 3
#define STRIDE 256 /* bytes of a send slot: 64 of WQE, 48 of SGEs, the rest data */
#define DATA 128
#define CQ_DEPTH 256
#define MR_SIZE 65536

#define CHECK(cond)                                                                            \
	do {                                                                                   \
		if (!(cond)) {                                                                 \
			fprintf(stderr, "%s:%d: failed: %s (seed %llu)\n", __FILE__, __LINE__, \
				#cond, (unsigned long long)first_seed);                        \
			abort();                                                               \
		}                                                                              \
	} while (0)

static unsigned long long first_seed, total_tx, total_completions;

/* The client's memory: one region, at the address its bytes have. */
struct mm {
	uint8_t *base;
	uint64_t failing; /* one transfer of so many fails; 0: none */
};

struct side {
	struct qp *qp;
	void *memory;
	struct vernic_qp_ring *ring;
	uint8_t *sq, *rq;
	uint32_t sq_posted, sq_done; /* WQEs */
};

struct fuzz {
	uint64_t seed;
	struct engine e;
	struct dma *dma;
	struct device dev;
	struct pd pd;
	struct mm mm;
	struct mr mr;
	struct cq cq;
	void *cq_memory;
	uint32_t cq_cons;
	struct side side[QPS];
	struct path path; /* of what arrives */
	uint64_t tx;
};

static uint64_t rnd(struct fuzz *f)
{
	uint64_t z = f->seed += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static uint32_t below(struct fuzz *f, uint32_t n)
{
	return (uint32_t)((rnd(f) >> 32) * n >> 32);
}

/* ---- the engine's surroundings -------------------------------------------------------------- */

static struct fuzz *the_fuzz; /* the dma backend has no other way to it */

/* Copies between two lists, which must lie in the region. */
static int copy(struct mm *mm, bool write, const struct iovec *local, unsigned nlocal,
		const struct iovec *remote, unsigned nremote)
{
	unsigned i = 0, k = 0;
	size_t io = 0, ko = 0;

	for (unsigned n = 0; n < nremote; n++) {
		uint64_t at = (uintptr_t)remote[n].iov_base - (uintptr_t)mm->base;

		CHECK(at <= MR_SIZE && remote[n].iov_len <= MR_SIZE - at);
	}
	if (mm->failing && below(the_fuzz, (uint32_t)mm->failing) == 0)
		return -EFAULT;
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

static int backend_readv(struct mm *mm, const struct iovec *l, unsigned nl, const struct iovec *r,
			 unsigned nr)
{
	return copy(mm, false, l, nl, r, nr);
}

static int backend_writev(struct mm *mm, const struct iovec *l, unsigned nl, const struct iovec *r,
			  unsigned nr)
{
	return copy(mm, true, l, nl, r, nr);
}

static const struct dma_backend backend = {.readv = backend_readv, .writev = backend_writev};

/* What is sent has a payload that fits its packets. Now and then it comes back as it is. */
static void fuzz_tx(struct engine *e, struct qp *qp, const struct train *t)
{
	struct fuzz *f = e->host;
	uint64_t sum = 0;

	for (uint32_t i = 0; i < t->payload.count; i++)
		sum += t->payload.seg[i].len;
	CHECK(sum == t->payload.len);
	CHECK(t->count >= 1 && t->payload.len <= (uint64_t)t->count * WIRE_MAX_MTU);
	if (below(f, 4) == 0)
		engine_rx(e, t);
	f->tx++;
}

static bool fuzz_ready(struct engine *e, const struct path *path)
{
	return true;
}

static void fuzz_route(struct engine *e, const struct device *dev, struct path *path)
{
	path->route = ROUTE_UDP;
	path->max_train = 57344;
	path->window = 131072;
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

static const enum ibv_qp_type types[QPS] = {IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_RC,
					    IBV_QPT_UC, IBV_QPT_UC, IBV_QPT_UD};

/* Brings a QP to a state of this life's choice. */
static void revive(struct fuzz *f, struct side *s)
{
	bool rc = s->qp->p.type == IBV_QPT_RC, ud = s->qp->p.type == IBV_QPT_UD;
	uint32_t stop = below(f, 12);
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RESET,
		.port_num = 1,
		.qkey = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
		.path_mtu = (enum ibv_mtu)(IBV_MTU_256 + below(f, 5)),
		.dest_qp_num = f->side[below(f, QPS)].qp->qpn,
		.rq_psn = below(f, 2) ? 0 : PSN_MASK - 3,
		.sq_psn = below(f, 2) ? 0 : PSN_MASK - 3,
		.max_dest_rd_atomic = (uint8_t)below(f, 17),
		.max_rd_atomic = (uint8_t)below(f, 17),
		.timeout = (uint8_t)below(f, 16),
		.retry_cnt = (uint8_t)below(f, 8),
		.rnr_retry = (uint8_t)below(f, 8),
		.ah_attr = {.is_global = 1, .port_num = 1},
	};

	memcpy(a.ah_attr.grh.dgid.raw, f->dev.gids[0].raw, 16);
	dma_flush(f->dma);
	CHECK(qp_modify(s->qp, &a, IBV_QP_STATE) == 0);
	s->sq_posted = s->sq_done = 0;
	if (stop == 0)
		return;
	a.qp_state = IBV_QPS_INIT;
	CHECK(qp_modify(s->qp, &a,
			IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				(ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0);
	if (stop == 1)
		return;
	a.qp_state = IBV_QPS_RTR;
	CHECK(qp_modify(
		      s->qp, &a,
		      IBV_QP_STATE |
			      (ud ? 0
				  : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
			      (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)) == 0);
	if (stop == 2)
		return;
	a.qp_state = IBV_QPS_RTS;
	CHECK(qp_modify(s->qp, &a,
			IBV_QP_STATE | IBV_QP_SQ_PSN |
				(rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						 IBV_QP_MAX_QP_RD_ATOMIC
				    : 0)) == 0);
	if (stop == 3) {
		a.qp_state = IBV_QPS_SQD;
		CHECK(qp_modify(s->qp, &a, IBV_QP_STATE) == 0);
	}
}

static void fuzz_begin(struct fuzz *f, uint64_t seed)
{
	*f = (struct fuzz){.seed = seed};
	the_fuzz = f;
	f->dma = dma_create(&backend, 65536);
	CHECK(f->dma && engine_init(&f->e, &ops, f, 0, f->dma) == 0);
	f->dev.attr.max_qp_rd_atom = f->dev.attr.max_qp_init_rd_atom = VERNIC_MAX_RD_ATOMIC;
	f->dev.port_attr.active_mtu = IBV_MTU_4096;
	f->dev.port_attr.pkey_tbl_len = 1;
	f->dev.gid_count = 1;
	f->dev.gids[0].raw[0] = 0xfe;
	f->dev.gids[0].raw[1] = 0x80;
	pthread_mutex_init(&f->dev.atomic_lock, NULL);
	f->dev.mrs = mr_table_create();
	CHECK(f->dev.mrs);
	memcpy(f->path.sgid, f->dev.gids[0].raw, 16);
	memcpy(f->path.dgid, f->dev.gids[0].raw, 16);
	f->pd = (struct pd){.dev = &f->dev, .handle = 3};
	f->mm.base = aligned_alloc(4096, MR_SIZE);
	CHECK(f->mm.base);
	memset(f->mm.base, 0, MR_SIZE);
	f->mr = (struct mr){.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
			    .pd = &f->pd,
			    .mm = &f->mm,
			    .iova = 0x10000,
			    .addr = (uintptr_t)f->mm.base,
			    .length = MR_SIZE};
	CHECK(mr_table_add(f->dev.mrs, &f->mr) == 0);
	f->cq_memory = calloc(1, VERNIC_CQE_OFFSET + CQ_DEPTH * sizeof(struct vernic_cqe));
	CHECK(f->cq_memory);
	cq_init(&f->cq, f->cq_memory, CQ_DEPTH);
	f->cq.dev = &f->dev;
	for (unsigned i = 0; i < QPS; i++) {
		struct side *s = &f->side[i];
		struct qp_params p = {.dev = &f->dev,
				      .pd = &f->pd,
				      .send_cq = &f->cq,
				      .recv_cq = &f->cq,
				      .type = types[i],
				      .sq_sig_all = i % 2,
				      .index = i,
				      .cap = {DEPTH, DEPTH, SGES, SGES, DATA},
				      .sq_depth = DEPTH,
				      .rq_depth = DEPTH,
				      .sq_stride = STRIDE,
				      .rq_stride = 64,
				      .sq_data = DATA};

		s->memory = calloc(1, sizeof(struct vernic_qp_ring) + DEPTH * (STRIDE + 64));
		CHECK(s->memory);
		s->ring = p.ring = s->memory;
		s->sq = p.sq = (uint8_t *)s->memory + sizeof(struct vernic_qp_ring);
		s->rq = p.rq = s->sq + DEPTH * STRIDE;
		CHECK(qp_create(&f->e, &p, &s->qp) == 0);
	}
	for (unsigned i = 0; i < QPS; i++)
		revive(f, &f->side[i]);
}

static void fuzz_end(struct fuzz *f)
{
	dma_flush(f->dma);
	for (unsigned i = 0; i < QPS; i++) {
		qp_destroy(f->side[i].qp);
		free(f->side[i].memory);
	}
	mr_table_remove(f->dev.mrs, &f->mr);
	mr_table_destroy(f->dev.mrs);
	engine_fini(&f->e);
	dma_destroy(f->dma);
	free(f->cq_memory);
	free(f->mm.base);
}

/* ---- acts ----------------------------------------------------------------------------------- */

static uint32_t any_length(struct fuzz *f)
{
	switch (below(f, 10)) {
	case 0:
		return (uint32_t)rnd(f);
	case 1:
		return (1u << below(f, 32)) - 1 + below(f, 3);
	case 2:
		return 0;
	case 3:
		return 8;
	default:
		return below(f, 20000);
	}
}

static struct vernic_sge any_sge(struct fuzz *f)
{
	return (struct vernic_sge){f->mr.iova + below(f, MR_SIZE), any_length(f),
				   below(f, 20) ? f->mr.key : (uint32_t)rnd(f)};
}

static void post_send(struct fuzz *f, struct side *s)
{
	static const uint8_t opcodes[] = {IBV_WR_SEND,
					  IBV_WR_SEND_WITH_IMM,
					  IBV_WR_RDMA_WRITE,
					  IBV_WR_RDMA_WRITE_WITH_IMM,
					  IBV_WR_RDMA_READ,
					  IBV_WR_ATOMIC_CMP_AND_SWP,
					  IBV_WR_ATOMIC_FETCH_AND_ADD,
					  200};
	struct vernic_send_wqe w = {.wr_id = s->sq_posted,
				    .num_sge = (uint8_t)below(f, SGES + 2),
				    .flags = below(f, 2) ? IBV_SEND_SIGNALED : 0};
	uint8_t *slot = s->sq + (s->sq_posted % DEPTH) * STRIDE;

	if (s->sq_posted - s->sq_done >= DEPTH || s->qp->state < IBV_QPS_RTS)
		return;
	w.opcode = opcodes[below(f, sizeof(opcodes))];
	w.length = below(f, 20) ? below(f, DATA + 1) : any_length(f);
	if (below(f, 4) == 0)
		w.flags |= (uint16_t)rnd(f) & (0x1f | VERNIC_SEND_COPIED);
	if (types[s - f->side] == IBV_QPT_UD) {
		memcpy(w.ud.dgid, f->dev.gids[0].raw, 16);
		w.ud.remote_qpn = f->side[below(f, QPS)].qp->qpn;
		w.ud.remote_qkey = 1;
		w.pd = f->pd.handle;
	} else {
		w.rdma.remote_addr = f->mr.iova + below(f, MR_SIZE);
		w.rdma.rkey = f->mr.key;
	}
	memcpy(slot, &w, sizeof(w));
	for (unsigned i = 0; i < SGES; i++) {
		struct vernic_sge sge = any_sge(f);

		if (w.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
		    w.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
			sge.length = i ? 0 : 8;
		memcpy(slot + sizeof(w) + i * sizeof(sge), &sge, sizeof(sge));
	}
	s->sq_posted++;
	vernic_store_release(&s->ring->sq_prod, s->sq_posted);
	engine_doorbell(&f->e, s->qp);
}

static void post_recv(struct fuzz *f, struct side *s)
{
	uint32_t prod = vernic_load_relaxed(&s->ring->rq_prod);
	struct vernic_recv_wqe w = {.wr_id = prod, .num_sge = below(f, SGES + 2)};
	uint8_t *slot = s->rq + (prod % DEPTH) * 64;

	if (prod - s->qp->resp.rq_cons >= DEPTH || s->qp->state == IBV_QPS_RESET)
		return;
	memcpy(slot, &w, sizeof(w));
	for (unsigned i = 0; i < SGES; i++) {
		struct vernic_sge sge = any_sge(f);

		memcpy(slot + sizeof(w) + i * sizeof(sge), &sge, sizeof(sge));
	}
	vernic_store_release(&s->ring->rq_prod, prod + 1);
	engine_doorbell(&f->e, s->qp);
}

/* A PSN near something the QP knows, or anywhere. */
static uint32_t any_psn(struct fuzz *f, const struct qp *qp)
{
	const uint32_t near[] = {qp->resp.epsn, qp->req.una_psn, qp->req.send_psn, qp->req.max_psn,
				 (uint32_t)rnd(f)};
	uint32_t psn = near[below(f, 5)];

	if (below(f, 2))
		psn += below(f, 9) - 4;
	return psn & PSN_MASK;
}

/*
 * A train as a port may hand it in: all packets but the last have the payload of the first, the
 * last has no more; ACKs and requests without payload are single.
 */
static void rx(struct fuzz *f)
{
	static const uint8_t syndromes[] = {0x1f, 0x00, 0x20, 0x2e, 0x60, 0x61, 0x62,
					    0x63, 0x64, 0x65, 0x7f, 0x40, 0x80, 0xff};
	static uint8_t bytes[65536];
	struct qp *qp = f->side[below(f, QPS)].qp;
	struct train t = {
		.path = &f->path,
		.src_qpn = qp->p.type == IBV_QPT_UD ? (uint32_t)rnd(f) & QPN_MASK : 0,
		.dst_qpn = below(f, 50) ? qp->qpn : (uint32_t)rnd(f) & QPN_MASK,
		.service = qp->p.type == IBV_QPT_RC   ? WIRE_RC
			   : qp->p.type == IBV_QPT_UC ? WIRE_UC
						      : WIRE_UD,
		.kind = KIND_SEND + (uint8_t)below(f, KIND_COUNT - KIND_SEND),
		.first = below(f, 2),
		.last = below(f, 2),
		.solicited = below(f, 2),
		.ackreq = below(f, 2),
		.pkey = below(f, 20) ? 0xffff : (uint16_t)rnd(f),
		.psn = any_psn(f, qp),
		.count = 1,
		.imm_data = (uint32_t)rnd(f),
		.reth = {f->mr.iova + below(f, MR_SIZE), f->mr.key, any_length(f)},
		.atomic = {rnd(f), rnd(f)},
		.aeth = {syndromes[below(f, sizeof(syndromes))], (uint32_t)rnd(f) & PSN_MASK},
		.atomic_orig = rnd(f),
		.qkey = below(f, 4) != 0,
	};
	uint32_t mtu = below(f, 4) ? qp->mtu : 256u << below(f, 5), tail;

	if (below(f, 30) == 0)
		t.service = (uint8_t)(below(f, 4) << 5);
	if (below(f, 20) == 0)
		t.reth.rkey = (uint32_t)rnd(f);
	if (below(f, 20) == 0)
		t.reth.va = rnd(f);
	t.imm = t.last && below(f, 2);
	if (mtu == 0)
		mtu = 256;
	if (t.kind == KIND_SEND || t.kind == KIND_WRITE || t.kind == KIND_READ_RESPONSE) {
		if (below(f, 2) && !(t.first && t.last && below(f, 2)))
			t.count = 1 + below(f, 12);
		tail = below(f, 2) ? mtu : below(f, mtu + 1);
		t.mtu = t.count > 1 ? mtu : tail;
		t.payload.seg = dma_segments(f->dma, t.count);
		t.payload.count = t.count;
		for (uint32_t i = 0; i < t.count; i++) {
			uint32_t len = i + 1 < t.count ? mtu : tail;

			t.payload.seg[i] = (struct dma_segment){
				.addr = (uintptr_t)bytes + below(f, 4096), .len = len};
			t.payload.len += len;
		}
		/* Mostly a length that is right, so that more is reached. */
		if (below(f, 2))
			t.reth.length = t.payload.len;
	} else {
		t.first = t.last = true;
		t.imm = false;
	}
	engine_rx(&f->e, &t);
}

/* Takes the CQEs: a send WQE completes once, in order, and was posted. */
static void poll(struct fuzz *f)
{
	for (;; f->cq_cons++) {
		const struct vernic_cqe *c = &f->cq.cqe[f->cq_cons % CQ_DEPTH];
		struct side *s;

		if (vernic_load_acquire(&c->lap) != f->cq_cons / CQ_DEPTH + 1)
			break;
		CHECK(c->qp_index < QPS);
		s = &f->side[c->qp_index];
		if (c->queue != VERNIC_CQE_SQ)
			continue;
		/* Of before a RESET: the wr_id says nothing any more. */
		if (c->wqe - s->sq_done >= s->sq_posted - s->sq_done)
			continue;
		CHECK(c->wr_id == c->wqe);
		s->sq_done = c->wqe + 1;
	}
	vernic_store_release(&f->cq.ring->cons, f->cq_cons);
}

/* Runs the engine until it rests. */
static void settle(struct fuzz *f)
{
	unsigned rounds = 0;

	while (engine_run(&f->e))
		CHECK(rounds++ < 10000);
	CHECK(dma_pending(f->dma) == 0);
}

static void life(uint64_t seed)
{
	static struct fuzz f;
	struct engine_counters counters;

	fuzz_begin(&f, seed);
	if (below(&f, 4) == 0)
		f.mm.failing = 50;
	for (unsigned n = 0; n < 400; n++) {
		struct side *s = &f.side[below(&f, QPS)];

		switch (below(&f, 8)) {
		case 0:
			post_send(&f, s);
			break;
		case 1:
			post_recv(&f, s);
			break;
		case 2:
			f.e.now += below(&f, 3) ? below(&f, 1000000) : rnd(&f) >> 30;
			break;
		default:
			rx(&f);
			break;
		}
		if (below(&f, 4) == 0)
			settle(&f);
		if (below(&f, 4) == 0)
			poll(&f);
		if (s->qp->state == IBV_QPS_ERR && below(&f, 3) == 0) {
			settle(&f);
			poll(&f);
			revive(&f, s);
		}
	}
	settle(&f);
	poll(&f);
	total_tx += f.tx;
	engine_get_counters(&f.e, &counters);
	total_completions += counters.completions;
	fuzz_end(&f);
	rcu_quiescent_state();
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	time_t end = time(NULL) + (argc > 2 ? atoi(argv[2]) : 5);

	rcu_register_thread();
	for (; time(NULL) < end; seed++) {
		first_seed = seed;
		life(seed);
	}
	rcu_unregister_thread();
	printf("%llu lives, %llu trains sent, %llu completions\n", (unsigned long long)seed,
	       total_tx, total_completions);
	return 0;
}
