/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The rings in shared memory: layouts of WQEs, CQEs, doorbells, and the barriers to use on them.
 *
 * Theory of operation
 * -------------------
 * The daemon makes every ring as a sealed memfd and passes it to the client; the client writes WQEs
 * and a producer index, the daemon writes CQEs. All indices are free-running 32-bit counters, the
 * slot is `index & (depth - 1)`, every depth is a power of two.
 *
 * A client may write anything here at any time: the daemon copies a WQE out before it looks at it.
 *
 * QP:  struct vernic_qp_ring, then the SQ at sq_offset (slots of sq_stride bytes: struct
 *      vernic_send_wqe, sq_max_sge SGEs, a data area of sq_data bytes), then the RQ at rq_offset
 *      (slots of rq_stride bytes: struct vernic_recv_wqe and its SGEs).
 * SRQ: struct vernic_srq_ring, then an array of uint32_t slot numbers at index_offset (the ring
 *      proper), then the WQE slots at wqe_offset. A slot is the client's again when a CQE that
 *      names it was polled, so slots come free in any order. There are as many slots, and room for
 *      as many numbers, as a SRQ can have: resizing changes the depth of the ring, and no slot.
 * WQ:  struct vernic_wq_ring, then slots like those of a RQ at VERNIC_WQ_OFFSET.
 * CQ:  struct vernic_cq_ring, then CQEs at VERNIC_CQE_OFFSET. A CQE is valid when its lap is
 *      (index >> log2(depth)) + 1.
 */
#ifndef VERNIC_RING_H
#define VERNIC_RING_H

#include <assert.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <vernic/chance.h>
#include <vernic/limits.h>

#define VERNIC_CACHELINE 64

/* Barriers, by name. The index stores pair with the index loads of the other side. */
static inline uint32_t vernic_load_acquire(const _Atomic uint32_t *p)
{
	return atomic_load_explicit(p, memory_order_acquire);
}

/* For what orders nothing: a look before a load that does, or one behind a full barrier. */
static inline uint32_t vernic_load_relaxed(const _Atomic uint32_t *p)
{
	return atomic_load_explicit(p, memory_order_relaxed);
}

/* Whoever loads v with vernic_load_acquire() sees what was written before. */
static inline void vernic_store_release(_Atomic uint32_t *p, uint32_t v)
{
	atomic_store_explicit(p, v, memory_order_release);
}

/* Orders an earlier store before a later load (Dekker: "I wrote" against "do you sleep?"). */
static inline void vernic_full_barrier(void)
{
	atomic_thread_fence(memory_order_seq_cst);
}

/*
 * Asks for a line that will be written soon and that the other side has: its core gives it up while
 * this one does something else. Stores alone would make the next locked instruction wait for it.
 */
static inline void vernic_prefetch_write(const void *p)
{
	__builtin_prefetch(p, 1);
}

/* @return the core the caller is on, numbered from 1; 0: not known */
static inline uint32_t vernic_core(void)
{
	return (uint32_t)(sched_getcpu() + 1); /* -1: not known */
}

/* ---- doorbells -------------------------------------------------------------------------- */

/*
 * One per worker in each opened device's doorbell memory. The client posts, then sets the bit of
 * the QP's qp_index, and, if the word was 0 before, the word's bit in the summary. The worker
 * takes summary words with an exchange, then bit words with an exchange.
 */
struct vernic_doorbell {
	_Alignas(VERNIC_CACHELINE) _Atomic uint64_t summary[VERNIC_MAX_CONTEXT_QP / 64 / 64];
	_Alignas(VERNIC_CACHELINE) _Atomic uint64_t bits[VERNIC_MAX_CONTEXT_QP / 64];
};
static_assert(sizeof(struct vernic_doorbell) == 128 + 8192, "layout");

/* One per worker, in a page clients can only read. */
struct vernic_worker_page {
	/* Not 0: the worker sleeps, or is about to; write to its wake-up eventfd after ringing. */
	_Alignas(VERNIC_CACHELINE) _Atomic uint32_t sleeping;
	_Atomic uint32_t core; /* that it runs on, numbered from 1; 0: not known */
};
static_assert(sizeof(struct vernic_worker_page) == 64, "layout");

