/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What QPs count, and the names it is shown by: those of Linux's soft-RoCE (rxe) where it has one,
 * else those of mlx5, else our own. docs/counters.md lists them.
 *
 * A QP counts in its own struct, on its worker's thread: no atomics. What belongs to no QP (a
 * packet for none, a wrong ICRC) is counted for the device, in one more such struct of each engine,
 * to which a QP that goes away adds what it has counted.
 */
#ifndef VERNIC_COUNTERS_H
#define VERNIC_COUNTERS_H

#include <stddef.h>
#include <stdint.h>

/* Every field is an uint64_t; a train counts as its packets. */
struct qp_counters {
	uint64_t sent_pkts;
	uint64_t rcvd_pkts;
	uint64_t xmit_data; /* 4-byte words, BTH to ICRC */
	uint64_t rcv_data;
	uint64_t completions;
	uint64_t rdma_sends;
	uint64_t rdma_recvs;
	uint64_t rx_write_requests;
	uint64_t rx_read_requests;
	uint64_t rx_atomic_requests;
	/* the requester and what comes back to it */
	uint64_t send_err;
	uint64_t retransmitted_pkts;
	uint64_t rcvd_rnr_err;
	uint64_t rcvd_seq_err;
	uint64_t implied_nak_seq_err;
	uint64_t local_ack_timeout_err;
	uint64_t completer_retry_err;
	uint64_t retry_exceeded_err;
	uint64_t retry_rnr_exceeded_err;
	uint64_t req_remote_access_errors;
	uint64_t req_remote_invalid_request;
	uint64_t req_cqe_error;
	uint64_t req_cqe_flush_error;
	/* the responder */
	uint64_t duplicate_request;
	uint64_t out_of_seq_request;
	uint64_t out_of_sequence;
	uint64_t send_rnr_err;
	uint64_t out_of_buffer;
	uint64_t resp_local_length_error;
	uint64_t resp_remote_access_errors;
	uint64_t resp_cqe_error;
	uint64_t resp_cqe_flush_error;
	/* packets that were not for a QP, or not good enough */
	uint64_t rx_dropped;
	uint64_t rx_malformed;
	uint64_t rx_icrc_encapsulated;
	/* congestion: notification point (receiver), reaction point (sender) */
	uint64_t np_ecn_marked_roce_packets;
	uint64_t np_cnp_sent;
	uint64_t rp_cnp_handled;
};
#define QP_COUNTERS (sizeof(struct qp_counters) / sizeof(uint64_t))

/* A counter as it is shown. */
struct counter_info {
	const char *name;
	const char *meaning; /* one line, without a full stop */
	/* It is the sum of these fields, as indices into struct qp_counters; -1: none (always 0).
	 */
	int field[2];
};

/* Those of a QP and of a port (hw_counters/ in sysfs), and those of a port alone (counters/). */
extern const struct counter_info hw_counters[];
extern const unsigned int hw_counters_count;
extern const struct counter_info port_counters[];
extern const unsigned int port_counters_count;

/* @return the value of a counter */
uint64_t counter_value(const struct counter_info *info, const struct qp_counters *c);

/* Adds c to sum. */
void counters_add(struct qp_counters *sum, const struct qp_counters *c);

#endif
