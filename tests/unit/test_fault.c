/* SPDX-License-Identifier: BSD-2-Clause */
/* Unit tests of fault rules: reading them, whom they strike, and how often. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tap/fault.h"

static struct device device_a = {.name = "vernic0"};
static struct device device_b = {.name = "vernic1"};

/* Parses what must be right. */
static struct fault_rule parse(const char *text)
{
	struct fault_rule r;
	char error[128] = "";
	int err = fault_parse(text, &r, error, sizeof(error));

	ck_assert_msg(err == 0, "%s: %s", text, error);
	return r;
}

/* A set of one rule, with id 1. */
static struct fault_set *set_of(const char *text, uint32_t worker)
{
	struct fault_set *set = fault_set_create(worker);
	struct fault_rule r = parse(text);

	ck_assert_ptr_nonnull(set);
	r.id = 1;
	ck_assert_int_eq(fault_set_add(set, &r), 0);
	return set;
}

/* A packet of RC that leaves vernic0's QP 0x21. */
static struct fault_subject packet(enum wire_op op, uint32_t psn)
{
	return (struct fault_subject){
		.point = FAULT_TX,
		.dev = &device_a,
		.qpn = 0x21,
		.opcode = WIRE_RC | op,
		.kind = wire_opcodes[WIRE_RC | op].kind,
		.psn = psn,
	};
}

/* @return whether a rule strikes a subject, asked for all actions */
static bool strikes(const char *text, struct fault_subject s)
{
	struct fault_set *set = set_of(text, 0);
	bool struck = fault_match(set, UINT32_MAX, &s) != NULL;

	fault_set_destroy(set);
	return struck;
}

/* Actions, values, and where they strike unless told. */
static const struct {
	const char *text;
	enum fault_action action;
	uint64_t value;
	uint32_t points;
} good[] = {
	{"drop", FAULT_DROP, 0, FAULT_TX},
	{"DROP,dir=RX", FAULT_DROP, 0, FAULT_RX},
	{" drop , dir=both ", FAULT_DROP, 0, FAULT_TX | FAULT_RX},
	{"duplicate", FAULT_DUPLICATE, 1, FAULT_TX},
	{"duplicate=16", FAULT_DUPLICATE, 16, FAULT_TX},
	{"reorder=3", FAULT_REORDER, 3, FAULT_TX},
	{"delay=0s", FAULT_DELAY, 0, FAULT_TX},
	{"delay=15ns", FAULT_DELAY, 15, FAULT_TX},
	{"delay=1.5us", FAULT_DELAY, 1500, FAULT_TX},
	{"delay=100ms", FAULT_DELAY, 100000000, FAULT_TX},
	{"delay=3600s", FAULT_DELAY, 3600000000000, FAULT_TX},
	{"corrupt", FAULT_CORRUPT, FAULT_PAYLOAD, FAULT_TX},
	{"corrupt=header", FAULT_CORRUPT, FAULT_HEADER, FAULT_TX},
	{"corrupt=icrc,dir=rx", FAULT_CORRUPT, FAULT_ICRC, FAULT_RX},
	{"rate=1Gbit", FAULT_RATE, 1000000000, FAULT_TX},
	{"rate=2.5mbit", FAULT_RATE, 2500000, FAULT_TX},
	{"rate=64kbit", FAULT_RATE, 64000, FAULT_TX},
	{"rate=9600bit", FAULT_RATE, 9600, FAULT_TX},
	{"ecn", FAULT_ECN, 0, FAULT_TX},
	{"rnr", FAULT_RNR, 0, FAULT_RX},
	{"nak=sequence", FAULT_NAK, NAK_PSN_SEQUENCE, FAULT_RX},
	{"nak=invalid-request", FAULT_NAK, NAK_INVALID_REQUEST, FAULT_RX},
	{"nak=remote-access", FAULT_NAK, NAK_REMOTE_ACCESS, FAULT_RX},
	{"nak=remote-operation", FAULT_NAK, NAK_REMOTE_OPERATION, FAULT_RX},
	{"status=LOC_PROT_ERR", FAULT_STATUS, IBV_WC_LOC_PROT_ERR, FAULT_SEND},
	{"status=IBV_WC_REM_ACCESS_ERR,dir=send", FAULT_STATUS, IBV_WC_REM_ACCESS_ERR, FAULT_SEND},
	{"status=loc_len_err,dir=recv", FAULT_STATUS, IBV_WC_LOC_LEN_ERR, FAULT_RECV},
	{"status=GENERAL_ERR,dir=both", FAULT_STATUS, IBV_WC_GENERAL_ERR, FAULT_SEND | FAULT_RECV},
	{"post=ENOMEM", FAULT_POST, ENOMEM, FAULT_SEND},
	{"post=einval,dir=recv", FAULT_POST, EINVAL, FAULT_RECV},
	{"post=11", FAULT_POST, 11, FAULT_SEND},
	{"cqe-delay=1ms", FAULT_CQE_DELAY, 1000000, FAULT_CQE_SEND | FAULT_CQE_RECV},
	{"cqe-delay=1ms,dir=send", FAULT_CQE_DELAY, 1000000, FAULT_CQE_SEND},
	{"cqe-arm,dir=recv", FAULT_CQE_ARM, 0, FAULT_CQE_RECV},
	{"cqe-rubbish", FAULT_CQE_RUBBISH, 0, FAULT_CQE_SEND | FAULT_CQE_RECV},
	{"weak=100us", FAULT_WEAK, 100000, FAULT_RX},
};

