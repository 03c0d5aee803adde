// SPDX-License-Identifier: BSD-2-Clause
/*
 * Arbitrary text into the configuration: a file, or what stands behind --device. It is taken, or
 * refused with a complaint of one line; what is taken keeps the limits.
 *
 * Input: 0 for a file or 1 for a device, the text.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config.h"
#include "fuzz.h"

/* What a configuration must be once config_finish() has taken it. */
static void check(const struct config *cfg)
{
	CHECK(cfg->device_count >= 1 && cfg->device_count <= CONFIG_MAX_DEVICES);
	CHECK(cfg->workers >= 1 && cfg->workers <= VERNIC_MAX_WORKERS);
	CHECK(cfg->io == IO_AUTO || cfg->io == IO_URING || cfg->io == IO_PLAIN);
	CHECK(memchr(cfg->socket, 0, sizeof(cfg->socket)) && cfg->socket[0]);
	for (unsigned int i = 0; i < cfg->device_count; i++) {
		const struct device_config *d = &cfg->device[i];

		CHECK(memchr(d->name, 0, sizeof(d->name)) && d->name[0] && !strchr(d->name, '/'));
		CHECK(d->mtu >= 256 && d->mtu <= 4096 && (d->mtu & (d->mtu - 1)) == 0);
		CHECK(d->address_count <= CONFIG_MAX_ADDRESSES);
		for (unsigned int k = 0; k < LIMIT_COUNT; k++)
			CHECK(d->limit[k] >= 1);
		for (unsigned int k = 0; k < i; k++)
			CHECK(strcmp(d->name, cfg->device[k].name) != 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct config cfg;
	static FILE *complaints;
	static char *complaint;
	static size_t length;
	static int file = -1;
	static char path[64];
	FILE *standard = stderr;
	int err;

	if (!complaints) {
		complaints = open_memstream(&complaint, &length);
		file = memfd_create("config", MFD_CLOEXEC);
		CHECK(complaints && file >= 0);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	}
	if (size == 0)
		return 0;
	config_init(&cfg);
	rewind(complaints);
	stderr = complaints; /* where the parser complains */
	if (data[0] == 0) {
		if (ftruncate(file, 0) != 0 ||
		    pwrite(file, data + 1, size - 1, 0) != (ssize_t)(size - 1))
			abort();
		err = config_read_file(&cfg, path);
	} else {
		char *text = calloc(1, size);

		CHECK(text);
		memcpy(text, data + 1, size - 1);
		err = config_add_device(&cfg, text);
		free(text);
	}
	if (err == 0) {
		err = config_finish(&cfg);
		if (err == 0)
			check(&cfg);
	}
	stderr = standard;
	fflush(complaints);
	/* One line says why, or there is nothing to say. */
	CHECK(err == 0 || err == -EINVAL);
	CHECK(err == 0 ? length == 0 : length > 1 && complaint[length - 1] == '\n');
	return 0;
}
