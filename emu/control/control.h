/* SPDX-License-Identifier: BSD-2-Clause */
/* The control thread's view: the server, its clients, and the handlers of their commands. */
#ifndef VERNIC_CONTROL_THREAD_H
#define VERNIC_CONTROL_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include <ev.h>

#include <vernic/control.h>

#include "../client.h"
#include "../host.h"
#include "../mm.h"
#include "../worker.h"
#include "handles.h"
#include "sysfs.h"

/* File descriptors of one message. */
#define MESSAGE_FDS_IN 4
#define MESSAGE_FDS_OUT (3 + VERNIC_MAX_WORKERS)

/* Bytes of a text reply; a socket takes that in one message. */
#define MESSAGE_TEXT_MAX (96 * 1024)

/* A fault rule that is in force, as the workers have it too. */
struct server_fault {
	struct fault_rule rule; /* matched, struck: posts only */
	struct client *owner; /* it goes with this client; NULL: it stays */
};

struct server {
	struct host *host;
	struct ev_loop *loop;
	int fd;		/* listening */
	ev_io accept;	/* a client connects */
	ev_timer retry; /* no fd was free: accept again later */
	ev_async flush; /* a client's queue of events wants sending */
	ev_signal sigterm, sigint;
	struct cds_list_head clients;
	struct sysfs sysfs;
	uint32_t captures; /* bit i: a client has capture number i */
	uint32_t wq_num;   /* of the newest WQ */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	dev_t path_dev; /* the socket file that is ours */
	ino_t path_ino;
	struct server_fault fault[VERNIC_MAX_FAULTS]; /* in the order they are asked */
	uint32_t fault_count;
	uint32_t fault_id; /* of the newest one there was */
	uint32_t post_generation; /* of posts that fail: even, another one with each change */
	struct cds_list_head xrcds; /* XRC domains that are open, of all devices */
};

/*
 * Asynchronous events on their way to a client. Workers send; what the socket does not take waits
 * for the control thread.
 */
struct event_queue {
	pthread_mutex_t lock;
	int fd; /* our end; -1 before the device is opened */
	struct vernic_async_event *event;
	uint32_t count, capacity;
	bool overflow; /* some were lost, and that was logged */
	ev_io writable;
};

/*
 * What clients share once one has imported the other's device: the same handles name the same
 * objects for all of them. MRs of a client's memory go with it, the rest with the last client.
 */
struct shared_objects {
	uint32_t clients;
	uint32_t open;		    /* of them, that have the device open */
	struct host_device *device; /* NULL: not opened by any */
	struct handle_table pds;
	struct handle_table mrs;
	struct handle_table mws;
	struct handle_table dms;
};

/* One connection: after VERNIC_CMD_OPEN_DEVICE, a device context. */
struct client {
	struct cds_list_head node;
	struct server *server;
	struct host *host;
	int fd;
	ev_io readable;
	bool greeted; /* the hello was good */
	pid_t pid;    /* 0: of another PID namespace */
	uid_t uid;
	int pidfd; /* readable when the process is gone; -1 */
	ev_io exited;

	struct host_device *device; /* NULL: not opened */
	struct mm *mm;
	void *doorbells; /* shared with the client */
	size_t doorbells_size;
	struct doorbell_set *set[VERNIC_MAX_WORKERS]; /* NULL: the worker does not scan it */
	struct event_queue events;
	struct client_capture *capture; /* NULL: does not capture */

	/* The client's end of the connection, as it says; 0: it does not. */
	uint64_t peer_dev, peer_ino, peer_cookie;
	struct shared_objects *shared;
	struct handle_table channels;
	struct handle_table cqs;
	struct handle_table srqs;
	struct handle_table qps; /* the handle is the qp_index */
	struct handle_table wqs;
	struct handle_table rwq_tables;
	struct handle_table xrcds;
};

/* Ring memory: a sealed memfd, mapped here and by the client. */
struct ring_memory {
	void *base;
	size_t size; /* bytes */
};

