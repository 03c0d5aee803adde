// SPDX-License-Identifier: BSD-2-Clause
/* `vernic port`, `vernic device` and `vernic gid`: what happens to adapters in a machine room. */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <vernic/control.h>

#define HELP_SOCKET                                                                              \
	"\n"                                                                                     \
	"Options:\n"                                                                             \
	"  --socket PATH  the daemon's socket. Default: $VERNIC_SOCKET, else the first that "    \
	"answers\n"                                                                              \
	"                 of $XDG_RUNTIME_DIR/vernicd.sock and /run/vernic/vernicd.sock\n"       \
	"  --help         print this text\n"                                                     \
	"\n"                                                                                     \
	"Exit status: 0, or 1 with one line on stderr if there is no such device, it could not " \
	"be\n"                                                                                   \
	"done, or no daemon answers, or 2 for wrong usage.\n"

static const char help_port[] =
	"Usage: vernic port down|up NAME [--socket PATH]\n"
	"\n"
	"Takes the port of a device down, or up again, as if its cable was pulled. While it is "
	"down\n"
	"nothing is sent and nothing received, not even between programs on the same device; "
	"queue\n"
	"pairs try again, and fail when their timeouts and retries are used up. Programs are told\n"
	"(IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE) and see the state in "
	"ibv_query_port().\n" HELP_SOCKET;

static const char help_device[] =
	"Usage: vernic device add [KEY=VALUE[,KEY=VALUE...]] [--socket PATH]\n"
	"       vernic device remove|fatal NAME [--socket PATH]\n"
	"\n"
	"Commands:\n"
	"  add      gives the running daemon one more device; the keys are those of vernicd's\n"
	"           --device\n"
	"  fatal    the device fails: programs that have it open are told "
	"(IBV_EVENT_DEVICE_FATAL),\n"
	"           their queue pairs go to the error state, and all they ask of it fails with "
	"EIO,\n"
	"           but destroying things. It stays failed until it is removed\n"
	"  remove   the same, as if the adapter was pulled out: it is not listed any more, and "
	"its\n"
	"           addresses and its name can be given to another device\n" HELP_SOCKET;

static const char help_gid[] =
	"Usage: vernic gid add|remove NAME ADDRESS [--socket PATH]\n"
	"\n"
	"Adds an address to the GID table of a device, in the first place that is empty, or "
	"removes\n"
	"it. Programs are told (IBV_EVENT_GID_CHANGE). An address of a device that is on the "
	"network\n"
	"must be one of this host's; of a private device any will do. Queue pairs that use an "
	"address\n"
	"which is removed can send no more.\n" HELP_SOCKET;

/* What a word behind a subcommand asks for. */
struct admin_verb {
	const char *subcommand;
	const char *verb;
	enum vernic_device_action action; /* 0: add a device */
	bool address;			  /* takes one behind the name */
};

static const struct admin_verb verbs[] = {
	{"port", "down", VERNIC_DEVICE_PORT_DOWN, false},
	{"port", "up", VERNIC_DEVICE_PORT_UP, false},
	{"device", "add", 0, false},
	{"device", "remove", VERNIC_DEVICE_REMOVE, false},
	{"device", "fatal", VERNIC_DEVICE_FATAL, false},
	{"gid", "add", VERNIC_DEVICE_GID_ADD, true},
	{"gid", "remove", VERNIC_DEVICE_GID_REMOVE, true},
};

/* @return the verb of a subcommand, or NULL with a complaint made */
static const struct admin_verb *find_verb(const char *subcommand, const char *word)
{
	for (unsigned int i = 0; word && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		if (strcmp(verbs[i].subcommand, subcommand) == 0 &&
		    strcmp(verbs[i].verb, word) == 0)
			return &verbs[i];
	}
	if (!word)
		cli_fail("%s: what to do is missing (see 'vernic %s --help')", subcommand,
			 subcommand);
	else
		cli_fail("%s: '%s' is no command of it (see 'vernic %s --help')", subcommand, word,
			 subcommand);
	return NULL;
}

/* Copies a word into a request. @return CLI_OK, or CLI_USAGE with a complaint made */
static int copy_word(const struct admin_verb *v, const char *what, const char *word, char *to,
		     size_t size)
{
	if (!word)
		cli_fail("%s %s: the %s is missing (see 'vernic %s --help')", v->subcommand,
			 v->verb, what, v->subcommand);
	else if (strlen(word) >= size)
		cli_fail("%s %s: the %s is longer than %zu characters", v->subcommand, v->verb,
			 what, size - 1);
	else {
		strcpy(to, word);
		return CLI_OK;
	}
	return CLI_USAGE;
}

/* Makes the request of the words behind a verb. @return CLI_OK or CLI_USAGE */
static int make_request(const struct admin_verb *v, char **words, struct vernic_request *request)
{
	int status = CLI_OK;

	*request = (struct vernic_request){.command = VERNIC_CMD_DEVICE_ADMIN};
	if (v->action == 0) {
		request->command = VERNIC_CMD_DEVICE_ADD;
		if (words[0])
			status = copy_word(v, "description", *words++, request->device_add.spec,
					   sizeof(request->device_add.spec));
	} else {
		request->device_admin.action = v->action;
		status = copy_word(v, "name of the device", words[0], request->device_admin.device,
				   sizeof(request->device_admin.device));
		words += status == CLI_OK;
	}
	if (status == CLI_OK && v->address) {
		status = copy_word(v, "address", words[0], request->device_admin.address,
				   sizeof(request->device_admin.address));
		words += status == CLI_OK;
	}
	return status != CLI_OK ? status : cli_no_word(v->subcommand, *words);
}

/* Asks the daemon. @return CLI_OK, or CLI_FAILED with a line printed */
static int ask(int fd, const char *path, const struct vernic_request *request,
	       const struct admin_verb *v)
{
	struct cli_answer answer;

	if (cli_ask(fd, path, request, &answer) != CLI_OK)
		return CLI_FAILED;
	if (answer.reply.status == 0)
		return CLI_OK;
	if (answer.text[0])
		return cli_fail("%s %s: %s", v->subcommand, v->verb, answer.text);
	if (answer.reply.status == ENODEV)
		return cli_fail("%s %s: the daemon at %s has no device %s", v->subcommand, v->verb,
				path, request->device_admin.device);
	return cli_fail("%s %s: the daemon at %s refused: %s", v->subcommand, v->verb, path,
			strerror(answer.reply.status));
}

/* The three subcommands. @return the exit status */
static int admin(int argc, char **argv, const char *help)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	const char *subcommand = argv[0], *socket = NULL;
	const struct admin_verb *v;
	struct vernic_request request;
	char found[CLI_SOCKET_MAX];
	int opt, fd, status;

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
			return cli_bad_option(subcommand, opt, argv);
		}
	}
	v = find_verb(subcommand, argv[optind]);
	if (!v || make_request(v, argv + optind + 1, &request) != CLI_OK)
		return CLI_USAGE;
	if (cli_find_daemon(socket, false, found, &fd) != CLI_OK)
		return CLI_FAILED;
	status = ask(fd, found, &request, v);
	close(fd);
	return status;
}

int cli_port(int argc, char **argv)
{
	return admin(argc, argv, help_port);
}

int cli_device(int argc, char **argv)
{
	return admin(argc, argv, help_device);
}

int cli_gid(int argc, char **argv)
{
	return admin(argc, argv, help_gid);
}
