// SPDX-License-Identifier: Apache-2.0
// How the ranks of ring_test.cpp are connected and what they compute on; each program links a definition.
#pragma once

#include "support/ranks.hpp"

#include <functional>
#include <vector>

namespace annulus::test {

struct RingWay {
    const char *name;
    RunOptions run;
    std::vector<int> rank_counts;
    // The ends for so many ranks. They may be used again, by one test at a time.
    std::function<const std::vector<Comm> &(int ranks)> comms;
    // Where so many ranks are; empty: all on run.place.
    std::function<std::vector<Place *>(int ranks)> places;
};

// All with the same engine.
std::vector<RingWay> ring_ways();

// For the table of rules and for all other problems.
std::vector<annulus_dtype> ring_rule_dtypes();
std::vector<annulus_dtype> ring_dtypes();

} // namespace annulus::test
