// SPDX-License-Identifier: Apache-2.0
// Each allocation of one rank's call fails once: the first, then the second, and so on. The rank reports
// ANNULUS_ERROR_MEMORY. In the middle of the call, when outputs may have been written, it reports ANNULUS_ERROR_COMM.
// The other rank reports an error at once. In the end nothing has leaked.
#include "support/allocations.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <latch>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

constexpr int ranks = 2;

struct Outcome {
    annulus_status status;
    std::string message;
};

class FailingAllocations : public testing::TestWithParam<std::tuple<annulus_pass, annulus_exchange, bool, int>> {
  protected:
    const annulus_pass pass_ = std::get<0>(GetParam());
    const annulus_exchange exchange_ = std::get<1>(GetParam());
    const bool set_lengths_ = std::get<2>(GetParam());
    const int failing_ = std::get<3>(GetParam());

    // Both ranks send irregular messages.
    const Problem problem_ = {.length = 24,
                              .branches = {{.dilation = 2}, {.dilation = 3, .query = ANNULUS_QUERY_RESIDUE}},
                              .dtype = ANNULUS_FLOAT32};
    const Inputs inputs_ = random_inputs(problem_, 1);

    // Calls on both ranks. On rank failing_ an allocation fails after `served` allocations.
    std::vector<Outcome> call(const std::vector<Comm> &comms, std::optional<long> served) const {
        std::vector<Outcome> outcomes(ranks);
        RankOptions options;
        options.lengths = {11, 13};
        options.set_lengths = set_lengths_;
        options.run.exchange = exchange_;
        options.timeout = 5;
        options.run.threads = 1;
        std::latch all_done(ranks); // no rank leaves before both have called
        for_each_rank(ranks, [&](int rank) {
            const std::int64_t start = rank == 0 ? 0 : options.lengths[0], length = options.lengths[rank];
            const Context context = make_rank_context(problem_, options, rank, comms[rank].get());
            const Call call(shard_problem(problem_, length), shard_inputs(problem_, inputs_, start, length),
                            host_memory());
            if (rank == failing_ && served)
                fail_allocation_after(*served);
            const annulus_status status =
                pass_ == ANNULUS_PASS_FORWARD ? call.forward(context.get()) : call.backward(context.get());
            fail_no_allocation();
            outcomes[rank] = {status, status == ANNULUS_OK ? "" : annulus_last_error()};
            all_done.arrive_and_wait();
        });
        return outcomes;
    }
};

TEST_P(FailingAllocations, OneByOne) {
    ASSERT_EQ(call(make_local_comms(ranks), {})[0].status, ANNULUS_OK);
    const long live_before = live_allocations();
    long failures = 0;
    for (;; ++failures) {
        ASSERT_LT(failures, 1000);
        const std::vector<Comm> comms = make_local_comms(ranks);
        const std::vector<Outcome> outcomes = call(comms, failures);
        const Outcome &own = outcomes[failing_], &other = outcomes[1 - failing_];
        if (own.status == ANNULUS_OK || HasFailure())
            break;
        EXPECT_EQ(own.status, other.status == ANNULUS_ERROR_DECLINED ? ANNULUS_ERROR_MEMORY : ANNULUS_ERROR_COMM)
            << own.message;
        EXPECT_TRUE(other.status == ANNULUS_ERROR_COMM || other.status == ANNULUS_ERROR_DECLINED) << other.message;
        EXPECT_EQ(other.message.find("did not come"), std::string::npos)
            << other.message << ", where allocation " << failures << " failed";
        // A rank that declined takes part in the next call.
        if (other.status == ANNULUS_ERROR_DECLINED)
            for (const Outcome &outcome : call(comms, {}))
                EXPECT_EQ(outcome.status, ANNULUS_OK) << outcome.message;
        else
            for (const Outcome &outcome : call(comms, {}))
                EXPECT_EQ(outcome.status, ANNULUS_ERROR_COMM) << outcome.message;
    }
    EXPECT_GT(failures, 0);
    // When the test has failed, its messages hold memory.
    EXPECT_TRUE(HasFailure() || live_allocations() == live_before) << live_allocations() - live_before << " leaked";
}

std::string name_of(const testing::TestParamInfo<FailingAllocations::ParamType> &info) {
    const auto [pass, exchange, set_lengths, rank] = info.param;
    return std::string(pass == ANNULUS_PASS_FORWARD ? "forward" : "backward") +
           (exchange == ANNULUS_EXCHANGE_RING ? "_ring" : "_gather") + (set_lengths ? "_set" : "_found") + "_rank_" +
           std::to_string(rank);
}

INSTANTIATE_TEST_SUITE_P(Ranks, FailingAllocations,
                         testing::Combine(testing::Values(ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD),
                                          testing::Values(ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER),
                                          testing::Bool(), testing::Range(0, ranks)),
                         name_of);

} // namespace
} // namespace annulus::test