/* One per device, behind those of the workers: what a client must know without asking. */
struct vernic_device_word {
	_Atomic uint32_t failed;	 /* not 0: IBV_EVENT_DEVICE_FATAL was raised */
	_Atomic uint32_t gid_generation; /* another one with each change of the GID table */
};
static_assert(sizeof(struct vernic_device_word) == 8, "layout");

/* All of what clients can only read. */
struct vernic_shared_page {
	struct vernic_worker_page worker[VERNIC_MAX_WORKERS];
	struct vernic_device_word device[VERNIC_MAX_DEVICES]; /* by device index */
};
static_assert(sizeof(struct vernic_shared_page) <= 4096, "a page");

/*
 * Rings QP qp_index's doorbell at its worker.
 * @return not 0 if the worker sleeps and its eventfd wants a write.
 */
static inline int vernic_ring_doorbell(struct vernic_doorbell *db,
				       const struct vernic_worker_page *worker, uint32_t qp_index)
{
	uint32_t word = qp_index / 64;

	if (atomic_fetch_or(&db->bits[word], UINT64_C(1) << (qp_index % 64)) == 0)
		atomic_fetch_or(&db->summary[word / 64], UINT64_C(1) << (word % 64));
	/* Sequentially consistent, all three: no barrier is needed. */
	return atomic_load(&worker->sleeping) != 0;
}

/* ---- work queue entries ------------------------------------------------------------------ */

struct vernic_sge {
	uint64_t addr;	 /* virtual address, or offset from the MR's iova */
	uint32_t length; /* bytes */
	uint32_t lkey;
};
static_assert(sizeof(struct vernic_sge) == 16, "layout");

/*
 * Above the bits of enum ibv_send_flags: the payload is in the data area too; SGEs are still
 * checked.
 */
#define VERNIC_SEND_COPIED 0x8000u

/*
 * What newer versions of <infiniband/verbs.h> have and the one at hand may not. Values are theirs.
 */
enum vernic_flush {
	VERNIC_WR_FLUSH = 14, /* IBV_WR_FLUSH */
	VERNIC_WC_FLUSH = 8,  /* IBV_WC_FLUSH */
	VERNIC_QP_EX_WITH_FLUSH = 1 << 11,
	VERNIC_FLUSH_GLOBAL = 1 << 0, /* enum ibv_placement_type */
	VERNIC_FLUSH_PERSISTENT = 1 << 1,
	VERNIC_FLUSH_RANGE = 0, /* enum ibv_selectivity_level */
	VERNIC_FLUSH_MR = 1,
	VERNIC_ACCESS_FLUSH_GLOBAL = 1 << 8, /* enum ibv_access_flags */
	VERNIC_ACCESS_FLUSH_PERSISTENT = 1 << 9,
	VERNIC_ACCESS_FLUSH = VERNIC_ACCESS_FLUSH_GLOBAL | VERNIC_ACCESS_FLUSH_PERSISTENT,
};
/* Of ibv_device_attr_ex.device_cap_flags_ex. */
#define VERNIC_DEVICE_FLUSH_GLOBAL (UINT64_C(1) << 38)
#define VERNIC_DEVICE_FLUSH_PERSISTENT (UINT64_C(1) << 39)
#define VERNIC_DEVICE_ATOMIC_WRITE (UINT64_C(1) << 40)

