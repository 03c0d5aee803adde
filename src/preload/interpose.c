// SPDX-License-Identifier: BSD-2-Clause
/*
 * libvernic-preload.so: puts itself between programs and the functions of the C library that take
 * paths, so that programs find Vernic's devices where Linux shows those of the kernel.
 *
 * The C library calls its own functions directly, so each that leads to a path is here: opendir()
 * and scandir(), stat() and what it was called before glibc 2.33, and so on. All of them do one
 * thing: let place_of() look at the path, and go on with what it says. errno is the C library's.
 */
/* The declarations with their real names: no inline wrappers, no redirection by macros. */
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "preload.h"

#define EXPORT __attribute__((visibility("default")))
#define READ_ONLY(flags) (((flags) & (O_ACCMODE | O_CREAT | O_TRUNC)) == O_RDONLY)

/* In the C library, but in no header: for fortified programs, and for those built long ago. */
EXPORT int __open_2(const char *path, int flags);
EXPORT int __open64_2(const char *path, int flags);
EXPORT int __openat_2(int at, const char *path, int flags);
EXPORT int __openat64_2(int at, const char *path, int flags);
EXPORT int __xstat(int version, const char *path, struct stat *st);
EXPORT int __xstat64(int version, const char *path, struct stat64 *st);
EXPORT int __lxstat(int version, const char *path, struct stat *st);
EXPORT int __lxstat64(int version, const char *path, struct stat64 *st);
EXPORT int __fxstatat(int version, int at, const char *path, struct stat *st, int flags);
EXPORT int __fxstatat64(int version, int at, const char *path, struct stat64 *st, int flags);
EXPORT ssize_t __readlink_chk(const char *path, char *buf, size_t len, size_t size);
EXPORT ssize_t __readlinkat_chk(int at, const char *path, char *buf, size_t len, size_t size);
EXPORT char *__realpath_chk(const char *path, char *resolved, size_t size);

/* ---- the real ones ------------------------------------------------------------------------- */

static _Atomic(void *) real[FN_COUNT];

void *preload_real(enum preload_function fn)
{
	static const char *const names[FN_COUNT] = {
#define F(name) [FN_##name] = #name,
		PRELOAD_FUNCTIONS(F)
#undef F
	};
	void *f = atomic_load_explicit(&real[fn], memory_order_relaxed);
	int saved = errno;

	if (f)
		return f;
	f = dlsym(RTLD_NEXT, names[fn]);
	errno = saved;
	atomic_store_explicit(&real[fn], f, memory_order_relaxed);
	return f;
}

/* Looks all of them up before anybody is in a signal handler or a forked child. */
__attribute__((constructor)) static void preload_init(void)
{
	int saved = errno;

	for (unsigned int i = 0; i < FN_COUNT; i++)
		preload_real((enum preload_function)i);
	errno = saved;
}

/* ---- opening ------------------------------------------------------------------------------- */

/* The mode of open(2), where there is one. */
#define TAKE_MODE(flags, mode)                           \
	do {                                             \
		if ((flags) & (O_CREAT | __O_TMPFILE)) { \
			va_list args;                    \
                                                         \
			va_start(args, flags);           \
			mode = va_arg(args, mode_t);     \
			va_end(args);                    \
		}                                        \
	} while (0)

/*
 * The body of an open function: CALL opens `to`. As in sysfs, what is there can be read, and
 * nothing can be made.
 */
#define OPEN_BODY(at, path, flags, CALL)                            \
	do {                                                        \
		struct place_buffer buf;                            \
		const char *to = place_to_open(at, path, &buf);     \
		int fd;                                             \
                                                                    \
		if (place_is_ours(to, &buf) && !READ_ONLY(flags)) { \
			errno = EACCES;                             \
			return -1;                                  \
		}                                                   \
		fd = CALL;                                          \
		if (place_is_stale(fd, to)) {                       \
			close(fd);                                  \
			fd = CALL;                                  \
		}                                                   \
		return fd;                                          \
	} while (0)

EXPORT int open(const char *path, int flags, ...)
{
	mode_t mode = 0;

	TAKE_MODE(flags, mode);
	OPEN_BODY(AT_FDCWD, path, flags, REAL(open)(to, flags, mode));
}

