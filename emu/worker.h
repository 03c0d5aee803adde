/* SPDX-License-Identifier: BSD-2-Clause */
/* A worker: the thread that owns an engine and everything it touches. */
#ifndef VERNIC_WORKER_H
#define VERNIC_WORKER_H

#include "host.h"
#include "port/udp.h"
#include "tap/capture.h"
#include "tap/tap.h"
#include "tap/verbs_fault.h"
#include "transport/engine.h"
#include "transport/qp.h"

struct worker;

/* What a worker scans for one client. But for db, it is touched by that worker's thread only. */
struct doorbell_set {
	struct cds_list_head node;
	struct vernic_doorbell *db; /* the client writes it */
	unsigned int words;	    /* summary words in use */
	/* The QPs by qp_index, a row for each word of bits; NULL: none there yet. */
	struct qp **row[VERNIC_MAX_CONTEXT_QP / 64];
};

/* A worker's figures at one moment. */
struct worker_status {
	const char *io;
	uint32_t qps;
	struct engine_counters engine;
	struct udp_counters udp;
};

/* What fault rules did, by their place in the list; of several workers: the sum. */
struct worker_faults {
	uint64_t matched[VERNIC_MAX_FAULTS];
	uint64_t struck[VERNIC_MAX_FAULTS];
	uint64_t held; /* trains that are late just now */
	uint64_t lost; /* packets: see struct tap_counters */
};

/*
 * Starts a worker; call for index 0, 1, ... in this order. Its sockets are bound when it returns.
 * @error: room for a one-line cause
 * @return 0 or a negative errno
 */
int worker_start(struct host *host, unsigned int index, char *error, size_t error_len);

/* Ends a worker's thread and frees it. */
void worker_stop(struct worker *w);

/*
 * Runs fn on the worker's thread and waits for it. Control thread only.
 * @return what fn returned
 */
int worker_call(struct worker *w, int (*fn)(void *), void *arg);

/* The engine; for functions that run on the worker's thread. */
struct engine *worker_engine(struct worker *w);

/* The eventfd that ends the worker's sleep. */
int worker_wake_fd(const struct worker *w);

/* All below use worker_call(). */
void worker_add_doorbells(struct worker *w, struct doorbell_set *set);
void worker_remove_doorbells(struct worker *w, struct doorbell_set *set);
void worker_get_status(struct worker *w, struct worker_status *status);
/*
 * Binds the socket of an entry of the device's GID table; index -1: of all that want one. For
 * workers 0, 1, ... in this order.
 * @error: room for a one-line cause
 * @return 0 or a negative errno
 */
int worker_bind_device(struct worker *w, struct host_device *d, int index, char *error,
		       size_t error_len);
/* Closes the sockets for an address or group; gid NULL: all of the device. */
void worker_unbind(struct worker *w, struct host_device *d, const uint8_t *gid);
/* Opens a socket for a group; as udp_port_join(). */
int worker_join(struct worker *w, struct host_device *d, const uint8_t gid[16], uint32_t ifindex,
		char *error, size_t error_len);
/* All QPs of the device go to ERR. */
void worker_fail_device(struct worker *w, struct host_device *d);
/* The device is about to be freed: nothing held or counted for it stays. */
void worker_forget_device(struct worker *w, struct host_device *d);
/* Capture number id; when worker_capture_stop() returns nothing more is put into its ring. */
void worker_capture_start(struct worker *w, uint32_t id, const struct capture_params *params);
void worker_capture_stop(struct worker *w, uint32_t id);
/* @return as fault_set_add() */
int worker_add_fault(struct worker *w, const struct fault_rule *rule);
/* @id: 0: all */
void worker_remove_faults(struct worker *w, uint32_t id);
/* Adds to faults. */
void worker_get_faults(struct worker *w, struct worker_faults *faults);

#endif
