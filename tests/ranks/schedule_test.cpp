// SPDX-License-Identifier: Apache-2.0
// The schedules of patterns whose messages are known in advance. No transport is used.
#include "engines/table.hpp"
#include "ranks/exchange_choice.hpp"
#include "ranks/rank_plan.hpp"
#include "ranks/schedule_checks.hpp"

#include "support/plan.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

Problem branch_problem(std::int64_t length, std::vector<BranchSpec> branches, bool causal = false) {
    return {.length = length, .branches = std::move(branches), .causal = causal};
}

std::vector<Message> messages_of(const Problem &problem, const std::vector<std::int64_t> &lengths) {
    const ShardLayout layout(pattern_of(problem), plan_problem_of(problem), make_shards(lengths),
                             ANNULUS_EXCHANGE_RING);
    std::vector<Message> messages;
    for (int from = 0; from < static_cast<int>(lengths.size()); ++from)
        for (int to = 0; to < static_cast<int>(lengths.size()); ++to)
            for (Message &message : make_messages(layout, from, to))
                messages.push_back(std::move(message));
    return messages;
}

TEST(Schedule, SegmentsInsideShardsSendNothing) {
    const Problem problem = branch_problem(
        96, {{.segment = 8}, {.segment = 16, .dilation = 3, .query = ANNULUS_QUERY_EVERY}, {.segment = 24}});
    EXPECT_TRUE(messages_of(problem, {48, 0, 48}).empty());
    expect_schedules(problem, {48, 0, 48});
}

TEST(Schedule, CausalSendsNothingBack) {
    for (const annulus_query_rule rule : {ANNULUS_QUERY_DILATED, ANNULUS_QUERY_RESIDUE, ANNULUS_QUERY_EVERY}) {
        const Problem problem = branch_problem(60, {{.dilation = 2, .query = rule}}, true);
        const std::vector<Message> messages = messages_of(problem, {10, 20, 1, 29});
        EXPECT_EQ(messages.size(), 6); // one from each rank to each rank after it
        for (const Message &message : messages)
            EXPECT_LT(message.from, message.to);
        expect_schedules(problem, {10, 20, 1, 29});
    }
}

// One branch alone: the stride of slots is the dilation, and the message is regular.
TEST(Schedule, OneBranchIsRegularAndFull) {
    Problem problem = branch_problem(210, {{.dilation = 5, .phase = ANNULUS_PHASE_FIXED, .residue = 3}});
    const std::vector<Message> messages = messages_of(problem, {70, 70, 70});
    EXPECT_EQ(messages.size(), 6);
    for (const Message &message : messages) {
        EXPECT_EQ(message.stride, 5);
        EXPECT_EQ(message.slots(), 14);
        EXPECT_TRUE(message.is_regular());
        EXPECT_TRUE(message.is_full());
    }
}

// A class that lies inside a class of another branch adds no rows.
TEST(Schedule, NestedClassesAreRegular) {
    Problem problem = branch_problem(256, {{.dilation = 4, .phase = ANNULUS_PHASE_FIXED, .residue = 2},
                                           {.dilation = 16, .phase = ANNULUS_PHASE_FIXED, .residue = 6},
                                           {.dilation = 64, .phase = ANNULUS_PHASE_FIXED, .residue = 18}});
    const std::vector<Message> messages = messages_of(problem, {128, 128});
    EXPECT_EQ(messages.size(), 2);
    for (const Message &message : messages) {
        EXPECT_TRUE(message.is_regular());
        EXPECT_EQ(message.total_rows(), 2 * 32);
    }
    expect_schedules(problem, {128, 128});
}

// Three branches reach over the border, each further and with a larger dilation than the branch before. The keys that
// only one of them reaches are a message of its own, with about one slot for each row. Rows are long enough for that:
// a slot of all heads has 16 KiB. The border is 256 positions after the start of a segment of 512, and 8448 after the
// start of a segment of 16384. That segment is 180224 … 196607.
TEST(Schedule, FurtherBranchesHaveMessagesOfTheirOwn) {
    Problem problem =
        branch_problem(196608 + 180224, {{.segment = 512}, {.segment = 16384, .dilation = 32}, {.dilation = 1024}});
    problem.batch = 2;
    problem.heads = problem.kv_heads = 2;
    problem.dim = 256;
    const std::vector<std::int64_t> lengths = {180224 + 8448, 196608 - 8448};
    for (const bool causal : {false, true}) {
        problem.causal = causal;
        const std::vector<Message> messages = messages_of(problem, lengths);
        ASSERT_EQ(messages.size(), causal ? 3 : 6);
        const auto expect = [](const Message &message, std::int64_t stride, std::int64_t rows) {
            EXPECT_EQ(message.stride, stride);
            EXPECT_TRUE(message.is_regular());
            EXPECT_EQ(message.total_rows(), 2 * rows);
            EXPECT_LE(message.slots(), rows + 1);
        };
        expect(messages[0], 1, 256);
        expect(messages[1], 32, (8448 - 256) / 32);
        expect(messages[2], 1024, 180224 / 1024);
        if (causal)
            continue;
        expect(messages[3], 1, 256);
        expect(messages[4], 32, (16384 - 8448 - 256) / 32);
        expect(messages[5], 1024, 180224 / 1024);
    }
}

