/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The objects of a device as the transport sees them: device, PD, MR, CQ, SRQ. The control thread
 * makes and destroys them; workers use them.
 */
#ifndef VERNIC_OBJECT_H
#define VERNIC_OBJECT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <urcu/list.h>

#include <vernic/ring.h>

#include "dma.h"
#include "timer.h"

struct client;
struct engine;
struct mr_table;
struct xrc_table;

/*
 * Cache lines of one's own, for what is written with each message: what the next allocation holds
 * may be another worker's.
 * @size: bytes
 * @return zeroed memory for free(), NULL without any
 */
static inline void *alloc_lines(size_t size)
{
	void *p;

	size = (size + VERNIC_CACHELINE - 1) / VERNIC_CACHELINE * VERNIC_CACHELINE;
	p = aligned_alloc(VERNIC_CACHELINE, size);
	return p == NULL ? NULL : memset(p, 0, size);
}

/* An entry of a port's GID table. */
struct gid_entry {
	uint8_t raw[16];	/* IPv4 as ::ffff:a.b.c.d */
	uint32_t ifindex;	/* of the interface that has the address; 0: none */
	_Atomic uint32_t valid; /* 0: empty, and raw may change */
};

/* What a device can do, by its profile. */
enum device_feature {
	DEVICE_ATOMICS = 1 << 0,
	DEVICE_MEMORY_WINDOWS = 1 << 1,
	DEVICE_ODP = 1 << 2, /* on-demand paging */
	DEVICE_MEMORY = 1 << 3,
	DEVICE_XRC = 1 << 4,
	DEVICE_SRQ_RESIZE = 1 << 5,
	DEVICE_FLUSH = 1 << 6,		/* FLUSH and ATOMIC WRITE (IBTA A19) */
	DEVICE_PACING = 1 << 7,		/* rate limits of QPs */
	DEVICE_BLOCK_LOOPBACK = 1 << 8, /* IBV_QP_CREATE_BLOCK_SELF_MCAST_LB */
	DEVICE_FEATURES_ALL = (1 << 9) - 1,
};

struct device {
	char name[VERNIC_NAME_MAX];
	uint32_t index;
	uint64_t node_guid; /* network order */
	struct ibv_device_attr attr;
	struct ibv_port_attr port_attr;
	struct gid_entry gids[VERNIC_GID_MAX];
	_Atomic unsigned int gid_count; /* entries from this one on were never in use */
	_Atomic uint32_t down;		/* the port is: nothing is sent, nothing received */
	uint32_t features;   /* enum device_feature */
	uint32_t max_inline; /* bytes */
	uint32_t socket_buffer; /* bytes each of its sockets asks for; 0: what is best */
	struct mr_table *mrs;
	struct xrc_table *xrcs;
	pthread_mutex_t atomic_lock; /* serialises atomics (IBV_ATOMIC_HCA) */
	pthread_spinlock_t window_lock; /* of the bindings of all memory windows */
};

/* @return whether the device has a feature */
static inline bool device_has(const struct device *dev, enum device_feature feature)
{
	return (dev->features & feature) != 0;
}

/* @return whether nothing goes in or out: the port is down */
static inline bool device_is_down(const struct device *dev)
{
	return vernic_load_relaxed(&dev->down) != 0;
}

/*
 * An entry of the GID table. Workers may call it at any time: what it returns stays as it is until
 * their next quiescent state.
 * @return NULL: it is empty, or past the table
 */
static inline const struct gid_entry *device_gid(const struct device *dev, uint32_t index)
{
	const struct gid_entry *g = &dev->gids[index];

	return index < dev->gid_count && vernic_load_acquire(&g->valid) != 0 ? g : NULL;
}

struct pd {
	struct device *dev;
	uint32_t handle;  /* of the client; the value a UD WQE carries */
	_Atomic uint32_t users; /* objects made on it */
};

struct mr {
	uint32_t key; /* lkey and rkey; never 0 */
	uint32_t access; /* enum ibv_access_flags */
	struct pd *pd;
	struct mm *mm;	 /* NULL: the daemon has it mapped (mapping.h, device memory) */
	uint64_t iova;	 /* what WQEs and RETH address */
	uint64_t addr;	 /* where that lies in mm, or here */
	uint64_t length; /* bytes */
	/* The library that polls may not have it mapped: payloads never travel in CQEs. */
	_Atomic bool daemon_only;
	bool window;	  /* it is the head of a struct mw */
	bool closing;	  /* no window can be bound to it any more; under window_lock */
	uint32_t windows; /* bound to it; under window_lock */
};

