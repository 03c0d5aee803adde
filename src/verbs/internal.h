/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The verbs library's own view of its objects: each public struct of <infiniband/verbs.h> is the
 * first member of ours.
 *
 * Theory of operation
 * -------------------
 * An opened device is one connection to the daemon (control.c). Whatever is created, changed or
 * queried is one request and its reply; the connection's mutex orders them. Posting and polling
 * (post.c, poll.c) touch shared rings only.
 *
 * Locks, in the order they are taken: context.qp_mutex (QPs and WQs come and go), context.ctl_mutex
 * inside control_call(), context.objects_mutex (tables of CQs and SRQs), then the spinlocks of the
 * queues: CQ before SRQ; SQ and RQ alone. Resizing a CQ or SRQ, and changing a WQ's state, holds its
 * lock over a control_call(): nobody takes such a lock inside one.
 *
 * A lost daemon makes a context dead (context_died()). From then on control requests fail with EIO,
 * destroying succeeds locally, and polling a CQ completes what is outstanding with
 * IBV_WC_WR_FLUSH_ERR.
 */
#ifndef VERNIC_VERBS_INTERNAL_H
#define VERNIC_VERBS_INTERNAL_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <infiniband/verbs.h>

#include <vernic/control.h>
#include <vernic/limits.h>
#include <vernic/ring.h>

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_reg_dmabuf_mr

#define OBJECT_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* ---- spinlock ------------------------------------------------------------------------------ */

struct spinlock {
	_Atomic uint32_t held;
	bool unneeded; /* the program promised that one thread at a time uses the object */
};

/* Leaves the core to its other hardware thread for a moment. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#else
	atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* The holder may have been preempted: after a while its core is better given to it. */
static inline void spin_lock(struct spinlock *lock)
{
	if (lock->unneeded)
		return;
	while (atomic_exchange_explicit(&lock->held, 1, memory_order_acquire)) {
		for (int i = 0; vernic_load_relaxed(&lock->held); i++) {
			if (i < 100)
				cpu_relax();
			else
				sched_yield();
		}
	}
}

/* Gives the lock back. */
static inline void spin_unlock(struct spinlock *lock)
{
	vernic_store_release(&lock->held, 0);
}

/* ---- objects ------------------------------------------------------------------------------- */

/* A device the daemon told of. Never freed, so that a device keeps its address. */
struct device {
	struct ibv_device ibv;
	struct device *next;
	uint64_t guid; /* network order */
	uint32_t index;
};

/* The MRs of a context by lkey, for translating SGEs; see mr.c. */
struct mr_slots;
struct mr_table {
	pthread_mutex_t mutex; /* writers */
	_Atomic uint32_t seq;  /* odd: being changed */
	_Atomic(struct mr_slots *) slots;
	uint32_t count;
};

struct cq;
struct qp;
struct srq;
struct wq;

struct context {
	struct verbs_context verbs;
	struct context *next; /* of all contexts, for fork() */
	pthread_mutex_t ctl_mutex;
	int ctl;			 /* the connection; -1 in a forked child */
	int import_fd;			 /* what ibv_import_device() was given; -1 */
	int child_ctl;			 /* a forked child's own connection, once it needs one; -1 */
	pid_t pid;			 /* that opened it */
	_Atomic uint32_t dead;		 /* the daemon is gone */
	_Atomic uint32_t fatal_reported; /* IBV_EVENT_DEVICE_FATAL was delivered */

	uint32_t workers;
	uint8_t *doorbells; /* workers x doorbell_stride bytes */
	uint32_t doorbell_stride;
	const struct vernic_shared_page *page;
	const struct vernic_device_word *device; /* in it */
	uint32_t device_index;
	int wake_fd[VERNIC_MAX_WORKERS];

	struct ibv_port_attr port; /* as of opening */
	struct spinlock gid_lock;
	union ibv_gid gid[VERNIC_GID_MAX]; /* zeros: empty */
	_Atomic uint32_t gid_generation;   /* of the table when gid was read */
	uint32_t gid_count;

