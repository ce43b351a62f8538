// SPDX-License-Identifier: Apache-2.0
// Which rows of K and V go from rank to rank, against the definition: for random patterns and shards the messages hold
// exactly the rows that some query of the receiver attends to. No transport takes part.
#include "ranks/rank_plan.hpp"
#include "ranks/schedule.hpp"

#include "core/error.hpp"
#include "support/mask.hpp"
#include "support/plan.hpp"
#include "support/random_problem.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

constexpr std::int64_t int64_max = std::numeric_limits<std::int64_t>::max();

using Rows = std::vector<std::int64_t>; // positions, ascending

// Shards and what each needs of the others, position by position.
class Wanted {
  public:
    Wanted(const Problem &problem, const std::vector<Window> &shards) : problem_(problem), shards_(shards) {
        const Mask mask(problem);
        for (const Window &shard : shards) {
            std::vector<std::vector<bool>> &attended = attended_.emplace_back(
                problem.kv(), std::vector<bool>(static_cast<std::size_t>(problem.length), false));
            for (std::int64_t n = shard.start; n < shard.end(); ++n)
                for (std::int32_t head = 0; head < problem.heads; ++head)
                    for (const std::int64_t m : mask.keys(n, head).positions)
                        attended[problem.kv_head(head)][m] = true;
        }
    }

    // Rows of `from`, of a key/value head, that a query of `to` attends to.
    Rows rows(int from, int to, std::int32_t kv_head) const {
        Rows rows;
        for (std::int64_t m = shards_[from].start; m < shards_[from].end(); ++m)
            if (from != to && attended_[to][kv_head][m])
                rows.push_back(m);
        return rows;
    }

    std::int64_t count(int from, int to) const {
        std::int64_t count = 0;
        for (std::int32_t kv_head = 0; kv_head < problem_.kv(); ++kv_head)
            count += static_cast<std::int64_t>(rows(from, to, kv_head).size());
        return count;
    }

  private:
    const Problem &problem_;
    const std::vector<Window> &shards_;
    std::vector<std::vector<std::vector<bool>>> attended_; // [receiver][kv head][position]
};

Rows rows_of(const Plan &plan, const Message &message, std::int32_t kv_head) {
    Rows rows;
    for_each_row(plan, message, kv_head, [&](std::int64_t m) { rows.push_back(m); });
    return rows;
}

// Everything that a message says of itself.
auto fields(const Message &m) {
    return std::tuple(m.from, m.to, m.queries.start, m.queries.length, m.keys.start, m.keys.length, m.stride, m.rows,
                      m.firsts);
}

// The slots are wide enough for their promise: rows of a head stand in different ones, and as they stand in the
// sequence a whole number of slots apart.
void expect_slots(const Message &message, const Rows &rows) {
    ASSERT_GE(message.stride, 1);
    std::int64_t previous = -1;
    for (const std::int64_t m : rows) {
        ASSERT_GE(m, message.keys.start);
        ASSERT_LT(m, message.keys.end());
        const std::int64_t slot = (m - message.keys.start) / message.stride;
        ASSERT_GT(slot, previous);
        ASSERT_LT(slot, message.slots());
        ASSERT_EQ((m - rows.front()) % message.stride, 0);
        previous = slot;
    }
}

void expect_message(const Plan &plan, const Message &message, const Wanted &wanted, int from, int to) {
    ASSERT_EQ(message.from, from);
    ASSERT_EQ(message.to, to);
    std::int64_t total = 0;
    bool full = true;
    for (std::int32_t g = 0; g < plan.problem().kv_heads; ++g) {
        SCOPED_TRACE(testing::Message() << "key/value head " << g);
        const Rows rows = wanted.rows(from, to, g);
        total += static_cast<std::int64_t>(rows.size());
        if (message.empty()) {
            ASSERT_EQ(rows, Rows());
            continue;
        }
        ASSERT_EQ(rows_of(plan, message, g), rows);
        ASSERT_EQ(message.rows.size(), plan.problem().kv_heads);
        ASSERT_EQ(message.rows[g], rows.size());
        expect_slots(message, rows);
        full = full && static_cast<std::int64_t>(rows.size()) == message.slots();
        if (message.is_regular()) {
            ASSERT_EQ(message.firsts.size(), plan.problem().kv_heads);
            for (std::size_t j = 0; j < rows.size(); ++j)
                ASSERT_EQ(rows[j], message.firsts[g] + static_cast<std::int64_t>(j) * message.stride);
        }
    }
    // A message without rows does not exist.
    ASSERT_EQ(message.empty(), total == 0);
    if (message.empty())
        return;
    ASSERT_EQ(message.total_rows(), total);
    ASSERT_EQ(message.is_full(), full);
}