struct vernic_send_wqe {
	uint64_t wr_id;
	uint8_t opcode;	 /* enum ibv_wr_opcode */
	uint8_t num_sge; /* SGEs that follow; 0 with IBV_SEND_INLINE */
	uint16_t flags;	 /* enum ibv_send_flags | VERNIC_SEND_* */
	uint32_t length; /* payload bytes: the sum of the SGEs, or the inline bytes */
	uint32_t imm;	 /* immediate (network order) or rkey to invalidate */
	union {
		uint32_t pd;	   /* UD: PD handle of the AH */
		uint32_t xrc_srqn; /* XRC_SEND: the remote SRQ's number */
	};
	/* IBV_WR_ATOMIC_WRITE: as a RDMA WRITE of 8 bytes, inline or not. */
	union {
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
			uint32_t reserved[3];
		} rdma;
		struct {
			uint8_t dgid[16];
			uint32_t remote_qpn;
			uint32_t remote_qkey;
			uint32_t flow_label;
			uint8_t sgid_index;
			uint8_t hop_limit;
			uint8_t traffic_class;
			uint8_t sl;
			uint32_t reserved[2];
		} ud;
		/* IBV_WR_BIND_MW */
		struct {
			uint64_t addr;
			uint64_t length; /* bytes; 0 takes the old binding away */
			uint32_t lkey;	 /* of the MR bound to */
			uint32_t access; /* enum ibv_access_flags */
			uint32_t mw;	 /* the MW: a key it has, or had; the low 8 bits say nothing */
			uint32_t rkey;	 /* its key from now on: other low 8 bits */
		} bind;
		/* VERNIC_WR_FLUSH; has no payload. remote_addr and rkey lie where rdma has them. */
		struct {
			uint64_t remote_addr;
			uint64_t length; /* bytes; of VERNIC_FLUSH_RANGE */
			uint64_t reserved;
			uint32_t rkey;
			uint8_t type;  /* VERNIC_FLUSH_GLOBAL | VERNIC_FLUSH_PERSISTENT */
			uint8_t level; /* VERNIC_FLUSH_RANGE, VERNIC_FLUSH_MR */
			uint8_t reserved2[10];
		} flush;
	};
};
static_assert(sizeof(struct vernic_send_wqe) == 64, "layout");
static_assert(offsetof(struct vernic_send_wqe, flush.rkey) ==
		      offsetof(struct vernic_send_wqe, rdma.rkey),
	      "layout");

struct vernic_recv_wqe {
	uint64_t wr_id;
	uint32_t num_sge;
	uint32_t reserved;
};
static_assert(sizeof(struct vernic_recv_wqe) == 16, "layout");

/* ---- posts that fail ------------------------------------------------------------------------ */

#define VERNIC_POST_FAULTS 4 /* rules that one queue can have */

/* A fault rule that lets posting fail. */
struct vernic_post_fault {
	uint32_t id;	  /* of the rule; one seen before keeps the chance the client has of it */
	uint32_t error;	  /* errno */
	uint32_t opcodes; /* of sends: 1 << enum ibv_wr_opcode; of receives: UINT32_MAX */
	uint32_t reserved;
	struct vernic_chance chance; /* as it begins; the client steps a copy */
	_Atomic uint64_t matched;    /* the client counts, the daemon takes */
	_Atomic uint64_t struck;
};
static_assert(sizeof(struct vernic_post_fault) == 72, "layout");

/*
 * The daemon writes it: generation odd, the rules, generation even. The client looks at generation
 * when posting, copies the rules if it is another one than last time, and leaves it at that if it
 * is odd or changes meanwhile.
 */
struct vernic_post_faults {
	_Alignas(VERNIC_CACHELINE) _Atomic uint32_t generation; /* 0: there are none */
	uint32_t count;
	struct vernic_post_fault fault[VERNIC_POST_FAULTS];
};
static_assert(sizeof(struct vernic_post_faults) == 320, "layout");

/* ---- the heads of the rings ----------------------------------------------------------------- */

struct vernic_qp_ring {
	_Alignas(VERNIC_CACHELINE) _Atomic uint32_t sq_prod; /* client */
	_Alignas(VERNIC_CACHELINE) _Atomic uint32_t rq_prod; /* client */
	/* daemon: enum ibv_qp_state. In IBV_QPS_ERR a posted receive rings the doorbell too. */
	_Alignas(VERNIC_CACHELINE) _Atomic uint32_t state;
	struct vernic_post_faults send_faults;
	struct vernic_post_faults recv_faults;
};
static_assert(sizeof(struct vernic_qp_ring) == 832, "layout");

#define VERNIC_NO_SLOT UINT32_MAX

struct vernic_srq_ring {
	_Alignas(VERNIC_CACHELINE) _Atomic uint32_t prod; /* client */
	struct vernic_post_faults recv_faults;
};
static_assert(sizeof(struct vernic_srq_ring) == 384, "layout");

