/* SPDX-License-Identifier: BSD-2-Clause */
/* What `vernic status` shows: as text for people, or as JSON. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "vernic_config.h"

/* Room kept for what follows the list of clients. */
#define STATUS_TAIL 4096

/* Counters by name: one table for both forms. */
#define COUNTER(group, field)                                            \
	{                                                                \
#field, offsetof(struct worker_status, group) +          \
				offsetof(struct group##_counters, field) \
	}
static const struct {
	const char *name;
	size_t offset;
} status_counters[] = {
	COUNTER(engine, tx_packets),	   COUNTER(engine, rx_packets),
	COUNTER(engine, rx_dropped),	   COUNTER(engine, duplicates),
	COUNTER(engine, out_of_sequence),  COUNTER(engine, rnr_nak_sent),
	COUNTER(engine, rnr_nak_received), COUNTER(engine, seq_nak_received),
	COUNTER(engine, timeouts),	   COUNTER(engine, retransmits),
	COUNTER(engine, completions),	   COUNTER(engine, np_ecn_marked_roce_packets),
	COUNTER(engine, np_cnp_sent),	   COUNTER(engine, rp_cnp_handled),
	COUNTER(engine, bad_icrc),	   COUNTER(engine, malformed),
	COUNTER(udp, rx_datagrams),
	COUNTER(udp, tx_datagrams),
};
#define STATUS_COUNTERS (sizeof(status_counters) / sizeof(status_counters[0]))

/* @return the value of counter i of the table */
static uint64_t status_counter(const struct worker_status *w, size_t i)
{
	uint64_t value;

	memcpy(&value, (const char *)w + status_counters[i].offset, sizeof(value));
	return value;
}

/* Prints a JSON string. */
static void json_string(FILE *f, const char *s)
{
	putc('"', f);
	for (; *s != '\0'; s++) {
		if (*s == '"' || *s == '\\')
			fprintf(f, "\\%c", *s);
		else if ((unsigned char)*s < 0x20)
			fprintf(f, "\\u%04x", (unsigned char)*s);
		else
			putc(*s, f);
	}
	putc('"', f);
}

/* Writes a GUID as "0200:00ff:fe00:0001". */
static const char *status_guid(uint64_t guid, char buf[20])
{
	uint8_t raw[8];

	memcpy(raw, &guid, sizeof(raw));
	snprintf(buf, 20, "%02x%02x:%02x%02x:%02x%02x:%02x%02x", raw[0], raw[1], raw[2], raw[3],
		 raw[4], raw[5], raw[6], raw[7]);
	return buf;
}

/* @return the name of the device a client has opened, "" without one */
static const char *status_client_device(const struct client *c)
{
	return c->device != NULL ? c->device->dev.name : "";
}

/* @return how the memory of a client is reached, "" before it has opened a device */
static const char *status_client_memory(const struct client *c)
{
	return c->mm != NULL ? mm_method_name(mm_method(c->mm)) : "";
}

/* ---- JSON --------------------------------------------------------------------------------- */

/* Each of these prints one object; the commas between them belong to the later one. */
static void json_worker(FILE *f, unsigned int index, const struct worker_status *w)
{
	fprintf(f, "%s{\"index\":%u,\"io\":\"%s\",\"qps\":%u", index != 0 ? "," : "", index, w->io,
		w->qps);
	for (size_t i = 0; i < STATUS_COUNTERS; i++)
		fprintf(f, ",\"%s\":%" PRIu64, status_counters[i].name, status_counter(w, i));
	fprintf(f, "}");
}

static void json_device(FILE *f, bool first, const struct host_device *d)
{
	char guid[20], text[INET6_ADDRSTRLEN];

	fprintf(f,
		"%s{\"name\":\"%s\",\"guid\":\"%s\",\"mtu\":%u,\"port\":\"%s\","
		"\"state\":\"%s\",\"profile\":\"%s\",\"gids\":[",
		first ? "" : ",", d->dev.name, status_guid(d->dev.node_guid, guid),
		128u << d->dev.port_attr.active_mtu, d->udp ? "udp" : "local", device_state(d),
		config_profile_name(d->profile));
	first = true;
	for (unsigned int i = 0; i < d->dev.gid_count; i++) {
		if (device_gid(&d->dev, i) == NULL)
			continue;
		fprintf(f, "%s{\"index\":%u,\"address\":\"%s\",\"ifindex\":%u,\"socket\":%s}",
			first ? "" : ",", i, device_format_gid(d->dev.gids[i].raw, text),
			d->dev.gids[i].ifindex, d->bound[i] ? "true" : "false");
		first = false;
	}
	fprintf(f, "],\"pd\":%u,\"mr\":%u,\"cq\":%u,\"srq\":%u,\"qp\":%u}", d->pds, d->mrs, d->cqs,
		d->srqs, d->qps);
}

static void json_client(FILE *f, bool first, const struct client *c)
{
	fprintf(f,
		"%s{\"pid\":%d,\"uid\":%u,\"device\":\"%s\",\"memory\":\"%s\",\"pd\":%u,\"mr\":%u,"
		"\"channel\":%u,\"cq\":%u,\"srq\":%u,\"qp\":%u}",
		first ? "" : ",", (int)c->pid, (unsigned int)c->uid, status_client_device(c),
		status_client_memory(c), c->shared->pds.count, c->shared->mrs.count,
		c->channels.count, c->cqs.count, c->srqs.count, c->qps.count);
}

/* Prints everything, clients as long as there is room; the one that asks is not among them. */
static void status_json(FILE *f, struct client *asking)
{
	const struct server *s = asking->server;
	const struct host *host = asking->host;
	const struct host_device *d;
	unsigned int omitted = 0, i;
	bool first = true;
	struct client *c;

	fprintf(f, "{\"version\":\"%s\",\"abi\":%u,\"pid\":%d,\"uptime\":%.3f,\"socket\":",
		VERNIC_VERSION, VERNIC_ABI_VERSION, (int)getpid(),
		(double)(host_now() - host->start) / 1e9);
	json_string(f, s->path);
	fprintf(f, ",\"workers\":[");
	for (i = 0; i < host->workers; i++) {
		struct worker_status status;

		worker_get_status(host->worker[i], &status);
		json_worker(f, i, &status);
	}
	fprintf(f, "],\"devices\":[");
	host_for_each_device (host, i, d) {
		json_device(f, first, d);
		first = false;
	}
	first = true;
	fprintf(f, "],\"clients\":[");
	cds_list_for_each_entry (c, &s->clients, node) {
		if (c == asking)
			continue;
		if (ftell(f) > MESSAGE_TEXT_MAX - STATUS_TAIL) {
			omitted++;
			continue;
		}
		json_client(f, first, c);
		first = false;
	}
	fprintf(f, "],\"clients_omitted\":%u}\n", omitted);
}

/* ---- text --------------------------------------------------------------------------------- */

/* Each of these prints a line or a paragraph. */
static void text_worker(FILE *f, unsigned int index, const struct worker_status *w)
{
	fprintf(f, "worker %u: %s, %u QPs\n", index, w->io, w->qps);
	for (size_t i = 0; i < STATUS_COUNTERS; i++) {
		uint64_t value = status_counter(w, i);

		if (value != 0)
			fprintf(f, "  %-18s %" PRIu64 "\n", status_counters[i].name, value);
	}
}

static void text_device(FILE *f, const struct host_device *d)
{
	char guid[20], text[INET6_ADDRSTRLEN];

	fprintf(f, "device %s: GUID %s, MTU %u, %s, %s\n", d->dev.name,
		status_guid(d->dev.node_guid, guid), 128u << d->dev.port_attr.active_mtu,
		d->udp ? "UDP port 4791" : "private", device_state(d));
	for (unsigned int i = 0; i < d->dev.gid_count; i++) {
		if (device_gid(&d->dev, i) == NULL)
			continue;
		fprintf(f, "  GID %-2u %s%s\n", i, device_format_gid(d->dev.gids[i].raw, text),
			d->bound[i] ? " (socket)" : "");
	}
	fprintf(f, "  in use: %u PDs, %u MRs, %u CQs, %u SRQs, %u QPs\n", d->pds, d->mrs, d->cqs,
		d->srqs, d->qps);
}

static void text_client(FILE *f, const struct client *c)
{
	fprintf(f, "client: PID %d, UID %u", (int)c->pid, (unsigned int)c->uid);
	if (c->device != NULL)
		fprintf(f, ", %s, memory by %s: %u PDs, %u MRs, %u CQs, %u SRQs, %u QPs",
			status_client_device(c), status_client_memory(c), c->shared->pds.count,
			c->shared->mrs.count, c->cqs.count, c->srqs.count, c->qps.count);
	fprintf(f, "\n");
}

/* As status_json(). */
static void status_text(FILE *f, struct client *asking)
{
	const struct server *s = asking->server;
	const struct host *host = asking->host;
	uint64_t uptime = (host_now() - host->start) / UINT64_C(1000000000);
	const struct host_device *d;
	unsigned int omitted = 0, i;
	struct client *c;

	fprintf(f, "vernicd %s, PID %d, up %" PRIu64 " s, socket %s\n", VERNIC_VERSION,
		(int)getpid(), uptime, s->path);
	for (i = 0; i < host->workers; i++) {
		struct worker_status status;

		worker_get_status(host->worker[i], &status);
		text_worker(f, i, &status);
	}
	host_for_each_device (host, i, d)
		text_device(f, d);
	cds_list_for_each_entry (c, &s->clients, node) {
		if (c == asking)
			continue;
		if (ftell(f) > MESSAGE_TEXT_MAX - STATUS_TAIL)
			omitted++;
		else
			text_client(f, c);
	}
	if (omitted != 0)
		fprintf(f, "and %u more clients\n", omitted);
}

int handle_status(struct client *c, struct message *m)
{
	FILE *f = open_memstream(&m->text, &m->text_len);

	if (f == NULL)
		return -ENOMEM;
	if (m->req->status.json != 0)
		status_json(f, c);
	else
		status_text(f, c);
	if (fclose(f) != 0)
		return -ENOMEM;
	/* Very many devices with very many addresses: better no answer than a broken one. */
	if (m->text_len > MESSAGE_TEXT_MAX) {
		m->text_len = 0;
		return -EMSGSIZE;
	}
	m->reply->status_text.length = (uint32_t)m->text_len;
	return 0;
}
