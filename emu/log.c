/* SPDX-License-Identifier: BSD-2-Clause */
/* Log lines of the daemon, on stderr. */
#include "log.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const log_level_names[] = {"error", "warning", "info", "debug"};
static_assert(sizeof(log_level_names) / sizeof(log_level_names[0]) == LOG_LEVEL_COUNT, "names");

/* Set once, before there are threads. */
static enum log_level log_threshold = LOG_LEVEL_WARNING;

void log_set_level(enum log_level level)
{
	log_threshold = level;
}

int log_level_parse(const char *name)
{
	for (int i = 0; i < LOG_LEVEL_COUNT; i++) {
		if (strcmp(name, log_level_names[i]) == 0)
			return i;
	}
	return -1;
}

void log_print(enum log_level level, const char *format, ...)
{
	char line[512];
	va_list args;

	if (level > log_threshold)
		return;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	/* One call, so that lines of several threads do not mix. */
	fprintf(stderr, "vernicd: %s: %s\n", log_level_names[level], line);
}
