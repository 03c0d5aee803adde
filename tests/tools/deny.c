// SPDX-License-Identifier: BSD-2-Clause
/*
 * deny [--io-uring] [--process-vm] -- COMMAND...: runs it where those system calls are refused with
 * EPERM, as container runtimes' default seccomp profiles do.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <seccomp.h>

/* Adds a rule: the call fails with EPERM. @return 0 or a negative errno value */
static int deny(scmp_filter_ctx filter, int call)
{
	return seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), call, 0);
}

int main(int argc, char **argv)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
	int err = filter ? 0 : -ENOMEM;
	int i;

	for (i = 1; i < argc && strcmp(argv[i], "--") != 0 && !err; i++) {
		if (strcmp(argv[i], "--io-uring") == 0) {
			err = deny(filter, SCMP_SYS(io_uring_setup));
		} else if (strcmp(argv[i], "--process-vm") == 0) {
			err = deny(filter, SCMP_SYS(process_vm_readv));
			if (!err)
				err = deny(filter, SCMP_SYS(process_vm_writev));
		} else {
			break;
		}
	}
	if (!err && (i + 1 >= argc || strcmp(argv[i], "--") != 0)) {
		fputs("Usage: deny [--io-uring] [--process-vm] -- COMMAND...\n", stderr);
		return 2;
	}
	if (!err)
		err = seccomp_load(filter);
	if (err) {
		fprintf(stderr, "deny: %s\n", strerror(-err));
		return 125;
	}
	execvp(argv[i + 1], argv + i + 1);
	fprintf(stderr, "deny: %s: %s\n", argv[i + 1], strerror(errno));
	return 127;
}
