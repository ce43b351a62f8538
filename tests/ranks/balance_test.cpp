// SPDX-License-Identifier: Apache-2.0
// Balanced shards: the pairs of each rank, counted query by query, and that several ranks compute with them what one
// rank does.
#include "engines/table.hpp"

#include "support/mask.hpp"
#include "support/ranks.hpp"
#include "support/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

// The problem of documents of these lengths, one behind the other.
Problem documents(const std::vector<std::int64_t> &lengths, bool causal) {
    return in_documents({.heads = 2, .dim = 8, .branches = {{}}, .causal = causal, .dtype = ANNULUS_FLOAT32}, lengths);
}

// Lengths with a median, as documents have them: many short ones and few long ones. The last one is cut.
std::vector<std::int64_t> lognormal_lengths(std::int64_t total, double median, std::uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::vector<std::int64_t> lengths;
    for (std::int64_t left = total; left > 0; left -= lengths.back()) {
        // A sum of uniform numbers, since std::lognormal_distribution differs between standard libraries.
        double normal = -6;
        for (int i = 0; i < 12; ++i)
            normal += static_cast<double>(generator() >> 11) * 0x1p-53;
        lengths.push_back(std::clamp<std::int64_t>(static_cast<std::int64_t>(median * std::exp(normal)), 16, left));
        if (left - lengths.back() < 16)
            lengths.back() = left;
    }
    return lengths;
}

// Returns the sum of value(position) over each rank's positions.
std::vector<double> sums_of_ranks(const Ranges &ranges, int ranks, const std::function<double(std::int64_t)> &value) {
    std::vector<double> sums(static_cast<std::size_t>(ranks));
    std::int64_t position = 0;
    for (std::size_t i = 0; i < ranges.lengths.size(); ++i)
        for (std::int64_t end = position + ranges.lengths[i]; position < end; ++position)
            sums[ranges.ranks[i]] += value(position);
    return sums;
}

// Returns the largest share of the pairs that a rank has, in multiples of an equal share.
double busiest(const Ranges &ranges, int ranks, const std::vector<double> &pairs) {
    const std::vector<double> sums =
        sums_of_ranks(ranges, ranks, [&](std::int64_t position) { return pairs[static_cast<std::size_t>(position)]; });
    return std::ranges::max(sums) * ranks / std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Returns the pairs of each query over all heads, by the definition.
std::vector<double> pairs_by_mask(const Problem &problem) {
    std::vector<double> pairs(static_cast<std::size_t>(problem.length));
    for (const SequenceRows &sequence : sequences_of(problem)) {
        const Problem own = sequence.cut(problem);
        const Mask mask(own);
        for (std::int64_t n = 0; n < own.length; ++n)
            for (std::int32_t head = 0; head < own.heads; ++head)
                pairs[static_cast<std::size_t>(sequence.start + n)] +=
                    static_cast<double>(own.batch) * static_cast<double>(mask.keys(n, head).positions.size());
    }
    return pairs;
}

// Returns the pairs of each query under a causal mask over documents of these lengths.
std::vector<double> causal_pairs(const std::vector<std::int64_t> &lengths) {
    std::vector<double> pairs;
    for (const std::int64_t length : lengths)
        for (std::int64_t i = 0; i < length; ++i)
            pairs.push_back(static_cast<double>(i + 1));
    return pairs;
}

Ranges even(std::int64_t length, int ranks) {
    Ranges ranges{even_lengths(length, ranks), std::vector<std::int32_t>(static_cast<std::size_t>(ranks))};
    std::iota(ranges.ranks.begin(), ranges.ranks.end(), 0);
    return ranges;
}

// Returns the balanced shards, and checks that they cover the rows and that ranks have equally many rows, up to 1.
Ranges checked_ranges(const Problem &problem, int ranks) {
    Ranges ranges = balanced_ranges(problem, ranks);
    const std::vector<std::int64_t> rows = ranges.rows(ranks);
    EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), problem.length);
    EXPECT_LE(std::ranges::max(rows) - std::ranges::min(rows), 1);
    return ranges;
}