EXPORT int open64(const char *path, int flags, ...)
{
	mode_t mode = 0;

	TAKE_MODE(flags, mode);
	OPEN_BODY(AT_FDCWD, path, flags, REAL(open64)(to, flags, mode));
}

EXPORT int __open_2(const char *path, int flags)
{
	OPEN_BODY(AT_FDCWD, path, flags, REAL(__open_2)(to, flags));
}

EXPORT int __open64_2(const char *path, int flags)
{
	OPEN_BODY(AT_FDCWD, path, flags, REAL(__open64_2)(to, flags));
}

EXPORT int creat(const char *path, mode_t mode)
{
	OPEN_BODY(AT_FDCWD, path, O_CREAT, REAL(creat)(to, mode));
}

EXPORT int creat64(const char *path, mode_t mode)
{
	OPEN_BODY(AT_FDCWD, path, O_CREAT, REAL(creat64)(to, mode));
}

EXPORT int openat(int at, const char *path, int flags, ...)
{
	mode_t mode = 0;

	TAKE_MODE(flags, mode);
	OPEN_BODY(at, path, flags, REAL(openat)(at, to, flags, mode));
}

EXPORT int openat64(int at, const char *path, int flags, ...)
{
	mode_t mode = 0;

	TAKE_MODE(flags, mode);
	OPEN_BODY(at, path, flags, REAL(openat64)(at, to, flags, mode));
}

EXPORT int __openat_2(int at, const char *path, int flags)
{
	OPEN_BODY(at, path, flags, REAL(__openat_2)(at, to, flags));
}

EXPORT int __openat64_2(int at, const char *path, int flags)
{
	OPEN_BODY(at, path, flags, REAL(__openat64_2)(at, to, flags));
}

/* The body of a function that opens a stream, AGAIN for one that turned out to be stale. */
#define FOPEN_BODY(path, mode, CALL, AGAIN)                            \
	do {                                                           \
		struct place_buffer buf;                               \
		const char *to = place_to_open(AT_FDCWD, path, &buf);  \
		FILE *f;                                               \
                                                                       \
		if (place_is_ours(to, &buf) && strpbrk(mode, "wa+")) { \
			errno = EACCES;                                \
			return NULL;                                   \
		}                                                      \
		f = CALL;                                              \
		if (f && place_is_stale(fileno(f), to))                \
			f = AGAIN;                                     \
		return f;                                              \
	} while (0)

EXPORT FILE *fopen(const char *path, const char *mode)
{
	FOPEN_BODY(path, mode, REAL(fopen)(to, mode), REAL(freopen)(to, mode, f));
}

EXPORT FILE *fopen64(const char *path, const char *mode)
{
	FOPEN_BODY(path, mode, REAL(fopen64)(to, mode), REAL(freopen64)(to, mode, f));
}

EXPORT FILE *freopen(const char *path, const char *mode, FILE *stream)
{
	FOPEN_BODY(path, mode, REAL(freopen)(to, mode, stream), REAL(freopen)(to, mode, f));
}

EXPORT FILE *freopen64(const char *path, const char *mode, FILE *stream)
{
	FOPEN_BODY(path, mode, REAL(freopen64)(to, mode, stream), REAL(freopen64)(to, mode, f));
}

/* ---- directories --------------------------------------------------------------------------- */

/* The body of a function that only looks: CALL with `to`. */
#define LOOK_BODY(at, path, CALL)                          \
	do {                                               \
		struct place_buffer buf;                   \
		const char *to = place_of(at, path, &buf); \
                                                           \
		return CALL;                               \
	} while (0)

EXPORT DIR *opendir(const char *path)
{
	LOOK_BODY(AT_FDCWD, path, REAL(opendir)(to));
}

EXPORT int scandir(const char *path, struct dirent ***list, int (*filter)(const struct dirent *),
		   int (*compare)(const struct dirent **, const struct dirent **))
{
	LOOK_BODY(AT_FDCWD, path, REAL(scandir)(to, list, filter, compare));
}

EXPORT int scandir64(const char *path, struct dirent64 ***list,
		     int (*filter)(const struct dirent64 *),
		     int (*compare)(const struct dirent64 **, const struct dirent64 **))
{
	LOOK_BODY(AT_FDCWD, path, REAL(scandir64)(to, list, filter, compare));
}

EXPORT int chdir(const char *path)
{
	LOOK_BODY(AT_FDCWD, path, REAL(chdir)(to));
}

