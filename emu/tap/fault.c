/* SPDX-License-Identifier: BSD-2-Clause */
/* Fault rules: reading them, and finding the one that strikes. */
#include "fault.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define FAULT_MAX_TIME UINT64_C(3600000000000) /* ns */
#define FAULT_MAX_WEAK UINT64_C(1000000000)    /* ns */
#define FAULT_MAX_COPIES 16
#define FAULT_MAX_REORDER 255
#define FAULT_MIN_RATE UINT64_C(1000)	       /* bits a second */
#define FAULT_MAX_RATE UINT64_C(1000000000000) /* bits a second */
#define FAULT_WORD 64			       /* bytes of the longest word */

#define PACKETS (FAULT_TX | FAULT_RX)
#define WQES (FAULT_SEND | FAULT_RECV)
#define CQES (FAULT_CQE_SEND | FAULT_CQE_RECV)

/* How the text behind ACTION= is read. */
enum value_form {
	VALUE_NONE,
	VALUE_COPIES, /* may be left out: 1 */
	VALUE_COUNT,
	VALUE_TIME,
	VALUE_PART, /* may be left out: payload */
	VALUE_RATE,
	VALUE_NAK,
	VALUE_STATUS,
	VALUE_ERRNO,
};

/* What there is to know of each action. */
static const struct {
	const char *name;
	enum value_form form;
	uint32_t points;   /* those dir= may choose from */
	uint32_t standard; /* where it is asked unless dir= says */
} actions[] = {
	[FAULT_DROP] = {"drop", VALUE_NONE, PACKETS, FAULT_TX},
	[FAULT_DUPLICATE] = {"duplicate", VALUE_COPIES, PACKETS, FAULT_TX},
	[FAULT_REORDER] = {"reorder", VALUE_COUNT, PACKETS, FAULT_TX},
	[FAULT_DELAY] = {"delay", VALUE_TIME, PACKETS, FAULT_TX},
	[FAULT_CORRUPT] = {"corrupt", VALUE_PART, PACKETS, FAULT_TX},
	[FAULT_RATE] = {"rate", VALUE_RATE, PACKETS, FAULT_TX},
	[FAULT_ECN] = {"ecn", VALUE_NONE, PACKETS, FAULT_TX},
	[FAULT_RNR] = {"rnr", VALUE_NONE, FAULT_RX, FAULT_RX},
	[FAULT_NAK] = {"nak", VALUE_NAK, FAULT_RX, FAULT_RX},
	[FAULT_STATUS] = {"status", VALUE_STATUS, WQES, FAULT_SEND},
	[FAULT_POST] = {"post", VALUE_ERRNO, WQES, FAULT_SEND},
	[FAULT_CQE_DELAY] = {"cqe-delay", VALUE_TIME, CQES, CQES},
	[FAULT_CQE_ARM] = {"cqe-arm", VALUE_NONE, CQES, CQES},
	[FAULT_CQE_RUBBISH] = {"cqe-rubbish", VALUE_NONE, CQES, CQES},
	[FAULT_WEAK] = {"weak", VALUE_TIME, FAULT_RX, FAULT_RX},
};
static_assert(sizeof(actions) / sizeof(actions[0]) == FAULT_ACTION_COUNT, "one for each action");

static const char *const part_names[] = {
	[FAULT_PAYLOAD] = "payload",
	[FAULT_HEADER] = "header",
	[FAULT_ICRC] = "icrc",
};

static const char *const nak_names[] = {
	[NAK_PSN_SEQUENCE] = "sequence",
	[NAK_INVALID_REQUEST] = "invalid-request",
	[NAK_REMOTE_ACCESS] = "remote-access",
	[NAK_REMOTE_OPERATION] = "remote-operation",
};

