/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The control protocol: what a client asks of the daemon over its SOCK_SEQPACKET Unix socket.
 *
 * One connection is one client; VERNIC_CMD_OPEN_DEVICE makes it a device context, after which
 * objects can be made on it. Every message is one whole struct vernic_request, every answer one
 * whole struct vernic_reply, in order, one request at a time. File descriptors travel as
 * SCM_RIGHTS with the message that names them. A reply's status is 0 or a positive errno value.
 * Handles belong to the connection; closing it destroys everything made on it.
 *
 * VERNIC_CMD_HELLO comes first. Its request and reply keep their layout and the size of
 * struct vernic_hello in every version, so that a mismatch can be told: the daemon answers any
 * other version with status EPROTO and its own version, and closes.
 */
#ifndef VERNIC_CONTROL_H
#define VERNIC_CONTROL_H

#include <assert.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include <vernic/limits.h>

#define VERNIC_MAGIC 0x56524e43u /* "VRNC" */

/* Where the daemon listens when nothing else is said; the first is below $XDG_RUNTIME_DIR. */
#define VERNIC_SOCKET_NAME "vernicd.sock"
#define VERNIC_SOCKET_SYSTEM "/run/vernic/vernicd.sock"
#define VERNIC_SOCKET_ENV "VERNIC_SOCKET"

/* The sysfs tree is beside the socket, unless the environment says where else. */
#define VERNIC_SYSFS_SUFFIX ".sysfs"
#define VERNIC_SYSFS_ENV "VERNIC_SYSFS"

struct vernic_hello {
	uint32_t magic;	  /* VERNIC_MAGIC */
	uint32_t version; /* VERNIC_ABI_VERSION of the sender */
	int32_t status;	  /* reply: 0 or a positive errno value */
	uint32_t reserved;
};
static_assert(sizeof(struct vernic_hello) == 16, "layout");

enum vernic_command {
	VERNIC_CMD_STATUS = 1, /* reply: a text reply, see vernic_status_request */
	VERNIC_CMD_LIST_DEVICES,
	VERNIC_CMD_OPEN_DEVICE,
	VERNIC_CMD_QUERY_DEVICE,
	VERNIC_CMD_QUERY_PORT,
	VERNIC_CMD_QUERY_GID,
	VERNIC_CMD_ALLOC_PD,
	VERNIC_CMD_DEALLOC_PD,
	VERNIC_CMD_REG_MR,
	VERNIC_CMD_DEREG_MR,
	VERNIC_CMD_CREATE_CHANNEL,
	VERNIC_CMD_DESTROY_CHANNEL,
	VERNIC_CMD_CREATE_CQ,
	VERNIC_CMD_DESTROY_CQ,
	VERNIC_CMD_CREATE_SRQ,
	VERNIC_CMD_MODIFY_SRQ,
	VERNIC_CMD_QUERY_SRQ,
	VERNIC_CMD_DESTROY_SRQ,
	VERNIC_CMD_CREATE_QP,
	VERNIC_CMD_MODIFY_QP,
	VERNIC_CMD_QUERY_QP,
	VERNIC_CMD_DESTROY_QP,
	VERNIC_CMD_FAULT_ADD, /* fault rules: of the daemon, on any connection */
	VERNIC_CMD_FAULT_LIST,
	VERNIC_CMD_FAULT_CLEAR,
	VERNIC_CMD_CAPTURE, /* captures until stopped, or the connection ends */
	VERNIC_CMD_STATS,   /* counters */
	VERNIC_CMD_SYSFS,   /* brings a file of the sysfs tree up to date */
	VERNIC_CMD_REREG_MR,
	VERNIC_CMD_ADVISE_MR,
	VERNIC_CMD_ALLOC_MW,
	VERNIC_CMD_DEALLOC_MW,
	VERNIC_CMD_ALLOC_DM,
	VERNIC_CMD_FREE_DM,
	VERNIC_CMD_IMPORT_DEVICE, /* before the device is opened */
	VERNIC_CMD_IMPORT_PD,
	VERNIC_CMD_IMPORT_MR,
	VERNIC_CMD_IMPORT_DM,
	VERNIC_CMD_RESIZE_CQ,
	VERNIC_CMD_MODIFY_CQ,
	VERNIC_CMD_CREATE_WQ,
	VERNIC_CMD_MODIFY_WQ,
	VERNIC_CMD_DESTROY_WQ,
	VERNIC_CMD_CREATE_RWQ_TABLE,
	VERNIC_CMD_DESTROY_RWQ_TABLE,
	VERNIC_CMD_ATTACH_MCAST,
	VERNIC_CMD_DETACH_MCAST,
	VERNIC_CMD_DEVICE_ADD, /* administration: of the daemon, on any connection */
	VERNIC_CMD_DEVICE_ADMIN,
	VERNIC_CMD_OPEN_XRCD,
	VERNIC_CMD_CLOSE_XRCD,
	VERNIC_CMD_OPEN_QP, /* a XRC target QP; the reply is as of create_qp, without rings */
	VERNIC_CMD_COUNT
};

