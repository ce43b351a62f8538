// SPDX-License-Identifier: Apache-2.0
// The time that the host spends in a call whose work a GPU does.
#pragma once

#include "cli/devices/execution_options.hpp"
#include "cli/devices/memory.hpp"
#include "cli/report/report.hpp"

#include <string>

namespace annulus::cli {

// Times repeated calls on LongNet's six branches. Each call starts when the GPU has finished the call before.
Table host_time_table(const std::string &dtype, const ExecutionOptions &execution, Memory &memory);

} // namespace annulus::cli
