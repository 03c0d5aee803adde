/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The sysfs tree.
 *
 * Theory of operation
 * -------------------
 * The tree is made once. Counters change: the preload library has the daemon rewrite a counter's
 * file before a program opens it. What administration changes is rewritten when that happens.
 * Rewriting is a new file that takes the old one's name: whoever is reading the old one reads on in
 * it. A device's directories come as a whole and go as a whole, likewise.
 *
 * The top is for the daemon's user only, as the socket is; below it rights are those of sysfs. A
 * file in the top marks the tree as made by a daemon: nothing else is ever removed.
 */
#include "sysfs.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vernic/control.h>

#include "../log.h"
#include "control.h"

#define SYSFS_MARK ".made-by-vernicd"
#define SYSFS_NEW ".new" /* in the top: what takes its place, or has just lost it */
#define SYSFS_CLASS "class/infiniband"
#define SYSFS_VERBS "class/infiniband_verbs"
#define SYSFS_DEV "dev/infiniband" /* of /dev, in the same tree */
#define SYSFS_PCI_VENDOR 0xfffe	   /* nobody's */
/* Directories in one another that a tree may have; a deeper one is not ours to remove. */
#define SYSFS_DEPTH 12

/* ---- files -------------------------------------------------------------------------------- */

/* Makes a directory. @return an fd of it, or a negative errno */
static int make_dir(int at, const char *name, mode_t mode)
{
	int fd;

	if (mkdirat(at, name, mode) != 0)
		return -errno;
	fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* Makes a file that can only be read. @return 0 or a negative errno */
__attribute__((format(printf, 3, 4))) static int make_file(int at, const char *name,
							   const char *format, ...)
{
	int fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
	va_list args;
	int err;

	if (fd < 0)
		return -errno;
	va_start(args, format);
	err = vdprintf(fd, format, args) < 0 ? -EIO : 0;
	va_end(args);
	/* Whatever the umask is. */
	if (err == 0 && fchmod(fd, 0444) != 0)
		err = -errno;
	close(fd);
	return err;
}

/* Removes what is in a directory. Goes on where something cannot be removed. */
static void empty_dir(int fd, unsigned int depth)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
	const struct dirent *entry;

	if (dir == NULL) {
		if (copy >= 0)
			close(copy);
		return;
	}
	while ((entry = readdir(dir)) != NULL) {
		int sub;

		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
		    unlinkat(fd, entry->d_name, 0) == 0 || depth == 0)
			continue;
		sub = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (sub < 0)
			continue;
		empty_dir(sub, depth - 1);
		close(sub);
		unlinkat(fd, entry->d_name, AT_REMOVEDIR);
	}
	closedir(dir);
}

