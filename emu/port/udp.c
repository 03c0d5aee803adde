/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The UDP port: trains of one worker as RoCEv2 packets, and back.
 *
 * Theory of operation
 * -------------------
 * Sending. Packets are laid out one behind another in the io's send buffers, a burst each: a run of
 * packets for one peer that one GSO send carries, so all have one size but the last, which may be
 * shorter. Any packets for the peer may join, of other trains and QPs too. Headers are encoded at
 * once, the payload is gathered by a dma operation straight into its place. When dma has run,
 * udp_port_flush() computes the ICRCs and hands the bursts to the io. A packet whose gather failed
 * is not sent, nor is what follows it in the burst.
 *
 * The ICRC covers the IPv4 identification. Sockets here send with DF; the kernel then counts the
 * segments of a send 0, 1, 2, ...
 *
 * Receiving. A datagram of several segments (GRO) is cut up, each packet is checked, and those that
 * continue one another become one train again.
 *
 * The sockets of an address, one per worker, share port 4791 by SO_REUSEPORT; a classic BPF program
 * picks the socket from the lowest byte of the destination QPN. A GSO send goes to one socket as a
 * whole, so packets share a burst only if those bits are the same.
 */
#include "udp.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <linux/filter.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "packet.h"

#ifndef UDP_NO_CHECK6_RX
#define UDP_NO_CHECK6_RX 102
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define PORT_SOCKETS 256	/* path.port_data has 8 bits */
#define MAX_SEGMENTS 64		/* UDP_MAX_SEGMENTS of the kernels up to 6.8 */
#define MAX_BURST 65507		/* payload of a UDP datagram over IPv4, bytes */
#define MAX_TRAIN 57344		/* bytes: a burst with room for headers; a multiple of 4096 */
#define MAX_WINDOW (1u << 20)  /* bytes */
#define SOCKET_BUFFER (8 << 20) /* bytes, where we may */
#define TX_RESERVE 8		/* send buffers kept for answers, which do not ask first */
#define PROBE_TRIES 30		/* 10 ms each */
#define JOIN_SEARCH 8		/* bursts looked at for one to join */

static_assert(MAX_TRAIN / 256 <= sizeof(((struct packet_fate *)0)->ip_id) / sizeof(uint16_t),
	      "a place for each packet");

struct udp_socket {
	int fd; /* -1: closed, dev is NULL */
	bool ipv6;
	bool group; /* gid is a multicast group's: receives only */
	const struct device *dev;
	uint8_t gid[16];
	uint32_t ifindex;
	uint32_t window;	   /* bytes its receive buffer is good for */
	uint32_t arrived;	   /* bytes of this round, or of the last one with any */
	bool crowded;		   /* they were too many in the round before that */
	uint8_t hop_limit;	   /* or TTL, as it sends */
	struct icrc_address local; /* from here to 4791; dst is filled in by packet */
};

/* A run of packets in a send buffer. */
struct burst {
	uint8_t *data;
	struct udp_socket *socket;
	uint8_t dgid[16];
	uint8_t tos;
	uint8_t worker;	 /* QPN_WORKER() of the destination */
	bool closed;	 /* the last packet is shorter */
	uint32_t len;	 /* bytes */
	uint32_t packet; /* bytes of each packet but the last */
	uint32_t count;	 /* packets */
	uint32_t good;	 /* packets whose payload is in place */
};

struct udp_port {
	struct io *io;
	struct engine *engine;
	struct capture_set *capture; /* or NULL */
	udp_port_rx_fn rx;
	struct udp_socket sockets[PORT_SOCKETS];
	unsigned int socket_count;
	struct burst *bursts; /* of this round; room for every send buffer */
	uint32_t burst_count;
	uint32_t burst_max;
	uint32_t reserve; /* send buffers */
	struct udp_counters counters;
};

