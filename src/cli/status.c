// SPDX-License-Identifier: BSD-2-Clause
/* `vernic status`: asks the daemon what it has and does. */
#include "cli.h"

#include <getopt.h>
#include <stdio.h>
#include <unistd.h>

#include <vernic/control.h>

static const char help[] =
	"Usage: vernic status [--json] [--socket PATH]\n"
	"\n"
	"Shows what the running daemon has and does: version and process id, each worker with its\n"
	"I/O engine and counters, each device with its GIDs and sockets, each client with its "
	"process\n"
	"id, the way its memory is reached, and the number of objects it has made.\n"
	"\n"
	"Options:\n"
	"  --json         print JSON\n"
	"  --socket PATH  the daemon's socket. Default: $VERNIC_SOCKET, else the first that "
	"answers\n"
	"                 of $XDG_RUNTIME_DIR/vernicd.sock and /run/vernic/vernicd.sock\n"
	"  --help         print this text\n"
	"\n"
	"Exit status: 0, or 1 with one line on stderr if no daemon answers, or 2 for wrong "
	"usage.\n";

int cli_status(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"socket", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct vernic_request request = {.command = VERNIC_CMD_STATUS};
	const char *socket = NULL;
	char found[CLI_SOCKET_MAX];
	bool json = false;
	int opt, fd, status;

	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		switch (opt) {
		case 'j':
			json = true;
			break;
		case 's':
			socket = optarg;
			break;
		case 'h':
			fputs(help, stdout);
			return CLI_OK;
		default:
			return cli_bad_option("status", opt, argv);
		}
	}
	if (cli_no_word("status", argv[optind]) != CLI_OK)
		return CLI_USAGE;
	if (cli_find_daemon(socket, false, found, &fd) != CLI_OK)
		return CLI_FAILED;
	request.status.json = json;
	status = cli_print_reply(fd, found, &request);
	close(fd);
	return status;
}