/* glob(3) looks at directories by itself, unless it is given other functions: these. */
static void glob_closedir(void *dir)
{
	closedir(dir);
}

static struct dirent *glob_readdir(void *dir)
{
	return readdir(dir);
}

static struct dirent64 *glob_readdir64(void *dir)
{
	return readdir64(dir);
}

static void *glob_opendir(const char *path)
{
	return opendir(path);
}

EXPORT int glob(const char *pattern, int flags, int (*error)(const char *, int), glob_t *g)
{
	if (!strstr(pattern, "/sys/class/") || flags & GLOB_ALTDIRFUNC)
		return REAL(glob)(pattern, flags, error, g);
	g->gl_closedir = glob_closedir;
	g->gl_readdir = glob_readdir;
	g->gl_opendir = glob_opendir;
	g->gl_lstat = lstat;
	g->gl_stat = stat;
	return REAL(glob)(pattern, flags | GLOB_ALTDIRFUNC, error, g);
}

EXPORT int glob64(const char *pattern, int flags, int (*error)(const char *, int), glob64_t *g)
{
	if (!strstr(pattern, "/sys/class/") || flags & GLOB_ALTDIRFUNC)
		return REAL(glob64)(pattern, flags, error, g);
	g->gl_closedir = glob_closedir;
	g->gl_readdir = glob_readdir64;
	g->gl_opendir = glob_opendir;
	g->gl_lstat = lstat64;
	g->gl_stat = stat64;
	return REAL(glob64)(pattern, flags | GLOB_ALTDIRFUNC, error, g);
}

/* ---- attributes ---------------------------------------------------------------------------- */

/* As LOOK_BODY(), and CALL fills in *st: a device's file is to be seen as one. */
#define STAT_BODY(at, path, CALL)                                         \
	do {                                                              \
		struct place_buffer buf;                                  \
		const char *to = place_of(at, path, &buf);                \
		unsigned int number;                                      \
		int ret = CALL;                                           \
                                                                          \
		if (ret == 0 && place_is_device(to, &buf, &number)) {     \
			st->st_mode = S_IFCHR | (st->st_mode & 07777);    \
			st->st_rdev = makedev(PLACE_VERBS_MAJOR, number); \
		}                                                         \
		return ret;                                               \
	} while (0)

EXPORT int stat(const char *path, struct stat *st)
{
	STAT_BODY(AT_FDCWD, path, REAL(stat)(to, st));
}

EXPORT int stat64(const char *path, struct stat64 *st)
{
	STAT_BODY(AT_FDCWD, path, REAL(stat64)(to, st));
}

EXPORT int lstat(const char *path, struct stat *st)
{
	STAT_BODY(AT_FDCWD, path, REAL(lstat)(to, st));
}

EXPORT int lstat64(const char *path, struct stat64 *st)
{
	STAT_BODY(AT_FDCWD, path, REAL(lstat64)(to, st));
}

EXPORT int fstatat(int at, const char *path, struct stat *st, int flags)
{
	STAT_BODY(at, path, REAL(fstatat)(at, to, st, flags));
}

EXPORT int fstatat64(int at, const char *path, struct stat64 *st, int flags)
{
	STAT_BODY(at, path, REAL(fstatat64)(at, to, st, flags));
}

EXPORT int statx(int at, const char *path, int flags, unsigned int mask, struct statx *st)
{
	struct place_buffer buf;
	const char *to = place_of(at, path, &buf);
	unsigned int number;
	int ret = REAL(statx)(at, to, flags, mask, st);

	if (ret == 0 && place_is_device(to, &buf, &number)) {
		st->stx_mode = (uint16_t)(S_IFCHR | (st->stx_mode & 07777));
		st->stx_rdev_major = PLACE_VERBS_MAJOR;
		st->stx_rdev_minor = number;
	}
	return ret;
}

EXPORT int __xstat(int version, const char *path, struct stat *st)
{
	STAT_BODY(AT_FDCWD, path, REAL(__xstat)(version, to, st));
}

EXPORT int __xstat64(int version, const char *path, struct stat64 *st)
{
	STAT_BODY(AT_FDCWD, path, REAL(__xstat64)(version, to, st));
}

