// SPDX-License-Identifier: Apache-2.0
// Packed documents of which several ranks share many: the results, bit by bit those of each document alone.
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/ranks.hpp"
#include "support/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

// Lengths of `count` documents: many short ones, some without rows, and one that reaches over several ranks.
std::vector<std::int64_t> lengths_of(std::int64_t count) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = 0; i < count; ++i)
        lengths.push_back(i == count / 2 ? 151 : i % 5 == 3 ? 0 : 1 + i * 37 % 41);
    return lengths;
}

Ranges even(std::int64_t length, int ranks) {
    Ranges ranges{even_lengths(length, ranks), std::vector<std::int32_t>(static_cast<std::size_t>(ranks))};
    std::iota(ranges.ranks.begin(), ranges.ranks.end(), 0);
    return ranges;
}

Ranges zigzag(std::int64_t length, int ranks) {
    Ranges ranges{even_lengths(length, 2 * ranks), {}};
    for (std::int32_t i = 0; i < 2 * ranks; ++i)
        ranges.ranks.push_back(std::min(i, 2 * ranks - 1 - i));
    return ranges;
}

// Returns the ranges inside `rows`.
Ranges cut(const Ranges &whole, const SequenceRows &rows) {
    Ranges ranges = whole;
    std::int64_t start = 0;
    for (std::int64_t &length : ranges.lengths) {
        const std::int64_t end = start + length;
        length = std::max<std::int64_t>(0, std::min(end, rows.start + rows.length) -
                                               std::max(std::exchange(start, end), rows.start));
    }
    return ranges;
}

RankOptions options_of(annulus_exchange exchange) {
    RankOptions options;
    options.run = {.engine = ANNULUS_ENGINE_CPU, .threads = 1};
    options.run.exchange = exchange;
    return options;
}

struct Pattern {
    std::string name;
    std::vector<BranchSpec> branches;
};

class Documents : public testing::TestWithParam<Pattern> {
  protected:
    Problem problem(std::int64_t documents, bool causal) const {
        return in_documents({.heads = 2,
                             .kv_heads = 1,
                             .dim = 8,
                             .branches = GetParam().branches,
                             .causal = causal,
                             .dtype = ANNULUS_FLOAT32},
                            lengths_of(documents));
    }
};

TEST_P(Documents, AgreeWithOneRank) {
    int runs = 0;
    for (const std::int64_t documents : {3, 14, 58})
        for (const bool causal : {false, true}) {
            const Problem whole = problem(documents, causal);
            const Inputs inputs = random_inputs(whole, 1);
            const EachAlone expected(whole, inputs);
            for (const int ranks : {1, 2, 3, 4, 5}) {
                const std::vector<Comm> comms = make_local_comms(ranks);
                for (const Ranges &ranges :
                     {even(whole.length, ranks), zigzag(whole.length, ranks), balanced_ranges(whole, ranks)})
                    for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
                        if (quick() && runs++ % 7 != 0) // 7 divides no number of cases, so each comes up
                            continue;
                        SCOPED_TRACE(testing::Message()
                                     << documents << " documents, causal " << causal << ", lengths "
                                     << testing::PrintToString(ranges.lengths) << " of ranks "
                                     << testing::PrintToString(ranges.ranks) << ", exchange " << exchange);
                        expected.expect(run_ranges(whole, inputs, options_of(exchange), ranges, comms));
                    }
            }
        }
}

// Bits do not depend on what else is in a call.
TEST_P(Documents, HaveTheBitsOfEachDocumentAlone) {
    const Problem whole = problem(14, true);
    const Inputs inputs = random_inputs(whole, 2);
    constexpr int ranks = 4;
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER})
        for (const Ranges &ranges : {even(whole.length, ranks), zigzag(whole.length, ranks)}) {
            const Results together = run_ranges(whole, inputs, options_of(exchange), ranges, comms);
            for (const SequenceRows &rows : sequences_of(whole)) {
                SCOPED_TRACE(testing::Message()
                             << "exchange " << exchange << ", document of the rows from " << rows.start << " on");
                expect_identical(rows.cut(whole, together), run_ranges(rows.cut(whole), rows.cut(whole, inputs),
                                                                       options_of(exchange), cut(ranges, rows), comms));
            }
        }
}

std::string name_of(const testing::TestParamInfo<Pattern> &info) {
    return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Patterns, Documents,
                         testing::Values(Pattern{"dense", {{}}},
                                         Pattern{"longnet",
                                                 {{.segment = 16}, {.segment = 64, .dilation = 4}, {.dilation = 16}}},
                                         Pattern{"windows", {window_spec(9, 4), window_spec(-1, 7, 3)}},
                                         Pattern{"longformer", {window_spec(9, 9), global_spec(1, 2, true)}}),
                         name_of);

} // namespace
} // namespace annulus::test
