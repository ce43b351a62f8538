/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statuses and messages.
 *
 * Every function that can fail returns an annulus_status. When it is not ANNULUS_OK, annulus_last_error() holds one
 * line that names the argument, the value it had and what it may be. The number says what has become of the outputs:
 *
 *   1 … 99     nothing was written, and every handle is as it was
 *   100 … 199  outputs may be partly written; a function that makes a handle has made none
 *
 * Later versions may return numbers that you do not know: such a call failed, and the ranges hold for it.
 */
#ifndef ANNULUS_STATUS_H
#define ANNULUS_STATUS_H

#include <annulus/export.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/* How a call ended. */
typedef enum annulus_status ANNULUS_ENUM_INT32 {
    ANNULUS_OK = 0,                /* the call did what it is for */
    ANNULUS_ERROR_ARGUMENT = 1,    /* an argument is not what the function's comment allows */
    ANNULUS_ERROR_UNSUPPORTED = 2, /* legal, but the chosen engine, device or build cannot do it */
    ANNULUS_ERROR_MEMORY = 3,      /* an allocation failed */
    ANNULUS_ERROR_WORKSPACE = 4,   /* the caller's workspace, or the config's workspace limit, is too small;
                                      annulus_last_error_bytes() says how much is needed */
    ANNULUS_ERROR_DECLINED = 5,    /* another rank could not do its part; the communicator stays usable */

    ANNULUS_ERROR_DEVICE = 100,       /* a library or the driver of the device failed (CUDA, cuBLAS), or an allocation
                                         in the middle of a call */
    ANNULUS_ERROR_COMM = 101,         /* another rank failed or did not come in time, the communicator was aborted, or
                                         this rank failed in the middle of a call and left the others without its part */
    ANNULUS_ERROR_COMM_LIBRARY = 102, /* the library below a communicator failed (NCCL, MPI) */
    ANNULUS_ERROR_INTERNAL = 103      /* a defect in annulus; please report the message */
} annulus_status;

/*
 * The name of a status in lower case ("ok", "argument", "unsupported", "memory", "workspace", "declined", "device",
 * "comm", "comm_library", "internal"), or "unknown". The string is static. Any thread. Since 1.0.
 */
ANNULUS_API const char *annulus_status_name(annulus_status status);

/*
 * The message of the last failed call of this thread: one line, no newline, at most 511 bytes of UTF-8, "" when no
 * call has failed. The buffer belongs to the thread and is overwritten by its next failed call; a call that succeeds
 * leaves it as it is, but for annulus_comm_status(), which puts there why a communicator broke. Never NULL, never
 * allocates. Any thread. Since 1.0.
 */
ANNULUS_API const char *annulus_last_error(void);

/*
 * The bytes of workspace that the last failed call of this thread would have needed, where it returned
 * ANNULUS_ERROR_WORKSPACE: what to hand to annulus_context_set_workspace(), or the least workspace limit. 0 where it
 * failed for another reason, and when no call has failed. Any thread. Since 1.0.
 */
ANNULUS_API uint64_t annulus_last_error_bytes(void);

/*
 * The library whose failure was that of the last failed call of this thread: "cuda" (its runtime or its driver),
 * "cublas", "nccl" or "mpi". "" where none of them failed, and when no call has failed. Later versions may name others.
 * The message has the name of the library's function, and the library's own words. Static. Any thread. Since 1.0.
 */
ANNULUS_API const char *annulus_last_error_library(void);

/*
 * What that library's function returned, as a number (a cudaError_t, a CUresult, a cublasStatus_t, an ncclResult_t, an
 * error code of MPI). 0 where annulus_last_error_library() is "". Any thread. Since 1.0.
 */
ANNULUS_API int64_t annulus_last_error_code(void);

ANNULUS_END_DECLS

#endif