/*
 * A memory window. Its head is in the table of MRs; while it is bound, that says to what, as a MR's
 * would. Everything but the upper bits of the key changes under window_lock.
 */
struct mw {
	struct mr mr; /* first */
	enum ibv_mw_type type;
	struct mr *region; /* it is bound to; NULL: to none */
	uint32_t qpn;	   /* type 2, bound: of the one QP that may use it */
};

/*
 * The table of a device's MRs by key. Lookups run under RCU (QSBR): a MR found is valid until the
 * worker's next quiescent state.
 */
struct mr_table *mr_table_create(void);
void mr_table_destroy(struct mr_table *t);
/* Gives the MR an unpredictable key, not used lately, and publishes it. @return 0 or -ENOMEM */
int mr_table_add(struct mr_table *t, struct mr *mr);
/* Unpublishes. The caller waits for a grace period before it frees the MR. */
void mr_table_remove(struct mr_table *t, struct mr *mr);
/* Publishes new in the place of old, with its key; old goes as after mr_table_remove(). */
void mr_table_replace(struct mr_table *t, const struct mr *old, struct mr *new);
/* @return the MR with this key, or NULL */
struct mr *mr_table_find(struct mr_table *t, uint32_t key);
/* @return the MR or window at this key's index, or NULL; its key may have other low bits */
struct mr *mr_table_at(const struct mr_table *t, uint32_t key);

/*
 * Checks an access and says where it lies.
 * @access: every one of these enum ibv_access_flags must be granted (0: local read)
 * @va, @len: as a WQE or RETH has them
 * @return 0, or -EINVAL (no such key, or another PD), -EACCES (rights), -ERANGE
 */
int mr_resolve(const struct pd *pd, uint32_t key, uint64_t va, uint64_t len, uint32_t access,
	       struct dma_segment *seg);
/* The same for a MR that was found. @return 0, -EACCES, -ERANGE */
int mr_access(const struct mr *mr, uint64_t va, uint64_t len, uint32_t access,
	      struct dma_segment *seg);

/* The same for remote access by the peer of QP qpn: the key may be that of a memory window. */
int rkey_resolve(const struct pd *pd, uint32_t qpn, uint32_t key, uint64_t va, uint64_t len,
		 uint32_t access, struct dma_segment *seg);

/* The same through a window that was found; its key, PD and QP may be others. */
int mw_access(struct mw *mw, const struct pd *pd, uint32_t qpn, uint32_t key, uint64_t va,
	      uint64_t len, uint32_t access, struct dma_segment *seg);

/* What IBV_WR_BIND_MW asks for: the member bind of struct vernic_send_wqe. */
struct mw_binding {
	uint64_t addr;
	uint64_t length;
	uint32_t lkey;
	uint32_t access;
	uint32_t mw;
	uint32_t rkey;
};

/*
 * Binds a window, for a QP (IBTA 10.6.7.2; 11.4.3.2). On the QP's thread.
 * @return 0; 1: other workers may be using a binding that this has ended; or a negative errno:
 * nothing has changed
 */
int mw_bind(const struct pd *pd, uint32_t qpn, const struct mw_binding *b);
/*
 * Invalidates the binding of a type 2 window, for the QP it is bound to (IBTA 10.6.7.2.3). On the
 * QP's thread.
 * @return 0, or -EINVAL: no such binding
 */
int mw_invalidate(const struct pd *pd, uint32_t qpn, uint32_t rkey);
/* Ends the binding of a window, if it has one. Accesses under way may still use it. */
void mw_unbind(struct device *dev, struct mw *mw);
/* The same if the MR it is bound to was abandoned. */
void mw_unbind_abandoned(struct device *dev, struct mw *mw);
/* No window can be bound to a MR any more. Those that are stay so until they are unbound. */
void mr_abandon(struct device *dev, struct mr *mr);
/* Keeps windows from being bound to a MR. @return 0, or -EBUSY: one is */
int mr_close(struct device *dev, struct mr *mr);

/* ---- completion queue --------------------------------------------------------------------- */

struct cq {
	struct device *dev;
	struct client *client;
	uint32_t handle;
	void *channel; /* the host's; NULL without one */
	struct vernic_cq_ring *ring;
	struct vernic_cqe *cqe;
	uint32_t depth; /* a power of two */
	uint32_t shift; /* log2(depth) */
	_Atomic uint32_t users; /* QPs and their queues on it */