	struct mr_table mrs;
	pthread_mutex_t qp_mutex;
	pthread_mutex_t objects_mutex;
	struct cq *cqs;
	struct srq *srqs;
	uint32_t qp_limit;	   /* every QP's index is below it */
	_Atomic(struct qp *) *qps; /* VERNIC_MAX_CONTEXT_QP, by qp_index */
	_Atomic(_Atomic(struct wq *) *) wqs; /* VERNIC_MAX_CONTEXT_WQ, by handle; NULL: none yet */
};

struct td {
	struct ibv_td ibv;
	_Atomic uint32_t users; /* parent domains */
};

struct pd {
	struct ibv_pd ibv;
	_Atomic uint32_t ahs;
	_Atomic uint32_t users; /* parent domains; of a parent domain, whatever was made on it */
	/* Of a parent domain; all NULL in a plain one. */
	struct pd *protection; /* it was made from */
	struct td *td;
	void *(*alloc)(struct ibv_pd *pd, void *context, size_t size, size_t alignment,
		       uint64_t resource_type);
	void (*free)(struct ibv_pd *pd, void *context, void *p, uint64_t resource_type);
	void *context;
};

struct mr {
	struct ibv_mr ibv;
	unsigned int access; /* enum ibv_access_flags */
	bool fixed;	     /* ibv_rereg_mr() does not apply */
	void *map;	     /* of a dma-buf; NULL: none */
	size_t map_size;
};

struct channel {
	struct ibv_comp_channel ibv;
	uint32_t handle;
};

struct ah {
	struct ibv_ah ibv;
	struct ibv_ah_attr attr;
};

struct cq {
	union {
		struct ibv_cq ibv; /* the head of ex */
		struct ibv_cq_ex ex;
	};
	struct context *ctx;
	struct cq *next; /* of the context */
	void *memory;
	size_t size;		  /* bytes mapped */
	void *cqes;		  /* of ibv_resize_cq(3); NULL: they are in memory */
	size_t cqes_size;	  /* bytes mapped */
	uint32_t comp_delivered;  /* objects_mutex */
	uint32_t async_delivered; /* objects_mutex */
	bool ignore_overrun;	  /* CQEs that were not polled may be overwritten */
	struct ibv_pd *parent;	  /* it was made on, or NULL */
	struct pd *allocator;	  /* the memory is of; NULL: ours */

	_Alignas(VERNIC_CACHELINE) struct spinlock lock;
	uint32_t cons;
	uint32_t mask;	/* depth - 1 */
	uint32_t shift; /* log2(depth) */
	struct vernic_cq_ring *ring;
	struct vernic_cqe *cqe;
	uint32_t armed;		      /* CQEs before it had come when the CQ was last armed */
	uint32_t empty_polls;	      /* in a row */
	uint64_t checked;	      /* ms; the daemon was last seen alive */
	const struct vernic_cqe *cur; /* extended polling: the current one */
	struct vernic_cqe flush;      /* made here when the daemon is gone */
	struct vernic_cqe copy;	      /* ignore_overrun: of the current one */
	struct srq *xrc_srqs;	      /* that complete here */
};

/* Fault rules that let posts to a queue fail, as this process applies them; under its lock. */
struct post_faults {
	uint32_t generation; /* of what was copied */
	uint32_t count;
	struct vernic_post_fault fault[VERNIC_POST_FAULTS];
};

struct xrcd {
	struct ibv_xrcd ibv;
	uint32_t handle;
};

struct srq {
	struct ibv_srq ibv;
	struct context *ctx;
	struct srq *next; /* of the context */
	struct cq *cq;	  /* XRC: where it completes; else NULL */
	struct srq *cq_next; /* of cq.xrc_srqs, under the CQ's lock */
	uint32_t srq_num;
	void *memory;
	size_t size;
	uint32_t delivered; /* async events; objects_mutex */
	struct pd *allocator; /* the memory is of; NULL: ours */

