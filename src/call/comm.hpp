// SPDX-License-Identifier: Apache-2.0
// What stands behind the communicator handle.
#pragma once

#include "transport/transport.hpp"

#include <annulus/comm.h>

#include <unistd.h>

#include <cstdint>
#include <memory>

namespace annulus {

// Of a local communicator, and of what is estimated: more than anybody has.
inline constexpr std::int32_t max_ranks = 4096;

} // namespace annulus

struct annulus_comm {
    std::unique_ptr<annulus::Transport> transport;
    pid_t process = getpid(); // the one that made it, and the only one that can use it
};

namespace annulus {

// Throws in a process that was forked from the one that made the communicator.
void check_process(const char *name, const annulus_comm &comm);

} // namespace annulus