// 131,072 tokens in documents of three kinds of lengths under a causal mask.
TEST(BalancedShards, GiveRanksAsManyPairsOfDocuments) {
    constexpr std::int64_t tokens = 131072;
    for (const std::vector<std::int64_t> &lengths : {std::vector<std::int64_t>{tokens},
                                                     {60001, 40000, 31071},
                                                     lognormal_lengths(tokens, 8000, 1),
                                                     lognormal_lengths(tokens, 2000, 2),
                                                     lognormal_lengths(tokens, 200, 3)})
        for (const int ranks : {2, 3, 8}) {
            SCOPED_TRACE(testing::Message() << lengths.size() << " documents on " << ranks << " ranks");
            const Ranges ranges = checked_ranges(documents(lengths, true), ranks);
            const std::vector<double> pairs = causal_pairs(lengths);
            EXPECT_LT(busiest(ranges, ranks, pairs), 1.1);
            if (lengths.size() < 100) { // else even shards may be nearly as good
                EXPECT_GT(busiest(even(tokens, ranks), ranks, pairs), 1.1);
            }
        }
}

// Patterns whose pairs are counted query by query. No rank has more of them than with even shards.
TEST(BalancedShards, AreNoWorseThanEvenOnes) {
    std::vector<Problem> problems;
    for (const bool causal : {false, true}) {
        problems.push_back(documents({611}, causal));
        problems.push_back(documents({301, 5, 77, 1, 120, 96, 43}, causal));
        problems.push_back(problems.back());
        problems.back().branches = {{.segment = 32}, {.segment = 128, .dilation = 4}, {.dilation = 16}};
        problems.push_back(problems.back());
        problems.back().branches = {{.dilation = 2, .first_head = 0, .head_count = 1},
                                    {.segment = 100, .first_head = 1, .head_count = 1}};
        problems.push_back(problems.back());
        problems.back().batch = 3;
        problems.back().sequences = Sequences{{}, {643, 0, 210}}; // of three batch entries
        problems.push_back(problems.back());
        problems.back().sequences = Sequences{{40, 300, 500}, {200, 0, 90}}; // with rows of no sequence
        problems.push_back(documents({301, 5, 77, 1, 120, 96, 43}, causal));
        problems.back().branches = {window_spec(20, 20), global_spec(2, 4, true)};
    }
    for (const Problem &problem : problems)
        for (const int ranks : {1, 2, 3, 7}) {
            SCOPED_TRACE(testing::Message() << problem << " on " << ranks << " ranks");
            const std::vector<double> pairs = pairs_by_mask(problem);
            EXPECT_LE(busiest(checked_ranges(problem, ranks), ranks, pairs),
                      busiest(even(problem.length, ranks), ranks, pairs) + 1e-9);
        }
}

// Even shards would cut the second document.
TEST(BalancedShards, KeepDocumentsWholeIfThatIsAsGood) {
    const std::vector<std::int64_t> lengths = {300, 300, 100, 100, 200, 200};
    for (const bool causal : {false, true}) {
        const Ranges ranges = checked_ranges(documents(lengths, causal), 3);
        std::vector<std::set<std::int32_t>> owners(lengths.size());
        std::vector<std::int64_t> ends(lengths.size());
        std::partial_sum(lengths.begin(), lengths.end(), ends.begin());
        std::int64_t position = 0;
        for (std::size_t i = 0; i < ranges.lengths.size(); ++i)
            for (std::int64_t end = position + ranges.lengths[i]; position < end; ++position)
                owners[std::ranges::upper_bound(ends, position) - ends.begin()].insert(ranges.ranks[i]);
        for (const std::set<std::int32_t> &ranks : owners)
            EXPECT_EQ(ranks.size(), 1);
    }
}

// Returns the most that a rank has to do for documents under a causal mask, in multiples of an equal share of the
// pairs. `message` is the share that a message counts as: each part of a document gets one from each part before it.
double busiest_with_messages(const Ranges &ranges, int ranks, const std::vector<std::int64_t> &lengths,
                             double message) {
    std::vector<double> pairs(static_cast<std::size_t>(ranks)), messages(pairs.size());
    std::size_t range = 0;
    std::int64_t left = ranges.lengths[0]; // rows of the range
    for (const std::int64_t length : lengths) {
        std::int32_t last_rank = -1;
        double parts = -1;
        for (std::int64_t position = 0; position < length;) {
            while (left == 0)
                left = ranges.lengths[++range];
            const std::int32_t rank = ranges.ranks[range];
            const std::int64_t count = std::min(left, length - position);
            if (rank != std::exchange(last_rank, rank))
                messages[rank] += ++parts;
            pairs[rank] += static_cast<double>(count) * static_cast<double>(2 * position + count + 1) / 2;
            position += count;
            left -= count;
        }
    }
    const double share = std::accumulate(pairs.begin(), pairs.end(), 0.0) / ranks;
    double most = 0;
    for (std::size_t rank = 0; rank < pairs.size(); ++rank)
        most = std::max(most, pairs[rank] / share + message * messages[rank]);
    return most;
}

