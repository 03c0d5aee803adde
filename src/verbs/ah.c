/* SPDX-License-Identifier: BSD-2-Clause */
/* Address handles. They live in the library only: a UD work request carries the address itself. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* @return whether a GID is an IPv4 address (::ffff:a.b.c.d) */
static bool gid_is_ipv4(const union ibv_gid *gid)
{
	return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)gid->raw);
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *ibpd, struct ibv_ah_attr *attr)
{
	struct context *ctx = to_context(ibpd->context);
	struct pd *pd = (struct pd *)ibpd;
	union ibv_gid own;
	struct ah *ah;
	int error = EINVAL;

	if (attr->port_num == 1 && attr->is_global)
		error = device_get_gid(ctx, attr->grh.sgid_index, &own);
	if (!error && gid_is_ipv4(&attr->grh.dgid) != gid_is_ipv4(&own))
		error = EINVAL;
	if (error) {
		errno = error;
		return NULL;
	}
	ah = calloc(1, sizeof(*ah));
	if (!ah)
		return NULL;
	ah->ibv.context = ibpd->context;
	ah->ibv.pd = ibpd;
	ah->attr = *attr;
	atomic_fetch_add(&pd->ahs, 1);
	return &ah->ibv;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	atomic_fetch_sub(&((struct pd *)ah->pd)->ahs, 1);
	free(ah);
	return 0;
}

/* @return whether a GRH area holds an IPv4 header in its last 20 bytes (IBTA A17.4.5.1) */
static bool grh_is_ipv4(const struct ibv_grh *grh)
{
	const uint8_t *area = (const uint8_t *)grh, *ip = area + 20;
	uint32_t sum = 0;

	if (ip[0] != 0x45 || ip[9] != IPPROTO_UDP)
		return false;
	if (area[0] >> 4 != 6)
		return true;
	/* Bytes of an IPv6 source address that look alike do not add up to a header checksum. */
	for (int i = 0; i < 20; i += 2)
		sum += (uint32_t)ip[i] << 8 | ip[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/* ::ffff:addr */
static void gid_from_ipv4(union ibv_gid *gid, uint32_t addr)
{
	memset(gid->raw, 0, 10);
	memset(gid->raw + 10, 0xff, 2);
	memcpy(gid->raw + 12, &addr, 4);
}

/* @return whether gid is in the table; index: out */
static bool find_gid(struct context *ctx, const union ibv_gid *gid, uint8_t *index)
{
	union ibv_gid own;

	for (uint32_t i = 0; i < ctx->gid_count; i++) {
		if (device_get_gid(ctx, i, &own) || memcmp(&own, gid, sizeof(own)) != 0)
			continue;
		*index = (uint8_t)i;
		return true;
	}
	return false;
}

/* @return whether an address of the same kind, IPv4 or IPv6, is in the table; index: out */
static bool find_gid_like(struct context *ctx, const union ibv_gid *gid, uint8_t *index)
{
	union ibv_gid own;

	for (uint32_t i = 0; i < ctx->gid_count; i++) {
		if (device_get_gid(ctx, i, &own) || gid_is_ipv4(&own) != gid_is_ipv4(gid))
			continue;
		*index = (uint8_t)i;
		return true;
	}
	return false;
}

int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc,
			struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	struct context *ctx = to_context(context);
	union ibv_gid own;
	struct iphdr ip;
	uint32_t flow;

	memset(attr, 0, sizeof(*attr));
	attr->dlid = wc->slid;
	attr->sl = wc->sl;
	attr->src_path_bits = wc->dlid_path_bits;
	attr->port_num = port_num;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;

	attr->is_global = 1;
	attr->grh.hop_limit = 0xff;
	if (grh_is_ipv4(grh)) {
		memcpy(&ip, (const uint8_t *)grh + 20, sizeof(ip));
		gid_from_ipv4(&attr->grh.dgid, ip.saddr);
		gid_from_ipv4(&own, ip.daddr);
		attr->grh.traffic_class = ip.tos;
	} else {
		attr->grh.dgid = grh->sgid;
		own = grh->dgid;
		flow = ntohl(grh->version_tclass_flow);
		attr->grh.flow_label = flow & 0xfffff;
		attr->grh.traffic_class = flow >> 20 & 0xff;
	}
	/* Sent to a group: answer from an address of the same kind. */
	if (!find_gid(ctx, &own, &attr->grh.sgid_index) &&
	    !find_gid_like(ctx, &attr->grh.dgid, &attr->grh.sgid_index)) {
		errno = ENOENT;
		return -1;
	}
	return 0;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
				     uint8_t port_num)
{
	struct ibv_ah_attr attr;

	if (ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}