EXPORT int __lxstat(int version, const char *path, struct stat *st)
{
	STAT_BODY(AT_FDCWD, path, REAL(__lxstat)(version, to, st));
}

EXPORT int __lxstat64(int version, const char *path, struct stat64 *st)
{
	STAT_BODY(AT_FDCWD, path, REAL(__lxstat64)(version, to, st));
}

EXPORT int __fxstatat(int version, int at, const char *path, struct stat *st, int flags)
{
	STAT_BODY(at, path, REAL(__fxstatat)(version, at, to, st, flags));
}

EXPORT int __fxstatat64(int version, int at, const char *path, struct stat64 *st, int flags)
{
	STAT_BODY(at, path, REAL(__fxstatat64)(version, at, to, st, flags));
}

EXPORT int access(const char *path, int mode)
{
	LOOK_BODY(AT_FDCWD, path, REAL(access)(to, mode));
}

EXPORT int eaccess(const char *path, int mode)
{
	LOOK_BODY(AT_FDCWD, path, REAL(eaccess)(to, mode));
}

EXPORT int euidaccess(const char *path, int mode)
{
	LOOK_BODY(AT_FDCWD, path, REAL(euidaccess)(to, mode));
}

EXPORT int faccessat(int at, const char *path, int mode, int flags)
{
	LOOK_BODY(at, path, REAL(faccessat)(at, to, mode, flags));
}

EXPORT ssize_t getxattr(const char *path, const char *name, void *value, size_t size)
{
	LOOK_BODY(AT_FDCWD, path, REAL(getxattr)(to, name, value, size));
}

EXPORT ssize_t lgetxattr(const char *path, const char *name, void *value, size_t size)
{
	LOOK_BODY(AT_FDCWD, path, REAL(lgetxattr)(to, name, value, size));
}

EXPORT ssize_t listxattr(const char *path, char *list, size_t size)
{
	LOOK_BODY(AT_FDCWD, path, REAL(listxattr)(to, list, size));
}

EXPORT ssize_t llistxattr(const char *path, char *list, size_t size)
{
	LOOK_BODY(AT_FDCWD, path, REAL(llistxattr)(to, list, size));
}

/* ---- links and names ----------------------------------------------------------------------- */

EXPORT ssize_t readlink(const char *path, char *buffer, size_t len)
{
	LOOK_BODY(AT_FDCWD, path, REAL(readlink)(to, buffer, len));
}

EXPORT ssize_t __readlink_chk(const char *path, char *buffer, size_t len, size_t size)
{
	LOOK_BODY(AT_FDCWD, path, REAL(__readlink_chk)(to, buffer, len, size));
}

EXPORT ssize_t readlinkat(int at, const char *path, char *buffer, size_t len)
{
	LOOK_BODY(at, path, REAL(readlinkat)(at, to, buffer, len));
}

EXPORT ssize_t __readlinkat_chk(int at, const char *path, char *buffer, size_t len, size_t size)
{
	LOOK_BODY(at, path, REAL(__readlinkat_chk)(at, to, buffer, len, size));
}

/*
 * realpath() of one of our paths: the tree has no links in it, so the path is its own, made normal.
 * @return whether path is one of ours; *result is then what realpath() has to return
 */
static bool our_realpath(const char *path, char *resolved, char **result)
{
	struct place_buffer buf;
	const char *to = place_of(AT_FDCWD, path, &buf);
	char normal[PLACE_MAX];

	*result = NULL;
	/* From a directory in /sys, of whose name there is no need to know here. */
	if (!place_is_ours(to, &buf) || path[0] != '/')
		return false;
	if (REAL(access)(to, F_OK) != 0)
		return true;
	if (!place_normalise(path, normal))
		return false;
	*result = resolved ? strcpy(resolved, normal) : strdup(normal);
	return true;
}

EXPORT char *realpath(const char *path, char *resolved)
{
	char *result;

	return our_realpath(path, resolved, &result) ? result : REAL(realpath)(path, resolved);
}

EXPORT char *__realpath_chk(const char *path, char *resolved, size_t size)
{
	char *result;

	return our_realpath(path, resolved, &result) ? result
						     : REAL(__realpath_chk)(path, resolved, size);
}

EXPORT char *canonicalize_file_name(const char *path)
{
	char *result;

	return our_realpath(path, NULL, &result) ? result : REAL(canonicalize_file_name)(path);
}