/* Fills in a socket address, port 4791. @scope: index of the interface, for a link-local one */
static void address_from_gid(union io_address *a, const uint8_t gid[16], uint32_t scope)
{
	memset(a, 0, sizeof(*a));
	if (gid_is_ipv4(gid)) {
		a->in4.sin_family = AF_INET;
		a->in4.sin_port = htons(ROCE_UDP_PORT);
		memcpy(&a->in4.sin_addr, gid + 12, 4);
	} else {
		a->in6.sin6_family = AF_INET6;
		a->in6.sin6_port = htons(ROCE_UDP_PORT);
		memcpy(&a->in6.sin6_addr, gid, 16);
		if (gid_is_link_local(gid) || IN6_IS_ADDR_MC_LINKLOCAL(&a->in6.sin6_addr))
			a->in6.sin6_scope_id = scope;
	}
}

/* ---- set-up --------------------------------------------------------------------------------- */

struct udp_port *udp_port_create(struct io *io, struct engine *e, udp_port_rx_fn rx,
				 struct capture_set *capture)
{
	struct udp_port *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->io = io;
	p->engine = e;
	p->rx = rx;
	p->capture = capture;
	p->burst_max = io_tx_available(io);
	p->reserve = p->burst_max < 4 * TX_RESERVE ? p->burst_max / 4 : TX_RESERVE;
	p->bursts = calloc(p->burst_max, sizeof(*p->bursts));
	if (!p->bursts) {
		free(p);
		return NULL;
	}
	return p;
}

void udp_port_destroy(struct udp_port *p)
{
	for (unsigned int i = 0; i < p->socket_count; i++) {
		if (p->sockets[i].fd >= 0)
			close(p->sockets[i].fd);
	}
	free(p->bursts);
	free(p);
}

/*
 * Makes the kernel pick the socket of a group by destination QPN. The program sees the UDP payload.
 * @return 0 or a negative errno
 */
static int steer(int fd, uint32_t workers)
{
	struct sock_filter code[] = {
		{BPF_LD | BPF_B | BPF_ABS, 0, 0, 7}, /* BTH: the lowest byte of the QPN */
		{BPF_ALU | BPF_AND | BPF_K, 0, 0, QPN_WORKER(0xff)},
		{BPF_ALU | BPF_MOD | BPF_K, 0, 0, workers},
		{BPF_RET | BPF_A, 0, 0, 0},
	};
	struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

	if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof(program)) != 0)
		return -errno;
	return 0;
}

/*
 * Sets a buffer of a socket as large as we may.
 * @force, @plain: SO_RCVBUFFORCE and SO_RCVBUF, or those of sending
 * @bytes: wanted; 0: what is best
 * @return what it is, bytes
 */
static uint32_t set_buffer(int fd, int force, int plain, uint32_t bytes)
{
	int size = bytes != 0 ? (int)bytes : SOCKET_BUFFER;
	socklen_t len = sizeof(size);

	if (setsockopt(fd, SOL_SOCKET, force, &size, len) != 0)
		setsockopt(fd, SOL_SOCKET, plain, &size, len);
	if (getsockopt(fd, SOL_SOCKET, plain, &size, &len) != 0)
		return 0;
	return (uint32_t)size;
}

/*
 * Sets what a socket needs before it is bound.
 * @return 0 or a negative errno; cause names the option
 */
static int set_options(int fd, bool ipv6, const char **cause)
{
	static const struct option {
		const char *name;
		int level, option, value;
	} v4[] =
		{
			{"IP_MTU_DISCOVER", IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO},
			{"IP_RECVTOS", IPPROTO_IP, IP_RECVTOS, 1},
			{"SO_REUSEPORT", SOL_SOCKET, SO_REUSEPORT, 1},
		},
	  v6[] = {
		  {"IPV6_V6ONLY", IPPROTO_IPV6, IPV6_V6ONLY, 1},
		  {"IPV6_MTU_DISCOVER", IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO},
		  {"IPV6_RECVTCLASS", IPPROTO_IPV6, IPV6_RECVTCLASS, 1},
		  {"UDP_NO_CHECK6_RX", IPPROTO_UDP, UDP_NO_CHECK6_RX, 1},
		  {"SO_REUSEPORT", SOL_SOCKET, SO_REUSEPORT, 1},
	  };
	const struct option *o = ipv6 ? v6 : v4;
	size_t n = ipv6 ? sizeof(v6) / sizeof(v6[0]) : sizeof(v4) / sizeof(v4[0]);
	int one = 1;

	for (; n > 0; n--, o++) {
		if (setsockopt(fd, o->level, o->option, &o->value, sizeof(o->value)) != 0) {
			*cause = o->name;
			return -errno;
		}
	}
	/* Without it datagrams come one by one: slower, no worse. */
	setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof(one));
	return 0;
}

