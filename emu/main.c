/* SPDX-License-Identifier: BSD-2-Clause */
/* vernicd: the daemon that is the NIC. Start-up, and the end. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "config.h"
#include "control/control.h"
#include "host.h"
#include "log.h"
#include "mapping.h"
#include "vernic_config.h"
#include "worker.h"

enum option_value {
	OPTION_CONFIG = 256,
	OPTION_SOCKET,
	OPTION_DEVICE,
	OPTION_WORKERS,
	OPTION_IO,
	OPTION_FAULT,
	OPTION_LOG_LEVEL,
	OPTION_READY_FD,
	OPTION_VERSION,
	OPTION_HELP,
};

static const struct option options[] = {
	{"config", required_argument, NULL, OPTION_CONFIG},
	{"socket", required_argument, NULL, OPTION_SOCKET},
	{"device", required_argument, NULL, OPTION_DEVICE},
	{"workers", required_argument, NULL, OPTION_WORKERS},
	{"io", required_argument, NULL, OPTION_IO},
	{"fault", required_argument, NULL, OPTION_FAULT},
	{"log-level", required_argument, NULL, OPTION_LOG_LEVEL},
	{"ready-fd", required_argument, NULL, OPTION_READY_FD},
	{"version", no_argument, NULL, OPTION_VERSION},
	{"help", no_argument, NULL, OPTION_HELP},
	{NULL, 0, NULL, 0},
};

static const char help[] =
	"NAME\n"
	"  vernicd - an RDMA NIC in software\n"
	"\n"
	"SYNOPSIS\n"
	"  vernicd [--config FILE] [--socket PATH] [--device KEY=VALUE[,KEY=VALUE...]]...\n"
	"          [--workers N] [--io auto|io_uring|plain] [--fault RULE]... [--log-level LEVEL]\n"
	"          [--ready-fd N]\n"
	"  vernicd --version | --help\n"
	"\n"
	"DESCRIPTION\n"
	"  vernicd emulates RDMA devices for the programs that connect to its socket, as those do\n"
	"  that run under `vernic run`. It stays in the foreground, needs no privileges, and ends\n"
	"  with status 0 on SIGTERM and SIGINT. Its socket is for its own user only.\n"
	"\n"
	"  A device with an address speaks RoCEv2 on UDP port 4791 of that address. A device\n"
	"  without one is private: it carries traffic between the daemon's own clients and opens "
	"no\n"
	"  network socket. When no device is asked for there is one private device, vernic0.\n"
	"\n"
	"OPTIONS\n"
	"  --config FILE\n"
	"      Read FILE, see CONFIGURATION FILE. Other options override it, wherever they stand;\n"
	"      devices add to those of the file.\n"
	"  --socket PATH\n"
	"      Listen at PATH. A socket there that no daemon serves any more is replaced.\n"
	"      Default: $XDG_RUNTIME_DIR/vernicd.sock, or /run/vernic/vernicd.sock where\n"
	"      XDG_RUNTIME_DIR is not set.\n"
	"  --device KEY=VALUE[,KEY=VALUE...]\n"
	"      Have a device, see DEVICE KEYS. Can be repeated.\n"
	"  --workers N\n"
	"      Use N threads for the data path, 1 to 16. Each queue pair belongs to one of them.\n"
	"      Default: 1.\n"
	"  --io auto|io_uring|plain\n"
	"      How packets are sent and received: by io_uring, by plain system calls, or by\n"
	"      io_uring where the kernel allows it. Default: auto.\n"
	"  --fault RULE\n"
	"      Begin with a fault rule, as `vernic fault --help` explains them. Can be repeated.\n"
	"  --log-level error|warning|info|debug\n"
	"      What to report on standard error. Default: warning.\n"
	"  --ready-fd N\n"
	"      Write \"ready\" and a newline to file descriptor N when clients can connect, and\n"
	"      close it.\n"
	"  --version\n"
	"      Print the version.\n"
	"  --help\n"
	"      Print this text.\n"
	"\n"
	"DEVICE KEYS\n"
	"  name=NAME      Name that programs see. Default: vernic0, vernic1, ...\n"
	"  addr=ADDRESS   IPv4 or IPv6 address of this host to send and receive at (fe80::1%eth0\n"
	"                 for a link-local one). Can be repeated. Each becomes a GID.\n"
	"  guid=GUID      Node GUID: 16 hexadecimal digits, colons allowed. Default: random.\n"
	"  mtu=BYTES      Largest path MTU: 256, 512, 1024, 2048 or 4096. Default: 4096, or as\n"
	"                 the interface of the address allows.\n"
	"  socket_buffer=BYTES\n"
	"                 Buffer to ask for, each way, for each socket. Default: 8 MiB. Where that\n"
	"                 takes a privilege vernicd lacks, the system's limit\n"
	"                 (net.core.rmem_max) holds.\n"
	"  max_qp= max_qp_wr= max_sge= max_cq= max_cqe= max_mr= max_mw= max_pd= max_ah= max_srq=\n"
	"  max_srq_wr= max_srq_sge= max_rd_atomic=\n"
	"  max_inline= max_mcast_grp= max_mcast_qp_attach=\n"
	"                 Limits of the device, as ibv_query_device(3) reports them, to test a\n"
	"                 program against. Default: those of the profile.\n"
	"  profile=NAME   Limits and capabilities of another device: connectx (an adapter of\n"
	"                 NVIDIA's), rxe (Linux's own in software) or minimal (no more than a\n"
	"                 device must have: no atomics, no inline data, 2 SGEs, one READ at a\n"
	"                 time). Default: default.\n"
	"\n"
	"CONFIGURATION FILE\n"
	"  An INI file. Section [daemon] has the keys socket, workers, io and log_level; each\n"
	"  section [device NAME] is a device, with the device keys but name; each key rule of the\n"
	"  section [faults] is a fault rule:\n"
	"\n"
	"      [daemon]\n"
	"      workers = 2\n"
	"\n"
	"      [device vernic0]\n"
	"      addr = 192.0.2.1\n"
	"      mtu = 1024\n"
	"\n"
	"      [faults]\n"
	"      rule = drop,probability=1%,seed=7\n"
	"\n"
	"  Fault rules are asked in this order: those of the file, of VERNIC_FAULTS, of --fault.\n"
	"\n"
	"EXIT STATUS\n"
	"  0 after SIGTERM or SIGINT; 1 when it cannot start, with one line on standard error "
	"that\n"
	"  says why.\n"
	"\n"
	"ENVIRONMENT\n"
	"  XDG_RUNTIME_DIR  Directory of the default socket.\n"
	"  VERNIC_FAULTS    Fault rules, parted by ';'.\n";

/* Sets a key from a flag; the flag's name is the key's. */
static int option_set(struct config *cfg, const char *key, const char *value)
{
	return config_set(cfg, "", key, value);
}

