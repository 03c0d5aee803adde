// SPDX-License-Identifier: BSD-2-Clause
/* Finding the daemon, the library, and the words for what went wrong. */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vernic/control.h>

#include "cli_config.h"

/* Seconds a daemon may take to answer; a stopped one must not hang us for ever. */
#define CLI_ANSWER_TIMEOUT 10

#define CLI_LIBRARY "libibverbs.so.1"
#define CLI_PRELOAD "libvernic-preload.so"

int cli_fail(const char *format, ...)
{
	va_list args;

	fputs("vernic: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return CLI_FAILED;
}

int cli_bad_option(const char *subcommand, int opt, char **argv)
{
	/* For an unknown long option getopt_long() leaves optopt 0: the word itself says it. */
	const char *word = argv[optind - 1];
	char letter[3] = {'-', (char)optopt, '\0'};

	if (optopt != 0 && strncmp(word, "--", 2) != 0)
		word = letter;
	fprintf(stderr, "vernic: %s: %s '%s' (see 'vernic %s --help')\n", subcommand,
		opt == ':' ? "a value is missing after" : "unknown option", word, subcommand);
	return CLI_USAGE;
}

int cli_no_word(const char *subcommand, const char *word)
{
	if (word == NULL)
		return CLI_OK;
	cli_fail("%s: unexpected argument '%s' (see 'vernic %s --help')", subcommand, word,
		 subcommand);
	return CLI_USAGE;
}

/*
 * Shakes hands on a fresh connection.
 * @return 0 or -errno with cause filled in
 */
static int shake_hands(int fd, char *cause, size_t cause_len)
{
	struct vernic_hello hello = {.magic = VERNIC_MAGIC, .version = VERNIC_ABI_VERSION};
	struct vernic_hello answer;
	ssize_t n;

	if (send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) < 0) {
		n = -errno;
		snprintf(cause, cause_len, "%s", strerror(errno));
		return (int)n;
	}
	n = recv(fd, &answer, sizeof(answer), 0);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
		snprintf(cause, cause_len, "no answer within %d s", CLI_ANSWER_TIMEOUT);
		return -ETIMEDOUT;
	}
	if (n != (ssize_t)sizeof(answer) || answer.magic != VERNIC_MAGIC) {
		snprintf(cause, cause_len, "whoever listens there is not vernicd");
		return -EPROTO;
	}
	if (answer.version != VERNIC_ABI_VERSION) {
		snprintf(cause, cause_len,
			 "version mismatch: the daemon speaks version %u, this program version %u",
			 answer.version, VERNIC_ABI_VERSION);
		return -EPROTO;
	}
	if (answer.status != 0) {
		snprintf(cause, cause_len, "the daemon refused: %s", strerror(answer.status));
		return -EPROTO;
	}
	return 0;
}

int cli_connect(const char *path, char *cause, size_t cause_len)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct timeval timeout = {.tv_sec = CLI_ANSWER_TIMEOUT};
	int fd, err;

	if (strlen(path) >= sizeof(addr.sun_path)) {
		snprintf(cause, cause_len, "the path is longer than %zu bytes",
			 sizeof(addr.sun_path) - 1);
		return -ENAMETOOLONG;
	}
	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		goto failed;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0 ||
	    connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		goto failed;
	err = shake_hands(fd, cause, cause_len);
	if (err < 0) {
		close(fd);
		return err;
	}
	return fd;

failed:
	err = -errno;
	snprintf(cause, cause_len, "%s", strerror(errno));
	if (fd >= 0)
		close(fd);
	return err;
}

/*
 * Receives one reply of any length.
 * @text_fd: the descriptor that came with it, or -1
 * @return the reply, to be freed, and its size in bytes; or NULL with a line printed
 */
static struct vernic_reply *receive_reply(int fd, const char *path, size_t *size, int *text_fd)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {0};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.space,
			     .msg_controllen = sizeof(control.space)};
	struct cmsghdr *h;
	ssize_t n;

	*text_fd = -1;
	/* MSG_TRUNC: the length of the message, whatever there is room for. */
	do {
		n = recv(fd, NULL, 0, MSG_PEEK | MSG_TRUNC);
	} while (n < 0 && errno == EINTR);
	if (n >= 0 && n < (ssize_t)sizeof(struct vernic_reply)) {
		cli_fail("the daemon at %s closed the connection", path);
		return NULL;
	}
	*size = (size_t)n;
	iov.iov_len = *size;
	iov.iov_base = n < 0 ? NULL : malloc(*size);
	if (n >= 0 && !iov.iov_base) {
		cli_fail("out of memory");
		return NULL;
	}
	if (n < 0 || recvmsg(fd, &msg, MSG_CMSG_CLOEXEC) != n) {
		cli_fail("no answer from the daemon at %s: %s", path, strerror(errno));
		free(iov.iov_base);
		return NULL;
	}
	h = CMSG_FIRSTHDR(&msg);
	if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS)
		memcpy(text_fd, CMSG_DATA(h), sizeof(*text_fd));
	return iov.iov_base;
}