// The same against the definition, with several heads for each key/value head, a short shard between the other shards,
// and less regular rows.
TEST(Schedule, FurtherBranchesFollowTheDefinition) {
    const std::int64_t first = 45056 + 2112, second = 49152 - 2112;
    Problem problem =
        branch_problem(first + second, {{.segment = 512}, {.segment = 4096, .dilation = 32}, {.dilation = 1024}});
    problem.batch = 4;
    problem.heads = 4;
    problem.kv_heads = 2;
    problem.dim = 256;
    problem.causal = true;
    expect_schedules(problem, {first, second});
    problem.branches[1].phase = ANNULUS_PHASE_FIXED;
    problem.branches[1].residue = 7;
    problem.branches[0].query = ANNULUS_QUERY_EVERY;
    expect_schedules(problem, {first - 1, 4999, second - 4998});
}

// Borders may lie inside segments of all of LongNet's branches. The slots of a message hold what travels and at most 64
// MiB beside it, where one message for all keys of a shard would take 512 MiB: a row of K and V has 512 bytes, a slot
// of all heads 8 KiB.
TEST(Schedule, SlotsHoldWhatTravels) {
    for (const std::int64_t length : {65536, 65537, 65601, 70001})
        for (const bool causal : {false, true}) {
            Problem problem = branch_problem(3 * length, {}, causal);
            for (std::int64_t power = 1; power <= 256; power *= 4)
                problem.branches.push_back({.segment = 2048 * power, .dilation = power});
            problem.heads = 16;
            problem.dim = 128;
            problem.dtype = ANNULUS_BFLOAT16;
            const std::vector<Message> messages = messages_of(problem, {length, length, length});
            ASSERT_GE(messages.size(), causal ? 3 : 6);
            for (const Message &message : messages)
                EXPECT_LE(8192 * message.slots(), 512 * message.total_rows() + (64 << 20))
                    << length << ": " << message.from << " to " << message.to;
        }
}

// A head dimension with which one row of K and V has 16 MiB in float64. 256 MiB then hold fewer rows than a rank has,
// so the rule for few rows gives no room.
constexpr std::int32_t many_columns = 1 << 20;

// Rows of other ranks are gathered if they have at most 256 MiB and eight times the rank's own rows.
TEST(ExchangeChoice, GathersFewRows) {
    const auto exchange = [](std::vector<BranchSpec> branches, std::int64_t length, std::int32_t ranks,
                             std::int32_t dim) {
        Problem problem = branch_problem(length, std::move(branches));
        problem.heads = problem.kv_heads = 16;
        problem.dim = dim;
        problem.dtype = ANNULUS_BFLOAT16;
        return chosen_exchange(problem, make_shards(even_lengths(length, ranks)));
    };
    for (const std::int32_t ranks : {2, 3, 4, 8})
        EXPECT_EQ(exchange(gigapath(70001).branches, 70001, ranks, 48), ANNULUS_EXCHANGE_GATHER) << ranks;
    EXPECT_EQ(exchange({{}}, 36004, 4, 128), ANNULUS_EXCHANGE_GATHER); // 27,003 rows of 8 KiB
    EXPECT_EQ(exchange({{}}, 43692, 4, 128), ANNULUS_EXCHANGE_RING);   // 32,769
    EXPECT_EQ(exchange({{}}, 9, 9, 48), ANNULUS_EXCHANGE_GATHER);      // 8 rows beside one
    EXPECT_EQ(exchange({{}}, 10, 10, 48), ANNULUS_EXCHANGE_RING);
}