/*
 * Finds out whether somebody has the address already: with SO_REUSEPORT a second daemon of the same
 * user would share it, and its packets, unnoticed. A killed daemon's address comes free some 10 ms
 * after its end (io_uring), so this tries for a while.
 * @return 0 or a negative errno
 */
static int probe_address(const union io_address *a, socklen_t len)
{
	const struct timespec pause = {.tv_nsec = 10000000};
	int fd = socket(a->sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int one = 1;
	int ret = 0;

	if (fd < 0)
		return -errno;
	if (a->sa.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	for (int tries = 0; tries < PROBE_TRIES; tries++) {
		ret = bind(fd, &a->sa, len) == 0 ? 0 : -errno;
		if (ret != -EADDRINUSE)
			break;
		nanosleep(&pause, NULL);
	}
	close(fd);
	return ret;
}

/* @return the hop limit or TTL a socket sends with */
static uint8_t get_hop_limit(int fd, bool ipv6)
{
	int value = FRAME_HOP_LIMIT;
	socklen_t len = sizeof(value);

	getsockopt(fd, ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_UNICAST_HOPS : IP_TTL, &value,
		   &len);
	return (uint8_t)value;
}

/* @return a socket's entry that is free, or NULL */
static struct udp_socket *new_socket(struct udp_port *p)
{
	for (unsigned int i = 0; i < p->socket_count; i++) {
		if (p->sockets[i].fd < 0)
			return &p->sockets[i];
	}
	return p->socket_count < PORT_SOCKETS ? &p->sockets[p->socket_count] : NULL;
}

/* An entry is in use from here on. */
static void keep_socket(struct udp_port *p, const struct udp_socket *s)
{
	if (s == &p->sockets[p->socket_count])
		p->socket_count++;
}

/*
 * Where multicast leaves, and how far it goes; the kernel's default is one hop. Without it nothing
 * but multicast suffers.
 */
static void set_multicast(int fd, bool ipv6, uint32_t ifindex)
{
	const struct ip_mreqn interface = {.imr_ifindex = (int)ifindex};
	const int index = (int)ifindex, hops = FRAME_HOP_LIMIT;

	if (ipv6) {
		setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof(index));
		setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &hops, sizeof(hops));
	} else {
		setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof(interface));
		setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &hops, sizeof(hops));
	}
}

int udp_port_add(struct udp_port *p, struct device *dev, const uint8_t gid[16], uint32_t ifindex,
		 uint32_t worker, uint32_t workers, char *error, size_t error_len)
{
	struct udp_socket *s = new_socket(p);
	bool ipv6 = !gid_is_ipv4(gid);
	const char *cause = "bind";
	char text[INET6_ADDRSTRLEN];
	union io_address a;
	socklen_t len = ipv6 ? sizeof(a.in6) : sizeof(a.in4);
	int fd = -1, ret = -ENOSPC;

	address_from_gid(&a, gid, ifindex);
	inet_ntop(ipv6 ? AF_INET6 : AF_INET, ipv6 ? gid : gid + 12, text, sizeof(text));
	if (!s)
		goto fail;
	ret = worker == 0 ? probe_address(&a, len) : 0;
	if (ret != 0)
		goto fail;
	cause = "socket";
	fd = socket(a.sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		ret = -errno;
		goto fail;
	}
	ret = set_options(fd, ipv6, &cause);
	if (ret != 0)
		goto fail;
	if (ifindex != 0)
		set_multicast(fd, ipv6, ifindex);
	cause = "bind";
	if (bind(fd, &a.sa, len) != 0) {
		ret = -errno;
		goto fail;
	}
	if (workers > 1) {
		cause = "SO_ATTACH_REUSEPORT_CBPF";
		ret = steer(fd, workers);
		if (ret != 0)
			goto fail;
	}
	cause = "io";
	ret = io_add_socket(p->io, fd, s);
	if (ret != 0)
		goto fail;
	*s = (struct udp_socket){.fd = fd, .ipv6 = ipv6, .dev = dev, .ifindex = ifindex};
	set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, dev->socket_buffer);
	s->window = set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, dev->socket_buffer) / 2;
	s->hop_limit = get_hop_limit(fd, ipv6);
	memcpy(s->gid, gid, sizeof(s->gid));
	s->local.ipv6 = ipv6;
	s->local.src_port = s->local.dst_port = ROCE_UDP_PORT;
	icrc_address_bytes(s->local.src, gid, ipv6);
	keep_socket(p, s);
	return 0;
