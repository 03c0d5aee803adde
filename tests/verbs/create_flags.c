// SPDX-License-Identifier: BSD-2-Clause
/*
 * ibv_create_qp_ex(): its creation flags, one by one and by QP type, and what else it can be asked
 * for that belongs to raw packets. What BLOCK_SELF_MCAST_LB does is in mcast.
 */
#include <fcntl.h>

#include "common.h"

static struct env e;

/* @return the errno of making a QP, 0 if it was made */
static int try_flags(enum ibv_qp_type type, uint32_t mask, uint32_t flags)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = e.cq,
		.recv_cq = e.cq,
		.cap = {1, 1, 1, 1, 0},
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | mask,
		.pd = e.pd,
		.create_flags = flags,
	};
	struct ibv_xrcd_init_attr xattr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_qp *qp;
	int error = 0;

	if (type == IBV_QPT_XRC_RECV) {
		attr.xrcd = ibv_open_xrcd(e.ctx, &xattr);
		CHECK(attr.xrcd);
		attr.comp_mask = IBV_QP_INIT_ATTR_XRCD | mask;
	}
	qp = ibv_create_qp_ex(e.ctx, &attr);
	if (!qp)
		error = errno;
	else
		CHECK_EQ(ibv_destroy_qp(qp), 0);
	if (attr.xrcd)
		CHECK_EQ(ibv_close_xrcd(attr.xrcd), 0);
	return error;
}

int main(void)
{
	static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
						 IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV};
	static const uint32_t foreign[] = {
		IBV_QP_CREATE_SCATTER_FCS,
		IBV_QP_CREATE_CVLAN_STRIPPING,
		IBV_QP_CREATE_SOURCE_QPN,
		IBV_QP_CREATE_PCI_WRITE_END_PADDING,
	};
	const uint32_t flags = IBV_QP_INIT_ATTR_CREATE_FLAGS;

	env_open(&e);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		enum ibv_qp_type t = types[i];

		CHECK_EQ(try_flags(t, flags, 0), 0);
		CHECK_EQ(try_flags(t, flags, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB),
			 t == IBV_QPT_UD ? 0 : EINVAL);
		for (size_t k = 0; k < sizeof(foreign) / sizeof(foreign[0]); k++)
			CHECK_EQ(try_flags(t, flags, foreign[k]), EOPNOTSUPP);
		CHECK_EQ(try_flags(t, flags, 1u << 30), EINVAL);
		CHECK_EQ(try_flags(t, flags, 1u << 0), EINVAL);
		/* What the mask does not name is not looked at. */
		CHECK_EQ(try_flags(t, 0, UINT32_MAX), 0);
		CHECK_EQ(try_flags(t, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, 0), EOPNOTSUPP);
		CHECK_EQ(try_flags(t, IBV_QP_INIT_ATTR_IND_TABLE, 0), EOPNOTSUPP);
		CHECK_EQ(try_flags(t, IBV_QP_INIT_ATTR_RX_HASH, 0), EOPNOTSUPP);
	}
	CHECK_EQ(try_flags(IBV_QPT_DRIVER, 0, 0), EOPNOTSUPP);
	CHECK_EQ(try_flags((enum ibv_qp_type)77, 0, 0), EINVAL);
	env_close(&e);
	return 0;
}
