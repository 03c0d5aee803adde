/* SPDX-License-Identifier: BSD-2-Clause */
/* The simulator's command line: runs seeds and counts those that pass. */
#include "sim.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
	"usage: sim [--type rc|uc|ud] [--seeds FROM-TO] [--seed N] [--trace]\n"
	"           [--loss P] [--dup P] [--reorder P] [--corrupt P] [--ops N] [--within MS]\n"
	"\n"
	"Runs two transport engines over a channel that does harm, in virtual time, once for each\n"
	"seed, and checks data, order and completions. P is a probability for each packet, 0.05\n"
	"unless said. --within: of virtual time, which the last completion of a seed may take on\n"
	"average. --trace prints every packet of the seed.\n";

/* What runs just now, for the crash handler. */
static char running[96];

/* Says which seed crashed, then lets the signal do its work. */
static void crashed(int sig)
{
	static const char text[] = "sim: crashed in ";
	ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);

	n += write(STDERR_FILENO, running, strlen(running));
	(void)n;
	signal(sig, SIG_DFL);
	raise(sig);
}

/* Parses a probability. @return it, or exits with a message */
static double probability(const char *name, const char *text)
{
	char *end;
	double p = strtod(text, &end);

	if (end == text || *end || !(p >= 0 && p <= 1)) {
		fprintf(stderr, "sim: --%s wants a number from 0 to 1, not '%s'\n", name, text);
		exit(2);
	}
	return p;
}

/* Parses a whole number and moves past it. @return it, or exits with a message */
static uint64_t number(const char *name, const char **text)
{
	char *end;
	uint64_t n = strtoull(*text, &end, 10);

	if (end == *text || **text == '-') {
		fprintf(stderr, "sim: --%s wants a number, not '%s'\n", name, *text);
		exit(2);
	}
	*text = end;
	return n;
}

/* As number(), of a whole argument. */
static uint64_t whole_number(const char *name, const char *text)
{
	const char *end = text;
	uint64_t n = number(name, &end);

	if (*end) {
		fprintf(stderr, "sim: --%s wants a number, not '%s'\n", name, text);
		exit(2);
	}
	return n;
}

static enum ibv_qp_type service(const char *text)
{
	if (strcmp(text, "rc") == 0)
		return IBV_QPT_RC;
	if (strcmp(text, "uc") == 0)
		return IBV_QPT_UC;
	if (strcmp(text, "ud") == 0)
		return IBV_QPT_UD;
	fprintf(stderr, "sim: --type wants rc, uc or ud, not '%s'\n", text);
	exit(2);
}

/* Says how much happened, so that a run that tests nothing shows. */
static void print_totals(void)
{
	const struct engine_counters *c = &totals.engine;
	const struct {
		const char *name;
		uint64_t value;
	} lines[] = {
		{"packets", totals.packets},
		{"of them corrupted", totals.corrupted},
		{"of them past the ICRC check", totals.icrc_missed},
		{"CQEs", c->completions},
		{"retransmitted packets", c->retransmits},
		{"duplicates received", c->duplicates},
		{"received out of sequence", c->out_of_sequence},
		{"timeouts", c->timeouts},
		{"sequence NAKs", c->seq_nak_received},
		{"RNR NAKs", c->rnr_nak_received},
		{"ms of virtual time until the last CQE", totals.time / MS},
	};

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		printf("%10llu %s\n", (unsigned long long)lines[i].value, lines[i].name);
}

int main(int argc, char **argv)
{
	static const struct option longopts[] = {
		{"seeds", required_argument, NULL, 's'},
		{"seed", required_argument, NULL, 'n'},
		{"type", required_argument, NULL, 'y'},
		{"trace", no_argument, NULL, 't'},
		{"loss", required_argument, NULL, 'l'},
		{"dup", required_argument, NULL, 'd'},
		{"reorder", required_argument, NULL, 'r'},
		{"corrupt", required_argument, NULL, 'c'},
		{"ops", required_argument, NULL, 'o'},
		{"within", required_argument, NULL, 'w'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct options opt = {
		.type = IBV_QPT_RC,
		.loss = 0.05,
		.dup = 0.05,
		.reorder = 0.05,
		.corrupt = 0.05,
		.ops = 50,
	};
	static const char *const names[] = {
		[IBV_QPT_RC] = "rc", [IBV_QPT_UC] = "uc", [IBV_QPT_UD] = "ud"};
	uint64_t from = 1, to = 2000, passed = 0, failed = 0, within = 0;
	char reason[200];
	int c;

	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1) {
		const char *text = optarg;

		switch (c) {
		case 's':
			from = number("seeds", &text);
			if (*text++ != '-') {
				fprintf(stderr, "sim: --seeds wants FROM-TO, not '%s'\n", optarg);
				return 2;
			}
			to = whole_number("seeds", text);
			break;
		case 'n':
			from = to = whole_number("seed", optarg);
			break;
		case 'y':
			opt.type = service(optarg);
			break;
		case 't':
			opt.trace = true;
			break;
		case 'l':
			opt.loss = probability("loss", optarg);
			break;
		case 'd':
			opt.dup = probability("dup", optarg);
			break;
		case 'r':
			opt.reorder = probability("reorder", optarg);
			break;
		case 'c':
			opt.corrupt = probability("corrupt", optarg);
			break;
		case 'o':
			opt.ops = (uint32_t)whole_number("ops", optarg);
			if (opt.ops == 0 || opt.ops > 100000) {
				fputs("sim: --ops wants 1 to 100000\n", stderr);
				return 2;
			}
			break;
		case 'w':
			within = whole_number("within", optarg);
			break;
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			fputs(usage, stderr);
			return 2;
		}
	}
	if (optind < argc || to < from) {
		fputs(usage, stderr);
		return 2;
	}

	signal(SIGSEGV, crashed);
	signal(SIGABRT, crashed);
	for (uint64_t seed = from; seed <= to; seed++) {
		snprintf(running, sizeof(running), "--type %s --seed %llu\n", names[opt.type],
			 (unsigned long long)seed);
		if (program_run(seed, &opt, reason, sizeof(reason))) {
			passed++;
			continue;
		}
		failed++;
		printf("%s seed %llu failed: %s\n", names[opt.type], (unsigned long long)seed,
		       reason);
	}
	world_free_all();
	print_totals();
	/* 1 in 8,192 may get past; see packet_check(). */
	if (totals.icrc_missed > 10 + totals.corrupted / 2000) {
		puts("the ICRC check let too many corrupted packets through");
		failed++;
	}
	if (within && totals.time / MS / (to - from + 1) >= within) {
		puts("it took too long in virtual time");
		failed++;
	}
	printf("%llu passed, %llu failed\n", (unsigned long long)passed,
	       (unsigned long long)failed);
	return failed != 0;
}