/* Removes a tree that a daemon left. @return 0, or a negative errno: something else is there */
static int remove_left_over(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	int err = 0;

	if (fd < 0)
		return errno == ENOENT ? 0 : -EEXIST;
	if (fstat(fd, &st) != 0 || st.st_uid != geteuid() ||
	    faccessat(fd, SYSFS_MARK, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
		err = -EEXIST;
	else
		empty_dir(fd, SYSFS_DEPTH);
	close(fd);
	if (err == 0 && rmdir(path) != 0)
		err = -errno;
	return err;
}

/* ---- contents: as drivers/infiniband/core/sysfs.c of Linux formats them -------------------- */

/* Runs a step of what may fail halfway: nothing more after the first failure. */
#define STEP(err, call) ((err) = (err) != 0 ? (err) : (call))

static int make_guid(int at, const char *name, uint64_t guid)
{
	uint64_t g = be64toh(guid);

	return make_file(at, name, "%04x:%04x:%04x:%04x\n", (unsigned int)(g >> 48),
			 (unsigned int)(g >> 32 & 0xffff), (unsigned int)(g >> 16 & 0xffff),
			 (unsigned int)(g & 0xffff));
}

/* "100 Gb/sec (4X EDR)": of the width and speed codes of ibv_query_port(3). */
static int make_rate(int at, const struct ibv_port_attr *attr)
{
	static const struct {
		uint8_t code;
		unsigned int rate; /* 100 Mb/s a lane */
		const char *name;
	} speeds[] = {{1, 25, " SDR"},	 {2, 50, " DDR"},   {4, 100, " QDR"}, {8, 100, " FDR10"},
		      {16, 140, " FDR"}, {32, 250, " EDR"}, {64, 500, " HDR"}};
	unsigned int lanes = attr->active_width == 16  ? 2
			     : attr->active_width == 8 ? 12
			     : attr->active_width == 4 ? 8
			     : attr->active_width == 2 ? 4
						       : 1;
	unsigned int rate = 25, i;
	const char *name = "";

	for (i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++) {
		if (speeds[i].code == attr->active_speed) {
			rate = speeds[i].rate;
			name = speeds[i].name;
		}
	}
	rate *= lanes;
	return make_file(at, "rate", "%u%s Gb/sec (%uX%s)\n", rate / 10, rate % 10 ? ".5" : "",
			 lanes, name);
}

static int make_state(int at, const struct ibv_port_attr *attr)
{
	static const char *const states[] = {"NOP",   "DOWN",	"INIT",
					     "ARMED", "ACTIVE", "ACTIVE_DEFER"};
	static const char *const phys[] = {"<unknown>",
					   "Sleep",
					   "Polling",
					   "Disabled",
					   "PortConfigurationTraining",
					   "LinkUp",
					   "LinkErrorRecovery",
					   "Phy Test"};
	int err = 0;

	STEP(err, make_file(at, "state", "%d: %s\n", attr->state,
			    (unsigned int)attr->state <= 5 ? states[attr->state] : "UNKNOWN"));
	STEP(err, make_file(at, "phys_state", "%u: %s\n", attr->phys_state,
			    attr->phys_state <= 7 ? phys[attr->phys_state] : phys[0]));
	return err;
}

/* A directory with one file for each counter. */
static int make_counters(int at, const char *name, const struct counter_info *info,
			 unsigned int count)
{
	int dir = make_dir(at, name, 0755);
	int err = 0;

	if (dir < 0)
		return dir;
	for (unsigned int i = 0; i < count; i++)
		STEP(err, make_file(dir, info[i].name, "0\n"));
	/* Milliseconds for which the values shown may be old. */
	if (info == hw_counters)
		STEP(err, make_file(dir, "lifespan", "0\n"));
	close(dir);
	return err;
}

/*
 * Writes what is to be seen of an entry of the GID table: zeros where it is empty, and then neither
 * type nor interface, which on Linux are files that cannot be read.
 */
static int make_gid(int gids, int types, int ndevs, const struct device *dev, unsigned int index)
{
	static const uint8_t zeros[16];
	const struct gid_entry *entry = device_gid(dev, index);
	const uint8_t *g = entry != NULL ? entry->raw : zeros;
	char name[16], ifname[IF_NAMESIZE];
	int err = 0;

	snprintf(name, sizeof(name), "%u", index);
	STEP(err, make_file(gids, name,
			    "%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:"
			    "%02x%02x:%02x%02x\n",
			    g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8], g[9], g[10],
			    g[11], g[12], g[13], g[14], g[15]));
	if (entry == NULL)
		return err;
	STEP(err, make_file(types, name, "RoCE v2\n"));
	if (entry->ifindex != 0 && if_indextoname(entry->ifindex, ifname) != NULL)
		STEP(err, make_file(ndevs, name, "%s\n", ifname));
	return err;
}

/* gids/, gid_attrs/types/, gid_attrs/ndevs/ */
static int make_gids(int at, const struct device *dev)
{
	int gids = make_dir(at, "gids", 0755), attrs = make_dir(at, "gid_attrs", 0755);
	int types = make_dir(attrs, "types", 0755), ndevs = make_dir(attrs, "ndevs", 0755);
	int err = gids < 0 ? gids : attrs < 0 ? attrs : types < 0 ? types : ndevs < 0 ? ndevs : 0;

	for (unsigned int i = 0; i < VERNIC_GID_MAX; i++)
		STEP(err, make_gid(gids, types, ndevs, dev, i));
	close(gids);
	close(attrs);
	close(types);
	close(ndevs);
	return err;
}

/* ports/1/pkeys/: the default partition. */
static int make_pkeys(int at)
{
	int dir = make_dir(at, "pkeys", 0755);
	int err;

	if (dir < 0)
		return dir;
	err = make_file(dir, "0", "0xffff\n");
	close(dir);
	return err;
}

static int make_port(int ports, const struct device *dev)
{
	const struct ibv_port_attr *attr = &dev->port_attr;
	int at = make_dir(ports, "1", 0755);
	int err = 0;

	if (at < 0)
		return at;
	STEP(err, make_state(at, attr));
	STEP(err, make_rate(at, attr));
	STEP(err, make_file(at, "link_layer", "Ethernet\n"));
	STEP(err, make_file(at, "lid", "0x%x\n", attr->lid));
	STEP(err, make_file(at, "lid_mask_count", "%u\n", attr->lmc));
	STEP(err, make_file(at, "sm_lid", "0x%x\n", attr->sm_lid));
	STEP(err, make_file(at, "sm_sl", "%u\n", attr->sm_sl));
	STEP(err, make_file(at, "cap_mask", "0x%08x\n", attr->port_cap_flags));
	STEP(err, make_gids(at, dev));
	STEP(err, make_pkeys(at));
	STEP(err, make_counters(at, "counters", port_counters, port_counters_count));
	STEP(err, make_counters(at, "hw_counters", hw_counters, hw_counters_count));
	close(at);
	return err;
}

/* device/: what is to be seen of the adapter's place in the machine. There is none: any is near. */
static int make_place(int at)
{
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	int dir = make_dir(at, "device", 0755);
	int err = 0;

	if (dir < 0)
		return dir;
	STEP(err, make_file(dir, "class", "0x020700\n")); /* an InfiniBand controller */
	STEP(err, make_file(dir, "vendor", "0x%04x\n", SYSFS_PCI_VENDOR));
	STEP(err, make_file(dir, "device", "0x0001\n"));
	STEP(err, make_file(dir, "subsystem_vendor", "0x%04x\n", SYSFS_PCI_VENDOR));
	STEP(err, make_file(dir, "subsystem_device", "0x0001\n"));
	STEP(err, make_file(dir, "max_link_speed", "16.0 GT/s PCIe\n"));
	STEP(err, make_file(dir, "max_link_width", "16\n"));
	STEP(err, make_file(dir, "current_link_speed", "16.0 GT/s PCIe\n"));
	STEP(err, make_file(dir, "current_link_width", "16\n"));
	STEP(err, make_file(dir, "numa_node", "-1\n"));
	STEP(err, cpus > 1 ? make_file(dir, "local_cpulist", "0-%ld\n", cpus - 1)
			   : make_file(dir, "local_cpulist", "0\n"));
	close(dir);
	return err;
}

/* Makes NAME of class/infiniband in a directory. */
static int make_device(int class, const char *name, const struct device *dev)
{
	int at = make_dir(class, name, 0755), ports;
	int err = 0;

	if (at < 0)
		return at;
	STEP(err, make_file(at, "node_type", "1: CA\n"));
	STEP(err, make_guid(at, "node_guid", dev->node_guid));
	STEP(err, make_guid(at, "sys_image_guid", dev->attr.sys_image_guid));
	STEP(err, make_file(at, "node_desc", "%s\n", dev->name));
	STEP(err, make_file(at, "fw_ver", "%s\n", dev->attr.fw_ver));
	STEP(err, make_file(at, "hw_rev", "%x\n", dev->attr.hw_ver));
	STEP(err, make_file(at, "hca_type", "Vernic\n"));
	STEP(err, make_file(at, "board_id", "Vernic\n"));
	STEP(err, make_place(at));
	ports = err == 0 ? make_dir(at, "ports", 0755) : err;
	STEP(err, ports < 0 ? ports : make_port(ports, dev));
	if (ports >= 0)
		close(ports);
	close(at);
	return err;
}

/* Makes uverbsN of class/infiniband_verbs in a directory. Device 231:192 is uverbs0 in Linux. */
static int make_uverbs(int class, const char *name, const struct device *dev)
{
	int at = make_dir(class, name, 0755);
	int err = 0;

	if (at < 0)
		return at;
	STEP(err, make_file(at, "ibdev", "%s\n", dev->name));
	STEP(err, make_file(at, "abi_version", "1\n"));
	STEP(err, make_file(at, "dev", "231:%u\n", 192 + dev->index));
	STEP(err, make_file(at, "uevent", "MAJOR=231\nMINOR=%u\nDEVNAME=infiniband/uverbs%u\n",
			    192 + dev->index, dev->index));
	STEP(err, make_place(at));
	close(at);
	return err;
}

/* What make_device() and make_uverbs() are. */
typedef int (*make_fn)(int class, const char *name, const struct device *dev);

/* Removes the directory that is being made, or was taken away. @return 0 or a negative errno */
static int remove_new(int top)
{
	int fd = openat(top, SYSFS_NEW, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	empty_dir(fd, SYSFS_DEPTH);
	close(fd);
	return unlinkat(top, SYSFS_NEW, AT_REMOVEDIR) != 0 ? -errno : 0;
}

/* Makes a device's directory under another name first, and puts it in its place. */
static int place_dir(int top, make_fn make, const char *path, const struct device *dev)
{
	int err = make(top, SYSFS_NEW, dev);

	if (err == 0 && renameat(top, SYSFS_NEW, top, path) != 0)
		err = -errno;
	if (err != 0)
		remove_new(top);
	return err;
}

/* Both directories of a device, and its device file. */
static int place_device(int top, const struct device *dev)
{
	char device[PATH_MAX], verbs[PATH_MAX];
	int err = 0;

	snprintf(device, sizeof(device), SYSFS_CLASS "/%s", dev->name);
	snprintf(verbs, sizeof(verbs), SYSFS_VERBS "/uverbs%u", dev->index);
	STEP(err, place_dir(top, make_device, device, dev));
	STEP(err, place_dir(top, make_uverbs, verbs, dev));
	snprintf(device, sizeof(device), SYSFS_DEV "/uverbs%u", dev->index);
	STEP(err, make_file(top, device, "%s", ""));
	/* It looks as if it could be opened: our libibverbs does not, and nobody else has to. */
	if (err == 0 && fchmodat(top, device, 0666, 0) != 0)
		err = -errno;
	return err;
}

/* class/ and dev/ of all devices. */
static int make_tree(int top, const struct host *host)
{
	int class = make_dir(top, "class", 0755);
	int verbs = make_dir(class, "infiniband_verbs", 0755);
	int devices = make_dir(class, "infiniband", 0755);
	int dev = make_dir(top, "dev", 0755), files = make_dir(dev, "infiniband", 0755);
	int err = class < 0 ? class : verbs < 0 ? verbs : devices < 0 ? devices : 0;
	const struct host_device *d;
	unsigned int i;

	STEP(err, dev < 0 ? dev : files < 0 ? files : 0);
	STEP(err, make_file(verbs, "abi_version", "6\n"));
	host_for_each_device (host, i, d)
		STEP(err, place_device(top, &d->dev));
	close(class);
	close(verbs);
	close(devices);
	close(dev);
	close(files);
	return err;
}

/* ---- the tree as a whole ------------------------------------------------------------------ */

void sysfs_create(struct sysfs *s, const struct host *host, const char *socket)
{
	int err;

	s->host = host;
	s->dir = -1;
	snprintf(s->path, sizeof(s->path), "%s" VERNIC_SYSFS_SUFFIX, socket);
	err = remove_left_over(s->path);
	if (err == 0) {
		s->dir = make_dir(AT_FDCWD, s->path, 0700);
		err = s->dir < 0 ? s->dir : 0;
	}
	STEP(err, make_file(s->dir, SYSFS_MARK, "\n"));
	STEP(err, make_tree(s->dir, host));
	if (err == 0)
		return;
	log_warning("programs will not find the devices in /sys: cannot make %s: %s", s->path,
		    strerror(-err));
	sysfs_destroy(s);
}

void sysfs_destroy(struct sysfs *s)
{
	struct stat ours, there;

	if (s->dir < 0)
		return;
	empty_dir(s->dir, SYSFS_DEPTH);
	if (fstat(s->dir, &ours) == 0 && lstat(s->path, &there) == 0 &&
	    ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
		rmdir(s->path);
	close(s->dir);
	s->dir = -1;
}

/* ---- what administration changes ---------------------------------------------------------- */

/* The tree was not brought up to date. */
static void complain(const char *name, int err)
{
	if (err != 0)
		log_warning("%s is out of date in the sysfs tree: %s", name, strerror(-err));
}

/* Takes a directory away as a whole. */
static int take_dir(int top, const char *path)
{
	return renameat(top, path, top, SYSFS_NEW) != 0 ? -errno : remove_new(top);
}

void sysfs_add_device(const struct sysfs *s, const struct device *dev)
{
	if (s->dir >= 0)
		complain(dev->name, place_device(s->dir, dev));
}

void sysfs_remove_device(const struct sysfs *s, const struct device *dev)
{
	char path[PATH_MAX];
	int err = 0;

	if (s->dir < 0)
		return;
	snprintf(path, sizeof(path), SYSFS_CLASS "/%s", dev->name);
	STEP(err, take_dir(s->dir, path));
	snprintf(path, sizeof(path), SYSFS_VERBS "/uverbs%u", dev->index);
	STEP(err, take_dir(s->dir, path));
	snprintf(path, sizeof(path), SYSFS_DEV "/uverbs%u", dev->index);
	if (err == 0 && unlinkat(s->dir, path, 0) != 0)
		err = -errno;
	complain(dev->name, err);
}

/* Moves a file that make_*() made in the top to a port's directory. */
static int move_file(int top, const char *name, const struct device *dev)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), SYSFS_CLASS "/%s/ports/1/%s", dev->name, name);
	return renameat(top, name, top, path) != 0 ? -errno : 0;
}