/* Without IBV_WC_; SUCCESS is no fault. */
static const char *const status_names[] = {
	[IBV_WC_LOC_LEN_ERR] = "LOC_LEN_ERR",
	[IBV_WC_LOC_QP_OP_ERR] = "LOC_QP_OP_ERR",
	[IBV_WC_LOC_EEC_OP_ERR] = "LOC_EEC_OP_ERR",
	[IBV_WC_LOC_PROT_ERR] = "LOC_PROT_ERR",
	[IBV_WC_WR_FLUSH_ERR] = "WR_FLUSH_ERR",
	[IBV_WC_MW_BIND_ERR] = "MW_BIND_ERR",
	[IBV_WC_BAD_RESP_ERR] = "BAD_RESP_ERR",
	[IBV_WC_LOC_ACCESS_ERR] = "LOC_ACCESS_ERR",
	[IBV_WC_REM_INV_REQ_ERR] = "REM_INV_REQ_ERR",
	[IBV_WC_REM_ACCESS_ERR] = "REM_ACCESS_ERR",
	[IBV_WC_REM_OP_ERR] = "REM_OP_ERR",
	[IBV_WC_RETRY_EXC_ERR] = "RETRY_EXC_ERR",
	[IBV_WC_RNR_RETRY_EXC_ERR] = "RNR_RETRY_EXC_ERR",
	[IBV_WC_LOC_RDD_VIOL_ERR] = "LOC_RDD_VIOL_ERR",
	[IBV_WC_REM_INV_RD_REQ_ERR] = "REM_INV_RD_REQ_ERR",
	[IBV_WC_REM_ABORT_ERR] = "REM_ABORT_ERR",
	[IBV_WC_INV_EECN_ERR] = "INV_EECN_ERR",
	[IBV_WC_INV_EEC_STATE_ERR] = "INV_EEC_STATE_ERR",
	[IBV_WC_FATAL_ERR] = "FATAL_ERR",
	[IBV_WC_RESP_TIMEOUT_ERR] = "RESP_TIMEOUT_ERR",
	[IBV_WC_GENERAL_ERR] = "GENERAL_ERR",
};

#define KIND_BIT(kind) (1u << (kind))
#define REQUESTS                                                                         \
	(KIND_BIT(KIND_SEND) | KIND_BIT(KIND_WRITE) | KIND_BIT(KIND_READ_REQUEST) |      \
	 KIND_BIT(KIND_COMPARE_SWAP) | KIND_BIT(KIND_FETCH_ADD) | KIND_BIT(KIND_FLUSH) | \
	 KIND_BIT(KIND_ATOMIC_WRITE))
#define RESPONSES (KIND_BIT(KIND_READ_RESPONSE) | KIND_BIT(KIND_ACK) | KIND_BIT(KIND_ATOMIC_ACK))

/* Names of kinds and of groups of them, for opcode=. */
static const struct {
	const char *name;
	uint32_t kinds;
} kind_names[] = {
	{"send", KIND_BIT(KIND_SEND)},
	{"write", KIND_BIT(KIND_WRITE)},
	{"read-request", KIND_BIT(KIND_READ_REQUEST)},
	{"read-response", KIND_BIT(KIND_READ_RESPONSE)},
	{"ack", KIND_BIT(KIND_ACK)},
	{"atomic-ack", KIND_BIT(KIND_ATOMIC_ACK)},
	{"compare-swap", KIND_BIT(KIND_COMPARE_SWAP)},
	{"fetch-add", KIND_BIT(KIND_FETCH_ADD)},
	{"flush", KIND_BIT(KIND_FLUSH)},
	{"atomic-write", KIND_BIT(KIND_ATOMIC_WRITE)},
	{"read", KIND_BIT(KIND_READ_REQUEST) | KIND_BIT(KIND_READ_RESPONSE)},
	{"atomic",
	 KIND_BIT(KIND_COMPARE_SWAP) | KIND_BIT(KIND_FETCH_ADD) | KIND_BIT(KIND_ATOMIC_ACK)},
	{"request", REQUESTS},
	{"response", RESPONSES},
	{"any", REQUESTS | RESPONSES},
};

/* A rule being read. */
struct parser {
	struct fault_rule *rule;
	uint32_t keys; /* bit per key given */
	char *error;
	size_t error_len;
};

