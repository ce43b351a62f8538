// SPDX-License-Identifier: Apache-2.0
// Times one call over sequences of many lengths beside a batch of equal sequences of their mean length. The difference
// is the cost of packing.
#pragma once

#include "cli/commands/pattern_options.hpp"
#include "cli/commands/problem_options.hpp"
#include "cli/commands/sequence_lengths.hpp"
#include "cli/devices/execution_options.hpp"
#include "cli/devices/memory.hpp"
#include "cli/report/report.hpp"

namespace annulus::cli {

// Measures both in turns and adds the table to the report. `problem` gives all sizes but the tokens and the batch.
void bench_sequences(const SequenceLengths &lengths, const ProblemOptions &problem, const PatternOptions &pattern,
                     const ExecutionOptions &execution, int repeats, Memory &memory, Report &report);

} // namespace annulus::cli
