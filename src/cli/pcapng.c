// SPDX-License-Identifier: BSD-2-Clause
/* Writing pcapng. All numbers are in host order: readers tell from the byte-order magic. */
#include "pcapng.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER_SIZE (1 << 20) /* bytes */
#define BLOCK_MAX (512 << 10) /* bytes; more than a packet with its comments takes */

enum block_type {
	BLOCK_SECTION = 0x0a0d0d0a,
	BLOCK_INTERFACE = 1,
	BLOCK_STATISTICS = 5,
	BLOCK_PACKET = 6,
};

enum option_code {
	OPT_END = 0,
	OPT_COMMENT = 1,
	SHB_USERAPPL = 4,
	IF_NAME = 2,
	IF_TSRESOL = 9,
	EPB_FLAGS = 2,
	EPB_QUEUE = 6,
	ISB_STARTTIME = 2,
	ISB_ENDTIME = 3,
	ISB_IFRECV = 4,
	ISB_IFDROP = 5,
};

#define BYTE_ORDER_MAGIC 0x1a2b3c4du
#define LINKTYPE_ETHERNET 1
#define EPB_INBOUND 1
#define EPB_OUTBOUND 2

/* Appends bytes, padded to 32 bits. */
static void put_bytes(struct pcapng *p, const void *data, size_t len)
{
	static const uint8_t zero[4];

	memcpy(p->buffer + p->used, data, len);
	p->used += len;
	memcpy(p->buffer + p->used, zero, -len & 3);
	p->used += -len & 3;
}

static void put_u32(struct pcapng *p, uint32_t v)
{
	put_bytes(p, &v, sizeof(v));
}

/* Appends a time, or a place in it: the high half comes first, whatever the byte order. */
static void put_time(struct pcapng *p, uint64_t v)
{
	put_u32(p, (uint32_t)(v >> 32));
	put_u32(p, (uint32_t)v);
}

/* Appends an option. */
static void put_option(struct pcapng *p, enum option_code code, const void *value, size_t len)
{
	uint16_t head[2] = {(uint16_t)code, (uint16_t)len};

	put_bytes(p, head, sizeof(head));
	if (len != 0)
		put_bytes(p, value, len);
}

/* Appends an option that is a time. */
static void put_time_option(struct pcapng *p, enum option_code code, uint64_t v)
{
	uint32_t value[2] = {(uint32_t)(v >> 32), (uint32_t)v};

	put_option(p, code, value, sizeof(value));
}

/* Begins a block. @return its place in the buffer, for block_end() */
static size_t block_begin(struct pcapng *p, enum block_type type)
{
	size_t begin;

	if (p->used > BUFFER_SIZE - BLOCK_MAX)
		pcapng_flush(p);
	begin = p->used;
	put_u32(p, (uint32_t)type);
	put_u32(p, 0);
	return begin;
}

/* Ends a block: its length stands at both its ends. */
static void block_end(struct pcapng *p, size_t begin)
{
	uint32_t len = (uint32_t)(p->used - begin) + 4;

	memcpy(p->buffer + begin + 4, &len, sizeof(len));
	put_u32(p, len);
}

int pcapng_open(struct pcapng *p, int fd, bool (*give_up)(void), const char *application)
{
	static const uint16_t version[2] = {1, 0};
	static const int64_t unknown = -1; /* length of the section */
	size_t block;

	*p = (struct pcapng){.fd = fd, .give_up = give_up, .buffer = malloc(BUFFER_SIZE)};
	if (!p->buffer)
		return -ENOMEM;
	block = block_begin(p, BLOCK_SECTION);
	put_u32(p, BYTE_ORDER_MAGIC);
	put_bytes(p, version, sizeof(version));
	put_bytes(p, &unknown, sizeof(unknown));
	put_option(p, SHB_USERAPPL, application, strlen(application));
	put_option(p, OPT_END, NULL, 0);
	block_end(p, block);
	return 0;
}

void pcapng_interface(struct pcapng *p, const char *name, uint32_t snaplen)
{
	static const uint16_t link[2] = {LINKTYPE_ETHERNET, 0};
	static const uint8_t nanoseconds = 9; /* 10^-9 s */
	size_t block = block_begin(p, BLOCK_INTERFACE);

	put_bytes(p, link, sizeof(link));
	put_u32(p, snaplen);
	put_option(p, IF_NAME, name, strlen(name));
	put_option(p, IF_TSRESOL, &nanoseconds, sizeof(nanoseconds));
	put_option(p, OPT_END, NULL, 0);
	block_end(p, block);
}

void pcapng_packet(struct pcapng *p, const struct pcapng_packet *packet)
{
	uint32_t flags = packet->inbound ? EPB_INBOUND : EPB_OUTBOUND;
	size_t block = block_begin(p, BLOCK_PACKET);

	put_u32(p, packet->interface);
	put_time(p, packet->timestamp);
	put_u32(p, packet->captured);
	put_u32(p, packet->length);
	put_bytes(p, packet->data, packet->captured);
	put_option(p, EPB_FLAGS, &flags, sizeof(flags));
	put_option(p, EPB_QUEUE, &packet->queue, sizeof(packet->queue));
	for (int i = 0; i < 2; i++) {
		if (packet->comment_len[i] != 0)
			put_option(p, OPT_COMMENT, packet->comment[i], packet->comment_len[i]);
	}
	put_option(p, OPT_END, NULL, 0);
	block_end(p, block);
}

void pcapng_statistics(struct pcapng *p, uint32_t interface, uint64_t start, uint64_t end,
		       uint64_t received, uint64_t dropped)
{
	size_t block = block_begin(p, BLOCK_STATISTICS);

	put_u32(p, interface);
	put_time(p, end);
	put_time_option(p, ISB_STARTTIME, start);
	put_time_option(p, ISB_ENDTIME, end);
	put_option(p, ISB_IFRECV, &received, sizeof(received));
	put_option(p, ISB_IFDROP, &dropped, sizeof(dropped));
	put_option(p, OPT_END, NULL, 0);
	block_end(p, block);
}

int pcapng_flush(struct pcapng *p)
{
	size_t done = 0;

	while (p->error == 0 && done < p->used) {
		ssize_t n = write(p->fd, p->buffer + done, p->used - done);

		if (n >= 0)
			done += (size_t)n;
		else if (errno != EINTR || p->give_up())
			p->error = -errno;
	}
	p->used = 0;
	return p->error;
}

void pcapng_close(struct pcapng *p)
{
	free(p->buffer);
}
