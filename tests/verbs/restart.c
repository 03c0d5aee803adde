// SPDX-License-Identifier: BSD-2-Clause
/*
 * A daemon that was killed can be started again at once, on the same socket and address; one that
 * lives is not to be pushed aside. The argument is the daemon to start.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

#define ADDRESS "127.77.0.3"

/*
 * Starts a daemon and waits until it serves, or ends.
 * @return its PID; *ready: whether it serves
 */
static pid_t start(const char *daemon, const char *socket, int *ready)
{
	int fds[2];
	char fd[16], byte;
	pid_t pid;

	CHECK_EQ(pipe(fds), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		close(fds[0]);
		snprintf(fd, sizeof(fd), "%d", fds[1]);
		execl(daemon, daemon, "--socket", socket, "--workers", "2", "--device",
		      "name=vernic0,addr=" ADDRESS, "--ready-fd", fd, NULL);
		_exit(127);
	}
	close(fds[1]);
	*ready = read(fds[0], &byte, 1) == 1;
	close(fds[0]);
	return pid;
}

static int end(pid_t pid, int signal)
{
	int status;

	CHECK_EQ(kill(pid, signal), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	return status;
}

int main(int argc, char **argv)
{
	char dir[] = "/tmp/vernic-restart-XXXXXX", socket[64], other[64];
	int ready, status;
	pid_t pid, second;

	CHECK_EQ(argc, 2);
	CHECK(mkdtemp(dir));
	snprintf(socket, sizeof(socket), "%s/s", dir);
	snprintf(other, sizeof(other), "%s/t", dir);
	for (int i = 0; i < 20; i++) {
		pid = start(argv[1], socket, &ready);
		CHECK(ready);
		CHECK_EQ(end(pid, SIGKILL), SIGKILL);
	}
	pid = start(argv[1], socket, &ready);
	CHECK(ready);
	/* The same socket; then the same address. */
	for (int i = 0; i < 2; i++) {
		second = start(argv[1], i ? other : socket, &ready);
		CHECK(!ready);
		CHECK_EQ(waitpid(second, &status, 0), second);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	}
	CHECK_EQ(end(pid, SIGTERM), 0);
	CHECK(access(socket, F_OK) != 0);
	CHECK_EQ(rmdir(dir), 0);
	return 0;
}
