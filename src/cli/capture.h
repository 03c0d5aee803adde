/* SPDX-License-Identifier: BSD-2-Clause */
/* Capturing packets into a file. */
#ifndef VERNIC_CLI_CAPTURE_H
#define VERNIC_CLI_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

struct capture_options {
	const char *file;   /* "-": standard output */
	const char *device; /* NULL: all */
	uint32_t qpn;	    /* 0: all */
	uint32_t snaplen;   /* bytes */
	uint64_t buffer;    /* bytes */
	uint64_t count;	    /* packets; 0: no limit */
	double duration;    /* s; 0: no limit */
	bool quiet;
	int ready_fd; /* "ready" is written there when every packet is captured; -1 */
};

/*
 * Captures until SIGINT, SIGTERM or SIGHUP, a limit, or the end of the daemon or of the reader.
 * @fd: a connection to the daemon that has shaken hands; path: of its socket, for messages
 * @return CLI_OK, or CLI_FAILED with a line printed
 */
int capture_to_file(const struct capture_options *o, int fd, const char *path);

/* Puts the defaults in: everything, into 64 MiB of rings. */
void capture_defaults(struct capture_options *o);

#endif