fail:
	snprintf(error, error_len, "cannot use %s, UDP port %d: %s: %s", text, ROCE_UDP_PORT, cause,
		 strerror(-ret));
	if (fd >= 0)
		close(fd);
	return ret;
}

/*
 * Joins a group; of others on the same host it receives nothing.
 * @return 0 or a negative errno
 */
static int join(int fd, const uint8_t gid[16], bool ipv6, uint32_t ifindex)
{
	struct ip_mreqn v4 = {.imr_ifindex = (int)ifindex};
	struct ipv6_mreq v6 = {.ipv6mr_interface = ifindex};
	int one = 1, zero = 0;

	/* Other daemons of this host may want it too. */
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0)
		return -errno;
	if (ipv6) {
		memcpy(&v6.ipv6mr_multiaddr, gid, 16);
		setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, &zero, sizeof(zero));
		return setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &v6, sizeof(v6)) ? -errno : 0;
	}
	memcpy(&v4.imr_multiaddr, gid + 12, 4);
	setsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &zero, sizeof(zero));
	return setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &v4, sizeof(v4)) ? -errno : 0;
}

int udp_port_join(struct udp_port *p, struct device *dev, const uint8_t gid[16], uint32_t ifindex,
		  char *error, size_t error_len)
{
	struct udp_socket *s = new_socket(p);
	bool ipv6 = !gid_is_ipv4(gid);
	const char *cause = "join";
	union io_address a;
	int fd = -1, ret = -ENOSPC;

	address_from_gid(&a, gid, ifindex);
	if (!s)
		goto fail;
	fd = socket(a.sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	ret = fd < 0 ? -errno : join(fd, gid, ipv6, ifindex);
	if (ret == 0)
		ret = set_options(fd, ipv6, &cause);
	if (ret == 0 && bind(fd, &a.sa, ipv6 ? sizeof(a.in6) : sizeof(a.in4)) != 0)
		ret = -errno;
	if (ret == 0)
		ret = io_add_socket(p->io, fd, s);
	if (ret != 0)
		goto fail;
	*s = (struct udp_socket){
		.fd = fd, .ipv6 = ipv6, .group = true, .dev = dev, .ifindex = ifindex};
	s->window = set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, dev->socket_buffer) / 2;
	memcpy(s->gid, gid, sizeof(s->gid));
	icrc_address_bytes(s->local.src, gid, ipv6);
	keep_socket(p, s);
	return 0;
fail:
	snprintf(error, error_len, "%s: %s", cause, strerror(-ret));
	if (fd >= 0)
		close(fd);
	return ret;
}

void udp_port_remove(struct udp_port *p, const struct device *dev, const uint8_t *gid)
{
	for (unsigned int i = 0; i < p->socket_count; i++) {
		struct udp_socket *s = &p->sockets[i];

		if (s->fd < 0 || s->dev != dev || (gid && memcmp(s->gid, gid, 16) != 0))
			continue;
		io_remove_socket(p->io, s->fd);
		close(s->fd);
		*s = (struct udp_socket){.fd = -1};
	}
}

const struct device *udp_port_device(const struct udp_port *p, const struct path *path)
{
	return p->sockets[path->port_data].dev;
}

