// SPDX-License-Identifier: BSD-2-Clause
/*
 * Which paths are Vernic's, and what they become: /sys/class/infiniband and its sisters are
 * directories of the daemon's sysfs tree. So are the device files of the verbs,
 * /dev/infiniband/uverbs*, which programs look at, not into.
 *
 * No lock and no allocation: this runs in signal handlers, between fork() and execve(), and before
 * any constructor. What is remembered is worked out from the environment on first use; should two
 * threads do that at once they write the same bytes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vernic/control.h>

#include "preload.h"

#define SYS_CLASS "/sys/class/infiniband"
#define TREE_CLASS "/class/infiniband"
#define DEV_VERBS "/dev/infiniband/uverbs"
#define MARK "infiniband" /* a path without this word is none of ours */

/* Where the daemon's things are. */
static struct {
	_Atomic int known; /* 0: not looked yet; 1: Vernic is in force; -1: it is not */
	char socket[108];
	char tree[PLACE_MAX / 2];
	size_t tree_len;
} daemon_at;

/* @return whether Vernic is in force */
static bool in_force(void)
{
	int known = atomic_load_explicit(&daemon_at.known, memory_order_acquire);
	const char *socket, *tree;
	int n;

	if (known != 0)
		return known > 0;
	socket = getenv(VERNIC_SOCKET_ENV);
	tree = getenv(VERNIC_SYSFS_ENV);
	known = -1;
	if (socket && socket[0] && strlen(socket) < sizeof(daemon_at.socket))
		strcpy(daemon_at.socket, socket);
	if (tree && tree[0])
		n = snprintf(daemon_at.tree, sizeof(daemon_at.tree), "%s", tree);
	else if (daemon_at.socket[0])
		n = snprintf(daemon_at.tree, sizeof(daemon_at.tree), "%s" VERNIC_SYSFS_SUFFIX,
			     daemon_at.socket);
	else
		n = -1;
	/* A relative one would be another after chdir(). */
	if (n > 0 && (size_t)n < sizeof(daemon_at.tree) && daemon_at.tree[0] == '/') {
		daemon_at.tree_len = (size_t)n;
		known = 1;
	}
	atomic_store_explicit(&daemon_at.known, known, memory_order_release);
	return known > 0;
}

bool place_normalise(const char *path, char out[PLACE_MAX])
{
	size_t len = 0;

	while (*path) {
		const char *end;
		size_t n;

		while (*path == '/')
			path++;
		end = path + strcspn(path, "/");
		n = (size_t)(end - path);
		if (n == 2 && path[0] == '.' && path[1] == '.') {
			while (len && out[--len] != '/')
				;
		} else if (n && !(n == 1 && path[0] == '.')) {
			if (len + n + 2 > PLACE_MAX)
				return false;
			out[len++] = '/';
			memcpy(out + len, path, n);
			len += n;
		}
		path = end;
	}
	if (len == 0)
		out[len++] = '/';
	out[len] = '\0';
	return true;
}

/*
 * Makes a path absolute and normal.
 * @return whether that could be done, and whether it may be one of ours
 */
static bool make_absolute(int at, const char *path, char out[PLACE_MAX])
{
	char joined[PLACE_MAX];
	size_t len;

	if (path[0] == '/')
		return place_normalise(path, out);
	/* From /sys or /sys/class; a directory in the tree needs no help. */
	if (at != AT_FDCWD || !getcwd(joined, sizeof(joined)) || strncmp(joined, "/sys", 4) != 0)
		return false;
	len = strlen(joined);
	if (len + strlen(path) + 2 > sizeof(joined))
		return false;
	joined[len] = '/';
	strcpy(joined + len + 1, path);
	return place_normalise(joined, out);
}

/* place_of() of a path that may be one of ours. Few are: apart, so that the others need no stack.
 */
