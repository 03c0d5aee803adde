/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which MAC address a GID is reached by: ibv_resolve_eth_l2_from_gid(). The daemon has no need of
 * it, for its packets leave through sockets; it is for programs that build frames themselves.
 *
 * The kernel is asked over rtnetlink, without a library: this one is loaded into programs that know
 * of no other.
 */
#include <errno.h>
#include <ifaddrs.h>
#include <linux/if_vlan.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define NO_VLAN 0xffff
#define RESOLVE_MS 3000 /* how long a neighbour may take to answer */
#define RETRY_MS 300	/* when it is asked again */
#define PORT_DISCARD 9
#define NUD_USABLE (NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP)

/* An IP address, in network byte order. */
struct ip {
	int family;    /* AF_INET or AF_INET6 */
	socklen_t len; /* 4 or 16 bytes */
	uint8_t addr[16];
};

/* A netlink request or reply: a header, a struct of its type, attributes. */
union message {
	struct nlmsghdr header;
	uint8_t bytes[8192];
};

/* IPv4 groups have two forms: ::ffff:a.b.c.d as all IPv4, and ff0e::ffff:a.b.c.d as rdma_cm. */
static struct ip ip_of_gid(const union ibv_gid *gid)
{
	static const uint8_t group[12] = {0xff, 0x0e, [10] = 0xff, 0xff};
	struct ip ip = {.family = AF_INET6, .len = 16};

	if (IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)gid->raw) ||
	    memcmp(gid->raw, group, sizeof(group)) == 0)
		ip = (struct ip){.family = AF_INET, .len = 4};
	memcpy(ip.addr, gid->raw + 16 - ip.len, ip.len);
	return ip;
}

static bool ip_equals(const struct ip *ip, const struct sockaddr *sa)
{
	if (!sa || sa->sa_family != ip->family)
		return false;
	if (ip->family == AF_INET)
		return !memcmp(&((const struct sockaddr_in *)sa)->sin_addr, ip->addr, 4);
	return !memcmp(&((const struct sockaddr_in6 *)sa)->sin6_addr, ip->addr, 16);
}

/* @return whether ip has a meaning with an interface only */
static bool is_link_local(const struct ip *ip)
{
	return ip->family == AF_INET6 && ip->addr[0] == 0xfe && ip->addr[1] >> 6 == 2;
}

static bool is_loopback(const struct ip *ip)
{
	return ip->family == AF_INET ? ip->addr[0] == IN_LOOPBACKNET
				     : IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)ip->addr);
}

/* @scope: interface of a link-local address, else 0. @return the length of the address */
static socklen_t ip_to_sockaddr(const struct ip *ip, uint16_t port, int scope,
				struct sockaddr_storage *ss)
{
	memset(ss, 0, sizeof(*ss));
	if (ip->family == AF_INET) {
		struct sockaddr_in *sin = (struct sockaddr_in *)ss;

		sin->sin_family = AF_INET;
		sin->sin_port = htons(port);
		memcpy(&sin->sin_addr, ip->addr, 4);
		return sizeof(*sin);
	} else {
		struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)ss;

		sin6->sin6_family = AF_INET6;
		sin6->sin6_port = htons(port);
		memcpy(&sin6->sin6_addr, ip->addr, 16);
		if (is_link_local(ip))
			sin6->sin6_scope_id = (uint32_t)scope;
		return sizeof(*sin6);
	}
}

/* ---- what the address itself says ---------------------------------------------------------- */

/* RFC 1112 6.4, RFC 2464 7. @return whether ip is that of a group */
static bool mac_of_group(const struct ip *ip, uint8_t mac[ETHERNET_LL_SIZE])
{
	const uint8_t *a = ip->addr;

	if (ip->family == AF_INET && a[0] >> 4 == 0xe)
		memcpy(mac, (uint8_t[]){0x01, 0x00, 0x5e, a[1] & 0x7f, a[2], a[3]}, 6);
	else if (ip->family == AF_INET6 && a[0] == 0xff)
		memcpy(mac, (uint8_t[]){0x33, 0x33, a[12], a[13], a[14], a[15]}, 6);
	else
		return false;
	return true;
}

