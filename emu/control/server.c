/* SPDX-License-Identifier: BSD-2-Clause */
/* The server: the socket clients connect to, and the control thread's loop. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <urcu-qsbr.h>

#include "control.h"

#define SERVER_BACKLOG 128
#define SERVER_RETRY 0.1 /* seconds, where no fd was free */

/* A client connects. */
static void server_accept(struct ev_loop *loop, ev_io *w, int revents)
{
	struct server *s = w->data;
	int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0) {
		if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS)
			return;
		log_warning("cannot accept a client: %s", strerror(errno));
		ev_io_stop(loop, &s->accept);
		ev_timer_set(&s->retry, SERVER_RETRY, 0.);
		ev_timer_start(loop, &s->retry);
		return;
	}
	if (client_start(s, fd) != 0)
		close(fd);
}

/* Time to accept again. */
static void server_retry(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct server *s = w->data;

	ev_io_start(loop, &s->accept);
}

/* A worker could not send an event at once. */
static void server_flush(struct ev_loop *loop, ev_async *w, int revents)
{
	struct server *s = w->data;
	struct client *c;

	cds_list_for_each_entry (c, &s->clients, node)
		client_flush_events(c);
}

void server_flush_events(struct server *s)
{
	ev_async_send(s->loop, &s->flush);
}

/* SIGTERM or SIGINT: server_run() returns. */
static void server_signal(struct ev_loop *loop, ev_signal *w, int revents)
{
	log_info("%s: ending", strsignal(w->signum));
	ev_break(loop, EVBREAK_ALL);
}

/* While it waits, the control thread holds up no grace period. */
static void server_release(struct ev_loop *loop) EV_NOEXCEPT
{
	rcu_thread_offline();
}

/* It has waited. */
static void server_acquire(struct ev_loop *loop) EV_NOEXCEPT
{
	rcu_thread_online();
}

/*
 * Makes way for our socket: removes one that no daemon serves any more.
 * @return 0, or a negative errno with the cause written
 */
static int server_clear_path(const struct sockaddr_un *addr, char *error, size_t error_len)
{
	struct stat st;
	int fd, err;

	if (lstat(addr->sun_path, &st) != 0)
		return 0; /* what else may be wrong, bind() will say */
	if (!S_ISSOCK(st.st_mode)) {
		snprintf(error, error_len, "socket %s: the file exists and is not a socket",
			 addr->sun_path);
		return -EEXIST;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		err = -errno;
		snprintf(error, error_len, "socket %s: %s", addr->sun_path, strerror(-err));
		return err;
	}
	err = connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) != 0 ? -errno : 0;
	close(fd);
	if (err == -ECONNREFUSED) {
		if (unlink(addr->sun_path) == 0 || errno == ENOENT)
			return 0;
		err = -errno;
		snprintf(error, error_len, "socket %s: cannot remove the stale socket: %s",
			 addr->sun_path, strerror(-err));
		return err;
	}
	if (err == 0 || err == -EAGAIN || err == -EPROTOTYPE) {
		snprintf(error, error_len, "socket %s: served by another process already",
			 addr->sun_path);
		return -EADDRINUSE;
	}
	snprintf(error, error_len, "socket %s: %s", addr->sun_path, strerror(-err));
	return err;
}

/* Binds and listens. @return 0, or a negative errno with the cause written */
static int server_listen(struct server *s, const char *path, char *error, size_t error_len)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct stat st;
	mode_t mask;
	int err;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	snprintf(s->path, sizeof(s->path), "%s", path);
	/* The system's directory is made where we may; others are the caller's to make. */
	if (strcmp(path, VERNIC_SOCKET_SYSTEM) == 0 && mkdir("/run/vernic", 0755) != 0 &&
	    errno != EEXIST) {
		err = -errno;
		snprintf(error, error_len, "/run/vernic: %s; set XDG_RUNTIME_DIR or use --socket",
			 strerror(-err));
		return err;
	}
	err = server_clear_path(&addr, error, error_len);
	if (err != 0)
		return err;
	s->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->fd < 0) {
		err = -errno;
		goto fail;
	}
	/* Nobody else's business, from the first moment on. */
	mask = umask(0177);
	err = bind(s->fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 ? -errno : 0;
	umask(mask);
	if (err != 0)
		goto fail_fd;
	if (stat(path, &st) == 0) {
		s->path_dev = st.st_dev;
		s->path_ino = st.st_ino;
	}
	if (listen(s->fd, SERVER_BACKLOG) == 0)
		return 0;
	err = -errno;
	unlink(path);
fail_fd:
	close(s->fd);
fail:
	snprintf(error, error_len, "socket %s: %s", path, strerror(-err));
	return err;
}

/* Removes the socket file, unless it is not ours any more. */
static void server_unlink(const struct server *s)
{
	struct stat st;

	if (lstat(s->path, &st) == 0 && st.st_dev == s->path_dev && st.st_ino == s->path_ino)
		unlink(s->path);
}

int server_start(struct server *s, struct host *host, const char *path, char *error,
		 size_t error_len)
{
	int err;

	memset(s, 0, sizeof(*s));
	s->host = host;
	CDS_INIT_LIST_HEAD(&s->clients);
	CDS_INIT_LIST_HEAD(&s->xrcds);
	s->loop = ev_loop_new(EVFLAG_AUTO);
	if (s->loop == NULL) {
		snprintf(error, error_len, "no event loop can be had");
		return -ENOMEM;
	}
	err = server_listen(s, path, error, error_len);
	if (err != 0) {
		ev_loop_destroy(s->loop);
		return err;
	}
	ev_io_init(&s->accept, server_accept, s->fd, EV_READ);
	s->accept.data = s;
	ev_io_start(s->loop, &s->accept);
	ev_timer_init(&s->retry, server_retry, 0., 0.);
	s->retry.data = s;
	ev_async_init(&s->flush, server_flush);
	s->flush.data = s;
	ev_async_start(s->loop, &s->flush);
	ev_signal_init(&s->sigterm, server_signal, SIGTERM);
	ev_signal_start(s->loop, &s->sigterm);
	ev_signal_init(&s->sigint, server_signal, SIGINT);
	ev_signal_start(s->loop, &s->sigint);
	ev_set_loop_release_cb(s->loop, server_release, server_acquire);
	sysfs_create(&s->sysfs, host, path);
	return 0;
}

void server_run(struct server *s)
{
	rcu_register_thread();
	ev_run(s->loop, 0);
	rcu_unregister_thread();
}

void server_stop(struct server *s)
{
	struct client *c, *next;

	/* While the socket is there no other daemon makes its tree in this place. */
	sysfs_destroy(&s->sysfs);
	/* Unserved it would keep new clients waiting: it goes before they do. */
	server_unlink(s);
	ev_io_stop(s->loop, &s->accept);
	close(s->fd);
	cds_list_for_each_entry_safe (c, next, &s->clients, node)
		client_end(c);
	ev_loop_destroy(s->loop);
}