struct vernic_wq_ring {
	_Alignas(VERNIC_CACHELINE) _Atomic uint32_t prod; /* client */
};

#define VERNIC_WQ_OFFSET 64
static_assert(sizeof(struct vernic_wq_ring) <= VERNIC_WQ_OFFSET, "layout");

/* ---- completion queue -------------------------------------------------------------------- */

enum vernic_cqe_queue {
	VERNIC_CQE_SQ = 0,   /* wqe is the SQ index of the completed WQE */
	VERNIC_CQE_RQ = 1,   /* wqe is the RQ index */
	VERNIC_CQE_SRQ = 2,  /* wqe is the SRQ slot number */
	VERNIC_CQE_NONE = 3, /* skipped by ibv_poll_cq (the client marks CQEs of a QP it reset) */
	/* Of a XRC SRQ, whose handle qp_index is; qp_num is that of the QP, anybody's. */
	VERNIC_CQE_XRC_SRQ = 4,
	VERNIC_CQE_XRC_SLOT = 5, /* completes nothing: the SRQ slot is free again */
	VERNIC_CQE_WQ = 6, /* wqe is the index; qp_index, qp_num are handle and number of the WQ */
};

struct vernic_cqe {
	uint64_t wr_id;
	uint64_t timestamp;  /* ns, CLOCK_MONOTONIC, when the CQE was made */
	uint32_t qp_index;   /* the client's index of the QP (doorbell bit) */
	uint32_t qp_num;
	uint32_t wqe;	     /* see enum vernic_cqe_queue */
	uint32_t byte_len;   /* receive, READ and atomic completions */
	uint32_t imm;	     /* immediate (network order) or invalidated rkey */
	uint32_t src_qp;     /* UD */
	uint32_t vendor_err;
	uint8_t queue;	     /* enum vernic_cqe_queue */
	uint8_t status;	     /* enum ibv_wc_status */
	uint8_t opcode;	     /* enum ibv_wc_opcode, receive bit as VERNIC_WC_RECV */
	uint8_t wc_flags;    /* enum ibv_wc_flags */
	/*
	 * Payload bytes in data[], for the library to scatter over the SGEs of the WQE when the
	 * CQE is polled. For UD they start at the GRH.
	 */
	uint8_t data_len;
	uint8_t sl;
	uint16_t pkey_index;
	/*
	 * Not 0, a fault: polling does not see it before the CQ is armed, or it is that many ms
	 * old; arming counts it as seen.
	 */
	uint32_t hidden;
	uint32_t reserved;
	_Atomic uint32_t lap; /* written last */
	uint8_t data[VERNIC_CQE_DATA];
};
static_assert(offsetof(struct vernic_cqe, lap) == 60, "layout");
static_assert(sizeof(struct vernic_cqe) == 128, "layout");

#define VERNIC_WC_RECV 0x80 /* IBV_WC_RECV (1 << 7): RECV = 0x80, RECV_RDMA_WITH_IMM = 0x81 */

/*
 * Arming: the client stores VERNIC_ARM_* | index, index being the first CQE it has not seen valid
 * when arming, then issues a full barrier. The daemon fires once, for a CQE whose index is not
 * before that one (and which is solicited or an error, with VERNIC_ARM_SOLICITED), and clears arm.
 */
#define VERNIC_ARM_NEXT (UINT64_C(1) << 32)
#define VERNIC_ARM_SOLICITED (UINT64_C(2) << 32)

struct vernic_cq_ring {
	_Alignas(VERNIC_CACHELINE) _Atomic uint32_t cons; /* client: CQEs before it were polled */
	_Alignas(VERNIC_CACHELINE) _Atomic uint64_t arm;  /* client sets, daemon clears */
	/* The daemon sets it when it queues an event on the channel, the client clears it. */
	_Atomic uint32_t event_pending;
	/* Client: the core it last polled this CQ in vain on, numbered from 1; 0: none. A hint. */
	_Atomic uint32_t core;
};

#define VERNIC_CQE_OFFSET 256
static_assert(sizeof(struct vernic_cq_ring) <= VERNIC_CQE_OFFSET, "layout");

#endif
