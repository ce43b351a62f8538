// SPDX-License-Identifier: Apache-2.0
// The NCCL transport waits for a missing rank for at most the timeout, and for its own work without a limit.
#include "nccl_ranks.hpp"

#include <thread>

namespace annulus::test {
namespace {

using namespace std::chrono_literals;

// The last rank never calls.
class NcclMissing : public Nccl {
  protected:
    void expect_timeout(const Transports &transports) {
        run_ranks(ranks_ - 1, [&](int rank) {
            Transport &transport = *transports[rank];
            transport.set_timeout(short_timeout);
            const Seat seat(rank);
            char byte = 0;
            std::vector<char> all(ranks_);
            const auto started = Clock::now();
            const std::string message =
                expect_refused(ANNULUS_ERROR_COMM, [&] { transport.all_gather(&byte, all.data(), 1); });
            EXPECT_GE(Clock::now() - started, short_timeout);
            EXPECT_LT(Clock::now() - started, patience);
            EXPECT_EQ(message, "another rank did not come within 1 s");
            expect_broken(transport, seat, message);
        });
    }
};

TEST_F(NcclMissing, FromTheFirstGather) {
    expect_timeout(make());
}

TEST_F(NcclMissing, FromALaterGather) {
    expect_timeout(make_connected());
}

TEST_F(NcclMissing, FromALaterGatherByNcclAlone) {
    expect_timeout(make_connected(true));
}

// begin() gives the GPU a receive to which nothing is sent.
TEST_F(NcclMissing, FromAnExchange) {
    const Transports transports = make_connected();
    run_ranks(ranks_ - 1, [&](int rank) {
        Transport &transport = *transports[rank];
        transport.set_timeout(short_timeout);
        const Seat seat(rank);
        const DeviceBytes memory(1000, seat.stream());
        const Batch batch{{}, {{ranks_ - 1, memory.data(), memory.count()}}};
        const auto started = Clock::now();
        std::string message;
        try {
            transport.begin(batch, seat.device(), seat.stream());
            transport.finish(batch, seat.device(), seat.stream());
        } catch (const Error &error) { // if these two ranks were not connected yet
            message = error.what();
        }
        check_cuda(cudaStreamSynchronize(seat.stream()));
        EXPECT_GE(Clock::now() - started, short_timeout);
        EXPECT_LT(Clock::now() - started, patience);
        if (message.empty())
            message =
                expect_refused(ANNULUS_ERROR_COMM, [&] { transport.finish(batch, seat.device(), seat.stream()); });
        EXPECT_EQ(message, "another rank did not come within 1 s");
        expect_broken(transport, seat, message);
    });
}

// The work of the rank itself before an exchange may take longer than the timeout.
TEST_F(Nccl, OwnWorkIsNotTimed) {
    const Transports transports = make_connected();
    run_ranks(ranks_, [&](int rank) {
        Transport &transport = *transports[rank];
        transport.set_timeout(short_timeout);
        const Seat seat(rank);
        Exchange exchange(transport, seat, 0);
        exchange.fill(1);
        const auto sleep = [](void *) { std::this_thread::sleep_for(3 * short_timeout); };
        check_cuda(cudaLaunchHostFunc(seat.stream(), sleep, nullptr));
        exchange.begin(transport);
        exchange.finish(transport);
        expect_gather(transport, 10, 0);
        exchange.expect_arrived(1);
    });
}

TEST_F(Nccl, AbortEndsAWait) {
    for (const bool only_nccl : {false, true}) {
        const Transports transports = make_connected(only_nccl);
        Transport &transport = *transports[0];
        std::thread aborting([&] {
            std::this_thread::sleep_for(300ms);
            transport.abort();
        });
        {
            const Seat seat(0);
            char byte = 0;
            std::vector<char> all(ranks_);
            const auto started = Clock::now();
            const std::string message =
                expect_refused(ANNULUS_ERROR_COMM, [&] { transport.all_gather(&byte, all.data(), 1); });
            EXPECT_LT(Clock::now() - started, patience);
            EXPECT_EQ(message, "aborted by annulus_comm_abort");
            expect_broken(transport, seat, message);
        }
        aborting.join();
    }
}

} // namespace
} // namespace annulus::test
