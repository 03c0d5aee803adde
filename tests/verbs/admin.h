/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests of administration share: asking the daemon for it, and asynchronous events. */
#ifndef VERNIC_TEST_VERBS_ADMIN_H
#define VERNIC_TEST_VERBS_ADMIN_H

#include <poll.h>

#include "raw.h"

/* @return the device of that name in the list, or NULL; it outlives the list here */
static inline struct ibv_device *find_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL), *found = NULL;

	CHECK(list);
	for (int i = 0; list[i]; i++) {
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			found = list[i];
	}
	ibv_free_device_list(list);
	return found;
}

/* Does something to a device. @return the status */
static inline int admin(enum vernic_device_action action, const char *device, const char *address)
{
	struct vernic_request req = {.command = VERNIC_CMD_DEVICE_ADMIN};
	struct raw r;
	int status;

	req.device_admin.action = action;
	snprintf(req.device_admin.device, sizeof(req.device_admin.device), "%s", device);
	if (address)
		snprintf(req.device_admin.address, sizeof(req.device_admin.address), "%s", address);
	CHECK_EQ(raw_start(&r), 0);
	status = raw_call(&r, &req);
	raw_end(&r);
	return status;
}

/* Adds a device. @return the status */
static inline int admin_add(const char *spec)
{
	struct vernic_request req = {.command = VERNIC_CMD_DEVICE_ADD};
	struct raw r;
	int status;

	snprintf(req.device_add.spec, sizeof(req.device_add.spec), "%s", spec);
	CHECK_EQ(raw_start(&r), 0);
	status = raw_call(&r, &req);
	raw_end(&r);
	return status;
}

/* @return whether there is an asynchronous event within ms */
static inline int event_waits(struct ibv_context *ctx, int ms)
{
	struct pollfd pfd = {.fd = ctx->async_fd, .events = POLLIN};

	return poll(&pfd, 1, ms) == 1;
}

/* Takes the next event, which must be of that type; it is not acknowledged. */
static inline struct ibv_async_event take_event(struct ibv_context *ctx, enum ibv_event_type type)
{
	struct ibv_async_event event;

	CHECK(event_waits(ctx, TEST_TIMEOUT * 1000));
	CHECK_EQ(ibv_get_async_event(ctx, &event), 0);
	CHECK_EQ(event.event_type, type);
	return event;
}

/* Takes and acknowledges it. */
static inline void expect_async(struct ibv_context *ctx, enum ibv_event_type type)
{
	struct ibv_async_event event = take_event(ctx, type);

	ibv_ack_async_event(&event);
}

#endif
