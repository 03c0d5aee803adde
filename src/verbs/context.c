/* SPDX-License-Identifier: BSD-2-Clause */
/* Device contexts: opening, closing, losing the daemon, and fork(). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

/* The daemon finds a way to this process's memory by reading this. */
static uint64_t probe_word;

/* All contexts of the process, for fork(). */
static pthread_mutex_t contexts_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct context *contexts;

void context_died(struct context *ctx)
{
	vernic_store_release(&ctx->dead, 1);
}

/* ---- operations that do not work ----------------------------------------------------------- */

/* In a forked child the rings are not mapped. */
static int forked_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	*bad_wr = wr;
	return EIO;
}

static int forked_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	return EIO;
}

static int forked_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	*bad_wr = wr;
	return EIO;
}

static int forked_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr,
				struct ibv_recv_wr **bad_wr)
{
	*bad_wr = wr;
	return EIO;
}

static int forked_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
	return -EIO;
}

static int forked_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return EIO;
}

static const struct ibv_context_ops live_ops = {
	.alloc_mw = mw_alloc,
	.bind_mw = mw_bind,
	.dealloc_mw = mw_dealloc,
	.poll_cq = poll_cq,
	.req_notify_cq = cq_req_notify,
	.post_srq_recv = post_srq_recv,
	.post_send = post_send,
	.post_recv = post_recv,
};

static const struct ibv_context_ops forked_ops = {
	.alloc_mw = mw_alloc,
	.bind_mw = forked_bind_mw,
	.dealloc_mw = mw_dealloc,
	.poll_cq = forked_poll_cq,
	.req_notify_cq = forked_req_notify_cq,
	.post_srq_recv = forked_post_srq_recv,
	.post_send = forked_post_send,
	.post_recv = forked_post_recv,
};

/* ---- fork() -------------------------------------------------------------------------------- */

/* Around fork(): nobody is in the middle of changing the list of contexts. */
static void fork_prepare(void)
{
	pthread_mutex_lock(&contexts_mutex);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&contexts_mutex);
}

/*
 * The child's contexts are dead. Its copy of the connection is closed, so that the daemon sees the
 * parent end; locks that another thread of the parent held are made new.
 */
static void fork_child(void)
{
	pthread_mutex_init(&contexts_mutex, NULL);
	for (struct context *ctx = contexts; ctx; ctx = ctx->next) {
		if (ctx->ctl >= 0)
			close(ctx->ctl);
		ctx->ctl = -1;
		if (ctx->child_ctl >= 0)
			close(ctx->child_ctl);
		ctx->child_ctl = -1;
		ctx->verbs.context.cmd_fd = -1;
		ctx->verbs.context.ops = forked_ops;
		pthread_mutex_init(&ctx->ctl_mutex, NULL);
		pthread_mutex_init(&ctx->qp_mutex, NULL);
		pthread_mutex_init(&ctx->objects_mutex, NULL);
		context_died(ctx);
	}
}

/* Once per process. */
static void process_init(void)
{
	pthread_atfork(fork_prepare, fork_parent, fork_child);
	if (getrandom(&probe_word, sizeof(probe_word), GRND_NONBLOCK) !=
	    (ssize_t)sizeof(probe_word))
		probe_word = (uintptr_t)&probe_word * UINT64_C(0x9e3779b97f4a7c15);
}

/* ---- opening and closing ------------------------------------------------------------------- */

