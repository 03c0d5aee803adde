// SPDX-License-Identifier: BSD-2-Clause
/*
 * `vernic run`: runs a command on the NIC.
 *
 * Theory of operation
 * -------------------
 * With a daemon to be found, run is env and exec. Else it makes a private directory, starts a
 * vernicd that listens there, waits until that is ready, starts the command, and stays as the
 * parent of both until the command ends; then it ends the daemon and removes the directory.
 *
 * The command stays in our process group, so that the terminal's keys (^C, ^Z) reach it as if it
 * had been started directly; a signal that was sent to us alone is passed on. The daemon has a
 * group of its own: ^C must not take the NIC away while the command cleans up. Should we be
 * killed, the kernel ends the daemon (PR_SET_PDEATHSIG).
 *
 * With --capture there is a third child, which captures: it is ready before the command starts and
 * told to end, and waited for, before the daemon is.
 * With fault rules for a daemon that is there, we stay as well: the rules go with our connection.
 */
#include "capture.h"
#include "cli.h"

#include <errno.h>
#include <ftw.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vernic/control.h>

static const char help[] =
	"Usage: vernic run [OPTION...] -- COMMAND [ARGUMENT...]\n"
	"\n"
	"Runs COMMAND so that it, and every program it starts, sees the devices of a Vernic "
	"daemon\n"
	"and no others. COMMAND needs no change.\n"
	"\n"
	"The daemon is the one at --socket or $VERNIC_SOCKET; else one that answers at\n"
	"$XDG_RUNTIME_DIR/vernicd.sock or /run/vernic/vernicd.sock; else, and always when "
	"--device,\n"
	"--workers or --io is given, a private one that lives as long as COMMAND. Processes that\n"
	"COMMAND starts share it and can talk to each other over it.\n"
	"\n"
	"Options:\n"
	"  --device KEY=VALUE[,KEY=VALUE...]\n"
	"                 give the private daemon a device; may be repeated. Keys: name, addr (an\n"
	"                 IPv4 or IPv6 address of this host; may be repeated), guid, mtu and "
	"limits,\n"
	"                 as 'vernicd --help' lists them. A device without addr= carries traffic\n"
	"                 inside its daemon only and opens no port. Default: one such, vernic0\n"
	"  --workers N    worker threads of the private daemon, 1 to 16. Default: 1\n"
	"  --io ENGINE    how the private daemon does I/O: auto, io_uring or plain. Default: "
	"auto,\n"
	"                 which is io_uring where the system allows it\n"
	"  --capture FILE write all packets of the daemon to FILE, from before COMMAND starts\n"
	"                 until it has ended, as 'vernic capture' does\n"
	"  --fault RULE   have the daemon follow a fault rule, see 'vernic fault --help'; may be\n"
	"                 repeated. A daemon that was there before follows it as long as COMMAND\n"
	"                 runs, for all its clients. Rules in $VERNIC_FAULTS, parted by ';', come\n"
	"                 first\n"
	"  --socket PATH  use the daemon at PATH; it is an error if none answers there\n"
	"  --help         print this text\n"
	"\n"
	"Exit status:\n"
	"  COMMAND's, or 128 + N if signal N ended it; 127 if COMMAND was not found, 126 if it\n"
	"  could not be executed; 1 if no daemon could be had, a rule is wrong or (and COMMAND's\n"
	"  is 0) the capture failed, 2 for wrong usage, each with one line on stderr.\n"
	"\n"
	"Examples:\n"
	"  vernic run -- ibv_devinfo -v\n"
	"  vernic run -- sh -c 'ibv_rc_pingpong -g 1 & sleep 1; ibv_rc_pingpong -g 1 localhost'\n"
	"  vernic run --device addr=192.0.2.1 -- ib_write_bw -x 1\n";

/* Milliseconds the daemon may take to end after SIGTERM before it is killed. */
#define DAEMON_STOP_TIMEOUT 5000

/* Signals that are passed on to the command. */
static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

/* What the command line asks for. */
struct run_options {
	const char *socket;
	const char *capture; /* file, or NULL */
	const char **daemon_args; /* further arguments of a private daemon */
	unsigned int daemon_arg_count;
	const char **faults; /* rules */
	unsigned int fault_count;
	char **command;
};

/* A private daemon. */
struct private_daemon {
	char dir[CLI_SOCKET_MAX];
	char socket[CLI_SOCKET_MAX];
	pid_t pid; /* 0: ended */
};

