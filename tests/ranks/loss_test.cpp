// SPDX-License-Identifier: Apache-2.0
// One rank is lost, and the other ranks must fail. The tests set short timeouts.
#include "ranks/callers.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace annulus::test {
namespace {

using namespace std::chrono_literals;

// Lets all ranks call except rank `lost`, which runs instead() once. Checks that every call fails with the same
// message; calls after the first one fail at once.
void expect_loss(const std::vector<Comm> &comms, int lost, const std::string &words, double timeout,
                 const std::function<void()> &instead) {
    std::vector<std::vector<Outcome>> outcomes(ranks);
    for (const annulus_pass pass : passes)
        for_each_rank(ranks, [&](int rank) {
            if (rank == lost) {
                if (pass == passes[0])
                    instead();
                return;
            }
            Part part;
            part.pass = pass;
            part.timeout = pass == passes[0] ? timeout : 600;
            Caller caller(part, comms[rank].get());
            for (int i = 0; i < 2; ++i)
                outcomes[rank].push_back(caller.call());
        });
    for (const std::vector<Outcome> &rank_outcomes : outcomes)
        for (const Outcome &outcome : rank_outcomes) {
            EXPECT_EQ(outcome.status, ANNULUS_ERROR_COMM);
            EXPECT_EQ(outcome.message, outcomes[(lost + 1) % ranks].front().message);
            EXPECT_TRUE(holds(outcome.message, words)) << outcome.message;
            EXPECT_TRUE(outcome.untouched);
        }
}

class Loss : public testing::TestWithParam<int> {
  protected:
    const int lost_ = GetParam();
    const std::string name_ = "rank " + std::to_string(lost_) + " ";
    std::vector<Comm> comms_ = make_local_comms(ranks);
};

TEST_P(Loss, ARankThatNeverCalls) {
    const auto begin = std::chrono::steady_clock::now();
    expect_loss(comms_, lost_, name_ + "did not come", 0.5, [] {});
    const auto end = std::chrono::steady_clock::now();
    EXPECT_GE(end - begin, 500ms);
    EXPECT_LT(end - begin, 30s);
    const Outcome late = Caller(Part{}, comms_[lost_].get()).call();
    EXPECT_EQ(late.status, ANNULUS_ERROR_COMM);
    EXPECT_TRUE(holds(late.message, name_ + "did not come")) << late.message;
}

TEST_P(Loss, ARankThatDestroysItsEnd) {
    expect_service(comms_);
    expect_loss(comms_, lost_, name_ + "destroyed", 60, [&] {
        std::this_thread::sleep_for(20ms);
        comms_[lost_].reset();
    });
}

TEST_P(Loss, ARankThatLeftBefore) {
    comms_[lost_].reset();
    expect_loss(comms_, lost_, name_ + "destroyed", 60, [] {});
}

TEST_P(Loss, ARankThatAborts) {
    expect_loss(comms_, lost_, name_ + "aborted", 60, [&] {
        std::this_thread::sleep_for(20ms);
        check(annulus_comm_abort(comms_[lost_].get()));
    });
}

TEST_P(Loss, AnotherThreadAbortsARanksOwnCall) {
    const int waiting = (lost_ + 1) % ranks;
    expect_loss(comms_, lost_, "rank " + std::to_string(waiting) + " aborted", 60, [&] {
        std::this_thread::sleep_for(20ms);
        check(annulus_comm_abort(comms_[waiting].get()));
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Loss, testing::Range(0, ranks), testing::PrintToStringParamName());

// Whenever the abort comes, each call succeeds or fails, and no call hangs.
TEST(Abort, InTheMidstOfCalls) {
    for (int i = 0; i < 40; ++i) {
        const std::vector<Comm> comms = make_local_comms(ranks);
        std::latch started(ranks + 1);
        std::thread aborter([&] {
            started.arrive_and_wait();
            std::this_thread::sleep_for(std::chrono::microseconds(i * 50));
            EXPECT_EQ(annulus_comm_abort(comms[i % ranks].get()), ANNULUS_OK);
        });
        for_each_rank(ranks, [&](int rank) {
            Part part;
            part.pass = passes[i % 2];
            part.exchange = i % 4 < 2 ? ANNULUS_EXCHANGE_RING : ANNULUS_EXCHANGE_GATHER;
            Caller caller(part, comms[rank].get());
            started.arrive_and_wait();
            Outcome outcome;
            while (outcome.status == ANNULUS_OK)
                outcome = caller.call();
            EXPECT_EQ(outcome.status, ANNULUS_ERROR_COMM) << outcome.message;
            EXPECT_TRUE(holds(outcome.message, "aborted")) << outcome.message;
        });
        aborter.join();
    }
}

// A rank whose call has returned may destroy its tensors, context and communicator while the other ranks still compute.
TEST(Leaving, AfterOnesPart) {
    for (int i = 0; i < 40; ++i) {
        std::vector<Comm> comms = make_local_comms(ranks);
        for_each_rank(ranks, [&](int rank) {
            Part part;
            part.pass = passes[i % 2];
            part.exchange = i % 4 < 2 ? ANNULUS_EXCHANGE_RING : ANNULUS_EXCHANGE_GATHER;
            const Outcome outcome = Caller(part, comms[rank].get()).call();
            comms[rank].reset();
            EXPECT_EQ(outcome.status, ANNULUS_OK) << outcome.message;
        });
    }
}

} // namespace
} // namespace annulus::test
