/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * resolve INDEX GID...: prints for each GID (as an IPv6 address) the MAC address and the VLAN id
 * that ibv_resolve_eth_l2_from_gid() finds from the source GID of that index of the first device,
 * or "error" and what it returns.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;

	if (!ctx || argc < 3) {
		fprintf(stderr, "resolve: no device, or no arguments\n");
		return 1;
	}
	for (int i = 2; i < argc; i++) {
		struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
		uint8_t mac[ETHERNET_LL_SIZE], again[ETHERNET_LL_SIZE];
		uint16_t vid = 0;
		int error;

		attr.grh.sgid_index = (uint8_t)atoi(argv[1]);
		if (inet_pton(AF_INET6, argv[i], attr.grh.dgid.raw) != 1) {
			fprintf(stderr, "resolve: %s is no GID\n", argv[i]);
			return 1;
		}
		error = ibv_resolve_eth_l2_from_gid(ctx, &attr, mac, &vid);
		if (error) {
			printf("error %d\n", error);
			continue;
		}
		/* Who does not want to know the VLAN passes no pointer. */
		if (ibv_resolve_eth_l2_from_gid(ctx, &attr, again, NULL) != 0 ||
		    memcmp(mac, again, sizeof(mac)) != 0) {
			fprintf(stderr, "resolve: something else without a VLAN id\n");
			return 1;
		}
		printf("%02x:%02x:%02x:%02x:%02x:%02x %u\n", mac[0], mac[1], mac[2], mac[3], mac[4],
		       mac[5], vid);
	}
	ibv_close_device(ctx);
	ibv_free_device_list(list);
	return 0;
}
