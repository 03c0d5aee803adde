/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Clients: connections, their messages, and what is shared with them.
 *
 * A client sends one request at a time and waits for the answer, so nothing is queued for it: a
 * client whose socket does not take a reply has broken the protocol and is dropped. Everything made
 * on a connection is destroyed with it, also when the process was killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control.h"

/* Events kept for a client that does not read them. */
#define EVENT_QUEUE_MAX (1u << 17)

/* Ring memory up to this size is there before its first use: a page fault costs 10 us. */
#define RING_POPULATE_MAX (1u << 20)

/* What each command is for. */
static const struct {
	int (*handle)(struct client *c, struct message *m);
	bool device; /* a device must have been opened */
	bool works;  /* and must not have failed since */
} commands[VERNIC_CMD_COUNT] = {
	[VERNIC_CMD_STATUS] = {handle_status, false},
	[VERNIC_CMD_STATS] = {handle_stats, false},
	[VERNIC_CMD_SYSFS] = {handle_sysfs, false},
	[VERNIC_CMD_LIST_DEVICES] = {handle_list_devices, false},
	[VERNIC_CMD_OPEN_DEVICE] = {handle_open_device, false},
	[VERNIC_CMD_QUERY_DEVICE] = {handle_query_device, true, true},
	[VERNIC_CMD_QUERY_PORT] = {handle_query_port, true, true},
	[VERNIC_CMD_QUERY_GID] = {handle_query_gid, true, true},
	[VERNIC_CMD_ALLOC_PD] = {handle_alloc_pd, true, true},
	[VERNIC_CMD_DEALLOC_PD] = {handle_dealloc_pd, true},
	[VERNIC_CMD_REG_MR] = {handle_reg_mr, true, true},
	[VERNIC_CMD_DEREG_MR] = {handle_dereg_mr, true},
	[VERNIC_CMD_REREG_MR] = {handle_rereg_mr, true, true},
	[VERNIC_CMD_ADVISE_MR] = {handle_advise_mr, true, true},
	[VERNIC_CMD_ALLOC_MW] = {handle_alloc_mw, true, true},
	[VERNIC_CMD_DEALLOC_MW] = {handle_dealloc_mw, true},
	[VERNIC_CMD_ALLOC_DM] = {handle_alloc_dm, true, true},
	[VERNIC_CMD_FREE_DM] = {handle_free_dm, true},
	[VERNIC_CMD_IMPORT_DEVICE] = {handle_import_device, false},
	[VERNIC_CMD_IMPORT_PD] = {handle_import_pd, true, true},
	[VERNIC_CMD_IMPORT_MR] = {handle_import_mr, true, true},
	[VERNIC_CMD_IMPORT_DM] = {handle_import_dm, true, true},
	[VERNIC_CMD_CREATE_CHANNEL] = {handle_create_channel, true, true},
	[VERNIC_CMD_DESTROY_CHANNEL] = {handle_destroy_channel, true},
	[VERNIC_CMD_CREATE_CQ] = {handle_create_cq, true, true},
	[VERNIC_CMD_DESTROY_CQ] = {handle_destroy_cq, true},
	[VERNIC_CMD_CREATE_SRQ] = {handle_create_srq, true, true},
	[VERNIC_CMD_MODIFY_SRQ] = {handle_modify_srq, true, true},
	[VERNIC_CMD_QUERY_SRQ] = {handle_query_srq, true, true},
	[VERNIC_CMD_DESTROY_SRQ] = {handle_destroy_srq, true},
	[VERNIC_CMD_CREATE_QP] = {handle_create_qp, true, true},
	[VERNIC_CMD_OPEN_QP] = {handle_open_qp, true, true},
	[VERNIC_CMD_OPEN_XRCD] = {handle_open_xrcd, true, true},
	[VERNIC_CMD_CLOSE_XRCD] = {handle_close_xrcd, true},
	[VERNIC_CMD_MODIFY_QP] = {handle_modify_qp, true, true},
	[VERNIC_CMD_QUERY_QP] = {handle_query_qp, true, true},
	[VERNIC_CMD_DESTROY_QP] = {handle_destroy_qp, true},
	[VERNIC_CMD_ATTACH_MCAST] = {handle_attach_mcast, true, true},
	[VERNIC_CMD_DETACH_MCAST] = {handle_detach_mcast, true},
	[VERNIC_CMD_DEVICE_ADD] = {handle_device_add, false},
	[VERNIC_CMD_DEVICE_ADMIN] = {handle_device_admin, false},
	[VERNIC_CMD_CAPTURE] = {handle_capture, false},
	[VERNIC_CMD_FAULT_ADD] = {handle_fault_add, false},
	[VERNIC_CMD_FAULT_LIST] = {handle_fault_list, false},
	[VERNIC_CMD_FAULT_CLEAR] = {handle_fault_clear, false},
	[VERNIC_CMD_RESIZE_CQ] = {handle_resize_cq, true, true},
	[VERNIC_CMD_MODIFY_CQ] = {handle_modify_cq, true, true},
	[VERNIC_CMD_CREATE_WQ] = {handle_create_wq, true, true},
	[VERNIC_CMD_MODIFY_WQ] = {handle_modify_wq, true, true},
	[VERNIC_CMD_DESTROY_WQ] = {handle_destroy_wq, true},
	[VERNIC_CMD_CREATE_RWQ_TABLE] = {handle_create_rwq_table, true, true},
	[VERNIC_CMD_DESTROY_RWQ_TABLE] = {handle_destroy_rwq_table, true},
};

