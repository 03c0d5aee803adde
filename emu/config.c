/* SPDX-License-Identifier: BSD-2-Clause */
/* The configuration file and the values of flags: parsing, with one-line complaints. */
#include "config.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ini.h>

#include <vernic/control.h>

#include "object.h"
#include "wire/wire.h"

/* Names, ranges, and what each profile says. */
static const struct {
	const char *key;
	uint32_t min;
	uint32_t max;
	uint32_t value[PROFILE_COUNT]; /* default, connectx, rxe, minimal */
} config_limits[] = {
	[LIMIT_QP] = {"max_qp", 1, VERNIC_MAX_CONTEXT_QP, {32768, 65536, 65536, 256}},
	[LIMIT_QP_WR] = {"max_qp_wr", 1, VERNIC_MAX_QP_WR, {16384, 16384, 16384, 512}},
	[LIMIT_SGE] = {"max_sge", 1, VERNIC_MAX_SGE, {32, 30, 32, 2}},
	[LIMIT_CQ] = {"max_cq", 1, 1 << 20, {1 << 20, 1 << 20, 1 << 20, 256}},
	[LIMIT_CQE] = {"max_cqe", 1, VERNIC_MAX_CQE, {1 << 22, (1 << 22) - 1, 32767, 1024}},
	[LIMIT_MR] = {"max_mr", 1, 1 << 20, {1 << 20, 1 << 20, 1 << 19, 1024}},
	[LIMIT_MW] = {"max_mw", 0, 1 << 20, {65536, 1 << 20, 65536, 0}},
	[LIMIT_PD] = {"max_pd", 1, 1 << 20, {1 << 16, 1 << 20, 1 << 20, 64}},
	[LIMIT_AH] = {"max_ah", 1, INT32_MAX, {INT32_MAX, INT32_MAX, 1 << 20, 1024}},
	[LIMIT_SRQ] = {"max_srq", 1, 1 << 20, {16384, 1 << 20, 1 << 19, 16}},
	[LIMIT_SRQ_WR] = {"max_srq_wr", 1, VERNIC_MAX_QP_WR, {16384, 16384, 16384, 512}},
	[LIMIT_SRQ_SGE] = {"max_srq_sge", 1, VERNIC_MAX_SGE, {32, 31, 27, 1}},
	[LIMIT_RD_ATOMIC] = {"max_rd_atomic", 1, VERNIC_MAX_RD_ATOMIC, {16, 16, 16, 1}},
	[LIMIT_INLINE] = {"max_inline", 0, VERNIC_MAX_INLINE, {VERNIC_MAX_INLINE, 956, 400, 0}},
	[LIMIT_MCAST_GRP] = {"max_mcast_grp", 0, 1 << 16, {8192, 1 << 16, 8192, 0}},
	[LIMIT_MCAST_QP_ATTACH] = {"max_mcast_qp_attach", 0, 1 << 16, {256, 240, 56, 0}},
};
static_assert(sizeof(config_limits) / sizeof(config_limits[0]) == LIMIT_COUNT, "limits");

/* What is not a number of things. */
static const struct {
	const char *name;
	uint32_t mtu; /* bytes */
	uint32_t features;
} config_profiles[] = {
	[PROFILE_DEFAULT] = {"default", 4096, DEVICE_FEATURES_ALL},
	[PROFILE_CONNECTX] = {"connectx", 4096,
			      DEVICE_ATOMICS | DEVICE_MEMORY_WINDOWS | DEVICE_ODP | DEVICE_MEMORY |
				      DEVICE_XRC | DEVICE_BLOCK_LOOPBACK},
	[PROFILE_RXE] = {"rxe", 4096,
			 DEVICE_ATOMICS | DEVICE_MEMORY_WINDOWS | DEVICE_SRQ_RESIZE | DEVICE_FLUSH},
	[PROFILE_MINIMAL] = {"minimal", 1024, 0},
};
static_assert(sizeof(config_profiles) / sizeof(config_profiles[0]) == PROFILE_COUNT, "profiles");

const char *config_profile_name(enum config_profile profile)
{
	return config_profiles[profile].name;
}

static char *config_text; /* where complaints go; NULL: to stderr */
static size_t config_text_size;

void config_redirect(char *text, size_t size)
{
	config_text = text;
	config_text_size = size;
}

