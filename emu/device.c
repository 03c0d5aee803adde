/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The emulated devices of a daemon: attributes, GID tables, addresses.
 *
 * GID 0 is a link-local IPv6 address: the one of the interface that has the device's first address
 * where it can be had, else one made from the GUID that only this daemon knows. GID 1 is the first
 * IPv4 address, the others follow. A private device has the host's addresses as names only: it owns
 * no socket, and traffic for them stays in the daemon.
 */
#include "device.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "host.h"
#include "vernic_config.h"
#include "wire/wire.h"

/*
 * Room for headers between the interface's MTU and the path MTU, beyond IP: UDP, the largest
 * transport headers in front of data, ICRC: 52 bytes; rounded up, but an interface's MTU of 4200,
 * the usual one for a path MTU of 4096, must do for IPv6.
 */
#define DEVICE_HEADER_ROOM 64

#define PROBE_TRIES 30 /* 10 ms each */

bool device_owns_gid(const struct device *dev, const uint8_t gid[16])
{
	for (unsigned int i = 0; i < dev->gid_count; i++) {
		if (device_gid(dev, i) != NULL && memcmp(dev->gids[i].raw, gid, 16) == 0)
			return true;
	}
	return false;
}

const char *device_format_gid(const uint8_t gid[16], char buf[INET6_ADDRSTRLEN])
{
	if (gid_is_ipv4(gid))
		inet_ntop(AF_INET, gid + 12, buf, INET6_ADDRSTRLEN);
	else
		inet_ntop(AF_INET6, gid, buf, INET6_ADDRSTRLEN);
	return buf;
}

/* The GID of an interface's address. @return whether it is IPv4 or IPv6 */
static bool gid_of_sockaddr(const struct sockaddr *sa, uint8_t gid[16])
{
	if (sa == NULL)
		return false;
	if (sa->sa_family == AF_INET) {
		gid_from_ipv4(gid, &((const struct sockaddr_in *)sa)->sin_addr);
		return true;
	}
	if (sa->sa_family == AF_INET6) {
		memcpy(gid, &((const struct sockaddr_in6 *)sa)->sin6_addr, 16);
		return true;
	}
	return false;
}

/*
 * Tries whether an address is this host's and its UDP port is free: a bind without SO_REUSEPORT
 * fails also where the holder of the port has set it.
 * @port: host order; 0: any
 * @return 0 or a negative errno
 */