START_TEST(reads_actions)
{
	struct fault_rule r = parse(good[_i].text);

	ck_assert_msg(r.action == good[_i].action && r.value == good[_i].value &&
			      r.points == good[_i].points,
		      "%s: action %d, value %llu, points %#x", good[_i].text, r.action,
		      (unsigned long long)r.value, r.points);
	ck_assert(strncasecmp(fault_action_name(r.action),
			      good[_i].text + (good[_i].text[0] == ' '),
			      strlen(fault_action_name(r.action))) == 0);
}
END_TEST

START_TEST(reads_keys)
{
	struct fault_rule r = parse("delay=1ms,device=vernic1,qp=0x1a,psn=5-0x10,skip=2,nth=3,"
				    "probability=25%,burst=4,count=5,seed=6,jitter=7us");

	ck_assert_str_eq(r.device, "vernic1");
	ck_assert_uint_eq(r.qpn, 0x1a);
	ck_assert(!r.any_psn && r.any_opcode && !r.silent);
	ck_assert_uint_eq(r.psn_first, 5);
	ck_assert_uint_eq(r.psn_last, 16);
	ck_assert_uint_eq(r.chance.skip, 2);
	ck_assert_uint_eq(r.chance.nth, 3);
	ck_assert_uint_eq(r.chance.probability, UINT64_C(1) << 30);
	ck_assert_uint_eq(r.chance.burst, 4);
	ck_assert_uint_eq(r.chance.left, 5);
	ck_assert_uint_eq(r.seed, 6);
	ck_assert_uint_eq(r.jitter, 7000);
	ck_assert(r.chance.state != 0);
	r = parse("corrupt=header,silent,probability=0.5,count=all");
	ck_assert(r.silent);
	ck_assert_uint_eq(r.chance.probability, UINT64_C(1) << 31);
	ck_assert_uint_eq(r.chance.left, UINT32_MAX);
	ck_assert_uint_eq(r.seed, 0);
	ck_assert_uint_eq(parse("drop,probability=1").chance.probability, UINT64_C(1) << 32);
	ck_assert_str_eq(parse("  drop, nth=2 ").text, "drop, nth=2");
}
END_TEST

