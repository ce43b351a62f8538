/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda.so.1 with one device, whose memory is 1 MiB of the host's. Streams do their work at once, and events are
 * 1.5 ms apart. Like NVIDIA's driver, it requires a current context for all functions on memory. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY ((size_t)1 << 20)
#define ALIGNMENT ((size_t)256)

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400
};

static int initialized;
static char primary, stream, events[2];
static int events_made;
static _Thread_local void *current;
static size_t held;

#define WANT_CONTEXT                                                                                                   \
    if (current != &primary)                                                                                           \
    return INVALID_CONTEXT

int cuInit(unsigned flags) {
    initialized = 1;
    return flags ? INVALID_VALUE : SUCCESS;
}

int cuGetErrorString(int status, const char **text) {
    *text = status == OUT_OF_MEMORY     ? "out of memory"
            : status == INVALID_DEVICE  ? "invalid device ordinal"
            : status == INVALID_CONTEXT ? "invalid device context"
                                        : NULL;
    return *text ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGet(int *device, int index) {
    if (!initialized)
        return NOT_INITIALIZED;
    if (index != 0)
        return INVALID_DEVICE;
    *device = 40 + index;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int bytes, int device) {
    snprintf(name, (size_t)bytes, "Fake %d", device);
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 8 : attribute == 76 ? 9 : -1;
    return device == 40 ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = MEMORY;
    return device == 40 ? SUCCESS : INVALID_DEVICE;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &primary;
    return device == 40 ? SUCCESS : INVALID_DEVICE;
}

int cuCtxSetCurrent(void *context) {
    current = context;
    return SUCCESS;
}

int cuCtxSynchronize(void) {
    WANT_CONTEXT;
    return SUCCESS;
}

int cuStreamCreate(void **made, unsigned flags) {
    WANT_CONTEXT;
    *made = &stream;
    return flags == 1 ? SUCCESS : INVALID_VALUE;
}

int cuStreamDestroy_v2(void *given) {
    return given == &stream ? SUCCESS : INVALID_HANDLE;
}

int cuStreamSynchronize(void *given) {
    WANT_CONTEXT;
    return given == &stream ? SUCCESS : INVALID_HANDLE;
}

int cuEventCreate(void **made, unsigned flags) {
    WANT_CONTEXT;
    *made = &events[events_made++ % 2];
    return flags == 0 ? SUCCESS : INVALID_VALUE;
}

int cuEventDestroy_v2(void *event) {
    return event ? SUCCESS : INVALID_HANDLE;
}

int cuEventRecord(void *event, void *given) {
    WANT_CONTEXT;
    return event && given == &stream ? SUCCESS : INVALID_HANDLE;
}

int cuEventSynchronize(void *event) {
    return event ? SUCCESS : INVALID_HANDLE;
}

int cuEventElapsedTime(float *milliseconds, void *start, void *stop) {
    *milliseconds = 1.5f * (float)((char *)stop - (char *)start);
    return SUCCESS;
}

/* An allocation's size is stored before it. */
int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
    WANT_CONTEXT;
    if (bytes == 0)
        return INVALID_VALUE;
    if (bytes > MEMORY - held)
        return OUT_OF_MEMORY;
    size_t *memory = aligned_alloc(ALIGNMENT, ALIGNMENT * (1 + (bytes + ALIGNMENT - 1) / ALIGNMENT));
    if (!memory)
        return OUT_OF_MEMORY;
    memory[0] = bytes;
    held += bytes;
    *address = (uintptr_t)memory + ALIGNMENT;
    return SUCCESS;
}

int cuMemFree_v2(uintptr_t address) {
    WANT_CONTEXT;
    size_t *const memory = (size_t *)(address - ALIGNMENT);
    held -= memory[0];
    free(memory);
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *available, size_t *total) {
    WANT_CONTEXT;
    *available = MEMORY - held;
    *total = MEMORY;
    return SUCCESS;
}

static int copy(void *to, const void *from, size_t bytes, void *given) {
    WANT_CONTEXT;
    if (given != &stream)
        return INVALID_HANDLE;
    if (bytes > 0)
        memcpy(to, from, bytes);
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *given) {
    return copy((void *)to, from, bytes, given);
}

int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *given) {
    return copy(to, (const void *)from, bytes, given);
}

int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *given) {
    return copy((void *)to, (const void *)from, bytes, given);
}
