// SPDX-License-Identifier: Apache-2.0
// The memory of the host.
#pragma once

#include "cli/devices/memory.hpp"

namespace annulus::cli {

std::unique_ptr<Memory> make_host_memory(int threads);

} // namespace annulus::cli