/* Prints length bytes of a file. @return CLI_OK, or CLI_FAILED with a line printed */
static int print_file(int fd, size_t length)
{
	char buf[65536];
	off_t offset = 0;

	while ((size_t)offset < length) {
		ssize_t n = pread(fd, buf, sizeof(buf), offset);

		if (n <= 0)
			return cli_fail("cannot read the answer: %s",
					n < 0 ? strerror(errno) : "it is cut short");
		if (fwrite(buf, 1, (size_t)n, stdout) != (size_t)n)
			break;
		offset += n;
	}
	if (fflush(stdout) != 0 || ferror(stdout))
		return cli_fail("cannot write the answer: %s", strerror(errno));
	return CLI_OK;
}

int cli_ask(int fd, const char *path, const struct vernic_request *request,
	    struct cli_answer *answer)
{
	ssize_t n;

	memset(answer, 0, sizeof(*answer));
	if (send(fd, request, sizeof(*request), MSG_NOSIGNAL) < 0)
		return cli_fail("cannot ask the daemon at %s: %s", path, strerror(errno));
	do {
		n = recv(fd, answer, sizeof(*answer) - 1, 0);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return cli_fail("no answer from the daemon at %s: %s", path, strerror(errno));
	if (n < (ssize_t)sizeof(answer->reply))
		return cli_fail("the daemon at %s closed the connection", path);
	return CLI_OK;
}

int cli_print_reply(int fd, const char *path, const struct vernic_request *request)
{
	struct vernic_reply *reply;
	int status = CLI_FAILED;
	int text_fd;
	size_t size;

	if (send(fd, request, sizeof(*request), MSG_NOSIGNAL) < 0)
		return cli_fail("cannot ask the daemon at %s: %s", path, strerror(errno));
	reply = receive_reply(fd, path, &size, &text_fd);
	if (!reply)
		return CLI_FAILED;
	if (reply->status != 0)
		cli_fail("the daemon at %s refused: %s", path, strerror(reply->status));
	else if (text_fd >= 0)
		status = print_file(text_fd, reply->status_text.length);
	else if (reply->status_text.length != size - sizeof(*reply))
		cli_fail("the daemon at %s sent a damaged answer", path);
	else if (fwrite(reply + 1, 1, reply->status_text.length, stdout) !=
			 reply->status_text.length ||
		 fflush(stdout) != 0)
		cli_fail("cannot write the answer: %s", strerror(errno));
	else
		status = CLI_OK;
	if (text_fd >= 0)
		close(text_fd);
	free(reply);
	return status;
}

/* Copies a socket path that is known to fit, made absolute: the program may change directory. */
static int keep_path(const char *path, char found[CLI_SOCKET_MAX])
{
	char cwd[PATH_MAX] = "";
	size_t max = CLI_SOCKET_MAX;
	int n;

	if (path[0] != '/' && !getcwd(cwd, sizeof(cwd)))
		return cli_fail("cannot tell the current directory: %s", strerror(errno));
	if (path[0] == '/')
		n = snprintf(found, max, "%s", path);
	else
		n = snprintf(found, max, "%s/%s", cwd, path);
	if (n < 0 || (size_t)n >= max)
		return cli_fail("the socket path %s/%s is longer than %zu bytes", cwd, path,
				max - 1);
	return CLI_OK;
}

int cli_find_daemon(const char *path, bool missing_ok, char found[CLI_SOCKET_MAX], int *fd)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char candidates[2][PATH_MAX];
	unsigned int count = 0;
	char cause[256];

	if (!path) {
		path = getenv(VERNIC_SOCKET_ENV);
		if (path && path[0] == '\0')
			path = NULL;
	}
	if (path) {
		*fd = cli_connect(path, cause, sizeof(cause));
		if (*fd < 0)
			return cli_fail("cannot use the daemon at %s: %s", path, cause);
		return keep_path(path, found);
	}

	if (runtime && runtime[0] == '/')
		snprintf(candidates[count++], PATH_MAX, "%s/%s", runtime, VERNIC_SOCKET_NAME);
	snprintf(candidates[count++], PATH_MAX, "%s", VERNIC_SOCKET_SYSTEM);
	for (unsigned int i = 0; i < count; i++) {
		*fd = cli_connect(candidates[i], cause, sizeof(cause));
		if (*fd >= 0)
			return keep_path(candidates[i], found);
		/* One is there and does not suit: silently using another would surprise. */
		if (*fd == -EPROTO || *fd == -ETIMEDOUT)
			return cli_fail("cannot use the daemon at %s: %s", candidates[i], cause);
	}
	*fd = -1;
	if (missing_ok)
		return CLI_OK;
	return cli_fail("no daemon is running (looked at %s%s%s); start vernicd or give --socket",
			candidates[0], count > 1 ? " and " : "", count > 1 ? candidates[1] : "");
}