struct host_mr {
	struct mr mr;		 /* first: workers know only this */
	struct mm *owner;	 /* whose memory it is of; NULL: no client's */
	struct mapping *mapping; /* NULL: none of a client's file */
	struct host_dm *dm;	 /* NULL: not of device memory */
	struct host_mr *next;	 /* of those about to be freed */
};

struct host_dm {
	void *base; /* mapped, here and by the clients */
	size_t size;
	size_t length; /* bytes asked for */
	int fd;
	uint32_t users; /* MRs */
};

struct channel {
	int fd; /* write end of the pipe */
	uint32_t users;
};

struct host_cq {
	struct cq cq; /* first: workers know only this */
	struct ring_memory memory;
	struct ring_memory cqes; /* of ibv_resize_cq(3); base NULL: they are in memory */
};

struct host_srq {
	struct srq srq;
	struct ring_memory memory;
	uint32_t slots;	    /* WQE slots, a power of two */
	struct host_cq *cq; /* XRC only, as xrcd */
	struct xrcd_open *xrcd;
};

/* A XRC domain: processes that open the same file share one. */
struct host_xrcd {
	struct xrcd xrcd; /* first: workers know only this */
	struct cds_list_head node;
	int fd; /* holds the inode, so that no other file gets its number; -1: private */
	dev_t dev;
	ino_t ino;
	uint32_t opens;
	struct cds_list_head targets; /* of struct xrc_target */
};

/* A client's handle of one. */
struct xrcd_open {
	struct host_xrcd *xrcd;
	uint32_t users; /* QPs and SRQs made with it */
};

/* A XRC target QP, which lives as long as somebody has it open. */
struct xrc_target {
	struct cds_list_head node; /* of its domain */
	struct qp *qp;		   /* touched by the worker only */
	uint32_t qpn;
	struct worker *worker;
	unsigned int worker_index;
	struct vernic_qp_ring *ring; /* nobody's */
	uint32_t opens;
};

struct host_qp {
	uint32_t type;	 /* enum ibv_qp_type */
	uint32_t groups; /* multicast groups it is attached to */
	struct qp *qp; /* touched by the worker only */
	uint32_t qpn;
	struct worker *worker;
	struct pd *pd;
	struct host_cq *send_cq;
	struct host_cq *recv_cq;
	struct host_srq *srq; /* or NULL */
	struct ibv_qp_cap cap;
	bool sq_sig_all;
	struct ring_memory memory;
	/* XRC_RECV: has these two, and of those above qp, qpn and worker */
	struct xrc_target *target;
	struct xrcd_open *xrcd;
	struct qp_opener opener;
};

struct host_wq {
	uint32_t handle;
	uint32_t wq_num;
	struct pd *pd;
	struct host_cq *cq;
	uint32_t users; /* tables, once for each entry */
	uint32_t state; /* enum ibv_wq_state */
	bool failed;	/* IBV_EVENT_WQ_FATAL was raised since RESET */
	uint32_t depth;
	uint32_t stride; /* bytes */
	uint32_t cons;
	struct vernic_wq_ring *ring;
	struct ring_memory memory;
};

struct host_rwq_table {
	uint32_t handle;
	uint32_t size;
	struct host_wq *wq[1 << VERNIC_MAX_RWQ_LOG];
};

/* A request being answered. */
struct message {
	const struct vernic_request *req;
	struct vernic_reply *reply;
	int in[MESSAGE_FDS_IN]; /* closed afterwards; a handler that keeps one puts -1 */
	unsigned int in_count;
	int out[MESSAGE_FDS_OUT]; /* sent with the reply, closed afterwards */
	unsigned int out_count;
	char *text; /* goes behind the reply; freed afterwards */
	size_t text_len;
};

/* ---- server ------------------------------------------------------------------------------ */

