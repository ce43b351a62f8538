// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process. A receiver copies directly from its sender's memory, on the CPU or from GPU to
// GPU.
//
// A batch is finished when its sends were received and its receives have arrived. Therefore all ranks must finish
// matching batches in the same order. On CUDA finish() waits for the other ranks' threads, not for the copies.
// After a call has failed on a CPU, no memory of the rank is read or written. On CUDA a copy that another rank began
// before may still run. The stream of the failed call waits for that copy, unless the other rank has already left.
#pragma once

#include "transport/transport.hpp"

#include <memory>
#include <vector>

namespace annulus {

// Returns the ends of all ranks, in rank order.
std::vector<std::unique_ptr<Transport>> make_local_transports(int ranks);

} // namespace annulus
