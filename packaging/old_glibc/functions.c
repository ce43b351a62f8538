/* SPDX-License-Identifier: Apache-2.0 */
/* What the C++ library calls and glibc 2.28 lacks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* glibc 2.32: true lets the C++ library count references without atomic instructions. */
char __libc_single_threaded = 0;

/* glibc 2.36 */
uint32_t arc4random(void) {
    uint32_t number;
    ssize_t count;
    do
        count = getrandom(&number, sizeof number, 0);
    while (count < 0 && errno == EINTR);
    if (count != sizeof number)
        abort();
    return number;
}

/* glibc 2.33; before, <sys/stat.h> had them as inline functions. On 64-bit machines the kernel fills
 * the same struct. */
int stat(const char *path, struct stat *status) {
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, 0);
}

int lstat(const char *path, struct stat *status) {
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

int fstat(int file, struct stat *status) {
    if (file < 0) { /* AT_FDCWD would be the working directory. */
        errno = EBADF;
        return -1;
    }
    return (int)syscall(SYS_newfstatat, file, "", status, AT_EMPTY_PATH);
}

int stat64(const char *path, struct stat64 *status) {
    return stat(path, (struct stat *)status);
}

int lstat64(const char *path, struct stat64 *status) {
    return lstat(path, (struct stat *)status);
}

int fstat64(int file, struct stat64 *status) {
    return fstat(file, (struct stat *)status);
}

#define SECOND INT64_C(1000000000)
#define HOUR (3600 * SECOND)

/* Returns the time from `begin` to `end` in nanoseconds, cut to between 0 and an hour. */
static int64_t duration(const struct timespec *begin, const struct timespec *end) {
    if (end->tv_sec < begin->tv_sec)
        return 0;
    if (end->tv_sec - begin->tv_sec >= 3600)
        return HOUR;
    const int64_t length = (end->tv_sec - begin->tv_sec) * SECOND + end->tv_nsec - begin->tv_nsec;
    return length < 0 ? 0 : length;
}

/* glibc 2.30. Waits by the clock of the condition variable, CLOCK_REALTIME, for an hour at most: the function may end
 * early without a timeout at any time, as it also does if that clock is set forward meanwhile. If that clock is set
 * back, the function waits that much longer. */
int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *end) {
    struct timespec now, real;
    if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &real) != 0)
        return EINVAL;
    const int64_t nanoseconds = real.tv_nsec + duration(&now, end);
    real.tv_sec += nanoseconds / SECOND;
    real.tv_nsec = nanoseconds % SECOND;
    const int status = pthread_cond_timedwait(condition, mutex, &real);
    if (status == ETIMEDOUT && clock_gettime(clock, &now) == 0 && duration(&now, end) > 0)
        return 0;
    return status;
}

/* glibc 2.38: what <stdlib.h> calls strtol and so on, which take numbers such as 0b101, too. The old functions do not,
 * as on a system with glibc 2.28. */
long old_strtol(const char *, char **, int) __asm__("strtol");
long long old_strtoll(const char *, char **, int) __asm__("strtoll");
unsigned long old_strtoul(const char *, char **, int) __asm__("strtoul");
unsigned long long old_strtoull(const char *, char **, int) __asm__("strtoull");

long __isoc23_strtol(const char *text, char **end, int base) {
    return old_strtol(text, end, base);
}

long long __isoc23_strtoll(const char *text, char **end, int base) {
    return old_strtoll(text, end, base);
}

unsigned long __isoc23_strtoul(const char *text, char **end, int base) {
    return old_strtoul(text, end, base);
}

unsigned long long __isoc23_strtoull(const char *text, char **end, int base) {
    return old_strtoull(text, end, base);
}