/*
 * Listens at a path. A stale socket there is replaced.
 * @error: room for a one-line cause
 * @return 0 or a negative errno
 */
int server_start(struct server *s, struct host *host, const char *path, char *error,
		 size_t error_len);

/* Serves until SIGTERM or SIGINT. */
void server_run(struct server *s);

/* Ends all clients and removes the socket. */
void server_stop(struct server *s);

/*
 * Adds a fault rule.
 * @owner: it goes with this client; NULL: it stays
 * @id: out, unless NULL
 * @return 0, -ENOMEM, -ENOSPC
 */
int server_add_fault(struct server *s, const struct fault_rule *rule, struct client *owner,
		     uint32_t *id);

/* Has the queues of events looked at on the control thread. Callable on every thread. */
void server_flush_events(struct server *s);

/* ---- clients ----------------------------------------------------------------------------- */

/* Serves a connection, whose fd becomes the client's. @return 0 or -ENOMEM */
int client_start(struct server *s, int fd);

/* Ends a connection: destroys everything made on it. */
void client_end(struct client *c);

/* Starts to wait for room where events wait for it. */
void client_flush_events(struct client *c);

/* Adds an fd to a reply; it is closed when the reply was sent. */
void message_add_fd(struct message *m, int fd);

/*
 * Makes ring memory, zeroed, and adds its fd to the reply.
 * @return 0 or a negative errno
 */
int ring_memory_create(struct ring_memory *r, const char *name, size_t size, struct message *m);
void ring_memory_destroy(struct ring_memory *r);

/*
 * A sealed memfd, mapped here; nobody can resize it.
 * @fd: out
 * @return 0 or a negative errno
 */
int shared_memory_create(const char *name, size_t size, void **base, int *fd);

/*
 * Makes the struct vernic_shared_page; clients can only read it.
 * @return 0 or a negative errno
 */
int shared_page_create(struct host *host);
void shared_page_destroy(struct host *host);

/* ---- handlers: one for each command; @return 0 or a negative errno ----------------------- */

int handle_status(struct client *c, struct message *m);
int handle_stats(struct client *c, struct message *m);
int handle_sysfs(struct client *c, struct message *m);
int handle_list_devices(struct client *c, struct message *m);
int handle_open_device(struct client *c, struct message *m);
int handle_query_device(struct client *c, struct message *m);
int handle_query_port(struct client *c, struct message *m);
int handle_query_gid(struct client *c, struct message *m);
int handle_alloc_pd(struct client *c, struct message *m);
int handle_dealloc_pd(struct client *c, struct message *m);
int handle_reg_mr(struct client *c, struct message *m);
int handle_dereg_mr(struct client *c, struct message *m);
int handle_rereg_mr(struct client *c, struct message *m);
int handle_advise_mr(struct client *c, struct message *m);
int handle_alloc_mw(struct client *c, struct message *m);
int handle_dealloc_mw(struct client *c, struct message *m);
int handle_alloc_dm(struct client *c, struct message *m);
int handle_free_dm(struct client *c, struct message *m);
int handle_import_device(struct client *c, struct message *m);
int handle_import_pd(struct client *c, struct message *m);
int handle_import_mr(struct client *c, struct message *m);
int handle_import_dm(struct client *c, struct message *m);
int handle_create_channel(struct client *c, struct message *m);
int handle_destroy_channel(struct client *c, struct message *m);
int handle_create_cq(struct client *c, struct message *m);
int handle_destroy_cq(struct client *c, struct message *m);
int handle_resize_cq(struct client *c, struct message *m);
int handle_modify_cq(struct client *c, struct message *m);
int handle_create_wq(struct client *c, struct message *m);
int handle_modify_wq(struct client *c, struct message *m);
int handle_destroy_wq(struct client *c, struct message *m);
int handle_create_rwq_table(struct client *c, struct message *m);
int handle_destroy_rwq_table(struct client *c, struct message *m);
int handle_create_srq(struct client *c, struct message *m);
int handle_modify_srq(struct client *c, struct message *m);
int handle_query_srq(struct client *c, struct message *m);
int handle_destroy_srq(struct client *c, struct message *m);
int handle_create_qp(struct client *c, struct message *m);
int handle_open_qp(struct client *c, struct message *m);
int handle_open_xrcd(struct client *c, struct message *m);
int handle_close_xrcd(struct client *c, struct message *m);
int handle_modify_qp(struct client *c, struct message *m);
int handle_query_qp(struct client *c, struct message *m);
int handle_destroy_qp(struct client *c, struct message *m);
int handle_attach_mcast(struct client *c, struct message *m);
int handle_detach_mcast(struct client *c, struct message *m);
int handle_device_add(struct client *c, struct message *m);
int handle_device_admin(struct client *c, struct message *m);
int handle_capture(struct client *c, struct message *m);
int handle_fault_add(struct client *c, struct message *m);
int handle_fault_list(struct client *c, struct message *m);
int handle_fault_clear(struct client *c, struct message *m);

