// SPDX-License-Identifier: Apache-2.0
// The whole life of configs, contexts and ranks, while the system refuses memory or a thread. It refuses the first
// call, the second, …: that call alone, or all calls from then on. Every function succeeds or reports that memory is
// missing. A refused call has written nothing, nothing leaks, and no rank hangs. With fewer threads the results are the
// same.
#include "support/problem.hpp"
#include "support/ranks.hpp"
#include "support/run.hpp"

#include "faults/failing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <latch>
#include <ostream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

constexpr int ranks = 2;
constexpr std::int64_t length = 571; // more queries than a thread takes at a time
constexpr std::array<std::int64_t, ranks> lengths = {30, 541};

// The outcome of a series of calls, in memory that exists already.
class Outcome {
  public:
    // Returns true if all calls up to now succeeded. Stores the first call that failed.
    bool served(const char *name, annulus_status status) {
        if (status != ANNULUS_OK && status_ == ANNULUS_OK) {
            status_ = status;
            std::snprintf(what_.data(), what_.size(), "%s: %s: %s", name, annulus_status_name(status),
                          annulus_last_error());
        }
        return status_ == ANNULUS_OK;
    }
    annulus_status status() const { return status_; }
    std::string what() const { return what_.data(); }

  private:
    annulus_status status_ = ANNULUS_OK;
    std::array<char, 600> what_{};
};

struct Mode {
    const char *name;
    call_kind kind;
    long count;
    friend std::ostream &operator<<(std::ostream &out, const Mode &mode) { return out << mode.name; }
};

// Rows of Q, K and V with the results of the calls on them. Calls write to `arguments`.
struct Rows {
    Rows(const Problem &problem, const Inputs &values) : call(problem, values, host_memory()), inputs(values) {}
    bool are_untouched(std::initializer_list<const annulus_tensor *> outputs) const {
        return std::all_of(outputs.begin(), outputs.end(), [](const annulus_tensor *output) {
            std::int64_t bytes = annulus_dtype_bits(output->dtype) / 8;
            for (int d = 0; d < output->ndim; ++d)
                bytes *= output->shape[d];
            const auto *const first = static_cast<const unsigned char *>(output->data);
            return std::all_of(first, first + bytes, [](unsigned char byte) { return byte == 0xFF; });
        });
    }
    bool out_untouched() const { return are_untouched({&call.arguments.out, &call.arguments.lse}); }
    bool gradients_untouched() const {
        return are_untouched({&call.arguments.d_q, &call.arguments.d_k, &call.arguments.d_v});
    }

    Call call;
    const Inputs inputs;
};

class FailingCalls : public testing::TestWithParam<std::tuple<Mode, annulus_engine>> {
  protected:
    const Mode mode_ = std::get<Mode>(GetParam());
    const annulus_engine engine_ = std::get<annulus_engine>(GetParam());
    const Problem problem_ = {.length = length, .dtype = ANNULUS_FLOAT32};
    const Inputs inputs_ = random_inputs(problem_, 1);

    Rows whole_{problem_, inputs_};
    std::array<Rows, ranks> shards_ = {shard(0), shard(1)};

    // State of one run.
    Outcome alone_;
    std::array<Outcome, ranks> together_;
    bool forward_done_ = false, backward_done_ = false;
    std::array<bool, ranks> rank_forward_done_{};
    std::array<annulus_comm *, ranks> comms_{};

    Rows shard(int rank) const {
        const std::int64_t start = rank == 0 ? 0 : lengths[0];
        return {shard_problem(problem_, lengths[rank]), shard_inputs(problem_, inputs_, start, lengths[rank])};
    }

    annulus_config *make_config(Outcome &outcome) const {
        annulus_config *config = nullptr, *copy = nullptr;
        const std::array<std::int64_t, 2> segments = {16, 32}, dilations = {1, 2};
        annulus_branch curved = ANNULUS_BRANCH_INIT(64, 3);
        curved.order = ANNULUS_ORDER_HILBERT;
        const annulus_branch whole = ANNULUS_BRANCH_INIT(0, 1);
        if (outcome.served("config_create", annulus_config_create(&config)) &&
            outcome.served("add_branch", annulus_config_add_branch(config, &whole, nullptr)) &&
            outcome.served("add_branch", annulus_config_add_branch(config, &whole, nullptr)) &&
            outcome.served("set_branch", annulus_config_set_branch(config, 0, &curved)) &&
            outcome.served("add_longnet", annulus_config_add_longnet(config, 16, 2, 2, 3)) &&
            outcome.served("add_head_groups",
                           annulus_config_add_head_groups(config, 2, 2, segments.data(), dilations.data())) &&
            outcome.served("set_engine", annulus_config_set_engine(config, engine_)))
            outcome.served("config_copy", annulus_config_copy(&copy, config));
        annulus_config_destroy(config);
        return copy;
    }

