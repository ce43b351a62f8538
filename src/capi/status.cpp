// SPDX-License-Identifier: Apache-2.0
// annulus/status.h.
#include <annulus/status.h>

#include "capi/guard.hpp"
#include "core/dtype_number.hpp"

const char *annulus_status_name(annulus_status status) {
    switch (annulus::enum_value(status)) {
    case ANNULUS_OK:
        return "ok";
    case ANNULUS_ERROR_ARGUMENT:
        return "argument";
    case ANNULUS_ERROR_UNSUPPORTED:
        return "unsupported";
    case ANNULUS_ERROR_MEMORY:
        return "memory";
    case ANNULUS_ERROR_INTERNAL:
        return "internal";
    case ANNULUS_ERROR_CUDA:
        return "cuda";
    case ANNULUS_ERROR_CUBLAS:
        return "cublas";
    case ANNULUS_ERROR_COMM:
        return "comm";
    case ANNULUS_ERROR_NCCL:
        return "nccl";
    case ANNULUS_ERROR_MPI:
        return "mpi";
    case ANNULUS_ERROR_WORKSPACE:
        return "workspace";
    case ANNULUS_ERROR_DECLINED:
        return "declined";
    default:
        return "unknown";
    }
}

const char *annulus_last_error(void) {
    return annulus::last_message();
}

uint64_t annulus_last_error_bytes(void) {
    return annulus::last_bytes();
}
