// SPDX-License-Identifier: Apache-2.0
// The transports by NCCL that the CUDA plugin offers. cuda/nccl/nccl_transport.hpp describes the functions.
#pragma once

#include "transport/transport.hpp"

#include <annulus/comm.h>

#include <memory>
#include <vector>

namespace annulus {

struct NcclTransports {
    annulus_nccl_id (*make_id)();
    std::vector<std::unique_ptr<Transport>> (*make_all)(int ranks, const int *devices,
                                                        Transport::Seconds creation_timeout, bool only_nccl);
    std::unique_ptr<Transport> (*make_one)(const annulus_nccl_id &id, int ranks, int rank, int device,
                                           Transport::Seconds creation_timeout, bool only_nccl);
    std::unique_ptr<Transport> (*borrow)(void *nccl_comm, bool may_abort, bool only_nccl);
};

} // namespace annulus
