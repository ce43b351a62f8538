// SPDX-License-Identifier: Apache-2.0
// The hardware and build of a benchmark, and the rates of its yardsticks during the run.
#pragma once

#include "cli/devices/memory.hpp"
#include "cli/report/report.hpp"

#include <vector>

namespace annulus::cli {

Facts machine_facts(int repeats, const Memory &memory, const std::vector<Yardstick> &yardsticks);

} // namespace annulus::cli