int config_fail(const char *where, const char *format, ...)
{
	char cause[768];
	va_list args;

	va_start(args, format);
	vsnprintf(cause, sizeof(cause), format, args);
	va_end(args);
	if (config_text != NULL)
		snprintf(config_text, config_text_size, "%s%s", where, cause);
	else
		fprintf(stderr, "vernicd: %s%s\n", where, cause);
	return -EINVAL;
}

void config_init(struct config *cfg)
{
	memset(cfg, 0, sizeof(*cfg));
	cfg->workers = 1;
	cfg->io = IO_AUTO;
}

/* Parses a decimal number of a range. @return 0 or -EINVAL */
static int config_number(const char *where, const char *key, const char *text, uint32_t min,
			 uint32_t max, uint32_t *value)
{
	unsigned long long v;
	char *end;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)text[0]) || *end != '\0')
		return config_fail(where, "%s: '%s' is not a number", key, text);
	if (errno != 0 || v < min || v > max)
		return config_fail(where, "%s: %s is out of range (%u to %u)", key, text, min, max);
	*value = (uint32_t)v;
	return 0;
}

/* Parses a GUID: 16 hexadecimal digits, 0x in front or colons between allowed. */
static int config_guid(const char *where, const char *text, uint64_t *guid)
{
	const char *s = text;
	unsigned int digits = 0;
	uint64_t v = 0;

	if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X'))
		s += 2;
	for (; *s != '\0'; s++) {
		if (*s == ':')
			continue;
		if (!isxdigit((unsigned char)*s) || ++digits > 16)
			break;
		v = v << 4 |
		    (uint64_t)(isdigit((unsigned char)*s) ? *s - '0' : (*s | 0x20) - 'a' + 10);
	}
	if (*s != '\0' || digits != 16 || v == 0)
		return config_fail(where, "guid: '%s' is not a GUID (16 hexadecimal digits, not 0)",
				   text);
	*guid = v;
	return 0;
}

/* Adds an IPv4 or IPv6 literal to a device's addresses. */
static int config_address(struct device_config *dev, const char *where, const char *text)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_DGRAM};
	struct config_address a = {0};
	struct addrinfo *res;
	struct in_addr in;
	bool usable;

	/* getaddrinfo() takes "10.1" for 10.0.0.1; what looks like IPv4 must have four parts. */
	if ((strchr(text, ':') == NULL && inet_pton(AF_INET, text, &in) != 1) ||
	    getaddrinfo(text, NULL, &hints, &res) != 0)
		return config_fail(where, "addr: '%s' is not an IPv4 or IPv6 address", text);
	if (res->ai_family == AF_INET) {
		in = ((struct sockaddr_in *)res->ai_addr)->sin_addr;
		gid_from_ipv4(a.gid, &in);
		usable = in.s_addr != INADDR_ANY && !IN_MULTICAST(ntohl(in.s_addr)) &&
			 in.s_addr != INADDR_BROADCAST;
	} else {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)res->ai_addr;

		memcpy(a.gid, &in6->sin6_addr, 16);
		a.ifindex = in6->sin6_scope_id;
		usable = !IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr) &&
			 !IN6_IS_ADDR_MULTICAST(&in6->sin6_addr);
	}
	freeaddrinfo(res);
	if (!usable)
		return config_fail(where, "addr: %s is not the address of a host", text);
	for (unsigned int i = 0; i < dev->address_count; i++) {
		if (memcmp(dev->address[i].gid, a.gid, 16) == 0)
			return config_fail(where, "addr: %s is given twice", text);
	}
	if (dev->address_count == CONFIG_MAX_ADDRESSES)
		return config_fail(where, "addr: a device has at most %d addresses",
				   CONFIG_MAX_ADDRESSES);
	dev->address[dev->address_count++] = a;
	return 0;
}

int config_add_address(struct device_config *dev, const char *text)
{
	return config_address(dev, dev->where, text);
}

/* Names end up in file names and in reports: letters, digits, '_', '-', '.'. */
static int config_name(struct device_config *dev, const char *where, const char *text)
{
	if (strlen(text) >= sizeof(dev->name))
		return config_fail(where, "name: '%s' is longer than %zu characters", text,
				   sizeof(dev->name) - 1);
	if (text[0] == '\0' || text[0] == '.')
		return config_fail(where, "name: '%s' is not a device name", text);
	for (const char *s = text; *s != '\0'; s++) {
		if (!isalnum((unsigned char)*s) && strchr("_-.", *s) == NULL)
			return config_fail(where, "name: '%s' is not a device name", text);
	}
	strcpy(dev->name, text);
	return 0;
}