/* What is wrong, and the word the complaint must name. */
static const struct {
	const char *text;
	const char *word;
} bad[] = {
	{"", "begins with an action"},
	{",count=1", "begins with an action"},
	{"explode", "'explode'"},
	{"drop=1", "'1'"},
	{"drop,", "''"},
	{"drop,now", "'now'"},
	{"drop,count", "count"},
	{"drop,count=", "count"},
	{"drop,count=0", "0 is out of range"},
	{"drop,count=4294967295", "4294967295"},
	{"drop,count=99999999999999999999999", "out of range"},
	{"drop,count=-1", "'-1'"},
	{"drop,count=1x", "'1x'"},
	{"drop,count=1,count=2", "count: given twice"},
	{"drop,nth=0", "nth"},
	{"drop,burst=0", "burst"},
	{"drop,seed=0", "seed"},
	{"drop,skip=a", "'a'"},
	{"drop,qp=0", "qp"},
	{"drop,qp=0x1000000", "0x1000000"},
	{"drop,qp=0x", "0x"},
	{"drop,device=", "device"},
	{"drop,dir=send", "'send'"},
	{"drop,dir=up", "'up'"},
	{"rnr,dir=tx", "'tx'"},
	{"rnr,dir=both", "'both'"},
	{"status=LOC_PROT_ERR,dir=tx", "'tx'"},
	{"post=ENOMEM,dir=rx", "'rx'"},
	{"drop,opcode=foo", "'foo'"},
	{"drop,opcode=", "''"},
	{"drop,opcode=send+", "''"},
	{"drop,psn=16777216", "16777216"},
	{"drop,psn=5-", "''"},
	{"drop,psn=-5", "''"},
	{"post=ENOMEM,psn=1", "psn"},
	{"drop,probability=0", "probability"},
	{"drop,probability=1.1", "1.1"},
	{"drop,probability=101%", "101%"},
	{"drop,probability=10%%", "10%%"},
	{"drop,probability=often", "'often'"},
	{"drop,jitter=1ms", "jitter"},
	{"drop,silent", "silent"},
	{"corrupt=icrc,silent", "silent"},
	{"corrupt,silent=1", "'1'"},
	{"corrupt=soul", "'soul'"},
	{"duplicate=0", "duplicate"},
	{"duplicate=17", "17"},
	{"reorder", "reorder"},
	{"reorder=0", "reorder"},
	{"delay", "delay"},
	{"delay=", "''"},
	{"delay=5", "'5'"},
	{"delay=5min", "'5min'"},
	{"delay=-5ms", "'-5ms'"},
	{"delay=3601s", "3601s"},
	{"delay=1e400s", "'1e400s'"},
	{"weak=2s", "2s"},
	{"rate=1", "'1'"},
	{"rate=10bit", "10bit"},
	{"rate=9Tbit", "'9Tbit'"},
	{"rate=2000Gbit", "2000Gbit"},
	{"nak=rude", "'rude'"},
	{"nak", "nak"},
	{"status=SUCCESS", "'SUCCESS'"},
	{"status=OOPS", "'OOPS'"},
	{"status=", "''"},
	{"post=EWHATEVER", "'EWHATEVER'"},
	{"post=0", "0"},
	{"post=ENOMEM,opcode=ack", "opcode"},
	{"post=ENOMEM,opcode=RC SEND_ONLY", "'RC SEND_ONLY'"},
	{"post=ENOMEM,dir=recv,opcode=send", "opcode"},
	{"rnr,opcode=response", "opcode"},
	{"weak=1us,opcode=ack", "opcode"},
	{"corrupt,silent,opcode=ack", "opcode"},
	{"drop\n", "0x0a"},
	{"drop,device=0123456789012345678901234567890123456789012345678901234567890123", "device"},
};

START_TEST(refuses_nonsense)
{
	struct fault_rule r;
	char error[128] = "";

	ck_assert_int_eq(fault_parse(bad[_i].text, &r, error, sizeof(error)), -EINVAL);
	ck_assert_msg(strstr(error, bad[_i].word) != NULL, "'%s': %s", bad[_i].text, error);
	ck_assert_msg(strchr(error, '\n') == NULL, "'%s': %s", bad[_i].text, error);
}
END_TEST

/* A rule one character too long is refused, one that just fits is not. */
START_TEST(rules_have_a_greatest_length)
{
	struct fault_rule r;
	char text[VERNIC_FAULT_TEXT + 1], error[128];

	memset(text, ' ', sizeof(text));
	memcpy(text, "drop", 4);
	text[VERNIC_FAULT_TEXT] = '\0';
	ck_assert_int_eq(fault_parse(text, &r, error, sizeof(error)), -EINVAL);
	text[VERNIC_FAULT_TEXT - 1] = '\0';
	ck_assert_int_eq(fault_parse(text, &r, error, sizeof(error)), 0);
}
END_TEST

