// SPDX-License-Identifier: BSD-2-Clause
/* `vernic status`: asks the daemon what it has and does. */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

/*
 * Asks for the status and prints the answer.
 * @fd: a connection that has shaken hands; path: of its socket, for messages
 * @return CLI_OK, or CLI_FAILED with a line printed
 */
static int print_status(int fd, const char *path, bool json)
{
	struct vernic_request request = {.command = VERNIC_CMD_STATUS};
	struct vernic_reply *reply;
	ssize_t size, n;
	int status = CLI_FAILED;

	request.status.json = json;
	if (send(fd, &request, sizeof(request), MSG_NOSIGNAL) < 0)
		return cli_fail("cannot ask the daemon at %s: %s", path, strerror(errno));
	/* MSG_TRUNC: the length of the message, whatever there is room for. */
	do {
		size = recv(fd, NULL, 0, MSG_PEEK | MSG_TRUNC);
	} while (size < 0 && errno == EINTR);
	if (size < 0)
		return cli_fail("no answer from the daemon at %s: %s", path, strerror(errno));
	if (size < (ssize_t)sizeof(*reply))
		return cli_fail("the daemon at %s closed the connection", path);
	reply = malloc((size_t)size);
	if (!reply)
		return cli_fail("out of memory");
	n = recv(fd, reply, (size_t)size, 0);
	if (n != size)
		cli_fail("no answer from the daemon at %s: %s", path, strerror(errno));
	else if (reply->status != 0)
		cli_fail("the daemon at %s refused: %s", path, strerror(reply->status));
	else if (reply->status_text.length != (size_t)size - sizeof(*reply))
		cli_fail("the daemon at %s sent a damaged answer", path);
	else if (fwrite(reply + 1, 1, reply->status_text.length, stdout) !=
			 reply->status_text.length ||
		 fflush(stdout) != 0)
		cli_fail("cannot write the answer: %s", strerror(errno));
	else
		status = CLI_OK;
	free(reply);
	return status;
}

int cli_status(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"socket", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
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
	if (optind < argc) {
		cli_fail("status: unexpected argument '%s' (see 'vernic status --help')",
			 argv[optind]);
		return CLI_USAGE;
	}
	if (cli_find_daemon(socket, false, found, &fd) != CLI_OK)
		return CLI_FAILED;
	status = print_status(fd, found, json);
	close(fd);
	return status;
}