/* Sets one key of a device. */
static int config_device_key(struct device_config *dev, const char *where, const char *key,
			     const char *value)
{
	if (strcmp(key, "name") == 0)
		return config_name(dev, where, value);
	if (strcmp(key, "addr") == 0)
		return config_address(dev, where, value);
	if (strcmp(key, "guid") == 0)
		return config_guid(where, value, &dev->guid);
	if (strcmp(key, "profile") == 0) {
		for (unsigned int i = 0; i < PROFILE_COUNT; i++) {
			if (strcmp(value, config_profiles[i].name) == 0) {
				dev->profile = (enum config_profile)i;
				return 0;
			}
		}
		return config_fail(
			where, "profile: '%s' is none of default, connectx, rxe, minimal", value);
	}
	if (strcmp(key, "mtu") == 0) {
		int err = config_number(where, key, value, 256, 4096, &dev->mtu);

		if (err == 0 && (dev->mtu & (dev->mtu - 1)) != 0)
			return config_fail(where, "mtu: %s is none of 256, 512, 1024, 2048, 4096",
					   value);
		return err;
	}
	if (strcmp(key, "socket_buffer") == 0)
		return config_number(where, key, value, 4096, 1 << 30, &dev->socket_buffer);
	for (unsigned int i = 0; i < LIMIT_COUNT; i++) {
		if (strcmp(key, config_limits[i].key) == 0)
			return config_number(where, key, value, config_limits[i].min,
					     config_limits[i].max, &dev->limit[i]);
	}
	return config_fail(where, "unknown key '%s' of a device", key);
}

void config_init_device(struct device_config *dev, const char *where)
{
	memset(dev, 0, sizeof(*dev));
	for (unsigned int i = 0; i < LIMIT_COUNT; i++)
		dev->limit[i] = CONFIG_UNSET;
	snprintf(dev->where, sizeof(dev->where), "%s", where);
}

void config_finish_device(struct device_config *dev)
{
	if (dev->mtu == 0)
		dev->mtu = config_profiles[dev->profile].mtu;
	dev->features = config_profiles[dev->profile].features;
	for (unsigned int i = 0; i < LIMIT_COUNT; i++) {
		if (dev->limit[i] == CONFIG_UNSET)
			dev->limit[i] = config_limits[i].value[dev->profile];
	}
}

/* Appends a device with the defaults. @return it, or NULL with a complaint made */
static struct device_config *config_new_device(struct config *cfg, const char *where)
{
	struct device_config *dev;

	if (cfg->device_count == CONFIG_MAX_DEVICES) {
		config_fail(where, "more than %d devices", CONFIG_MAX_DEVICES);
		return NULL;
	}
	dev = &cfg->device[cfg->device_count++];
	config_init_device(dev, where);
	return dev;
}

int config_parse_device(struct device_config *dev, const char *spec)
{
	char *copy, *key, *next;
	int err = 0;

	copy = strdup(spec);
	if (copy == NULL)
		return config_fail(dev->where, "out of memory");
	for (key = copy; err == 0 && key != NULL; key = next) {
		char *value;

		next = strchr(key, ',');
		if (next != NULL)
			*next++ = '\0';
		value = strchr(key, '=');
		if (value == NULL) {
			err = config_fail(dev->where, "'%s' is not KEY=VALUE", key);
			break;
		}
		*value++ = '\0';
		err = config_device_key(dev, dev->where, key, value);
	}
	free(copy);
	return err;
}

int config_add_device(struct config *cfg, const char *spec)
{
	struct device_config *dev = config_new_device(cfg, "--device: ");

	return dev != NULL ? config_parse_device(dev, spec) : -EINVAL;
}

int config_add_fault(struct config *cfg, const char *where, const char *text)
{
	struct fault_config *f = &cfg->fault[cfg->fault_count];
	char error[256];

	if (cfg->fault_count == VERNIC_MAX_FAULTS)
		return config_fail(where, "more than %d fault rules", VERNIC_MAX_FAULTS);
	if (fault_parse(text, &f->rule, error, sizeof(error)) != 0)
		return config_fail(where, "%s", error);
	snprintf(f->where, sizeof(f->where), "%s", where);
	cfg->fault_count++;
	return 0;
}