START_TEST(matches_the_subject)
{
	struct fault_subject s = packet(WIRE_SEND_ONLY, 100);

	ck_assert(strikes("drop", s));
	ck_assert(strikes("drop,device=vernic0,qp=33", s));
	ck_assert(!strikes("drop,qp=34", s));
	ck_assert(!strikes("drop,dir=rx", s));
	ck_assert(!strikes("drop,device=vernic1", s));
	s.dev = &device_b;
	ck_assert(strikes("drop,device=vernic1", s));
	s.dev = NULL;
	ck_assert(strikes("drop", s));
	ck_assert(!strikes("drop,device=vernic1", s));
	s.point = FAULT_RX;
	ck_assert(strikes("drop,dir=both", s));
	ck_assert(strikes("drop,dir=rx", s));
}
END_TEST

START_TEST(matches_psns)
{
	ck_assert(strikes("drop,psn=100", packet(WIRE_SEND_ONLY, 100)));
	ck_assert(!strikes("drop,psn=100", packet(WIRE_SEND_ONLY, 99)));
	ck_assert(!strikes("drop,psn=100", packet(WIRE_SEND_ONLY, 101)));
	ck_assert(strikes("drop,psn=100-102", packet(WIRE_SEND_ONLY, 102)));
	ck_assert(!strikes("drop,psn=100-102", packet(WIRE_SEND_ONLY, 103)));
	/* beyond the end and on from 0 */
	ck_assert(strikes("drop,psn=0xfffffe-1", packet(WIRE_SEND_ONLY, 0xffffff)));
	ck_assert(strikes("drop,psn=0xfffffe-1", packet(WIRE_SEND_ONLY, 1)));
	ck_assert(!strikes("drop,psn=0xfffffe-1", packet(WIRE_SEND_ONLY, 2)));
}
END_TEST

/* Which opcodes of RC each name stands for. */
START_TEST(matches_opcodes)
{
	static const struct {
		const char *name;
		uint32_t ops; /* bit per enum wire_op */
	} names[] = {
		{"send", 0xc0003f},
		{"write", 0x000fc0},
		{"read-request", 1 << WIRE_READ_REQUEST},
		{"read-response", 0xf << WIRE_READ_RESPONSE_FIRST},
		{"read", 1 << WIRE_READ_REQUEST | 0xf << WIRE_READ_RESPONSE_FIRST},
		{"ack", 1 << WIRE_ACKNOWLEDGE},
		{"atomic-ack", 1 << WIRE_ATOMIC_ACKNOWLEDGE},
		{"compare-swap", 1 << WIRE_COMPARE_SWAP},
		{"fetch-add", 1 << WIRE_FETCH_ADD},
		{"Atomic", 7 << WIRE_ATOMIC_ACKNOWLEDGE},
		{"flush", 1 << WIRE_FLUSH},
		{"atomic-write", 1 << WIRE_ATOMIC_WRITE},
		{"request", 0x30d81fff},
		{"response", 0x3f << WIRE_READ_RESPONSE_FIRST},
		{"any", 0x30dfffff},
		{"rc send_middle", 1 << WIRE_SEND_MIDDLE},
		{"RC-WRITE-LAST-IMM", 1 << WIRE_WRITE_LAST_IMM},
		{"send_only", 1 << WIRE_SEND_ONLY},
		{"UC SEND_ONLY", 0},
		{"send_first+ack", 1 << WIRE_SEND_FIRST | 1 << WIRE_ACKNOWLEDGE},
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char text[64];

		snprintf(text, sizeof(text), "drop,opcode=%s", names[i].name);
		for (unsigned int op = 0; op < 32; op++) {
			if (wire_opcodes[op].name != NULL)
				ck_assert_msg(strikes(text, packet(op, 0)) ==
						      (names[i].ops >> op & 1),
					      "%s: %s", text, wire_opcodes[op].name);
		}
	}
}
END_TEST

