// SPDX-License-Identifier: Apache-2.0
// What 1,024 ranks send one another, simulated: the plans of all ranks, without transports and without numbers. Every
// message that is sent is received in the same step, the steps of all ranks come to an end, and the ranks of a sample
// get exactly the rows that their queries attend to.
#include "ranks/balance.hpp"
#include "ranks/rank_plan.hpp"

#include "ranks/schedule_checks.hpp"
#include "support/mask.hpp"
#include "support/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

constexpr int rank_count = 1024;

// A message of all ranks: the first row of its sequence, its shards there, and its first position.
using Name = std::tuple<std::int64_t, int, int, std::int64_t>;

// One end of a message: the index of the step in which its rank sends or receives it.
struct End {
    int rank;
    std::size_t step;
    const Message *message;
};

// The messages that a rank sends and receives at the same time. It begins a step when the step before is over.
struct Step {
    std::size_t round;
    std::vector<Name> sends, receives;
};

class Simulation {
  public:
    Simulation(const Problem &problem, const std::vector<Sequence> &sequences, const Shards &shards,
               annulus_exchange exchange)
        : problem_(problem) {
        const CallProblem call{plan_problem_of(problem), sequences};
        for (int rank = 0; rank < rank_count; ++rank) {
            plans_.emplace_back(pattern_of(problem), call, shards, rank, exchange, call_planning_steps);
            list_steps(rank);
        }
    }

    std::size_t message_count() const { return sent_.size(); }

    // Checks that sender and receiver of each message have it in the same step, with the same rows.
    void expect_ends_match() const {
        ASSERT_EQ(sent_.size(), received_.size());
        for (const auto &[name, send] : sent_) {
            const auto found = received_.find(name);
            ASSERT_NE(found, received_.end());
            const End &receive = found->second;
            ASSERT_NE(send.rank, receive.rank);
            ASSERT_EQ(fields(*send.message), fields(*receive.message));
            ASSERT_EQ(step(send).round, step(receive).round);
        }
    }

    // Checks that all steps end, if a step ends when each of its messages is in a step that the other rank has begun.
    void expect_no_deadlock() const {
        std::vector<std::size_t> at(rank_count, 0); // the step that each rank has begun
        const auto is_over = [&](const Step &step) {
            const auto has_begun = [&](const End &end) { return at[end.rank] >= end.step; };
            return std::ranges::all_of(step.sends, [&](const Name &name) { return has_begun(received_.at(name)); }) &&
                   std::ranges::all_of(step.receives, [&](const Name &name) { return has_begun(sent_.at(name)); });
        };
        for (bool is_moving = true; is_moving;) {
            is_moving = false;
            for (int rank = 0; rank < rank_count; ++rank)
                for (; at[rank] < steps_[rank].size() && is_over(steps_[rank][at[rank]]); ++at[rank])
                    is_moving = true;
        }
        for (int rank = 0; rank < rank_count; ++rank)
            ASSERT_EQ(at[rank], steps_[rank].size()) << "rank " << rank << " waits for ever";
    }

    // Checks that each row that a query of the rank attends to is in one of its shards or arrives there once, from the
    // shard that has it, and that no other row arrives.
    void expect_wanted_rows(int rank) const {
        SCOPED_TRACE(testing::Message() << "rank " << rank);
        for (const RankPlan::Shared &shared : plans_[rank].shared()) {
            Problem whole = problem_;
            whole.length = shared.sequence.rows.length;
            const Mask mask(whole);
            for (const RankPlan::Shard &shard : shared.shards)
                expect_wanted_rows(whole, mask, shared.layout, shard.plan);
        }
    }

  private:
    const Step &step(const End &end) const { return steps_[end.rank][end.step]; }

    // A round of the call is that round of every sequence.
    void list_steps(int rank) {
        std::map<std::size_t, Step> rounds;
        std::vector<std::tuple<std::size_t, Name, const Message *>> sends, receives;
        for (const RankPlan::Shared &shared : plans_.back().shared())
            for (const RankPlan::Shard &shard : shared.shards)
                for (const Round &round : shard.plan.schedule().rounds()) {
                    const auto list = [&](const std::vector<const Message *> &messages, auto &all,
                                          std::vector<Name> Step::*names) {
                        for (const Message *const m : messages) {
                            if (!shard.plan.schedule().travels(*m))
                                continue;
                            const Name name(shared.sequence.rows.start, m->from, m->to, m->keys.start);
                            all.emplace_back(round.number, name, m);
                            (rounds[round.number].*names).push_back(name);
                        }
                    };
                    list(round.sends, sends, &Step::sends);
                    list(round.receives, receives, &Step::receives);
                }
        std::vector<Step> &steps = steps_.emplace_back();
        std::map<std::size_t, std::size_t> index; // of the step of a round
        for (auto &[round, step] : rounds) {
            index[round] = steps.size();
            step.round = round;
            steps.push_back(std::move(step));
        }
        for (const auto &[round, name, message] : sends)
            add(sent_, name, {rank, index[round], message});
        for (const auto &[round, name, message] : receives)
            add(received_, name, {rank, index[round], message});
    }

    static void add(std::map<Name, End> &ends, const Name &name, const End &end) {
        EXPECT_TRUE(ends.emplace(name, end).second) << "a message is there twice";
    }

