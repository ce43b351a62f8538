/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context binds a config to a device and holds what calls have in common: memory, stream, threads, cached plans.
 *
 * One thread at a time may use a context; different contexts may be used by different threads at the same time. While a
 * context is in a call, any other call with it, by another thread or by a function of its allocator, is
 * ANNULUS_ERROR_ARGUMENT, and destroying it does nothing.
 *
 * After fork() the child may use the parent's contexts on a CPU, each process its own copy, but for those that another
 * thread was in a call with at that moment. These, and all contexts on CUDA devices, which do not survive a fork, can
 * only be destroyed in the child, which gives nothing back: any other call is ANNULUS_ERROR_ARGUMENT and says why.
 *
 * On a CUDA device annulus_forward(), annulus_backward(), annulus_attention_mass() and annulus_merge() are ordered on
 * the context's stream and do not wait for the device, and errors of the device itself show up in a later call, of
 * annulus or of CUDA. The thread's current device is after every call what it was before.
 *
 * What must stay, and until when:
 *
 *   tensors, workspace  on a CPU until the call returns; on CUDA until the stream has come past the call
 *   allocator           as long as the context may call it: until it has another, or is destroyed
 *   stream              until the context has another, or is destroyed, and until it has come past the calls
 *   config              need not stay: the context has a copy
 *   communicator        as long as calls are to be collective: once it is destroyed they fail (comm.h)
 *   context             not at all for calls that have returned: destroying it does not take their work back
 *
 * Calls may be captured into a CUDA graph. The graph then holds on to everything that the calls were made with:
 * tensors, workspace or what the allocator gave, which must be what every replay may use; the context with its config
 * as it was, and the communicator. Lengths, shapes and addresses are those of the capture. The context must stay until
 * the last replay is done, replays of graphs of one context must not run beside one another or beside its calls, and a
 * graph with a communicator must be destroyed before that.
 *
 * The contexts of a device in a process share one pool of memory and handles of cuBLAS. After cudaDeviceReset() annulus
 * can no longer be used on that device.
 */
#ifndef ANNULUS_CONTEXT_H
#define ANNULUS_CONTEXT_H

#include <annulus/config.h>
#include <annulus/export.h>
#include <annulus/status.h>
#include <stddef.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/* A config bound to a device, with what calls have in common. */
typedef struct annulus_context annulus_context;

/* A kind of device. */
typedef enum annulus_device ANNULUS_ENUM_INT32 {
    ANNULUS_DEVICE_CPU = 1, /* the CPUs that the process may run on: one device */
    ANNULUS_DEVICE_CUDA = 2 /* an NVIDIA GPU */
} annulus_device;

/*
 * The number of devices of a kind that can be used on this machine, in *count: 1 for ANNULUS_DEVICE_CPU; for
 * ANNULUS_DEVICE_CUDA what the CUDA runtime sees, 0 without a driver or where annulus's part for CUDA cannot be loaded.
 * ANNULUS_ERROR_ARGUMENT: count is NULL or `device` is unknown. Any thread.
 *
 * That part is the file libannulus-cuda.so.1, which alone needs CUDA's libraries. The first function that is asked for
 * CUDA opens it by dlopen(): beside the library's own file, else where the dynamic loader looks. It must be of the same
 * version, and stays for the life of the process. Where that fails, it is not tried again, and
 * annulus_context_create() says why. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_device_count(annulus_device device, int32_t *count);

/*
 * Functions by which a context gets the workspace of a call, if no workspace is set.
 *
 * size: sizeof(annulus_allocator). allocate returns `bytes` of memory on the context's device aligned to `alignment`
 * (a power of two), or NULL. release gives back what allocate returned, with the same `bytes` and `alignment`. `user`
 * is handed to both. `stream` is the context's stream, NULL on a CPU: on CUDA the memory is used by work on that stream
 * only, and release is called while that work may not be done yet. Both are called by the thread that calls annulus,
 * with the context's device current, must not throw, must not use the context, which is in a call, and must stay
 * callable as long as the context uses them.
 */
typedef struct annulus_allocator {
    size_t size;
    void *(*allocate)(void *user, size_t bytes, size_t alignment, void *stream);
    void (*release)(void *user, void *memory, size_t bytes, size_t alignment, void *stream);
    void *user;
} annulus_allocator;

#define ANNULUS_ALLOCATOR_INIT                                                                                         \
    { sizeof(annulus_allocator), NULL, NULL, NULL }