/* The child that captures. */
struct capture_child {
	pid_t pid;   /* 0: ended, or not wanted */
	bool failed; /* it has said why */
};

/*
 * Becomes the command.
 * @return the exit status for not having been able to, with a line printed
 */
static int exec_command(const char *socket, char **command)
{
	struct cli_environment env;
	int err;

	if (cli_environment(socket, &env) != CLI_OK)
		return CLI_FAILED;
	setenv(VERNIC_SOCKET_ENV, env.socket, 1);
	/* Its rules are in force: a run within this one shall not add them again. */
	unsetenv("VERNIC_FAULTS");
	setenv("LD_PRELOAD", env.preload, 1);
	if (env.library_path)
		setenv("LD_LIBRARY_PATH", env.library_path, 1);
	execvp(command[0], command);
	err = errno;
	cli_fail("cannot execute %s: %s", command[0], strerror(err));
	cli_environment_free(&env);
	return err == ENOENT ? CLI_NOT_FOUND : CLI_CANNOT_EXECUTE;
}

/*
 * Makes the directory of a private daemon: only its user can enter it.
 * @return CLI_OK, or CLI_FAILED with a line printed
 */
static int make_directory(struct private_daemon *d)
{
	const char *bases[] = {getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), "/tmp"};
	int err = 0;

	for (unsigned int i = 0; i < sizeof(bases) / sizeof(bases[0]); i++) {
		if (!bases[i] || bases[i][0] != '/')
			continue;
		/* The socket's path has to fit, and XXXXXX has its final length already. */
		if (snprintf(d->socket, sizeof(d->socket), "%s/vernic-XXXXXX/%s", bases[i],
			     VERNIC_SOCKET_NAME) >= (int)sizeof(d->socket)) {
			err = ENAMETOOLONG;
			continue;
		}
		snprintf(d->dir, sizeof(d->dir), "%.*s",
			 (int)(strlen(d->socket) - strlen("/" VERNIC_SOCKET_NAME)), d->socket);
		if (mkdtemp(d->dir)) {
			memcpy(d->socket, d->dir, strlen(d->dir));
			return CLI_OK;
		}
		err = errno;
	}
	return cli_fail("cannot make a directory for the daemon's socket in $XDG_RUNTIME_DIR, "
			"$TMPDIR or /tmp: %s",
			strerror(err));
}

/* nftw(3) of remove_directory() */
static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	remove(path);
	return 0;
}

/* Removes what make_directory() made, and what a daemon that was killed has left there. */
static void remove_directory(const struct private_daemon *d)
{
	nftw(d->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/*
 * The child that becomes vernicd.
 * @ready: the fd it shall write "ready" to
 * @parent: our pid; mask: the signals blocked when we were started
 */
__attribute__((noreturn)) static void exec_daemon(const struct private_daemon *d, const char *path,
						  const struct run_options *o, int ready,
						  pid_t parent, const sigset_t *mask)
{
	const char **argv = calloc(o->daemon_arg_count + 2 * o->fault_count + 6, sizeof(*argv));
	unsigned int n = 0;
	char fd[16];

	setpgid(0, 0);
	/* The command alone reads our input. */
	if (freopen("/dev/null", "r", stdin) == NULL)
		close(STDIN_FILENO);
	/* Should the parent be gone before prctl() is done, nobody would end us. */
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent || !argv)
		_exit(CLI_FAILED);
	sigprocmask(SIG_SETMASK, mask, NULL);
	snprintf(fd, sizeof(fd), "%d", ready);
	argv[n++] = "vernicd";
	argv[n++] = "--socket";
	argv[n++] = d->socket;
	argv[n++] = "--ready-fd";
	argv[n++] = fd;
	for (unsigned int i = 0; i < o->daemon_arg_count; i++)
		argv[n++] = o->daemon_args[i];
	for (unsigned int i = 0; i < o->fault_count; i++) {
		argv[n++] = "--fault";
		argv[n++] = o->faults[i];
	}
	execv(path, (char **)argv);
	cli_fail("cannot execute %s: %s", path, strerror(errno));
	_exit(CLI_CANNOT_EXECUTE);
}

/* Waits for a process, whatever signals come. @return its wait status */
static int reap(pid_t pid)
{
	int status = 0;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

/*
 * Ends the daemon and reaps it.
 * SIGCHLD must be blocked: it is waited for.
 */
static void stop_daemon(struct private_daemon *d)
{
	struct timespec until, now, left;
	sigset_t child;

	if (d->pid == 0)
		return;
	kill(d->pid, SIGTERM);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += DAEMON_STOP_TIMEOUT / 1000;
	while (waitpid(d->pid, NULL, WNOHANG) == 0) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec >= until.tv_sec) {
			kill(d->pid, SIGKILL);
			reap(d->pid);
			break;
		}
		left = (struct timespec){.tv_nsec = 100 * 1000 * 1000};
		sigtimedwait(&child, NULL, &left);
	}
	d->pid = 0;
}