	_Alignas(VERNIC_CACHELINE) struct spinlock lock;
	struct vernic_srq_ring *ring;
	_Atomic uint32_t *index;
	uint8_t *wqe;
	uint32_t mask;
	uint32_t stride;
	uint32_t max_sge;
	uint32_t max_wr;
	uint32_t slots; /* of the WQE array: as many as max_wr can ever be, or more */
	uint32_t prod;
	uint32_t used; /* slots a WR is in, or was not polled from */
	uint32_t free_count;
	uint32_t *free; /* slots that were used; those from used + free_count on never were */
	struct post_faults faults;
};

/* A send queue. All indices are free-running. */
struct sq {
	_Alignas(VERNIC_CACHELINE) struct spinlock lock;
	uint32_t head; /* next to post */
	uint32_t mask;
	uint32_t stride;      /* bytes a slot */
	uint32_t data_offset; /* bytes from the slot to its data area */
	uint32_t data_size;
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t max_inline;
	uint32_t opcodes; /* allowed: 1 << enum ibv_wr_opcode */
	uint8_t *base;
	struct post_faults faults;
	/* Slots before it are free: a CQE for them, or for a later one, was polled. */
	_Alignas(VERNIC_CACHELINE) _Atomic uint32_t tail;
};

struct rq {
	_Alignas(VERNIC_CACHELINE) struct spinlock lock;
	uint32_t head;
	uint32_t mask;
	uint32_t stride;
	uint32_t max_wr;
	uint32_t max_sge;
	uint8_t *base;
	struct post_faults faults;
	_Alignas(VERNIC_CACHELINE) _Atomic uint32_t tail;
};

struct wq {
	struct ibv_wq ibv;
	struct context *ctx;
	struct vernic_wq_ring *ring;
	size_t size;	      /* bytes mapped at ring */
	struct pd *allocator; /* the memory is of; NULL: ours */
	struct rq rq;
	uint32_t delivered; /* asynchronous events */
};

/* struct ibv_qp_ex with what newer versions of <infiniband/verbs.h> add at its end. */
struct qp_ex_newer {
	uint8_t head[offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof(void (*)(void))];
	void (*wr_flush)(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr, size_t len,
			 uint8_t type, uint8_t level);
};

struct qp {
	union {
		struct ibv_qp ibv; /* the head of ex */
		struct ibv_qp_ex ex;
		struct qp_ex_newer newer;
	};
	struct context *ctx;
	struct cq *send_cq;
	struct cq *recv_cq;
	struct srq *srq;
	struct vernic_qp_ring *ring;
	struct vernic_doorbell *doorbell; /* of its worker */
	const struct vernic_worker_page *page;
	const struct vernic_device_word *device;
	int wake_fd;
	uint32_t index;
	uint32_t max_msg; /* bytes; UINT32_MAX: the daemon decides (UD) */
	bool extended;	  /* ex works */
	bool sq_sig_all;
	size_t size;	    /* bytes mapped at ring */
	uint32_t delivered; /* async events; objects_mutex */
	struct pd *allocator; /* the memory is of; NULL: ours */

	struct sq sq;
	struct rq rq;

	/* The work request API, between wr_start() and wr_complete(); under sq.lock. */
	uint32_t wr_head;
	int wr_error;
	struct vernic_send_wqe *wr_cur;
	bool wr_addressed; /* the current one has the address its QP type wants */
	bool wr_data;	   /* it has its payload */
};

/* From the program's objects to ours. */
static inline struct context *to_context(struct ibv_context *c)
{
	return OBJECT_OF(c, struct context, verbs.context);
}

static inline struct pd *to_pd(struct ibv_pd *pd)
{
	return (struct pd *)pd;
}

static inline struct cq *to_cq(struct ibv_cq *cq)
{
	return (struct cq *)cq;
}

static inline struct qp *to_qp(struct ibv_qp *qp)
{
	return (struct qp *)qp;
}