// The two shards of a segment want 16 rows of each other, with stride 4. From each of the other 6 shards a shard wants
// one row. So a rank receives 16 + 6 slots, and a shard has 64 positions. With segments of 4 shards it receives
// 3 * 16 + 4 slots.
TEST(ExchangeChoice, WhatSharesNoSegmentWeighsLess) {
    Problem problem = branch_problem(512, {{.segment = 128, .dilation = 4, .phase = ANNULUS_PHASE_FIXED},
                                           {.dilation = 64, .phase = ANNULUS_PHASE_FIXED}});
    problem.dim = many_columns;
    const Shards shards = make_shards(even_lengths(512, 8));
    EXPECT_EQ(chosen_exchange(problem, shards), ANNULUS_EXCHANGE_GATHER);
    problem.branches[0].segment = 256;
    EXPECT_EQ(chosen_exchange(problem, shards), ANNULUS_EXCHANGE_GATHER);
    problem.branches[0].segment = 512; // 7 * 16 slots
    EXPECT_EQ(chosen_exchange(problem, shards), ANNULUS_EXCHANGE_RING);
}

// A shard has 64 positions, and wants 16 rows of each other shard. The ring has a round for each other shard.
TEST(ExchangeChoice, ALongRingLeavesMoreRoom) {
    const auto exchange = [](std::int32_t ranks) {
        Problem problem = branch_problem(64 * ranks, {{.dilation = 4, .phase = ANNULUS_PHASE_FIXED, .residue = 3}});
        problem.dim = many_columns;
        return chosen_exchange(problem, make_shards(even_lengths(problem.length, ranks)));
    };
    EXPECT_EQ(exchange(5), ANNULUS_EXCHANGE_GATHER); // 4 * 16 slots
    EXPECT_EQ(exchange(6), ANNULUS_EXCHANGE_RING);
    EXPECT_EQ(exchange(9), ANNULUS_EXCHANGE_RING);
    EXPECT_EQ(exchange(10), ANNULUS_EXCHANGE_GATHER);
    EXPECT_EQ(exchange(17), ANNULUS_EXCHANGE_GATHER); // 16 * 16 slots
    EXPECT_EQ(exchange(18), ANNULUS_EXCHANGE_RING);
}

// Each of 3 ranks has a third of each of 4 sequences: n, 2n, 3n and 4n rows, 10n in all. It gathers 2n and 4n, but not
// 6n beside them. Sequences of two batch entries, and a sequence that one rank has alone, change nothing.
TEST(ExchangeChoice, BoundsTheRowsOfAllSequences) {
    constexpr std::int64_t n = 7;
    for (const std::int64_t batch : {1, 2}) {
        Problem problem = branch_problem(0, {{}});
        problem.batch = batch;
        problem.dim = many_columns;
        std::vector<Sequence> sequences;
        Shards shards;
        for (const std::int64_t part : {3 * n, 1 * n, 4 * n, 2 * n}) {
            sequences.push_back({0, batch, {problem.length, 3 * part}});
            for (int owner = 0; owner < 3; ++owner) {
                shards.pieces.push_back({problem.length, part});
                shards.owners.push_back(owner);
                problem.length += part;
            }
        }
        EXPECT_EQ(choose_exchanges(pattern_of(problem), plan_problem_of(problem), sequences, shards),
                  (std::vector{ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER, ANNULUS_EXCHANGE_RING,
                               ANNULUS_EXCHANGE_GATHER}));
        for (int rank = 0; rank < 3; ++rank) { // the plans of all ranks follow it
            const RankPlan plan(pattern_of(problem), {plan_problem_of(problem), sequences}, shards, rank,
                                ANNULUS_EXCHANGE_AUTO, call_planning_steps);
            ASSERT_EQ(plan.shared().size(), 4);
            for (std::size_t i = 0; i < 4; ++i)
                EXPECT_EQ(plan.shared()[i].layout.exchange(),
                          i % 2 == 0 ? ANNULUS_EXCHANGE_RING : ANNULUS_EXCHANGE_GATHER);
        }
    }
}

// Under a causal mask the first shard only sends. Backward adds the gradients that return to it.
TEST(ShardPlans, OfSendersAloneHaveNoPartialResults) {
    const Problem problem = branch_problem(60, {{}}, true);
    const ShardLayout layout(pattern_of(problem), plan_problem_of(problem), make_shards({10, 20, 30}),
                             ANNULUS_EXCHANGE_RING);
    for (int shard = 0; shard < 3; ++shard) {
        Steps steps(call_planning_steps);
        const ShardPlan plan(layout, shard, steps);
        EXPECT_EQ(plan.has_partial_results(ANNULUS_PASS_FORWARD), shard > 0);
        EXPECT_TRUE(plan.has_partial_results(ANNULUS_PASS_BACKWARD));
    }
}