/* ---- shared memory ------------------------------------------------------------------------ */

int shared_memory_create(const char *name, size_t size, void **base, int *fd)
{
	int flags = MAP_SHARED | (size <= RING_POPULATE_MAX ? MAP_POPULATE : 0);
	int err;

	*fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0)
		return -errno;
	if (ftruncate(*fd, (off_t)size) != 0)
		goto fail;
	*base = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, *fd, 0);
	if (*base == MAP_FAILED)
		goto fail;
	if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
		return 0;
	err = -errno;
	munmap(*base, size);
	close(*fd);
	return err;
fail:
	err = -errno;
	close(*fd);
	return err;
}

int ring_memory_create(struct ring_memory *r, const char *name, size_t size, struct message *m)
{
	int fd, err;

	r->size = round_up(size, 4096);
	err = shared_memory_create(name, r->size, &r->base, &fd);
	if (err != 0)
		return err;
	message_add_fd(m, fd);
	return 0;
}

void ring_memory_destroy(struct ring_memory *r)
{
	munmap(r->base, r->size);
}

int shared_page_create(struct host *host)
{
	char path[64];
	void *base;
	int fd, err;

	host->page_size = 4096;
	err = shared_memory_create("vernic-page", host->page_size, &base, &fd);
	if (err != 0)
		return err;
	host->page = base;
#ifdef F_SEAL_FUTURE_WRITE
	/* From here on nobody can map it writable; our own mapping stays. */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0) {
		host->page_fd = fd;
		return 0;
	}
#endif
	/* Without that seal (before Linux 5.1, gVisor): a descriptor that is read-only. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	host->page_fd = open(path, O_RDONLY | O_CLOEXEC);
	err = host->page_fd < 0 ? -errno : 0;
	close(fd);
	if (err != 0)
		munmap(base, host->page_size);
	return err;
}

void shared_page_destroy(struct host *host)
{
	close(host->page_fd);
	munmap(host->page, host->page_size);
}

/* ---- asynchronous events ------------------------------------------------------------------ */

/* Appends to the queue. Called with the lock held. @return whether there was room */
static bool event_queue_append(struct event_queue *q, const struct vernic_async_event *event)
{
	if (q->count == q->capacity) {
		uint32_t capacity = q->capacity != 0 ? 2 * q->capacity : 64;
		void *grown = NULL;

		if (capacity <= EVENT_QUEUE_MAX)
			grown = realloc(q->event, capacity * sizeof(q->event[0]));
		if (grown == NULL)
			return false;
		q->event = grown;
		q->capacity = capacity;
	}
	q->event[q->count++] = *event;
	return true;
}

