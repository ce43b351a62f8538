// SPDX-License-Identifier: Apache-2.0
// Times problems that several ranks share, and the same on one rank.
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

// What a pass costs one rank.
struct RankCost {
    std::int64_t rows;
    std::uint64_t workspace_bytes; // what the library announces
    bool peak_is_known;
    std::uint64_t peak_bytes; // beyond the tensors; 0 if not known
    std::uint64_t sent_bytes, received_bytes;
};

// Times of a call on the slowest rank: `single` is a call by itself, `in_a_row` the mean of several calls in a row.
// `host` is the mean time until such a call returns.
struct CallTimes {
    Sample single, in_a_row, host;
};

struct RanksPass {
    CallTimes times;
    double flops; // over all ranks
    std::vector<RankCost> costs;
    CallTimes alone;    // every rank computes a problem of its own, all at once; empty if one lacks the memory
    double alone_flops; // of one rank's own problem
};

struct RanksLine {
    std::string name;
    double tokens; // over all ranks
    annulus_exchange exchange;
    RanksPass forward, backward;
};

// Measures the cases. Each rank calls this with its own memory. The lines are complete in rank 0. If `weak`, a case
// gives the tokens of each rank, and a rank that computes alone has that number of tokens.
std::vector<RanksLine> measure_over_ranks(const std::vector<BenchCase> &cases, const Rank &rank, Memory &memory,
                                          int repeats, bool weak);

Table speed_table(const std::vector<RanksLine> &lines, bool weak);
Table rank_table(const std::vector<RanksLine> &lines);

} // namespace annulus::cli
