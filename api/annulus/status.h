/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statuses and messages.
 *
 * Every function that can fail returns an annulus_status. When it is not ANNULUS_OK, annulus_last_error() holds one
 * line that names the argument, the value it had and what it may be. A failed call has written nothing to its outputs
 * and left every handle as it was, unless the function's own comment says otherwise.
 */
#ifndef ANNULUS_STATUS_H
#define ANNULUS_STATUS_H

#include <annulus/export.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/* Later versions append values: treat a value you do not know as an error. */
typedef enum annulus_status ANNULUS_ENUM_INT32 {
    ANNULUS_OK = 0,                /* the call did what it is for */
    ANNULUS_ERROR_ARGUMENT = 1,    /* an argument is not what the function's comment allows */
    ANNULUS_ERROR_UNSUPPORTED = 2, /* legal, but the chosen engine, device or build cannot do it */
    ANNULUS_ERROR_MEMORY = 3,      /* an allocation failed */
    ANNULUS_ERROR_INTERNAL = 4,    /* a defect in annulus; please report the message */
    ANNULUS_ERROR_CUDA = 5,        /* a CUDA call failed; the message has its name and CUDA's words */
    ANNULUS_ERROR_CUBLAS = 6,      /* a cuBLAS call failed; the message has its name and cuBLAS's words */
    ANNULUS_ERROR_COMM = 7,        /* another rank failed, did not come in time, or the communicator was aborted */
    ANNULUS_ERROR_NCCL = 8,        /* an NCCL call failed; the message has its name and NCCL's words */
    ANNULUS_ERROR_MPI = 9,         /* an MPI call failed; the message has its name and MPI's words */
    ANNULUS_ERROR_WORKSPACE = 10,  /* the caller's workspace, or the config's workspace limit, is too small;
                                      annulus_last_error_bytes() says how much is needed */
    ANNULUS_ERROR_DECLINED = 11    /* another rank could not do its part; nothing was written, and the communicator
                                      stays usable */
} annulus_status;

/*
 * The name of a status in lower case ("ok", "argument", "unsupported", "memory", "internal", "cuda", "cublas", "comm",
 * "nccl", "mpi", "workspace", "declined"), or "unknown". The string is static. Any thread. Since 0.1.0.
 */
ANNULUS_API const char *annulus_status_name(annulus_status status);

/*
 * The message of the last failed call of this thread: one line, no newline, at most 511 bytes of UTF-8, "" when no
 * call has failed. The buffer belongs to the thread and is overwritten by its next failed call; a call that succeeds
 * leaves it as it is, but for annulus_comm_status(), which puts there why a communicator broke. Never NULL, never
 * allocates. Any thread. Since 0.1.0.
 */
ANNULUS_API const char *annulus_last_error(void);

/*
 * The bytes of workspace that the last failed call of this thread would have needed, where it returned
 * ANNULUS_ERROR_WORKSPACE: what to hand to annulus_context_set_workspace(), or the least workspace limit. 0 where it
 * failed for another reason, and when no call has failed. Any thread. Since 0.1.0.
 */
ANNULUS_API uint64_t annulus_last_error_bytes(void);

ANNULUS_END_DECLS

#endif