/* Parses --ready-fd. @return 0 or -EINVAL */
static int option_ready_fd(const char *text, int *fd)
{
	char *end;
	long v;

	errno = 0;
	v = strtol(text, &end, 10);
	if (end == text || *end != '\0' || errno != 0 || v < 0 || v > INT_MAX)
		return config_fail("", "--ready-fd: '%s' is not a file descriptor", text);
	if (fcntl((int)v, F_GETFD) < 0)
		return config_fail("", "--ready-fd: %ld is not open", v);
	*fd = (int)v;
	return 0;
}

/* The first pass over the command line: mistakes, and options that come before all others. */
static int parse_early(int argc, char **argv, const char **config_file)
{
	int option, err = 0;

	opterr = 0;
	while ((option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
		switch (option) {
		case OPTION_CONFIG:
			*config_file = optarg;
			break;
		case OPTION_VERSION:
			printf("vernicd %s\n", VERNIC_VERSION);
			exit(EXIT_SUCCESS);
		case OPTION_HELP:
			fputs(help, stdout);
			exit(EXIT_SUCCESS);
		case ':':
			return config_fail("", "option '%s' needs a value", argv[optind - 1]);
		case '?':
			return config_fail("", "unknown option '%s', see --help", argv[optind - 1]);
		default:
			break;
		}
	}
	if (optind < argc)
		err = config_fail("", "unexpected argument '%s', see --help", argv[optind]);
	return err;
}

/* Command line and configuration file. @return 0, or -EINVAL with a complaint made */
static int parse(int argc, char **argv, struct config *cfg, int *ready_fd)
{
	const char *faults = getenv("VERNIC_FAULTS");
	const char *config_file = NULL;
	int option, err;

	config_init(cfg);
	err = parse_early(argc, argv, &config_file);
	if (err == 0 && config_file != NULL)
		err = config_read_file(cfg, config_file);
	if (err == 0 && faults != NULL)
		err = config_add_faults(cfg, "VERNIC_FAULTS: ", faults);
	optind = 0;
	while (err == 0 && (option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
		switch (option) {
		case OPTION_SOCKET:
			err = option_set(cfg, "socket", optarg);
			break;
		case OPTION_DEVICE:
			err = config_add_device(cfg, optarg);
			break;
		case OPTION_WORKERS:
			err = option_set(cfg, "workers", optarg);
			break;
		case OPTION_IO:
			err = option_set(cfg, "io", optarg);
			break;
		case OPTION_FAULT:
			err = config_add_fault(cfg, "--fault: ", optarg);
			break;
		case OPTION_LOG_LEVEL:
			err = option_set(cfg, "log_level", optarg);
			break;
		case OPTION_READY_FD:
			err = option_ready_fd(optarg, ready_fd);
			break;
		default:
			break;
		}
	}
	return err != 0 ? err : config_finish(cfg);
}

/* What the process as a whole wants from the system. */
static void prepare_process(void)
{
	struct rlimit files;

	signal(SIGPIPE, SIG_IGN);
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	/* Trains between workers are large, short-lived buffers: keep their pages. */
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
	mallopt(M_TRIM_THRESHOLD, 64 << 20);
}

/* Tells whoever started us that clients can connect. */
static void report_ready(int fd)
{
	static const char line[] = "ready\n";

	if (write(fd, line, sizeof(line) - 1) != sizeof(line) - 1)
		log_warning("--ready-fd: %s", strerror(errno));
	close(fd);
}

/* Stops the workers that were started, the last one first. */
static void stop_workers(struct host *host)
{
	for (unsigned int i = host->workers; i-- > 0;) {
		if (host->worker[i] != NULL)
			worker_stop(host->worker[i]);
	}
}

/* Destroys the devices that were made. */
static void destroy_devices(struct host *host)
{
	struct host_device *d;
	unsigned int i;

	host_for_each_device (host, i, d)
		device_destroy(d);
}

/* Brings the daemon up, serves, and takes it down. @return 0 or a negative errno, complained */
static int run(const struct config *cfg, int ready_fd)
{
	static struct host host;
	static struct server server;
	char error[512];
	int err = 0;

	host.start = host_now();
	host.workers = cfg->workers;
	host.io = cfg->io;
	err = mapping_init();
	if (err != 0) {
		config_fail("", "SIGBUS: %s", strerror(-err));
		return err;
	}
	mcast_init(&host.mcast);
	err = shared_page_create(&host);
	if (err != 0) {
		config_fail("", "shared memory: %s", strerror(-err));
		return err;
	}
	for (unsigned int i = 0; i < cfg->device_count; i++) {
		struct host_device *d;

		err = host_add_device(&host, &cfg->device[i], &d);
		if (err != 0)
			goto out_devices;
	}
	err = server_start(&server, &host, cfg->socket, error, sizeof(error));
	if (err != 0) {
		config_fail("", "%s", error);
		goto out_devices;
	}
	for (unsigned int i = 0; i < host.workers; i++) {
		err = worker_start(&host, i, error, sizeof(error));
		if (err != 0) {
			config_fail("", "%s", error);
			goto out_server;
		}
	}
	for (unsigned int i = 0; i < cfg->fault_count; i++) {
		err = server_add_fault(&server, &cfg->fault[i].rule, NULL, NULL);
		if (err != 0) {
			config_fail(cfg->fault[i].where, "%s", strerror(-err));
			goto out_server;
		}
	}
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	log_info("serving %u device%s at %s", cfg->device_count, cfg->device_count == 1 ? "" : "s",
		 cfg->socket);
	if (ready_fd >= 0)
		report_ready(ready_fd);
	server_run(&server);
out_server:
	server_stop(&server);
	stop_workers(&host);
out_devices:
	destroy_devices(&host);
	shared_page_destroy(&host);
	return err;
}

int main(int argc, char **argv)
{
	static struct config cfg;
	int ready_fd = -1;

	if (parse(argc, argv, &cfg, &ready_fd) != 0)
		return EXIT_FAILURE;
	prepare_process();
	return run(&cfg, ready_fd) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
