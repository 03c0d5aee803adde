// SPDX-License-Identifier: BSD-2-Clause
/* `vernic fault`: tells the daemon what shall go wrong. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vernic/control.h>

static const char help[] =
	"Usage: vernic fault add RULE... [--socket PATH]\n"
	"       vernic fault list [--json] [--socket PATH]\n"
	"       vernic fault clear [ID...] [--socket PATH]\n"
	"\n"
	"Has the running daemon do what networks, adapters and peers do when they fail, to the\n"
	"packets and work requests a rule names, and as often as it says. The same seed and the\n"
	"same traffic give the same faults.\n"
	"\n"
	"Commands:\n"
	"  add      add rules behind those there are, and print the ID of each. If one is wrong\n"
	"           none is added\n"
	"  list     show the rules, what each has matched, and what it has struck\n"
	"  clear    remove the rules with these IDs, or all\n"
	"\n"
	"A rule is ACTION[=VALUE][,KEY=VALUE]... Rules are asked in the order they were added; "
	"the\n"
	"first that strikes acts, and no other. TIME is a number with ns, us, ms or s.\n"
	"\n"
	"Actions on packets (dir=tx where they leave, the default, dir=rx where they arrive, or\n"
	"dir=both):\n"
	"  drop                 lose it\n"
	"  duplicate[=N]        send N copies more, 1 to 16. Default: 1\n"
	"  reorder=N            let N later packets of its QP go first, 1 to 255; if they do not\n"
	"                       come, it goes after 10 ms\n"
	"  delay=TIME           let it go that much later, and what its QP sends behind it too; "
	"with\n"
	"                       jitter=TIME up to so much later still, and out of order\n"
	"  rate=BITS            let packets go at that many bits a second: 64kbit, 100Mbit, "
	"1Gbit.\n"
	"                       What would wait for more than 100 ms is lost\n"
	"  corrupt[=PART]       flip a bit of its payload (the default), header, or icrc. The\n"
	"                       receiver drops it for its ICRC; with the key silent the ICRC is\n"
	"                       right, and the receiver takes what it gets\n"
	"  ecn                  mark it as having met congestion\n"
	"\n"
	"Actions on requests that arrive (dir=rx):\n"
	"  rnr                  answer \"receiver not ready\", and do not carry it out\n"
	"  nak=CODE             answer with a NAK: sequence, invalid-request, remote-access or\n"
	"                       remote-operation\n"
	"  weak=TIME            place the end of its payload that much before the beginning\n"
	"\n"
	"Actions on work requests (dir=send, the default, dir=recv, or dir=both):\n"
	"  status=STATUS        it fails with that of enum ibv_wc_status: LOC_PROT_ERR, ...\n"
	"  post=ERRNO           posting it fails: ENOMEM, EINVAL, ... or a number\n"
	"\n"
	"Actions on completions (dir=both, the default, dir=send, or dir=recv):\n"
	"  cqe-delay=TIME       it, and its QP's later ones, appear that much later; jitter=TIME\n"
	"  cqe-arm              it appears between the poll that found nothing and arming the CQ\n"
	"  cqe-rubbish          with an error: fields that mean nothing then have any value\n"
	"\n"
	"Keys that say what is meant; all that are given must fit:\n"
	"  device=NAME          the device\n"
	"  qp=N                 the number of the QP at this side, decimal or 0x...\n"
	"  opcode=NAME[+NAME]   send, write, read-request, read-response, ack (NAKs too),\n"
	"                       atomic-ack, compare-swap, fetch-add; the groups read, atomic,\n"
	"                       request, response, any; or what one packet is, as in 'RC "
	"WRITE_LAST'\n"
	"                       or, of any service, write_last\n"
	"  psn=A[-B]            the packet's PSN\n"
	"\n"
	"Keys that say how often, of what fits, in this order:\n"
	"  skip=N               not the first N\n"
	"  nth=N                every Nth behind those\n"
	"  probability=P        of those with this chance: 0.1 or 10%\n"
	"  burst=N              when one is struck the following ones too, N in a row\n"
	"  count=N              N in all\n"
	"  seed=N               begins the sequence of chances. Default: 1 + the rule's ID\n"
	"\n"
	"Options:\n"
	"  --json         print JSON\n"
	"  --socket PATH  the daemon's socket. Default: $VERNIC_SOCKET, else the first that "
	"answers\n"
	"                 of $XDG_RUNTIME_DIR/vernicd.sock and /run/vernic/vernicd.sock\n"
	"  --help         print this text\n"
	"\n"
	"Each thread of the daemon (--workers) counts for itself, and draws its own chances.\n"
	"\n"
	"Exit status: 0, or 1 with one line on stderr if a rule is wrong, there is no rule of "
	"that\n"
	"ID, or no daemon answers, or 2 for wrong usage.\n"
	"\n"
	"Examples:\n"
	"  vernic fault add drop,probability=1%,seed=7\n"
	"  vernic fault add 'delay=20ms,device=vernic0' 'drop,opcode=ack,nth=10'\n"
	"  vernic fault add status=RETRY_EXC_ERR,opcode=write,skip=100,count=1\n"
	"  vernic fault clear\n";

/*
 * Asks the daemon.
 * @fd: a connection that has shaken hands; path: of its socket, for messages
 * @what: it is about, for messages
 * @handle: out: of the reply
 * @return CLI_OK, or CLI_FAILED with a line printed
 */
