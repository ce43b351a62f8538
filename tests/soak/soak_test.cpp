// SPDX-License-Identifier: Apache-2.0
// Makes many thousands of calls, contexts, configs and communicators in one process. The process holds no more memory,
// threads or open files after them than before.
#include "soak/watch.hpp"

#include "support/ranks.hpp"
#include "support/run.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace annulus::test {
namespace {

void expect_status(annulus_status status, annulus_status wanted) {
    if (status != wanted)
        throw std::runtime_error(std::string(annulus_status_name(status)) + " instead of " +
                                 annulus_status_name(wanted) + ": " + annulus_last_error());
}

// Calls forward without K.
annulus_status call_with_a_fault(const Call &call, annulus_context *context) {
    const Call::Arguments &a = call.arguments;
    return annulus_forward(context, &a.q, nullptr, &a.v, &a.out, &a.lse, nullptr);
}

// Returns more problems than a context keeps prepared, of all dtypes, some with several sequences.
std::vector<Problem> many_problems() {
    constexpr std::array dtypes = {ANNULUS_FLOAT32, ANNULUS_FLOAT64, ANNULUS_BFLOAT16, ANNULUS_FLOAT16};
    std::vector<Problem> problems;
    for (int i = 0; i < 20; ++i) {
        Problem problem = {.length = 50 + i,
                           .branches = {{.segment = 16}, {.dilation = 3, .query = ANNULUS_QUERY_RESIDUE}},
                           .causal = true,
                           .dtype = dtypes[static_cast<std::size_t>(i) % dtypes.size()]};
        if (i % 3 == 0)
            problem.sequences = Sequences{{0, 7, 7, 40}, {}};
        problems.push_back(problem);
    }
    return problems;
}

TEST(Soak, SmallCalls) {
    const std::vector<Problem> problems = many_problems();
    const Config config = make_config(problems[0], ANNULUS_ENGINE_CPU);
    const Context context = make_context(config.get(), 2);
    std::vector<std::unique_ptr<Call>> calls;
    for (const Problem &problem : problems)
        calls.push_back(std::make_unique<Call>(problem, random_inputs(problem, 1), host_memory()));
    const auto call = [&](long i) {
        const Call &own = *calls[static_cast<std::size_t>(i / 2) % calls.size()];
        check(i % 2 == 0 ? own.forward(context.get()) : own.backward(context.get()));
        if (i % 7 == 0)
            expect_status(call_with_a_fault(own, context.get()), ANNULUS_ERROR_ARGUMENT);
        if (i % 5 == 0) {
            const annulus_tensor &out = own.arguments.out, &lse = own.arguments.lse;
            check(annulus_merge(context.get(), 1, &out, &lse, &out, &lse, nullptr));
        }
    };
    Watch watch;
    watch.over(soak_calls(10'000, 100'000), [&](long first, long count) {
        for (long i = first; i < first + count; ++i)
            call(i);
    });
    watch.expect_flat();
}

// Makes a config, contexts and communicators. Uses some and breaks some.
class Life {
  public:
    void live(long i) const {
        const Config config = make_config(problem_, ANNULUS_ENGINE_CPU);
        const annulus_branch bad = ANNULUS_BRANCH_INIT(16, 0);
        expect_status(annulus_config_add_branch(config.get(), &bad, nullptr), ANNULUS_ERROR_ARGUMENT);
        const Context context = make_context(config.get(), 1 + static_cast<int>(i % 2));
        check(call_.forward(context.get()));
        const std::vector<Comm> comms = make_local_comms(3), alone = make_local_comms(1);
        check(annulus_context_set_comm(context.get(), comms[static_cast<std::size_t>(i) % 3].get()));
        check(annulus_comm_abort(comms[static_cast<std::size_t>(i + i / 3) % 3].get()));
        expect_status(call_.forward(context.get()), ANNULUS_ERROR_COMM);
        check(annulus_context_set_comm(context.get(), alone[0].get()));
        check(call_.backward(context.get()));
    }

  private:
    const Problem problem_ = {.length = 31, .branches = {{.segment = 16}, {.dilation = 2}}, .dtype = ANNULUS_FLOAT32};
    const Inputs inputs_ = random_inputs(problem_, 1);
    const Call call_{problem_, inputs_, host_memory()};
};

TEST(Soak, Lives) {
    const Life life;
    Watch watch;
    watch.over(soak_calls(3000, 10'000), [&](long first, long count) {
        for (long i = first; i < first + count; ++i)
            life.live(i);
    });
    watch.expect_flat();
}

// One rank of three, with a context for each exchange and shards of two problems.
class Rank {
  public:
    Rank(int rank, annulus_comm *comm) : rank_(rank) {
        for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
            RankOptions options;
            options.run = {.threads = 1 + rank % 2, .exchange = exchange};
            contexts_.push_back(make_rank_context(problem(), options, rank, comm));
        }
        for (const std::int64_t length : {10 + rank, 30 - rank}) {
            const Problem shard = shard_problem(problem(), length);
            calls_.push_back(std::make_unique<Call>(shard, random_inputs(shard, 1), host_memory()));
        }
    }

    void call(long i) const {
        annulus_context *const context = contexts_[static_cast<std::size_t>(i % 2)].get();
        const Call &own = *calls_[static_cast<std::size_t>(i / 2 % 2)];
        check(own.forward(context));
        check(own.backward(context));
        if (i % 10 == 0) {
            const bool is_at_fault = i / 10 % 3 == rank_;
            expect_status(is_at_fault ? call_with_a_fault(own, context) : own.forward(context),
                          is_at_fault ? ANNULUS_ERROR_ARGUMENT : ANNULUS_ERROR_DECLINED);
        }
    }

  private:
    static Problem problem() {
        return {.branches = {{.segment = 16}, {.dilation = 3, .query = ANNULUS_QUERY_RESIDUE}},
                .causal = true,
                .dtype = ANNULUS_FLOAT32};
    }

    const int rank_;
    std::vector<Context> contexts_;
    std::vector<std::unique_ptr<Call>> calls_;
};

TEST(Soak, CollectiveCalls) {
    constexpr int count_of_ranks = 3;
    const std::vector<Comm> comms = make_local_comms(count_of_ranks);
    std::vector<Rank> ranks;
    for (int rank = 0; rank < count_of_ranks; ++rank)
        ranks.emplace_back(rank, comms[static_cast<std::size_t>(rank)].get());
    Watch watch;
    watch.over(soak_calls(3000, 10'000), [&](long first, long count) {
        for_each_rank(count_of_ranks, [&](int rank) {
            for (long i = first; i < first + count; ++i)
                ranks[static_cast<std::size_t>(rank)].call(i);
        });
    });
    watch.expect_flat();
}

} // namespace
} // namespace annulus::test
