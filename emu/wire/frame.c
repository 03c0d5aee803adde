/* SPDX-License-Identifier: BSD-2-Clause */
/* Ethernet, IP and UDP headers of a RoCEv2 packet. */
#include "frame.h"

#include "bytes.h"

#define ETHERNET_LEN 14
#define IPV4_LEN 20
#define IPV6_LEN 40
#define UDP_LEN 8
#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define PROTOCOL_UDP 17
#define MAC_LOCAL 0x02 /* locally administered */

void frame_mac(uint8_t mac[6], const uint8_t gid[16])
{
	/* RFC 4291, appendix A */
	if (gid_is_link_local(gid) && gid[11] == 0xff && gid[12] == 0xfe) {
		mac[0] = gid[8] ^ MAC_LOCAL;
		memcpy(mac + 1, gid + 9, 2);
		memcpy(mac + 3, gid + 13, 3);
		return;
	}
	mac[0] = MAC_LOCAL;
	mac[1] = gid_is_ipv4(gid) ? 0 : gid[1] ^ gid[3] ^ gid[5] ^ gid[7] ^ gid[9] ^ gid[11];
	memcpy(mac + 2, gid + 12, 4);
}

void frame_addresses(struct frame *f, const uint8_t src[16], const uint8_t dst[16],
		     uint16_t src_port)
{
	f->addr.ipv6 = !gid_is_ipv4(src) || !gid_is_ipv4(dst);
	icrc_address_bytes(f->addr.src, src, f->addr.ipv6);
	icrc_address_bytes(f->addr.dst, dst, f->addr.ipv6);
	f->addr.src_port = src_port;
	f->addr.dst_port = ROCE_UDP_PORT;
	frame_mac(f->src_mac, src);
	frame_mac(f->dst_mac, dst);
}

/* Adds the 16-bit words of some bytes to a sum. @return the sum, not folded */
static uint64_t sum_words(uint64_t sum, const uint8_t *p, size_t len)
{
	for (; len >= 2; p += 2, len -= 2)
		sum += get16(p);
	if (len != 0)
		sum += (uint32_t)p[0] << 8;
	return sum;
}

/* @return the Internet checksum (RFC 1071) of a sum of words */
static uint16_t sum_finish(uint64_t sum)
{
	while (sum >> 16 != 0)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

size_t frame_encode(uint8_t *buf, const struct frame *f, size_t len)
{
	uint32_t udp_len = UDP_LEN + (uint32_t)len;
	uint8_t *ip = buf + ETHERNET_LEN;
	uint8_t *udp;

	memcpy(buf, f->dst_mac, 6);
	memcpy(buf + 6, f->src_mac, 6);
	if (f->addr.ipv6) {
		put16(buf + 12, ETHERTYPE_IPV6);
		put32(ip, 6u << 28 | (uint32_t)f->tos << 20 | (f->flow_label & 0xfffff));
		put16(ip + 4, udp_len);
		ip[6] = PROTOCOL_UDP;
		ip[7] = f->hop_limit;
		memcpy(ip + 8, f->addr.src, 16);
		memcpy(ip + 24, f->addr.dst, 16);
		udp = ip + IPV6_LEN;
	} else {
		put16(buf + 12, ETHERTYPE_IPV4);
		ip[0] = 0x45;
		ip[1] = f->tos;
		put16(ip + 2, IPV4_LEN + udp_len);
		put16(ip + 4, f->ip_id);
		ip[6] = IPV4_DF;
		ip[7] = 0;
		ip[8] = f->hop_limit;
		ip[9] = PROTOCOL_UDP;
		put16(ip + 10, 0);
		memcpy(ip + 12, f->addr.src, 4);
		memcpy(ip + 16, f->addr.dst, 4);
		put16(ip + 10, sum_finish(sum_words(0, ip, IPV4_LEN)));
		udp = ip + IPV4_LEN;
	}
	put16(udp, f->addr.src_port);
	put16(udp + 2, f->addr.dst_port);
	put16(udp + 4, udp_len);
	put16(udp + 6, f->addr.ipv6 ? 0xffff : 0);
	return (size_t)(udp + UDP_LEN - buf);
}

void frame_checksum(uint8_t *frame, size_t len)
{
	uint8_t *ip = frame + ETHERNET_LEN;
	uint8_t *udp = ip + IPV6_LEN;
	size_t udp_len = len - ETHERNET_LEN - IPV6_LEN;
	uint64_t sum = PROTOCOL_UDP + udp_len;
	uint16_t checksum;

	put16(udp + 6, 0);
	sum = sum_words(sum, ip + 8, 32); /* both addresses */
	checksum = sum_finish(sum_words(sum, udp, udp_len));
	put16(udp + 6, checksum != 0 ? checksum : 0xffff); /* 0 would be none (RFC 8200, 8.1) */
}
