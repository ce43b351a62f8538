// SPDX-License-Identifier: Apache-2.0
// A process that exits, or is stopped for a while, during calls of many threads. It must exit at once, without a crash.
// After a stop, calls succeed or fail, no call hangs, and new communicators work.
#include "support/ranks.hpp"
#include "support/run.hpp"

#include "faults/child.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

constexpr int ranks = 3;

Problem whole() {
    return {.length = 571, .dim = 24, .branches = {{}, {.dilation = 3}}, .dtype = ANNULUS_FLOAT32};
}

RankOptions rank_options(double timeout) {
    RankOptions options;
    options.lengths = even_lengths(whole().length, ranks);
    options.timeout = timeout;
    return options;
}

// Calls both passes of a shard, or of a problem alone, again and again.
class Caller {
  public:
    Caller(int rank, annulus_comm *comm, double timeout)
        : Caller(shard_problem(whole(), rank_options(timeout).lengths[static_cast<std::size_t>(rank)]),
                 make_rank_context(whole(), rank_options(timeout), rank, comm)) {}
    Caller() : Caller(whole(), make_context(make_config(whole(), ANNULUS_ENGINE_CPU).get(), 3)) {}

    // Calls until one fails and returns its status, or until is_over() is true after a call.
    template <class IsOver> annulus_status call(const IsOver &is_over) const {
        for (;;) {
            annulus_status status = call_.forward(context_.get());
            if (status == ANNULUS_OK)
                status = call_.backward(context_.get());
            if (status != ANNULUS_OK || is_over())
                return status;
        }
    }

  private:
    Caller(const Problem &problem, Context context)
        : call_(problem, random_inputs(problem, 1), host_memory()), context_(std::move(context)) {}

    const Call call_;
    const Context context_;
};

// The caller's objects still exist for threads that continue their calls. exit() destroys no part of the library that
// calls use.
TEST(Ending, ExitInTheMidstOfCalls) {
    for (int i = 0; i < 30; ++i) {
        const std::string end = in_child_that_exits([i] {
            const auto never = [] { return false; };
            auto *const comms = new std::vector<Comm>(make_local_comms(ranks));
            auto *const started = new std::latch(ranks + 2);
            for (int rank = 0; rank < ranks; ++rank)
                std::thread([=] {
                    const Caller caller(rank, (*comms)[static_cast<std::size_t>(rank)].get(), 60);
                    started->count_down();
                    caller.call(never);
                }).detach();
            std::thread([=] {
                const Caller alone;
                started->count_down();
                alone.call(never);
            }).detach();
            started->arrive_and_wait();
            std::this_thread::sleep_for(std::chrono::microseconds(997 * (i % 10)));
        });
        ASSERT_EQ(end, "") << "the " << i << "th time";
    }
}

// The stop is longer than the timeout of the ranks. Any of them may then see its deadline passed, though none was late.
TEST(Ending, StoppedBeyondTheTimeout) {
    const Inputs inputs = random_inputs(whole(), 1);
    const RankOptions options = rank_options(60);
    const Results wanted = run_ranks(whole(), inputs, options);
    for (int i = 0; i < 3; ++i) {
        const std::string said = in_child([&]() -> std::string {
            using Clock = std::chrono::steady_clock;
            const std::vector<Comm> comms = make_local_comms(ranks);
            std::array<annulus_status, ranks> statuses{};
            const pid_t stopper = fork();
            if (stopper == 0) {
                usleep(200'000);
                kill(getppid(), SIGSTOP);
                usleep(800'000);
                kill(getppid(), SIGCONT);
                _exit(0);
            }
            const auto until = Clock::now() + std::chrono::milliseconds(1500);
            for_each_rank(ranks, [&](int rank) {
                const auto own = static_cast<std::size_t>(rank);
                statuses[own] = Caller(rank, comms[own].get(), 0.3).call([&] { return Clock::now() > until; });
                annulus_comm_abort(comms[own].get()); // so that no rank waits for calls that do not come
            });
            waitpid(stopper, nullptr, 0);
            for (const annulus_status status : statuses)
                if (status != ANNULUS_OK && status != ANNULUS_ERROR_COMM)
                    return annulus_status_name(status);
            const Results results = run_ranks(whole(), inputs, options); // with new communicators
            return results.out == wanted.out && results.d_k == wanted.d_k ? "" : "wrong results";
        });
        EXPECT_EQ(said, "");
    }
}

} // namespace
} // namespace annulus::test