void sysfs_update_port(const struct sysfs *s, const struct device *dev)
{
	int err = 0;

	if (s->dir < 0)
		return;
	STEP(err, make_state(s->dir, &dev->port_attr));
	STEP(err, move_file(s->dir, "state", dev));
	STEP(err, move_file(s->dir, "phys_state", dev));
	complain(dev->name, err);
}

void sysfs_update_gid(const struct sysfs *s, const struct device *dev, unsigned int index)
{
	int gids, types, ndevs, err = 0;
	char name[16], path[PATH_MAX];

	if (s->dir < 0)
		return;
	/* Three directories of one file each, so that each gets its name at once. */
	gids = make_dir(s->dir, ".gids", 0700);
	types = make_dir(s->dir, ".types", 0700);
	ndevs = make_dir(s->dir, ".ndevs", 0700);
	err = gids < 0 ? gids : types < 0 ? types : ndevs < 0 ? ndevs : 0;
	STEP(err, make_gid(gids, types, ndevs, dev, index));
	snprintf(name, sizeof(name), "%u", index);
	for (unsigned int i = 0; i < 3; i++) {
		static const char *const from[] = {".gids", ".types", ".ndevs"};
		static const char *const to[] = {"gids", "gid_attrs/types", "gid_attrs/ndevs"};
		int fds[] = {gids, types, ndevs};

		snprintf(path, sizeof(path), SYSFS_CLASS "/%s/ports/1/%s/%s", dev->name, to[i],
			 name);
		if (err == 0 && renameat(fds[i], name, s->dir, path) != 0 &&
		    (errno != ENOENT || (unlinkat(s->dir, path, 0) != 0 && errno != ENOENT)))
			err = -errno;
		if (fds[i] >= 0)
			close(fds[i]);
		unlinkat(s->dir, from[i], AT_REMOVEDIR);
	}
	complain(dev->name, err);
}