/*
 * Makes a context for device number `index` of a kind in *context, counted from 0 as the CUDA runtime does. It has no
 * config yet. The caller destroys it. ANNULUS_ERROR_ARGUMENT: context is NULL, `device` is unknown or there is no
 * device `index`, or on a CPU the environment variable ANNULUS_NUM_THREADS is set and no number from 1 to 1024.
 * ANNULUS_ERROR_UNSUPPORTED: there is no device of the kind at all; the message says why.
 * ANNULUS_ERROR_MEMORY, ANNULUS_ERROR_DEVICE: the device is there and could not be used. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_create(annulus_context **context, annulus_device device,
                                                         int32_t index);

/*
 * Destroys a context; NULL is legal. Workspace, allocator and stream stay the caller's. On a CUDA device this waits for
 * no work, neither the context's own, which goes on to its end, nor that of others: synchronise the stream before
 * freeing what its calls use. No other thread may use the context then. Since 1.0.
 */
ANNULUS_API void annulus_context_destroy(annulus_context *context);

/*
 * Gives the context a copy of `config`; later changes of `config` do not reach it. ANNULUS_ERROR_ARGUMENT: a handle is
 * NULL or the config has no branch. ANNULUS_ERROR_UNSUPPORTED: its engine does not run on this device. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_config(annulus_context *context, const annulus_config *config);

/*
 * Makes a copy of the config that the context was given last, in *config. The caller destroys it.
 * ANNULUS_ERROR_ARGUMENT: a pointer is NULL or the context has no config. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_copy_config(annulus_config **config, const annulus_context *context);

/*
 * Sets the stream that device work is ordered on: on a CUDA device a cudaStream_t (a CUstream) of that device, or NULL
 * for the legacy default stream (default). It stays the caller's and must live as long as the context uses it. A CPU
 * context has none: NULL is accepted, anything else is ANNULUS_ERROR_UNSUPPORTED. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_stream(annulus_context *context, void *stream);

/*
 * Sets the allocator that serves calls without a workspace (copied); NULL restores the device's own: the process's
 * memory on a CPU, on CUDA a stream-ordered pool that the contexts of the device share and that keeps its memory for
 * the next call. When the last of them is destroyed, and all that their calls were to do is done by then, the memory
 * goes back to the system; else it stays for contexts to come. ANNULUS_ERROR_ARGUMENT: size is too small or non-zero
 * bytes follow what this version knows, or a function is NULL. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_allocator(annulus_context *context,
                                                                const annulus_allocator *allocator);

/*
 * Sets `bytes` of device memory that calls use instead of allocating; NULL with 0 bytes goes back to allocating. The
 * memory needs no alignment, stays the caller's and must outlive the calls that use it; its contents are undefined
 * after them. A call that needs more fails with ANNULUS_ERROR_WORKSPACE, and annulus_last_error_bytes() says how much;
 * annulus_workspace_size() tells beforehand. A call of which a tensor lies in these bytes, or has some of them in the
 * gaps between its rows, fails with ANNULUS_ERROR_ARGUMENT; but annulus_merge() uses no workspace and looks at none.
 * ANNULUS_ERROR_ARGUMENT: it is not memory of the context's device. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_workspace(annulus_context *context, void *workspace,
                                                                size_t bytes);

/*
 * Sets how many CPU threads a call may use: 1 to 1024, or 0 for the default. Results do not depend on it; the workspace
 * does. On a CUDA device calls use no threads: the number has no effect there.
 *
 * The default is what the environment variable ANNULUS_NUM_THREADS said when the context was made. Where it was not
 * set, the default is the smaller of two numbers: the CPUs that the calling thread may run on (sched_getaffinity())
 * when it calls; and the CPU quota, rounded up to whole CPUs, that the process's cgroups and their parents had when the
 * context was made (cpu.max, or cpu.cfs_quota_us divided by cpu.cfs_period_us). The library does not read variables of
 * OpenMP. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_threads(annulus_context *context, int32_t threads);

/*
 * How many CPU threads a call that is made now may use, in *threads: what was set, or what the default comes to for the
 * calling thread. 1 on a CUDA device. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_get_threads(const annulus_context *context, int32_t *threads);

/*
 * The engine that served the last successful call of forward, backward or attention mass, in *engine:
 * ANNULUS_ENGINE_AUTO before the first. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_last_engine(const annulus_context *context, annulus_engine *engine);

ANNULUS_END_DECLS

#endif