static inline struct srq *to_srq(struct ibv_srq *srq)
{
	return (struct srq *)srq;
}

enum cqe_presence {
	CQE_ABSENT, /* it has not come yet */
	CQE_PRESENT,
	CQE_OVERWRITTEN, /* a later one has taken its slot */
};

/* @return whether the CQE of an index is there; what the daemon wrote before it is seen then */
static inline enum cqe_presence cqe_presence(const struct cq *cq, uint32_t index)
{
	uint32_t lap = vernic_load_acquire(&cq->cqe[index & cq->mask].lap);
	int32_t ahead = (int32_t)(lap - ((index >> cq->shift) + 1));

	if (ahead == 0)
		return CQE_PRESENT;
	return ahead > 0 && cq->ignore_overrun ? CQE_OVERWRITTEN : CQE_ABSENT;
}

/* @return whether the daemon is gone, or the process a forked child */
static inline bool context_dead(struct context *ctx)
{
	return vernic_load_acquire(&ctx->dead) != 0;
}

/* @return whether this process is a child forked since the device was opened */
static inline bool context_forked(const struct context *ctx)
{
	return ctx->ctl < 0;
}

/* ---- control.c ----------------------------------------------------------------------------- */

/*
 * Connects to the daemon and exchanges hellos. Says why on stderr where the user named the socket,
 * or the daemon speaks another version.
 * @return the connection, or -1 and errno; ENOENT: no daemon, and none was asked for
 */
int control_connect(void);

/*
 * One request and its reply on a bare connection.
 * @send_fd: passed along, or -1
 * @fds, @max_fds: where descriptors that come with the reply go (close-on-exec); unused ones are
 * set to -1, more than max_fds are closed
 * @return 0, the reply's status, or EIO if the daemon is gone
 */
int control_exchange(int ctl, const struct vernic_request *req, int send_fd,
		     struct vernic_reply *reply, int *fds, int max_fds);

/*
 * The same on an opened device; marks the context dead if the daemon is gone. EIO too in a child
 * forked since, but for queries and new device memory: those go over a connection of the child's.
 */
int control_call(struct context *ctx, const struct vernic_request *req, struct vernic_reply *reply,
		 int *fds, int max_fds);

/* The same, with a descriptor passed along; -1: none. */
int control_call_fd(struct context *ctx, const struct vernic_request *req, int send_fd,
		    struct vernic_reply *reply, int *fds, int max_fds);

/* A request of a forked child on its own connection. @return as control_exchange() */
int control_call_child(struct context *ctx, const struct vernic_request *req,
		       struct vernic_reply *reply, int *fds, int max_fds);

/* A request that destroys handle. @return as control_call(), but 0 where the daemon is gone */
int control_destroy(struct context *ctx, enum vernic_command command, uint32_t handle,
		    struct vernic_reply *reply);

/* Looks at the connection without waiting; marks the context dead if the daemon closed it. */
void control_check(struct context *ctx);

/* Maps fd, which is closed. Not inherited over fork(). @return NULL and errno */
void *control_map(int fd, size_t size, int prot);

/* Unmaps it; in a forked child it is not there, and something else may be. p may be NULL. */
void control_unmap(struct context *ctx, void *p, size_t size);

/* ---- context.c ----------------------------------------------------------------------------- */

void context_died(struct context *ctx);

/* Opens a forked child's own connection, under ctl_mutex. @return 0 or a positive errno */
int context_open_child(struct context *ctx);

/* ---- mapping.c ----------------------------------------------------------------------------- */

/*
 * Finds the file of memory that the daemon can map.
 * @offset: out: of addr in the file, bytes
 * @return a descriptor of it, the caller's to close, or -1: there is none; errno stays
 */
int mapping_find(const void *addr, size_t length, uint64_t *offset);

/* ---- pd.c ---------------------------------------------------------------------------------- */

/* What the program's allocator is told that memory is for: the low half of its resource_type. */
enum pd_resource { PD_RESOURCE_QP = 1, PD_RESOURCE_CQ, PD_RESOURCE_SRQ, PD_RESOURCE_WQ };