static int device_probe_bind(const uint8_t gid[16], uint32_t ifindex, uint16_t port)
{
	const struct timespec pause = {.tv_nsec = 10000000};
	union io_address a = {0};
	socklen_t len;
	int fd, err = 0;

	if (gid_is_ipv4(gid)) {
		a.in4.sin_family = AF_INET;
		a.in4.sin_port = htons(port);
		memcpy(&a.in4.sin_addr, gid + 12, 4);
		len = sizeof(a.in4);
	} else {
		a.in6.sin6_family = AF_INET6;
		a.in6.sin6_port = htons(port);
		a.in6.sin6_scope_id = ifindex;
		memcpy(&a.in6.sin6_addr, gid, 16);
		len = sizeof(a.in6);
	}
	fd = socket(a.sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	/* The port of a daemon that was killed comes free some 10 ms after its end (io_uring). */
	for (int tries = 0; tries < PROBE_TRIES; tries++) {
		err = bind(fd, &a.sa, len) != 0 ? -errno : 0;
		if (err != -EADDRINUSE)
			break;
		nanosleep(&pause, NULL);
	}
	close(fd);
	return err;
}

/* @return the MTU of an interface in bytes, 0 if it cannot be had */
static unsigned int device_interface_mtu(const char *ifname)
{
	struct ifreq req = {0};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int err;

	if (fd < 0)
		fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", ifname);
	err = ioctl(fd, SIOCGIFMTU, &req);
	close(fd);
	return err == 0 && req.ifr_mtu > 0 ? (unsigned int)req.ifr_mtu : 0;
}

/* @return the largest IB MTU of at most this many bytes, 0 if none */
static enum ibv_mtu device_ib_mtu(unsigned int bytes)
{
	enum ibv_mtu mtu = IBV_MTU_4096;

	while (mtu >= IBV_MTU_256 && (128u << mtu) > bytes)
		mtu--;
	return mtu;
}

/*
 * Puts a GID into the first empty entry of the table, unless the table has it already.
 * @return the entry, or -1
 */
static int device_add_gid(struct host_device *d, const uint8_t gid[16], uint32_t ifindex,
			  bool bound)
{
	unsigned int i = 0;
	struct gid_entry *g;

	while (i < VERNIC_GID_MAX && device_gid(&d->dev, i) != NULL)
		i++;
	if (i == VERNIC_GID_MAX || device_owns_gid(&d->dev, gid))
		return -1;
	g = &d->dev.gids[i];
	memcpy(g->raw, gid, 16);
	g->ifindex = ifindex;
	d->bound[i] = bound;
	vernic_store_release(&g->valid, 1);
	if (d->dev.gid_count <= i)
		d->dev.gid_count = i + 1;
	return (int)i;
}

void device_remove_gid(struct host_device *d, unsigned int index)
{
	struct gid_entry *g = &d->dev.gids[index];

	vernic_store_release(&g->valid, 0);
	synchronize_rcu();
	memset(g->raw, 0, sizeof(g->raw));
	g->ifindex = 0;
	d->bound[index] = false;
}

/* GID 0 where no interface lends its own: fe80::/64 and the GUID as a modified EUI-64. */
static void device_add_private_link_local(struct host_device *d)
{
	uint8_t gid[16] = {0xfe, 0x80};

	memcpy(gid + 8, &d->dev.node_guid, 8);
	gid[8] ^= 0x02;
	device_add_gid(d, gid, 0, false);
}

/* The interface that has an address: an entry of getifaddrs(), or NULL. */
static const struct ifaddrs *device_find_interface(const struct ifaddrs *list,
						   const struct config_address *a)
{
	for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
		uint8_t gid[16];

		if (gid_of_sockaddr(i->ifa_addr, gid) && memcmp(gid, a->gid, 16) == 0 &&
		    (a->ifindex == 0 || if_nametoindex(i->ifa_name) == a->ifindex))
			return i;
	}
	return NULL;
}

/* The interface local routes lead to (all of 127.0.0.0/8): the loopback, or NULL. */
static const struct ifaddrs *device_find_loopback(const struct ifaddrs *list)
{
	for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
		if ((i->ifa_flags & (IFF_LOOPBACK | IFF_UP)) == (IFF_LOOPBACK | IFF_UP))
			return i;
	}
	return NULL;
}

/* Adds GID 0 of a device with addresses: its interface's link-local address, if it is free. */
static void device_add_link_local(struct host_device *d, const struct ifaddrs *list,
				  const char *ifname, struct host_device *const *others)
{
	for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
		uint8_t gid[16];
		uint32_t ifindex;
		bool taken = false;

		if (strcmp(i->ifa_name, ifname) != 0 || !gid_of_sockaddr(i->ifa_addr, gid) ||
		    !gid_is_link_local(gid))
			continue;
		for (unsigned int k = 0; k < CONFIG_MAX_DEVICES; k++)
			taken |= others[k] != NULL && device_owns_gid(&others[k]->dev, gid);
		ifindex = if_nametoindex(ifname);
		/* Another daemon on this interface may have it: then this device does without. */
		if (taken || device_probe_bind(gid, ifindex, ROCE_UDP_PORT) != 0)
			continue;
		device_add_gid(d, gid, ifindex, true);
		return;
	}
	device_add_private_link_local(d);
}

