// SPDX-License-Identifier: BSD-2-Clause
/* `vernic env`: what a shell must export so that its programs use the running daemon. */
#include "cli.h"

#include <getopt.h>
#include <stdio.h>
#include <unistd.h>

static const char help[] =
	"Usage: vernic env [--socket PATH]\n"
	"\n"
	"Prints, as shell commands, the environment in which programs use the running daemon:\n"
	"\n"
	"  eval \"$(vernic env)\"\n"
	"\n"
	"VERNIC_SOCKET names the daemon's socket; LD_PRELOAD puts Vernic's libibverbs.so.1, and\n"
	"libvernic-preload.so, which shows the devices in /sys, in front of what it holds "
	"already.\n"
	"(Where a library lies in a directory with a blank in its name, LD_LIBRARY_PATH is "
	"printed\n"
	"too.)\n"
	"\n"
	"Options:\n"
	"  --socket PATH  the daemon's socket. Default: $VERNIC_SOCKET, else the first that "
	"answers\n"
	"                 of $XDG_RUNTIME_DIR/vernicd.sock and /run/vernic/vernicd.sock\n"
	"  --help         print this text\n"
	"\n"
	"Exit status: 0, or 1 with one line on stderr if no daemon answers, or 2 for wrong "
	"usage.\n";

/* Prints `export NAME='VALUE'`, quoted so that any shell takes it as it is. */
static void print_export(const char *name, const char *value)
{
	printf("export %s='", name);
	for (; *value; value++) {
		if (*value == '\'')
			fputs("'\\''", stdout);
		else
			putchar(*value);
	}
	puts("'");
}

int cli_env(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	const char *socket = NULL;
	char found[CLI_SOCKET_MAX];
	struct cli_environment env;
	int opt, fd;

	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		switch (opt) {
		case 's':
			socket = optarg;
			break;
		case 'h':
			fputs(help, stdout);
			return CLI_OK;
		default:
			return cli_bad_option("env", opt, argv);
		}
	}
	if (cli_no_word("env", argv[optind]) != CLI_OK)
		return CLI_USAGE;
	if (cli_find_daemon(socket, false, found, &fd) != CLI_OK)
		return CLI_FAILED;
	close(fd);
	if (cli_environment(found, &env) != CLI_OK)
		return CLI_FAILED;
	print_export("VERNIC_SOCKET", env.socket);
	print_export("LD_PRELOAD", env.preload);
	if (env.library_path)
		print_export("LD_LIBRARY_PATH", env.library_path);
	cli_environment_free(&env);
	return CLI_OK;
}
