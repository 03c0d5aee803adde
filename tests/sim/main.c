/* SPDX-License-Identifier: BSD-2-Clause */
/* The simulator's command line: runs seeds and counts those that pass. */
#include "sim.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mutations.h"

static const char usage[] =
	"usage: sim [--seeds FROM-TO | --seed N] [--trace] [--mutate NAME|all|list]\n"
	"           [--type rc|uc|ud|xrc|mixed] [--gentle] [--ops N]\n"
	"           [--loss P] [--dup P] [--reorder P] [--corrupt P] [--within MS]\n"
	"\n"
	"Runs transport engines over links that do harm, in virtual time, once for each seed, and\n"
	"checks completions, data, order, and what the engines send. --trace prints everything "
	"that\n"
	"happens. A run that fails names the command that repeats it.\n"
	"\n"
	"--mutate NAME breaks the transport on purpose, and passes if one of the seeds notices; "
	"all:\n"
	"each mutation in turn. --gentle leaves out errors on purpose and changes of state. P is "
	"a\n"
	"probability for each packet; what is not said, the seed decides. --within: of virtual\n"
	"time, which the last completion of a seed may take on average.\n";

enum mutation sim_mutation;

static const struct {
	const char *name, *what;
} mutations[] = {{"none", "nothing"},
#define M(name, what) {#name, what},
		 MUTATIONS(M)
#undef M
};
#define MUTATION_COUNT (sizeof(mutations) / sizeof(mutations[0]))

/* The command that repeats what runs just now, for messages and the crash handler. */
static char command[240];
/* Its options, without the seed. */
static char knobs[160];

/* Says which seed crashed, then lets the signal do its work. */
static void crashed(int sig)
{
	static const char text[] = "sim: crashed; to see it again: ";
	ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);

	n += write(STDERR_FILENO, command, strlen(command));
	n += write(STDERR_FILENO, "\n", 1);
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

static int service(const char *text)
{
	if (strcmp(text, "rc") == 0)
		return IBV_QPT_RC;
	if (strcmp(text, "uc") == 0)
		return IBV_QPT_UC;
	if (strcmp(text, "ud") == 0)
		return IBV_QPT_UD;
	if (strcmp(text, "xrc") == 0)
		return IBV_QPT_XRC_SEND;
	if (strcmp(text, "mixed") == 0)
		return -1;
	fprintf(stderr, "sim: --type wants rc, uc, ud, xrc or mixed, not '%s'\n", text);
	exit(2);
}

/* @return the number of the mutation called so, or exits with a message */
static size_t mutation_called(const char *name)
{
	for (size_t i = 1; i < MUTATION_COUNT; i++)
		if (strcmp(mutations[i].name, name) == 0)
			return i;
	fprintf(stderr, "sim: no mutation '%s'; --mutate list\n", name);
	exit(2);
}

/* Keeps an option for the command that repeats a run. */
static void keep(const char *name, const char *value)
{
	size_t used = strlen(knobs);

	snprintf(knobs + used, sizeof(knobs) - used, " --%s%s%s", name, value ? " " : "",
		 value ? value : "");
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
		{"forged", totals.forged},
		{"local trains", totals.local_trains},
		{"retransmitted packets", c->retransmits},
		{"duplicates received", c->duplicates},
		{"received out of sequence", c->out_of_sequence},
		{"timeouts", c->timeouts},
		{"sequence NAKs", c->seq_nak_received},
		{"RNR NAKs", c->rnr_nak_received},
		{"ms of virtual time until the last CQE", totals.time / MS},
		{"QPs connected", totals.connections},
		{"reset", totals.resets},
		{"destroyed", totals.destroyed},
		{"moved to ERR", totals.errors},
		{"drained", totals.drains},
		{"MRs deregistered", totals.deregistered},
		{"SRQ limit events", totals.limit_events},
		{"CQEs", c->completions},
		{"successful", totals.status[IBV_WC_SUCCESS]},
		{"local length", totals.status[IBV_WC_LOC_LEN_ERR]},
		{"local QP operation", totals.status[IBV_WC_LOC_QP_OP_ERR]},
		{"local protection", totals.status[IBV_WC_LOC_PROT_ERR]},
		{"flushed", totals.status[IBV_WC_WR_FLUSH_ERR]},
		{"local access", totals.status[IBV_WC_LOC_ACCESS_ERR]},
		{"remote invalid request", totals.status[IBV_WC_REM_INV_REQ_ERR]},
		{"remote access", totals.status[IBV_WC_REM_ACCESS_ERR]},
		{"remote operation", totals.status[IBV_WC_REM_OP_ERR]},
		{"retries exceeded", totals.status[IBV_WC_RETRY_EXC_ERR]},
		{"RNR retries exceeded", totals.status[IBV_WC_RNR_RETRY_EXC_ERR]},
	};

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		printf("%10llu %s\n", (unsigned long long)lines[i].value, lines[i].name);
}