/*
 * Starts a private daemon and waits until it listens.
 * @mask: the signals blocked when we were started
 * @return CLI_OK; else CLI_FAILED, a line was printed (by the daemon, if it gave up)
 */
static int start_daemon(struct private_daemon *d, const struct run_options *o, const sigset_t *mask)
{
	char path[PATH_MAX], word[16];
	pid_t parent = getpid();
	int ready[2], status;
	ssize_t n;

	if (cli_daemon_path(path) != CLI_OK || make_directory(d) != CLI_OK)
		return CLI_FAILED;
	if (pipe(ready) < 0) {
		cli_fail("cannot make a pipe: %s", strerror(errno));
		goto no_pipe;
	}
	d->pid = fork();
	if (d->pid < 0) {
		cli_fail("cannot fork: %s", strerror(errno));
		goto no_child;
	}
	if (d->pid == 0) {
		close(ready[0]);
		exec_daemon(d, path, o, ready[1], parent, mask);
	}
	close(ready[1]);
	do {
		n = read(ready[0], word, sizeof(word));
	} while (n < 0 && errno == EINTR);
	close(ready[0]);
	if (n > 0)
		return CLI_OK;

	/* End of file: it has ended, or is about to, and has said why unless a signal ended it. */
	status = reap(d->pid);
	d->pid = 0;
	if (WIFSIGNALED(status))
		cli_fail("the daemon %s was ended by signal %d (%s) while starting", path,
			 WTERMSIG(status), strsignal(WTERMSIG(status)));
	remove_directory(d);
	return CLI_FAILED;

no_child:
	d->pid = 0;
	close(ready[0]);
	close(ready[1]);
no_pipe:
	remove_directory(d);
	return CLI_FAILED;
}

/* Notes how the capture ended. @status: as waitpid(2) has it */
static void capture_ended(struct capture_child *capture, int status)
{
	capture->pid = 0;
	capture->failed = !WIFEXITED(status) || WEXITSTATUS(status) != CLI_OK;
}

/*
 * The child that captures.
 * @ready: the fd it shall write "ready" to
 * @parent: our pid; mask: the signals blocked when we were started
 */
__attribute__((noreturn)) static void be_capture(const char *file, const char *socket, int ready,
						 pid_t parent, const sigset_t *mask)
{
	struct capture_options options;
	char cause[256];
	int fd;

	/* ^C is for the command, whose last packets are wanted too. */
	setpgid(0, 0);
	if (prctl(PR_SET_PDEATHSIG, SIGINT) < 0 || getppid() != parent)
		_exit(CLI_FAILED);
	sigprocmask(SIG_SETMASK, mask, NULL);
	fd = cli_connect(socket, cause, sizeof(cause));
	if (fd < 0)
		_exit(cli_fail("cannot use the daemon at %s: %s", socket, cause));
	capture_defaults(&options);
	options.file = file;
	options.quiet = true;
	options.ready_fd = ready;
	_exit(capture_to_file(&options, fd, socket));
}

/*
 * Starts to capture, and waits until every packet is captured.
 * @signals: those blocked; one that would end us meanwhile does
 * @return CLI_OK, or another exit status with a line printed
 */
static int start_capture(struct capture_child *capture, const char *file, const char *socket,
			 const sigset_t *signals, const sigset_t *mask)
{
	const struct timespec at_once = {0};
	pid_t parent = getpid();
	struct pollfd poller;
	int ready[2], number;
	char word[16];
	ssize_t n = -1;

	if (pipe(ready) < 0)
		return cli_fail("cannot make a pipe: %s", strerror(errno));
	fflush(NULL);
	capture->pid = fork();
	if (capture->pid == 0) {
		close(ready[0]);
		be_capture(file, socket, ready[1], parent, mask);
	}
	close(ready[1]);
	if (capture->pid < 0) {
		close(ready[0]);
		capture->pid = 0;
		return cli_fail("cannot fork: %s", strerror(errno));
	}
	/* A named pipe that nobody reads may keep it waiting. */
	poller = (struct pollfd){.fd = ready[0], .events = POLLIN};
	while (poll(&poller, 1, 100) <= 0) {
		number = sigtimedwait(signals, NULL, &at_once);
		if (number <= 0 || number == SIGCHLD)
			continue;
		close(ready[0]);
		kill(capture->pid, SIGKILL);
		reap(capture->pid);
		capture->pid = 0;
		return 128 + number;
	}
	n = read(ready[0], word, sizeof(word));
	close(ready[0]);
	if (n > 0)
		return CLI_OK;
	capture_ended(capture, reap(capture->pid));
	return CLI_FAILED;
}

