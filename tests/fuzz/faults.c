// SPDX-License-Identifier: BSD-2-Clause
/*
 * Arbitrary text as a fault rule, then a rule that was taken against arbitrary packets. A text is
 * taken, or refused with a complaint of one line; a rule keeps to its limits and strikes only what
 * it matches, and no more often than it may.
 *
 * Input: the text, 0, then four bytes for each packet asked about.
 */
#include <errno.h>

#include "tap/fault.h"

#include "fuzz.h"

#define ERROR_LEN 80 /* bytes: too few for some complaints, which are then cut */

/* Asks a rule, alone in a set, about what the input says. */
static void ask(const struct fault_rule *rule, struct input *in)
{
	struct fault_set *set = fault_set_create(0);
	const struct fault_rule *in_set;
	struct device dev = {.name = "vernic0"};
	uint64_t struck = 0, asked = 0;

	CHECK(set && fault_set_add(set, rule) == 0);
	in_set = fault_set_rule(set, 0);
	CHECK(in_set && !fault_set_rule(set, 1));
	CHECK(fault_set_actions(set) == FAULT_BIT(rule->action));
	for (; in->left && asked < 1000; asked++) {
		uint32_t bits = (uint32_t)take(in, 4);
		struct fault_subject s = {
			.point = (enum fault_point)(1u << bits % 6),
			.dev = bits & 0x40 ? &dev : NULL,
			.qpn = bits >> 8 & 0xff,
			.opcode = bits & 0x80 ? (int)(bits >> 16 & 0xff) : -1,
			.kind = (uint8_t)(bits >> 16 & 15) % KIND_COUNT,
			.psn = bits >> 8 & PSN_MASK,
		};
		struct fault_rule *r = fault_match(set, FAULT_BIT(rule->action), &s);

		CHECK(!fault_match(set, ~FAULT_BIT(rule->action), &s));
		if (!r)
			continue;
		CHECK(r == in_set && r->points & s.point);
		CHECK(!r->qpn || r->qpn == s.qpn);
		CHECK(!r->device[0] || (s.dev && !strcmp(r->device, s.dev->name)));
		struck++;
	}
	CHECK(in_set->struck == struck && in_set->matched >= struck && in_set->matched <= asked);
	if (rule->chance.left != UINT32_MAX)
		CHECK(struck <= rule->chance.left);
	CHECK(fault_set_remove(set, 0) && fault_set_actions(set) == 0);
	fault_set_destroy(set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t len = strnlen((const char *)data, size);
	struct input in = {data + len, size - len};
	char error[ERROR_LEN + 1], *text = malloc(len + 1);
	struct fault_rule rule, again;
	int err;

	take(&in, 1);
	CHECK(text);
	memcpy(text, data, len);
	text[len] = '\0';
	memset(error, 1, sizeof(error));
	err = fault_parse(text, &rule, error, ERROR_LEN);
	CHECK(err == 0 || err == -EINVAL);
	CHECK(error[ERROR_LEN] == 1);
	if (err) {
		CHECK(memchr(error, '\0', ERROR_LEN) && error[0]);
		CHECK(!strchr(error, '\n') || strchr(text, '\n'));
		free(text);
		return 0;
	}
	CHECK((unsigned int)rule.action < FAULT_ACTION_COUNT && fault_action_name(rule.action));
	CHECK(memchr(rule.device, 0, sizeof(rule.device)) &&
	      memchr(rule.text, 0, sizeof(rule.text)));
	CHECK(rule.points != 0 && rule.qpn <= QPN_MASK);
	CHECK(rule.any_psn || (rule.psn_first <= PSN_MASK && rule.psn_last <= PSN_MASK));
	CHECK(rule.chance.state != 0 && rule.chance.probability <= UINT64_C(1) << 32);
	/* As it is listed it can be given again. */
	CHECK(fault_parse(rule.text, &again, error, ERROR_LEN) == 0);
	CHECK(again.action == rule.action && again.value == rule.value &&
	      again.points == rule.points && again.kinds == rule.kinds &&
	      again.chance.probability == rule.chance.probability);
	ask(&rule, &in);
	free(text);
	return 0;
}