/*
 * The directory this program lies in.
 * @return CLI_OK or CLI_FAILED with a line printed
 */
static int own_directory(char dir[PATH_MAX])
{
	ssize_t n = readlink("/proc/self/exe", dir, PATH_MAX - 1);
	char *slash;

	if (n < 0)
		return cli_fail("cannot tell where this program lies: /proc/self/exe: %s",
				strerror(errno));
	dir[n] = '\0';
	slash = strrchr(dir, '/');
	if (slash)
		*slash = '\0';
	return CLI_OK;
}

/*
 * Finds one of the companions, in the build tree or as installed.
 * @name: of the file
 * @override: environment variable that names its directory or, if whole, the file itself
 * @build: directory in the build tree, @installed: as installed; from ours unless absolute
 * @mode: as access(2)
 */
static int find_companion(const char *name, const char *override, bool whole, const char *build,
			  const char *installed, int mode, char path[PATH_MAX])
{
	const char *given = getenv(override);
	const char *places[] = {build, installed};
	char dir[PATH_MAX], candidate[PATH_MAX];

	if (given && given[0]) {
		if (snprintf(candidate, PATH_MAX, whole ? "%s" : "%s/%s", given, name) < PATH_MAX &&
		    access(candidate, mode) == 0 && realpath(candidate, path))
			return CLI_OK;
		return cli_fail("cannot use %s, named by %s: %s", given, override, strerror(errno));
	}
	if (own_directory(dir) != CLI_OK)
		return CLI_FAILED;
	for (unsigned int i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		bool absolute = places[i][0] == '/';
		int n = snprintf(candidate, PATH_MAX, "%s%s%s/%s", absolute ? "" : dir,
				 absolute ? "" : "/", places[i], name);

		if (n < PATH_MAX && access(candidate, mode) == 0 && realpath(candidate, path))
			return CLI_OK;
	}
	return cli_fail("cannot find %s, neither in %s/%s nor in %s (set %s)", name, dir, build,
			installed, override);
}

int cli_daemon_path(char path[PATH_MAX])
{
	return find_companion("vernicd", "VERNIC_DAEMON", true, "../../emu", CLI_INSTALLED_SBINDIR,
			      X_OK, path);
}

/*
 * Puts an entry in front of a list from the environment, unless it is there already.
 * @return the new list
 */
static char *prepend(const char *variable, const char *entry)
{
	const char *old = getenv(variable);
	size_t len = strlen(entry);
	char *list = NULL;

	if (!old || old[0] == '\0')
		list = strdup(entry);
	else if (strncmp(old, entry, len) == 0 && (old[len] == '\0' || old[len] == ':'))
		list = strdup(old);
	else if (asprintf(&list, "%s:%s", entry, old) < 0)
		list = NULL;
	if (!list)
		abort();
	return list;
}

/*
 * Finds a library that is to be preloaded.
 * @build: its directory in the build tree, seen from ours
 */
static int find_library(const char *name, const char *build, char path[PATH_MAX])
{
	if (find_companion(name, "VERNIC_LIBDIR", false, build, CLI_INSTALLED_LIBDIR, R_OK, path) !=
	    CLI_OK)
		return CLI_FAILED;
	if (strpbrk(path, ":;$"))
		return cli_fail(
			"the dynamic linker cannot load %s: ':', ';' and '$' mean something "
			"else to it; set VERNIC_LIBDIR to another place",
			path);
	return CLI_OK;
}

int cli_environment(const char *socket, struct cli_environment *env)
{
	char verbs[PATH_MAX], preload[PATH_MAX], both[2 * PATH_MAX];

	if (find_library(CLI_LIBRARY, "../verbs", verbs) != CLI_OK ||
	    find_library(CLI_PRELOAD, "../preload", preload) != CLI_OK)
		return CLI_FAILED;
	snprintf(env->socket, sizeof(env->socket), "%s", socket);
	env->library_path = NULL;
	if (!strpbrk(verbs, " \t\n") && !strpbrk(preload, " \t\n")) {
		snprintf(both, sizeof(both), "%s:%s", verbs, preload);
		env->preload = prepend("LD_PRELOAD", both);
		return CLI_OK;
	}
	env->preload = prepend("LD_PRELOAD", CLI_LIBRARY ":" CLI_PRELOAD);
	*strrchr(verbs, '/') = '\0';
	*strrchr(preload, '/') = '\0';
	snprintf(both, sizeof(both), "%s%s%s", verbs, strcmp(verbs, preload) != 0 ? ":" : "",
		 strcmp(verbs, preload) != 0 ? preload : "");
	env->library_path = prepend("LD_LIBRARY_PATH", both);
	return CLI_OK;
}

void cli_environment_free(struct cli_environment *env)
{
	free(env->preload);
	free(env->library_path);
}