/* Complains. @return -EINVAL */
__attribute__((format(printf, 2, 3))) static int fail(struct parser *p, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(p->error, p->error_len, format, args);
	va_end(args);
	return -EINVAL;
}

const char *fault_action_name(enum fault_action action)
{
	return actions[action].name;
}

/* ---- values --------------------------------------------------------------------------------- */

/*
 * Reads a whole number, decimal or with 0x.
 * @word: what it is of, for the complaint
 */
static int parse_number(struct parser *p, const char *word, const char *text, uint64_t min,
			uint64_t max, uint64_t *value)
{
	bool hex = text[0] == '0' && (text[1] | 0x20) == 'x';
	unsigned long long v;
	char *end;

	errno = 0;
	v = strtoull(text, &end, hex ? 16 : 10);
	if (!isdigit((unsigned char)text[0]) || *end != '\0')
		return fail(p, "%s: '%s' is not a whole number", word, text);
	if (errno != 0 || v < min || v > max)
		return fail(p, "%s: %s is out of range (%llu to %llu)", word, text,
			    (unsigned long long)min, (unsigned long long)max);
	*value = v;
	return 0;
}

/* Reads digits, perhaps with a fraction. @return what follows, or NULL if it does not begin so */
static const char *parse_decimal(const char *text, double *value)
{
	const char *s = text;
	double unit = 1;

	*value = 0;
	if (!isdigit((unsigned char)*s))
		return NULL;
	for (; isdigit((unsigned char)*s); s++)
		*value = *value * 10 + (*s - '0');
	if (*s != '.')
		return s;
	for (s++; isdigit((unsigned char)*s); s++) {
		unit /= 10;
		*value += unit * (*s - '0');
	}
	return s;
}

/* A number with a unit. */
struct unit {
	const char *name;
	double factor;
};

/*
 * Reads a number with a unit.
 * @units: ended by a NULL name; @example: for the complaint
 */
static int parse_unit(struct parser *p, const char *word, const char *text,
		      const struct unit *units, const char *example, uint64_t min, uint64_t max,
		      uint64_t *value)
{
	const char *rest;
	double v;

	rest = parse_decimal(text, &v);
	while (rest != NULL && units->name != NULL && strcasecmp(rest, units->name) != 0)
		units++;
	if (rest == NULL || units->name == NULL)
		return fail(p, "%s: '%s' is not a number with a unit, like %s", word, text,
			    example);
	v = v * units->factor + 0.5;
	if (v < (double)min || v >= (double)max + 1)
		return fail(p, "%s: %s is out of range", word, text);
	*value = (uint64_t)v;
	return 0;
}

static int parse_time(struct parser *p, const char *word, const char *text, uint64_t max,
		      uint64_t *value)
{
	static const struct unit units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {0}};

	return parse_unit(p, word, text, units, "100us, 2.5ms, 1s", 0, max, value);
}