/* What VERNIC_CMD_DEVICE_ADMIN does. */
enum vernic_device_action {
	VERNIC_DEVICE_PORT_DOWN = 1,
	VERNIC_DEVICE_PORT_UP,
	VERNIC_DEVICE_FATAL,  /* it fails, and all of its contexts with it */
	VERNIC_DEVICE_REMOVE, /* the same, and it is not listed any more */
	VERNIC_DEVICE_GID_ADD,
	VERNIC_DEVICE_GID_REMOVE,
};

/* What the memory of a MR is. */
enum vernic_mr_kind {
	VERNIC_MR_MEMORY, /* the client's */
	VERNIC_MR_NULL,	  /* none: reads as 0, writes are lost */
	VERNIC_MR_DM,	  /* device memory */
	VERNIC_MR_KIND_COUNT
};

/* What a device is, as far as it can be known without opening it. */
struct vernic_device_info {
	char name[VERNIC_NAME_MAX];
	uint64_t node_guid; /* network order */
	uint32_t index;
	uint32_t reserved;
};

struct vernic_request {
	uint32_t command; /* enum vernic_command */
	uint32_t handle;  /* the object it is about, where there is one */
	union {
		struct {
			uint32_t json; /* not 0: JSON, else for people */
		} status;
		struct {
			uint32_t index;
		} list_devices; /* ENODEV past the last */
		/*
		 * fds passed: [0] the client's /proc/self/mem opened read-write (optional).
		 * The daemon reads probe_value at probe_addr by each way it has to the client's
		 * memory, to learn which works.
		 */
		struct {
			char name[VERNIC_NAME_MAX];
			uint64_t probe_addr;
			uint64_t probe_value;
			/*
			 * Of the client's end of this connection (fstat, SO_COOKIE), to import it
			 * by. Inode numbers of sockets come again after 2^32 of them, cookies
			 * never; where there are none they are 0.
			 */
			uint64_t dev;
			uint64_t ino;
			uint64_t cookie;
		} open_device;
		struct {
			uint32_t index;
		} query_gid; /* EINVAL past the table */
		/*
		 * Populated and checked by the library beforehand (MADV_POPULATE_*).
		 * fds passed: [0] the file of memory that the daemon can map (optional)
		 */
		struct {
			uint64_t addr; /* VERNIC_MR_DM: offset in the device memory */
			uint64_t length;
			uint64_t iova;
			uint32_t access; /* enum ibv_access_flags */
			uint32_t pd;
			uint32_t kind;	      /* enum vernic_mr_kind */
			uint32_t dm;	      /* VERNIC_MR_DM: its handle */
			uint32_t daemon_only; /* not 0: the library places no bytes in it */
			uint32_t reserved;
			uint64_t offset; /* VERNIC_MR_MEMORY: of addr in the file passed, bytes */
		} reg_mr;
		/* EBUSY: a window is bound to it. On any error the MR is as before. */
		struct {
			uint32_t flags;	 /* enum ibv_rereg_mr_flags: what of these is new */
			uint32_t access; /* enum ibv_access_flags */
			uint32_t pd;
			uint32_t reserved;
			uint64_t addr; /* and the iova */
			uint64_t length;
		} rereg_mr;
		/* ibv_advise_mr(3): checks a range; the reply has where it is mapped. */
		struct {
			uint64_t addr;
			uint32_t length;
			uint32_t lkey;
			uint32_t pd;
			uint32_t advice; /* enum ibv_advise_mr_advice */
		} advise_mr;
		struct {
			uint32_t pd;
			uint32_t type; /* enum ibv_mw_type */
		} alloc_mw;
		struct {
			uint64_t length; /* bytes, >= 1 */
		} alloc_dm;
		/*
		 * import_device: fds passed: [0] the other client's end of its connection. From
		 * then on the two have the same PDs, MRs, MWs and DMs. EINVAL: no such client.
		 */
		struct {
			uint32_t pd;
		} import_mr; /* handle: the MR's; EINVAL if it is of another PD */
		struct {
			uint32_t cqe;	  /* entries wanted, >= 1 */
			uint32_t channel; /* handle, or UINT32_MAX */
			uint32_t comp_vector;
			uint32_t ignore_overrun; /* not 0: what is not polled is overwritten */
		} create_cq;
		/* EINVAL: more CQEs than that wait to be polled */
		struct {
			uint32_t cqe; /* entries wanted, >= 1 */
		} resize_cq;
		struct {
			uint32_t attr_mask; /* enum ibv_cq_attr_mask */
			uint32_t count;	    /* CQEs an event waits for, 0 to 65535 */
			uint32_t period;    /* us it waits at most, 0 to 65535 */
		} modify_cq;
		struct {
			uint32_t pd;
			uint32_t cq;
			uint32_t max_wr;
			uint32_t max_sge;
		} create_wq;
		/* To IBV_WQS_ERR, from there too: flushes what is posted. */
		struct {
			uint32_t state; /* enum ibv_wq_state */
		} modify_wq;
		struct {
			uint32_t log_size;
			uint32_t wq[1 << VERNIC_MAX_RWQ_LOG]; /* handles, 1 << log_size of them */
		} create_rwq_table;
		struct {
			uint32_t pd;
			uint32_t xrcd; /* handle, or UINT32_MAX: no XRC SRQ, cq is not looked at */
			uint32_t cq;
			struct ibv_srq_attr attr;
		} create_srq;
		struct {
			uint32_t attr_mask; /* enum ibv_srq_attr_mask */
			struct ibv_srq_attr attr;
		} modify_srq;
		struct {
			uint32_t pd;
			uint32_t send_cq;
			uint32_t recv_cq;
			uint32_t srq; /* handle, or UINT32_MAX */
			uint32_t qp_type; /* enum ibv_qp_type */
			uint32_t sq_sig_all;
			struct ibv_qp_cap cap;
			uint32_t xrcd; /* XRC_RECV: handle; then all above but qp_type are unused */
			uint32_t create_flags; /* enum ibv_qp_create_flags */
		} create_qp;
		/*
		 * fds passed: [0] the file that names the domain (optional: a private one).
		 * EAGAIN: no such domain, and O_CREAT is not set; EINVAL: there is, and O_EXCL is
		 */
		struct {
			uint32_t oflags;
		} open_xrcd;
		struct {
			uint32_t xrcd; /* handle; EINVAL: no such QP in it */
			uint32_t qp_num;
		} open_qp;
		struct {
			uint32_t attr_mask; /* enum ibv_qp_attr_mask */
			uint32_t max_burst; /* IBV_QP_RATE_LIMIT: bytes; 0: the daemon chooses */
			struct ibv_qp_attr attr;
		} modify_qp;
		/*
		 * A rule as emu/tap/fault.h reads it, 0-terminated. The reply has its id as handle,
		 * or EINVAL and a text reply: what is wrong with it; ENOSPC: VERNIC_MAX_FAULTS.
		 */
		struct {
			char rule[VERNIC_FAULT_TEXT];
			uint32_t temporary; /* not 0: it goes with the connection */
		} fault_add;
		struct {
			uint32_t json; /* as in status; a text reply */
		} fault_list;
		struct {
			uint32_t id; /* 0: all; ENOENT if there is no such rule */
		} fault_clear;
		/*
		 * A packet is captured if one of its ends in this daemon fits device and qpn.
		 * With stop, the rest has no meaning: when the reply comes, whatever was captured
		 * is in the rings. ENODEV: no such device; EBUSY: too many captures, or one on
		 * this connection already; EINVAL: sizes, or none to stop.
		 */
		struct {
			char device[VERNIC_NAME_MAX]; /* "": all */
			uint32_t qpn;		      /* 0: all */
			uint32_t snaplen;	      /* bytes of a packet kept, >= 1 */
			uint64_t size;		      /* bytes of all rings together, at most */
			uint32_t stop;		      /* not 0: ends it */
		} capture;
		struct {
			char device[VERNIC_NAME_MAX]; /* "": all */
			uint32_t json;		      /* as in status */
			uint32_t qps;		      /* not 0: one by one too */
			uint32_t explain;	      /* not 0: names and meanings instead */
		} stats;
		struct {
			char path[VERNIC_FAULT_TEXT]; /* below /sys/class/infiniband; ENOENT */
		} sysfs;
		/* handle: the QP */
		struct {
			uint8_t gid[16]; /* IPv4 groups as ::ffff:a.b.c.d */
			uint32_t lid;	 /* has no meaning on Ethernet */
		} mcast;
		/* Where these two fail, a text reply may say why. */
		struct {
			char spec[VERNIC_FAULT_TEXT]; /* KEY=VALUE[,KEY=VALUE...], 0-terminated */
		} device_add;
		struct {
			char device[VERNIC_NAME_MAX];
			char address[VERNIC_ADDRESS_TEXT]; /* of the GID actions */
			uint32_t action;		   /* enum vernic_device_action */
		} device_admin;
		uint64_t space[32];
	};
};
static_assert(sizeof(struct vernic_request) == 264, "layout");

