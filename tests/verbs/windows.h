/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests of memory windows share: windows at side b, tried from side a. */
#ifndef VERNIC_TEST_VERBS_WINDOWS_H
#define VERNIC_TEST_VERBS_WINDOWS_H

#include "regions.h"

/* A MR that peers get at through windows only. */
#define WINDOW_MR (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)

/* The key lets side a write and read len bytes there. */
static inline void expect_open(struct pair *p, uint64_t addr, uint32_t rkey, uint32_t len)
{
	CHECK_EQ(write_to(p, addr, rkey, len), IBV_WC_SUCCESS);
	CHECK_EQ(read_from(p, addr, rkey, len), IBV_WC_SUCCESS);
}

/* It lets nothing through. The pair is connected again afterwards. */
static inline void expect_shut(struct pair *p, uint64_t addr, uint32_t rkey)
{
	CHECK_EQ(write_to(p, addr, rkey, 8), IBV_WC_REM_ACCESS_ERR);
	expect_state(p->b, IBV_QPS_ERR);
	pair_reconnect(p);
	CHECK_EQ(read_from(p, addr, rkey, 8), IBV_WC_REM_ACCESS_ERR);
	expect_state(p->b, IBV_QPS_ERR);
	pair_reconnect(p);
}

/* Has a QP bind a window of type 2. @return as ibv_post_send() */
static inline int post_bind(struct ibv_qp *qp, struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *mr,
			    uint64_t addr, uint64_t length, unsigned int access)
{
	struct ibv_send_wr wr = {.wr_id = 78,
				 .opcode = IBV_WR_BIND_MW,
				 .send_flags = IBV_SEND_SIGNALED,
				 .bind_mw = {mw, rkey, {mr, addr, length, access}}};
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, &wr, &bad);
}

/* The same under the next key, which the window is given. @return the status */
static inline enum ibv_wc_status bind_next(struct side *s, struct ibv_qp *qp, struct ibv_mw *mw,
					   struct ibv_mr *mr, uint64_t addr, uint64_t length,
					   unsigned int access)
{
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	struct ibv_wc wc;

	CHECK_EQ(post_bind(qp, mw, rkey, mr, addr, length, access), 0);
	wait_wc(s->e.cq, 1, &wc);
	CHECK_EQ(wc.wr_id, 78);
	if (wc.status != IBV_WC_SUCCESS)
		return wc.status;
	CHECK_EQ(wc.opcode, IBV_WC_BIND_MW);
	mw->rkey = rkey;
	return wc.status;
}

#endif
