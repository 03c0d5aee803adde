/* SPDX-License-Identifier: BSD-2-Clause */
/* Fault rules: adding, listing and clearing them. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "control.h"

int server_add_fault(struct server *s, const struct fault_rule *rule, struct client *owner,
		     uint32_t *id)
{
	struct server_fault *f = &s->fault[s->fault_count];
	unsigned int done;
	int err = 0;

	if (s->fault_count == VERNIC_MAX_FAULTS)
		return -ENOSPC;
	f->rule = *rule;
	f->rule.id = s->fault_id + 1;
	f->owner = owner;
	for (done = 0; done < s->host->workers; done++) {
		err = worker_add_fault(s->host->worker[done], &f->rule);
		if (err != 0)
			break;
	}
	if (err != 0) {
		while (done-- > 0)
			worker_remove_faults(s->host->worker[done], f->rule.id);
		return err;
	}
	s->fault_count++;
	s->fault_id++;
	if (f->rule.action == FAULT_POST)
		server_write_post_faults(s);
	if (id != NULL)
		*id = f->rule.id;
	return 0;
}

/*
 * Removes rules.
 * @id: of the one, 0: all
 * @owner: only those that go with this client; NULL: whoever's
 * @return how many
 */
static uint32_t server_remove_faults(struct server *s, uint32_t id, const struct client *owner)
{
	uint32_t left = 0, before = s->fault_count;
	bool post = false;

	for (uint32_t i = 0; i < before; i++) {
		struct server_fault *f = &s->fault[i];

		if ((id != 0 && f->rule.id != id) || (owner != NULL && f->owner != owner)) {
			s->fault[left++] = *f;
			continue;
		}
		post |= f->rule.action == FAULT_POST;
		for (unsigned int k = 0; k < s->host->workers; k++)
			worker_remove_faults(s->host->worker[k], f->rule.id);
	}
	s->fault_count = left;
	if (post)
		server_write_post_faults(s);
	return before - left;
}

void client_close_faults(struct client *c)
{
	server_remove_faults(c->server, 0, c);
}

/* @return whether the daemon has a device of this name */
static bool device_exists(const struct host *host, const char *name)
{
	return host_device_by_name(host, name) != NULL;
}

int handle_fault_add(struct client *c, struct message *m)
{
	char text[VERNIC_FAULT_TEXT], error[256];
	struct fault_rule rule;
	int n;

	memcpy(text, m->req->fault_add.rule, sizeof(text));
	text[sizeof(text) - 1] = '\0';
	if (fault_parse(text, &rule, error, sizeof(error)) == 0) {
		if (rule.device[0] == '\0' || device_exists(c->host, rule.device))
			return server_add_fault(c->server, &rule,
						m->req->fault_add.temporary != 0 ? c : NULL,
						&m->reply->handle);
		snprintf(error, sizeof(error), "device: there is no device '%s'", rule.device);
	}
	n = asprintf(&m->text, "%s", error);
	if (n < 0) {
		m->text = NULL;
		return -ENOMEM;
	}
	m->text_len = (size_t)n;
	m->reply->status_text.length = (uint32_t)n;
	return -EINVAL;
}

/* ---- the list ----------------------------------------------------------------------------- */

static void list_json(FILE *f, const struct server *s, const struct worker_faults *did)
{
	fprintf(f, "{\"rules\":[");
	for (uint32_t i = 0; i < s->fault_count; i++) {
		const struct server_fault *fault = &s->fault[i];

		fprintf(f, "%s{\"id\":%u,\"action\":\"%s\",\"rule\":\"", i != 0 ? "," : "",
			fault->rule.id, fault_action_name(fault->rule.action));
		/* Characters that can be printed, fault_parse() has seen to that. */
		for (const char *c = fault->rule.text; *c != '\0'; c++)
			fprintf(f, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c);
		fprintf(f, "\",\"temporary\":%s,\"matched\":%" PRIu64 ",\"struck\":%" PRIu64 "}",
			fault->owner != NULL ? "true" : "false", did->matched[i], did->struck[i]);
	}
	fprintf(f, "],\"held\":%" PRIu64 ",\"lost\":%" PRIu64 "}\n", did->held, did->lost);
}

static void list_text(FILE *f, const struct server *s, const struct worker_faults *did)
{
	if (s->fault_count != 0)
		fprintf(f, "%4s %12s %12s  %s\n", "ID", "MATCHED", "STRUCK", "RULE");
	for (uint32_t i = 0; i < s->fault_count; i++) {
		const struct server_fault *fault = &s->fault[i];

		fprintf(f, "%4u %12" PRIu64 " %12" PRIu64 "  %s%s\n", fault->rule.id,
			did->matched[i], did->struck[i], fault->rule.text,
			fault->owner != NULL ? "  (for a run)" : "");
	}
	if (did->held != 0)
		fprintf(f, "held just now: %" PRIu64 "\n", did->held);
	if (did->lost != 0)
		fprintf(f,
			"lost because too much was held: %" PRIu64 " packets (limit: %u MiB for "
			"each worker)\n",
			did->lost, TAP_HELD_MAX >> 20);
}

int handle_fault_list(struct client *c, struct message *m)
{
	struct worker_faults did = {0};
	FILE *f = open_memstream(&m->text, &m->text_len);

	if (f == NULL)
		return -ENOMEM;
	for (unsigned int i = 0; i < c->host->workers; i++)
		worker_get_faults(c->host->worker[i], &did);
	server_collect_post_faults(c->server);
	for (uint32_t i = 0; i < c->server->fault_count; i++) {
		did.matched[i] += c->server->fault[i].rule.matched;
		did.struck[i] += c->server->fault[i].rule.struck;
	}
	if (m->req->fault_list.json != 0)
		list_json(f, c->server, &did);
	else
		list_text(f, c->server, &did);
	if (fclose(f) != 0)
		return -ENOMEM;
	m->reply->status_text.length = (uint32_t)m->text_len;
	return 0;
}

int handle_fault_clear(struct client *c, struct message *m)
{
	uint32_t id = m->req->fault_clear.id;

	return server_remove_faults(c->server, id, NULL) != 0 || id == 0 ? 0 : -ENOENT;
}
