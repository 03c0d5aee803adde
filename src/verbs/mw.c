/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory windows. Those of type 2 are bound by ibv_post_send(). */
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

struct ibv_mw *mw_alloc(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct vernic_request req = {.command = VERNIC_CMD_ALLOC_MW};
	struct vernic_reply reply;
	struct ibv_mw *mw;
	int error;

	mw = calloc(1, sizeof(*mw));
	if (!mw)
		return NULL;
	req.alloc_mw.pd = pd->handle;
	req.alloc_mw.type = type;
	error = control_call(to_context(pd->context), &req, &reply, NULL, 0);
	if (error) {
		free(mw);
		errno = error;
		return NULL;
	}
	mw->context = pd->context;
	mw->pd = pd;
	mw->type = type;
	mw->handle = reply.handle;
	mw->rkey = reply.alloc_mw.rkey;
	pd_hold(pd);
	return mw;
}

int mw_dealloc(struct ibv_mw *mw)
{
	int error;

	error = control_destroy(to_context(mw->context), VERNIC_CMD_DEALLOC_MW, mw->handle, NULL);
	if (error)
		return error;
	pd_release(mw->pd);
	free(mw);
	return 0;
}

/* ibv_bind_mw(3): posts it; the window's key is the new one at once. */
int mw_bind(struct ibv_qp *ibqp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct qp *qp = to_qp(ibqp);
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	struct vernic_send_wqe *wqe;
	int error;

	spin_lock(&qp->sq.lock);
	error = post_state(qp);
	if (!error)
		error = post_begin(qp, qp->sq.head, IBV_WR_BIND_MW, bind->wr_id, bind->send_flags,
				   &wqe);
	if (!error)
		error = post_set_bind(wqe, mw, rkey, &bind->bind_info);
	if (!error) {
		mw->rkey = rkey;
		post_publish(qp, qp->sq.head + 1);
	}
	spin_unlock(&qp->sq.lock);
	return error;
}