    static void expect_wanted_rows(const Problem &whole, const Mask &mask, const ShardLayout &layout,
                                   const ShardPlan &plan) {
        const int to = plan.schedule().shard();
        const Window &own = layout.piece(to);
        // [kv head][position]: how often a row arrives, and whether a query attends to it.
        const std::vector<int> none(static_cast<std::size_t>(whole.length), 0);
        std::vector<std::vector<int>> arrived(whole.kv(), none), wanted(whole.kv(), none);
        for (std::int64_t n = own.start; n < own.end(); ++n)
            for (std::int32_t head = 0; head < whole.heads; ++head)
                for (const std::int64_t m : mask.keys(n, head).positions)
                    wanted[whole.kv_head(head)][m] = m < own.start || m >= own.end();
        for (const Round &round : plan.schedule().rounds())
            for (const Message *message : round.receives)
                for (std::int32_t kv_head = 0; kv_head < whole.kv(); ++kv_head)
                    for_each_row(plan.local(), *message, kv_head, [&](std::int64_t m) {
                        ASSERT_GE(m, layout.piece(message->from).start);
                        ASSERT_LT(m, layout.piece(message->from).end());
                        ++arrived[kv_head][m];
                    });
        ASSERT_EQ(arrived, wanted);
    }

    const Problem &problem_;
    std::deque<RankPlan> plans_;
    std::vector<std::vector<Step>> steps_; // [ranks]
    std::map<Name, End> sent_, received_;
};

void expect_all(const Problem &problem, const std::vector<Sequence> &sequences, const Shards &shards,
                annulus_exchange exchange) {
    SCOPED_TRACE(testing::Message() << problem << "exchange " << exchange);
    const Simulation simulation(problem, sequences, shards, exchange);
    EXPECT_GT(simulation.message_count(), rank_count);
    simulation.expect_ends_match();
    simulation.expect_no_deadlock();
    for (const int rank : {0, 1, 7, 8, 500, 511, 512, 777, 1016, 1022, 1023})
        simulation.expect_wanted_rows(rank);
}

// 195 or 196 rows a rank, segments from less than a rank's rows to the whole sequence.
Problem longnet(bool causal) {
    Problem problem = {.length = 200'003, .causal = causal};
    problem.heads = 4;
    problem.kv_heads = 2;
    problem.branches.clear();
    for (std::int64_t i = 0; i < 6; ++i)
        problem.branches.push_back({.segment = std::int64_t{128} << (2 * i), .dilation = std::int64_t{1} << (2 * i)});
    problem.branches.push_back({.dilation = 4096});
    return problem;
}

TEST(ManyRanks, LongNetGathered) {
    const Problem problem = longnet(false);
    expect_all(problem, {}, make_shards(even_lengths(problem.length, rank_count)), ANNULUS_EXCHANGE_GATHER);
}

TEST(ManyRanks, LongNetInARing) {
    const Problem problem = longnet(false);
    expect_all(problem, {}, make_shards(even_lengths(problem.length, rank_count)), ANNULUS_EXCHANGE_RING);
}

TEST(ManyRanks, CausalLongNetInZigzag) {
    const Problem problem = longnet(true);
    std::vector<int> owners;
    for (int i = 0; i < 2 * rank_count; ++i)
        owners.push_back(std::min(i, 2 * rank_count - 1 - i));
    expect_all(problem, {}, make_shards(even_lengths(problem.length, 2 * rank_count), owners, rank_count),
               ANNULUS_EXCHANGE_RING);
}

// The rank of the global queries gets the rows of all ranks, one rank in each step.
TEST(ManyRanks, Longformer) {
    Problem problem = {.length = 50'021};
    problem.heads = 4;
    problem.kv_heads = 2;
    problem.branches = {window_spec(120, 120), global_spec(0, 60, true)};
    expect_all(problem, {}, make_shards(even_lengths(problem.length, rank_count)), ANNULUS_EXCHANGE_AUTO);
}

// 5,000 documents of 1 to 79 rows, and one of 3,000.
TEST(ManyRanks, PackedDocuments) {
    Problem problem = {.length = 0, .causal = true};
    problem.heads = problem.kv_heads = 2;
    problem.branches = {{.segment = 0}};
    std::vector<Sequence> sequences;
    for (std::int64_t i = 0; i <= 5000; ++i) {
        const std::int64_t length = i == 2500 ? 3000 : 1 + i * 37 % 79;
        sequences.push_back({0, problem.batch, {problem.length, length}});
        problem.length += length;
    }
    const CallProblem call{plan_problem_of(problem), sequences};
    for (const bool is_balanced : {false, true})
        expect_all(problem, sequences,
                   is_balanced ? balance_shards(pattern_of(problem), call, rank_count)
                               : make_shards(even_lengths(problem.length, rank_count)),
                   ANNULUS_EXCHANGE_AUTO);
}

// Dealing takes steps for each document, so it is not begun if there are fewer. Even and zigzag shards take hardly any.
TEST(ManyDocuments, AreBalancedWithinTheSteps) {
    constexpr int ranks = 5;
    Problem problem = {.length = 0, .causal = true};
    problem.branches = {{.segment = 0}};
    std::vector<Sequence> sequences;
    for (std::int64_t i = 0; i < 5000; ++i) {
        const std::int64_t length = i < 200 ? 2000 : 1 + i * 37 % 79; // even shards give rank 0 most pairs
        sequences.push_back({0, problem.batch, {problem.length, length}});
        problem.length += length;
    }
    const CallProblem call{plan_problem_of(problem), sequences};
    EXPECT_GT(balance_shards(pattern_of(problem), call, ranks).pieces.size(), 2 * ranks);
    EXPECT_LE(balance_shards(pattern_of(problem), call, ranks, 5000 * 8).pieces.size(), 2 * ranks);
}

} // namespace
} // namespace annulus::test
