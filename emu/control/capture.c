/* SPDX-License-Identifier: BSD-2-Clause */
/* Captures: their rings, and telling the workers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vernic/capture.h>

#include "control.h"

static_assert(CONFIG_MAX_DEVICES <= VERNIC_CAPTURE_DEVICES, "a counter each");

/* The capture of a client. */
struct client_capture {
	uint32_t id;
	bool stopped;
	struct ring_memory memory;
};

/* @return the device a request names, or NULL */
static const struct device *capture_device(const struct host *host, const char *name)
{
	const struct host_device *d = NULL;

	if (memchr(name, '\0', VERNIC_NAME_MAX) != NULL)
		d = host_device_by_name(host, name);
	return d != NULL ? &d->dev : NULL;
}

/* Has the workers end a capture. */
static void capture_end(struct client *c)
{
	if (c->capture->stopped)
		return;
	for (unsigned int i = 0; i < c->host->workers; i++)
		worker_capture_stop(c->host->worker[i], c->capture->id);
	c->server->captures &= ~(1u << c->capture->id);
	c->capture->stopped = true;
}

/*
 * Makes the rings, and takes the memory now: a page fault each 4 KiB is no pleasure on the data
 * path, and no memory there would be the end.
 * @ring_size: bytes of one
 * @return 0 or a negative errno
 */
static int capture_memory(struct ring_memory *r, unsigned int workers, size_t ring_size,
			  struct message *m)
{
	int err = ring_memory_create(r, "vernic-capture",
				     workers * vernic_capture_stride(ring_size), m);

#ifdef MADV_POPULATE_WRITE
	/* EINVAL: a kernel before 5.14. */
	if (err == 0 && madvise(r->base, r->size, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
		err = -ENOMEM;
		ring_memory_destroy(r);
	}
#endif
	return err;
}

/* Starts a capture. @return 0 or a negative errno */
static int capture_begin(struct client *c, struct message *m)
{
	unsigned int workers = c->host->workers;
	struct capture_params params = {
		.qpn = m->req->capture.qpn,
		.snaplen = m->req->capture.snaplen,
		.ring_size = VERNIC_CAPTURE_MIN,
	};
	uint64_t size = m->req->capture.size;
	struct client_capture *capture;
	uint32_t id = (uint32_t)__builtin_ctz(~c->server->captures);
	int err;

	if (size == 0 || size > VERNIC_CAPTURE_MAX || params.snaplen == 0)
		return -EINVAL;
	if (m->req->capture.device[0] != '\0') {
		params.dev = capture_device(c->host, m->req->capture.device);
		if (params.dev == NULL)
			return -ENODEV;
	}
	if (id >= CAPTURE_MAX)
		return -EBUSY;
	while (2 * params.ring_size * workers <= size)
		params.ring_size *= 2;
	capture = calloc(1, sizeof(*capture));
	if (capture == NULL)
		return -ENOMEM;
	err = capture_memory(&capture->memory, workers, params.ring_size, m);
	if (err != 0) {
		free(capture);
		return err;
	}
	capture->id = id;
	for (unsigned int i = 0; i < workers; i++) {
		params.ring = (void *)((uint8_t *)capture->memory.base +
				       i * vernic_capture_stride(params.ring_size));
		worker_capture_start(c->host->worker[i], id, &params);
	}
	c->server->captures |= 1u << id;
	c->capture = capture;
	m->reply->capture.workers = workers;
	m->reply->capture.ring_size = params.ring_size;
	m->reply->capture.size = capture->memory.size;
	return 0;
}

int handle_capture(struct client *c, struct message *m)
{
	if (m->req->capture.stop == 0)
		return c->capture == NULL ? capture_begin(c, m) : -EBUSY;
	if (c->capture == NULL)
		return -EINVAL;
	capture_end(c);
	return 0;
}

void client_close_capture(struct client *c)
{
	if (c->capture == NULL)
		return;
	capture_end(c);
	ring_memory_destroy(&c->capture->memory);
	free(c->capture);
	c->capture = NULL;
}