// Global keys that are far from a window's are a message of their own, without the rows between them. So a rank gets
// few rows, all in one round. With global queries a rank gets all rows.
TEST(Schedule, GlobalPositionsAreMessagesOfTheirOwn) {
    Problem problem = branch_problem(151, {window_spec(9, 0), global_spec(1, 3)}, true);
    problem.heads = problem.kv_heads = 2;
    const std::vector<std::int64_t> lengths = {50, 51, 50};
    const auto exchange = [&] { return chosen_exchange(problem, make_shards(lengths)); };
    const std::vector<Message> messages = messages_of(problem, lengths);
    const std::vector<std::tuple<int, int, Window>> expected = {
        {0, 1, {41, 9}}, {0, 1, {1, 3}}, {0, 2, {1, 3}}, {1, 2, {92, 9}}};
    ASSERT_EQ(messages.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(std::tuple(messages[i].from, messages[i].to, messages[i].keys), expected[i]);
        EXPECT_TRUE(messages[i].is_full());
    }
    EXPECT_EQ(exchange(), ANNULUS_EXCHANGE_GATHER);
    problem.branches.back().global_queries = true;
    problem.causal = false;
    EXPECT_EQ(exchange(), ANNULUS_EXCHANGE_GATHER);
    problem.dim = many_columns;
    EXPECT_EQ(exchange(), ANNULUS_EXCHANGE_RING);
}

// A head has more classes than are counted in closed form.
TEST(Schedule, ManyClasses) {
    Problem problem = branch_problem(200, {{.dilation = 37, .phase = ANNULUS_PHASE_INTERLEAVE},
                                           {.dilation = 41, .phase = ANNULUS_PHASE_INTERLEAVE}});
    problem.heads = 40;
    problem.kv_heads = 1;
    for (const std::int64_t first : {1, 31, 32, 33, 100})
        expect_schedules(problem, {first, 200 - first});
    problem.branches = {{.dilation = 60, .query = ANNULUS_QUERY_RESIDUE}};
    for (const std::int64_t first : {1, 31, 32, 33, 59, 60, 61})
        expect_schedules(problem, {first, 200 - first});
}

// Rows that are searched one by one, in pieces of key_piece_length positions. The dilations are smaller than a piece,
// larger, and about as long.
TEST(Schedule, RowsOfSeveralPieces) {
    Problem problem = branch_problem(9001, {{.segment = 1024},
                                            {.segment = 6000, .dilation = 3},
                                            {.segment = 8000, .dilation = 7, .query = ANNULUS_QUERY_RESIDUE},
                                            {.dilation = 1023, .phase = ANNULUS_PHASE_INTERLEAVE},
                                            {.dilation = 2500, .query = ANNULUS_QUERY_EVERY}});
    problem.heads = 4;
    problem.kv_heads = 2;
    for (const std::int64_t middle : {0, 1, 700})
        expect_schedules(problem, {4099, middle, 4902 - middle});
}

// Dilations near the largest 64-bit number. Only places before the first repetition exist.
TEST(Schedule, DilationsOfSixtyThreeBits) {
    for (const annulus_query_rule rule : {ANNULUS_QUERY_DILATED, ANNULUS_QUERY_RESIDUE, ANNULUS_QUERY_EVERY})
        for (const std::int64_t residue : {0, 5, 20, 39, 40}) {
            const BranchSpec huge = {
                .dilation = int64_max, .phase = ANNULUS_PHASE_FIXED, .residue = residue, .query = rule};
            expect_schedules(branch_problem(40, {huge}), {7, 3, 30});
            // With a Hilbert branch the rows are searched one by one.
            expect_schedules(branch_problem(40, {huge, {.dilation = 3, .order = ANNULUS_ORDER_HILBERT}}), {7, 3, 30});
        }
}

// A billion tokens on 64 ranks. The expected numbers below were counted by hand.
constexpr std::int64_t billion = std::int64_t{1} << 30;
constexpr int many_ranks = 64;

std::int64_t rows_on_all_ranks(const Problem &problem) {
    const Shards shards = make_shards(even_lengths(problem.length, many_ranks));
    const ShardLayout layout(pattern_of(problem), plan_problem_of(problem), shards, ANNULUS_EXCHANGE_RING);
    std::int64_t total = 0;
    for (int rank = 0; rank < many_ranks; ++rank) {
        Steps steps(call_planning_steps);
        const Schedule schedule(layout, rank, steps);
        for (const Round &round : schedule.rounds())
            for (const Message *message : round.sends)
                total += message->total_rows();
    }
    return total;
}

// w = 2^11, 2^13, …, 2^31 and r = 1, 4, …, 2^20.
Problem longnet_of_a_billion(std::int32_t heads) {
    Problem problem = branch_problem(billion, {});
    problem.heads = heads;
    for (int i = 0; i <= 10; ++i)
        problem.branches.push_back(
            {.segment = std::int64_t{1} << (11 + 2 * i), .dilation = std::int64_t{1} << (2 * i)});
    return problem;
}