static int ask(int fd, const char *path, const struct vernic_request *request, const char *what,
	       uint32_t *handle)
{
	struct cli_answer answer;

	if (cli_ask(fd, path, request, &answer) != CLI_OK)
		return CLI_FAILED;
	*handle = answer.reply.handle;
	if (answer.reply.status == 0)
		return CLI_OK;
	if (answer.text[0])
		return cli_fail("fault rule '%s': %s", what, answer.text);
	if (answer.reply.status == ENOSPC)
		return cli_fail("fault rule '%s': there are %d rules already", what,
				VERNIC_MAX_FAULTS);
	if (answer.reply.status == ENOENT)
		return cli_fail("there is no fault rule %s", what);
	return cli_fail("the daemon at %s refused: %s", path, strerror(answer.reply.status));
}

int cli_add_fault(int fd, const char *path, const char *rule, bool temporary, uint32_t *id)
{
	struct vernic_request request = {.command = VERNIC_CMD_FAULT_ADD};

	if (strlen(rule) >= sizeof(request.fault_add.rule))
		return cli_fail("fault rule '%.40s...': it is longer than %zu characters", rule,
				sizeof(request.fault_add.rule) - 1);
	strcpy(request.fault_add.rule, rule);
	request.fault_add.temporary = temporary;
	return ask(fd, path, &request, rule, id);
}

/* @id: 0: all; text: the same, for messages */
static int clear_fault(int fd, const char *path, uint32_t id, const char *text)
{
	struct vernic_request request = {.command = VERNIC_CMD_FAULT_CLEAR};
	uint32_t handle;

	request.fault_clear.id = id;
	return ask(fd, path, &request, text, &handle);
}

/* vernic fault add RULE... @return the exit status */
static int fault_add(int fd, const char *path, char **rules)
{
	uint32_t ids[VERNIC_MAX_FAULTS];
	unsigned int count = 0;
	int status = CLI_OK;

	for (; *rules && status == CLI_OK; rules++) {
		if (count == VERNIC_MAX_FAULTS)
			status = cli_fail("more than %d fault rules", VERNIC_MAX_FAULTS);
		else
			status = cli_add_fault(fd, path, *rules, false, &ids[count]);
		count += status == CLI_OK;
	}
	for (unsigned int i = 0; i < count; i++) {
		if (status == CLI_OK)
			printf("%u\n", ids[i]);
		else
			clear_fault(fd, path, ids[i], "");
	}
	return status;
}

/* vernic fault clear [ID...] @return the exit status */
static int fault_clear(int fd, const char *path, char **ids)
{
	int status = CLI_OK;

	if (!ids[0])
		return clear_fault(fd, path, 0, "");
	for (char **id = ids; *id; id++) {
		unsigned long v;
		char *end;

		errno = 0;
		v = strtoul(*id, &end, 10);
		if (!isdigit((unsigned char)(*id)[0]) || *end != '\0' || errno || v == 0 ||
		    v > UINT32_MAX) {
			cli_fail("fault clear: '%s' is not the ID of a rule", *id);
			return CLI_USAGE;
		}
	}
	for (; *ids && status == CLI_OK; ids++)
		status = clear_fault(fd, path, (uint32_t)strtoul(*ids, NULL, 10), *ids);
	return status;
}

/* vernic fault list @return the exit status */
static int fault_list(int fd, const char *path, bool json)
{
	struct vernic_request request = {.command = VERNIC_CMD_FAULT_LIST};

	request.fault_list.json = json;
	return cli_print_reply(fd, path, &request);
}

/* Complains about the words behind "fault". @return CLI_OK or CLI_USAGE */
static int check_words(char **words, bool json)
{
	const char *verb = words[0];

	if (!verb)
		cli_fail("fault: add, list or clear is missing (see 'vernic fault --help')");
	else if (strcmp(verb, "add") != 0 && strcmp(verb, "list") != 0 &&
		 strcmp(verb, "clear") != 0)
		cli_fail("fault: '%s' is none of add, list, clear (see 'vernic fault --help')",
			 verb);
	else if (strcmp(verb, "add") == 0 && !words[1])
		cli_fail("fault add: no rule given (see 'vernic fault --help')");
	else if (strcmp(verb, "list") == 0 && words[1])
		cli_fail("fault list: unexpected argument '%s' (see 'vernic fault --help')",
			 words[1]);
	else if (strcmp(verb, "list") != 0 && json)
		cli_fail("fault %s: takes no --json", verb);
	else
		return CLI_OK;
	return CLI_USAGE;
}

int cli_fault(int argc, char **argv)
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
	char **words;

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
			return cli_bad_option("fault", opt, argv);
		}
	}
	words = argv + optind;
	status = check_words(words, json);
	if (status != CLI_OK)
		return status;
	if (cli_find_daemon(socket, false, found, &fd) != CLI_OK)
		return CLI_FAILED;
	if (strcmp(words[0], "add") == 0)
		status = fault_add(fd, found, words + 1);
	else if (strcmp(words[0], "clear") == 0)
		status = fault_clear(fd, found, words + 1);
	else
		status = fault_list(fd, found, json);
	close(fd);
	return status;
}