__attribute__((noinline)) static const char *look_closer(int at, const char *path,
							 struct place_buffer *buf)
{
	const size_t prefix = sizeof(SYS_CLASS) - 1;
	char normal[PLACE_MAX];
	int saved = errno;
	const char *rest;

	if (!make_absolute(at, path, normal)) {
		errno = saved;
		return path;
	}
	/* Out of one of ours by "..", where the kernel may have no such directory. */
	if (strcmp(normal, "/sys/class") == 0 || strcmp(normal, "/sys") == 0)
		return strcpy(buf->path, normal);
	if (strncmp(normal, DEV_VERBS, sizeof(DEV_VERBS) - 1) == 0) {
		if (snprintf(buf->path, sizeof(buf->path), "%s%s", daemon_at.tree, normal) >=
		    (int)sizeof(buf->path))
			buf->path[0] = '\0';
		return buf->path;
	}
	/* infiniband itself, and infiniband_verbs, infiniband_mad ... */
	if (strncmp(normal, SYS_CLASS, prefix) != 0 ||
	    (normal[prefix] != '\0' && normal[prefix] != '/' && normal[prefix] != '_'))
		return path;
	rest = normal + prefix;
	if (snprintf(buf->path, sizeof(buf->path), "%s" TREE_CLASS "%s", daemon_at.tree, rest) >=
	    (int)sizeof(buf->path))
		buf->path[0] = '\0'; /* nothing there has such a name: ENOENT */
	return buf->path;
}

const char *place_of(int at, const char *path, struct place_buffer *buf)
{
	return path && strstr(path, MARK) && in_force() ? look_closer(at, path, buf) : path;
}

bool place_is_device(const char *path, const struct place_buffer *buf, unsigned int *number)
{
	const char *digits;

	if (!place_is_ours(path, buf) || strncmp(path, daemon_at.tree, daemon_at.tree_len) != 0 ||
	    strncmp(path + daemon_at.tree_len, DEV_VERBS, sizeof(DEV_VERBS) - 1) != 0)
		return false;
	digits = path + daemon_at.tree_len + sizeof(DEV_VERBS) - 1;
	*number = PLACE_VERBS_MINOR + (unsigned int)strtoul(digits, NULL, 10);
	return true;
}

/* Has the daemon bring a file of the tree up to date, if it is a counter's. @return whether it is
 */
static bool update(const char *path)
{
	const size_t prefix = daemon_at.tree_len + sizeof(TREE_CLASS "/") - 1;

	if (strncmp(path, daemon_at.tree, daemon_at.tree_len) != 0 ||
	    strncmp(path + daemon_at.tree_len, TREE_CLASS "/", sizeof(TREE_CLASS "/") - 1) != 0 ||
	    (!strstr(path + prefix, "/counters/") && !strstr(path + prefix, "/hw_counters/")) ||
	    !daemon_at.socket[0])
		return false;
	ask_update(daemon_at.socket, path + prefix);
	return true;
}

const char *place_to_open(int at, const char *path, struct place_buffer *buf)
{
	const char *to = place_of(at, path, buf);

	/* In full, or as realpath(3) of something else: the tree's own path is as good. */
	if (to && (place_is_ours(to, buf) || (to[0] == '/' && in_force())))
		update(to);
	return to;
}

/* place_is_stale() of a file that may be one of ours. */
__attribute__((noinline)) static bool update_by_fd(int fd)
{
	char link[64], target[PLACE_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = REAL(readlink)(link, target, sizeof(target) - 1);
	if (n <= 0)
		return false;
	target[n] = '\0';
	return update(target);
}

bool place_is_stale(int fd, const char *path)
{
	struct stat st;
	int saved = errno;
	bool stale = false;

	if (fd < 0 || !path || path[0] == '/' || !in_force())
		return false;
	/* Nearly every file is out of the question at once. */
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 07777) == 0444)
		stale = update_by_fd(fd);
	errno = saved;
	return stale;
}
