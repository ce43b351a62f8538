// SPDX-License-Identifier: Apache-2.0
// The cases that `annulus bench` times by default, and their names.
#pragma once

#include "cli/commands/bench_case.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace annulus::cli {

ProblemOptions problem_of(std::int64_t tokens, std::int32_t heads, std::int32_t head_dim, const std::string &dtype);
// Returns a pattern of the branches, each written as for --branch.
PatternOptions branches_of(std::vector<std::string> branches, bool causal);
// Returns the pattern of a preset, written as for --preset.
PatternOptions preset_of(std::string preset, bool causal = false);

// Returns ", H=8 D=64", followed by G, B and the dtype where they differ from H, 1 and float32.
std::string sizes_text(const ProblemOptions &p);

std::vector<BenchCase> cpu_cases(const std::string &dtype);
std::vector<BenchCase> cuda_cases(const std::string &dtype);
// Returns the case that the user described by options; its name lists the branches.
BenchCase custom_case(const ProblemOptions &problem, const PatternOptions &pattern);

} // namespace annulus::cli
