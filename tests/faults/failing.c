/* SPDX-License-Identifier: Apache-2.0 */
/* A library to link before all others, or to preload. It makes chosen calls of a process fail as if the system had no
 * resources left. */
#undef _FILE_OFFSET_BITS /* would make mmap and mmap64 one name */
#include "failing.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct { atomic_long made, first, count, failed; } calls[CALL_KINDS];
static atomic_long live;

void fail_calls(enum call_kind kind, long first, long count) {
    calls[kind].count = 0;
    calls[kind].made = 0;
    calls[kind].failed = 0;
    calls[kind].first = first;
    calls[kind].count = count;
}

long failed_calls(enum call_kind kind) {
    return calls[kind].failed;
}

long live_pieces(void) {
    return live;
}

/* Runs before the first call, which another library may make when it is loaded. */
static void read_environment(void) {
    static const char *const names[CALL_KINDS] = {"FAIL_MEMORY", "FAIL_MAPPINGS", "FAIL_THREADS"};
    static atomic_flag done = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&done))
        return;
    for (int kind = 0; kind < CALL_KINDS; ++kind) {
        const char *text = getenv(names[kind]);
        if (!text)
            continue;
        char *end = NULL;
        const long first = strtol(text, &end, 10), count = strtol(end, NULL, 10);
        fail_calls((enum call_kind)kind, first, *end ? count : LONG_MAX);
    }
}

static int fails(enum call_kind kind) {
    read_environment();
    const long past = calls[kind].made++ - calls[kind].first;
    if (past < 0 || past >= calls[kind].count)
        return 0;
    ++calls[kind].failed;
    return 1;
}

/* The C library's own function, since dlsym() would allocate. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *memory);

static void *note(void *memory) {
    live += memory != NULL;
    return memory;
}

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t bytes) {
    return fails(MEMORY) ? no_memory() : note(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes) {
    return fails(MEMORY) ? no_memory() : note(__libc_calloc(count, bytes));
}

void *realloc(void *memory, size_t bytes) {
    if (fails(MEMORY))
        return no_memory();
    void *moved = __libc_realloc(memory, bytes);
    live += (moved != NULL) - (memory != NULL && (moved != NULL || bytes == 0));
    return moved;
}

void *memalign(size_t alignment, size_t bytes) {
    return fails(MEMORY) ? no_memory() : note(__libc_memalign(alignment, bytes));
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    return memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
    void *made = memalign(alignment, bytes);
    if (!made)
        return ENOMEM;
    *memory = made;
    return 0;
}

void free(void *memory) {
    live -= memory != NULL;
    __libc_free(memory);
}

/* Returns the next library's function of that name. */
static void find(const char *name, void *function) {
    void *const symbol = dlsym(RTLD_NEXT, name);
    memcpy(function, &symbol, sizeof symbol);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    void *(*next)(void *, size_t, int, int, int, off_t);
    if (fails(MAPPINGS)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    find("mmap", &next);
    return next(address, bytes, protection, flags, file, offset);
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int file, off64_t offset) {
    return mmap(address, bytes, protection, flags, file, offset);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (fails(THREADS))
        return EAGAIN;
    find("pthread_create", &next);
    return next(thread, attributes, start, argument);
}
