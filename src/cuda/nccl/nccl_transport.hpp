// SPDX-License-Identifier: Apache-2.0
// Ranks with one GPU each, threads or processes, connected by NCCL. The CUDA plugin has these functions if it was built
// with NCCL.
//
// Calls give work to the GPU without waiting for it. A thread of the transport watches the work. It breaks the
// transport if NCCL's kernels have waited for another rank for longer than the timeout. Then the kernels are stopped,
// except those of a borrowed communicator that must not be aborted. NCCL runs the work of one end in order. Therefore
// all_gather() waits for the batches that were begun before it, and its timeout counts from their end. Work that was
// captured into a graph is not watched. The graph must be destroyed before the transport, because NCCL waits for that.
//
// If one rank has `only_nccl`, all ranks send, gather and agree by NCCL alone. Otherwise the first all_gather() finds
// out whether they are on one host (nccl_rank.hpp).
#pragma once

#include "transport/transport.hpp"

#include <annulus/comm.h>

#include <memory>
#include <vector>

namespace annulus {

annulus_nccl_id make_nccl_id();

// Returns the ends of all ranks. Rank i is on CUDA device devices[i], or i if `devices` is null. Throws if NCCL has not
// connected them within `creation_timeout`.
std::vector<std::unique_ptr<Transport>>
make_nccl_transports(int ranks, const int *devices, Transport::Seconds creation_timeout, bool only_nccl = false);

// Returns one rank's end once all ranks have called, within `creation_timeout`.
std::unique_ptr<Transport> make_nccl_transport(const annulus_nccl_id &id, int ranks, int rank, int device,
                                               Transport::Seconds creation_timeout, bool only_nccl = false);

// Returns an end that uses an ncclComm_t, which stays the caller's. On failure it is aborted if `may_abort`. If it is a
// blocking one, NCCL's own calls wait for other ranks without limit, for instance the first call between two ranks.
std::unique_ptr<Transport> borrow_nccl_transport(void *nccl_comm, bool may_abort, bool only_nccl = false);

} // namespace annulus
