// SPDX-License-Identifier: Apache-2.0
// The program's commands: each adds itself, with its options, to the command line.
#pragma once

#include "cli/report/cli11_forward.hpp"

namespace annulus::cli {

void add_attend_command(CLI::App &program);
void add_map_command(CLI::App &program);
void add_plan_command(CLI::App &program);
void add_bench_command(CLI::App &program);
void add_info_command(CLI::App &program);

} // namespace annulus::cli
