/* SPDX-License-Identifier: BSD-2-Clause */
/* Devices: listing, opening, attributes, GIDs. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control.h"

int handle_list_devices(struct client *c, struct message *m)
{
	struct vernic_device_info *info = &m->reply->list_devices;
	uint32_t index = m->req->list_devices.index;
	const struct host_device *d;
	unsigned int i;

	/* The index of the list, in which there are no holes. */
	host_for_each_device (c->host, i, d) {
		if (index-- != 0)
			continue;
		memcpy(info->name, d->dev.name, sizeof(info->name));
		info->node_guid = d->dev.node_guid;
		info->index = d->dev.index;
		return 0;
	}
	return -ENODEV;
}

void device_free(struct host *host, struct host_device *d)
{
	for (unsigned int i = 0; i < host->workers; i++)
		worker_forget_device(host->worker[i], d);
	host_free_device(host, d);
}

/* Undoes what client_open_*() did of it, and ends the scanning of doorbells. */
void client_close_device(struct client *c)
{
	for (unsigned int i = 0; i < c->host->workers; i++) {
		struct doorbell_set *set = c->set[i];

		if (set == NULL)
			continue;
		worker_remove_doorbells(c->host->worker[i], set);
		for (unsigned int k = 0; k < VERNIC_MAX_CONTEXT_QP / 64; k++)
			free(set->row[k]);
		free(set);
		c->set[i] = NULL;
	}
	if (c->doorbells != NULL)
		munmap(c->doorbells, c->doorbells_size);
	c->doorbells = NULL;
	if (c->events.fd >= 0) {
		ev_io_stop(c->server->loop, &c->events.writable);
		close(c->events.fd);
		c->events.fd = -1;
	}
	free(c->events.event);
	c->events.event = NULL;
	c->events.count = c->events.capacity = 0;
	if (c->mm != NULL)
		mm_destroy(c->mm);
	c->mm = NULL;
	if (--c->shared->open == 0)
		c->shared->device = NULL;
	c->device->clients--;
	if (c->device->clients == 0 && c->device->removed)
		device_free(c->host, c->device);
	c->device = NULL;
}

/* Makes the doorbell memory and has every worker scan its part. */
static int client_open_doorbells(struct client *c, struct message *m, size_t stride)
{
	unsigned int workers = c->host->workers;
	int fd, err;

	c->doorbells_size = workers * stride;
	err = shared_memory_create("vernic-doorbells", c->doorbells_size, &c->doorbells, &fd);
	if (err != 0)
		return err;
	message_add_fd(m, fd);
	for (unsigned int i = 0; i < workers; i++) {
		struct doorbell_set *set = calloc(1, sizeof(*set));

		if (set == NULL)
			return -ENOMEM;
		set->db = (struct vernic_doorbell *)((char *)c->doorbells + i * stride);
		c->set[i] = set;
		worker_add_doorbells(c->host->worker[i], set);
	}
	return 0;
}

/* Makes the socket asynchronous events go by. */
static int client_open_events(struct client *c, struct message *m)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
		return -errno;
	c->events.fd = fds[0];
	message_add_fd(m, fds[1]);
	return 0;
}

/* Adds a duplicate of an fd to the reply. */
static int message_add_dup(struct message *m, int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	if (copy < 0)
		return -errno;
	message_add_fd(m, copy);
	return 0;
}

/*
 * Makes the connection a device context.
 * @return ENODEV: no such device; EBUSY: opened one already; what mm_create() says where the
 * client's memory is out of reach
 */
int handle_open_device(struct client *c, struct message *m)
{
	const char *name = m->req->open_device.name;
	size_t stride = round_up(sizeof(struct vernic_doorbell), 4096);
	struct host_device *dev;
	int mem_fd, err;

	if (c->device != NULL)
		return -EBUSY;
	if (memchr(name, '\0', sizeof(m->req->open_device.name)) == NULL)
		return -EINVAL;
	dev = host_device_by_name(c->host, name);
	if (dev == NULL)
		return -ENODEV;
	/* An imported device, or a fresh connection's. */
	if (c->shared->device != NULL && c->shared->device != dev)
		return -EINVAL;
	if (device_has_failed(dev))
		return -EIO;
	mem_fd = m->in_count > 0 ? m->in[0] : -1;
	if (m->in_count > 0)
		m->in[0] = -1;
	err = mm_create(c->pid, mem_fd, m->req->open_device.probe_addr,
			m->req->open_device.probe_value, &c->mm);
	if (err != 0)
		return err;
	c->device = dev;
	c->shared->device = dev;
	c->shared->open++;
	dev->clients++;
	err = client_open_doorbells(c, m, stride);
	if (err == 0)
		err = message_add_dup(m, c->host->page_fd);
	if (err == 0)
		err = client_open_events(c, m);
	for (unsigned int i = 0; err == 0 && i < c->host->workers; i++)
		err = message_add_dup(m, worker_wake_fd(c->host->worker[i]));
	if (err != 0) {
		client_close_device(c);
		return err;
	}
	c->peer_dev = m->req->open_device.dev;
	c->peer_ino = m->req->open_device.ino;
	c->peer_cookie = m->req->open_device.cookie;
	m->reply->open_device.workers = c->host->workers;
	m->reply->open_device.doorbell_stride = (uint32_t)stride;
	m->reply->open_device.node_guid = dev->dev.node_guid;
	m->reply->open_device.device_index = dev->dev.index;
	return 0;
}

/* ibv_query_device(3) */
int handle_query_device(struct client *c, struct message *m)
{
	const struct device *dev = &c->device->dev;

	m->reply->query_device.attr = dev->attr;
	m->reply->query_device.cap_flags = dev->attr.device_cap_flags;
	if (device_has(dev, DEVICE_FLUSH))
		m->reply->query_device.cap_flags |= VERNIC_DEVICE_FLUSH_GLOBAL |
						    VERNIC_DEVICE_FLUSH_PERSISTENT |
						    VERNIC_DEVICE_ATOMIC_WRITE;
	m->reply->query_device.max_dm = device_has(dev, DEVICE_MEMORY) ? VERNIC_MAX_DM : 0;
	m->reply->query_device.pacing = device_has(dev, DEVICE_PACING);
	m->reply->query_device.odp = device_has(dev, DEVICE_ODP);
	return 0;
}

/* ibv_query_port(3) */
int handle_query_port(struct client *c, struct message *m)
{
	m->reply->query_port = c->device->dev.port_attr;
	return 0;
}

/* ibv_query_gid(3) */
int handle_query_gid(struct client *c, struct message *m)
{
	uint32_t index = m->req->query_gid.index;
	const struct gid_entry *gid;

	if (index >= VERNIC_GID_MAX)
		return -EINVAL;
	m->reply->query_gid.used = c->device->dev.gid_count;
	m->reply->query_gid.type = IBV_GID_TYPE_ROCE_V2;
	gid = device_gid(&c->device->dev, index);
	/* An entry that is empty reads as zeros. */
	if (gid == NULL)
		return 0;
	memcpy(m->reply->query_gid.gid, gid->raw, 16);
	m->reply->query_gid.ifindex = gid->ifindex;
	return 0;
}