    annulus_context *make_context(Outcome &outcome) const {
        annulus_config *const config = make_config(outcome);
        annulus_context *context = nullptr;
        if (config && outcome.served("context_create", annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0)) &&
            outcome.served("set_config", annulus_context_set_config(context, config)))
            outcome.served("set_threads", annulus_context_set_threads(context, 3));
        annulus_config_destroy(config);
        return context;
    }

    void live_alone() {
        annulus_context *const context = make_context(alone_);
        const annulus_problem sizes = sizes_of(problem_);
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        const annulus_shards shards = {sizeof shards, 3, 0, nullptr, nullptr};
        if (alone_.status() == ANNULUS_OK &&
            alone_.served("estimate", annulus_estimate_problem(context, &sizes, ANNULUS_PASS_BACKWARD,
                                                               ANNULUS_ALL_BRANCHES, &estimate)) &&
            (engine_ == ANNULUS_ENGINE_REFERENCE ||
             alone_.served("estimate_rank",
                           annulus_estimate_rank(context, &sizes, ANNULUS_PASS_BACKWARD, &shards, 1, &estimate)))) {
            forward_done_ = alone_.served("forward", whole_.call.forward(context));
            backward_done_ = forward_done_ && alone_.served("backward", whole_.call.backward(context));
        }
        annulus_context_destroy(context);
    }

    void live_as_rank(int rank) {
        Outcome &outcome = together_[rank];
        annulus_context *const context = make_context(outcome);
        const Call &call = shards_[rank].call;
        const annulus_shards shards = {sizeof shards, ranks, ranks, lengths.data(), nullptr};
        const bool done = outcome.status() == ANNULUS_OK &&
                          outcome.served("set_timeout", annulus_comm_set_timeout(comms_[rank], 20)) &&
                          outcome.served("set_comm", annulus_context_set_comm(context, comms_[rank])) &&
                          outcome.served("set_shards", annulus_context_set_shards(context, &shards)) &&
                          (rank_forward_done_[rank] = outcome.served("forward of a rank", call.forward(context))) &&
                          outcome.served("backward of a rank", call.backward(context));
        if (!done)
            annulus_comm_abort(comms_[rank]);
        annulus_context_destroy(context);
    }

    // Runs the whole series of calls, with failures from call number `first` on.
    void live(long first) {
        whole_.call.reset(whole_.inputs);
        for (Rows &rows : shards_)
            rows.call.reset(rows.inputs);
        alone_ = {};
        together_ = {};
        forward_done_ = backward_done_ = false;
        rank_forward_done_ = {};
        const long live_before = live_pieces();
        with_rank_threads([&](auto let_ranks_live) {
            fail_calls(mode_.kind, first, mode_.count);
            // The reference engine has no ranks.
            const bool connected =
                engine_ != ANNULUS_ENGINE_REFERENCE &&
                alone_.served("comm_create", annulus_comm_create_local(comms_.data(), ranks, nullptr));
            live_alone();
            if (connected) {
                let_ranks_live();
                for (annulus_comm *comm : comms_)
                    annulus_comm_destroy(comm);
            }
            failed_ = failed_calls(mode_.kind);
            fail_calls(mode_.kind, 0, 0);
        });
        leaked_ = live_pieces() - live_before;
    }

    // Makes the C library keep stacks of ended threads now, up to its limit, so that it keeps no more later.
    static void keep_stacks() {
        constexpr int more_than_are_kept = 16;
        std::latch all_there(more_than_are_kept);
        std::vector<std::jthread> threads;
        for (int i = 0; i < more_than_are_kept; ++i)
            threads.emplace_back([&] { all_there.arrive_and_wait(); });
    }

    // Calls work(let_ranks_live) while the ranks' threads wait for that call. They exist already, so that nothing can
    // refuse them.
    template <class Work> void with_rank_threads(Work work) {
        std::latch ready(ranks), begin(1), done(ranks);
        bool live = false;
        std::vector<std::jthread> threads;
        for (int rank = 0; rank < ranks; ++rank)
            threads.emplace_back([&, rank] {
                ready.count_down();
                begin.wait();
                if (live)
                    live_as_rank(rank);
                done.count_down();
            });
        ready.wait();
        work([&] {
            live = true;
            begin.count_down();
            done.wait();
        });
        if (!live)
            begin.count_down();
    }

    void check_life(const Results &wanted, const std::array<Results, ranks> &wanted_shards) {
        EXPECT_TRUE(alone_.status() == ANNULUS_OK || alone_.status() == ANNULUS_ERROR_MEMORY) << alone_.what();
        EXPECT_TRUE(forward_done_ || whole_.out_untouched()) << alone_.what();
        EXPECT_TRUE(backward_done_ || whole_.gradients_untouched()) << alone_.what();
        if (backward_done_)
            expect_same(whole_.call.results(), wanted);
        const bool all_ranks = std::all_of(together_.begin(), together_.end(),
                                           [](const Outcome &outcome) { return outcome.status() == ANNULUS_OK; });
        const bool any_memory = std::any_of(together_.begin(), together_.end(), [](const Outcome &outcome) {
            return outcome.status() == ANNULUS_ERROR_MEMORY ||
                   outcome.what().ends_with("out of memory in the middle of "
                                            "the call");
        });
        EXPECT_TRUE(all_ranks || any_memory) << together_[0].what() << "; " << together_[1].what();
        for (int rank = 0; rank < ranks; ++rank) {
            const Outcome &outcome = together_[rank];
            if (outcome.status() != ANNULUS_OK && outcome.status() != ANNULUS_ERROR_MEMORY) {
                EXPECT_TRUE(outcome.status() == ANNULUS_ERROR_COMM || outcome.status() == ANNULUS_ERROR_DECLINED)
                    << outcome.what();
                EXPECT_EQ(outcome.what().find("did not come"), std::string::npos) << outcome.what();
            }
            if (outcome.status() != ANNULUS_OK && outcome.status() < 100) {
                EXPECT_TRUE(rank_forward_done_[rank] || shards_[rank].out_untouched()) << outcome.what();
                EXPECT_TRUE(shards_[rank].gradients_untouched()) << outcome.what();
            }
        }
        if (all_ranks && alone_.status() == ANNULUS_OK && engine_ != ANNULUS_ENGINE_REFERENCE)
            for (int rank = 0; rank < ranks; ++rank)
                expect_same(shards_[rank].call.results(), wanted_shards[rank]);
    }

    static void expect_same(const Results &got, const Results &wanted) {
        EXPECT_TRUE(got.out == wanted.out && got.lse == wanted.lse && got.d_q == wanted.d_q && got.d_k == wanted.d_k &&
                    got.d_v == wanted.d_v);
    }

    long failed_ = 0, leaked_ = 0; // failed calls, and allocations that leaked
};