/* Makes a connection a device context. fds: as struct vernic_reply says. @return 0 or errno */
static int open_device(struct context *ctx, int ctl, const char *name, int *fds)
{
	struct vernic_request req = {.command = VERNIC_CMD_OPEN_DEVICE};
	socklen_t cookie_len = sizeof(req.open_device.cookie);
	struct vernic_reply reply;
	struct stat st;
	int mem, error;

	snprintf(req.open_device.name, sizeof(req.open_device.name), "%s", name);
	req.open_device.probe_addr = (uintptr_t)&probe_word;
	req.open_device.probe_value = probe_word;
	if (fstat(ctl, &st) == 0) {
		req.open_device.dev = st.st_dev;
		req.open_device.ino = st.st_ino;
	}
	if (getsockopt(ctl, SOL_SOCKET, SO_COOKIE, &req.open_device.cookie, &cookie_len) != 0)
		req.open_device.cookie = 0;
	/* Lets the daemon, which is not our parent, at our memory where Yama restricts that. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	mem = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	error = control_exchange(ctl, &req, mem, &reply, fds, 3 + VERNIC_MAX_WORKERS);
	if (mem >= 0)
		close(mem);
	if (error)
		return error;
	ctx->workers = reply.open_device.workers;
	ctx->doorbell_stride = reply.open_device.doorbell_stride;
	ctx->device_index = reply.open_device.device_index;
	if (ctx->workers < 1 || ctx->workers > VERNIC_MAX_WORKERS || fds[2 + ctx->workers] < 0 ||
	    ctx->doorbell_stride < sizeof(struct vernic_doorbell) ||
	    ctx->device_index >= VERNIC_MAX_DEVICES)
		return EPROTO;
	return 0;
}

int context_open_child(struct context *ctx)
{
	int fds[3 + VERNIC_MAX_WORKERS], ctl, error;

	ctl = control_connect();
	if (ctl < 0)
		return errno;
	error = open_device(ctx, ctl, ctx->verbs.context.device->name, fds);
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
	if (error)
		close(ctl);
	else
		ctx->child_ctl = ctl;
	return error;
}

/* Maps doorbells and worker pages and keeps the descriptors. @return 0 or a positive errno */
static int map_device(struct context *ctx, int *fds)
{
	ctx->doorbells = control_map(fds[0], (size_t)ctx->workers * ctx->doorbell_stride,
				     PROT_READ | PROT_WRITE);
	fds[0] = -1;
	if (!ctx->doorbells)
		return errno;
	ctx->page = control_map(fds[1], sizeof(*ctx->page), PROT_READ);
	fds[1] = -1;
	if (!ctx->page)
		return errno;
	ctx->device = &ctx->page->device[ctx->device_index];
	ctx->verbs.context.async_fd = fds[2];
	fds[2] = -1;
	/* The program says whether reading waits. */
	fcntl(ctx->verbs.context.async_fd, F_SETFL, 0);
	for (uint32_t i = 0; i < ctx->workers; i++) {
		ctx->wake_fd[i] = fds[3 + i];
		fds[3 + i] = -1;
	}
	return 0;
}

/* Reads port and GID table, which address handles are checked against. */
static int read_tables(struct context *ctx)
{
	int error;

	error = device_query_port(&ctx->verbs.context, 1, &ctx->port, sizeof(ctx->port));
	if (error)
		return error;
	ctx->gid_count = ctx->port.gid_tbl_len;
	if (ctx->gid_count > VERNIC_GID_MAX)
		ctx->gid_count = VERNIC_GID_MAX;
	return device_read_gids(ctx);
}

/* Frees a context, half made or whole. */
static void context_free(struct context *ctx)
{
	control_unmap(ctx, ctx->doorbells, (size_t)ctx->workers * ctx->doorbell_stride);
	control_unmap(ctx, (void *)ctx->page, sizeof(*ctx->page));
	for (uint32_t i = 0; i < VERNIC_MAX_WORKERS; i++) {
		if (ctx->wake_fd[i] >= 0)
			close(ctx->wake_fd[i]);
	}
	if (ctx->verbs.context.async_fd >= 0)
		close(ctx->verbs.context.async_fd);
	if (ctx->ctl >= 0)
		close(ctx->ctl);
	if (ctx->import_fd >= 0)
		close(ctx->import_fd);
	if (ctx->child_ctl >= 0)
		close(ctx->child_ctl);
	mr_table_fini(&ctx->mrs);
	pthread_mutex_destroy(&ctx->ctl_mutex);
	pthread_mutex_destroy(&ctx->qp_mutex);
	pthread_mutex_destroy(&ctx->objects_mutex);
	pthread_mutex_destroy(&ctx->verbs.context.mutex);
	free(ctx->qps);
	free(atomic_load(&ctx->wqs));
	free(ctx);
}

/* Fills in what the inline functions of <infiniband/verbs.h> call. */
static void set_operations(struct context *ctx)
{
	struct verbs_context *v = &ctx->verbs;

	v->sz = sizeof(*v);
	v->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	v->context.ops = live_ops;
	v->query_port = device_query_port;
	v->query_device_ex = device_query_ex;
	v->query_rt_values = device_query_rt_values;
	v->modify_cq = cq_modify;
	v->create_wq = wq_create;
	v->modify_wq = wq_modify;
	v->destroy_wq = wq_destroy;
	v->create_rwq_ind_table = rwq_table_create;
	v->destroy_rwq_ind_table = rwq_table_destroy;
	v->alloc_td = td_alloc;
	v->dealloc_td = td_dealloc;
	v->alloc_parent_domain = pd_alloc_parent;
	v->create_cq_ex = cq_create_ex;
	v->create_qp_ex = qp_create_ex;
	v->modify_qp_rate_limit = qp_modify_rate_limit;
	v->get_srq_num = srq_get_num;
	v->advise_mr = mr_advise;
	v->alloc_null_mr = mr_alloc_null;
	v->alloc_dm = dm_alloc;
	v->free_dm = dm_free;
	v->reg_dm_mr = dm_reg_mr;
	v->create_counters = counters_create;
	v->destroy_counters = counters_destroy;
	v->attach_counters_point_flow = counters_attach;
	v->read_counters = counters_read;
	v->create_srq_ex = srq_create_ex;
	v->open_xrcd = xrcd_open;
	v->close_xrcd = xrcd_close;
	v->open_qp = qp_open;
}

/*
 * Has the connection share the objects of another context.
 * @fd: that one's cmd_fd
 * @return its device, or NULL and errno
 */
static struct ibv_device *import_device(struct context *ctx, int fd)
{
	struct vernic_request req = {.command = VERNIC_CMD_IMPORT_DEVICE};
	struct vernic_reply reply;
	int error;

	error = control_exchange(ctx->ctl, &req, fd, &reply, NULL, 0);
	if (error) {
		errno = error;
		return NULL;
	}
	return device_of(&reply.import_device);
}

/* Opens a device, or with ibdev NULL, the one of the context that import_fd is of. */
static struct ibv_context *context_open(struct ibv_device *ibdev, int import_fd)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int fds[3 + VERNIC_MAX_WORKERS];
	struct context *ctx;
	int error;

	pthread_once(&once, process_init);
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		fds[i] = -1;
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return NULL;
	pthread_mutex_init(&ctx->ctl_mutex, NULL);
	pthread_mutex_init(&ctx->qp_mutex, NULL);
	pthread_mutex_init(&ctx->objects_mutex, NULL);
	pthread_mutex_init(&ctx->verbs.context.mutex, NULL);
	ctx->pid = getpid();
	ctx->import_fd = ctx->child_ctl = -1;
	ctx->verbs.context.async_fd = -1;
	for (uint32_t i = 0; i < VERNIC_MAX_WORKERS; i++)
		ctx->wake_fd[i] = -1;
	set_operations(ctx);

	ctx->ctl = control_connect();
	error = ctx->ctl < 0 ? errno : mr_table_init(&ctx->mrs);
	if (error)
		goto err;
	ctx->qps = calloc(VERNIC_MAX_CONTEXT_QP, sizeof(*ctx->qps));
	if (!ctx->qps) {
		error = ENOMEM;
		goto err;
	}
	if (!ibdev) {
		ibdev = import_device(ctx, import_fd);
		if (!ibdev) {
			error = errno;
			goto err;
		}
	}
	error = open_device(ctx, ctx->ctl, ibdev->name, fds);
	if (!error)
		error = map_device(ctx, fds);
	if (!error)
		error = read_tables(ctx);
	if (error)
		goto err;

	ctx->verbs.context.device = ibdev;
	/* What was imported is the context's own, and stays open as long. */
	ctx->import_fd = import_fd;
	ctx->verbs.context.cmd_fd = import_fd >= 0 ? import_fd : ctx->ctl;
	ctx->verbs.context.num_comp_vectors = (int)ctx->workers;
	pthread_mutex_lock(&contexts_mutex);
	ctx->next = contexts;
	contexts = ctx;
	pthread_mutex_unlock(&contexts_mutex);
	return &ctx->verbs.context;

err:
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
	context_free(ctx);
	errno = error;
	return NULL;
}

struct ibv_context *ibv_open_device(struct ibv_device *ibdev)
{
	return context_open(ibdev, -1);
}

struct ibv_context *ibv_import_device(int cmd_fd)
{
	if (cmd_fd < 0) {
		errno = EBADF;
		return NULL;
	}
	return context_open(NULL, cmd_fd);
}

int ibv_close_device(struct ibv_context *context)
{
	struct context *ctx = to_context(context);

	pthread_mutex_lock(&contexts_mutex);
	for (struct context **p = &contexts; *p; p = &(*p)->next) {
		if (*p == ctx) {
			*p = ctx->next;
			break;
		}
	}
	pthread_mutex_unlock(&contexts_mutex);
	context_free(ctx);
	return 0;
}

/* ---- fork support: memory is reached by address space, nothing is pinned -------------------- */

int ibv_fork_init(void)
{
	return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}

int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);

int ibv_dontfork_range(void *base, size_t size)
{
	return 0;
}

int ibv_dofork_range(void *base, size_t size)
{
	return 0;
}
