/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fault rules: what a rule is, and which rule strikes. Pure: no system call, no clock.
 *
 * Theory of operation
 * -------------------
 * A rule is one line of text, "ACTION[=VALUE][,KEY=VALUE]...", the same in `vernic fault add`, in
 * the configuration file and in VERNIC_FAULTS. It says what to do (the action), to what (the
 * match: device, QP, direction, opcode, PSN) and how often (chance: skip, nth, probability, burst,
 * count, seed). Every worker has its own copy of the rules and steps their chances itself, so
 * nothing is shared; a worker without rules looks at one pointer and goes on.
 *
 * Rules are asked at points. At FAULT_TX and FAULT_RX the subject is a packet, at FAULT_SEND a send
 * WQE that is begun, at FAULT_RECV a receive WQE a message has taken, at FAULT_CQE_SEND and
 * FAULT_CQE_RECV a CQE about to be published. The rules are asked in the order they were added; the
 * first that strikes acts.
 */
#ifndef VERNIC_FAULT_H
#define VERNIC_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vernic/chance.h>
#include <vernic/limits.h>

#include "../object.h"
#include "../wire/wire.h"

#define FAULT_NOTE 32 /* bytes of a rule's note, the 0 included */

enum fault_action {
	FAULT_DROP,	 /* the packet is lost */
	FAULT_DUPLICATE, /* value: copies beside the packet itself, 1 unless given */
	FAULT_REORDER,	 /* value: it is let go behind that many later packets of its QP */
	FAULT_DELAY, /* value: ns, plus up to jitter; packets overtake each other only by jitter */
	FAULT_CORRUPT,	 /* value: enum fault_part */
	FAULT_RATE,	 /* value: bits a second; packets wait for their turn */
	FAULT_ECN,	 /* marked "congestion experienced" */
	FAULT_RNR,	 /* RX, requests: answered by an RNR NAK, not carried out */
	FAULT_NAK,	 /* RX, requests: answered by that NAK; value: enum aeth_nak */
	FAULT_STATUS,	 /* the WQE fails; value: enum ibv_wc_status */
	FAULT_POST,	 /* ibv_post_send fails (recv: ibv_post_recv); value: errno */
	FAULT_CQE_DELAY, /* value: ns; the QP's later CQEs wait behind it */
	FAULT_CQE_ARM,	 /* appears between the poll that found nothing and the arming behind it */
	FAULT_CQE_RUBBISH, /* of a failed WQE: fields that mean nothing then have any value */
	FAULT_WEAK, /* RX: value: ns from the end of the payload to its beginning being placed */
	FAULT_ACTION_COUNT
};

/* What is changed by FAULT_CORRUPT. */
enum fault_part {
	FAULT_PAYLOAD,
	FAULT_HEADER, /* BTH and extended headers */
	FAULT_ICRC,
};

enum fault_point {
	FAULT_TX = 1 << 0,
	FAULT_RX = 1 << 1,
	FAULT_SEND = 1 << 2,
	FAULT_RECV = 1 << 3,
	FAULT_CQE_SEND = 1 << 4, /* of a send WQE */
	FAULT_CQE_RECV = 1 << 5,
};

#define FAULT_BIT(action) (1u << (action))
/* Actions that are the packet taps' (emu/tap/tap.c). */
#define FAULT_PACKET_ACTIONS                                                             \
	(FAULT_BIT(FAULT_DROP) | FAULT_BIT(FAULT_DUPLICATE) | FAULT_BIT(FAULT_REORDER) | \
	 FAULT_BIT(FAULT_DELAY) | FAULT_BIT(FAULT_CORRUPT) | FAULT_BIT(FAULT_RATE) |     \
	 FAULT_BIT(FAULT_ECN))

struct fault_rule {
	uint32_t id; /* 1, 2, ...: as listed */
	enum fault_action action;
	uint64_t value;	 /* see enum fault_action */
	uint64_t jitter; /* ns, FAULT_DELAY and FAULT_CQE_DELAY */
	bool silent;	 /* FAULT_CORRUPT: the ICRC is made to fit, so the receiver takes it */
	/* the match */
	char device[VERNIC_NAME_MAX]; /* "": any */
	uint32_t qpn;		      /* the QP at this side; 0: any */
	uint32_t points;	      /* enum fault_point, those it is asked at */
	bool any_opcode;
	uint64_t opcodes[4]; /* bit per BTH opcode, of packets */
	uint32_t kinds;	     /* bit per enum wire_kind, of WQEs and CQEs */
	bool any_psn;
	uint32_t psn_first; /* of packets, PSN_MASK arithmetic; both inclusive */
	uint32_t psn_last;
	uint64_t seed;		     /* 0: not given, 1 + id is used */
	struct vernic_chance chance; /* stepped by fault_match() */
	/* what it did, for `vernic fault list` */
	uint64_t matched;
	uint64_t struck;
	uint64_t busy; /* ns: the packet tap's, when what it let through last is let go */
	char text[VERNIC_FAULT_TEXT]; /* as it was given */
	char note[FAULT_NOTE];	      /* "fault ID: ACTION", for captures */
};

/* What rules are asked about. */
struct fault_subject {
	enum fault_point point;
	const struct device *dev; /* of the QP; NULL: not known */
	uint32_t qpn;		  /* the QP at this side: TX the sender, RX the receiver */
	int opcode;		  /* BTH opcode of a packet, else -1 */
	uint8_t kind;		  /* enum wire_kind; KIND_SEND for a receive WQE and its CQE */
	uint32_t psn;		  /* of a packet */
};

/* The rules of one worker. */
struct fault_set;

/*
 * Reads a rule.
 * @text: "ACTION[=VALUE][,KEY=VALUE]..."
 * @error: room for a one-line complaint that names the offending word
 * @return 0 or -EINVAL
 */
int fault_parse(const char *text, struct fault_rule *rule, char *error, size_t error_len);

/*
 * @worker: added to the seeds, so that workers do not strike in step; worker 0 uses them as given
 * @return NULL without memory
 */
struct fault_set *fault_set_create(uint32_t worker);
void fault_set_destroy(struct fault_set *set);

/*
 * Adds a copy of a rule, behind those there are, and seeds its chance.
 * @return 0, -ENOMEM, -ENOSPC (VERNIC_MAX_FAULTS)
 */
int fault_set_add(struct fault_set *set, const struct fault_rule *rule);
/* Removes rule id, or all with 0. @return whether there was one */
bool fault_set_remove(struct fault_set *set, uint32_t id);
/* @return the i-th rule, or NULL past the last. It stays where it is until it is removed. */
const struct fault_rule *fault_set_rule(const struct fault_set *set, uint32_t i);

/* @return the actions some rule of the set has (FAULT_BIT): 0 lets everything pass */
uint32_t fault_set_actions(const struct fault_set *set);

/*
 * Asks the rules of some actions about a subject; steps the chance of each that matches until one
 * strikes.
 * @actions: FAULT_BIT of those wanted
 * @return the rule that strikes (its chance may be used for more random numbers), or NULL
 */
struct fault_rule *fault_match(struct fault_set *set, uint32_t actions,
			       const struct fault_subject *s);

/* @return the action's name, as rules write it */
const char *fault_action_name(enum fault_action action);

#endif
