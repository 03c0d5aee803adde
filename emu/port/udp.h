/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The UDP port of one worker: RoCEv2 packets on sockets bound to the device's addresses.
 */
#ifndef VERNIC_PORT_UDP_H
#define VERNIC_PORT_UDP_H

#include "../io.h"
#include "../tap/capture.h"
#include "../transport/engine.h"

struct udp_port;

struct udp_counters {
	uint64_t rx_datagrams;
	uint64_t tx_datagrams;
};

/* As engine_rx(): what is called with a train that arrived. */
typedef void (*udp_port_rx_fn)(struct engine *e, const struct train *t);

/*
 * @capture: is shown what arrives; NULL: nobody is
 * @return NULL without memory
 */
struct udp_port *udp_port_create(struct io *io, struct engine *e, udp_port_rx_fn rx,
				 struct capture_set *capture);
void udp_port_destroy(struct udp_port *p);

/*
 * Opens, binds (SO_REUSEPORT, UDP 4791) and steers a socket for one address of a device.
 * Must be called for worker 0, 1, ... in this order: the classic BPF program picks the socket by
 * the worker bits of the destination QPN.
 * @gid: the address; ifindex: of its interface, 0 where that does not matter
 * @error: room for a one-line cause
 * @return 0 or a negative errno
 */
int udp_port_add(struct udp_port *p, struct device *dev, const uint8_t gid[16], uint32_t ifindex,
		 uint32_t worker, uint32_t workers, char *error, size_t error_len);

/*
 * Opens a socket for a multicast group: what arrives there is handed in with the group's GID as its
 * destination. One worker's is enough.
 * @ifindex: of the interface to join at
 * @error: room for a one-line cause
 * @return 0 or a negative errno
 */
int udp_port_join(struct udp_port *p, struct device *dev, const uint8_t gid[16], uint32_t ifindex,
		  char *error, size_t error_len);

/*
 * Closes sockets of a device, of addresses and groups. Paths that led through them lead nowhere.
 * @gid: of one; NULL: all
 */
void udp_port_remove(struct udp_port *p, const struct device *dev, const uint8_t *gid);

/* @return the device of a path's socket, or NULL where it was closed */
const struct device *udp_port_device(const struct udp_port *p, const struct path *path);

/* engine_ops.route for paths that leave this host's daemon: sets route, port_data, max_train and
 * window if path->sgid is one of dev's addresses here. @return whether it did */
bool udp_port_route(struct udp_port *p, const struct device *dev, struct path *path);

bool udp_port_ready(struct udp_port *p);

/*
 * Queues the gather and the packets.
 * @fate: out: what becomes of them, NULL: nobody wants to know
 * @return the packets at the train's end that could not be sent
 */
uint32_t udp_port_tx(struct udp_port *p, const struct train *t, struct packet_fate *fate);

/* Hands in what arrived. @return datagrams */
unsigned int udp_port_receive(struct udp_port *p);

/* After engine_run(): ICRCs, and the packets to the io. */
void udp_port_flush(struct udp_port *p);

const struct udp_counters *udp_port_counters(const struct udp_port *p);

#endif
