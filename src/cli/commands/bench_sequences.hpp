// SPDX-License-Identifier: Apache-2.0
// Sequences of many lengths in one call, beside as many of their mean length as a batch: what the packing costs.
#pragma once

#include "cli/commands/pattern_options.hpp"
#include "cli/commands/problem_options.hpp"
#include "cli/devices/execution_options.hpp"
#include "cli/devices/memory.hpp"
#include "cli/report/report.hpp"

#include <cstdint>
#include <string>

namespace annulus::cli {

struct SequenceLengths {
    std::int64_t count = 0, least = 0, most = 0;
};

// Of --sequences COUNT:MIN:MAX. Throws where it is none.
SequenceLengths parse_sequence_lengths(const std::string &text);

// Measures both on `problem`, whose tokens and batch are not looked at, in turns, and adds what it found to the report.
void bench_sequences(const SequenceLengths &lengths, const ProblemOptions &problem, const PatternOptions &pattern,
                     const ExecutionOptions &execution, int repeats, Memory &memory, Report &report);

} // namespace annulus::cli
