/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the tests of memory regions and windows share: a connected pair of RC QPs, side a's that
 * asks and side b's whose memory it is about, and requests with keys and addresses by hand.
 */
#ifndef VERNIC_TEST_VERBS_REGIONS_H
#define VERNIC_TEST_VERBS_REGIONS_H

#define FAULTS_ADDRESS "127.11.0.2" /* of the second daemon */
#include "faults.h"

#define ALL_RIGHTS                                                                   \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC)

struct pair {
	struct link l;
	struct ibv_qp *a, *b;
};

/* Connects the QPs, from whatever state they are in. */
static inline void pair_connect(struct pair *p)
{
	link_connect(&p->l, p->a, p->b, &timing_default);
}

static inline void pair_open(struct pair *p, int argc, char **argv)
{
	link_open(&p->l, argc, argv);
	p->a = link_qp(&p->l.a, IBV_QPT_RC);
	p->b = link_qp(&p->l.b, IBV_QPT_RC);
	pair_connect(p);
}

static inline void pair_close(struct pair *p)
{
	CHECK_EQ(ibv_destroy_qp(p->a), 0);
	CHECK_EQ(ibv_destroy_qp(p->b), 0);
	link_close(&p->l);
}

/* The status of the next completion of a side. */
static inline enum ibv_wc_status next_status(struct side *s)
{
	struct ibv_wc wc;

	wait_wc(s->e.cq, 1, &wc);
	return wc.status;
}

/* A signaled request; invalidate_rkey: of those that have one. @return as ibv_post_send() */
static inline int post_op(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_sge *sge,
			  uint64_t addr, uint32_t rkey)
{
	struct ibv_send_wr wr = {.sg_list = sge,
				 .num_sge = sge ? 1 : 0,
				 .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	if (opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_LOCAL_INV) {
		wr.invalidate_rkey = rkey;
	} else if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = rkey;
	}
	return ibv_post_send(qp, &wr, &bad);
}

/* Carries out a request of side a. @return its status */
static inline enum ibv_wc_status run_op(struct pair *p, enum ibv_wr_opcode opcode,
					struct ibv_sge *sge, uint64_t addr, uint32_t rkey)
{
	CHECK_EQ(post_op(p->a, opcode, sge, addr, rkey), 0);
	return next_status(&p->l.a);
}

/* Writes len bytes of side a's buffer, from its beginning. @return the status */
static inline enum ibv_wc_status write_to(struct pair *p, uint64_t addr, uint32_t rkey,
					  uint32_t len)
{
	struct ibv_sge sge = sge_at(&p->l.a.e, 0, len);

	return run_op(p, IBV_WR_RDMA_WRITE, &sge, addr, rkey);
}

/* Reads to the second half of side a's buffer. @return the status */
static inline enum ibv_wc_status read_from(struct pair *p, uint64_t addr, uint32_t rkey,
					   uint32_t len)
{
	struct ibv_sge sge = sge_at(&p->l.a.e, BUF_SIZE / 2, len);

	return run_op(p, IBV_WR_RDMA_READ, &sge, addr, rkey);
}

/* Sends from one SGE to the other. */
static inline void send_over(struct pair *p, struct ibv_sge *from, struct ibv_sge *to)
{
	CHECK_EQ(post_recv_at(p->b, 0, to), 0);
	CHECK_EQ(post_send_at(p->a, 0, from, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(next_status(&p->l.a), IBV_WC_SUCCESS);
	CHECK_EQ(next_status(&p->l.b), IBV_WC_SUCCESS);
}

/* @return whether all bytes are c */
static inline bool all_are(const void *p, uint8_t c, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (((const uint8_t *)p)[i] != c)
			return false;
	return true;
}

/* A side's events so far are of no interest: a connection's beginning, or what a test expects. */
static inline void drop_events(struct side *s)
{
	struct pollfd fd = {.fd = s->e.ctx->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	while (poll(&fd, 1, 0) == 1) {
		CHECK_EQ(ibv_get_async_event(s->e.ctx, &event), 0);
		ibv_ack_async_event(&event);
	}
}

/* Both QPs start again after an error; what was flushed is dropped. */
static inline void pair_reconnect(struct pair *p)
{
	drop_events(&p->l.a);
	drop_events(&p->l.b);
	pair_connect(p);
}

#endif
