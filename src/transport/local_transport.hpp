// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process: a receiver copies straight from its sender's memory, on the CPU or from GPU to
// GPU.
//
// A batch is finished when what it sends was received and what it receives has arrived, so all ranks must finish
// batches that belong together in one order. On CUDA finish() waits for the other ranks' threads, not for the copies.
// Where a call fails, no memory of the rank is read or written on a CPU after it; on CUDA a copy that another rank
// began before may still run, unless that rank has left already the stream of the failed call waits for it.
#pragma once

#include "transport/transport.hpp"

#include <memory>
#include <vector>

namespace annulus {

// The ends of all ranks, in their order.
std::vector<std::unique_ptr<Transport>> make_local_transports(int ranks);

} // namespace annulus
