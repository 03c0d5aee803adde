/* SPDX-License-Identifier: BSD-2-Clause */
/* What `vernic stats` shows: the counters of devices and QPs, as text for people or as JSON. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control.h"

/* A QP at the moment its worker was asked. */
struct stats_qp {
	uint32_t qpn;
	uint32_t device; /* index */
	uint32_t worker;
	uint32_t peer; /* QPN; 0: none */
	enum ibv_qp_type type;
	enum ibv_qp_state state;
	pid_t pid;
	struct qp_counters counters;
};

/* ---- on the worker's thread --------------------------------------------------------------- */

/* @return whose QP it is: of a XRC target, one who has it open */
static const struct client *stats_client(const struct qp *qp)
{
	if (qp->p.type != IBV_QPT_XRC_RECV)
		return qp->p.client;
	return cds_list_first_entry(&qp->openers, struct qp_opener, node)->client;
}

/* One QP, as it is now. */
static void stats_describe(const struct qp *qp, struct stats_qp *s)
{
	*s = (struct stats_qp){
		.qpn = qp->qpn,
		.device = qp->p.dev->index,
		.worker = qp->engine->worker,
		.peer = qp->attr.dest_qp_num,
		.type = qp->p.type,
		.state = qp->state,
		.pid = stats_client(qp)->pid,
		.counters = qp->counters,
	};
}

struct stats_call {
	struct worker *w;
	const struct device *dev;   /* NULL: all */
	struct qp_counters *device; /* by index: added to */
	struct stats_qp *qps;	    /* NULL: not wanted */
	uint32_t qp_count;
};

/* Adds up the counters of devices and, where wanted, copies those of QPs, all of one moment. */
static int stats_collect_call(void *arg)
{
	struct stats_call *call = arg;
	const struct engine *e = worker_engine(call->w);

	for (uint32_t i = 0; i < ENGINE_MAX_DEVICES; i++)
		counters_add(&call->device[i], &e->device[i]);
	for (uint32_t slot = 0; slot < e->slot_end; slot++) {
		const struct qp *qp = e->qps[slot];

		if (qp == NULL || (call->dev != NULL && qp->p.dev != call->dev))
			continue;
		counters_add(&call->device[qp->p.dev->index], &qp->counters);
		if (call->qps != NULL)
			stats_describe(qp, &call->qps[call->qp_count++]);
	}
	return 0;
}

/* @return the QPs a worker has */
static int stats_count_call(void *arg)
{
	struct worker *w = arg;

	return (int)worker_engine(w)->qp_count;
}

/* ---- on the control thread ---------------------------------------------------------------- */

/* All that is shown. */
struct stats {
	const struct host *host;
	const struct device *dev; /* NULL: all */
	struct qp_counters device[ENGINE_MAX_DEVICES];
	struct stats_qp *qps; /* NULL: not wanted */
	uint32_t qp_count;
};

void stats_device_counters(const struct host *host, const struct device *dev,
			   struct qp_counters *sum)
{
	struct qp_counters device[ENGINE_MAX_DEVICES] = {0};

	for (unsigned int i = 0; i < host->workers; i++) {
		struct stats_call call = {.w = host->worker[i], .dev = dev, .device = device};

		worker_call(host->worker[i], stats_collect_call, &call);
	}
	*sum = device[dev->index];
}

/* Asks all workers. No QP comes or goes meanwhile: that is this thread's to do. @return 0, -ENOMEM
 */
static int stats_collect(struct stats *s, bool qps)
{
	uint32_t count = 0;

	if (qps) {
		for (unsigned int i = 0; i < s->host->workers; i++)
			count += (uint32_t)worker_call(s->host->worker[i], stats_count_call,
						       s->host->worker[i]);
		s->qps = calloc(count + 1, sizeof(*s->qps));
		if (s->qps == NULL)
			return -ENOMEM;
	}
	for (unsigned int i = 0; i < s->host->workers; i++) {
		struct stats_call call = {
			.w = s->host->worker[i],
			.dev = s->dev,
			.device = s->device,
			.qps = s->qps,
			.qp_count = s->qp_count,
		};

		worker_call(s->host->worker[i], stats_collect_call, &call);
		s->qp_count = call.qp_count;
	}
	return 0;
}

static const char *stats_type_name(enum ibv_qp_type type)
{
	switch (type) {
	case IBV_QPT_RC:
		return "RC";
	case IBV_QPT_UC:
		return "UC";
	case IBV_QPT_XRC_SEND:
		return "XRC_SEND";
	case IBV_QPT_XRC_RECV:
		return "XRC_RECV";
	default:
		return "UD";
	}
}

/* Prints `"KEY":{"NAME":VALUE,...}` of a table of counters. */
static void json_counters(FILE *f, const char *key, const struct counter_info *info,
			  unsigned int count, const struct qp_counters *c)
{
	fprintf(f, "\"%s\":{", key);
	for (unsigned int i = 0; i < count; i++)
		fprintf(f, "%s\"%s\":%" PRIu64, i != 0 ? "," : "", info[i].name,
			counter_value(&info[i], c));
	fprintf(f, "}");
}