// Whether the library can tell what is wanted without a look at each row.
bool is_closed_form(const Problem &problem) {
    return std::all_of(problem.branches.begin(), problem.branches.end(), [](const BranchSpec &branch) {
        return branch.order == ANNULUS_ORDER_LINEAR && branch.query != ANNULUS_QUERY_RESIDUE;
    });
}

// What `auto` comes to, from api/annulus/config.h: gather where no rank has to hold more rows than the longest shard.
annulus_exchange expected_exchange(const Plan &plan, const std::vector<Window> &shards) {
    std::int64_t longest = 0, most = 0;
    for (const Window &shard : shards)
        longest = std::max(longest, shard.length);
    const int ranks = static_cast<int>(shards.size());
    for (int to = 0; to < ranks; ++to) {
        std::int64_t slots = 0;
        for (int from = 0; from < ranks; ++from)
            slots += make_message(plan, shards, from, to).slots();
        most = std::max(most, slots);
    }
    return most <= longest ? ANNULUS_EXCHANGE_GATHER : ANNULUS_EXCHANGE_RING;
}

// The messages of all ranks are those that the definition asks for, each told alike by sender and receiver, in rounds
// that fit together.
void expect_schedules(const Problem &problem, const std::vector<Window> &shards, annulus_exchange exchange,
                      const Wanted &wanted) {
    const int ranks = static_cast<int>(shards.size());
    std::deque<RankPlan> plans;
    for (int rank = 0; rank < ranks; ++rank)
        plans.emplace_back(pattern_of(problem), plan_problem_of(problem), shards, rank, exchange, call_steps);
    const annulus_exchange chosen = plans.front().schedule().exchange();
    const annulus_exchange expected =
        exchange == ANNULUS_EXCHANGE_AUTO ? expected_exchange(plans.front().local(), shards) : exchange;
    // Rows that would have to be counted one by one may be taken for more than they are, never for less.
    const bool taken_for_more = !is_closed_form(problem) && chosen == ANNULUS_EXCHANGE_RING;
    ASSERT_TRUE(chosen == expected || taken_for_more) << "exchange " << chosen;
    const bool ring = chosen == ANNULUS_EXCHANGE_RING;
    const std::size_t rounds = ring ? ranks - 1 : ranks > 1;

    std::set<std::pair<int, int>> seen;
    for (int rank = 0; rank < ranks; ++rank) {
        const Schedule &schedule = plans[rank].schedule();
        SCOPED_TRACE(testing::Message() << "rank " << rank);
        ASSERT_EQ(schedule.rank(), rank);
        ASSERT_EQ(schedule.exchange(), chosen);
        ASSERT_EQ(schedule.shards(), shards);
        ASSERT_EQ(schedule.rounds().size(), rounds);
        std::int64_t sent = 0, received = 0;
        for (std::size_t i = 0; i < rounds; ++i) {
            const int hop = static_cast<int>(i) + 1;
            const Round &round = schedule.rounds()[i];
            for (const Message *message : round.receives) {
                ASSERT_EQ(message->to, rank);
                received += message->total_rows();
            }
            for (const Message *message : round.sends) {
                const int to = message->to;
                SCOPED_TRACE(testing::Message() << "to rank " << to);
                ASSERT_TRUE(!ring || to == (rank + hop) % ranks);
                ASSERT_TRUE(seen.emplace(rank, to).second);
                expect_message(plans[rank].local(), *message, wanted, rank, to);
                sent += message->total_rows();
                // The receiver has the same in the same round.
                const std::vector<const Message *> &there = plans[to].schedule().rounds()[i].receives;
                const auto other = std::find_if(there.begin(), there.end(),
                                                [&](const Message *candidate) { return candidate->from == rank; });
                ASSERT_NE(other, there.end());
                ASSERT_EQ(fields(**other), fields(*message));
                for (std::int32_t g = 0; g < problem.kv(); ++g)
                    ASSERT_EQ(rows_of(plans[to].local(), **other, g), rows_of(plans[rank].local(), *message, g));
            }
        }
        std::int64_t wanted_of_it = 0, wanted_by_it = 0;
        for (int other = 0; other < ranks; ++other) {
            wanted_of_it += wanted.count(rank, other);
            wanted_by_it += wanted.count(other, rank);
        }
        ASSERT_EQ(sent, wanted_of_it);
        ASSERT_EQ(received, wanted_by_it);
        const auto bytes = [&](std::int64_t rows, annulus_dtype dtype) {
            return static_cast<std::uint64_t>(2 * problem.batch * rows * problem.dim) * bytes_of(dtype);
        };
        const annulus_dtype sums = statistics_dtype(problem.dtype);
        ASSERT_EQ(plans[rank].sent_bytes(ANNULUS_PASS_FORWARD), bytes(sent, problem.dtype));
        ASSERT_EQ(plans[rank].received_bytes(ANNULUS_PASS_FORWARD), bytes(received, problem.dtype));
        ASSERT_EQ(plans[rank].sent_bytes(ANNULUS_PASS_BACKWARD), bytes(sent, problem.dtype) + bytes(received, sums));
        ASSERT_EQ(plans[rank].received_bytes(ANNULUS_PASS_BACKWARD),
                  bytes(received, problem.dtype) + bytes(sent, sums));
        ASSERT_EQ(plans[rank].communicates(), sent + received > 0);
    }
}