/* GID 0 of a RoCE adapter, fe80:: and the EUI-64 of its MAC. @return whether ip is such a one */
static bool mac_of_eui64(const struct ip *ip, uint8_t mac[ETHERNET_LL_SIZE])
{
	const uint8_t *a = ip->addr;

	if (!is_link_local(ip) || a[11] != 0xff || a[12] != 0xfe)
		return false;
	memcpy(mac, (uint8_t[]){a[8] ^ 2, a[9], a[10], a[13], a[14], a[15]}, 6);
	return true;
}

/* ---- interfaces ---------------------------------------------------------------------------- */

/* @like: the interface to prefer, if several have the address. @return 0: none has it */
static int interface_of(const struct ifaddrs *list, const struct ip *ip, int like)
{
	int found = 0;

	for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
		if (!ip_equals(ip, i->ifa_addr))
			continue;
		if (!found || (int)if_nametoindex(i->ifa_name) == like)
			found = (int)if_nametoindex(i->ifa_name);
	}
	/* All of 127.0.0.0/8 is there. */
	if (!found && is_loopback(ip))
		found = (int)if_nametoindex("lo");
	return found;
}

/* @return 0, or -EINVAL: no such interface, or it is none of Ethernet */
static int interface_mac(const struct ifaddrs *list, int ifindex, uint8_t mac[ETHERNET_LL_SIZE])
{
	for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
		const struct sockaddr_ll *ll = (const struct sockaddr_ll *)i->ifa_addr;

		if (!ll || ll->sll_family != AF_PACKET || ll->sll_ifindex != ifindex)
			continue;
		if (ll->sll_halen != ETHERNET_LL_SIZE)
			return -EINVAL;
		memcpy(mac, ll->sll_addr, ETHERNET_LL_SIZE);
		return 0;
	}
	return -EINVAL;
}

/* @return the VLAN id of an interface that has one, else NO_VLAN */
static uint16_t interface_vlan(int ifindex)
{
	struct vlan_ioctl_args args = {.cmd = GET_VLAN_VID_CMD};
	uint16_t vid = NO_VLAN;
	int fd;

	if (!if_indextoname((unsigned int)ifindex, args.device1))
		return NO_VLAN;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return NO_VLAN;
	if (ioctl(fd, SIOCGIFVLAN, &args) == 0 && args.u.VID >= 0 && args.u.VID <= 0xfff)
		vid = (uint16_t)args.u.VID;
	close(fd);
	return vid;
}

/* ---- rtnetlink ----------------------------------------------------------------------------- */

/* Begins a request. @body: behind the header, len bytes */
static void message_init(union message *m, uint16_t type, const void *body, size_t len)
{
	memset(m, 0, sizeof(*m));
	m->header.nlmsg_type = type;
	m->header.nlmsg_flags = NLM_F_REQUEST;
	m->header.nlmsg_len = (uint32_t)NLMSG_LENGTH(len);
	memcpy(NLMSG_DATA(&m->header), body, len);
}

/* Appends an attribute; requests here are small and always have room. */
static void message_add(union message *m, uint16_t type, const void *data, size_t len)
{
	struct rtattr *attr = (struct rtattr *)(m->bytes + NLMSG_ALIGN(m->header.nlmsg_len));

	attr->rta_type = type;
	attr->rta_len = (uint16_t)RTA_LENGTH(len);
	memcpy(RTA_DATA(attr), data, len);
	m->header.nlmsg_len = NLMSG_ALIGN(m->header.nlmsg_len) + RTA_ALIGN(attr->rta_len);
}

/* @return the attribute of a message with a body of that many bytes, or NULL; len: out, in bytes */
static const void *message_find(union message *m, size_t body, uint16_t type, size_t *len)
{
	struct rtattr *attr = (struct rtattr *)(m->bytes + NLMSG_SPACE(body));
	int left = (int)m->header.nlmsg_len - (int)NLMSG_SPACE(body);

	for (; RTA_OK(attr, left); attr = RTA_NEXT(attr, left)) {
		if (attr->rta_type != type)
			continue;
		*len = RTA_PAYLOAD(attr);
		return RTA_DATA(attr);
	}
	return NULL;
}

/*
 * Sends a request and waits for its one reply, which takes its place.
 * @type, @body: what the reply must be, and the bytes it must have behind the header
 * @return 0 or a negative errno
 */
