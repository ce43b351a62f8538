# SPDX-License-Identifier: Apache-2.0
"""packaging/old_glibc: what is linked with its libraries runs here as it would with this machine's glibc."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import tap

SOURCE = pathlib.Path(os.environ["ANNULUS_SOURCE"])
COMPILER = os.environ["ANNULUS_CC"].split()
# Each part prints a line, or a line for each call.
PROGRAM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void early(void) { puts("preinit"); }
__attribute__((section(".preinit_array"), used)) static void (*const run_early)(void) = early;
__attribute__((constructor)) static void construct(void) { puts("constructor"); }
__attribute__((destructor)) static void destruct(void) { puts("destructor"); }

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static volatile int has_begun, has_ended;

/* Waits as std::condition_variable::wait_until(time_point::max()) does. */
static void *wait_forever(void *none) {
    const struct timespec end = {INT64_MAX / 1000000000, INT64_MAX % 1000000000};
    pthread_mutex_lock(&mutex);
    has_begun = 1;
    pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &end);
    has_ended = 1;
    pthread_mutex_unlock(&mutex);
    return none;
}

/* Returns what a wait until `milliseconds` from now returns. */
static int wait_for(int milliseconds) {
    struct timespec end;
    int status;
    clock_gettime(CLOCK_MONOTONIC, &end);
    const int64_t nanoseconds = end.tv_nsec + milliseconds * INT64_C(1000000) + INT64_C(2000000000);
    end.tv_sec += nanoseconds / 1000000000 - 2;
    end.tv_nsec = nanoseconds % 1000000000;
    pthread_mutex_lock(&mutex);
    do
        status = pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &end);
    while (status == 0);
    pthread_mutex_unlock(&mutex);
    return status;
}

int main(void) {
    for (char **it = environ; *it; ++it)
        if (strncmp(*it, "ANNULUS_WORD=", 13) == 0)
            puts(*it);
    printf("%s %d\n", program_invocation_short_name, environ == __environ);

    struct stat status;
    int result = fstat(AT_FDCWD, &status);
    printf("fstat %d %d\n", result, errno == EBADF);
    result = fstat(0, &status);
    printf("fstat %d %d\n", result, S_ISCHR(status.st_mode));
    result = stat("/", &status);
    printf("stat %d %d\n", result, S_ISDIR(status.st_mode));

    printf("wait %d %d\n", wait_for(-1) == ETIMEDOUT, wait_for(20) == ETIMEDOUT);
    pthread_t thread;
    pthread_create(&thread, NULL, wait_forever, NULL);
    while (!has_begun)
        usleep(1000);
    usleep(100000);
    printf("forever %d\n", has_ended);
    pthread_mutex_lock(&mutex);
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, NULL);
    printf("forever %d\n", has_ended);
    return 0;
}
"""
PRINTED = """\
preinit
constructor
ANNULUS_WORD=annulus
program 1
fstat -1 1
fstat 0 1
stat 0 1
wait 1 1
forever 0
forever 1
destructor
"""


@unittest.skipUnless("CS_GNU_LIBC_VERSION" in os.confstr_names, "needs glibc")
class OldGlibcTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def test_a_program_runs_as_with_this_glibc(self):
        libraries = self.directory / "old_glibc"
        subprocess.run([sys.executable, SOURCE / "packaging/old_glibc/make.py", libraries, *COMPILER], check=True)
        (self.directory / "program.c").write_text(PROGRAM)
        program = self.directory / "program"
        for option in f"-L{libraries}", f"-L{self.directory}":
            subprocess.run([*COMPILER, option, "-O1", self.directory / "program.c", "-o", program], check=True)
            environment = {**os.environ, "ANNULUS_WORD": "annulus"}
            output = subprocess.run(
                [program], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=60
            )
            self.assertEqual((output.returncode, output.stdout), (0, PRINTED), option)


if __name__ == "__main__":
    tap.main()