/* Checks one configured address and says which interface has it. @return NULL: complained */
static const struct ifaddrs *device_check_address(const struct device_config *cfg,
						  const struct config_address *a,
						  struct host_device *const *others,
						  const struct ifaddrs *list)
{
	const struct ifaddrs *i = device_find_interface(list, a);
	char text[INET6_ADDRSTRLEN];
	uint32_t scope = a->ifindex;
	int err;

	device_format_gid(a->gid, text);
	if (i == NULL && !gid_is_link_local(a->gid))
		i = device_find_loopback(list);
	if (i != NULL && gid_is_link_local(a->gid))
		scope = if_nametoindex(i->ifa_name);
	if (i == NULL || device_probe_bind(a->gid, scope, 0) != 0) {
		config_fail(cfg->where, "addr: %s is not an address of this host", text);
		return NULL;
	}
	for (unsigned int k = 0; k < CONFIG_MAX_DEVICES; k++) {
		if (others[k] != NULL && others[k]->udp &&
		    device_owns_gid(&others[k]->dev, a->gid)) {
			config_fail(cfg->where, "addr: %s is the address of device %s already",
				    text, others[k]->dev.name);
			return NULL;
		}
	}
	err = device_probe_bind(a->gid, scope, ROCE_UDP_PORT);
	if (err != 0) {
		config_fail(cfg->where, "addr: UDP port %d of %s: %s", ROCE_UDP_PORT, text,
			    strerror(-err));
		return NULL;
	}
	return i;
}

/* Fills the GID table and the MTU of a device with addresses of its own. */
static int device_use_addresses(struct host_device *d, const struct device_config *cfg,
				struct host_device *const *others, const struct ifaddrs *list)
{
	unsigned int bytes = 4096;
	uint32_t ifindex[CONFIG_MAX_ADDRESSES];
	const char *first = NULL;

	for (unsigned int k = 0; k < cfg->address_count; k++) {
		const struct config_address *a = &cfg->address[k];
		const struct ifaddrs *i = device_check_address(cfg, a, others, list);
		unsigned int room = DEVICE_HEADER_ROOM + (gid_is_ipv4(a->gid) ? 20 : 40);
		unsigned int mtu;

		if (i == NULL)
			return -EINVAL;
		mtu = device_interface_mtu(i->ifa_name);
		if (mtu < room + 256)
			return config_fail(cfg->where, "addr: the MTU of %s, %u, is too small",
					   i->ifa_name, mtu);
		if (mtu - room < bytes)
			bytes = mtu - room;
		ifindex[k] = if_nametoindex(i->ifa_name);
		if (first == NULL)
			first = i->ifa_name;
		/* A link-local address that was asked for is GID 0. */
		if (gid_is_link_local(a->gid) && d->dev.gid_count == 0)
			device_add_gid(d, a->gid, ifindex[k], true);
	}
	d->dev.port_attr.active_mtu = device_ib_mtu(bytes);
	if (d->dev.gid_count == 0)
		device_add_link_local(d, list, first, others);
	for (int ipv4 = 1; ipv4 >= 0; ipv4--) {
		for (unsigned int k = 0; k < cfg->address_count; k++) {
			const uint8_t *gid = cfg->address[k].gid;
			/* The first IPv4 address is GID 1; the rest keep their order. */
			bool is_first = d->dev.gid_count == 1 && gid_is_ipv4(gid);

			if (ipv4 == 0 || is_first)
				device_add_gid(d, gid, ifindex[k], true);
		}
	}
	return 0;
}

/* Fills the GID table of a private device: 127.0.0.1, then the host's addresses. */
static void device_use_host(struct host_device *d, const struct ifaddrs *list)
{
	static const uint8_t loopback[16] = {[10] = 0xff, 0xff, 127, 0, 0, 1};

	d->dev.port_attr.active_mtu = IBV_MTU_4096;
	device_add_private_link_local(d);
	device_add_gid(d, loopback, 0, false);
	for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
		uint8_t gid[16];

		/* Link-local ones, ambiguous without an interface, and ::1 stay out. */
		if (!gid_of_sockaddr(i->ifa_addr, gid) || gid_is_link_local(gid) ||
		    (!gid_is_ipv4(gid) && (i->ifa_flags & IFF_LOOPBACK) != 0))
			continue;
		device_add_gid(d, gid, if_nametoindex(i->ifa_name), false);
	}
}

