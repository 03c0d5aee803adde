/* SPDX-License-Identifier: BSD-2-Clause */
/* Counters: the table of names and meanings, and sums. */
#include "counters.h"

#include <assert.h>

static_assert(sizeof(struct qp_counters) % sizeof(uint64_t) == 0, "fields of one type");

#define INDEX(name) ((int)(offsetof(struct qp_counters, name) / sizeof(uint64_t)))
/* A counter that is a field, one that is the same as another, one that is never counted. */
#define FIELD(name, meaning)            \
	{                               \
#name, meaning,         \
		{                       \
			INDEX(name), -1 \
		}                       \
	}
#define SAME(name, field, meaning)       \
	{                                \
#name, meaning,          \
		{                        \
			INDEX(field), -1 \
		}                        \
	}
#define ZERO(name, meaning)                   \
	{                                     \
#name, meaning " (always 0)", \
		{                             \
			-1, -1                \
		}                             \
	}

const struct counter_info hw_counters[] = {
	/* rxe's */
	FIELD(sent_pkts, "packets sent, those sent again and acknowledgements included"),
	FIELD(rcvd_pkts, "packets received with a good ICRC, those then dropped included"),
	FIELD(duplicate_request, "request packets received that had been received before"),
	FIELD(out_of_seq_request, "gaps found in the PSNs of requests, each answered by one NAK"),
	FIELD(rcvd_rnr_err, "RNR NAKs received: the peer had no receive posted"),
	FIELD(send_rnr_err, "RNR NAKs sent: no receive was posted here"),
	FIELD(rcvd_seq_err, "PSN sequence NAKs received: the peer missed a packet"),
	ZERO(ack_deferred, "responses that waited for the completer"),
	FIELD(retry_exceeded_err, "WQEs that failed with IBV_WC_RETRY_EXC_ERR"),
	FIELD(retry_rnr_exceeded_err, "WQEs that failed with IBV_WC_RNR_RETRY_EXC_ERR"),
	FIELD(completer_retry_err,
	      "times the requester went back to the oldest unacknowledged PSN"),
	FIELD(send_err, "packets that could not be sent: no way to the peer, or no buffer"),
	ZERO(link_downed, "times the link went down"),
	FIELD(rdma_sends, "SENDs completed by the requester, signaled or not"),
	FIELD(rdma_recvs, "receives completed with success"),
	/* mlx5's */
	FIELD(rx_write_requests, "WRITE and ATOMIC WRITE requests accepted"),
	FIELD(rx_read_requests, "READ requests accepted"),
	FIELD(rx_atomic_requests, "atomic requests accepted"),
	FIELD(out_of_sequence, "request packets received behind a gap in the PSNs"),
	FIELD(out_of_buffer, "messages that found no receive posted"),
	SAME(packet_seq_err, rcvd_seq_err, "the same as rcvd_seq_err, by its name of mlx5"),
	SAME(rnr_nak_retry_err, rcvd_rnr_err, "the same as rcvd_rnr_err, by its name of mlx5"),
	FIELD(implied_nak_seq_err, "answers to READs and atomics found lost by later ones"),
	FIELD(local_ack_timeout_err, "ACK timeouts, the one that ended the retries included"),
	FIELD(resp_local_length_error, "messages that were too long for the receive posted"),
	FIELD(resp_remote_access_errors, "requests refused with a remote access error"),
	FIELD(req_remote_access_errors, "WQEs that failed with IBV_WC_REM_ACCESS_ERR"),
	FIELD(req_remote_invalid_request, "WQEs that failed with IBV_WC_REM_INV_REQ_ERR"),
	FIELD(resp_cqe_error, "CQEs of receives with an error, flushed ones included"),
	FIELD(resp_cqe_flush_error, "CQEs of receives with IBV_WC_WR_FLUSH_ERR"),
	FIELD(req_cqe_error, "CQEs of send WQEs with an error, flushed ones included"),
	FIELD(req_cqe_flush_error, "CQEs of send WQEs with IBV_WC_WR_FLUSH_ERR"),
	FIELD(rx_icrc_encapsulated, "packets dropped for a wrong ICRC; of a port, not of a QP"),
	FIELD(np_ecn_marked_roce_packets, "packets received with the mark congestion experienced"),
	FIELD(np_cnp_sent, "congestion notification packets sent"),
	FIELD(rp_cnp_handled, "congestion notification packets received and obeyed"),
	/* Vernic's own */
	FIELD(rx_malformed, "packets dropped for their headers or length; of a port, not of a QP"),
	FIELD(rx_dropped, "packets dropped: no such QP, state, type, keys; UC: messages in error; "
			  "UD: no receive"),
	FIELD(retransmitted_pkts, "packets sent again; of READs, packets asked for again"),
	FIELD(completions, "CQEs written"),
};
const unsigned int hw_counters_count = sizeof(hw_counters) / sizeof(hw_counters[0]);

const struct counter_info port_counters[] = {
	SAME(port_xmit_data, xmit_data, "4-byte words sent, each packet from its BTH to its ICRC"),
	SAME(port_rcv_data, rcv_data, "4-byte words received, as port_xmit_data"),
	SAME(port_xmit_packets, sent_pkts, "packets sent, as sent_pkts"),
	SAME(port_rcv_packets, rcvd_pkts, "packets received, as rcvd_pkts"),
	SAME(unicast_xmit_packets, sent_pkts, "unicast packets sent: all of them"),
	SAME(unicast_rcv_packets, rcvd_pkts, "unicast packets received: all of them"),
	ZERO(multicast_xmit_packets, "multicast packets sent"),
	ZERO(multicast_rcv_packets, "multicast packets received"),
	{"port_rcv_errors",
	 "packets received with an error: rx_icrc_encapsulated and rx_malformed",
	 {INDEX(rx_icrc_encapsulated), INDEX(rx_malformed)}},
	SAME(port_xmit_discards, send_err, "packets that could not be sent, as send_err"),
	ZERO(port_xmit_wait, "ticks a packet waited for credits"),
	ZERO(port_xmit_constraint_errors, "packets not sent for partition or IP version"),
	ZERO(port_rcv_constraint_errors, "packets dropped for partition or IP version"),
	ZERO(port_rcv_remote_physical_errors, "packets received with the EBP delimiter"),
	ZERO(port_rcv_switch_relay_errors, "packets a switch could not forward"),
	ZERO(excessive_buffer_overrun_errors, "overruns of the port's buffers"),
	ZERO(local_link_integrity_errors, "times local physical errors passed their threshold"),
	ZERO(link_downed, "times the link went down"),
	ZERO(link_error_recovery, "times the link recovered from an error"),
	ZERO(symbol_error, "symbol errors"),
	ZERO(VL15_dropped, "packets of VL 15 dropped"),
};
const unsigned int port_counters_count = sizeof(port_counters) / sizeof(port_counters[0]);

uint64_t counter_value(const struct counter_info *info, const struct qp_counters *c)
{
	const uint64_t *field = (const uint64_t *)c;
	uint64_t sum = 0;

	for (unsigned int i = 0; i < 2; i++)
		if (info->field[i] >= 0)
			sum += field[info->field[i]];
	return sum;
}

void counters_add(struct qp_counters *sum, const struct qp_counters *c)
{
	uint64_t *to = (uint64_t *)sum;
	const uint64_t *from = (const uint64_t *)c;

	for (size_t i = 0; i < QP_COUNTERS; i++)
		to[i] += from[i];
}