/* @return whether the socket took the event, or nobody is there to read it */
static bool event_send(struct event_queue *q, const struct vernic_async_event *event)
{
	return send(q->fd, event, sizeof(*event), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
	       (errno != EAGAIN && errno != ENOBUFS);
}

void client_async_event(struct client *c, enum ibv_event_type type, uint32_t element,
			uint32_t qp_num)
{
	struct vernic_async_event event = {
		.event_type = (uint32_t)type,
		.element = element,
		.qp_num = qp_num,
	};
	struct event_queue *q = &c->events;
	bool waits = false, lost = false;

	pthread_mutex_lock(&q->lock);
	if (q->count != 0 || !event_send(q, &event)) {
		waits = event_queue_append(q, &event);
		lost = !waits && !q->overflow;
		q->overflow |= !waits;
	}
	pthread_mutex_unlock(&q->lock);
	if (waits)
		server_flush_events(c->server);
	if (lost)
		log_warning("process %d does not read its asynchronous events: some are lost",
			    (int)c->pid);
}

/* The client reads again: sends what waited. */
static void client_events_writable(struct ev_loop *loop, ev_io *w, int revents)
{
	struct client *c = w->data;
	struct event_queue *q = &c->events;
	uint32_t sent = 0;

	pthread_mutex_lock(&q->lock);
	while (sent < q->count && event_send(q, &q->event[sent]))
		sent++;
	memmove(q->event, q->event + sent, (q->count - sent) * sizeof(q->event[0]));
	q->count -= sent;
	if (q->count == 0)
		ev_io_stop(loop, w);
	pthread_mutex_unlock(&q->lock);
}

void client_flush_events(struct client *c)
{
	struct event_queue *q = &c->events;

	pthread_mutex_lock(&q->lock);
	if (q->count != 0 && !ev_is_active(&q->writable)) {
		ev_io_init(&q->writable, client_events_writable, q->fd, EV_WRITE);
		q->writable.data = c;
		ev_io_start(c->server->loop, &q->writable);
	}
	pthread_mutex_unlock(&q->lock);
}

/* ---- messages ----------------------------------------------------------------------------- */

void message_add_fd(struct message *m, int fd)
{
	m->out[m->out_count++] = fd;
}

/*
 * Receives one message with its descriptors.
 * @return bytes (more than size: it was longer), 0 at the end, or a negative errno
 */
static ssize_t client_receive(struct client *c, void *buf, size_t size, struct message *m)
{
	union {
		char space[CMSG_SPACE(sizeof(m->in))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = buf, .iov_len = size};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.space,
		.msg_controllen = sizeof(control.space),
	};
	ssize_t n = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);

	if (n < 0)
		return -errno;
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&msg); h != NULL; h = CMSG_NXTHDR(&msg, h)) {
		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		m->in_count = (unsigned int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(m->in, CMSG_DATA(h), m->in_count * sizeof(int));
	}
	return n;
}