/* ---- counters ----------------------------------------------------------------------------- */

/* Finds a counter by its name. @return NULL: there is none */
static const struct counter_info *find_counter(const struct counter_info *info, unsigned int count,
					       const char *name)
{
	for (unsigned int i = 0; i < count; i++) {
		if (strcmp(info[i].name, name) == 0)
			return &info[i];
	}
	return NULL;
}

/* Finds what "DEVICE/ports/1/[hw_]counters/NAME" names. @return NULL: there is no such counter */
static const struct counter_info *find_path(const struct host *host, const char *path,
					    const struct device **dev)
{
	static const char counters[] = "/ports/1/counters/", hw[] = "/ports/1/hw_counters/";
	const char *rest = strchr(path, '/');

	const struct host_device *d;
	unsigned int i;

	if (rest == NULL)
		return NULL;
	host_for_each_device (host, i, d) {
		*dev = &d->dev;
		if (strlen((*dev)->name) != (size_t)(rest - path) ||
		    memcmp((*dev)->name, path, (size_t)(rest - path)) != 0)
			continue;
		if (strncmp(rest, counters, sizeof(counters) - 1) == 0)
			return find_counter(port_counters, port_counters_count,
					    rest + sizeof(counters) - 1);
		if (strncmp(rest, hw, sizeof(hw) - 1) == 0)
			return find_counter(hw_counters, hw_counters_count, rest + sizeof(hw) - 1);
	}
	return NULL;
}

int sysfs_update(const struct sysfs *s, const char *path)
{
	const struct counter_info *info;
	const struct device *dev;
	struct qp_counters sum;
	char full[PATH_MAX];
	int err = 0;

	info = find_path(s->host, path, &dev);
	if (s->dir < 0 || info == NULL)
		return -ENOENT;
	stats_device_counters(s->host, dev, &sum);
	/* The path is now known to be one of a file we made. */
	snprintf(full, sizeof(full), SYSFS_CLASS "/%s", path);
	unlinkat(s->dir, SYSFS_NEW, 0);
	STEP(err, make_file(s->dir, SYSFS_NEW, "%" PRIu64 "\n", counter_value(info, &sum)));
	if (err == 0 && renameat(s->dir, SYSFS_NEW, s->dir, full) != 0)
		err = -errno;
	return err;
}

int handle_sysfs(struct client *c, struct message *m)
{
	const char *path = m->req->sysfs.path;

	if (memchr(path, '\0', sizeof(m->req->sysfs.path)) == NULL)
		return -EINVAL;
	return sysfs_update(&c->server->sysfs, path);
}