int config_add_faults(struct config *cfg, const char *where, const char *text)
{
	int err = 0;

	while (err == 0 && *text != '\0') {
		size_t len = strcspn(text, ";");
		char *rule = strndup(text, len);

		if (rule == NULL)
			return config_fail(where, "out of memory");
		if (rule[strspn(rule, " \t")] != '\0')
			err = config_add_fault(cfg, where, rule);
		free(rule);
		text += len + (text[len] == ';');
	}
	return err;
}

int config_set(struct config *cfg, const char *where, const char *key, const char *value)
{
	if (strcmp(key, "socket") == 0) {
		if (value[0] == '\0')
			return config_fail(where, "socket: the path is empty");
		if (strlen(value) >= sizeof(cfg->socket))
			return config_fail(where, "socket: the path is longer than %zu characters",
					   sizeof(cfg->socket) - 1);
		strcpy(cfg->socket, value);
		return 0;
	}
	if (strcmp(key, "workers") == 0)
		return config_number(where, key, value, 1, VERNIC_MAX_WORKERS, &cfg->workers);
	if (strcmp(key, "io") == 0) {
		if (strcmp(value, "auto") == 0)
			cfg->io = IO_AUTO;
		else if (strcmp(value, "io_uring") == 0)
			cfg->io = IO_URING;
		else if (strcmp(value, "plain") == 0)
			cfg->io = IO_PLAIN;
		else
			return config_fail(where, "io: '%s' is none of auto, io_uring, plain",
					   value);
		return 0;
	}
	if (strcmp(key, "log_level") == 0) {
		int level = log_level_parse(value);

		if (level < 0)
			return config_fail(where,
					   "log_level: '%s' is none of error, warning, info, debug",
					   value);
		log_set_level((enum log_level)level);
		return 0;
	}
	return config_fail(where, "unknown key '%s' of the daemon", key);
}

/* ---- the file --------------------------------------------------------------------------- */

/*
 * State of reading a file. inih splits and trims; lines and sections are followed here, because
 * its handler learns neither the line number nor of a section without keys.
 */
struct config_reader {
	struct config *cfg;
	FILE *file;
	const char *path;
	unsigned int line;
	bool in_daemon;
	bool in_faults;
	struct device_config *device; /* of the section, or NULL */
	bool failed;		      /* a complaint was made */
	char where[512];	      /* "FILE:LINE: " */
};

/* A section begins: text is what stands between the brackets. */
static int config_begin_section(struct config_reader *r, char *text)
{
	char *name;

	r->in_daemon = false;
	r->in_faults = false;
	r->device = NULL;
	if (strcmp(text, "daemon") == 0) {
		r->in_daemon = true;
		return 0;
	}
	if (strcmp(text, "faults") == 0) {
		r->in_faults = true;
		return 0;
	}
	if (strncmp(text, "device", 6) != 0 || !isspace((unsigned char)text[6]))
		return config_fail(r->where, "unknown section '[%s]': [daemon], [device NAME] or "
					     "[faults]",
				   text);
	for (name = text + 6; isspace((unsigned char)*name); name++)
		;
	r->device = config_new_device(r->cfg, r->where);
	if (r->device == NULL)
		return -EINVAL;
	return config_name(r->device, r->where, name);
}

/* inih's line source: one line, blanks in front removed (they would mean a continuation). */
static char *config_read_line(char *buf, int size, void *stream)
{
	struct config_reader *r = stream;
	char *s, *end;
	size_t len;

	if (r->failed || fgets(buf, size, r->file) == NULL)
		return NULL;
	r->line++;
	snprintf(r->where, sizeof(r->where), "%s:%u: ", r->path, r->line);
	len = strlen(buf);
	if (len > 0 && buf[len - 1] != '\n' && !feof(r->file)) {
		config_fail(r->where, "the line is too long");
		r->failed = true;
		return NULL;
	}
	for (s = buf; *s == ' ' || *s == '\t'; s++)
		;
	memmove(buf, s, strlen(s) + 1);
	if (buf[0] == '[') {
		char text[256];

		end = strchr(buf, ']');
		if (end != NULL) {
			snprintf(text, sizeof(text), "%.*s", (int)(end - buf - 1), buf + 1);
			if (config_begin_section(r, text) != 0)
				r->failed = true;
		}
	}
	return buf;
}