/* Work requests have kinds and no opcode; what only answers requests leaves answers alone. */
START_TEST(matches_kinds)
{
	struct fault_subject s = {
		.point = FAULT_SEND, .dev = &device_a, .qpn = 1, .opcode = -1, .kind = KIND_WRITE};

	ck_assert(strikes("status=LOC_PROT_ERR", s));
	ck_assert(strikes("status=LOC_PROT_ERR,opcode=write+read", s));
	ck_assert(!strikes("status=LOC_PROT_ERR,opcode=send", s));
	s.point = FAULT_CQE_SEND;
	ck_assert(strikes("cqe-delay=1ms,opcode=write", s));
	ck_assert(!strikes("cqe-delay=1ms,dir=recv", s));
	s = packet(WIRE_SEND_ONLY, 0);
	s.point = FAULT_RX;
	ck_assert(strikes("rnr", s));
	ck_assert(strikes("nak=remote-access,opcode=any", s));
	s.opcode = WIRE_ACKNOWLEDGE;
	ck_assert(!strikes("rnr", s));
	ck_assert(!strikes("nak=remote-access,opcode=any", s));
	ck_assert(!strikes("weak=1us", s));
}
END_TEST

/* Asks a rule n times. out: a digit for each */
static void sequence(const char *text, uint32_t worker, unsigned int n, char *out)
{
	struct fault_set *set = set_of(text, worker);
	unsigned int struck = 0;

	for (unsigned int i = 0; i < n; i++) {
		struct fault_subject s = packet(WIRE_SEND_ONLY, i);

		out[i] = fault_match(set, FAULT_PACKET_ACTIONS, &s) ? '1' : '0';
		struck += out[i] == '1';
	}
	out[n] = '\0';
	ck_assert_uint_eq(fault_set_rule(set, 0)->matched, n);
	ck_assert_uint_eq(fault_set_rule(set, 0)->struck, struck);
	fault_set_destroy(set);
}