bool udp_port_route(struct udp_port *p, const struct device *dev, struct path *path)
{
	for (unsigned int i = 0; i < p->socket_count; i++) {
		const struct udp_socket *s = &p->sockets[i];

		if (s->dev != dev || s->group || memcmp(s->gid, path->sgid, sizeof(s->gid)) != 0)
			continue;
		if (s->ipv6 == gid_is_ipv4(path->dgid))
			return false;
		path->route = ROUTE_UDP;
		path->port_data = (uint8_t)i;
		path->max_train = MAX_TRAIN;
		path->window = s->window < MAX_WINDOW ? s->window : MAX_WINDOW;
		path->budget = s->window;
		return true;
	}
	return false;
}

const struct udp_counters *udp_port_counters(const struct udp_port *p)
{
	return &p->counters;
}

/* ---- sending -------------------------------------------------------------------------------- */

bool udp_port_ready(struct udp_port *p)
{
	return io_tx_available(p->io) > p->reserve;
}

/*
 * Where in a send buffer a burst begins: so that no payload of its first train lies where the copy
 * would be slow (dma_slow_copy()). It lies 12 bytes or more behind the packet's begin, and each
 * packet's 16 or more further from its source than the one before.
 */
static uint32_t first_place(const struct dma_list *payload)
{
	if (payload->len < DMA_LONG)
		return 0;
	return (uint32_t)((payload->seg[0].addr + DMA_SLOW) % IO_TX_SLACK);
}

/*
 * Finds the burst a packet goes to: the newest one for its peer if it takes one more of this size,
 * else a new one.
 * @len: bytes from the BTH to the ICRC
 * @return NULL if no send buffer is free
 */
static struct burst *find_burst(struct udp_port *p, const struct train *t, uint32_t len)
{
	struct udp_socket *s = &p->sockets[t->path->port_data];
	uint8_t tos = (uint8_t)((t->path->traffic_class & ~ECN_MASK) | t->ecn);
	uint32_t oldest = p->burst_count > JOIN_SEARCH ? p->burst_count - JOIN_SEARCH : 0;
	struct burst *b;
	uint8_t *data;

	static_assert(MAX_BURST + IO_TX_SLACK <= IO_TX_BUFFER, "a burst fits behind the slack");
	for (uint32_t i = p->burst_count; i > oldest; i--) {
		b = &p->bursts[i - 1];
		if (b->socket != s || memcmp(b->dgid, t->path->dgid, sizeof(b->dgid)) != 0)
			continue;
		/* Older bursts for the peer are no choice: packets keep their order. */
		if (b->closed || len > b->packet || b->count == MAX_SEGMENTS ||
		    b->len + len > MAX_BURST || b->tos != tos ||
		    b->worker != QPN_WORKER(t->dst_qpn))
			break;
		return b;
	}
	data = io_tx_buffer(p->io);
	if (!data)
		return NULL;
	b = &p->bursts[p->burst_count++];
	*b = (struct burst){
		.data = data + first_place(&t->payload),
		.socket = s,
		.tos = tos,
		.worker = QPN_WORKER(t->dst_qpn),
		.packet = len,
		.good = UINT32_MAX,
	};
	memcpy(b->dgid, t->path->dgid, sizeof(b->dgid));
	return b;
}

/* dma_op.done of a gather. ctx is the burst, arg[0] its first packet that was to be filled. */
static void gather_done(struct dma *dma, struct dma_op *op, int error)
{
	struct burst *b = op->ctx;

	if (error != 0 && op->arg[0] < b->good)
		b->good = op->arg[0];
}

/*
 * Queues the gather of a part of a train into a burst.
 * @seg, @count: where the payload goes
 * @offset: of that part in the train's payload, bytes
 * @packet: of the burst, the first one it fills
 */
static void gather(struct udp_port *p, const struct train *t, struct burst *b,
		   struct dma_segment *seg, uint32_t count, uint32_t offset, uint32_t packet)
{
	struct dma_list dst = {.seg = seg, .count = count};
	struct dma_list src = t->payload;
	struct dma_op *op;

