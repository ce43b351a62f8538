// SPDX-License-Identifier: Apache-2.0
// How the ranks of table_test.cpp are connected, and on which devices they compute. Each program links one definition.
#pragma once

#include "support/random_problem.hpp"
#include "support/ranks.hpp"
#include "support/sequences.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace annulus::test {

struct RanksWay {
    const char *name;
    RunOptions run;
    std::vector<int> rank_counts;
    // Returns communicators for this number of ranks. One test at a time may use them.
    std::function<const std::vector<Comm> &(int ranks)> comms;
    // Returns the memory of each rank's tensors; empty if all ranks use run.memory.
    std::function<std::vector<Memory *>(int ranks)> memories;
};

// Returns the ways to connect the ranks. All use the same engine.
std::vector<RanksWay> ranks_ways();

// Return the dtypes for the table of rules, and for all other problems.
std::vector<annulus_dtype> ranks_rule_dtypes();
std::vector<annulus_dtype> ranks_dtypes();

// Returns a random problem that the ranks share: all its queries, in a dtype of ranks_dtypes().
inline Problem random_shared_problem(std::uint64_t seed) {
    Problem problem = seed % 5 < 2 ? random_sliding_problem(seed) : random_problem(seed);
    problem.window.reset();
    if (seed % 3 == 0)
        problem = in_random_sequences(problem, seed);
    const std::vector<annulus_dtype> dtypes = ranks_dtypes();
    if (std::ranges::find(dtypes, problem.dtype) == dtypes.end())
        problem.dtype = dtypes[seed % dtypes.size()];
    return problem;
}

} // namespace annulus::test
