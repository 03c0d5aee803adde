/* SPDX-License-Identifier: BSD-2-Clause */
/* The counters as `vernic stats --json --qps` shows them, asked of the daemon directly. */
#ifndef VERNIC_TEST_VERBS_STATS_H
#define VERNIC_TEST_VERBS_STATS_H

#include "raw.h"

/* @return the JSON, 0-terminated, to be freed */
static inline char *stats_text(uint32_t qps)
{
	struct vernic_request req = {.command = VERNIC_CMD_STATS, .stats = {.json = 1, .qps = qps}};
	struct raw r;
	size_t length;
	char *text;

	CHECK_EQ(raw_start(&r), 0);
	CHECK_EQ(raw_call(&r, &req), 0);
	CHECK_EQ(r.nfds, 1);
	length = r.reply.status_text.length;
	text = malloc(length + 1);
	CHECK(text);
	CHECK_EQ(pread(r.fds[0], text, length + 1, 0), length);
	text[length] = '\0';
	raw_end(&r);
	return text;
}

/* @return a counter, looked for from a place in the JSON on */
static inline uint64_t stats_find(const char *from, const char *name)
{
	char want[80];
	const char *p;

	snprintf(want, sizeof(want), "\"%s\":", name);
	p = from ? strstr(from, want) : NULL;
	if (!p)
		fprintf(stderr, "no counter %s\n", name);
	CHECK(p);
	return strtoull(p + strlen(want), NULL, 10);
}

/* @return a counter of the first device */
static inline uint64_t stats_device(const char *name)
{
	char *text = stats_text(0);
	uint64_t value = stats_find(text, name);

	free(text);
	return value;
}

/* @return where a QP begins in the JSON */
static inline const char *stats_qp_in(const char *text, uint32_t qpn)
{
	char want[32];

	snprintf(want, sizeof(want), "{\"qpn\":%u,", qpn);
	return strstr(text, want);
}

/* @return a counter of a QP */
static inline uint64_t stats_qp(uint32_t qpn, const char *name)
{
	char *text = stats_text(1);
	uint64_t value = stats_find(stats_qp_in(text, qpn), name);

	free(text);
	return value;
}

/* Waits until a counter of a QP is at least value. */
static inline void stats_wait(uint32_t qpn, const char *name, uint64_t value)
{
	double end = seconds() + TEST_TIMEOUT;

	while (stats_qp(qpn, name) < value) {
		CHECK(seconds() < end);
		usleep(1000);
	}
}

#define CHECK_QP(qp, name, value) CHECK_EQ(stats_qp((qp)->qp_num, name), value)

#endif
