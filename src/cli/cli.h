/* SPDX-License-Identifier: BSD-2-Clause */
/* What the subcommands of `vernic` share. */
#ifndef VERNIC_CLI_H
#define VERNIC_CLI_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

#include <vernic/control.h>

/* Exit statuses of vernic's own; `run` otherwise returns the command's. */
enum cli_exit {
	CLI_OK = 0,
	CLI_FAILED = 1,
	CLI_USAGE = 2,
	CLI_CANNOT_EXECUTE = 126,
	CLI_NOT_FOUND = 127,
};

#define CLI_SOCKET_MAX sizeof(((struct sockaddr_un *)0)->sun_path)

/*
 * The subcommands. argv[0] is the subcommand's name.
 * @return the exit status
 */
int cli_run(int argc, char **argv);
int cli_env(int argc, char **argv);
int cli_status(int argc, char **argv);
int cli_stats(int argc, char **argv);
int cli_capture(int argc, char **argv);
int cli_fault(int argc, char **argv);
int cli_port(int argc, char **argv);
int cli_device(int argc, char **argv);
int cli_gid(int argc, char **argv);

/*
 * Prints "vernic: " and one line of cause to stderr.
 * @format: as printf(3), without a newline
 * @return CLI_FAILED, so that it can be returned at once
 */
int cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * Complains about the option that getopt_long(3) just refused (opterr 0, optstring ":...").
 * @subcommand: its name; opt: what getopt_long() returned, '?' or ':'
 * @return CLI_USAGE
 */
int cli_bad_option(const char *subcommand, int opt, char **argv);

/*
 * Complains if there is something behind the options of a subcommand that takes no more than those.
 * @word: what is there, or NULL
 * @return CLI_OK or CLI_USAGE
 */
int cli_no_word(const char *subcommand, const char *word);

/*
 * Connects to the daemon at a path and shakes hands.
 * @path: of its socket
 * @return a connected SOCK_SEQPACKET socket, or -errno: -EPROTO after a failed handshake.
 * cause: room for cause_len bytes, the reason in words where it failed
 */
int cli_connect(const char *path, char *cause, size_t cause_len);

/*
 * Finds a running daemon: at path, if given; else at $VERNIC_SOCKET, if set; else at the usual
 * places. Of the usual places, one where nobody answers is passed over.
 * @path: from --socket, or NULL
 * @found: the socket's path
 * @fd: the connection
 * @return CLI_OK, or CLI_FAILED with a line printed; with missing_ok and nobody at the usual
 * places: CLI_OK and *fd = -1
 */
int cli_find_daemon(const char *path, bool missing_ok, char found[CLI_SOCKET_MAX], int *fd);

/* What a daemon answers to a request that changes something. */
struct cli_answer {
	struct vernic_reply reply;
	char text[600]; /* why it refused; empty: it said no more than the status */
};

/*
 * Sends a request and receives its answer, be that a refusal.
 * @fd: a connection that has shaken hands; path: of its socket, for messages
 * @return CLI_OK, or CLI_FAILED with a line printed: there is no answer
 */
int cli_ask(int fd, const char *path, const struct vernic_request *request,
	    struct cli_answer *answer);

/*
 * Sends a request whose answer is a text and prints that, whether it comes in the message or in a
 * file that comes with it.
 * @fd: a connection that has shaken hands; path: of its socket, for messages
 * @return CLI_OK, or CLI_FAILED with a line printed
 */
int cli_print_reply(int fd, const char *path, const struct vernic_request *request);

/*
 * Adds a fault rule to a daemon.
 * @fd: a connection that has shaken hands; path: of its socket, for messages
 * @temporary: it goes when the connection is closed
 * @return CLI_OK, or CLI_FAILED with a line printed
 */
int cli_add_fault(int fd, const char *path, const char *rule, bool temporary, uint32_t *id);

/* @return CLI_OK and the path of vernicd, or CLI_FAILED with a line printed */
int cli_daemon_path(char path[PATH_MAX]);

/*
 * What a program needs in its environment to use the daemon.
 * @preload: libibverbs.so.1 and libvernic-preload.so, in front of what was there.
 * @library_path is NULL unless LD_LIBRARY_PATH has to be set too: LD_PRELOAD cannot express a
 * directory with a blank in its name.
 */
struct cli_environment {
	char socket[CLI_SOCKET_MAX];
	char *preload;
	char *library_path;
};

/*
 * Works it out from the environment there is.
 * @socket: absolute path of the daemon's socket
 * @env: to be given to cli_environment_free()
 * @return CLI_OK, or CLI_FAILED with a line printed and nothing to free
 */
int cli_environment(const char *socket, struct cli_environment *env);
void cli_environment_free(struct cli_environment *env);

#endif