/* A PD of this process, of what the daemon makes or shares on request. @return NULL and errno */
struct ibv_pd *pd_make(struct ibv_context *context, const struct vernic_request *req);

struct ibv_pd *pd_alloc_parent(struct ibv_context *context,
			       struct ibv_parent_domain_init_attr *attr);
struct ibv_td *td_alloc(struct ibv_context *context, struct ibv_td_init_attr *attr);
int td_dealloc(struct ibv_td *td);

/* Counts an object on its parent domain, or off it; the daemon counts those of plain PDs. */
void pd_hold(struct ibv_pd *pd);
void pd_release(struct ibv_pd *pd);

/* @return whether the program promised that one thread at a time uses what is made on the PD */
bool pd_single_threaded(const struct ibv_pd *pd);

/*
 * Memory for an object made on a PD (NULL: on none), aligned to a cache line.
 * @owner: out: for pd_free()
 * @return NULL and errno
 */
void *pd_alloc(struct ibv_pd *pd, size_t size, enum pd_resource resource, struct pd **owner);
void pd_free(struct pd *owner, void *p, enum pd_resource resource);

/* ---- wq.c ---------------------------------------------------------------------------------- */

struct ibv_wq *wq_create(struct ibv_context *context, struct ibv_wq_init_attr *attr);
int wq_modify(struct ibv_wq *wq, struct ibv_wq_attr *attr);
int wq_destroy(struct ibv_wq *wq);
struct ibv_rwq_ind_table *rwq_table_create(struct ibv_context *context,
					   struct ibv_rwq_ind_table_init_attr *attr);
int rwq_table_destroy(struct ibv_rwq_ind_table *table);

/* @return the WQ that a CQE names, or NULL: it is gone */
struct wq *wq_find(struct context *ctx, uint32_t handle, uint32_t wq_num);

/* Takes a WQ's CQEs out of cq. */
void cq_clean_wq(struct cq *cq, uint32_t handle, uint32_t wq_num);

/* ---- mr.c ---------------------------------------------------------------------------------- */

int mr_table_init(struct mr_table *t);
void mr_table_fini(struct mr_table *t);

/* @return where [addr, addr + len) of the MR with this lkey is mapped, or NULL */
void *mr_table_translate(struct mr_table *t, uint32_t lkey, uint64_t addr, uint32_t len);

/*
 * Has a MR made.
 * @req: its reg_mr, but for pd
 * @addr: as ibv_mr.addr; where it is mapped, unless daemon_only
 * @return NULL and errno
 */
struct ibv_mr *mr_register(struct ibv_pd *pd, struct vernic_request *req, void *addr);
struct ibv_mr *mr_alloc_null(struct ibv_pd *pd);
int mr_advise(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
	      struct ibv_sge *sg_list, uint32_t num_sge);

/* ---- mw.c, dm.c ---------------------------------------------------------------------------- */

struct ibv_mw *mw_alloc(struct ibv_pd *pd, enum ibv_mw_type type);
int mw_dealloc(struct ibv_mw *mw);
int mw_bind(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);

struct ibv_dm *dm_alloc(struct ibv_context *context, struct ibv_alloc_dm_attr *attr);
int dm_free(struct ibv_dm *dm);
struct ibv_mr *dm_reg_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t dm_offset, size_t length,
			 unsigned int access);

/* ---- device.c ------------------------------------------------------------------------------ */

/* Reads the GID table, which address handles are checked against. @return 0 or a positive errno */
int device_read_gids(struct context *ctx);
/* @return 0 or a positive errno: EINVAL where that entry is empty, or past the table */
int device_get_gid(struct context *ctx, uint32_t index, union ibv_gid *gid);

/* Asks for an entry of the GID table. @return 0 or a positive errno: EINVAL past the table */
int device_query_gid(struct context *ctx, uint32_t port, uint32_t index,
		     struct ibv_gid_entry *entry);
