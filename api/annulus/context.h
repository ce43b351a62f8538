/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context binds a config to a device and holds what calls have in common: memory, stream, threads, cached plans.
 *
 * Only one thread at a time may use a context. Different threads may use different contexts at the same time. While a
 * context is in a call, any other call with it returns ANNULUS_ERROR_ARGUMENT. This holds for calls by another thread
 * and by a function of the context's allocator. Destroying a context that is in a call does nothing.
 *
 * After fork() the parent and the child each have their own copy of the parent's contexts. The child may use a context
 * on a CPU, unless another thread was in a call with this context at the moment of the fork. The child can only destroy
 *
 *   - a context that another thread was in a call with at that moment,
 *   - a context on a CUDA device, because CUDA does not survive a fork.
 *
 * Destroying such a context in the child gives nothing back. Any other call with such a context returns
 * ANNULUS_ERROR_ARGUMENT, and the message says why.
 *
 * On a CUDA device annulus_forward(), annulus_backward(), annulus_attention_mass() and annulus_merge() are ordered on
 * the context's stream and do not wait for the device. Errors of the device itself show up in a later call, of annulus
 * or of CUDA. After every call the thread's current device is the same as before the call.
 *
 * What must stay, and until when:
 *
 *   tensors, workspace  on a CPU: until the call returns; on CUDA: until the stream has done the work of the call
 *   allocator           until the context has another allocator or is destroyed; the context may call it until then
 *   stream              until the context has another stream or is destroyed, and the stream has done the calls' work
 *   config              need not stay: the context has a copy
 *   communicator        as long as calls are to be collective; once the communicator is destroyed, calls fail (comm.h)
 *   context             need not stay for calls that have returned: destroying it does not take their work back
 *
 * Calls may be captured into a CUDA graph. The graph then holds on to everything that the calls were made with:
 *
 *   - the tensors, and the workspace or the memory that the allocator gave: every replay must be allowed to use them,
 *   - the context, with its config as it was,
 *   - the communicator.
 *
 * Every replay has the lengths, shapes and addresses of the capture. The context must stay until the last replay is
 * done. Replays of graphs of one context must not run at the same time as one another or as calls of the context. A
 * graph with a communicator must be destroyed before the communicator.
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

/* A context: a config bound to a device, with what calls have in common. */
typedef struct annulus_context annulus_context;

/* A kind of device. */
typedef enum annulus_device ANNULUS_ENUM_INT32 {
    ANNULUS_DEVICE_CPU = 1, /* the CPUs that the process may run on: one device */
    ANNULUS_DEVICE_CUDA = 2 /* an NVIDIA GPU */
} annulus_device;

/*
 * Writes to *count how many devices of a kind can be used on this machine. For ANNULUS_DEVICE_CPU the number is 1. For
 * ANNULUS_DEVICE_CUDA it is the number of devices that the CUDA runtime sees. It is 0 if there is no driver, or if
 * annulus's part for CUDA cannot be loaded. ANNULUS_ERROR_ARGUMENT: count is NULL or `device` is unknown. Any thread.
 *
 * annulus's part for CUDA is the file libannulus-cuda.so.1. No other file of annulus needs CUDA's libraries. The first
 * function that is asked for CUDA opens the file by dlopen(). It looks beside the library's own file, or else where the
 * dynamic loader looks. The file must be of the same version as the library, and stays loaded for the life of the
 * process. If loading the file fails, annulus does not try again, and annulus_context_create() says why. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_device_count(annulus_device device, int32_t *count);

/*
 * Functions by which a context gets the workspace of a call, if no workspace is set.
 *
 *   size      sizeof(annulus_allocator)
 *   allocate  returns `bytes` of memory on the context's device aligned to `alignment` (a power of two), or NULL
 *   release   gives back what allocate returned, with the same `bytes` and `alignment`
 *   user      is handed to both functions
 *
 * `stream` is the context's stream, or NULL on a CPU. On CUDA only work on that stream uses the memory, and release is
 * called while that work may not be done yet.
 *
 * The thread that calls annulus calls both functions, with the context's device current. Both functions
 *
 *   - must not throw,
 *   - must not use the context, because the context is in a call,
 *   - must stay callable as long as the context uses them.
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
 * Makes a context in *context for device number `index` of a kind, counted from 0 as the CUDA runtime does. The context
 * has no config yet. The caller destroys the context.
 *
 * ANNULUS_ERROR_ARGUMENT: context is NULL, `device` is unknown or there is no device `index`. On a CPU also: the
 * environment variable ANNULUS_NUM_THREADS is set but is not a number from 1 to 1024.
 *
 * ANNULUS_ERROR_UNSUPPORTED: there is no device of the kind at all; the message says why.
 *
 * ANNULUS_ERROR_MEMORY, ANNULUS_ERROR_DEVICE: the device exists but could not be used. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_create(annulus_context **context, annulus_device device,
                                                         int32_t index);

/*
 * Destroys a context. NULL is legal. Workspace, allocator and stream stay the caller's. No other thread may use the
 * context at the same time.
 *
 * On a CUDA device this function waits for no work, neither for the context's own work nor for the work of others. The
 * context's work goes on to its end. Synchronise the stream before you free what the context's calls use. Since 1.0.
 */