// 16 documents for each rank. Equal pairs can be had by cutting a few documents into a part for each rank, but then
// some parts get hundreds of messages.
TEST(BalancedShards, OfManyRanksHaveFewMessages) {
    for (const int ranks : {64, 512}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks");
        std::vector<std::int64_t> lengths;
        for (std::int64_t i = 0; i < 16 * ranks; ++i)
            lengths.push_back(128 + i * 16128 / (16 * ranks - 1));
        const Ranges ranges = checked_ranges(documents(lengths, true), ranks);
        EXPECT_LE(busiest_with_messages(ranges, ranks, lengths, 0.01), 1.25);
        const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        EXPECT_LE(busiest_with_messages(ranges, ranks, lengths, 0.01),
                  busiest_with_messages(even(tokens, ranks), ranks, lengths, 0.01));
    }
}

// The longest documents have more pairs than a rank should have, so they are cut in any case.
TEST(BalancedShards, OfManyRanksCutLongDocuments) {
    for (const int ranks : {64, 512, 1000}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks");
        const std::vector<std::int64_t> lengths = lognormal_lengths(std::int64_t{131072} * ranks, 4000, 5);
        const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        EXPECT_GT(busiest_with_messages(even(tokens, ranks), ranks, lengths, 0.01), 2);
        EXPECT_LT(busiest_with_messages(checked_ranges(documents(lengths, true), ranks), ranks, lengths, 0.01), 1.6);
    }
}

TEST(BalancedShards, MayBeForMoreRanksThanRows) {
    checked_ranges(documents({2, 1}, true), 5);
}

// Numbers of heads whose sums do not fit 32 bits.
TEST(BalancedShards, MayBeForTheMostHeads) {
    Problem problem = documents({64}, true);
    problem.heads = std::numeric_limits<std::int32_t>::max();
    problem.kv_heads = 1;
    problem.branches = {{.dilation = 2, .first_head = 1, .head_count = problem.heads - 1}};
    checked_ranges(problem, 2);
}

// Nearly each of 4096 padded sequences lies on each of 4096 ranks. Comparing all shards would take a minute.
TEST(BalancedShards, AreEvenIfComparingThemTakesTooLong) {
    Problem problem = documents({1 << 20}, true);
    problem.batch = 4096;
    problem.sequences = Sequences{{}, std::vector<std::int64_t>(4096)};
    std::iota(problem.sequences->lengths.begin(), problem.sequences->lengths.end(), (1 << 20) - 4095);
    const Ranges ranges = checked_ranges(problem, 4096);
    EXPECT_EQ(ranges.lengths, even(problem.length, 4096).lengths);
}

// Documents of odd lengths. The longest two are on one rank with even shards.
TEST(BalancedShards, GiveTheResultsOfOneRank) {
    for (const bool causal : {false, true})
        for (const std::vector<BranchSpec> &branches : {std::vector<BranchSpec>{{}},
                                                        {{.segment = 64}, {.segment = 512, .dilation = 3}},
                                                        {window_spec(20, 20), global_spec(2, 4, true)}}) {
            Problem problem = documents({601, 499, 101, 63, 301, 237, 300, 201}, causal);
            problem.branches = branches;
            const Inputs inputs = random_inputs(problem, 5);
            const EachAlone alone(problem, inputs);
            for (const int ranks : {2, 3})
                for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
                    SCOPED_TRACE(testing::Message() << problem << " on " << ranks << " ranks, exchange " << exchange);
                    const Ranges ranges = checked_ranges(problem, ranks);
                    EXPECT_TRUE(!causal || branches.size() > 1 || ranks > 2 || ranges.lengths.size() == 9);
                    RankOptions options;
                    options.run.exchange = exchange;
                    alone.expect(run_ranges(problem, inputs, options, ranges, make_local_comms(ranks)));
                }
        }
}

} // namespace
} // namespace annulus::test
