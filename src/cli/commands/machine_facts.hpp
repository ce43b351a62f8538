// SPDX-License-Identifier: Apache-2.0
// What a benchmark ran on, and the rates that its yardsticks had meanwhile.
#pragma once

#include "cli/devices/memory.hpp"
#include "cli/report/report.hpp"

#include <vector>

namespace annulus::cli {

Facts machine_facts(int repeats, const Memory &memory, const std::vector<Yardstick> &yardsticks);

} // namespace annulus::cli
