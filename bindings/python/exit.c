/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE /* on_exit() */
#include "exit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int calls;

void annulus_call_begins(void) {
    __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
}

void annulus_call_ends(void) {
    __atomic_sub_fetch(&calls, 1, __ATOMIC_SEQ_CST);
}

#ifdef __GLIBC__
static void leave(int status, void *unused) {
    (void)unused;
    if (__atomic_load_n(&calls, __ATOMIC_SEQ_CST) == 0)
        return;
    fflush(NULL);
    _exit(status);
}

void annulus_watch_exit(void) {
    on_exit(leave, NULL);
}
#else
void annulus_watch_exit(void) {}
#endif
