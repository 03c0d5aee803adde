/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Administration: what happens to adapters. Ports go down and up, devices fail, come and go,
 * addresses change.
 *
 * Theory of operation
 * -------------------
 * A port that is down sends and receives nothing (device_is_down(), asked where packets leave and
 * arrive); QPs find out by their timeouts. A device that fails has its port down and its QPs in ERR
 * for good; commands of its contexts fail with EIO, but those that end things. A device that is
 * removed fails too, is not listed any more, gives its addresses back, and is freed when its last
 * client has gone. Workers look at devices and GID tables without locks: what is taken away is
 * unpublished first, and changed or freed after a grace period.
 */
#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "control.h"

/* Tells all contexts of a device. */
static void admin_event(struct server *s, const struct host_device *d, enum ibv_event_type type)
{
	uint32_t element = type == IBV_EVENT_DEVICE_FATAL ? 0 : 1;
	struct client *c;

	cds_list_for_each_entry (c, &s->clients, node) {
		if (c->device == d)
			client_async_event(c, type, element, 0);
	}
}

/* VERNIC_DEVICE_PORT_DOWN, _UP; events only where something changes */
static int admin_port(struct server *s, struct host_device *d, bool up)
{
	if (device_is_down(&d->dev) == !up)
		return 0;
	device_set_port(d, up);
	sysfs_update_port(&s->sysfs, &d->dev);
	admin_event(s, d, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
	return 0;
}

/* VERNIC_DEVICE_FATAL */
static int admin_fail(struct server *s, struct host_device *d)
{
	if (device_has_failed(d))
		return 0;
	vernic_store_release(&d->word->failed, 1);
	device_set_port(d, false);
	for (unsigned int i = 0; i < s->host->workers; i++)
		worker_fail_device(s->host->worker[i], d);
	sysfs_update_port(&s->sysfs, &d->dev);
	admin_event(s, d, IBV_EVENT_DEVICE_FATAL);
	return 0;
}

/* VERNIC_DEVICE_REMOVE */
static int admin_remove(struct server *s, struct host_device *d)
{
	host_unlist_device(s->host, d);
	admin_fail(s, d);
	sysfs_remove_device(&s->sysfs, &d->dev);
	for (unsigned int i = 0; i < s->host->workers; i++)
		worker_unbind(s->host->worker[i], d, NULL);
	if (d->clients == 0)
		device_free(s->host, d);
	return 0;
}

/* Binds sockets of a device at all workers, or at none. */
static int admin_bind(struct server *s, struct host_device *d, int index, char *error,
		      size_t error_len)
{
	const uint8_t *gid = index < 0 ? NULL : d->dev.gids[index].raw;
	unsigned int i;
	int err = 0;

	for (i = 0; err == 0 && i < s->host->workers; i++)
		err = worker_bind_device(s->host->worker[i], d, index, error, error_len);
	while (err != 0 && i-- > 0)
		worker_unbind(s->host->worker[i], d, gid);
	return err;
}

/* The GID table has changed. */
static void admin_gids_changed(struct server *s, struct host_device *d, unsigned int index)
{
	atomic_fetch_add(&d->word->gid_generation, 1);
	sysfs_update_gid(&s->sysfs, &d->dev, index);
	admin_event(s, d, IBV_EVENT_GID_CHANGE);
}

/* VERNIC_DEVICE_GID_ADD */
static int admin_add_gid(struct server *s, struct host_device *d, const char *address, char *error,
			 size_t error_len)
{
	unsigned int index;
	int err = device_add_address(d, address, s->host->device, &index);

	if (err == 0 && d->udp) {
		err = admin_bind(s, d, (int)index, error, error_len);
		if (err != 0)
			device_remove_gid(d, index);
	}
	if (err == 0)
		admin_gids_changed(s, d, index);
	return err;
}

/* VERNIC_DEVICE_GID_REMOVE; QPs that use it cannot send any more */
static int admin_remove_gid(struct server *s, struct host_device *d, const char *address)
{
	int index = device_find_address(d, address);
	uint8_t gid[16];

	if (index < 0)
		return index;
	memcpy(gid, d->dev.gids[index].raw, sizeof(gid));
	device_remove_gid(d, (unsigned int)index);
	for (unsigned int i = 0; d->udp && i < s->host->workers; i++)
		worker_unbind(s->host->worker[i], d, gid);
	admin_gids_changed(s, d, (unsigned int)index);
	return 0;
}

/* Puts the words for a failure behind the reply. @return err */
static int admin_explain(struct message *m, int err, const char *text)
{
	if (err == 0 || text[0] == '\0')
		return err;
	m->text = strdup(text);
	if (m->text == NULL)
		return err;
	m->text_len = strlen(text);
	m->reply->status_text.length = (uint32_t)m->text_len;
	return err;
}

int handle_device_admin(struct client *c, struct message *m)
{
	const char *name = m->req->device_admin.device, *address = m->req->device_admin.address;
	struct server *s = c->server;
	struct host_device *d;
	char error[512] = "";
	int err;

	if (memchr(name, '\0', VERNIC_NAME_MAX) == NULL ||
	    memchr(address, '\0', VERNIC_ADDRESS_TEXT) == NULL)
		return -EINVAL;
	d = host_device_by_name(c->host, name);
	if (d == NULL)
		return -ENODEV;
	if (device_has_failed(d) && m->req->device_admin.action != VERNIC_DEVICE_REMOVE)
		return admin_explain(m, -EIO, "the device has failed; it can only be removed");
	config_redirect(error, sizeof(error));
	switch (m->req->device_admin.action) {
	case VERNIC_DEVICE_PORT_DOWN:
	case VERNIC_DEVICE_PORT_UP:
		err = admin_port(s, d, m->req->device_admin.action == VERNIC_DEVICE_PORT_UP);
		break;
	case VERNIC_DEVICE_FATAL:
		err = admin_fail(s, d);
		break;
	case VERNIC_DEVICE_REMOVE:
		err = admin_remove(s, d);
		break;
	case VERNIC_DEVICE_GID_ADD:
		err = admin_add_gid(s, d, address, error, sizeof(error));
		break;
	case VERNIC_DEVICE_GID_REMOVE:
		err = admin_remove_gid(s, d, address);
		break;
	default:
		err = -EINVAL;
		break;
	}
	config_redirect(NULL, 0);
	return admin_explain(m, err, error);
}

/* Gives a device the first free name of vernic0, vernic1, ..., or checks the one it has. */
static int admin_name(const struct host *host, struct device_config *cfg)
{
	struct host_device *d;
	unsigned int i;

	if (cfg->name[0] != '\0' && host_device_by_name(host, cfg->name) != NULL)
		return config_fail("", "there is a device named %s already", cfg->name);
	for (unsigned int n = 0; cfg->name[0] == '\0'; n++) {
		char name[VERNIC_NAME_MAX];

		snprintf(name, sizeof(name), "vernic%u", n);
		if (host_device_by_name(host, name) == NULL)
			strcpy(cfg->name, name);
	}
	host_for_each_device (host, i, d) {
		if (cfg->guid != 0 && d->dev.node_guid == htobe64(cfg->guid))
			return config_fail("", "%s has that GUID already", d->dev.name);
	}
	return 0;
}

/* Makes a device and binds its sockets. */
static int admin_add(struct server *s, struct device_config *cfg, char *error, size_t error_len)
{
	struct host_device *d;
	int err = admin_name(s->host, cfg);

	if (err == 0)
		err = host_add_device(s->host, cfg, &d);
	if (err != 0)
		return err;
	err = admin_bind(s, d, -1, error, error_len);
	if (err != 0) {
		host_unlist_device(s->host, d);
		device_free(s->host, d);
		return err;
	}
	sysfs_add_device(&s->sysfs, &d->dev);
	return 0;
}

int handle_device_add(struct client *c, struct message *m)
{
	const char *spec = m->req->device_add.spec;
	struct device_config *cfg;
	char error[512] = "";
	int err;

	if (memchr(spec, '\0', sizeof(m->req->device_add.spec)) == NULL)
		return -EINVAL;
	cfg = malloc(sizeof(*cfg));
	if (cfg == NULL)
		return -ENOMEM;
	config_init_device(cfg, "");
	config_redirect(error, sizeof(error));
	err = spec[0] != '\0' ? config_parse_device(cfg, spec) : 0;
	config_finish_device(cfg);
	if (err == 0)
		err = admin_add(c->server, cfg, error, sizeof(error));
	config_redirect(NULL, 0);
	free(cfg);
	return admin_explain(m, err, error);
}
