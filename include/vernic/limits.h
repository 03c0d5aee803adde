/* SPDX-License-Identifier: BSD-2-Clause */
/* Limits and versions both halves of Vernic agree on. */
#ifndef VERNIC_LIMITS_H
#define VERNIC_LIMITS_H

/* Raised whenever a message or ring layout below include/vernic/ changes. */
#define VERNIC_ABI_VERSION 5u

#define VERNIC_MAX_WORKERS 16	    /* worker index is QPN bits 0..3 */
#define VERNIC_MAX_SGE 32	    /* scatter/gather elements of one WR */
#define VERNIC_MAX_INLINE 1024	    /* bytes; IBV_SEND_INLINE */
#define VERNIC_COPY_MAX 128	    /* bytes; smallest data area of a send WQE */
#define VERNIC_CQE_DATA 64	    /* bytes of payload a CQE can carry */
#define VERNIC_MAX_QP_WR 16384	    /* WRs of one SQ, RQ or SRQ; a power of two */
#define VERNIC_MAX_CQE (1 << 22)    /* CQEs of one CQ; a power of two */
#define VERNIC_MAX_CONTEXT_QP 65536 /* QPs of one opened device */
#define VERNIC_MAX_CONTEXT_WQ 4096  /* WQs of one opened device; also tables of them */
#define VERNIC_MAX_RWQ_LOG 5	    /* log2 of the WQs in one such table */
#define VERNIC_MAX_MSG_SIZE (1u << 30) /* bytes; the message size limit of RC and UC */
#define VERNIC_MAX_RD_ATOMIC 16	    /* READs and atomics outstanding, each direction */
#define VERNIC_MAX_RATE 100000000u /* kbit/s; the highest rate limit of a QP: the port's speed */
#define VERNIC_NAME_MAX 64	    /* IBV_SYSFS_NAME_MAX */
#define VERNIC_GID_MAX 64	    /* GID table entries of a port */
#define VERNIC_MAX_DEVICES 64	    /* devices of a daemon */
#define VERNIC_GRH_LEN 40	    /* bytes in front of a UD payload */
#define VERNIC_VENDOR_ID 0x02564eu  /* a locally administered OUI */
#define VERNIC_MAX_FAULTS 64	    /* fault rules of a daemon */
#define VERNIC_MAX_DM (1u << 20)    /* bytes of device memory of a device */
#define VERNIC_FAULT_TEXT 240	    /* bytes of a fault rule's text, the 0 included */
#define VERNIC_ADDRESS_TEXT 64	    /* bytes of an address's text, the 0 included */

#endif