	for (uint32_t i = 0; i < count; i++)
		dst.len += seg[i].len;
	if (dst.len == 0)
		return;
	if (dst.len != src.len)
		src = dma_slice(p->engine->dma, &t->payload, offset, dst.len);
	op = dma_submit(p->engine->dma);
	op->src = src;
	op->dst = dst;
	op->done = gather_done;
	op->ctx = b;
	op->arg[0] = packet;
}

/*
 * Lays a packet out at the end of a burst.
 * @icrc_xor: what its ICRC will be changed by stands in its place until then
 * @seg: set to where its payload goes
 */
static void append_packet(struct burst *b, const struct wire_packet *pkt, uint32_t len,
			  uint32_t icrc_xor, struct dma_segment *seg)
{
	uint8_t *data = b->data + b->len;
	size_t head = wire_encode(data, pkt);

	*seg = (struct dma_segment){.addr = (uintptr_t)(data + head), .len = pkt->payload_len};
	memset(data + head + pkt->payload_len, 0, pkt->pad);
	memcpy(data + len - ICRC_LEN, &icrc_xor, ICRC_LEN);
	b->len += len;
	b->count++;
	b->closed = len < b->packet;
}

uint32_t udp_port_tx(struct udp_port *p, const struct train *t, struct packet_fate *fate)
{
	const struct udp_socket *s = &p->sockets[t->path->port_data];
	bool counted = io_segments(p->io);
	struct dma_segment *seg;
	struct wire_packet pkt;
	struct burst *b = NULL;
	uint32_t from = 0;   /* first packet of the train in b */
	uint32_t packet = 0; /* of b, that one */
	uint32_t i;

	if (fate)
		*fate = (struct packet_fate){.hop_limit = s->hop_limit};
	/* The address was taken away since the path was made. */
	if (s->fd < 0 || memcmp(s->gid, t->path->sgid, sizeof(s->gid)) != 0)
		return t->count;
	if (!packet_train_sane(t) || t->count > MAX_TRAIN / 256)
		return t->count;
	seg = dma_segments(p->engine->dma, t->count);
	packet_train_headers(t, &pkt);
	for (i = 0; i < t->count; i++) {
		struct burst *next;
		uint32_t len;

		if (packet_headers(t, i, &pkt) != 0)
			break;
		len = packet_len(&pkt);
		next = find_burst(p, t, len);
		if (next != b) {
			if (b)
				gather(p, t, b, seg + from, i - from, from * t->mtu, packet);
			b = next;
			from = i;
			packet = b ? b->count : 0;
		}
		if (!b) {
			/* No buffer: what is lost is sent again. */
			return t->count - i;
		}
		if (fate) {
			fate->ip_id[i] = (uint16_t)(counted ? b->count : 0);
			fate->sent = i + 1;
		}
		append_packet(b, &pkt, len, t->icrc_xor, &seg[i]);
	}
	if (b)
		gather(p, t, b, seg + from, i - from, from * t->mtu, packet);
	return t->count - i;
}

/* Writes an ICRC, least significant byte first. */
static void put_icrc(uint8_t *p, uint32_t icrc)
{
	for (int k = 0; k < ICRC_LEN; k++)
		p[k] = (uint8_t)(icrc >> 8 * k);
}

/*
 * Writes a wrong ICRC behind a packet. One change in 65536 would look like another identification
 * to a receiver that does not know it: then another is taken.
 * @len: bytes in front of the ICRC
 */
static void put_bad_icrc(const struct icrc_address *addr, uint16_t ip_id, uint8_t *data,
			 uint32_t len, uint32_t icrc, uint32_t change)
{
	do
		put_icrc(data + len, icrc ^ change++);
	while (icrc_check(addr, ip_id, data, len + ICRC_LEN));
}

