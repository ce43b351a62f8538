// SPDX-License-Identifier: Apache-2.0
// What stands behind the communicator handle.
#pragma once

#include "ring/transport.hpp"

#include <annulus/comm.h>

#include <memory>

struct annulus_comm {
    std::unique_ptr<annulus::Transport> transport;
};
