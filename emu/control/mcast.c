/* SPDX-License-Identifier: BSD-2-Clause */
/* Attaching QPs to multicast groups. */
#include <string.h>

#include "control.h"

/*
 * The device whose network a group is on: private ones share one. Of a device with addresses it is
 * joined at its interface, by a socket of worker 0.
 */
static const struct device *mcast_network(const struct host_device *d)
{
	return d->udp ? &d->dev : NULL;
}

/* @return how many groups there are on the network: they go with whoever leaves them last */
static uint32_t *mcast_count(struct client *c)
{
	return c->device->udp ? &c->device->groups : &c->host->mcast.shared;
}

/* @return the index of the interface to join a group at: that of an address of its kind, if any */
static uint32_t mcast_interface(const struct host_device *d, const uint8_t gid[16])
{
	uint32_t ifindex = 0;

	for (unsigned int i = 0; i < d->dev.gid_count; i++) {
		const struct gid_entry *g = device_gid(&d->dev, i);

		if (g == NULL || !d->bound[i])
			continue;
		if (gid_is_ipv4(g->raw) == gid_is_ipv4(gid))
			return g->ifindex;
		ifindex = g->ifindex;
	}
	return ifindex;
}

/*
 * Finds what a request is about.
 * @return the QP, or NULL: there is none, it is not of UD, or that is no group
 */
static struct host_qp *mcast_find_qp(struct client *c, const struct vernic_request *req)
{
	struct host_qp *qp = handle_get(&c->qps, req->handle);

	return qp != NULL && qp->type == IBV_QPT_UD && gid_is_multicast(req->mcast.gid) ? qp : NULL;
}

/* ibv_attach_mcast(3). A QP that is attached already stays so. @return ENOMEM above the limits */
int handle_attach_mcast(struct client *c, struct message *m)
{
	const struct ibv_device_attr *limits = &c->device->dev.attr;
	struct host_qp *qp = mcast_find_qp(c, m->req);
	const struct device *network = mcast_network(c->device);
	const uint8_t *gid = m->req->mcast.gid;
	struct mcast_table *t = &c->host->mcast;
	struct mcast_group *g;
	char error[128];
	int err = 0;

	if (qp == NULL)
		return -EINVAL;
	if (limits->max_mcast_grp == 0)
		return -EOPNOTSUPP;
	g = mcast_find(t, network, gid);
	if (g != NULL && mcast_find_member(g, qp->qpn) != NULL)
		return 0;
	if (g != NULL ? g->count >= (uint32_t)limits->max_mcast_qp_attach
		      : *mcast_count(c) >= (uint32_t)limits->max_mcast_grp)
		return -ENOMEM;
	if (g == NULL && network != NULL)
		err = worker_join(c->host->worker[0], c->device, gid,
				  mcast_interface(c->device, gid), error, sizeof(error));
	if (err != 0) {
		log_warning("%s cannot join a multicast group: %s", c->device->dev.name, error);
		return err;
	}
	err = mcast_attach(t, network, gid, &c->device->dev, qp->qpn, &g);
	if (err != 0)
		return err;
	if (g->count == 1)
		++*mcast_count(c);
	qp->groups++;
	return 0;
}

/* Detaches a QP that is a member. */
static void mcast_leave(struct client *c, struct host_qp *qp, struct mcast_group *g,
			struct mcast_member *member)
{
	uint8_t gid[16];
	bool last = g->count == 1;

	memcpy(gid, g->gid, sizeof(gid));
	mcast_detach(&c->host->mcast, g, member);
	qp->groups--;
	if (!last)
		return;
	--*mcast_count(c);
	if (c->device->udp)
		worker_unbind(c->host->worker[0], c->device, gid);
}

/* ibv_detach_mcast(3). @return EINVAL: it is not attached */
int handle_detach_mcast(struct client *c, struct message *m)
{
	struct host_qp *qp = mcast_find_qp(c, m->req);
	struct mcast_member *member = NULL;
	struct mcast_group *g;

	if (qp == NULL)
		return -EINVAL;
	g = mcast_find(&c->host->mcast, mcast_network(c->device), m->req->mcast.gid);
	if (g != NULL)
		member = mcast_find_member(g, qp->qpn);
	if (member == NULL)
		return -EINVAL;
	mcast_leave(c, qp, g, member);
	return 0;
}

void mcast_leave_all(struct client *c, struct host_qp *qp)
{
	struct mcast_table *t = &c->host->mcast;
	struct mcast_group *g, *next;

	for (unsigned int i = 0; qp->groups != 0 && i < MCAST_BUCKETS; i++) {
		cds_list_for_each_entry_safe (g, next, &t->bucket[i], node) {
			struct mcast_member *member = mcast_find_member(g, qp->qpn);

			if (member != NULL)
				mcast_leave(c, qp, g, member);
		}
	}
}