/* A GUID of its own for every device of every daemon: random, locally administered. */
static uint64_t device_random_guid(void)
{
	uint8_t raw[8];
	uint64_t guid;

	if (getrandom(raw, sizeof(raw), 0) != sizeof(raw))
		memset(raw, 0x5a, sizeof(raw));
	raw[0] = (raw[0] | 0x02) & 0xfe;
	/* The marks of an EUI-64 made from a MAC address. */
	raw[3] = 0xff;
	raw[4] = 0xfe;
	memcpy(&guid, raw, sizeof(guid));
	return guid;
}

/* The attributes that ibv_query_device(3) and ibv_query_port(3) report. */
static void device_fill_attr(struct host_device *d, const struct device_config *cfg)
{
	struct ibv_device_attr *a = &d->dev.attr;
	struct ibv_port_attr *p = &d->dev.port_attr;

	snprintf(a->fw_ver, sizeof(a->fw_ver), "vernic %s", VERNIC_VERSION);
	a->node_guid = d->dev.node_guid;
	a->sys_image_guid = d->dev.node_guid;
	a->max_mr_size = UINT64_MAX;
	a->page_size_cap = 0xfffff000;
	a->vendor_id = VERNIC_VENDOR_ID;
	a->vendor_part_id = 1;
	a->hw_ver = 1;
	a->max_qp = (int)cfg->limit[LIMIT_QP];
	a->max_qp_wr = (int)cfg->limit[LIMIT_QP_WR];
	a->device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SYS_IMAGE_GUID |
			      IBV_DEVICE_RC_RNR_NAK_GEN;
	if (device_has(&d->dev, DEVICE_MEMORY_WINDOWS))
		a->device_cap_flags |= IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
				       IBV_DEVICE_MEM_MGT_EXTENSIONS;
	if (device_has(&d->dev, DEVICE_SRQ_RESIZE))
		a->device_cap_flags |= IBV_DEVICE_SRQ_RESIZE;
	if (device_has(&d->dev, DEVICE_XRC))
		a->device_cap_flags |= IBV_DEVICE_XRC;
	a->max_sge = (int)cfg->limit[LIMIT_SGE];
	a->max_sge_rd = a->max_sge;
	a->max_cq = (int)cfg->limit[LIMIT_CQ];
	a->max_cqe = (int)cfg->limit[LIMIT_CQE];
	a->max_mr = (int)cfg->limit[LIMIT_MR];
	a->max_mw = device_has(&d->dev, DEVICE_MEMORY_WINDOWS) ? (int)cfg->limit[LIMIT_MW] : 0;
	a->max_pd = (int)cfg->limit[LIMIT_PD];
	a->max_qp_rd_atom = (int)cfg->limit[LIMIT_RD_ATOMIC];
	a->max_qp_init_rd_atom = a->max_qp_rd_atom;
	a->max_res_rd_atom = a->max_qp_rd_atom * a->max_qp;
	a->atomic_cap = device_has(&d->dev, DEVICE_ATOMICS) ? IBV_ATOMIC_HCA : IBV_ATOMIC_NONE;
	a->max_ah = (int)cfg->limit[LIMIT_AH];
	a->max_srq = (int)cfg->limit[LIMIT_SRQ];
	a->max_srq_wr = (int)cfg->limit[LIMIT_SRQ_WR];
	a->max_srq_sge = (int)cfg->limit[LIMIT_SRQ_SGE];
	a->max_mcast_grp = (int)cfg->limit[LIMIT_MCAST_GRP];
	a->max_mcast_qp_attach = (int)cfg->limit[LIMIT_MCAST_QP_ATTACH];
	a->max_total_mcast_qp_attach = a->max_mcast_grp * a->max_mcast_qp_attach;
	a->max_pkeys = 1;
	a->phys_port_cnt = 1;

	p->state = IBV_PORT_ACTIVE;
	p->max_mtu = IBV_MTU_4096;
	if (p->active_mtu > device_ib_mtu(cfg->mtu))
		p->active_mtu = device_ib_mtu(cfg->mtu);
	p->gid_tbl_len = VERNIC_GID_MAX;
	p->port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
	p->max_msg_sz = VERNIC_MAX_MSG_SIZE;
	p->pkey_tbl_len = 1;
	p->max_vl_num = 1;
	p->active_width = 2;  /* 4 lanes */
	p->active_speed = 32; /* of 25 Gb/s */
	p->phys_state = 5;    /* LinkUp */
	p->link_layer = IBV_LINK_LAYER_ETHERNET;
	p->flags = IBV_QPF_GRH_REQUIRED;
}

