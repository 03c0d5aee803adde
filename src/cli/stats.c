// SPDX-License-Identifier: BSD-2-Clause
/* `vernic stats`: the counters of the running daemon's devices and QPs. */
#include "cli.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
	"Usage: vernic stats [--json] [--device NAME] [--qps] [--explain] [--socket PATH]\n"
	"\n"
	"Shows what the running daemon's devices have counted since it was started, a line for "
	"each\n"
	"counter:\n"
	"\n"
	"  vernic0/1 sent_pkts                        4000\n"
	"\n"
	"that is device and port, name, value. Names are those of Linux's soft-RoCE where it has "
	"one\n"
	"(see rdma-statistic(8)), else those of mlx5, else Vernic's own; the standard counters of "
	"a\n"
	"port come behind them. What a queue pair has counted stays in its device's sums when it "
	"is\n"
	"destroyed.\n"
	"\n"
	"Options:\n"
	"  --qps          show each queue pair too: a line that says what it is, and one for each\n"
	"                 counter that is not 0, both with 'qp' and its number behind the port\n"
	"  --device NAME  of this device only\n"
	"  --json         print JSON: the same names and values, zeros included\n"
	"  --explain      print each counter's name and what it counts instead\n"
	"  --socket PATH  the daemon's socket. Default: $VERNIC_SOCKET, else the first that "
	"answers\n"
	"                 of $XDG_RUNTIME_DIR/vernicd.sock and /run/vernic/vernicd.sock\n"
	"  --help         print this text\n"
	"\n"
	"Exit status: 0, or 1 with one line on stderr if no daemon answers or it has no such "
	"device,\n"
	"or 2 for wrong usage.\n"
	"\n"
	"Examples:\n"
	"  vernic stats | grep -v ' 0$'\n"
	"  vernic stats --qps | grep rnr\n";

int cli_stats(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"device", required_argument, NULL, 'd'},
		{"qps", no_argument, NULL, 'q'},
		{"explain", no_argument, NULL, 'e'},
		{"socket", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct vernic_request request = {.command = VERNIC_CMD_STATS};
	const char *socket = NULL;
	char found[CLI_SOCKET_MAX];
	int opt, fd, status;

	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		switch (opt) {
		case 'j':
			request.stats.json = 1;
			break;
		case 'd':
			if (optarg[0] == '\0' || strlen(optarg) >= sizeof(request.stats.device))
				return cli_fail("stats: there is no device '%s'", optarg);
			strcpy(request.stats.device, optarg);
			break;
		case 'q':
			request.stats.qps = 1;
			break;
		case 'e':
			request.stats.explain = 1;
			break;
		case 's':
			socket = optarg;
			break;
		case 'h':
			fputs(help, stdout);
			return CLI_OK;
		default:
			return cli_bad_option("stats", opt, argv);
		}
	}
	if (cli_no_word("stats", argv[optind]) != CLI_OK)
		return CLI_USAGE;
	if (cli_find_daemon(socket, false, found, &fd) != CLI_OK)
		return CLI_FAILED;
	status = cli_print_reply(fd, found, &request);
	close(fd);
	return status;
}
