/* SPDX-License-Identifier: BSD-2-Clause */
/* Multicast groups: which QPs are attached to which. */
#include "mcast.h"

#include <errno.h>
#include <stdlib.h>

#include <urcu-qsbr.h>

/* @return the bucket of a group; the last bytes of a GID differ most */
static unsigned int bucket_of(const uint8_t gid[16])
{
	return (gid[15] ^ gid[14] * 31u ^ gid[13] * 7u) % MCAST_BUCKETS;
}

void mcast_init(struct mcast_table *t)
{
	for (unsigned int i = 0; i < MCAST_BUCKETS; i++)
		CDS_INIT_LIST_HEAD(&t->bucket[i]);
}

struct mcast_group *mcast_find(const struct mcast_table *t, const struct device *dev,
			       const uint8_t gid[16])
{
	struct mcast_group *g;

	cds_list_for_each_entry_rcu (g, &t->bucket[bucket_of(gid)], node) {
		if (g->dev == dev && memcmp(g->gid, gid, sizeof(g->gid)) == 0)
			return g;
	}
	return NULL;
}

struct mcast_member *mcast_find_member(const struct mcast_group *g, uint32_t qpn)
{
	struct mcast_member *m;

	cds_list_for_each_entry_rcu (m, &g->members, node) {
		if (m->qpn == qpn)
			return m;
	}
	return NULL;
}

int mcast_attach(struct mcast_table *t, const struct device *dev, const uint8_t gid[16],
		 const struct device *member_dev, uint32_t qpn, struct mcast_group **group)
{
	struct mcast_group *g = mcast_find(t, dev, gid);
	struct mcast_member *m = calloc(1, sizeof(*m));

	if (m == NULL)
		return -ENOMEM;
	m->dev = member_dev;
	m->qpn = qpn;
	if (g == NULL) {
		g = calloc(1, sizeof(*g));
		if (g == NULL) {
			free(m);
			return -ENOMEM;
		}
		g->dev = dev;
		memcpy(g->gid, gid, sizeof(g->gid));
		CDS_INIT_LIST_HEAD(&g->members);
		cds_list_add(&m->node, &g->members);
		cds_list_add_rcu(&g->node, &t->bucket[bucket_of(gid)]);
	} else {
		cds_list_add_rcu(&m->node, &g->members);
	}
	g->count++;
	t->attached++;
	*group = g;
	return 0;
}

void mcast_detach(struct mcast_table *t, struct mcast_group *g, struct mcast_member *member)
{
	cds_list_del_rcu(&member->node);
	t->attached--;
	g->count--;
	if (g->count == 0)
		cds_list_del_rcu(&g->node);
	synchronize_rcu();
	free(member);
	if (g->count == 0)
		free(g);
}