void expect_schedules(const Problem &problem, const std::vector<std::int64_t> &lengths) {
    SCOPED_TRACE(testing::Message() << problem << "shards " << testing::PrintToString(lengths));
    const std::vector<Window> shards = make_shards(lengths);
    const Wanted wanted(problem, shards);
    for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_AUTO, ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
        expect_schedules(problem, shards, exchange, wanted);
        if (testing::Test::HasFailure())
            return;
    }
}

// Problems that are hostile to arithmetic with strides: large coprime dilations, ones beyond the shard, the sequence
// and what sums of 64 bits can hold, many query heads to a key/value head.
class Generator {
  public:
    explicit Generator(std::uint64_t seed) : engine_(seed) {}

    Problem problem() {
        Problem p;
        p.dim = 8;
        p.length = chance(0.2) ? number(1, 12) : number(13, 260);
        p.kv_heads = static_cast<std::int32_t>(number(1, 3));
        p.heads = p.kv_heads * static_cast<std::int32_t>(chance(0.7) ? number(1, 4) : number(5, 14));
        p.causal = chance(0.5);
        p.dtype = static_cast<annulus_dtype>(number(1, 4));
        p.branches.clear();
        const bool linear = chance(0.8);
        for (std::int64_t count = chance(0.3) ? 1 : number(2, 6); count > 0; --count)
            p.branches.push_back(branch(p, linear));
        return p;
    }

    // Branches with most segments longer than a shard, half of them along the Hilbert curve.
    Problem overlapping_problem() {
        Problem p;
        p.dim = 8;
        p.length = number(100, 500);
        p.kv_heads = static_cast<std::int32_t>(number(1, 3));
        p.heads = p.kv_heads * static_cast<std::int32_t>(number(1, 9));
        p.causal = chance(0.3);
        p.branches.clear();
        for (std::int64_t count = number(2, 6); count > 0; --count) {
            BranchSpec b;
            b.segment = chance(0.5) ? 0 : number(p.length / 3, p.length);
            b.dilation = number(2, chance(0.7) ? 9 : 60);
            b.phase = static_cast<annulus_phase_rule>(number(1, 3));
            b.residue = b.phase == ANNULUS_PHASE_FIXED ? number(0, 40) : 0;
            b.query = static_cast<annulus_query_rule>(number(1, 3));
            if (chance(0.5))
                b.order = ANNULUS_ORDER_HILBERT;
            p.branches.push_back(b);
        }
        return p;
    }

    std::vector<std::int64_t> lengths(std::int64_t length) {
        const int ranks = static_cast<int>(number(1, 9));
        if (chance(0.3))
            return even_lengths(length, ranks);
        std::vector<std::int64_t> lengths = random_lengths(length, ranks, engine_());
        if (chance(0.5)) // shards of one row
            for (std::size_t i = 0; i + 1 < lengths.size(); i += 2)
                if (lengths[i] > 1)
                    lengths[i + 1] += std::exchange(lengths[i], 1) - 1;
        return lengths;
    }

