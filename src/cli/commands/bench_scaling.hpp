// SPDX-License-Identifier: Apache-2.0
// Times a token at growing sequence lengths. The time must not grow with the length.
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
    bool times_backward;          // false: only forward is timed
    std::int64_t tokens_in_a_row; // a sample repeats the call until it has computed this number of tokens
};

// Times the lengths on tensors of the given dtype and adds the tables to the report.
void bench_scaling(const Scaling &scaling, const std::string &dtype, const ExecutionOptions &execution, int repeats,
                   Memory &memory, Report &report);

} // namespace annulus::cli