/* Nobody has the device any more, and it is not listed: the workers forget it, and it is freed. */
void device_free(struct host *host, struct host_device *d);

/* The QP is attached to no group any more. */
void mcast_leave_all(struct client *c, struct host_qp *qp);

/* ---- sharing: import.c ------------------------------------------------------------------- */

/* Objects of a new client. @return NULL without memory */
struct shared_objects *shared_create(void);
/* A client has no part in them any more; the last one's are gone already. */
void shared_put(struct shared_objects *s);
/* Ends the bindings to MRs that are going (mr_abandon()). */
void client_unbind_mws(struct client *c);
/*
 * @return whether no other client has opened what has the objects: at its end they are destroyed.
 * One that has imported them and not come to that finds none.
 */
static inline bool client_is_last(const struct client *c)
{
	return c->shared->open == 1;
}

/* Sums up what a device's QPs have counted, those that are gone included. */
void stats_device_counters(const struct host *host, const struct device *dev,
			   struct qp_counters *sum);

/* ---- XRC target QPs: their part of what qp.c does ------------------------------------------ */

int target_create(struct client *c, struct message *m);
/* Closes a client's handle of one; the last one destroys it. */
void target_close(struct client *c, struct host_qp *qp, uint32_t index);

/* ---- posts that fail --------------------------------------------------------------------- */

/* Tells a new queue's client the rules; and all of them, after every change of the rules. */
void qp_write_post_faults(struct client *c, struct host_qp *qp);
void srq_write_post_faults(struct client *c, struct host_srq *srq);
void server_write_post_faults(struct server *s);

/*
 * Adds to the rules of struct server what a queue's client has counted, before the queue goes; or
 * all of them.
 */
void qp_collect_post_faults(struct client *c, struct host_qp *qp);
void srq_collect_post_faults(struct client *c, struct host_srq *srq);
void server_collect_post_faults(struct server *s);

/* ---- the end of a client, in this order; each destroys all objects of its kind ------------ */

void client_close_faults(struct client *c);
void client_close_qps(struct client *c);
void client_close_srqs(struct client *c);
void client_close_wqs(struct client *c);
void client_close_xrcds(struct client *c);
void client_close_cqs(struct client *c);
void client_close_channels(struct client *c);
void client_close_mws(struct client *c);
void client_close_mrs(struct client *c);
void client_close_dms(struct client *c);
void client_close_pds(struct client *c);
void client_close_device(struct client *c);
void client_close_capture(struct client *c);

/* The smallest power of two that is at least n; n from 1 to 2^31. */
static inline uint32_t round_up_pow2(uint32_t n)
{
	return n <= 1 ? 1 : 1u << (32 - __builtin_clz(n - 1));
}

/* @return n rounded up to a multiple of unit, a power of two */
static inline size_t round_up(size_t n, size_t unit)
{
	return (n + unit - 1) & ~(unit - 1);
}

#endif
