// SPDX-License-Identifier: Apache-2.0
// Problems that several ranks share, timed beside one rank.
#pragma once

#include "cli/commands/bench_case.hpp"
#include "cli/devices/memory.hpp"
#include "cli/devices/sample.hpp"
#include "cli/ranks/ranks.hpp"
#include "cli/report/report.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

// What a pass takes of one rank.
struct RankCost {
    std::int64_t rows;
    std::uint64_t workspace_bytes; // as announced
    bool peak_is_known;
    std::uint64_t peak_bytes; // above the tensors
    std::uint64_t sent_bytes, received_bytes;
};

// Of a call, that of the slowest rank: by itself, and as one of several in a row; and how long these hold the host.
struct CallTimes {
    Sample single, in_a_row, host;
};

struct RanksPass {
    CallTimes times;
    double flops; // of all ranks
    std::vector<RankCost> costs;
    CallTimes alone;    // each rank for itself, all at once; empty where one of them has not the memory
    double alone_flops; // of one
};

struct RanksLine {
    std::string name;
    double tokens; // of all ranks
    annulus_exchange exchange;
    RanksPass forward, backward;
};

// Each rank calls it with its own memory; the lines are complete in rank 0. `weak`: the tokens of a case are those of
// each rank, and of one that computes alone.
std::vector<RanksLine> measure_over_ranks(const std::vector<BenchCase> &cases, const Rank &rank, Memory &memory,
                                          int repeats, bool weak);

Table speed_table(const std::vector<RanksLine> &lines, bool weak);
Table rank_table(const std::vector<RanksLine> &lines);

} // namespace annulus::cli
