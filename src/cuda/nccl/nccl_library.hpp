// SPDX-License-Identifier: Apache-2.0
// NCCL's functions, loaded when they are first needed. A program that uses no NCCL communicator needs no NCCL, and a
// program that has already loaded NCCL shares it.
#pragma once

#include <nccl.h>

namespace annulus {

struct NcclLibrary {
    decltype(&ncclGetVersion) get_version;
    decltype(&ncclGetErrorString) get_error_string;
    decltype(&ncclGetLastError) get_last_error;
    decltype(&ncclGetUniqueId) get_unique_id;
    decltype(&ncclCommInitRankConfig) comm_init_rank_config;
    decltype(&ncclCommCount) comm_count;
    decltype(&ncclCommUserRank) comm_user_rank;
    decltype(&ncclCommCuDevice) comm_cu_device;
    decltype(&ncclCommGetAsyncError) comm_get_async_error;
    decltype(&ncclCommFinalize) comm_finalize;
    decltype(&ncclCommDestroy) comm_destroy;
    decltype(&ncclCommAbort) comm_abort;
    decltype(&ncclGroupStart) group_start;
    decltype(&ncclGroupEnd) group_end;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) recv;
    decltype(&ncclAllGather) all_gather;

    NcclLibrary();
};

// Any thread may call it. Throws Error(ANNULUS_ERROR_UNSUPPORTED) if there is no NCCL, or only one that is too old.
const NcclLibrary &nccl();

// Throws Error(ANNULUS_ERROR_COMM_LIBRARY) unless the call `what` succeeded or is still in progress, as calls on a
// non-blocking communicator may be.
void check(ncclResult_t result, const char *what);

} // namespace annulus
