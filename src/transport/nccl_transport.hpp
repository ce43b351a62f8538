// SPDX-License-Identifier: Apache-2.0
// Ranks on a GPU each, threads or processes, connected by NCCL. The functions are in the CUDA plugin, where it was
// built with NCCL.
//
// Work is given to the GPU without waiting for it; a thread of the transport watches it, and breaks the transport where
// NCCL's kernels have waited for another rank for longer than the timeout. These are stopped then, but for those of a
// borrowed communicator that must not be aborted. NCCL runs what one rank's end was given in that order,
// so all_gather() waits for the batches begun before it; its timeout counts from their end. Work that was captured
// into a graph is not watched, and the graph must be destroyed before the transport: NCCL waits for that.
#pragma once

#include "transport/transport.hpp"

#include <annulus/comm.h>

#include <memory>
#include <vector>

namespace annulus {

annulus_nccl_id make_nccl_id();

// The ends of all ranks, rank i's on CUDA device devices[i], or i where `devices` is null. NCCL has so long to connect
// them.
std::vector<std::unique_ptr<Transport>> make_nccl_transports(int ranks, const int *devices,
                                                             Transport::Seconds creation_timeout);

// One rank's end, once all ranks have come, within `creation_timeout`.
std::unique_ptr<Transport> make_nccl_transport(const annulus_nccl_id &id, int ranks, int rank, int device,
                                               Transport::Seconds creation_timeout);

// An end that uses an ncclComm_t, which stays the caller's; on failure it is aborted where `may_abort`. Where it is a
// blocking one, NCCL's own calls, such as the first between two ranks, wait for the other without limit.
std::unique_ptr<Transport> borrow_nccl_transport(void *nccl_comm, bool may_abort);

// The same as the plugin offers them.
struct NcclTransports {
    decltype(&make_nccl_id) make_id;
    decltype(&make_nccl_transports) make_all;
    decltype(&make_nccl_transport) make_one;
    decltype(&borrow_nccl_transport) borrow;
};

} // namespace annulus
