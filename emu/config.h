/* SPDX-License-Identifier: BSD-2-Clause */
/* What the daemon is told: the configuration file and the command line. */
#ifndef VERNIC_CONFIG_H
#define VERNIC_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

#include <vernic/limits.h>

#include "io.h"
#include "log.h"
#include "tap/fault.h"

#define CONFIG_MAX_DEVICES VERNIC_MAX_DEVICES
/* GID 0 is the link-local one of the device. */
#define CONFIG_MAX_ADDRESSES (VERNIC_GID_MAX - 1)

/* Device limits that can be configured: `max_qp=` and so on. */
#define CONFIG_UNSET UINT32_MAX
enum config_limit {
	LIMIT_QP,
	LIMIT_QP_WR,
	LIMIT_SGE,
	LIMIT_CQ,
	LIMIT_CQE,
	LIMIT_MR,
	LIMIT_MW,
	LIMIT_PD,
	LIMIT_AH,
	LIMIT_SRQ,
	LIMIT_SRQ_WR,
	LIMIT_SRQ_SGE,
	LIMIT_RD_ATOMIC,
	LIMIT_INLINE,
	LIMIT_MCAST_GRP,
	LIMIT_MCAST_QP_ATTACH,
	LIMIT_COUNT
};

/* Whose limits and capabilities a device has: `profile=`. */
enum config_profile {
	PROFILE_DEFAULT,
	PROFILE_CONNECTX,
	PROFILE_RXE,
	PROFILE_MINIMAL,
	PROFILE_COUNT
};

struct config_address {
	uint8_t gid[16];  /* IPv4 as ::ffff:a.b.c.d */
	uint32_t ifindex; /* scope that was given with a link-local one, else 0 */
};

struct device_config {
	char name[VERNIC_NAME_MAX];
	uint64_t guid; /* host order; 0: the daemon makes one */
	enum config_profile profile;
	/* Cap on the active MTU, bytes. 0, until config_finish_device(): the profile's. */
	uint32_t mtu;
	uint32_t socket_buffer; /* bytes; 0: what is best */
	uint32_t limit[LIMIT_COUNT]; /* until then CONFIG_UNSET: the profile's */
	uint32_t features;	     /* enum device_feature; by the profile */
	struct config_address address[CONFIG_MAX_ADDRESSES];
	unsigned int address_count; /* 0: a private device */
	char where[512];	    /* where it was said, for complaints: "FILE:LINE: " */
};

struct fault_config {
	struct fault_rule rule;
	char where[512]; /* as in struct device_config */
};

struct config {
	char socket[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* "": the default place */
	unsigned int workers;
	enum io_kind io;
	struct device_config device[CONFIG_MAX_DEVICES];
	unsigned int device_count;
	struct fault_config fault[VERNIC_MAX_FAULTS];
	unsigned int fault_count;
};

/*
 * All functions below print one line that names the cause on stderr when they fail, and return
 * -EINVAL then.
 */

void config_init(struct config *cfg);

/* Reads an INI file. */
int config_read_file(struct config *cfg, const char *path);

/* Adds the device that a `--device KEY=VALUE[,KEY=VALUE...]` asks for. */
int config_add_device(struct config *cfg, const char *spec);

/* A device that has nothing but defaults. @where: in front of complaints */
void config_init_device(struct device_config *dev, const char *where);

/* Reads KEY=VALUE[,KEY=VALUE...] into a device. */
int config_parse_device(struct device_config *dev, const char *spec);

/* Puts the profile's limits where none were given. */
void config_finish_device(struct device_config *dev);

/* Adds an IPv4 or IPv6 address (fe80::1%eth0) to a device's. */
int config_add_address(struct device_config *dev, const char *text);

/* @return "default", "connectx", "rxe" or "minimal" */
const char *config_profile_name(enum config_profile profile);

/* Sets a key of the daemon: socket, workers, io, log_level. @where: in front of the complaint */
int config_set(struct config *cfg, const char *where, const char *key, const char *value);

/* Adds a fault rule. @where: in front of the complaint */
int config_add_fault(struct config *cfg, const char *where, const char *text);

/* Adds the fault rules of a list, parted by ';'; those that are empty do not count. */
int config_add_faults(struct config *cfg, const char *where, const char *text);

/* What can be checked only when everything was said; adds the default device, names, socket. */
int config_finish(struct config *cfg);

/* What config_fail() would print goes to text instead, the last line of it; NULL: it is printed. */
void config_redirect(char *text, size_t size);

/* Prints "vernicd: ", where, and the cause. @return -EINVAL */
int config_fail(const char *where, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