int device_create(const struct device_config *cfg, struct host_device *const *others,
		  unsigned int index, struct host_device **out)
{
	struct host_device *d = calloc(1, sizeof(*d));
	struct ifaddrs *list = NULL;
	int err;

	if (d == NULL)
		return config_fail(cfg->where, "out of memory");
	strcpy(d->dev.name, cfg->name);
	d->dev.index = index;
	d->dev.socket_buffer = cfg->socket_buffer;
	d->dev.features = cfg->features;
	d->dev.max_inline = cfg->limit[LIMIT_INLINE];
	d->profile = cfg->profile;
	d->dev.node_guid = cfg->guid != 0 ? htobe64(cfg->guid) : device_random_guid();
	d->udp = cfg->address_count != 0;
	if (getifaddrs(&list) != 0) {
		/* No netlink here (gVisor, a strict filter): a private device can do without. */
		list = NULL;
		if (d->udp) {
			err = config_fail(cfg->where, "cannot list the interfaces: %s",
					  strerror(errno));
			goto fail;
		}
	}
	if (d->udp) {
		err = device_use_addresses(d, cfg, others, list);
		if (err != 0)
			goto fail;
	} else {
		device_use_host(d, list);
	}
	device_fill_attr(d, cfg);
	d->dev.mrs = mr_table_create();
	d->dev.xrcs = xrc_table_create();
	if (d->dev.mrs == NULL || d->dev.xrcs == NULL) {
		mr_table_destroy(d->dev.mrs);
		xrc_table_destroy(d->dev.xrcs);
		err = config_fail(cfg->where, "out of memory");
		goto fail;
	}
	pthread_mutex_init(&d->dev.atomic_lock, NULL);
	pthread_spin_init(&d->dev.window_lock, PTHREAD_PROCESS_PRIVATE);
	freeifaddrs(list);
	*out = d;
	return 0;
fail:
	if (list != NULL)
		freeifaddrs(list);
	free(d);
	return err;
}

/* Looks the interface of a new address up. @return it, or 0 with a complaint made */
static uint32_t device_new_interface(struct host_device *d, const struct device_config *cfg,
				     struct host_device *const *others, const struct ifaddrs *list)
{
	const struct config_address *a = &cfg->address[0];
	const struct ifaddrs *i = device_check_address(cfg, a, others, list);
	unsigned int room = DEVICE_HEADER_ROOM + (gid_is_ipv4(a->gid) ? 20 : 40);
	unsigned int path = 128u << d->dev.port_attr.active_mtu;

	if (i == NULL)
		return 0;
	if (device_interface_mtu(i->ifa_name) < room + path) {
		config_fail(cfg->where, "addr: the MTU of %s is too small for the device's, %u",
			    i->ifa_name, path);
		return 0;
	}
	return if_nametoindex(i->ifa_name);
}

