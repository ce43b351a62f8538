// SPDX-License-Identifier: Apache-2.0
// What `annulus bench` times where it is told nothing, and what it calls a case.
#pragma once

#include "cli/commands/bench_case.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace annulus::cli {

ProblemOptions problem_of(std::int64_t tokens, std::int32_t heads, std::int32_t head_dim, const std::string &dtype);
PatternOptions branches_of(std::vector<std::string> branches, bool causal);
PatternOptions preset_of(std::string preset, bool causal = false);

// ", H=8 D=64" and what else is not as usual.
std::string sizes_text(const ProblemOptions &p);

std::vector<BenchCase> cpu_cases(const std::string &dtype);
std::vector<BenchCase> cuda_cases(const std::string &dtype);
// What the user asks for.
BenchCase custom_case(const ProblemOptions &problem, const PatternOptions &pattern);

} // namespace annulus::cli