/* Computes the ICRCs of a burst and hands it to the io. */
static void send_burst(struct udp_port *p, struct burst *b)
{
	struct icrc_address addr = b->socket->local;
	bool counted = io_segments(p->io);
	union io_address to;
	uint32_t i = 0;

	if (b->good < b->count) {
		b->count = b->good;
		b->len = b->good * b->packet;
	}
	icrc_address_bytes(addr.dst, b->dgid, b->socket->ipv6);
	for (uint32_t off = 0; off < b->len; off += b->packet, i++) {
		uint32_t left = b->len - off;
		uint32_t len = (left < b->packet ? left : b->packet) - ICRC_LEN;
		uint8_t *data = b->data + off;
		uint16_t ip_id = (uint16_t)(counted ? i : 0);
		uint32_t icrc = icrc_compute(&addr, ip_id, data, len);
		uint32_t change;

		memcpy(&change, data + len, ICRC_LEN);
		put_icrc(data + len, icrc);
		if (change != 0)
			put_bad_icrc(&addr, ip_id, data, len, icrc, change);
	}
	p->counters.tx_datagrams += b->count;
	address_from_gid(&to, b->dgid, b->socket->ifindex);
	io_send(p->io, b->socket->fd, b->data, b->len, b->packet, b->tos, &to);
}

void udp_port_flush(struct udp_port *p)
{
	for (uint32_t i = 0; i < p->burst_count; i++)
		send_burst(p, &p->bursts[i]);
	p->burst_count = 0;
}

/* ---- receiving ------------------------------------------------------------------------------ */

/* What receive_datagram() carries from packet to packet. */
struct rx {
	struct udp_port *port;
	struct path path;
	struct train train; /* count 0: none */
	bool crowded;	    /* more than one sender's share has piled up */
	uint32_t tail;	    /* payload bytes of its last packet */
};

/* Hands the train collected so far to the engine. */
static void rx_flush(struct rx *rx)
{
	if (rx->train.count != 0)
		rx->port->rx(rx->port->engine, &rx->train);
	rx->train.count = 0;
}

/* @return whether a packet continues the train collected so far */
static bool rx_continues(const struct rx *rx, const struct wire_packet *pkt,
			 const struct wire_opcode *op)
{
	const struct train *t = &rx->train;

	return t->count != 0 && !t->last && !(op->flags & OPF_FIRST) && op->kind == t->kind &&
	       (pkt->opcode & 0xe0) == t->service && pkt->dest_qpn == t->dst_qpn &&
	       pkt->psn == psn_add(t->psn, t->count) && pkt->pkey == t->pkey &&
	       pkt->xrc_srqn == t->xrc_srqn && rx->tail == t->mtu && pkt->payload_len <= t->mtu;
}

/* Begins a train with a packet. */
static void rx_begin(struct rx *rx, const struct wire_packet *pkt, struct dma_segment *seg)
{
	struct train *t = &rx->train;

	*t = (struct train){
		.path = &rx->path,
		.mtu = pkt->payload_len,
		.payload = {.seg = seg},
		.crowded = rx->crowded,
		.ecn = rx->path.traffic_class & ECN_MASK,
	};
	packet_begins(t, pkt);
}

/* Adds a packet to the train, as its last one so far. */
static void rx_append(struct rx *rx, const struct wire_packet *pkt, const uint8_t *data,
		      struct dma_segment *seg)
{
	struct train *t = &rx->train;

	t->count++;
	packet_ends(t, pkt);
	*seg = (struct dma_segment){.addr = (uintptr_t)(data + pkt->payload_off),
				    .len = pkt->payload_len};
	t->payload.count++;
	t->payload.len += pkt->payload_len;
	rx->tail = pkt->payload_len;
}

/* Begins a datagram: the path it came, for the trains, and its addresses, for the ICRC. */
static void rx_init(struct rx *rx, struct udp_port *p, const struct io_datagram *d,
		    struct icrc_address *addr)
{
	struct udp_socket *s = d->socket_ctx;

	rx->port = p;
	rx->train.count = 0;
	/*
	 * One sender keeps within what the buffer is good for. If more has piled up there are
	 * several: they are told like a switch would tell them, before anything is lost, and in the
	 * next round all of them, not only who came last.
	 */
	s->arrived += d->len;
	rx->crowded = s->crowded || s->arrived > s->window;
	rx->path = (struct path){
		.hop_limit = 64,
		.traffic_class = d->tos,
		.route = ROUTE_UDP,
		.port_data = (uint8_t)(s - p->sockets),
		.max_train = MAX_TRAIN,
	};
	memcpy(rx->path.dgid, s->gid, 16);
	*addr = (struct icrc_address){.ipv6 = s->ipv6, .dst_port = ROCE_UDP_PORT};
	memcpy(addr->dst, s->local.src, 16);
	if (s->ipv6) {
		memcpy(rx->path.sgid, &d->from.in6.sin6_addr, 16);
		addr->src_port = ntohs(d->from.in6.sin6_port);
	} else {
		gid_from_ipv4(rx->path.sgid, &d->from.in4.sin_addr);
		addr->src_port = ntohs(d->from.in4.sin_port);
	}
	icrc_address_bytes(addr->src, rx->path.sgid, s->ipv6);
}

