// SPDX-License-Identifier: Apache-2.0
// Problems of several branches, all of which store dS in kernels for compute capability 9.0. Few of their pairs are in
// several branches. Visiting these pairs once for each branch takes less time than computing dS twice.
#pragma once

#include "support/problem.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace annulus::test {

inline std::vector<std::pair<std::string, Problem>> problems_of_storing_branches() {
    const Problem two = {.length = 15013,
                         .heads = 6,
                         .dim = 72,
                         .branches = {{.segment = 300}, {.dilation = 16}},
                         .dtype = ANNULUS_BFLOAT16};
    Problem causal = two, batch = two, half = two, head_range = two, three = two;
    causal.dim = 96;
    causal.branches[1].dilation = 32;
    causal.causal = true;
    batch.batch = 2;
    batch.length = 9001;
    batch.heads = 4;
    half.dim = 128;
    half.dtype = ANNULUS_FLOAT16;
    head_range.branches[1].first_head = 1;
    head_range.branches[1].head_count = 4;
    three.length = 65537;
    three.heads = 4;
    three.branches = {{.segment = 300}, {.segment = 16391, .dilation = 32}, {.dilation = 128}};
    return {{"two", two},   {"causal", causal},         {"batch", batch},
            {"half", half}, {"head_range", head_range}, {"three", three}};
}

// The same with a workspace limit in bytes, by which parts have `heads_of_part` heads on 132 multiprocessors, and the
// more dilated branch may have slices of its keys (StoredDs).
struct LimitedStoring {
    Problem problem;
    std::uint64_t limit;
    int heads_of_part;
    bool has_slices;
};

inline std::vector<LimitedStoring> problems_of_limited_storing() {
    Problem heads = {.length = 31155,
                     .heads = 23,
                     .dim = 72,
                     .branches = {{.segment = 129}, {.dilation = 31}},
                     .dtype = ANNULUS_BFLOAT16};
    Problem slices = heads;
    slices.length = 57082;
    slices.heads = 6;
    slices.branches = {{.segment = 203}, {.dilation = 13}};
    return {{heads, 45102912, 12, false}, {slices, 251730675, 6, true}};
}

} // namespace annulus::test