/* inih's handler. @return 0: error */
static int config_key(void *user, const char *section, const char *key, const char *value)
{
	struct config_reader *r = user;
	int err;

	if (r->failed)
		return 0;
	if (r->in_daemon)
		err = config_set(r->cfg, r->where, key, value);
	else if (r->in_faults)
		err = strcmp(key, "rule") == 0
			      ? config_add_fault(r->cfg, r->where, value)
			      : config_fail(r->where, "unknown key '%s' of the faults", key);
	else if (r->device == NULL)
		err = config_fail(r->where, "'%s' stands outside of a section", key);
	else if (strcmp(key, "name") == 0)
		err = config_fail(r->where, "the name stands in [device NAME]");
	else
		err = config_device_key(r->device, r->where, key, value);
	if (err != 0)
		r->failed = true;
	return err == 0;
}

int config_read_file(struct config *cfg, const char *path)
{
	struct config_reader r = {.cfg = cfg, .path = path};
	int line;

	r.file = fopen(path, "re");
	if (r.file == NULL)
		return config_fail("", "%s: %s", path, strerror(errno));
	line = ini_parse_stream(config_read_line, &r, config_key, &r);
	if (!r.failed && ferror(r.file)) {
		config_fail("", "%s: %s", path, strerror(errno));
		r.failed = true;
	}
	fclose(r.file);
	if (!r.failed && line != 0) {
		snprintf(r.where, sizeof(r.where), "%s:%d: ", path, line > 0 ? line : 0);
		config_fail(r.where, "neither [SECTION] nor KEY = VALUE");
		r.failed = true;
	}
	return r.failed ? -EINVAL : 0;
}

/* ---- at the end ------------------------------------------------------------------------- */

/* @return the device before number `before` with this name, or NULL */
static struct device_config *config_find(struct config *cfg, const char *name, unsigned int before)
{
	for (unsigned int i = 0; i < before; i++) {
		if (strcmp(cfg->device[i].name, name) == 0)
			return &cfg->device[i];
	}
	return NULL;
}

/* Gives a device the first free name of vernic0, vernic1, ... */
static void config_default_name(struct config *cfg, struct device_config *dev)
{
	for (unsigned int n = 0; dev->name[0] == '\0'; n++) {
		char name[VERNIC_NAME_MAX];

		snprintf(name, sizeof(name), "vernic%u", n);
		if (config_find(cfg, name, cfg->device_count) == NULL)
			strcpy(dev->name, name);
	}
}

int config_finish(struct config *cfg)
{
	if (cfg->device_count == 0)
		config_new_device(cfg, "");
	for (unsigned int i = 0; i < cfg->device_count; i++) {
		config_default_name(cfg, &cfg->device[i]);
		config_finish_device(&cfg->device[i]);
	}
	for (unsigned int i = 0; i < cfg->device_count; i++) {
		struct device_config *dev = &cfg->device[i];

		if (config_find(cfg, dev->name, i) != NULL)
			return config_fail(dev->where, "there are two devices named %s", dev->name);
		for (unsigned int k = 0; k < i; k++) {
			if (dev->guid != 0 && cfg->device[k].guid == dev->guid)
				return config_fail(dev->where, "devices %s and %s have one GUID",
						   cfg->device[k].name, dev->name);
		}
	}
	for (unsigned int i = 0; i < cfg->fault_count; i++) {
		const struct fault_config *f = &cfg->fault[i];

		if (f->rule.device[0] != '\0' &&
		    config_find(cfg, f->rule.device, cfg->device_count) == NULL)
			return config_fail(f->where, "device: there is no device '%s'",
					   f->rule.device);
	}
	if (cfg->socket[0] == '\0') {
		const char *dir = getenv("XDG_RUNTIME_DIR");
		int n;

		if (dir != NULL && dir[0] != '\0')
			n = snprintf(cfg->socket, sizeof(cfg->socket), "%s/" VERNIC_SOCKET_NAME,
				     dir);
		else
			n = snprintf(cfg->socket, sizeof(cfg->socket), VERNIC_SOCKET_SYSTEM);
		if (n >= (int)sizeof(cfg->socket))
			return config_fail("", "XDG_RUNTIME_DIR is too long for a socket path");
	}
	return 0;
}