/*
 * Shows a packet that was received to those who capture.
 * @i: of the datagram
 */
static void rx_capture(const struct rx *rx, const struct icrc_address *addr, uint16_t i,
		       const uint8_t *data, uint32_t len)
{
	const struct udp_port *p = rx->port;
	struct frame f = {
		.tos = rx->path.traffic_class,
		.hop_limit = FRAME_HOP_LIMIT,
		.ip_id = i,
	};
	const char *comment = NULL;
	struct wire_packet pkt;

	frame_addresses(&f, rx->path.sgid, rx->path.dgid, addr->src_port);
	if (wire_decode(data, len, &pkt) != 0) {
		memset(&pkt, 0, sizeof(pkt));
		comment = "malformed";
	}
	if (len >= BTH_LEN + ICRC_LEN && !icrc_recover(addr, &f.ip_id, data, len))
		comment = "bad ICRC";
	capture_received(p->capture, p->sockets[rx->path.port_data].dev, pkt.dest_qpn, &f, data,
			 len, comment);
}

/* io_receive_fn: cuts a datagram into packets, checks them, and hands trains to the engine. */
static void receive_datagram(void *arg, const struct io_datagram *d)
{
	struct udp_port *p = arg;
	const struct udp_socket *s = d->socket_ctx;
	struct qp_counters *device = &p->engine->device[s->dev->index];
	uint32_t count = d->len == 0 ? 1 : (d->len - 1) / d->segment + 1;
	struct icrc_address addr;
	struct dma_segment *seg;
	struct rx rx;

	if (device_is_down(s->dev))
		return;
	p->counters.rx_datagrams += count;
	/* Beyond the segments of the kernel's GRO, and of the arena. */
	if (count > 1024) {
		device->rx_malformed += count;
		return;
	}
	rx_init(&rx, p, d, &addr);
	seg = dma_segments(p->engine->dma, count);
	for (uint32_t i = 0; i < count; i++) {
		const uint8_t *data = d->data + (size_t)i * d->segment;
		uint32_t left = d->len - i * d->segment;
		uint32_t len = left < d->segment ? left : d->segment;
		const struct wire_opcode *op;
		struct wire_packet pkt;

		if (p->capture && capture_active(p->capture))
			rx_capture(&rx, &addr, (uint16_t)i, data, len);
		if (len >= BTH_LEN + ICRC_LEN && !icrc_check(&addr, (uint16_t)i, data, len)) {
			device->rx_icrc_encapsulated++;
			continue;
		}
		if (wire_decode(data, len, &pkt) != 0) {
			device->rx_malformed++;
			continue;
		}
		/* To a group, and not to one QP by way of it (IBTA 9.6.1.2). */
		if (s->group && pkt.dest_qpn != QPN_GROUP) {
			device->rx_dropped++;
			continue;
		}
		op = &wire_opcodes[pkt.opcode];
		if (!rx_continues(&rx, &pkt, op)) {
			rx_flush(&rx);
			rx_begin(&rx, &pkt, seg);
		}
		rx_append(&rx, &pkt, data, seg++);
	}
	rx_flush(&rx);
}

unsigned int udp_port_receive(struct udp_port *p)
{
	for (unsigned int i = 0; i < p->socket_count; i++) {
		struct udp_socket *s = &p->sockets[i];

		if (s->arrived == 0)
			continue;
		s->crowded = s->arrived > s->window;
		s->arrived = 0;
	}
	return io_receive(p->io, receive_datagram, p);
}