TEST_P(FailingCalls, OneAfterTheOther) {
    keep_stacks();
    live(LONG_MAX); // nothing fails
    ASSERT_EQ(alone_.status(), ANNULUS_OK) << alone_.what();
    const Results wanted = whole_.call.results();
    std::array<Results, ranks> wanted_shards;
    if (engine_ != ANNULUS_ENGINE_REFERENCE)
        for (int rank = 0; rank < ranks; ++rank) {
            ASSERT_EQ(together_[rank].status(), ANNULUS_OK) << together_[rank].what();
            wanted_shards[rank] = shards_[rank].call.results();
        }
    long first = 0;
    do {
        ASSERT_LT(first, 5000) << "there is no end";
        live(first);
        check_life(wanted, wanted_shards);
        EXPECT_EQ(leaked_, 0);
        EXPECT_TRUE(mode_.kind == MEMORY || alone_.status() == ANNULUS_OK) << alone_.what();
        ASSERT_FALSE(HasFailure()) << "where call " << first << " failed";
        ++first;
    } while (failed_ != 0);
    EXPECT_GT(first, 1);
}

std::string name_of(const testing::TestParamInfo<FailingCalls::ParamType> &info) {
    return std::string(std::get<Mode>(info.param).name) + "_" +
           annulus_engine_name(std::get<annulus_engine>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Memory, FailingCalls,
                         testing::Combine(testing::Values(Mode{"one", MEMORY, 1}, Mode{"all", MEMORY, LONG_MAX}),
                                          testing::Values(ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU)),
                         name_of);

// The reference engine starts no thread.
INSTANTIATE_TEST_SUITE_P(Threads, FailingCalls,
                         testing::Combine(testing::Values(Mode{"one", THREADS, 1}, Mode{"all", THREADS, LONG_MAX}),
                                          testing::Values(ANNULUS_ENGINE_CPU)),
                         name_of);

} // namespace
} // namespace annulus::test
