// SPDX-License-Identifier: Apache-2.0
// How long the host is held by a call whose work a GPU does.
#pragma once

#include "cli/devices/execution_options.hpp"
#include "cli/devices/memory.hpp"
#include "cli/report/report.hpp"

#include <string>

namespace annulus::cli {

// Of repeated calls of LongNet's six branches, each made when the GPU is done with the one before.
Table host_time_table(const std::string &dtype, const ExecutionOptions &execution, Memory &memory);

} // namespace annulus::cli
