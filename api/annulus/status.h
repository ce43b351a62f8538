/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statuses and messages.
 *
 * Every function that can fail returns an annulus_status. If the status is not ANNULUS_OK, annulus_last_error() returns
 * one line that names the argument, the value that it had and what it may be. The number of the status says what
 * happened to the outputs:
 *
 *   1 … 99     nothing was written, and every handle is as it was
 *   100 … 199  outputs may be partly written; a function that makes a handle has made none
 *
 * Later versions may return numbers that you do not know. A call that returns such a number has failed, and the ranges
 * above hold for it.
 */
#ifndef ANNULUS_STATUS_H
#define ANNULUS_STATUS_H

#include <annulus/export.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/* How a call ended. */
typedef enum annulus_status ANNULUS_ENUM_INT32 {
    ANNULUS_OK = 0,                /* the call succeeded */
    ANNULUS_ERROR_ARGUMENT = 1,    /* an argument is not what the function's comment allows */
    ANNULUS_ERROR_UNSUPPORTED = 2, /* legal, but the chosen engine, device or build cannot do it */
    ANNULUS_ERROR_MEMORY = 3,      /* an allocation failed */
    ANNULUS_ERROR_WORKSPACE = 4,   /* the caller's workspace, or the config's workspace limit, is too small;
                                      annulus_last_error_bytes() says how much is needed */
    ANNULUS_ERROR_DECLINED = 5,    /* another rank could not do its part; the communicator stays usable */

    ANNULUS_ERROR_DEVICE = 100,       /* a library or the driver of the device failed (CUDA, cuBLAS), or an allocation
                                         failed in the middle of a call */
    ANNULUS_ERROR_COMM = 101,         /* another rank failed or did not come in time, the communicator was aborted, or
                                         this rank failed in the middle of a call, so the other ranks miss its part */
    ANNULUS_ERROR_COMM_LIBRARY = 102, /* the library below a communicator failed (NCCL, MPI) */
    ANNULUS_ERROR_INTERNAL = 103      /* a defect in annulus; report the message */
} annulus_status;

/*
 * Returns the name of a status in lower case, or "unknown". The names are "ok", "argument", "unsupported", "memory",
 * "workspace", "declined", "device", "comm", "comm_library" and "internal". Static. Any thread. Since 1.0.
 */
ANNULUS_API const char *annulus_status_name(annulus_status status);

/*
 * Returns the message of the last failed call of this thread: one line without a newline, at most 511 bytes of UTF-8.
 * Returns "" if no call has failed. Never returns NULL, and never allocates.
 *
 * The buffer belongs to the thread, and the thread's next failed call overwrites it. A call that succeeds leaves the
 * buffer as it is. The only exception is annulus_comm_status(), which writes into the buffer why a communicator broke.
 * Any thread. Since 1.0.
 */
ANNULUS_API const char *annulus_last_error(void);

/*
 * Returns how many bytes of workspace the last failed call of this thread would have needed, if that call returned
 * ANNULUS_ERROR_WORKSPACE. The number is the size to pass to annulus_context_set_workspace(), or the smallest
 * sufficient workspace limit. Returns 0 if the call failed for another reason, or if no call has failed. Any thread.
 * Since 1.0.
 */
ANNULUS_API uint64_t annulus_last_error_bytes(void);

/*
 * Returns the name of the library whose failure made the last failed call of this thread fail: "cuda" (CUDA's runtime
 * or driver), "cublas", "nccl" or "mpi". Later versions may name other libraries. Returns "" if none of these libraries
 * failed, or if no call has failed. The message contains the name of the library's function, and the library's own
 * words. Static. Any thread. Since 1.0.
 */
ANNULUS_API const char *annulus_last_error_library(void);

/*
 * Returns, as a number, what the failed function of the library in annulus_last_error_library() returned: a
 * cudaError_t, a CUresult, a cublasStatus_t, an ncclResult_t or an error code of MPI. Returns 0 if
 * annulus_last_error_library() returns "". Any thread. Since 1.0.
 */
ANNULUS_API int64_t annulus_last_error_code(void);

ANNULUS_END_DECLS

#endif