ANNULUS_API void annulus_context_destroy(annulus_context *context);

/*
 * Gives the context a copy of `config`. Later changes of `config` do not reach the context. ANNULUS_ERROR_ARGUMENT: a
 * handle is NULL or the config has no branch. ANNULUS_ERROR_UNSUPPORTED: the config's engine does not run on this
 * device. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_config(annulus_context *context, const annulus_config *config);

/*
 * Makes a copy, in *config, of the config that the context was given last. The caller destroys the copy.
 * ANNULUS_ERROR_ARGUMENT: a pointer is NULL or the context has no config. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_copy_config(annulus_config **config, const annulus_context *context);

/*
 * Sets the stream on which device work is ordered. On a CUDA device it is a cudaStream_t (a CUstream) of that device,
 * or NULL for the legacy default stream (default). The stream stays the caller's and must live as long as the context
 * uses it. A CPU context has no stream: NULL is accepted, any other value is ANNULUS_ERROR_UNSUPPORTED. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_stream(annulus_context *context, void *stream);

/*
 * Sets the allocator that serves calls without a workspace. The context copies *allocator. NULL restores the device's
 * own allocator:
 *
 *   CPU   the process's memory
 *   CUDA  a stream-ordered pool that the contexts of the device share, and that keeps its memory for the next call
 *
 * The pool's memory goes back to the system when the last of these contexts is destroyed, if all work of their calls is
 * done by then. Otherwise the memory stays for later contexts. ANNULUS_ERROR_ARGUMENT: size is too small, non-zero
 * bytes follow what this version knows, or a function is NULL. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_allocator(annulus_context *context,
                                                                const annulus_allocator *allocator);

/*
 * Sets `bytes` of device memory that calls use instead of allocating. NULL with 0 bytes goes back to allocating. The
 * memory needs no alignment, stays the caller's and must outlive the calls that use it. After these calls its contents
 * are undefined.
 *
 * A call that needs more bytes fails with ANNULUS_ERROR_WORKSPACE, and annulus_last_error_bytes() says how many bytes
 * it needs. Before the call, annulus_workspace_size() tells how many bytes it needs.
 *
 * A call fails with ANNULUS_ERROR_ARGUMENT if one of its tensors lies in the workspace, or has workspace bytes in the
 * gaps between its rows. annulus_merge() is an exception: it uses no workspace and looks at none.
 *
 * ANNULUS_ERROR_ARGUMENT: `workspace` is not memory of the context's device. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_workspace(annulus_context *context, void *workspace,
                                                                size_t bytes);

/*
 * Sets how many CPU threads a call may use: 1 to 1024, or 0 for the default. Results do not depend on the number of
 * threads, but the workspace does. On a CUDA device calls use no threads, so the number has no effect there.
 *
 * The default is the value that the environment variable ANNULUS_NUM_THREADS had when the context was made. If the
 * variable was not set, the default is the smaller of two numbers:
 *
 *   - the number of CPUs that the calling thread may run on (sched_getaffinity()) when it calls,
 *   - the CPU quota, rounded up to whole CPUs, of the process's cgroups and their parents when the context was made
 *     (cpu.max, or cpu.cfs_quota_us divided by cpu.cfs_period_us).
 *
 * The library does not read variables of OpenMP. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_threads(annulus_context *context, int32_t threads);

/*
 * Writes to *threads how many CPU threads a call that is made now may use. This is the number that was set, or the
 * default for the calling thread. On a CUDA device it is 1. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_get_threads(const annulus_context *context, int32_t *threads);

/*
 * Writes to *engine the engine that served the last successful call of annulus_forward(), annulus_backward() or
 * annulus_attention_mass(). Writes ANNULUS_ENGINE_AUTO before the first such call. ANNULUS_ERROR_ARGUMENT: a pointer is
 * NULL. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_last_engine(const annulus_context *context, annulus_engine *engine);

ANNULUS_END_DECLS

#endif
