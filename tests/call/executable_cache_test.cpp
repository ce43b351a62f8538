// SPDX-License-Identifier: Apache-2.0
// A context plans each problem once. It keeps a limited number of problems, and plans all anew under another config.
#include "call/context.hpp"

#include "support/ranks.hpp"
#include "support/run.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace annulus::test {
namespace {

Problem problem_of(std::int64_t length) {
    return {.length = length, .branches = {{.segment = 16}, {.segment = 48, .dilation = 3}}, .dtype = ANNULUS_FLOAT32};
}

class OneRank : public testing::Test {
  protected:
    void both_passes(std::int64_t length) {
        const Problem problem = problem_of(length);
        const Call call(problem, random_inputs(problem, 1), host_memory());
        check(call.forward(context_.get()));
        check(call.backward(context_.get()));
    }
    int prepared() const { return context_->executables.count(); }

    const Config config_ = make_config(problem_of(1), {});
    const Context context_ = make_context(config_.get(), 1);
};

TEST_F(OneRank, PreparesAProblemOnce) {
    both_passes(100);
    EXPECT_EQ(prepared(), 2);
    for (int i = 0; i < 3; ++i)
        both_passes(100);
    EXPECT_EQ(prepared(), 2);
    both_passes(101);
    EXPECT_EQ(prepared(), 4);
    both_passes(100);
    EXPECT_EQ(prepared(), 4);
}

TEST_F(OneRank, KeepsTheProblemsOfLateCalls) {
    constexpr int kept = RecentEntries<int, int>::most;
    for (int i = 0; i < kept; ++i)
        both_passes(50 + i);
    EXPECT_EQ(prepared(), 2 * kept);
    both_passes(50); // all other problems are older now
    for (int i = 0; i < kept - 1; ++i)
        both_passes(150 + i);
    EXPECT_EQ(prepared(), 2 * kept);
    const CallProblem first{{ANNULUS_FLOAT32, 1, 50, 2, 2, 8, {0, 50}, {0, 50}}, {}}; // as in both_passes(50)
    EXPECT_EQ(context_->plan_alone(first, context_->setting().limits).executables.count(), 2);
}

TEST_F(OneRank, EstimatesAndCallsShareAPlan) {
    const Problem problem = problem_of(100);
    const annulus_problem sizes = sizes_of(problem);
    std::uint64_t bytes = 0;
    check(annulus_workspace_size(context_.get(), &sizes, ANNULUS_PASS_FORWARD, &bytes));
    EXPECT_EQ(prepared(), 1);
    both_passes(100);
    EXPECT_EQ(prepared(), 2);
}

TEST_F(OneRank, AnotherConfigOrNumberOfThreadsIsAnotherCall) {
    both_passes(100);
    check(annulus_context_set_threads(context_.get(), 2));
    both_passes(100);
    EXPECT_EQ(prepared(), 4);
    check(annulus_context_set_config(context_.get(), config_.get()));
    EXPECT_EQ(prepared(), 0);
    both_passes(100);
    EXPECT_EQ(prepared(), 2);
}

TEST(SeveralRanks, PrepareAProblemOnce) {
    const Problem whole = problem_of(100);
    const Inputs inputs = random_inputs(whole, 1);
    RankOptions options;
    options.lengths = {43, 57};
    options.run.threads = 1;
    const std::vector<Comm> comms = make_local_comms(2);
    std::vector<int> counts(2);
    for_each_rank(2, [&](int rank) {
        const auto index = static_cast<std::size_t>(rank);
        const std::int64_t start = rank == 0 ? 0 : options.lengths[0], length = options.lengths[index];
        const Context context = make_rank_context(whole, options, rank, comms[index].get());
        const Call call(shard_problem(whole, length), shard_inputs(whole, inputs, start, length), host_memory());
        for (int i = 0; i < 3; ++i) {
            check(call.forward(context.get()));
            check(call.backward(context.get()));
        }
        counts[index] = context->executables.count();
    });
    EXPECT_EQ(counts, std::vector<int>({2, 2}));
}

} // namespace
} // namespace annulus::test
