/* SPDX-License-Identifier: BSD-2-Clause */
/* Deliberate defects of the transport, compiled into the simulator's copy of it only. */
#ifndef VERNIC_SIM_MUTATIONS_H
#define VERNIC_SIM_MUTATIONS_H

/* M(name, what it breaks) */
#define MUTATIONS(M)                                                                   \
	/* requester */                                                                \
	M(window_ignored, "more is in flight than the window allows")                  \
	M(fence_ignored, "a fenced WQE does not wait for READs and atomics")           \
	M(rd_limit_ignored, "more READs and atomics outstanding than max_rd_atomic")   \
	M(rnr_wait_ignored, "sends on before the RNR timer is over")                   \
	M(rnr_never_restored, "rnr_retry counts for the connection, not for a PSN")    \
	M(timer_forgotten, "a timeout does not start the timer again")                 \
	M(failed_out_of_turn, "a NAK fails the oldest WQE, whichever it was for")      \
	M(local_forgotten, "a LOCAL_INV completes and has done nothing")               \
	M(pacing_ignored, "a QP with a rate limit sends faster")                       \
	/* completer */                                                                \
	M(ack_one_too_many, "an ACK acknowledges the packet behind it too")            \
	M(nak_wrong_psn, "a sequence NAK makes it go on one packet too late")          \
	M(read_wrong_offset, "READ responses lie one packet too low")                  \
	M(response_not_awaited, "an ACK completes a READ without its response")        \
	/* responder */                                                                \
	M(nak_never_sent, "no sequence NAK, timeouts repair everything")               \
	M(ack_too_early, "an ACK leaves before the data is in place")                  \
	M(atomic_twice, "a duplicate atomic is carried out again")                     \
	M(atomic_write_twice, "a duplicate ATOMIC WRITE is carried out again")         \
	M(flush_too_early, "a FLUSH is answered before the data is in place")          \
	M(answered_twice, "a duplicate READ is answered though its answer is waiting") \
	M(uc_op_seq_ignored, "UC takes a packet of another kind in mid-message")       \
	M(closed_before_answers, "a refused request drops the answers before it")      \
	M(invalidate_forgotten, "a SEND with invalidate does not")                     \
	M(xrc_domain_ignored, "XRC delivers to a SRQ of another domain")               \
	M(xrc_slot_lost, "a receive taken from a XRC SRQ does not come back")          \
	M(receive_lost, "a receive taken is not flushed")                              \
	/* others */                                                                   \
	M(srq_limit_silent, "no SRQ limit event")                                      \
	M(ud_qkey_ignored, "datagrams with any Q_Key are received")

enum mutation {
	MUTATION_none,
#define M(name, what) MUTATION_##name,
	MUTATIONS(M)
#undef M
};

/* The one in force. */
extern enum mutation sim_mutation;
#define MUTATION(name) (sim_mutation == MUTATION_##name)

#endif
