// SPDX-License-Identifier: BSD-2-Clause
/* Asking the daemon, on a connection that lasts for one request. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <vernic/control.h>

#include "preload.h"

/* Seconds a daemon may take; one that is stopped must not hang a monitor for ever. */
#define ASK_TIMEOUT 5

/* Connects and shakes hands. @return a socket or -1 */
static int ask_connect(const char *path)
{
	struct vernic_hello hello = {.magic = VERNIC_MAGIC, .version = VERNIC_ABI_VERSION};
	struct timeval timeout = {.tv_sec = ASK_TIMEOUT};
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd;

	if (strlen(path) >= sizeof(addr.sun_path))
		return -1;
	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0 &&
	    send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == (ssize_t)sizeof(hello) &&
	    recv(fd, &hello, sizeof(hello), 0) == (ssize_t)sizeof(hello) && hello.status == 0)
		return fd;
	close(fd);
	return -1;
}

void ask_update(const char *socket, const char *path)
{
	struct vernic_request request = {.command = VERNIC_CMD_SYSFS};
	struct vernic_reply reply;
	int saved = errno;
	int fd;

	if (strlen(path) >= sizeof(request.sysfs.path))
		return;
	strcpy(request.sysfs.path, path);
	fd = ask_connect(socket);
	if (fd >= 0) {
		/* The answer says that the file is there; what is in it otherwise, is old. */
		if (send(fd, &request, sizeof(request), MSG_NOSIGNAL) == (ssize_t)sizeof(request))
			recv(fd, &reply, sizeof(reply), 0);
		close(fd);
	}
	errno = saved;
}