START_TEST(counts)
{
	static const struct {
		const char *text;
		const char *struck;
	} cases[] = {
		{"drop", "1111111111"},
		{"drop,count=3", "1110000000"},
		{"drop,skip=2", "0011111111"},
		{"drop,skip=2,count=1", "0010000000"},
		{"drop,nth=3", "0010010010"},
		{"drop,nth=3,burst=2", "0011001100"},
		{"drop,skip=1,nth=3", "0001001001"},
		{"drop,skip=1,nth=3,count=2", "0001001000"},
		{"drop,skip=3,nth=2,burst=3,count=5", "0000111011"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char out[16];

		sequence(cases[i].text, 0, 10, out);
		ck_assert_msg(strcmp(out, cases[i].struck) == 0, "%s: %s", cases[i].text, out);
	}
}
END_TEST

/* The same seed strikes the same things; another one, and another worker, others. */
START_TEST(is_deterministic)
{
	char first[1001], second[1001];

	sequence("drop,probability=10%,seed=7", 0, 1000, first);
	sequence("drop,probability=10%,seed=7", 0, 1000, second);
	ck_assert_str_eq(first, second);
	sequence("drop,probability=10%,seed=8", 0, 1000, second);
	ck_assert_str_ne(first, second);
	sequence("drop,probability=10%,seed=7", 1, 1000, second);
	ck_assert_str_ne(first, second);
	sequence("drop,probability=10%", 0, 1000, first);
	sequence("drop,probability=10%", 0, 1000, second);
	ck_assert_str_eq(first, second);
}
END_TEST

/* Over many tries, and whatever the seed, a rule strikes as often as it says. */
START_TEST(strikes_as_often_as_it_says)
{
	static const struct {
		const char *text;
		double share;
	} cases[] = {
		{"probability=1%", .01},
		{"probability=10%", .1},
		{"probability=0.5", .5},
		{"probability=0.05,burst=3", 3 * .05 / (1 + 2 * .05)},
		{"nth=4,probability=0.5", .125},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		static char out[100001];
		unsigned int struck = 0;

		for (int seed = 1; seed <= 4; seed++) {
			char text[64];

			snprintf(text, sizeof(text), "drop,%s,seed=%d", cases[i].text, seed);
			sequence(text, 0, 100000, out);
			for (const char *s = out; *s != '\0'; s++)
				struck += *s == '1';
		}
		ck_assert_double_eq_tol(struck / 4e5, cases[i].share, cases[i].share / 20);
	}
}
END_TEST

/* The first rule that strikes acts; those of actions that were not asked for are not stepped. */
START_TEST(rules_are_asked_in_order)
{
	struct fault_set *set = fault_set_create(0);
	struct fault_subject s = packet(WIRE_SEND_ONLY, 0);
	static const char *const texts[] = {"rnr", "drop,count=1", "delay=1ms,count=1", "ecn"};

	for (uint32_t i = 0; i < 4; i++) {
		struct fault_rule r = parse(texts[i]);

		r.id = 10 + i;
		ck_assert_int_eq(fault_set_add(set, &r), 0);
	}
	ck_assert_uint_eq(fault_set_actions(set), FAULT_BIT(FAULT_RNR) | FAULT_BIT(FAULT_DROP) |
							  FAULT_BIT(FAULT_DELAY) |
							  FAULT_BIT(FAULT_ECN));
	ck_assert_ptr_null(fault_match(set, FAULT_BIT(FAULT_RATE), &s));
	ck_assert_uint_eq(fault_match(set, FAULT_PACKET_ACTIONS, &s)->id, 11);
	ck_assert_uint_eq(fault_match(set, FAULT_BIT(FAULT_ECN), &s)->id, 13);
	ck_assert_uint_eq(fault_match(set, FAULT_PACKET_ACTIONS, &s)->id, 12);
	ck_assert_uint_eq(fault_match(set, FAULT_PACKET_ACTIONS, &s)->id, 13);
	ck_assert_uint_eq(fault_set_rule(set, 0)->matched, 0);
	ck_assert_uint_eq(fault_set_rule(set, 1)->matched, 3);
	ck_assert_uint_eq(fault_set_rule(set, 3)->matched, 2);
	ck_assert(!fault_set_remove(set, 9));
	ck_assert(fault_set_remove(set, 12));
	ck_assert_uint_eq(fault_set_rule(set, 2)->id, 13);
	ck_assert_ptr_null(fault_set_rule(set, 3));
	ck_assert(!(fault_set_actions(set) & FAULT_BIT(FAULT_DELAY)));
	ck_assert(fault_set_remove(set, 0));
	ck_assert(!fault_set_remove(set, 0));
	ck_assert_uint_eq(fault_set_actions(set), 0);
	ck_assert_ptr_null(fault_set_rule(set, 0));
	fault_set_destroy(set);
}
END_TEST

START_TEST(sets_are_bounded)
{
	struct fault_set *set = fault_set_create(0);
	struct fault_rule r = parse("drop");

	for (uint32_t i = 0; i < VERNIC_MAX_FAULTS; i++) {
		r.id = i + 1;
		ck_assert_int_eq(fault_set_add(set, &r), 0);
	}
	ck_assert_int_eq(fault_set_add(set, &r), -ENOSPC);
	ck_assert(fault_set_remove(set, 7));
	ck_assert_int_eq(fault_set_add(set, &r), 0);
	fault_set_destroy(set);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fault");
	TCase *tc = tcase_create("fault");
	SRunner *r = srunner_create(s);
	int failed;

	tcase_add_loop_test(tc, reads_actions, 0, sizeof(good) / sizeof(good[0]));
	tcase_add_test(tc, reads_keys);
	tcase_add_loop_test(tc, refuses_nonsense, 0, sizeof(bad) / sizeof(bad[0]));
	tcase_add_test(tc, rules_have_a_greatest_length);
	tcase_add_test(tc, matches_the_subject);
	tcase_add_test(tc, matches_psns);
	tcase_add_test(tc, matches_opcodes);
	tcase_add_test(tc, matches_kinds);
	tcase_add_test(tc, counts);
	tcase_add_test(tc, is_deterministic);
	tcase_add_test(tc, strikes_as_often_as_it_says);
	tcase_add_test(tc, rules_are_asked_in_order);
	tcase_add_test(tc, sets_are_bounded);
	suite_add_tcase(s, tc);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