/* Sends a message with descriptors and a text behind. @return 0 or a negative errno */
static int client_send(struct client *c, const void *buf, size_t size, const struct message *m)
{
	union {
		char space[CMSG_SPACE(sizeof(m->out))];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov[2] = {
		{.iov_base = (void *)(uintptr_t)buf, .iov_len = size},
		{.iov_base = m->text, .iov_len = m->text_len},
	};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = m->text_len != 0 ? 2 : 1};

	if (m->out_count != 0) {
		struct cmsghdr *h;
		size_t bytes = m->out_count * sizeof(int);

		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(bytes);
		h = CMSG_FIRSTHDR(&msg);
		h->cmsg_level = SOL_SOCKET;
		h->cmsg_type = SCM_RIGHTS;
		h->cmsg_len = CMSG_LEN(bytes);
		memcpy(CMSG_DATA(h), m->out, bytes);
	}
	return sendmsg(c->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Closes what a message brought and was not kept, and what went with its reply. */
static void message_release(struct message *m)
{
	for (unsigned int i = 0; i < m->in_count; i++) {
		if (m->in[i] >= 0)
			close(m->in[i]);
	}
	for (unsigned int i = 0; i < m->out_count; i++)
		close(m->out[i]);
	free(m->text);
}

/*
 * Answers the hello.
 * @return 0, or a negative errno that ends the connection
 */
static int client_greet(struct client *c, const void *buf, ssize_t len, const struct message *m)
{
	struct vernic_hello hello = {.magic = VERNIC_MAGIC, .version = VERNIC_ABI_VERSION};
	struct vernic_hello theirs = {0};
	int err;

	if (len == (ssize_t)sizeof(theirs))
		memcpy(&theirs, buf, sizeof(theirs));
	if (theirs.magic != VERNIC_MAGIC || theirs.version != VERNIC_ABI_VERSION)
		hello.status = EPROTO;
	err = client_send(c, &hello, sizeof(hello), m);
	if (err == 0 && hello.status != 0) {
		log_info("process %d speaks version %u of the protocol, not %u", (int)c->pid,
			 theirs.version, VERNIC_ABI_VERSION);
		err = -EPROTO;
	}
	c->greeted = err == 0;
	return err;
}

/* Carries a request out and answers it. @return 0, or a negative errno that ends the connection */
static int client_serve(struct client *c, const struct vernic_request *req, ssize_t len,
			struct message *m)
{
	struct vernic_reply reply = {0};
	int err;

	m->req = req;
	m->reply = &reply;
	if (len != (ssize_t)sizeof(*req) || req->command >= VERNIC_CMD_COUNT ||
	    commands[req->command].handle == NULL ||
	    (commands[req->command].device && c->device == NULL))
		err = -EINVAL;
	else if (commands[req->command].works && device_has_failed(c->device))
		err = -EIO;
	else
		err = commands[req->command].handle(c, m);
	if (err != 0) {
		/* The descriptors of what was not made stay here. */
		for (unsigned int i = 0; i < m->out_count; i++)
			close(m->out[i]);
		m->out_count = 0;
		reply.status = -err;
	}
	err = client_send(c, &reply, sizeof(reply), m);
	m->req = NULL;
	m->reply = NULL;
	return err;
}

/* A message is there, or the end. */
static void client_readable(struct ev_loop *loop, ev_io *w, int revents)
{
	struct client *c = w->data;
	struct vernic_request req = {0};
	struct message m = {0};
	ssize_t n = client_receive(c, &req, sizeof(req), &m);
	int err = 0;

	if (n == -EAGAIN || n == -EINTR)
		return;
	if (n <= 0)
		err = -ECONNRESET;
	else if (!c->greeted)
		err = client_greet(c, &req, n, &m);
	else
		err = client_serve(c, &req, n, &m);
	message_release(&m);
	if (err != 0)
		client_end(c);
}

/* The process is gone; a child may still hold its socket, but its memory is no more. */
static void client_exited(struct ev_loop *loop, ev_io *w, int revents)
{
	client_end(w->data);
}

/* ---- beginning and end -------------------------------------------------------------------- */

int client_start(struct server *s, int fd)
{
	struct client *c = calloc(1, sizeof(*c));
	struct ucred cred = {0};
	socklen_t len = sizeof(cred);
	int room = 2 * MESSAGE_TEXT_MAX;

	if (c == NULL)
		return -ENOMEM;
	c->shared = shared_create();
	if (c->shared == NULL) {
		free(c);
		return -ENOMEM;
	}
	c->server = s;
	c->host = s->host;
	c->fd = fd;
	c->events.fd = -1;
	pthread_mutex_init(&c->events.lock, NULL);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0) {
		c->pid = cred.pid;
		c->uid = cred.uid;
	}
	/* A text reply goes in one message. */
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	/*
	 * While a pidfd says nothing the PID cannot be another process's. Where there are none the
	 * end of the connection has to do.
	 */
	c->pidfd = c->pid > 0 ? (int)syscall(SYS_pidfd_open, c->pid, 0) : -1;
	if (c->pidfd >= 0) {
		ev_io_init(&c->exited, client_exited, c->pidfd, EV_READ);
		c->exited.data = c;
		ev_io_start(s->loop, &c->exited);
	}
	ev_io_init(&c->readable, client_readable, fd, EV_READ);
	c->readable.data = c;
	ev_io_start(s->loop, &c->readable);
	cds_list_add_tail(&c->node, &s->clients);
	return 0;
}

void client_end(struct client *c)
{
	client_close_faults(c);
	if (c->device != NULL) {
		client_close_qps(c);
		client_close_srqs(c);
		client_close_wqs(c);
		client_close_xrcds(c);
		client_close_cqs(c);
		client_close_channels(c);
		client_close_mws(c);
		client_close_mrs(c);
		client_close_dms(c);
		client_close_pds(c);
		client_close_device(c);
	}
	client_close_capture(c);
	handle_table_free(&c->qps);
	handle_table_free(&c->srqs);
	handle_table_free(&c->rwq_tables);
	handle_table_free(&c->wqs);
	handle_table_free(&c->xrcds);
	handle_table_free(&c->cqs);
	handle_table_free(&c->channels);
	shared_put(c->shared);
	ev_io_stop(c->server->loop, &c->readable);
	if (c->pidfd >= 0) {
		ev_io_stop(c->server->loop, &c->exited);
		close(c->pidfd);
	}
	close(c->fd);
	pthread_mutex_destroy(&c->events.lock);
	cds_list_del(&c->node);
	free(c);
}