/* Runs one seed. @return whether it passed; else command and reason are filled in */
static bool run(uint64_t seed, const struct options *opt, char *reason, size_t reason_len)
{
	snprintf(command, sizeof(command), "sim%s --seed %llu --trace", knobs,
		 (unsigned long long)seed);
	return program_run(seed, opt, reason, reason_len);
}

/* @return the service whose name a mutation's begins with, or -1 */
static int mutation_service(const char *name)
{
	return strncmp(name, "xrc_", 4) == 0  ? IBV_QPT_XRC_SEND
	       : strncmp(name, "uc_", 3) == 0 ? IBV_QPT_UC
	       : strncmp(name, "ud_", 3) == 0 ? IBV_QPT_UD
					      : -1;
}

/*
 * Runs seeds with a mutation until one fails. What is of one service has worlds of that alone, where
 * nothing else is said: few mixed ones have much of it.
 * @return whether one did
 */
static bool run_mutated(size_t mutation, uint64_t from, uint64_t to, const struct options *opt)
{
	struct options own = *opt;
	char reason[240];

	if (own.type < 0)
		own.type = mutation_service(mutations[mutation].name);
	sim_mutation = (enum mutation)mutation;
	for (uint64_t seed = from; seed <= to; seed++) {
		if (run(seed, &own, reason, sizeof(reason)))
			continue;
		printf("ok %s: seed %llu: %s\n", mutations[mutation].name, (unsigned long long)seed,
		       reason);
		return true;
	}
	printf("not ok %s: nobody noticed\n", mutations[mutation].name);
	return false;
}

/* Runs seeds. @within: ms of virtual time each may take on average; 0: any. @return failures */
static uint64_t run_seeds(uint64_t from, uint64_t to, const struct options *opt, uint64_t within)
{
	uint64_t failed = 0;
	char reason[240];

	for (uint64_t seed = from; seed <= to; seed++) {
		if (run(seed, opt, reason, sizeof(reason)))
			continue;
		failed++;
		printf("seed %llu failed: %s\n    to see it again: %s\n", (unsigned long long)seed,
		       reason, command);
	}
	print_totals();
	/* 1 in 65,536 may get past; see packet_check(). */
	if (totals.icrc_missed > 10 + totals.corrupted / 16000) {
		puts("the ICRC check let too many corrupted packets through");
		failed++;
	}
	if (within && totals.time / MS / (to - from + 1) >= within) {
		puts("it took too long in virtual time");
		failed++;
	}
	printf("%llu seeds, %llu failed\n", (unsigned long long)(to - from + 1),
	       (unsigned long long)failed);
	return failed;
}

int main(int argc, char **argv)
{
	static const struct option longopts[] = {
		{"seeds", required_argument, NULL, 's'},
		{"seed", required_argument, NULL, 'n'},
		{"type", required_argument, NULL, 'y'},
		{"gentle", no_argument, NULL, 'g'},
		{"trace", no_argument, NULL, 't'},
		{"mutate", required_argument, NULL, 'm'},
		{"loss", required_argument, NULL, 'l'},
		{"dup", required_argument, NULL, 'd'},
		{"reorder", required_argument, NULL, 'r'},
		{"corrupt", required_argument, NULL, 'c'},
		{"ops", required_argument, NULL, 'o'},
		{"within", required_argument, NULL, 'w'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct options opt = {.type = -1, .loss = -1, .dup = -1, .reorder = -1, .corrupt = -1};
	uint64_t from = 1, to = 200, failed = 0, within = 0;
	size_t first = 0, last = 0;
	int c, which;

	while ((c = getopt_long(argc, argv, "", longopts, &which)) != -1) {
		const char *text = optarg;

		if (c != 's' && c != 'n' && c != 't' && c != 'm' && c != 'h' && c != '?')
			keep(longopts[which].name, optarg);
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
		case 'g':
			opt.gentle = true;
			break;
		case 't':
			opt.trace = true;
			break;
		case 'm':
			if (strcmp(optarg, "list") == 0) {
				for (size_t i = 1; i < MUTATION_COUNT; i++)
					printf("%-26s %s\n", mutations[i].name, mutations[i].what);
				return 0;
			}
			first = strcmp(optarg, "all") == 0 ? 1 : mutation_called(optarg);
			last = strcmp(optarg, "all") == 0 ? MUTATION_COUNT - 1 : first;
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
			if (opt.ops == 0 || opt.ops > 2000) {
				fputs("sim: --ops wants 1 to 2000\n", stderr);
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
	if (first == 0)
		failed = run_seeds(from, to, &opt, within);
	for (size_t i = first; i != 0 && i <= last; i++)
		failed += !run_mutated(i, from, to, &opt);
	world_free_all();
	return failed != 0;
}