int device_add_address(struct host_device *d, const char *text, struct host_device *const *others,
		       unsigned int *index)
{
	struct ifaddrs *list = NULL;
	struct device_config cfg;
	uint32_t ifindex = 0;
	int n;

	config_init_device(&cfg, "");
	if (config_add_address(&cfg, text) != 0)
		return -EINVAL;
	if (device_owns_gid(&d->dev, cfg.address[0].gid))
		return config_fail("", "%s has %s already", d->dev.name, text);
	/* A private device's are names only, so any will do. */
	if (d->udp) {
		if (getifaddrs(&list) != 0)
			return config_fail("", "cannot list the interfaces: %s", strerror(errno));
		ifindex = device_new_interface(d, &cfg, others, list);
		freeifaddrs(list);
		if (ifindex == 0)
			return -EINVAL;
	}
	n = device_add_gid(d, cfg.address[0].gid, ifindex, d->udp);
	if (n < 0)
		return config_fail("", "the GID table of %s is full", d->dev.name);
	*index = (unsigned int)n;
	return 0;
}

int device_find_address(struct host_device *d, const char *text)
{
	struct device_config cfg;

	config_init_device(&cfg, "");
	if (config_add_address(&cfg, text) != 0)
		return -EINVAL;
	for (unsigned int i = 0; i < d->dev.gid_count; i++) {
		if (device_gid(&d->dev, i) != NULL &&
		    memcmp(d->dev.gids[i].raw, cfg.address[0].gid, 16) == 0)
			return (int)i;
	}
	return config_fail("", "%s has no address %s", d->dev.name, text);
}

void device_set_port(struct host_device *d, bool up)
{
	d->dev.port_attr.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
	d->dev.port_attr.phys_state = up ? 5 : 3; /* LinkUp, Disabled */
	vernic_store_release(&d->dev.down, !up);
}

const char *device_state(const struct host_device *d)
{
	if (device_has_failed(d))
		return "failed";
	return d->dev.port_attr.state == IBV_PORT_ACTIVE ? "active" : "down";
}

/* ---- the list of a host -------------------------------------------------------------------- */

struct host_device *host_device_by_name(const struct host *host, const char *name)
{
	struct host_device *d;
	unsigned int i;

	host_for_each_device (host, i, d) {
		if (strcmp(d->dev.name, name) == 0)
			return d;
	}
	return NULL;
}

int host_add_device(struct host *host, const struct device_config *cfg, struct host_device **out)
{
	unsigned int index = 0;
	int err;

	while (index < CONFIG_MAX_DEVICES && (host->device_taken >> index & 1) != 0)
		index++;
	if (index == CONFIG_MAX_DEVICES)
		return config_fail(cfg->where, "more than %d devices", CONFIG_MAX_DEVICES);
	err = device_create(cfg, host->device, index, out);
	if (err != 0)
		return err;
	host->device_taken |= UINT64_C(1) << index;
	(*out)->word = &host->page->device[index];
	vernic_store_release(&(*out)->word->failed, 0);
	rcu_assign_pointer(host->device[index], *out);
	if (host->device_count <= index)
		host->device_count = index + 1;
	return 0;
}

void host_unlist_device(struct host *host, struct host_device *d)
{
	d->removed = true;
	rcu_assign_pointer(host->device[d->dev.index], NULL);
}

void host_free_device(struct host *host, struct host_device *d)
{
	synchronize_rcu();
	host->device_taken &= ~(UINT64_C(1) << d->dev.index);
	device_destroy(d);
}

void device_destroy(struct host_device *d)
{
	mr_table_destroy(d->dev.mrs);
	xrc_table_destroy(d->dev.xrcs);
	pthread_mutex_destroy(&d->dev.atomic_lock);
	pthread_spin_destroy(&d->dev.window_lock);
	free(d);
}
