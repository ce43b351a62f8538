// SPDX-License-Identifier: Apache-2.0
// How the ranks of table_test.cpp are connected and what they compute on; each program links a definition.
#pragma once

#include "support/ranks.hpp"

#include <functional>
#include <vector>

namespace annulus::test {

struct RanksWay {
    const char *name;
    RunOptions run;
    std::vector<int> rank_counts;
    // The ends for so many ranks. They may be used again, by one test at a time.
    std::function<const std::vector<Comm> &(int ranks)> comms;
    // Where the tensors of so many ranks lie; empty: all in run.memory.
    std::function<std::vector<Memory *>(int ranks)> memories;
};

// All with the same engine.
std::vector<RanksWay> ranks_ways();

// For the table of rules and for all other problems.
std::vector<annulus_dtype> ranks_rule_dtypes();
std::vector<annulus_dtype> ranks_dtypes();

} // namespace annulus::test