// 16 heads have residues 0 … 15 if r >= 16. A shard has 2^24 positions, so segments of up to 2^23 stay inside. If the
// shortest segment that two shards share has 2^25, 2^27, 2^29 or 2^31 positions, every head wants 2^10, 2^8, 2^6 or 2^4
// rows. The classes of longer segments are inside the classes of shorter segments. A rank and head wants
// 1 * 2^10 + 6 * 2^8 + 24 * 2^6 + 32 * 2^4 = 4608 rows.
TEST(ABillionTokens, LongNet) {
    Problem problem = longnet_of_a_billion(16);
    EXPECT_EQ(rows_on_all_ranks(problem), 64 * 16 * 4608);
    problem.causal = true;
    EXPECT_EQ(rows_on_all_ranks(problem), 64 * 16 * 4608 / 2);
}

// The largest numbers of ranks, heads and branches that api/annulus/attention.h promises to support. By the sums above
// a rank receives less than its shard.
TEST(ABillionTokens, OnFourThousandRanks) {
    const Problem problem = longnet_of_a_billion(32);
    const Shards shards = make_shards(even_lengths(billion, 4096));
    EXPECT_EQ(chosen_exchange(problem, shards), ANNULUS_EXCHANGE_GATHER);
    const ShardLayout layout(pattern_of(problem), plan_problem_of(problem), shards, ANNULUS_EXCHANGE_GATHER);
    Steps steps(estimate_planning_steps);
    EXPECT_NO_THROW(Schedule(layout, 2048, steps));
}

// Numbers of tokens that powers of 2 do not divide: then no two ranks send messages alike, and comparing all pairs of
// ranks would take more steps than there are.
TEST(ABillionTokens, AreGatheredByManyRanks) {
    for (const bool causal : {false, true})
        for (const int ranks : {64, 1000, 1024, 4096}) {
            Problem problem = longnet_of_a_billion(16);
            problem.length = 1'000'000'007;
            problem.causal = causal;
            EXPECT_EQ(chosen_exchange(problem, make_shards(even_lengths(problem.length, ranks))),
                      ANNULUS_EXCHANGE_GATHER)
                << ranks << " ranks";
        }
}

// The multiples of two primes: each has 1074 below 2^30, and they share 0 alone. Each row goes to 63 ranks.
TEST(ABillionTokens, CoprimeDilations) {
    Problem problem = branch_problem(billion, {{.dilation = 1000003, .phase = ANNULUS_PHASE_FIXED},
                                               {.dilation = 999983, .phase = ANNULUS_PHASE_FIXED}});
    problem.heads = 1;
    EXPECT_EQ(rows_on_all_ranks(problem), 63 * (1074 + 1074 - 1));
    // Multiples of 3 or 5 below 2^30, by inclusion-exclusion: 357913942 + 214748365 - 71582789.
    problem.branches = {{.dilation = 3, .phase = ANNULUS_PHASE_FIXED}, {.dilation = 5, .phase = ANNULUS_PHASE_FIXED}};
    EXPECT_EQ(rows_on_all_ranks(problem), std::int64_t{63} * (357913942 + 214748365 - 71582789));
}

// A schedule takes memory for its messages, not for the rounds of shards that reach farther: 4096 shards share the
// first segment, and the last shard shares a segment with one other.
TEST(Schedule, MemoryDoesNotGrowWithTheRoundsOfOtherShards) {
    constexpr std::int64_t segment = 4096;
    const Problem problem = branch_problem(2 * segment, {{.segment = segment}});
    std::vector<std::int64_t> lengths(4096, 1);
    lengths.insert(lengths.end(), 2, segment / 2);
    const ShardLayout layout(pattern_of(problem), plan_problem_of(problem), make_shards(lengths),
                             ANNULUS_EXCHANGE_RING);
    Steps steps(estimate_planning_steps);
    const Schedule schedule(layout, 4097, steps);
    EXPECT_EQ(schedule.round_count(), 4097); // every distance but 0 around a ring of 4098 shards
    ASSERT_EQ(schedule.rounds().size(), 2);  // keys to the shard before it, and keys from there
    EXPECT_LT(schedule.bytes(), 8192);
}

TEST(Shards, StandBehindOneAnother) {
    const Shards shards = make_shards({3, 0, 5});
    EXPECT_EQ(shards, (Shards{{{0, 3}, {3, 0}, {3, 5}}, {0, 1, 2}}));
}

} // namespace
} // namespace annulus::test
