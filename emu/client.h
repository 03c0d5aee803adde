/* SPDX-License-Identifier: BSD-2-Clause */
/* What workers tell clients: asynchronous and completion events. Callable on every thread. */
#ifndef VERNIC_CLIENT_H
#define VERNIC_CLIENT_H

#include <stdint.h>

#include <infiniband/verbs.h>

struct client;
struct cq;

/*
 * Sends an asynchronous event, in order; kept while the client does not read.
 * @element, @qp_num: as in struct vernic_async_event
 */
void client_async_event(struct client *c, enum ibv_event_type type, uint32_t element,
			uint32_t qp_num);

/* Queues an event on the CQ's channel, unless one is pending there. */
void client_cq_event(struct cq *cq);

#endif
