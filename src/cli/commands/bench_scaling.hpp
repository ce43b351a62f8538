// SPDX-License-Identifier: Apache-2.0
// The time of a token at growing lengths: it must not grow with their number.
#pragma once

#include "cli/devices/execution_options.hpp"
#include "cli/devices/memory.hpp"
#include "cli/report/report.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace annulus::cli {

struct Scaling {
    std::vector<std::int64_t> lengths;
    std::int32_t heads;
    bool backward; // too
    std::int64_t tokens_in_a_row;
};

// Measures on tensors of the given dtype, and adds what it found to the report.
void bench_scaling(const Scaling &scaling, const std::string &dtype, const ExecutionOptions &execution, int repeats,
                   Memory &memory, Report &report);

} // namespace annulus::cli
