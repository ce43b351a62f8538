// SPDX-License-Identifier: Apache-2.0
#include "cuda/nccl/nccl_library.hpp"

#include "core/error.hpp"
#include "engine/load_library.hpp"

#include <cstring>

namespace annulus {

namespace {

constexpr const char *library_name = "libnccl.so.2";
constexpr int oldest_version = NCCL_VERSION(2, 14, 0); // the first version with non-blocking communicators

template <class Function> void find(void *library, Function &function, const char *name) {
    function = reinterpret_cast<Function>(find_function(library, library_name, name, "NCCL 2.14 or newer"));
}

} // namespace

NcclLibrary::NcclLibrary() {
    void *const library = load_library(library_name);
    find(library, get_version, "ncclGetVersion");
    int version = 0;
    if (get_version(&version) != ncclSuccess || version < oldest_version)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "%s has version code %d; annulus needs NCCL 2.14 (%d) or newer",
                    library_name, version, oldest_version);
    find(library, get_error_string, "ncclGetErrorString");
    find(library, get_last_error, "ncclGetLastError");
    find(library, get_unique_id, "ncclGetUniqueId");
    find(library, comm_init_rank_config, "ncclCommInitRankConfig");
    find(library, comm_count, "ncclCommCount");
    find(library, comm_user_rank, "ncclCommUserRank");
    find(library, comm_cu_device, "ncclCommCuDevice");
    find(library, comm_get_async_error, "ncclCommGetAsyncError");
    find(library, comm_finalize, "ncclCommFinalize");
    find(library, comm_destroy, "ncclCommDestroy");
    find(library, comm_abort, "ncclCommAbort");
    find(library, group_start, "ncclGroupStart");
    find(library, group_end, "ncclGroupEnd");
    find(library, send, "ncclSend");
    find(library, recv, "ncclRecv");
    find(library, all_gather, "ncclAllGather");
}

const NcclLibrary &nccl() {
    static const NcclLibrary library;
    return library;
}

void check(ncclResult_t result, const char *what) {
    if (result == ncclSuccess || result == ncclInProgress)
        return;
    // NCCL's text about the last error in any thread says more than the code. Its first line is enough.
    const char *const words = nccl().get_last_error(nullptr);
    const int length = words ? static_cast<int>(std::strcspn(words, "\n")) : 0;
    throw Error(ANNULUS_ERROR_COMM_LIBRARY, "%s failed: %s%s%.*s", what, nccl().get_error_string(result),
                length > 0 ? ": " : "", length, length > 0 ? words : "")
        .from("nccl", result);
}

} // namespace annulus
