/* SPDX-License-Identifier: BSD-2-Clause */
/* Writes pcapng files (draft-ietf-opsawg-pcapng): Ethernet packets, times in ns. */
#ifndef VERNIC_PCAPNG_H
#define VERNIC_PCAPNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pcapng {
	int fd;
	int error; /* the first one, a negative errno; nothing is written after it */
	/* Asked when a signal came while the file took nothing. @return whether to stop trying */
	bool (*give_up)(void);
	uint8_t *buffer;
	size_t used; /* bytes */
};

struct pcapng_packet {
	uint32_t interface;
	uint64_t timestamp; /* ns since 1970 */
	const uint8_t *data;
	uint32_t captured; /* bytes there */
	uint32_t length;   /* bytes on the wire */
	bool inbound;	   /* else outbound */
	uint32_t queue;	   /* of the interface */
	const char *comment[2];
	size_t comment_len[2]; /* bytes; 0: none */
};

/*
 * Begins a file.
 * @application: what writes it
 * @return 0 or -ENOMEM; after 0 pcapng_close() is due
 */
int pcapng_open(struct pcapng *p, int fd, bool (*give_up)(void), const char *application);

/* Says what an interface is called; they are numbered 0, 1, ... as they come. */
void pcapng_interface(struct pcapng *p, const char *name, uint32_t snaplen);

void pcapng_packet(struct pcapng *p, const struct pcapng_packet *packet);

/*
 * Says what an interface has seen in all.
 * @start, @end: of the capture, ns since 1970
 * @received: packets, those dropped among them
 */
void pcapng_statistics(struct pcapng *p, uint32_t interface, uint64_t start, uint64_t end,
		       uint64_t received, uint64_t dropped);

/* Writes out what is buffered. @return 0, or the first error so far */
int pcapng_flush(struct pcapng *p);

/* Frees; fd stays open. */
void pcapng_close(struct pcapng *p);

#endif