/* @return the device of that description, made if need be; NULL without memory */
struct ibv_device *device_of(const struct vernic_device_info *info);
int device_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr,
		      size_t size);
int device_query_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
		    struct ibv_device_attr_ex *attr, size_t size);
int device_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values);

/* ---- counters.c ---------------------------------------------------------------------------- */

struct ibv_counters *counters_create(struct ibv_context *context,
				     struct ibv_counters_init_attr *attr);
int counters_destroy(struct ibv_counters *counters);
int counters_attach(struct ibv_counters *counters, struct ibv_counter_attach_attr *attr,
		    struct ibv_flow *flow);
int counters_read(struct ibv_counters *counters, uint64_t *values, uint32_t count, uint32_t flags);

/* ---- cq.c, qp.c, srq.c --------------------------------------------------------------------- */

struct ibv_cq_ex *cq_create_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
int cq_req_notify(struct ibv_cq *cq, int solicited_only);
int cq_modify(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);

/* Takes a QP's CQEs out of cq; a SRQ's slots they name are free again. */
void cq_clean(struct cq *cq, uint32_t qp_index, uint32_t qp_num, struct srq *srq);

/* The CQEs of a XRC SRQ that is gone are none any more. */
void cq_clean_xrc(struct cq *cq, const struct srq *srq);

struct ibv_qp *qp_create_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
/* ibv_modify_qp_rate_limit(3) */
int qp_modify_rate_limit(struct ibv_qp *ibqp, struct ibv_qp_rate_limit_attr *attr);
struct ibv_qp *qp_open(struct ibv_context *context, struct ibv_qp_open_attr *attr);

struct ibv_srq *srq_create_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
int srq_get_num(struct ibv_srq *srq, uint32_t *srq_num);

/* A slot no WR is in any more. */
void srq_release(struct srq *srq, uint32_t slot);

/* ---- xrcd.c -------------------------------------------------------------------------------- */

struct ibv_xrcd *xrcd_open(struct ibv_context *context, struct ibv_xrcd_init_attr *attr);
int xrcd_close(struct ibv_xrcd *xrcd);

/* ---- post.c, post_wr.c, poll.c ------------------------------------------------------------- */

int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);

/* @return 0 if a receive can be the one at head, EINVAL, ENOMEM */
int post_rq_room(const struct rq *rq, uint32_t head, const struct ibv_recv_wr *wr);
/* Writes a receive into its slot. */
void post_write_recv(void *slot, const struct ibv_recv_wr *wr);

/* The opcodes of a QP type: 1 << enum ibv_wr_opcode; 0: no such type here. */
uint32_t post_opcodes(enum ibv_qp_type type);

/* The steps of posting, which post_wr.c takes one by one. All return 0 or a positive errno. */
int post_state(struct qp *qp);
int post_begin(struct qp *qp, uint32_t head, enum ibv_wr_opcode opcode, uint64_t wr_id,
	       unsigned int flags, struct vernic_send_wqe **out);
int post_set_sges(struct qp *qp, struct vernic_send_wqe *wqe, const struct ibv_sge *sge,
		  size_t count);
int post_add_inline(struct qp *qp, struct vernic_send_wqe *wqe, const void *addr, size_t len);
int post_set_ah(struct vernic_send_wqe *wqe, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey);
/* What a IBV_WR_BIND_MW binds; rkey: the window's from now on. */
int post_set_bind(struct vernic_send_wqe *wqe, const struct ibv_mw *mw, uint32_t rkey,
		  const struct ibv_mw_bind_info *info);
/* Shows the daemon everything before head. */
void post_publish(struct qp *qp, uint32_t head);

/* Fills in the functions of the work request API. */
void post_wr_init(struct qp *qp);

int poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
/* Fills in the functions of extended polling. wc_flags: enum ibv_create_cq_wc_flags asked for */
void poll_ex_init(struct cq *cq, uint64_t wc_flags);

#endif
