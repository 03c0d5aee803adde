/* SPDX-License-Identifier: BSD-2-Clause */
/* What the parts of the preload library share. */
#ifndef VERNIC_PRELOAD_H
#define VERNIC_PRELOAD_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * The functions of the C library that are interposed, NAME(its type). One that is added here can
 * be called as REAL(name).
 */
#define PRELOAD_FUNCTIONS(F)                                                            \
	F(open) F(open64) F(__open_2) F(__open64_2) F(creat) F(creat64)                 \
	F(openat) F(openat64) F(__openat_2) F(__openat64_2)                             \
	F(fopen) F(fopen64) F(freopen) F(freopen64)                                     \
	F(opendir) F(scandir) F(scandir64) F(glob) F(glob64)                            \
	F(stat) F(stat64) F(lstat) F(lstat64) F(fstatat) F(fstatat64) F(statx)          \
	F(__xstat) F(__xstat64) F(__lxstat) F(__lxstat64) F(__fxstatat) F(__fxstatat64) \
	F(access) F(eaccess) F(euidaccess) F(faccessat)                                 \
	F(readlink) F(__readlink_chk) F(readlinkat) F(__readlinkat_chk)                 \
	F(realpath) F(__realpath_chk) F(canonicalize_file_name) F(chdir)                \
	F(getxattr) F(lgetxattr) F(listxattr) F(llistxattr)

enum preload_function {
#define F(name) FN_##name,
	PRELOAD_FUNCTIONS(F)
#undef F
	FN_COUNT
};

/* @return the C library's (or a sanitizer's) function of that name */
void *preload_real(enum preload_function fn);
#define REAL(name) ((__typeof__(&name))preload_real(FN_##name))

/* ---- place.c: paths and what they become ---------------------------------------------------- */

/* Bytes of a path of ours; nothing in the tree has a longer one. Stacks of signal handlers are small. */
#define PLACE_MAX 512

struct place_buffer {
	char path[PLACE_MAX];
};

/*
 * Says where a path leads while Vernic is in force.
 * @at: as openat(2): what a relative path begins at
 * @return the path itself, or another in buf
 */
const char *place_of(int at, const char *path, struct place_buffer *buf);

/* As place_of(), for a path that is going to be opened: counters are brought up to date. */
const char *place_to_open(int at, const char *path, struct place_buffer *buf);

/*
 * A relative path was opened as fd. @return whether that is a counter's file that was not up to
 * date and now is: to be opened again
 */
bool place_is_stale(int fd, const char *path);

/* @return whether place_of() turned a path into another: then it can only be read */
static inline bool place_is_ours(const char *path, const struct place_buffer *buf)
{
	return path == buf->path;
}

/* The numbers of the verbs' device files in Linux. */
#define PLACE_VERBS_MAJOR 231
#define PLACE_VERBS_MINOR 192 /* of uverbs0 */

/*
 * @return whether place_of() turned a path into that of a device's file, which is a plain one in
 * the tree; number: out, its minor number
 */
bool place_is_device(const char *path, const struct place_buffer *buf, unsigned int *number);

/* Writes a path without "//", "." and ".."; it must be absolute. @return whether there was room */
bool place_normalise(const char *path, char out[PLACE_MAX]);

/* ---- ask.c: the daemon ----------------------------------------------------------------------- */

/* Has the daemon bring a counter's file up to date. @path: below class/infiniband */
void ask_update(const char *socket, const char *path);

#endif