	pthread_spinlock_t lock; /* QPs of several workers may share a CQ */
	uint32_t prod;
	uint32_t cons; /* of the client, when we last looked */
	uint32_t last_solicited; /* index + 1 of the newest solicited or error CQE */
	bool overflow;
	bool ignore_overrun;			    /* IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN */
	_Atomic(struct cq_moderation *) moderation; /* NULL: events go out at once */
	_Atomic uint32_t dirty; /* bit per worker: on its list of CQs to notify */
};

/*
 * @cq: NULL: not known yet
 * @return how many bytes of payload a CQE may carry: none where it may be overwritten
 */
static inline uint32_t cq_data_room(const struct cq *cq)
{
	return cq && cq->ignore_overrun ? 0 : VERNIC_CQE_DATA;
}

/* Ties a CQ to its ring memory. depth: a power of two. */
void cq_init(struct cq *cq, void *memory, uint32_t depth);

/*
 * Publishes a CQE (lap is filled in here) and puts the CQ on the engine's list to notify.
 * @solicited: wakes a CQ armed for solicited events
 * @return false if the CQ overran: the CQE is lost, the CQ is dead from then on
 */
bool cq_push(struct engine *e, struct cq *cq, const struct vernic_cqe *cqe, bool solicited);

/*
 * Moves the CQ to another ring: what is published from now on goes there, the head stays.
 * @cqes: zeroed, depth of them, a power of two
 * @cqe: CQEs the client asks for
 * @index: out: of the first CQE in the new ring
 * @return 0, or -EINVAL: more than cqe CQEs were not polled yet
 */
int cq_resize(struct cq *cq, void *cqes, uint32_t depth, uint32_t cqe, uint32_t *index);

/* How the events of a CQ are put off, see cq_moderate(). */
struct cq_timer {
	struct timer timer;
	struct cq *cq;
	struct engine *engine;
};

struct cq_moderation {
	_Atomic uint32_t count;	   /* CQEs an event waits for */
	_Atomic uint64_t period;   /* ns it waits at most; 0: it does not */
	_Atomic uint64_t deadline; /* ns: when the one put off goes out; 0: none is */
	/* One for each engine: a timer is in its engine's heap. */
	struct cq_timer worker[VERNIC_MAX_WORKERS];
};

/*
 * Lets an engine put off events of the CQ as cq->moderation says, or no more. Engine's thread.
 * @return 0 or -ENOMEM
 */
int cq_moderate(struct engine *e, struct cq *cq);
void cq_end_moderation(struct engine *e, struct cq *cq);

/* @return true if an event is due (and disarms): call with every CQE so far published. */
bool cq_take_event(struct cq *cq);

/* Fires engine_ops.cq_event for every CQ with new CQEs whose event is due. */
void engine_notify_cqs(struct engine *e);

/* ---- shared receive queue ------------------------------------------------------------------ */

struct srq {
	struct device *dev;
	struct client *client;
	struct pd *pd;
	uint32_t handle;
	struct vernic_srq_ring *ring;
	_Atomic uint32_t *index;
	uint8_t *wqe;
	uint32_t slot_mask; /* of the WQE slots; + 1: a power of two */
	uint32_t stride; /* bytes */
	uint32_t max_sge;
	_Atomic uint32_t users;
	struct xrcd *xrcd; /* NULL: no XRC SRQ, and the three below mean nothing */
	struct cq *cq;	   /* where its receives complete */
	uint32_t number;   /* 24 bits, not 0 */

	pthread_spinlock_t lock;
	uint32_t depth;	 /* of index, a power of two */
	uint32_t max_wr; /* at most depth */
	uint32_t cons;
	uint32_t limit; /* 0: not armed */
};

/* ---- extended reliable connections --------------------------------------------------------- */

/* A XRC domain: what a target QP and the SRQs it may deliver to have in common. */
struct xrcd {
	struct device *dev;
	_Atomic uint32_t users; /* target QPs and SRQs */
};

/*
 * The table of a device's XRC SRQs by number. As with MRs, a SRQ found is valid until the worker's
 * next quiescent state.
 */
struct xrc_table *xrc_table_create(void);
void xrc_table_destroy(struct xrc_table *t);
/* Gives the SRQ a number, not used lately, and publishes it. @return 0 or -ENOMEM */
int xrc_table_add(struct xrc_table *t, struct srq *srq);
/* Unpublishes. The caller waits for a grace period before it frees the SRQ. */
void xrc_table_remove(struct xrc_table *t, struct srq *srq);
/* @return the SRQ with this number, or NULL */
struct srq *xrc_table_find(const struct xrc_table *t, uint32_t number);

#endif