struct vernic_reply {
	int32_t status; /* 0 or a positive errno value */
	uint32_t handle; /* of the object made */
	union {
		/*
		 * followed, in the same message, by length bytes of text; but of stats:
		 * fds: [0] a file that holds them, any number
		 */
		struct {
			uint32_t length;
		} status_text;
		struct vernic_device_info list_devices;
		/*
		 * fds: [0] doorbell memory: workers x struct vernic_doorbell, each at a multiple
		 * of doorbell_stride; [1] struct vernic_shared_page, read-only; [2] async events: a
		 * socket that yields one struct vernic_async_event a read; [3..] one wake-up
		 * eventfd per worker.
		 */
		struct {
			uint32_t workers;
			uint32_t doorbell_stride;
			uint64_t node_guid; /* network order */
			uint32_t device_index;
		} open_device;
		struct {
			struct ibv_device_attr attr;
			/* What ibv_query_device_ex(3) says beyond that. */
			uint64_t cap_flags; /* device_cap_flags_ex, all of it */
			uint64_t max_dm;    /* bytes */
			uint32_t odp;	    /* not 0: on-demand paging works */
			uint32_t pacing;    /* not 0: QPs may have a rate limit */
		} query_device;
		struct ibv_port_attr query_port;
		struct {
			uint8_t gid[16];
			uint32_t type;	  /* enum ibv_gid_type */
			uint32_t ifindex; /* 0: none */
			uint32_t used;	  /* entries from this one on were never in use */
		} query_gid;
		struct {
			uint32_t lkey;
			uint32_t rkey;
			uint64_t length; /* import_mr */
		} reg_mr;
		struct {
			uint64_t addr;
		} advise_mr;
		struct {
			uint32_t rkey;
		} alloc_mw;
		/* Of import_dm too. fds: [0] the memory */
		struct {
			uint64_t size; /* bytes to map */
			uint64_t length;
		} alloc_dm;
		struct vernic_device_info import_device;
		/* create_channel: fds: [0] a pipe that yields one uint32_t CQ handle an event */
		/* fds: [0] ring memory */
		struct {
			uint32_t depth; /* entries, a power of two; ibv_cq.cqe is cqe */
			uint32_t cqe;
			uint64_t size; /* bytes to map */
		} create_cq;
		/*
		 * fds: [0] memory of the CQEs from index on, a zeroed array. The client copies
		 * those before it that it has not polled to their slots there; the head stays where
		 * it was.
		 */
		struct {
			uint32_t depth;
			uint32_t cqe;
			uint32_t index;
			uint32_t reserved;
			uint64_t size; /* bytes to map */
		} resize_cq;
		/* fds: [0] ring memory */
		struct {
			uint32_t wq_num;
			uint32_t depth;	 /* slots, a power of two */
			uint32_t stride; /* bytes a slot */
			uint32_t max_wr; /* actual */
			uint32_t max_sge;
			uint32_t reserved;
			uint64_t size; /* bytes to map */
		} create_wq;
		/* fds: [0] ring memory */
		struct {
			uint32_t depth;	 /* of the ring of slot numbers, a power of two */
			uint32_t max_wr; /* actual attributes */
			uint32_t max_sge;
			uint32_t slots;	 /* WQE slots, a power of two; modify_srq adds none */
			uint32_t stride; /* bytes a WQE slot */
			uint32_t index_offset;
			uint32_t wqe_offset;
			uint64_t size; /* bytes to map */
			uint32_t srq_num;
		} create_srq;
		struct ibv_srq_attr query_srq;
		struct {
			uint32_t depth; /* as of create_srq; the ring is rearranged for it */
			uint32_t max_wr;
		} modify_srq;
		/* fds: [0] ring memory; of a XRC_RECV QP there is none, and size is 0 */
		struct {
			uint32_t qp_num;
			uint32_t qp_index; /* doorbell bit; also qp_index of its CQEs */
			uint32_t worker;
			uint32_t sq_depth; /* slots, powers of two; 0: no RQ (SRQ) */
			uint32_t rq_depth;
			uint32_t sq_stride; /* bytes a slot */
			uint32_t rq_stride;
			uint32_t sq_offset; /* bytes from the start of the memory */
			uint32_t rq_offset;
			uint32_t sq_data; /* bytes of the data area of a send WQE, at its end */
			struct ibv_qp_cap cap; /* actual */
			uint64_t size; /* bytes to map */
		} create_qp;
		/* fds: [0] the rings, to be mapped: include/vernic/capture.h */
		struct {
			uint32_t workers;
			uint32_t reserved;
			uint64_t ring_size; /* bytes of each one's records, a power of two */
			uint64_t size;	    /* bytes to map, in all */
		} capture;
		/*
		 * Also of destroy_qp. state: the state after the command. srq_slot: a SRQ slot the
		 * QP had taken for a message that will never complete, or VERNIC_NO_SLOT.
		 */
		struct {
			uint32_t state;
			uint32_t srq_slot;
		} modify_qp;
		struct {
			struct ibv_qp_attr attr;
			struct ibv_qp_cap cap;
			uint32_t sq_sig_all;
		} query_qp;
		uint64_t space[40];
	};
};
static_assert(sizeof(struct vernic_reply) == 328, "layout");

/* What the async socket carries. */
struct vernic_async_event {
	uint32_t event_type; /* enum ibv_event_type */
	/* QP events: qp_index; CQ, SRQ, WQ events: their handle; port events: the port number */
	uint32_t element;
	/* QP and WQ events: the object's number, to tell a reused qp_index or handle */
	uint32_t qp_num;
	uint32_t reserved;
};

#endif
