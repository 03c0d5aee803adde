// SPDX-License-Identifier: BSD-2-Clause
/* `vernic`: runs programs on an emulated RDMA NIC; see docs/vernic.1.md. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

#include "vernic_config.h"

static const char help[] =
	"Usage: vernic run [OPTION...] -- COMMAND [ARGUMENT...]\n"
	"       vernic env [--socket PATH]\n"
	"       vernic status [--json] [--socket PATH]\n"
	"       vernic stats [--json] [--device NAME] [--qps] [--explain] [--socket PATH]\n"
	"       vernic capture -w FILE [OPTION...]\n"
	"       vernic fault add RULE... | list [--json] | clear [ID...] [--socket PATH]\n"
	"       vernic port down|up NAME [--socket PATH]\n"
	"       vernic device add [KEY=VALUE,...] | remove|fatal NAME [--socket PATH]\n"
	"       vernic gid add|remove NAME ADDRESS [--socket PATH]\n"
	"       vernic --version | --help\n"
	"\n"
	"Runs RDMA programs on Vernic, an RDMA NIC in software: no kernel module, no hardware and\n"
	"no privilege are needed. A daemon, vernicd, is the NIC; a library that takes the place "
	"of\n"
	"libibverbs.so.1 is how programs reach it.\n"
	"\n"
	"Commands:\n"
	"  run     run a command on the NIC, with a daemon of its own if none is running\n"
	"  env     print what a shell must export to use the running daemon\n"
	"  status  show the devices, workers and clients of the running daemon\n"
	"  stats   show the counters of its devices and queue pairs\n"
	"  capture write the packets of the running daemon to a file for Wireshark\n"
	"  fault   have the running daemon lose packets, fail work requests, and so on\n"
	"  port    take a port down, and up again\n"
	"  device  add, remove or break a device\n"
	"  gid     add or remove an address of a device\n"
	"\n"
	"'vernic COMMAND --help' explains each.\n"
	"\n"
	"Environment:\n"
	"  VERNIC_SOCKET   socket of the daemon to use\n"
	"  VERNIC_DAEMON   the vernicd to start, instead of the one that belongs to this program\n"
	"  VERNIC_LIBDIR   directory of the libraries to load, likewise\n"
	"  VERNIC_FAULTS   fault rules for run, parted by ';'\n"
	"\n"
	"Examples:\n"
	"  vernic run -- ibv_devinfo -v\n"
	"  vernic run -- sh -c 'ib_write_bw & sleep 1; ib_write_bw localhost'\n"
	"  eval \"$(vernic env)\"\n";

/* One subcommand. */
struct subcommand {
	const char *name;
	int (*main)(int argc, char **argv);
};

static const struct subcommand subcommands[] = {
	{"run", cli_run},
	{"env", cli_env},
	{"status", cli_status},
	{"stats", cli_stats},
	{"capture", cli_capture},
	{"fault", cli_fault},
	{"port", cli_port},
	{"device", cli_device},
	{"gid", cli_gid},
};

int main(int argc, char **argv)
{
	if (argc < 2) {
		fputs("vernic: no command given (see 'vernic --help')\n", stderr);
		return CLI_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		fputs(help, stdout);
		return CLI_OK;
	}
	if (strcmp(argv[1], "--version") == 0) {
		puts("vernic " VERNIC_VERSION);
		return CLI_OK;
	}
	for (unsigned int i = 0; i < sizeof(subcommands) / sizeof(subcommands[0]); i++)
		if (strcmp(argv[1], subcommands[i].name) == 0)
			return subcommands[i].main(argc - 1, argv + 1);
	fprintf(stderr, "vernic: unknown command '%s' (see 'vernic --help')\n", argv[1]);
	return CLI_USAGE;
}
