// SPDX-License-Identifier: BSD-2-Clause
/*
 * A device that fails, and one that is removed: IBV_EVENT_DEVICE_FATAL once in every context, what
 * was outstanding is flushed, posts and commands fail with EIO, destroying works, and the device
 * cannot be opened any more. Another one takes the name of one that was removed.
 */
#include "admin.h"

/* As env_open(), of that device. */
static void open_named(struct env *e, const char *name)
{
	struct ibv_device *dev = find_device(name);

	CHECK(dev);
	memset(e, 0, sizeof(*e));
	e->ctx = ibv_open_device(dev);
	CHECK(e->ctx);
	e->pd = ibv_alloc_pd(e->ctx);
	e->cq = ibv_create_cq(e->ctx, 64, NULL, NULL, 0);
	e->buf = aligned_alloc(4096, BUF_SIZE);
	CHECK(e->pd && e->cq && e->buf);
	e->mr = ibv_reg_mr(e->pd, e->buf, BUF_SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(e->mr);
	CHECK_EQ(ibv_query_gid(e->ctx, 1, 1, &e->gid), 0);
}

/* What fails does it with EIO, what ends things works. */
static void after_failure(struct env *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_ah_attr ah = {
		.is_global = 1, .port_num = 1, .grh = {.dgid = e->gid, .sgid_index = 1}};
	struct ibv_sge sge = sge_at(e, 0, 8);
	struct ibv_device_attr dev;
	struct ibv_port_attr port;
	union ibv_gid gid;
	struct ibv_wc wc[4];

	expect_async(e->ctx, IBV_EVENT_DEVICE_FATAL);
	wait_wc(e->cq, 3, wc);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(wc[i].status, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(post_send_at(a, 0, &sge, 0), EIO);
	CHECK_EQ(post_recv_at(a, 0, &sge), EIO);
	CHECK_EQ(ibv_query_device(e->ctx, &dev), EIO);
	CHECK_EQ(ibv_query_port(e->ctx, 1, &port), EIO);
	CHECK(ibv_query_gid(e->ctx, 1, 1, &gid) != 0 && errno == EIO);
	CHECK(!ibv_alloc_pd(e->ctx) && errno == EIO);
	CHECK(!ibv_create_cq(e->ctx, 4, NULL, NULL, 0) && errno == EIO);
	CHECK(!ibv_create_qp(e->pd, &init) && errno == EIO);
	CHECK(!ibv_reg_mr(e->pd, e->buf, 64, 0) && errno == EIO);
	CHECK(!ibv_create_ah(e->pd, &ah) && errno == EIO);
	CHECK_EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE), EIO);
	CHECK(!event_waits(e->ctx, 50));
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
	env_close(e);
}

/* Two QPs with a send that waits and two receives. */
static void make_pair(struct env *e, struct ibv_qp **a, struct ibv_qp **b)
{
	struct ibv_qp_init_attr init = env_qp_attr(e);
	struct ibv_sge sge = sge_at(e, 0, 8);

	*a = ibv_create_qp(e->pd, &init);
	*b = ibv_create_qp(e->pd, &init);
	CHECK(*a && *b);
	connect_pair(e, *a, *b);
	CHECK_EQ(post_recv_at(*a, 1, &sge), 0);
	CHECK_EQ(post_recv_at(*a, 2, &sge), 0);
	/* Nobody has posted a receive for it. */
	CHECK_EQ(post_send_at(*a, 3, &sge, IBV_SEND_SIGNALED), 0);
}

int main(void)
{
	struct ibv_qp *a, *b, *c, *d;
	struct env one, two;

	/* Fails: it stays in the list, and cannot be opened. */
	CHECK_EQ(admin_add("name=doomed"), 0);
	CHECK_EQ(admin_add("name=doomed"), EINVAL);
	open_named(&one, "doomed");
	open_named(&two, "doomed");
	make_pair(&one, &a, &b);
	make_pair(&two, &c, &d);
	CHECK_EQ(admin(VERNIC_DEVICE_FATAL, "doomed", NULL), 0);
	CHECK_EQ(admin(VERNIC_DEVICE_PORT_UP, "doomed", NULL), EIO);
	after_failure(&one, a, b);
	CHECK(find_device("doomed"));
	CHECK(!ibv_open_device(find_device("doomed")));
	CHECK_EQ(errno, EIO);

	/* Is removed, with a context open; another one of that name is another one. */
	CHECK_EQ(admin(VERNIC_DEVICE_REMOVE, "doomed", NULL), 0);
	CHECK(!find_device("doomed"));
	CHECK_EQ(admin(VERNIC_DEVICE_REMOVE, "doomed", NULL), ENODEV);
	CHECK_EQ(admin_add("name=doomed,max_qp=7"), 0);
	after_failure(&two, c, d);
	open_named(&one, "doomed");
	make_pair(&one, &a, &b);
	CHECK_EQ(admin(VERNIC_DEVICE_REMOVE, "doomed", NULL), 0);
	after_failure(&one, a, b);
	CHECK_EQ(admin_add("name=doomed,nonsense=1"), EINVAL);
	CHECK(!find_device("doomed"));
	return 0;
}
