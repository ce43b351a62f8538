// SPDX-License-Identifier: Apache-2.0
// NCCL communicators between threads of this process, with a GPU each.
#pragma once

#include "support/ranks.hpp"

#include <annulus/comm.h>

#include <cstdint>
#include <vector>

namespace annulus::test {

// Returns the ends on the devices 0 … ranks - 1. `flags` are of annulus_comm_flag.
inline std::vector<Comm> make_nccl_comms(int ranks, std::uint64_t flags) {
    annulus_comm_options options = ANNULUS_COMM_OPTIONS_INIT;
    options.flags = flags;
    std::vector<annulus_comm *> handles(static_cast<std::size_t>(ranks));
    check(annulus_comm_create_nccl_devices(handles.data(), ranks, nullptr, &options));
    return {handles.begin(), handles.end()};
}

} // namespace annulus::test