/* Ends the capture; what was captured is written. @signals: those blocked, SIGCHLD among them */
static void stop_capture(struct capture_child *capture, const sigset_t *signals)
{
	siginfo_t info;
	int status;

	if (capture->pid == 0)
		return;
	kill(capture->pid, SIGINT);
	while (waitpid(capture->pid, &status, WNOHANG) == 0) {
		/* Somebody has no patience: neither shall it have. */
		if (sigwaitinfo(signals, &info) > 0 && info.si_signo != SIGCHLD)
			kill(capture->pid, SIGINT);
	}
	capture_ended(capture, status);
}

/*
 * Waits for the command, passing signals on.
 * @signals: those blocked, SIGCHLD among them
 * @return its exit status as a shell has it
 */
static int wait_command(pid_t command, struct private_daemon *d, struct capture_child *capture,
			const sigset_t *signals)
{
	siginfo_t info;
	int status;
	pid_t pid;

	for (;;) {
		while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
			if (pid == command)
				return WIFSIGNALED(status) ? 128 + WTERMSIG(status)
							   : WEXITSTATUS(status);
			if (pid == d->pid) {
				d->pid = 0;
				cli_fail("the daemon ended while the command runs");
			}
			if (pid == capture->pid)
				capture_ended(capture, status);
		}
		if (sigwaitinfo(signals, &info) < 0 || info.si_signo == SIGCHLD)
			continue;
		/* What the terminal sends, it sends to the command as well. */
		if (info.si_code != SI_KERNEL)
			kill(command, info.si_signo);
	}
}

/*
 * Adds the rules of a list to a daemon, for as long as the connection is open.
 * @list: parted by ';'
 * @return CLI_OK, or CLI_FAILED with a line printed
 */
static int add_fault_list(int fd, const char *socket, const char *list)
{
	int status = CLI_OK;
	uint32_t id;

	while (*list && status == CLI_OK) {
		size_t len = strcspn(list, ";");
		char *rule = strndup(list, len);

		if (!rule)
			return cli_fail("out of memory");
		if (rule[strspn(rule, " \t")])
			status = cli_add_fault(fd, socket, rule, true, &id);
		free(rule);
		list += len + (list[len] == ';');
	}
	return status;
}

/* @return what $VERNIC_FAULTS holds, "" unless set */
static const char *faults_of_environment(void)
{
	const char *list = getenv("VERNIC_FAULTS");

	return list ? list : "";
}

/*
 * Has a daemon that is there follow the rules.
 * @fd: out: the connection they go with
 * @return CLI_OK, or CLI_FAILED with a line printed
 */
static int start_faults(const struct run_options *o, const char *socket, int *fd)
{
	char cause[256];
	uint32_t id;
	int status;

	*fd = cli_connect(socket, cause, sizeof(cause));
	if (*fd < 0)
		return cli_fail("cannot use the daemon at %s: %s", socket, cause);
	status = add_fault_list(*fd, socket, faults_of_environment());
	for (unsigned int i = 0; i < o->fault_count && status == CLI_OK; i++)
		status = cli_add_fault(*fd, socket, o->faults[i], true, &id);
	return status;
}

/*
 * Runs the command beside what it needs.
 * @socket: of a running daemon; NULL: it needs a private one
 * @return the exit status
 */
