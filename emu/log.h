/* SPDX-License-Identifier: BSD-2-Clause */
/* Log lines of the daemon, on stderr. */
#ifndef VERNIC_LOG_H
#define VERNIC_LOG_H

enum log_level {
	LOG_LEVEL_ERROR,
	LOG_LEVEL_WARNING,
	LOG_LEVEL_INFO,
	LOG_LEVEL_DEBUG,
	LOG_LEVEL_COUNT
};

/* Lines above this level are not printed. It begins as warning. */
void log_set_level(enum log_level level);

/* @return the level with this name, or -1 */
int log_level_parse(const char *name);

/* Prints one line, "vernicd: " and the level in front. Safe from any thread. */
void log_print(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_print(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_print(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_print(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_print(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
