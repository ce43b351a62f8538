// SPDX-License-Identifier: Apache-2.0
// How the ranks of table_test.cpp are connected, and on which devices they compute. Each program links one definition.
#pragma once

#include "support/ranks.hpp"

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

} // namespace annulus::test