static int run_attended(const struct run_options *o, const char *socket)
{
	struct private_daemon d = {0};
	struct capture_child capture = {0};
	sigset_t signals, mask;
	pid_t command;
	int status = CLI_OK;
	int faults = -1;

	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	for (unsigned int i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++)
		sigaddset(&signals, forwarded[i]);
	sigprocmask(SIG_BLOCK, &signals, &mask);
	/* Ignored by whoever started us, SIGCHLD would leave no exit status to return. */
	signal(SIGCHLD, SIG_DFL);

	if (socket)
		snprintf(d.socket, sizeof(d.socket), "%s", socket);
	else if (start_daemon(&d, o, &mask) != CLI_OK)
		return CLI_FAILED;
	if (socket)
		status = start_faults(o, socket, &faults);
	if (status == CLI_OK && o->capture)
		status = start_capture(&capture, o->capture, d.socket, &signals, &mask);
	if (status != CLI_OK)
		goto out;
	fflush(NULL);
	command = fork();
	if (command == 0) {
		sigprocmask(SIG_SETMASK, &mask, NULL);
		_exit(exec_command(d.socket, o->command));
	}
	if (command > 0)
		status = wait_command(command, &d, &capture, &signals);
	else
		status = cli_fail("cannot fork: %s", strerror(errno));
	stop_capture(&capture, &signals);
	if (status == CLI_OK && capture.failed)
		status = CLI_FAILED;
out:
	if (faults >= 0)
		close(faults);
	if (!socket) {
		stop_daemon(&d);
		remove_directory(&d);
	}
	return status;
}

/* Adds an option and its value to the arguments of a private daemon. */
static void add_daemon_argument(struct run_options *o, const char *option, const char *value)
{
	o->daemon_args[o->daemon_arg_count++] = option;
	o->daemon_args[o->daemon_arg_count++] = value;
}

/*
 * Reads the command line.
 * @o: daemon_args and faults have room for all of it
 * @return CLI_OK; or, with *done set or not CLI_OK, the exit status
 */
static int parse_options(int argc, char **argv, struct run_options *o, bool *done)
{
	static const struct option options[] = {
		{"device", required_argument, NULL, 'd'}, {"workers", required_argument, NULL, 'w'},
		{"io", required_argument, NULL, 'i'},	  {"socket", required_argument, NULL, 's'},
		{"capture", required_argument, NULL, 'c'}, {"fault", required_argument, NULL, 'f'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	int opt;

	opterr = 0;
	/* '+': the command's own options are not ours, even if the "--" was left out. */
	while ((opt = getopt_long(argc, argv, "+:h", options, NULL)) != -1) {
		switch (opt) {
		case 'd':
			add_daemon_argument(o, "--device", optarg);
			break;
		case 'w':
			add_daemon_argument(o, "--workers", optarg);
			break;
		case 'i':
			add_daemon_argument(o, "--io", optarg);
			break;
		case 'f':
			o->faults[o->fault_count++] = optarg;
			break;
		case 's':
			o->socket = optarg;
			break;
		case 'c':
			o->capture = optarg;
			break;
		case 'h':
			fputs(help, stdout);
			*done = true;
			return CLI_OK;
		default:
			return cli_bad_option("run", opt, argv);
		}
	}
	o->command = argv + optind;
	if (!o->command[0]) {
		cli_fail("run: no command given (see 'vernic run --help')");
		return CLI_USAGE;
	}
	if (o->capture && strcmp(o->capture, "-") == 0) {
		cli_fail("run: --capture needs a file: standard output is the command's");
		return CLI_USAGE;
	}
	if (o->socket && o->daemon_arg_count) {
		cli_fail("run: --socket names a running daemon, which takes no %s",
			 o->daemon_args[0]);
		return CLI_USAGE;
	}
	return CLI_OK;
}

/*
 * Runs the command, with the daemon there is or one of its own.
 * @return the exit status
 */
static int run_command(const struct run_options *o)
{
	char found[CLI_SOCKET_MAX];
	int fd;

	if (o->daemon_arg_count)
		return run_attended(o, NULL);
	if (cli_find_daemon(o->socket, true, found, &fd) != CLI_OK)
		return CLI_FAILED;
	if (fd < 0)
		return run_attended(o, NULL);
	close(fd);
	if (o->capture || o->fault_count || faults_of_environment()[0])
		return run_attended(o, found);
	return exec_command(found, o->command);
}

int cli_run(int argc, char **argv)
{
	struct run_options o = {0};
	bool done = false;
	int status;

	o.daemon_args = calloc((size_t)argc * 2, sizeof(*o.daemon_args));
	o.faults = calloc((size_t)argc, sizeof(*o.faults));
	if (!o.daemon_args || !o.faults)
		return cli_fail("out of memory");
	status = parse_options(argc, argv, &o, &done);
	if (status == CLI_OK && !done)
		status = run_command(&o);
	free(o.daemon_args);
	free(o.faults);
	return status;
}