static int parse_rate(struct parser *p, const char *text, uint64_t *value)
{
	static const struct unit units[] = {
		{"bit", 1}, {"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}, {0}};

	return parse_unit(p, "rate", text, units, "500kbit, 100Mbit, 1Gbit", FAULT_MIN_RATE,
			  FAULT_MAX_RATE, value);
}

/* Reads a share, 0.1 or 10%, as struct vernic_chance has it. */
static int parse_probability(struct parser *p, const char *text, uint64_t *value)
{
	const char *rest;
	double v;

	rest = parse_decimal(text, &v);
	if (rest == NULL || (*rest != '\0' && strcmp(rest, "%") != 0))
		return fail(p, "probability: '%s' is neither a fraction, like 0.1, nor 10%%", text);
	if (*rest == '%')
		v /= 100;
	if (v <= 0 || v > 1)
		return fail(p, "probability: %s is out of range (more than 0, at most 1 or 100%%)",
			    text);
	*value = (uint64_t)(v * 4294967296.0 + 0.5);
	if (*value == 0)
		*value = 1;
	return 0;
}

/* Looks a word up in a table with gaps. @return its index, or -1 */
static int find_name(const char *const *names, size_t count, const char *text)
{
	for (size_t i = 0; i < count; i++) {
		if (names[i] != NULL && strcasecmp(names[i], text) == 0)
			return (int)i;
	}
	return -1;
}

static int parse_part(struct parser *p, const char *text, uint64_t *value)
{
	int i = find_name(part_names, sizeof(part_names) / sizeof(part_names[0]), text);

	if (i < 0)
		return fail(p, "corrupt: '%s' is none of payload, header, icrc", text);
	*value = (uint64_t)i;
	return 0;
}

static int parse_nak(struct parser *p, const char *text, uint64_t *value)
{
	int i = find_name(nak_names, sizeof(nak_names) / sizeof(nak_names[0]), text);

	if (i < 0)
		return fail(p,
			    "nak: '%s' is none of sequence, invalid-request, remote-access, "
			    "remote-operation",
			    text);
	*value = (uint64_t)i;
	return 0;
}

static int parse_status(struct parser *p, const char *text, uint64_t *value)
{
	static const char prefix[] = "IBV_WC_";
	bool prefixed = strncasecmp(text, prefix, strlen(prefix)) == 0;
	int i = find_name(status_names, sizeof(status_names) / sizeof(status_names[0]),
			  prefixed ? text + strlen(prefix) : text);

	if (i < 0)
		return fail(p,
			    "status: '%s' is no error of enum ibv_wc_status, like LOC_PROT_ERR or "
			    "REM_ACCESS_ERR",
			    text);
	*value = (uint64_t)i;
	return 0;
}

static int parse_errno(struct parser *p, const char *text, uint64_t *value)
{
	if (isdigit((unsigned char)text[0]))
		return parse_number(p, "post", text, 1, 4095, value);
	for (int i = 1; i < 4096; i++) {
		const char *name = strerrorname_np(i);

		if (name != NULL && strcasecmp(name, text) == 0) {
			*value = (uint64_t)i;
			return 0;
		}
	}
	return fail(p, "post: '%s' is no errno, like ENOMEM or EINVAL", text);
}

/* Reads what stands behind ACTION=. @text: NULL: nothing */
static int parse_value(struct parser *p, const char *text)
{
	struct fault_rule *r = p->rule;
	const char *name = actions[r->action].name;
	enum value_form form = actions[r->action].form;

	if (text == NULL && form == VALUE_COPIES) {
		r->value = 1;
		return 0;
	}
	if (text == NULL && (form == VALUE_NONE || form == VALUE_PART))
		return 0;
	if (text == NULL)
		return fail(p, "%s: a value is missing (%s=...)", name, name);
	switch (form) {
	case VALUE_NONE:
		return fail(p, "%s: takes no value, and '%s' is given", name, text);
	case VALUE_COPIES:
		return parse_number(p, name, text, 1, FAULT_MAX_COPIES, &r->value);
	case VALUE_COUNT:
		return parse_number(p, name, text, 1, FAULT_MAX_REORDER, &r->value);
	case VALUE_TIME:
		return parse_time(p, name, text,
				  r->action == FAULT_WEAK ? FAULT_MAX_WEAK : FAULT_MAX_TIME,
				  &r->value);
	case VALUE_PART:
		return parse_part(p, text, &r->value);
	case VALUE_RATE:
		return parse_rate(p, text, &r->value);
	case VALUE_NAK:
		return parse_nak(p, text, &r->value);
	case VALUE_STATUS:
		return parse_status(p, text, &r->value);
	case VALUE_ERRNO:
		return parse_errno(p, text, &r->value);
	}
	return -EINVAL;
}

/* ---- keys ----------------------------------------------------------------------------------- */

enum key {
	KEY_DEVICE,
	KEY_QP,
	KEY_DIR,
	KEY_OPCODE,
	KEY_PSN,
	KEY_SKIP,
	KEY_NTH,
	KEY_PROBABILITY,
	KEY_BURST,
	KEY_COUNT,
	KEY_SEED,
	KEY_JITTER,
	KEY_SILENT,
	KEYS
};

static const char *const key_names[] = {
	[KEY_DEVICE] = "device", [KEY_QP] = "qp",
	[KEY_DIR] = "dir",	 [KEY_OPCODE] = "opcode",
	[KEY_PSN] = "psn",	 [KEY_SKIP] = "skip",
	[KEY_NTH] = "nth",	 [KEY_PROBABILITY] = "probability",
	[KEY_BURST] = "burst",	 [KEY_COUNT] = "count",
	[KEY_SEED] = "seed",	 [KEY_JITTER] = "jitter",
	[KEY_SILENT] = "silent",
};
static_assert(sizeof(key_names) / sizeof(key_names[0]) == KEYS, "one for each key");

/* @return the bit of a key */
#define KEY_BIT(key) (1u << (key))

static int parse_device(struct parser *p, const char *text)
{
	if (text[0] == '\0' || strlen(text) >= sizeof(p->rule->device))
		return fail(p, "device: '%s' is not the name of a device", text);
	strcpy(p->rule->device, text);
	return 0;
}

static int parse_dir(struct parser *p, const char *text)
{
	struct fault_rule *r = p->rule;
	uint32_t points = actions[r->action].points;
	uint32_t chosen = 0;

	if (strcasecmp(text, "both") == 0)
		chosen = points & (points - 1) ? points : 0;
	else if (strcasecmp(text, "tx") == 0)
		chosen = FAULT_TX;
	else if (strcasecmp(text, "rx") == 0)
		chosen = FAULT_RX;
	else if (strcasecmp(text, "send") == 0)
		chosen = FAULT_SEND | FAULT_CQE_SEND;
	else if (strcasecmp(text, "recv") == 0)
		chosen = FAULT_RECV | FAULT_CQE_RECV;
	r->points = chosen & points;
	if (r->points == 0)
		return fail(p, "dir: '%s' is not %s, which %s has", text,
			    points == PACKETS	 ? "one of tx, rx, both"
			    : points == FAULT_RX ? "rx"
						 : "one of send, recv, both",
			    actions[r->action].name);
	return 0;
}

/* @return whether two names are the same, whatever their case and what parts their words */
static bool same_opcode(const char *a, const char *b)
{
	for (;; a++, b++) {
		char x = (char)tolower((unsigned char)*a), y = (char)tolower((unsigned char)*b);

		if (x == ' ' || x == '-')
			x = '_';
		if (y == ' ' || y == '-')
			y = '_';
		if (x != y)
			return false;
		if (x == '\0')
			return true;
	}
}

/* Adds what one name stands for to a rule. */
static int parse_opcode_name(struct parser *p, const char *name)
{
	struct fault_rule *r = p->rule;
	bool found = false;

	for (size_t i = 0; i < sizeof(kind_names) / sizeof(kind_names[0]); i++) {
		if (!same_opcode(kind_names[i].name, name))
			continue;
		for (unsigned int op = 0; op < 256; op++) {
			if (wire_opcodes[op].name != NULL &&
			    (kind_names[i].kinds & KIND_BIT(wire_opcodes[op].kind)))
				r->opcodes[op / 64] |= UINT64_C(1) << op % 64;
		}
		r->kinds |= kind_names[i].kinds;
		return 0;
	}
	for (unsigned int op = 0; op < 256; op++) {
		const char *whole = wire_opcodes[op].name;
		const char *blank = whole != NULL ? strchr(whole, ' ') : NULL;

		/* "RC SEND_ONLY", or "SEND_ONLY" for that of every service */
		if (whole == NULL ||
		    !(same_opcode(whole, name) || (blank != NULL && same_opcode(blank + 1, name))))
			continue;
		found = true;
		r->opcodes[op / 64] |= UINT64_C(1) << op % 64;
	}
	if (!found)
		return fail(p, "opcode: '%s' is not the name of an operation or a packet", name);
	if (!(actions[r->action].points & PACKETS))
		return fail(p, "opcode: '%s' names a packet, and %s strikes no packets", name,
			    actions[r->action].name);
	return 0;
}

/* @text: NAME[+NAME...]; cut up */
static int parse_opcodes(struct parser *p, char *text)
{
	char *next;

	p->rule->any_opcode = false;
	for (; text != NULL; text = next) {
		int err;

		next = strchr(text, '+');
		if (next != NULL)
			*next++ = '\0';
		err = parse_opcode_name(p, text);
		if (err != 0)
			return err;
	}
	return 0;
}

/* @text: A[-B]; cut up */
static int parse_psn(struct parser *p, char *text)
{
	struct fault_rule *r = p->rule;
	char *dash = strchr(text, '-');
	uint64_t first, last;
	int err;

	if (!(actions[r->action].points & PACKETS))
		return fail(p, "psn: %s strikes no packets", actions[r->action].name);
	if (dash != NULL)
		*dash++ = '\0';
	err = parse_number(p, "psn", text, 0, PSN_MASK, &first);
	if (err == 0)
		err = parse_number(p, "psn", dash != NULL ? dash : text, 0, PSN_MASK, &last);
	if (err != 0)
		return err;
	r->any_psn = false;
	r->psn_first = (uint32_t)first;
	r->psn_last = (uint32_t)last;
	return 0;
}

/* Reads a count of struct vernic_chance. */
static int parse_count(struct parser *p, enum key key, const char *text, uint32_t min,
		       uint32_t *value)
{
	uint64_t v;
	int err = parse_number(p, key_names[key], text, min, UINT32_MAX - 1, &v);

	if (err == 0)
		*value = (uint32_t)v;
	return err;
}

static int parse_jitter(struct parser *p, const char *text)
{
	struct fault_rule *r = p->rule;

	if (r->action != FAULT_DELAY && r->action != FAULT_CQE_DELAY)
		return fail(p, "jitter: %s has none, only delay and cqe-delay",
			    actions[r->action].name);
	return parse_time(p, "jitter", text, FAULT_MAX_TIME, &r->jitter);
}

static int parse_silent(struct parser *p)
{
	struct fault_rule *r = p->rule;

	if (r->action != FAULT_CORRUPT || r->value == FAULT_ICRC)
		return fail(p, "silent: only corrupt=payload and corrupt=header can be silent");
	r->silent = true;
	return 0;
}

/* Reads one KEY=VALUE. @text: cut up */
static int parse_key(struct parser *p, char *text)
{
	struct vernic_chance *c = &p->rule->chance;
	char *value = strchr(text, '=');
	uint64_t qpn;
	int key, err;

	if (value != NULL)
		*value++ = '\0';
	key = find_name(key_names, KEYS, text);
	if (key < 0)
		return fail(p, "unknown key '%s'", text);
	if (p->keys & KEY_BIT(key))
		return fail(p, "%s: given twice", text);
	p->keys |= KEY_BIT(key);
	if (value == NULL && key != KEY_SILENT)
		return fail(p, "%s: a value is missing (%s=...)", text, text);
	if (value != NULL && key == KEY_SILENT)
		return fail(p, "silent: takes no value, and '%s' is given", value);
	switch ((enum key)key) {
	case KEY_DEVICE:
		return parse_device(p, value);
	case KEY_QP:
		err = parse_number(p, "qp", value, 1, QPN_MASK, &qpn);
		p->rule->qpn = err == 0 ? (uint32_t)qpn : 0;
		return err;
	case KEY_DIR:
		return parse_dir(p, value);
	case KEY_OPCODE:
		return parse_opcodes(p, value);
	case KEY_PSN:
		return parse_psn(p, value);
	case KEY_SKIP:
		return parse_count(p, KEY_SKIP, value, 0, &c->skip);
	case KEY_NTH:
		return parse_count(p, KEY_NTH, value, 1, &c->nth);
	case KEY_PROBABILITY:
		return parse_probability(p, value, &c->probability);
	case KEY_BURST:
		return parse_count(p, KEY_BURST, value, 1, &c->burst);
	case KEY_COUNT:
		if (strcasecmp(value, "all") == 0)
			return 0;
		return parse_count(p, KEY_COUNT, value, 1, &c->left);
	case KEY_SEED:
		return parse_number(p, "seed", value, 1, UINT64_MAX, &p->rule->seed);
	case KEY_JITTER:
		return parse_jitter(p, value);
	case KEY_SILENT:
		return parse_silent(p);
	case KEYS:
		break;
	}
	return -EINVAL;
}

/* ---- rules ---------------------------------------------------------------------------------- */

/* Reads ACTION[=VALUE]. @text: cut up */
static int parse_action(struct parser *p, char *text)
{
	struct fault_rule *r = p->rule;
	char *value = strchr(text, '=');

	if (value != NULL)
		*value++ = '\0';
	for (unsigned int i = 0; i < FAULT_ACTION_COUNT; i++) {
		if (strcasecmp(actions[i].name, text) != 0)
			continue;
		r->action = (enum fault_action)i;
		r->points = actions[i].standard;
		return parse_value(p, value);
	}
	if (text[0] == '\0')
		return fail(p, "a rule begins with an action, like drop or delay=1ms");
	return fail(p, "unknown action '%s'", text);
}

/* Restricts a rule to some opcodes. @return whether anything is left */
static bool restrict_opcodes(struct fault_rule *r, uint16_t flags)
{
	uint64_t left = 0;

	for (unsigned int op = 0; op < 256; op++) {
		uint64_t bit = UINT64_C(1) << op % 64;
		bool has = wire_opcodes[op].name != NULL && (wire_opcodes[op].flags & flags);

		if (!has)
			r->opcodes[op / 64] &= ~bit;
		else if (r->any_opcode)
			r->opcodes[op / 64] |= bit;
	}
	r->any_opcode = false;
	for (int i = 0; i < 4; i++)
		left |= r->opcodes[i];
	return left != 0;
}

/* What only the whole rule shows. */
static int check_rule(struct parser *p)
{
	struct fault_rule *r = p->rule;
	const char *name = actions[r->action].name;

	if (r->any_opcode)
		r->kinds = REQUESTS | RESPONSES;
	else if ((r->points & (WQES | CQES)) && !(r->kinds & REQUESTS))
		return fail(p, "opcode: no work request is one of these");
	else if ((r->points & (FAULT_RECV | FAULT_CQE_RECV)) == r->points)
		return fail(p, "opcode: a receive has none");
	if ((r->action == FAULT_RNR || r->action == FAULT_NAK) && !restrict_opcodes(r, OPF_REQUEST))
		return fail(p, "opcode: %s answers requests, and none of these is one", name);
	if ((r->action == FAULT_WEAK ||
	     (r->action == FAULT_CORRUPT && r->silent && r->value == FAULT_PAYLOAD)) &&
	    !restrict_opcodes(r, OPF_PAYLOAD))
		return fail(p, "opcode: %s needs payload, and none of these has any", name);
	return 0;
}

/* Removes blanks at both ends of a word. @return its new beginning */
static char *trim(char *s)
{
	size_t len;

	s += strspn(s, " \t");
	len = strlen(s);
	while (len > 0 && (s[len - 1] == ' ' || s[len - 1] == '\t'))
		s[--len] = '\0';
	return s;
}

int fault_parse(const char *text, struct fault_rule *rule, char *error, size_t error_len)
{
	struct parser p = {.rule = rule, .error = error, .error_len = error_len};
	char copy[VERNIC_FAULT_TEXT];
	char *word, *next;
	bool first = true;

	memset(rule, 0, sizeof(*rule));
	rule->any_opcode = rule->any_psn = true;
	rule->chance.probability = UINT64_C(1) << 32;
	rule->chance.left = UINT32_MAX;
	if (strlen(text) >= sizeof(copy))
		return fail(&p, "the rule is longer than %zu characters", sizeof(copy) - 1);
	for (const char *s = text; *s != '\0'; s++) {
		if (!isprint((unsigned char)*s))
			return fail(&p, "the rule has a character 0x%02x", (unsigned char)*s);
	}
	strcpy(copy, text);
	for (word = copy; word != NULL; word = next) {
		int err;

		next = strchr(word, ',');
		if (next != NULL)
			*next++ = '\0';
		word = trim(word);
		err = first ? parse_action(&p, word) : parse_key(&p, word);
		if (err != 0)
			return err;
		first = false;
	}
	vernic_chance_seed(&rule->chance, rule->seed != 0 ? rule->seed : 1);
	strcpy(copy, text);
	strcpy(rule->text, trim(copy));
	return check_rule(&p);
}

/* ---- sets ----------------------------------------------------------------------------------- */

struct fault_set {
	struct fault_rule *rule[VERNIC_MAX_FAULTS];
	uint32_t count;
	uint32_t actions; /* FAULT_BIT */
	uint32_t worker;
};

struct fault_set *fault_set_create(uint32_t worker)
{
	struct fault_set *set = calloc(1, sizeof(*set));

	if (set != NULL)
		set->worker = worker;
	return set;
}

void fault_set_destroy(struct fault_set *set)
{
	if (set == NULL)
		return;
	fault_set_remove(set, 0);
	free(set);
}

int fault_set_add(struct fault_set *set, const struct fault_rule *rule)
{
	struct fault_rule *r;

	if (set->count == VERNIC_MAX_FAULTS)
		return -ENOSPC;
	r = malloc(sizeof(*r));
	if (r == NULL)
		return -ENOMEM;
	*r = *rule;
	snprintf(r->note, sizeof(r->note), "fault %u: %s", r->id, actions[r->action].name);
	vernic_chance_seed(&r->chance, (r->seed != 0 ? r->seed : 1 + r->id) + set->worker);
	set->rule[set->count++] = r;
	set->actions |= FAULT_BIT(r->action);
	return 0;
}

bool fault_set_remove(struct fault_set *set, uint32_t id)
{
	uint32_t left = 0;
	uint32_t before = set->count;

	set->actions = 0;
	for (uint32_t i = 0; i < before; i++) {
		struct fault_rule *r = set->rule[i];

		if (id == 0 || r->id == id) {
			free(r);
			continue;
		}
		set->rule[left++] = r;
		set->actions |= FAULT_BIT(r->action);
	}
	set->count = left;
	return left != before;
}

const struct fault_rule *fault_set_rule(const struct fault_set *set, uint32_t i)
{
	return i < set->count ? set->rule[i] : NULL;
}

uint32_t fault_set_actions(const struct fault_set *set)
{
	return set->actions;
}

/* @return whether a rule is about a subject */
static bool rule_matches(const struct fault_rule *r, const struct fault_subject *s)
{
	if (!(r->points & s->point))
		return false;
	if (r->qpn != 0 && r->qpn != s->qpn)
		return false;
	if (r->device[0] != '\0' && (s->dev == NULL || strcmp(r->device, s->dev->name) != 0))
		return false;
	if (s->opcode < 0)
		return r->any_opcode || (r->kinds & KIND_BIT(s->kind));
	if (!r->any_opcode && !(r->opcodes[s->opcode / 64 & 3] >> s->opcode % 64 & 1))
		return false;
	return r->any_psn ||
	       ((s->psn - r->psn_first) & PSN_MASK) <= ((r->psn_last - r->psn_first) & PSN_MASK);
}

struct fault_rule *fault_match(struct fault_set *set, uint32_t wanted,
			       const struct fault_subject *s)
{
	if (!(set->actions & wanted))
		return NULL;
	for (uint32_t i = 0; i < set->count; i++) {
		struct fault_rule *r = set->rule[i];

		if (!(wanted & FAULT_BIT(r->action)) || !rule_matches(r, s))
			continue;
		r->matched++;
		if (vernic_chance_strikes(&r->chance)) {
			r->struck++;
			return r;
		}
	}
	return NULL;
}