/* The QPs of a device, as JSON. */
static void json_qps(FILE *f, const struct stats *s, uint32_t device)
{
	bool first = true;

	fprintf(f, ",\"qps\":[");
	for (uint32_t i = 0; i < s->qp_count; i++) {
		const struct stats_qp *qp = &s->qps[i];

		if (qp->device != device)
			continue;
		fprintf(f,
			"%s{\"qpn\":%u,\"type\":\"%s\",\"state\":\"%s\",\"peer\":%u,"
			"\"worker\":%u,\"pid\":%d,",
			first ? "" : ",", qp->qpn, stats_type_name(qp->type),
			qp_state_name(qp->state), qp->peer, qp->worker, (int)qp->pid);
		json_counters(f, "hw_counters", hw_counters, hw_counters_count, &qp->counters);
		fprintf(f, "}");
		first = false;
	}
	fprintf(f, "]");
}

/* One object for each device. */
static void stats_json(FILE *f, const struct stats *s)
{
	const struct host_device *d;
	bool first = true;
	unsigned int i;

	fprintf(f, "{\"devices\":[");
	host_for_each_device (s->host, i, d) {
		const struct device *dev = &d->dev;
		const struct qp_counters *c = &s->device[dev->index];

		if (s->dev != NULL && s->dev != dev)
			continue;
		fprintf(f, "%s{\"name\":\"%s\",\"port\":1,", first ? "" : ",", dev->name);
		json_counters(f, "hw_counters", hw_counters, hw_counters_count, c);
		fprintf(f, ",");
		json_counters(f, "counters", port_counters, port_counters_count, c);
		if (s->qps != NULL)
			json_qps(f, s, dev->index);
		fprintf(f, "}");
		first = false;
	}
	fprintf(f, "]}\n");
}

/* A line for each counter, each of them saying whose it is. */
static void text_counters(FILE *f, const char *device, const struct counter_info *info,
			  unsigned int count, const struct qp_counters *c)
{
	for (unsigned int i = 0; i < count; i++)
		fprintf(f, "%s/1 %-32s %" PRIu64 "\n", device, info[i].name,
			counter_value(&info[i], c));
}

/* The QPs of a device: those of their counters that are not 0. */
static void text_qps(FILE *f, const struct stats *s, const struct device *dev)
{
	for (uint32_t i = 0; i < s->qp_count; i++) {
		const struct stats_qp *qp = &s->qps[i];

		if (qp->device != dev->index)
			continue;
		fprintf(f, "%s/1 qp %u type %s state %s peer %u worker %u pid %d\n", dev->name,
			qp->qpn, stats_type_name(qp->type), qp_state_name(qp->state), qp->peer,
			qp->worker, (int)qp->pid);
		for (unsigned int k = 0; k < hw_counters_count; k++) {
			uint64_t value = counter_value(&hw_counters[k], &qp->counters);

			if (value != 0)
				fprintf(f, "%s/1 qp %u %-24s %" PRIu64 "\n", dev->name, qp->qpn,
					hw_counters[k].name, value);
		}
	}
}

static void stats_text(FILE *f, const struct stats *s)
{
	const struct host_device *d;
	unsigned int i;

	host_for_each_device (s->host, i, d) {
		const struct device *dev = &d->dev;
		const struct qp_counters *c = &s->device[dev->index];

		if (s->dev != NULL && s->dev != dev)
			continue;
		text_counters(f, dev->name, hw_counters, hw_counters_count, c);
		text_counters(f, dev->name, port_counters, port_counters_count, c);
		if (s->qps != NULL)
			text_qps(f, s, dev);
	}
}

/* Names and meanings. */
static void stats_explain(FILE *f)
{
	for (unsigned int i = 0; i < hw_counters_count; i++)
		fprintf(f, "%-32s %s\n", hw_counters[i].name, hw_counters[i].meaning);
	for (unsigned int i = 0; i < port_counters_count; i++)
		fprintf(f, "%-32s %s\n", port_counters[i].name, port_counters[i].meaning);
}

/* Finds the device a request is about. @return 0, -EINVAL, -ENODEV */
static int stats_find_device(const struct host *host, const char name[VERNIC_NAME_MAX],
			     const struct device **dev)
{
	const struct host_device *d;

	*dev = NULL;
	if (memchr(name, '\0', VERNIC_NAME_MAX) == NULL)
		return -EINVAL;
	if (name[0] == '\0')
		return 0;
	d = host_device_by_name(host, name);
	if (d == NULL)
		return -ENODEV;
	*dev = &d->dev;
	return 0;
}

/*
 * With 10,000 QPs this is megabytes, which no message takes: the text goes in a file of its own.
 * @return 0 or a negative errno
 */
int handle_stats(struct client *c, struct message *m)
{
	struct stats *s = calloc(1, sizeof(*s));
	int fd = -1, copy, err;
	FILE *f;
	long length;

	if (s == NULL)
		return -ENOMEM;
	s->host = c->host;
	err = stats_find_device(c->host, m->req->stats.device, &s->dev);
	if (err == 0)
		err = stats_collect(s, m->req->stats.qps != 0);
	if (err != 0)
		goto out;
	fd = memfd_create("vernic-stats", MFD_CLOEXEC);
	copy = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
	f = copy >= 0 ? fdopen(copy, "w") : NULL;
	if (f == NULL) {
		err = -errno;
		if (copy >= 0)
			close(copy);
		goto out;
	}
	if (m->req->stats.explain != 0)
		stats_explain(f);
	else if (m->req->stats.json != 0)
		stats_json(f, s);
	else
		stats_text(f, s);
	length = ftell(f);
	if (fclose(f) != 0 || length < 0 || length > UINT32_MAX) {
		err = -ENOMEM;
		goto out;
	}
	m->reply->status_text.length = (uint32_t)length;
	message_add_fd(m, fd);
	fd = -1;
out:
	if (fd >= 0)
		close(fd);
	free(s->qps);
	free(s);
	return err;
}