  private:
    std::int64_t number(std::int64_t least, std::int64_t greatest) {
        return std::uniform_int_distribution<std::int64_t>(least, greatest)(engine_);
    }
    bool chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }

    std::int64_t dilation(std::int64_t length) {
        static constexpr std::int64_t primes[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 53, 71, 97, 113};
        const double kind = std::uniform_real_distribution<double>()(engine_);
        if (kind < 0.3)
            return number(1, 6);
        if (kind < 0.8)
            return primes[number(0, std::size(primes) - 1)];
        if (kind < 0.9)
            return number(std::max<std::int64_t>(1, length - 2), length + 2);
        return chance(0.5) ? int64_max - number(0, 2) : number(1, int64_max);
    }

    BranchSpec branch(const Problem &p, bool linear) {
        BranchSpec b;
        b.segment = chance(0.4) ? 0 : number(1, p.length + 9);
        b.dilation = dilation(p.length);
        b.phase = static_cast<annulus_phase_rule>(number(1, 3));
        b.residue = b.phase == ANNULUS_PHASE_FIXED ? number(0, chance(0.8) ? 40 : int64_max) : 0;
        b.query = static_cast<annulus_query_rule>(number(1, 3));
        if (!linear && chance(0.5))
            b.order = ANNULUS_ORDER_HILBERT;
        if (chance(0.4)) {
            b.first_head = static_cast<std::int32_t>(number(0, p.heads - 1));
            b.head_count = static_cast<std::int32_t>(number(1, p.heads - b.first_head));
        }
        return b;
    }

    std::mt19937_64 engine_;
};

class Random : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Random, TheTestsProblems) {
    for (std::uint64_t i = 0; i < 20; ++i) {
        const std::uint64_t seed = 20 * GetParam() + i;
        Problem problem = random_problem(seed);
        problem.window.reset();
        problem.zero_keys = false; // no keys of anybody
        const int ranks = 1 + static_cast<int>(seed % 9);
        expect_schedules(problem, random_lengths(problem.length, ranks, seed));
        if (HasFailure())
            return;
    }
}

TEST_P(Random, HostileProblems) {
    for (std::uint64_t i = 0; i < 40; ++i) {
        Generator generator(40 * GetParam() + i);
        const Problem problem = generator.problem();
        expect_schedules(problem, generator.lengths(problem.length));
        if (HasFailure())
            return;
    }
}

// Heads in large groups, along curves and lines, so that several branches want some of the same rows.
TEST_P(Random, BranchesOnTopOfOneAnother) {
    for (std::uint64_t i = 0; i < 20; ++i) {
        Generator generator(1000 + 20 * GetParam() + i);
        Problem problem = generator.overlapping_problem();
        expect_schedules(problem, generator.lengths(problem.length));
        if (HasFailure())
            return;
    }
}

// More ranks than rows are left to some of them; equal shards, as many programs have them.
TEST_P(Random, ManyRanks) {
    Generator generator(2000 + GetParam());
    const Problem problem = generator.problem();
    expect_schedules(problem, even_lengths(problem.length, 10 + 5 * static_cast<int>(GetParam())));
}

