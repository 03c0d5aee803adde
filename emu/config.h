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

#define CONFIG_MAX_DEVICES 64
/* GID 0 is the link-local one of the device. */
#define CONFIG_MAX_ADDRESSES (VERNIC_GID_MAX - 1)

/* Device limits that can be configured: `max_qp=` and so on. */
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
	LIMIT_COUNT
};

struct config_address {
	uint8_t gid[16];  /* IPv4 as ::ffff:a.b.c.d */
	uint32_t ifindex; /* scope that was given with a link-local one, else 0 */
};

struct device_config {
	char name[VERNIC_NAME_MAX];
	uint64_t guid; /* host order; 0: the daemon makes one */
	uint32_t mtu;  /* cap on the active MTU, bytes */
	uint32_t socket_buffer; /* bytes; 0: what is best */
	uint32_t limit[LIMIT_COUNT];
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

/* Sets a key of the daemon: socket, workers, io, log_level. @where: in front of the complaint */
int config_set(struct config *cfg, const char *where, const char *key, const char *value);

/* Adds a fault rule. @where: in front of the complaint */
int config_add_fault(struct config *cfg, const char *where, const char *text);

/* Adds the fault rules of a list, parted by ';'; those that are empty do not count. */
int config_add_faults(struct config *cfg, const char *where, const char *text);

/* What can be checked only when everything was said; adds the default device, names, socket. */
int config_finish(struct config *cfg);

/* Prints "vernicd: ", where, and the cause. @return -EINVAL */
int config_fail(const char *where, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
