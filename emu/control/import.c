/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Importing: what one client has made, another may use.
 *
 * Theory of operation
 * -------------------
 * The descriptor that ibv_import_device(3) is given is the other client's end of its connection.
 * The importer passes it to the daemon, which shows that it really has it, over a connection of its
 * own; the daemon knows it by the inode and cookie each client said its end has. From then on both
 * have one set of PDs, MRs, MWs and DMs, as two processes with one kernel file would, and handles
 * mean the same to both. Everything else (QPs, CQs, SRQs, events) is each client's own. If the
 * other one goes before the importer has opened the device, there is nothing to be found.
 */
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "control.h"

struct shared_objects *shared_create(void)
{
	struct shared_objects *s = calloc(1, sizeof(*s));

	if (s != NULL)
		s->clients = 1;
	return s;
}

void shared_put(struct shared_objects *s)
{
	if (--s->clients != 0)
		return;
	handle_table_free(&s->pds);
	handle_table_free(&s->mrs);
	handle_table_free(&s->mws);
	handle_table_free(&s->dms);
	free(s);
}

/* @return the client whose end of the connection a descriptor is; NULL: none's, or it is unclear */
static struct client *client_of_fd(struct server *s, int fd)
{
	struct client *c, *found = NULL;
	socklen_t len = sizeof(int), cookie_len = sizeof(uint64_t);
	uint64_t cookie = 0;
	struct stat st;
	int domain;

	/* Of a file of who knows what filesystem even this could take for ever. */
	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) != 0 || domain != AF_UNIX ||
	    fstat(fd, &st) != 0)
		return NULL;
	getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &cookie_len);
	cds_list_for_each_entry (c, &s->clients, node) {
		if (c->device == NULL || c->peer_dev != st.st_dev || c->peer_ino != st.st_ino ||
		    c->peer_cookie != cookie)
			continue;
		if (found != NULL)
			return NULL;
		found = c;
	}
	return found;
}

/* ibv_import_device(3), its first half; VERNIC_CMD_OPEN_DEVICE with the name replied follows. */
int handle_import_device(struct client *c, struct message *m)
{
	struct vernic_device_info *info = &m->reply->import_device;
	struct client *other;

	if (c->device != NULL || c->shared->clients != 1)
		return -EBUSY;
	other = m->in_count == 1 ? client_of_fd(c->server, m->in[0]) : NULL;
	if (other == NULL)
		return -EINVAL;
	shared_put(c->shared);
	c->shared = other->shared;
	c->shared->clients++;
	/* Keys of MRs the polling library has never seen: it cannot place what comes for them. */
	for (uint32_t h = 0; h < c->shared->mrs.used; h++) {
		struct host_mr *mr = handle_get(&c->shared->mrs, h);

		if (mr != NULL)
			mr->mr.daemon_only = true;
	}
	memcpy(info->name, other->device->dev.name, sizeof(info->name));
	info->node_guid = other->device->dev.node_guid;
	info->index = other->device->dev.index;
	return 0;
}

/* ibv_import_pd(3) */
int handle_import_pd(struct client *c, struct message *m)
{
	m->reply->handle = m->req->handle;
	return handle_get(&c->shared->pds, m->req->handle) != NULL ? 0 : -EINVAL;
}

/* ibv_import_mr(3) */
int handle_import_mr(struct client *c, struct message *m)
{
	const struct host_mr *mr = handle_get(&c->shared->mrs, m->req->handle);
	const struct pd *pd = handle_get(&c->shared->pds, m->req->import_mr.pd);

	if (mr == NULL || mr->mr.pd != pd)
		return -EINVAL;
	m->reply->reg_mr.lkey = mr->mr.key;
	m->reply->reg_mr.rkey = mr->mr.key;
	m->reply->reg_mr.length = mr->mr.length;
	return 0;
}