static int message_ask(int fd, union message *m, uint16_t type, size_t body)
{
	ssize_t len;

	if (send(fd, m, m->header.nlmsg_len, 0) < 0)
		return -errno;
	do {
		len = recv(fd, m, sizeof(*m), 0);
	} while (len < 0 && errno == EINTR);
	if (len < 0)
		return -errno;
	if (!NLMSG_OK(&m->header, len))
		return -EPROTO;
	if (m->header.nlmsg_type == NLMSG_ERROR &&
	    m->header.nlmsg_len >= NLMSG_LENGTH(sizeof(struct nlmsgerr)))
		return ((struct nlmsgerr *)NLMSG_DATA(&m->header))->error;
	if (m->header.nlmsg_type != type || m->header.nlmsg_len < NLMSG_LENGTH(body))
		return -EPROTO;
	return 0;
}

/* @groups: RTMGRP_*, what it is told of unasked. @return a socket, or -1 with errno */
static int rtnetlink_open(uint32_t groups)
{
	struct sockaddr_nl addr = {.nl_family = AF_NETLINK, .nl_groups = groups};
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	/* Connected, so that nobody but the kernel is heard. */
	if (fd >= 0 && (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
			connect(fd, (struct sockaddr *)&kernel, sizeof(kernel)) != 0)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* ---- routes and neighbours ----------------------------------------------------------------- */

/*
 * Looks up the way to an address. One that no route of the interface leads to is taken to be on its
 * link.
 * @hop: the destination; out: its gateway, if it has one
 * @ifindex: the interface to leave by, 0: any; out: which it is
 * @return RTN_LOCAL, RTN_UNICAST or another type of route, or a negative errno
 */
static int route_lookup(int fd, struct ip *hop, int *ifindex)
{
	struct rtmsg body = {.rtm_family = (uint8_t)hop->family,
			     .rtm_dst_len = (uint8_t)(hop->len * 8)};
	union message m;
	const void *data;
	size_t len;
	int err, type;

	message_init(&m, RTM_GETROUTE, &body, sizeof(body));
	message_add(&m, RTA_DST, hop->addr, hop->len);
	if (*ifindex)
		message_add(&m, RTA_OIF, ifindex, sizeof(*ifindex));
	err = message_ask(fd, &m, RTM_NEWROUTE, sizeof(body));
	if (err)
		return err;
	type = ((struct rtmsg *)NLMSG_DATA(&m.header))->rtm_type;
	data = message_find(&m, sizeof(body), RTA_OIF, &len);
	if (data && len == sizeof(*ifindex))
		memcpy(ifindex, data, sizeof(*ifindex));
	data = message_find(&m, sizeof(body), RTA_GATEWAY, &len);
	if (data && len == hop->len)
		memcpy(hop->addr, data, len);
	/* An IPv4 route by an IPv6 gateway. */
	data = message_find(&m, sizeof(body), RTA_VIA, &len);
	if (data && len == offsetof(struct rtvia, rtvia_addr) + 16) {
		*hop = (struct ip){.family = AF_INET6, .len = 16};
		memcpy(hop->addr, ((const struct rtvia *)data)->rtvia_addr, 16);
	}
	return type;
}

/* @return 0, -EAGAIN: not known (yet), or another negative errno */
static int neighbour_lookup(int fd, const struct ip *hop, int ifindex,
			    uint8_t mac[ETHERNET_LL_SIZE])
{
	struct ndmsg body = {.ndm_family = (uint8_t)hop->family, .ndm_ifindex = ifindex};
	const void *data;
	union message m;
	size_t len;
	int err;

	message_init(&m, RTM_GETNEIGH, &body, sizeof(body));
	message_add(&m, NDA_DST, hop->addr, hop->len);
	err = message_ask(fd, &m, RTM_NEWNEIGH, sizeof(body));
	if (err)
		return err == -ENOENT ? -EAGAIN : err;
	if (!(((struct ndmsg *)NLMSG_DATA(&m.header))->ndm_state & NUD_USABLE))
		return -EAGAIN;
	data = message_find(&m, sizeof(body), NDA_LLADDR, &len);
	if (!data || len != ETHERNET_LL_SIZE)
		return -EINVAL;
	memcpy(mac, data, ETHERNET_LL_SIZE);
	return 0;
}

/* Sends an empty datagram, before which the kernel must find out who the neighbour is. */
static void neighbour_provoke(const struct ip *hop, int ifindex)
{
	bool v4 = hop->family == AF_INET;
	uint32_t index = htonl((uint32_t)ifindex);
	struct sockaddr_storage to;
	socklen_t len = ip_to_sockaddr(hop, PORT_DISCARD, ifindex, &to);
	int fd = socket(hop->family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return;
	setsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_UNICAST_IF : IPV6_UNICAST_IF, &index,
		   sizeof(index));
	sendto(fd, NULL, 0, 0, (struct sockaddr *)&to, len);
	close(fd);
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Has the kernel ask for a neighbour's MAC, where it does not know it. @return as of the lookup */
static int neighbour_resolve(int fd, const struct ip *hop, int ifindex,
			     uint8_t mac[ETHERNET_LL_SIZE])
{
	int err = neighbour_lookup(fd, hop, ifindex, mac);
	int64_t end = now_ms() + RESOLVE_MS, retry = 0;
	struct pollfd changes = {.events = POLLIN};
	char rubbish[8192];

	if (err != -EAGAIN)
		return err;
	changes.fd = rtnetlink_open(RTMGRP_NEIGH);
	if (changes.fd < 0)
		return -errno;
	for (int64_t now; err == -EAGAIN && (now = now_ms()) < end;) {
		if (now >= retry) {
			neighbour_provoke(hop, ifindex);
			retry = now + RETRY_MS;
		}
		/* Whichever neighbour has changed: this one is looked at again. */
		if (poll(&changes, 1, (int)(retry - now)) > 0)
			recv(changes.fd, rubbish, sizeof(rubbish), MSG_DONTWAIT);
		err = neighbour_lookup(fd, hop, ifindex, mac);
	}
	close(changes.fd);
	return err;
}

/* ---- the call ------------------------------------------------------------------------------ */

/*
 * Finds out to which MAC address, and in which VLAN, frames to the GID of attr are sent. Waits for
 * a neighbour that is not known yet, 3 s at most.
 *
 * @attr: its port_num, grh.sgid_index and grh.dgid count
 * @eth_mac: out; zeros are the loopback's
 * @vid: out, unless NULL: the VLAN id of the source GID's interface, 0xffff if it has none
 * @return 0, -1 with errno if there is no such source GID, -EINVAL: it is empty, or the
 *	interface is none of Ethernet, -EHOSTUNREACH: nobody answers, there is no route, or an
 *	answer would take a source of the other family
 */
int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
				uint8_t eth_mac[ETHERNET_LL_SIZE], uint16_t *vid)
{
	struct ibv_gid_entry own;
	struct ifaddrs *list;
	struct ip src, dst;
	int error, fd, from, ifindex;

	error = device_query_gid(to_context(context), attr->port_num, attr->grh.sgid_index, &own);
	if (error) {
		errno = error;
		return -1;
	}
	src = ip_of_gid(&own.gid);
	dst = ip_of_gid(&attr->grh.dgid);
	if (IN6_IS_ADDR_UNSPECIFIED((struct in6_addr *)own.gid.raw))
		return -EINVAL;
	if (getifaddrs(&list) != 0)
		return -errno;

	from = interface_of(list, &src, (int)own.ndev_ifindex);
	ifindex = interface_of(list, &dst, from);
	if (mac_of_group(&dst, eth_mac) || mac_of_eui64(&dst, eth_mac)) {
		error = 0;
	} else if (is_loopback(&dst) && !is_loopback(&src)) {
		error = -EHOSTUNREACH;
	} else if (ifindex) {
		error = interface_mac(list, ifindex, eth_mac);
	} else if (src.family != dst.family) {
		error = -EHOSTUNREACH;
	} else {
		/* An adapter has one way out, whatever other ones the host has. */
		ifindex = from;
		fd = rtnetlink_open(0);
		error = fd < 0 ? -errno : route_lookup(fd, &dst, &ifindex);
		if (error == RTN_LOCAL)
			error = interface_mac(list, ifindex, eth_mac);
		else if (error == RTN_UNICAST)
			error = neighbour_resolve(fd, &dst, ifindex, eth_mac);
		else
			error = -EHOSTUNREACH;
		if (error && error != -EINVAL)
			error = -EHOSTUNREACH;
		if (fd >= 0)
			close(fd);
	}
	freeifaddrs(list);
	if (!error && vid)
		*vid = interface_vlan(from);
	return error;
}
