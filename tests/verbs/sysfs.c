// SPDX-License-Identifier: BSD-2-Clause
/*
 * /sys/class/infiniband by way of each function of the C library that takes a path, and what has to
 * stay as it is: errno, other paths, signal handlers on small stacks, children, early constructors.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stats.h"

#define DEVICE "/sys/class/infiniband/vernic0"
#define PORT DEVICE "/ports/1"

/* What a constructor that runs before others' read. */
static char early[16];

__attribute__((constructor(101))) static void read_early(void)
{
	int fd = open(DEVICE "/node_type", O_RDONLY);

	if (fd >= 0) {
		if (read(fd, early, sizeof(early) - 1) < 0)
			early[0] = '\0';
		close(fd);
	}
}

/* Reads what an open file has. @return it, closed */
static const char *content(int fd)
{
	static char buf[256];
	ssize_t n;

	CHECK(fd >= 0);
	n = read(fd, buf, sizeof(buf) - 1);
	CHECK(n >= 0);
	buf[n] = '\0';
	close(fd);
	return buf;
}

static const char *stream_content(FILE *f)
{
	static char buf[256];

	CHECK(f);
	CHECK(fgets(buf, sizeof(buf), f));
	fclose(f);
	return buf;
}

#define CHECK_STR(a, b)                                                                           \
	do {                                                                                      \
		const char *a_ = (a), *b_ = (b);                                                  \
		if (strcmp(a_, b_) != 0) {                                                        \
			fprintf(stderr, "%s:%d: '%s' is not '%s'\n", __FILE__, __LINE__, a_, b_); \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

/* As Linux writes them. */
static void contents(const struct env *e)
{
	struct ibv_device_attr attr;
	uint8_t guid[8];
	char want[64];
	unsigned int n = 0;

	CHECK_EQ(ibv_query_device(e->ctx, &attr), 0);
	memcpy(guid, &attr.node_guid, sizeof(guid));
	for (unsigned int i = 0; i < 8; i += 2)
		n += (unsigned int)sprintf(want + n, "%02x%02x%c", guid[i], guid[i + 1],
					   i == 6 ? '\n' : ':');
	CHECK_STR(content(open(DEVICE "/node_guid", O_RDONLY)), want);
	CHECK_STR(content(open(DEVICE "/node_type", O_RDONLY)), "1: CA\n");
	CHECK_STR(content(open(PORT "/state", O_RDONLY)), "4: ACTIVE\n");
	CHECK_STR(content(open(PORT "/phys_state", O_RDONLY)), "5: LinkUp\n");
	CHECK_STR(content(open(PORT "/rate", O_RDONLY)), "100 Gb/sec (4X EDR)\n");
	CHECK_STR(content(open(PORT "/link_layer", O_RDONLY)), "Ethernet\n");
	CHECK_STR(content(open(PORT "/lid", O_RDONLY)), "0x0\n");
	CHECK_STR(content(open(PORT "/pkeys/0", O_RDONLY)), "0xffff\n");
	CHECK_STR(content(open(PORT "/gids/1", O_RDONLY)),
		  "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
	CHECK_STR(content(open(PORT "/gid_attrs/types/1", O_RDONLY)), "RoCE v2\n");
	CHECK_STR(early, "1: CA\n");
}

/* The places programs go on from: those of struct ibv_device, and what Linux has beside them. */
static void places(const struct env *e)
{
	const struct ibv_device *dev = e->ctx->device;
	char path[PATH_MAX], want[64];
	unsigned int number;
	struct stat st;

	CHECK_STR(dev->ibdev_path, DEVICE);
	CHECK_EQ(sscanf(dev->dev_name, "uverbs%u", &number), 1);
	snprintf(want, sizeof(want), "/sys/class/infiniband_verbs/uverbs%u", number);
	CHECK_STR(dev->dev_path, want);
	snprintf(path, sizeof(path), "%s/ibdev", dev->dev_path);
	CHECK_STR(content(open(path, O_RDONLY)), "vernic0\n");
	snprintf(path, sizeof(path), "%s/dev", dev->dev_path);
	snprintf(want, sizeof(want), "231:%u\n", 192 + number);
	CHECK_STR(content(open(path, O_RDONLY)), want);
	snprintf(path, sizeof(path), "%s/abi_version", dev->dev_path);
	CHECK_STR(content(open(path, O_RDONLY)), "1\n");
	snprintf(path, sizeof(path), "%s/device", dev->dev_path);
	CHECK_EQ(stat(path, &st), 0);
	CHECK(S_ISDIR(st.st_mode));
	CHECK(realpath(DEVICE "/device", path));
	CHECK_STR(content(open(DEVICE "/device/numa_node", O_RDONLY)), "-1\n");
	CHECK_STR(content(open(DEVICE "/device/class", O_RDONLY)), "0x020700\n");
	/* An entry of the GID table that is empty: zeros, and no type. */
	CHECK_STR(content(open(PORT "/gids/63", O_RDONLY)),
		  "0000:0000:0000:0000:0000:0000:0000:0000\n");
	CHECK(open(PORT "/gid_attrs/types/63", O_RDONLY) < 0 && errno == ENOENT);

	/* The device file: to be looked at. */
	snprintf(path, sizeof(path), "/dev/infiniband/%s", dev->dev_name);
	CHECK_EQ(stat(path, &st), 0);
	CHECK(S_ISCHR(st.st_mode) && st.st_rdev == makedev(231, 192 + number));
	CHECK_EQ(access(path, R_OK | W_OK), 0);
	CHECK(open(path, O_RDWR) < 0 && errno == EACCES);
	CHECK(stat("/dev/infiniband/uverbs99", &st) < 0 && errno == ENOENT);
	CHECK_EQ(stat("/dev/null", &st), 0);
	CHECK(S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3));
}

/* Each way to open. */
static void opening(void)
{
	int (*open_2)(const char *, int) = (int (*)(const char *, int))dlsym(NULL, "__open_2");
	FILE *f;
	int fd;

	CHECK_STR(content(open64(DEVICE "/node_type", O_RDONLY)), "1: CA\n");
	CHECK_STR(content(openat(AT_FDCWD, DEVICE "/node_type", O_RDONLY)), "1: CA\n");
	CHECK_STR(content(openat64(-1, DEVICE "/node_type", O_RDONLY)), "1: CA\n");
	CHECK_STR(content(open("//sys/./class/net/../infiniband///vernic0/node_type", O_RDONLY)),
		  "1: CA\n");
	CHECK(open_2);
	CHECK_STR(content(open_2(DEVICE "/node_type", O_RDONLY)), "1: CA\n");
	CHECK_STR(stream_content(fopen(DEVICE "/node_type", "r")), "1: CA\n");
	CHECK_STR(stream_content(fopen64(DEVICE "/node_type", "re")), "1: CA\n");
	f = fopen("/dev/null", "r");
	CHECK(f);
	CHECK_STR(stream_content(freopen(DEVICE "/node_type", "r", f)), "1: CA\n");

	/* Only what is there, and only to read it. */
	CHECK(open(DEVICE "/nothing", O_RDONLY) < 0 && errno == ENOENT);
	CHECK(open("/sys/class/infiniband/mlx5_0", O_RDONLY) < 0 && errno == ENOENT);
	CHECK(open("/sys/class/infiniband_mad", O_RDONLY) < 0 && errno == ENOENT);
	CHECK(open(DEVICE "/node_desc", O_WRONLY) < 0 && errno == EACCES);
	CHECK(open(DEVICE "/node_desc", O_RDWR) < 0 && errno == EACCES);
	CHECK(open(DEVICE "/new", O_RDONLY | O_CREAT, 0644) < 0 && errno == EACCES);
	CHECK(creat(DEVICE "/new", 0644) < 0 && errno == EACCES);
	CHECK(!fopen(DEVICE "/node_desc", "a") && errno == EACCES);
	CHECK(!fopen(DEVICE "/node_desc", "r+") && errno == EACCES);

	/* Elsewhere nothing has changed. */
	fd = open("/sys/class/infiniband_not/../net", O_RDONLY | O_DIRECTORY);
	CHECK(fd < 0 && errno == ENOENT);
	fd = open("/tmp", O_TMPFILE | O_RDWR, 0640);
	if (fd >= 0) {
		struct stat st;

		CHECK_EQ(fstat(fd, &st), 0);
		CHECK_EQ(st.st_mode & 0777, 0640 & ~umask(0));
		close(fd);
	}
}

/* Each way to look at a path without opening it. */
static void looking(void)
{
	int (*xstat)(int, const char *, struct stat *) =
		(int (*)(int, const char *, struct stat *))dlsym(NULL, "__xstat");
	char resolved[PATH_MAX];
	struct dirent **list;
	struct statx stx;
	struct stat st;
	glob_t g = {0};
	char *path;
	DIR *dir;
	int n;

	CHECK_EQ(stat(DEVICE, &st), 0);
	CHECK(S_ISDIR(st.st_mode));
	CHECK_EQ(lstat(PORT "/state", &st), 0);
	CHECK(S_ISREG(st.st_mode) && (st.st_mode & 0777) == 0444);
	CHECK_EQ(fstatat(AT_FDCWD, PORT, &st, 0), 0);
	CHECK_EQ(statx(AT_FDCWD, PORT, 0, STATX_TYPE, &stx), 0);
	CHECK(xstat && xstat(1, PORT "/state", &st) == 0);
	CHECK(stat(DEVICE "/nothing", &st) < 0 && errno == ENOENT);
	CHECK_EQ(access(PORT "/state", R_OK), 0);
	CHECK_EQ(eaccess(PORT "/state", R_OK), 0);
	CHECK_EQ(faccessat(AT_FDCWD, PORT "/state", R_OK, 0), 0);
	CHECK(access("/sys/class/infiniband/mlx5_0", F_OK) < 0 && errno == ENOENT);
	CHECK(readlink(DEVICE, resolved, sizeof(resolved)) < 0 && errno == EINVAL);
	CHECK_STR(realpath("/sys/class/infiniband/../infiniband/vernic0", resolved), DEVICE);
	path = realpath(DEVICE, NULL);
	CHECK_STR(path, DEVICE);
	free(path);
	CHECK(!realpath(DEVICE "/nothing", NULL) && errno == ENOENT);

	dir = opendir("/sys/class/infiniband");
	CHECK(dir);
	n = 0;
	for (struct dirent *d; (d = readdir(dir));)
		n += strcmp(d->d_name, "vernic0") == 0;
	CHECK_EQ(n, 1);
	closedir(dir);
	n = scandir("/sys/class/infiniband", &list, NULL, alphasort);
	CHECK_EQ(n, 3); /* . and .. too */
	while (n--)
		free(list[n]);
	free(list);
	CHECK_EQ(glob("/sys/class/infiniband/*/ports/*/rat?", 0, NULL, &g), 0);
	CHECK_EQ(g.gl_pathc, 1);
	CHECK_STR(g.gl_pathv[0], PORT "/rate");
	globfree(&g);
}

/* Counters are as they are when they are opened, by whatever way. */
static void counters(struct env *e)
{
	struct ibv_qp_init_attr attr = env_qp_attr(e);
	struct ibv_qp *a = ibv_create_qp(e->pd, &attr), *b = ibv_create_qp(e->pd, &attr);
	struct ibv_sge sge = sge_at(e, 0, 64);
	char tree[PATH_MAX], want[32];
	struct ibv_wc wc[2];
	int dir = open(PORT "/hw_counters", O_RDONLY | O_DIRECTORY), old;

	CHECK(a && b && dir >= 0);
	connect_pair(e, a, b);
	old = open(PORT "/hw_counters/rdma_sends", O_RDONLY);
	CHECK(old >= 0);
	for (int i = 1; i <= 6; i++) {
		CHECK_EQ(post_recv_at(b, 0, &sge), 0);
		CHECK_EQ(post_send_at(a, 0, &sge, IBV_SEND_SIGNALED), 0);
		wait_wc(e->cq, 2, wc);
		snprintf(want, sizeof(want), "%d\n", i);
		errno = 1234;
		switch (i) {
		case 1:
			CHECK_STR(content(open(PORT "/hw_counters/rdma_sends", O_RDONLY)), want);
			break;
		case 2:
			CHECK_STR(content(openat(dir, "rdma_sends", O_RDONLY)), want);
			break;
		case 3:
			CHECK_STR(stream_content(fopen(PORT "/hw_counters/rdma_sends", "r")), want);
			break;
		case 4:
			CHECK_EQ(chdir(PORT "/hw_counters"), 0);
			CHECK_STR(content(open("rdma_sends", O_RDONLY)), want);
			break;
		case 5:
			errno = 1234;
			CHECK_STR(stream_content(fopen("rdma_sends", "r")), want);
			break;
		default:
			snprintf(tree, sizeof(tree),
				 "%s.sysfs/class/infiniband/vernic0/ports/1/hw_counters/rdma_sends",
				 getenv("VERNIC_SOCKET"));
			CHECK_STR(content(open(tree, O_RDONLY)), want);
		}
		CHECK_EQ(errno, 1234);
	}
	CHECK_STR(content(old), "0\n");
	snprintf(want, sizeof(want), "%llu\n", (unsigned long long)stats_device("port_xmit_data"));
	CHECK_STR(content(open(PORT "/counters/port_xmit_data", O_RDONLY)), want);
	CHECK_EQ(chdir("/"), 0);
	close(dir);
	CHECK_EQ(ibv_destroy_qp(a), 0);
	CHECK_EQ(ibv_destroy_qp(b), 0);
}

static volatile sig_atomic_t handled;

static void on_signal(int sig)
{
	int fd = open("/dev/null", O_RDONLY);

	handled = fd >= 0 && access("/", F_OK) == 0;
	close(fd);
}

/* A handler with hardly any stack, and a child of a fork. */
static void signals_and_forks(void)
{
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
	stack_t stack = {.ss_size = 8192, .ss_sp = malloc(8192)};
	int status;
	pid_t pid;

	/* A CPU with large registers needs more by itself. */
	if (sigaltstack(&stack, NULL) == 0) {
		CHECK_EQ(sigaction(SIGUSR1, &act, NULL), 0);
		raise(SIGUSR1);
		CHECK(handled);
		stack.ss_flags = SS_DISABLE;
		CHECK_EQ(sigaltstack(&stack, NULL), 0);
	}
	free(stack.ss_sp);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK_STR(content(open(PORT "/hw_counters/rdma_sends", O_RDONLY)), "6\n");
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

/* What a client may ask for is a counter, and nothing else anywhere. */
static void hostile(void)
{
	static const char *const paths[] = {
		"",
		"/",
		"vernic0",
		"vernic0/ports/1/state",
		"vernic0/ports/1/counters/",
		"vernic0/ports/1/counters/sent_pkts",
		"vernic0/ports/1/counters/../state",
		"vernic0/ports/1/hw_counters/../../../../../../../x",
		"../infiniband/vernic0/ports/1/hw_counters/sent_pkts",
		"vernic00/ports/1/hw_counters/sent_pkts",
	};
	struct vernic_request req = {.command = VERNIC_CMD_SYSFS};
	struct raw r;

	CHECK_EQ(raw_start(&r), 0);
	for (unsigned int i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		strcpy(req.sysfs.path, paths[i]);
		CHECK_EQ(raw_call(&r, &req), ENOENT);
	}
	memset(req.sysfs.path, 'x', sizeof(req.sysfs.path));
	CHECK_EQ(raw_call(&r, &req), EINVAL);
	strcpy(req.sysfs.path, "vernic0/ports/1/hw_counters/sent_pkts");
	CHECK_EQ(raw_call(&r, &req), 0);
	raw_end(&r);
}

int main(void)
{
	struct env e;

	env_open(&e);
	contents(&e);
	places(&e);
	opening();
	looking();
	counters(&e);
	signals_and_forks();
	hostile();
	env_close(&e);
	return 0;
}