// With few steps a plan is the same or is refused.
TEST_P(Random, PlansWithinSteps) {
    int refused = 0, made = 0;
    for (std::uint64_t i = 0; i < 20; ++i) {
        Generator generator(3000 + 20 * GetParam() + i);
        const Problem problem = generator.overlapping_problem();
        SCOPED_TRACE(testing::Message() << problem);
        const std::vector<Window> shards = make_shards(generator.lengths(problem.length));
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        const int rank = static_cast<int>(shards.size()) / 2;
        const Schedule whole(plan, shards, rank, ANNULUS_EXCHANGE_RING, call_steps);
        for (std::int64_t steps = 8; steps < 1 << 17; steps *= 4) {
            try {
                const Schedule limited(plan, shards, rank, ANNULUS_EXCHANGE_RING, steps);
                ASSERT_EQ(limited.rounds().size(), whole.rounds().size());
                for (std::size_t t = 0; t < whole.rounds().size(); ++t)
                    for (auto messages : {&Round::sends, &Round::receives}) {
                        const auto &got = limited.rounds()[t].*messages, &wanted = whole.rounds()[t].*messages;
                        ASSERT_EQ(got.size(), wanted.size());
                        for (std::size_t j = 0; j < got.size(); ++j)
                            ASSERT_EQ(fields(*got[j]), fields(*wanted[j]));
                    }
                ++made;
            } catch (const Error &error) {
                ASSERT_EQ(error.status(), ANNULUS_ERROR_UNSUPPORTED);
                ASSERT_NE(std::string(error.what()).find("more than " + std::to_string(steps) + " steps"),
                          std::string::npos)
                    << error.what();
                ++refused;
            }
        }
    }
    EXPECT_GT(refused, 0);
    EXPECT_GT(made, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Random, testing::Range<std::uint64_t>(0, 10));

Problem of_branches(std::int64_t length, std::vector<BranchSpec> branches, bool causal = false) {
    Problem problem;
    problem.length = length;
    problem.branches = std::move(branches);
    problem.causal = causal;
    return problem;
}

std::vector<Message> messages_of(const Problem &problem, const std::vector<std::int64_t> &lengths) {
    const Plan plan(pattern_of(problem), plan_problem_of(problem));
    const std::vector<Window> shards = make_shards(lengths);
    std::vector<Message> messages;
    for (int from = 0; from < static_cast<int>(lengths.size()); ++from)
        for (int to = 0; to < static_cast<int>(lengths.size()); ++to)
            messages.push_back(make_message(plan, shards, from, to));
    return messages;
}

TEST(Schedule, SegmentsInsideShardsSendNothing) {
    const Problem problem = of_branches(
        96, {{.segment = 8}, {.segment = 16, .dilation = 3, .query = ANNULUS_QUERY_EVERY}, {.segment = 24}});
    for (const Message &message : messages_of(problem, {48, 0, 48}))
        EXPECT_TRUE(message.empty());
    expect_schedules(problem, {48, 0, 48});
}

TEST(Schedule, CausalSendsNothingBack) {
    for (const annulus_query_rule rule : {ANNULUS_QUERY_DILATED, ANNULUS_QUERY_RESIDUE, ANNULUS_QUERY_EVERY}) {
        const Problem problem = of_branches(60, {{.dilation = 2, .query = rule}}, true);
        for (const Message &message : messages_of(problem, {10, 20, 1, 29}))
            EXPECT_EQ(message.empty(), message.from >= message.to);
        expect_schedules(problem, {10, 20, 1, 29});
    }
}

// One branch alone: slots are those of the dilation, and the message needs no table.
TEST(Schedule, OneBranchIsRegularAndFull) {
    Problem problem = of_branches(210, {{.dilation = 5, .phase = ANNULUS_PHASE_FIXED, .residue = 3}});
    for (const Message &message : messages_of(problem, {70, 70, 70})) {
        if (message.from == message.to)
            continue;
        EXPECT_EQ(message.stride, 5);
        EXPECT_EQ(message.slots(), 14);
        EXPECT_TRUE(message.is_regular());
        EXPECT_TRUE(message.is_full());
    }
}

// A class of one branch that lies inside another's adds nothing.
TEST(Schedule, NestedClassesAreRegular) {
    Problem problem = of_branches(256, {{.dilation = 4, .phase = ANNULUS_PHASE_FIXED, .residue = 2},
                                        {.dilation = 16, .phase = ANNULUS_PHASE_FIXED, .residue = 6},
                                        {.dilation = 64, .phase = ANNULUS_PHASE_FIXED, .residue = 18}});
    for (const Message &message : messages_of(problem, {128, 128})) {
        if (message.from == message.to)
            continue;
        EXPECT_TRUE(message.is_regular());
        EXPECT_EQ(message.total_rows(), 2 * 32);
    }
    expect_schedules(problem, {128, 128});
}

// Neighbours in pairs of shards want 16 rows of each other, whose slots are 4 apart; all others want one. So a rank
// receives 16 + 6 slots, where a shard has 64 positions. With segments of 4 shards it is 3 times 16, and 4.
TEST(Schedule, WhatSharesNoSegmentWeighsLess) {
    Problem problem = of_branches(512, {{.segment = 128, .dilation = 4, .phase = ANNULUS_PHASE_FIXED},
                                        {.dilation = 64, .phase = ANNULUS_PHASE_FIXED}});
    const std::vector<Window> shards = make_shards(even_lengths(512, 8));
    const auto exchange = [&] {
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        return Schedule(plan, shards, 7, ANNULUS_EXCHANGE_AUTO, call_steps).exchange();
    };
    EXPECT_EQ(exchange(), ANNULUS_EXCHANGE_GATHER);
    problem.branches[0].segment = 256;
    EXPECT_EQ(exchange(), ANNULUS_EXCHANGE_GATHER);
    problem.branches[0].segment = 512; // 7 times 16
    EXPECT_EQ(exchange(), ANNULUS_EXCHANGE_RING);
}

// More classes of a head than are counted in closed form.
TEST(Schedule, ManyClasses) {
    Problem problem = of_branches(200, {{.dilation = 37, .phase = ANNULUS_PHASE_INTERLEAVE},
                                        {.dilation = 41, .phase = ANNULUS_PHASE_INTERLEAVE}});
    problem.heads = 40;
    problem.kv_heads = 1;
    for (const std::int64_t first : {1, 31, 32, 33, 100})
        expect_schedules(problem, {first, 200 - first});
    problem.branches = {{.dilation = 60, .query = ANNULUS_QUERY_RESIDUE}};
    for (const std::int64_t first : {1, 31, 32, 33, 59, 60, 61})
        expect_schedules(problem, {first, 200 - first});
}

// Dilations at the end of what 64 bits hold: only places before the first repetition count.
TEST(Schedule, DilationsOfSixtyThreeBits) {
    for (const annulus_query_rule rule : {ANNULUS_QUERY_DILATED, ANNULUS_QUERY_RESIDUE, ANNULUS_QUERY_EVERY})
        for (const std::int64_t residue : {0, 5, 20, 39, 40}) {
            const BranchSpec huge = {
                .dilation = int64_max, .phase = ANNULUS_PHASE_FIXED, .residue = residue, .query = rule};
            expect_schedules(of_branches(40, {huge}), {7, 3, 30});
            // Beside a Hilbert branch rows are looked for one by one.
            expect_schedules(of_branches(40, {huge, {.dilation = 3, .order = ANNULUS_ORDER_HILBERT}}), {7, 3, 30});
        }
}

// A billion tokens on 64 ranks, counted by hand below.
constexpr std::int64_t billion = std::int64_t{1} << 30;
constexpr int many_ranks = 64;

std::int64_t rows_on_all_ranks(const Problem &problem) {
    const std::vector<Window> shards = make_shards(even_lengths(problem.length, many_ranks));
    const Plan plan(pattern_of(problem), plan_problem_of(problem));
    std::int64_t total = 0;
    for (int rank = 0; rank < many_ranks; ++rank) {
        const Schedule schedule(plan, shards, rank, ANNULUS_EXCHANGE_AUTO, call_steps);
        for (const Round &round : schedule.rounds())
            for (const Message *message : round.sends)
                total += message->total_rows();
    }
    return total;
}

// w = 2^11, 2^13, …, 2^31 and r = 1, 4, …, 2^20, 16 heads with residues 0 … 15 where r >= 16. A shard has 2^24
// positions, so w up to 2^23 stays inside. Where two shards share a segment of 2^25, 2^27, 2^29 or 2^31 positions (and
// no shorter one) every head wants 2^10, 2^8, 2^6 or 2^4 rows: the classes of the longer segments are inside those of
// the shorter. Per rank and head: 1 * 2^10 + 6 * 2^8 + 24 * 2^6 + 32 * 2^4 = 4608.
TEST(ABillionTokens, LongNet) {
    Problem problem = of_branches(billion, {});
    problem.heads = 16;
    for (int i = 0; i <= 10; ++i)
        problem.branches.push_back(
            {.segment = std::int64_t{1} << (11 + 2 * i), .dilation = std::int64_t{1} << (2 * i)});
    EXPECT_EQ(rows_on_all_ranks(problem), 64 * 16 * 4608);
    problem.causal = true;
    EXPECT_EQ(rows_on_all_ranks(problem), 64 * 16 * 4608 / 2);
}

// The multiples of two primes: 1074 each below 2^30, of which they share 0 alone; each goes to 63 ranks.
TEST(ABillionTokens, CoprimeDilations) {
    Problem problem = of_branches(billion, {{.dilation = 1000003, .phase = ANNULUS_PHASE_FIXED},
                                            {.dilation = 999983, .phase = ANNULUS_PHASE_FIXED}});
    problem.heads = 1;
    EXPECT_EQ(rows_on_all_ranks(problem), 63 * (1074 + 1074 - 1));
    // Multiples of 3 or 5 in all of it, by inclusion and exclusion: 357913942 + 214748365 - 71582789.
    problem.branches = {{.dilation = 3, .phase = ANNULUS_PHASE_FIXED}, {.dilation = 5, .phase = ANNULUS_PHASE_FIXED}};
    EXPECT_EQ(rows_on_all_ranks(problem), std::int64_t{63} * (357913942 + 214748365 - 71582789));
}

TEST(Shards, StandBehindOneAnother) {
    const std::vector<Window> shards = make_shards({3, 0, 5});
    EXPECT_EQ(shards, (std::vector<Window>{{0, 3}, {3, 0}, {3, 5}}));
}

} // namespace
} // namespace annulus::test
