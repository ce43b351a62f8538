// SPDX-License-Identifier: Apache-2.0
// The NCCL transport between threads with a GPU each: what arrives, and which ranks it connects.
#include "nccl_ranks.hpp"

#include "cuda/nccl/nccl_library.hpp"

#include <numeric>
#include <thread>

namespace annulus::test {
namespace {

TEST_F(Nccl, RanksAreInTheOrderOfDevices) {
    std::vector<int> devices(ranks_);
    std::iota(devices.rbegin(), devices.rend(), 0);
    const Transports transports = make_nccl_transports(ranks_, devices.data(), long_timeout);
    ASSERT_EQ(transports.size(), devices.size());
    for (int rank = 0; rank < ranks_; ++rank) {
        EXPECT_EQ(transports[rank]->size(), ranks_);
        EXPECT_EQ(transports[rank]->rank(), rank);
        transports[rank]->check_device(ANNULUS_DEVICE_CUDA, devices[rank]);
    }
}

TEST_F(Nccl, Gathers) {
    const Transports transports = make();
    run_ranks(ranks_, [&](int rank) {
        int round = 0;
        for (const std::size_t bytes : {1, 100, 4096, 4097, 1000000, 3})
            for (int repetition = 0; repetition < 20; ++repetition)
                expect_gather(*transports[rank], bytes, round++);
    });
}

TEST_F(Nccl, Exchanges) {
    const Transports transports = make();
    run_ranks(ranks_, [&](int rank) { expect_exchanges(*transports[rank], rank, 100); });
}

TEST_F(Nccl, GathersBetweenExchanges) {
    const Transports transports = make();
    run_ranks(ranks_, [&](int rank) {
        for (int round = 0; round < 20; ++round) {
            expect_exchanges(*transports[rank], rank, 2);
            expect_gather(*transports[rank], 1000, round);
        }
    });
}

TEST_F(Nccl, GathersBetweenExchangesByNcclAlone) {
    const Transports transports = make(true);
    run_ranks(ranks_, [&](int rank) {
        int round = 0;
        for (const std::size_t bytes : {1, 1000, 4097, 1000000, 3}) {
            expect_exchanges(*transports[rank], rank, 4);
            expect_gather(*transports[rank], bytes, round++);
        }
    });
    EXPECT_FALSE(has_board());
}

// Each rank in turn is the one that asks for it.
TEST_F(Nccl, OneRankLetsAllUseNcclAlone) {
    for (int asking = -1; asking < ranks_; ++asking) {
        const annulus_nccl_id id = make_nccl_id();
        Transports transports(ranks_);
        run_ranks(ranks_, [&](int rank) {
            transports[rank] = make_nccl_transport(id, ranks_, rank, rank, long_timeout, rank == asking);
            expect_gather(*transports[rank], 10, 0);
            expect_exchanges(*transports[rank], rank, 3);
            expect_gather(*transports[rank], 5000, 1);
        });
        EXPECT_EQ(has_board(), asking < 0);
    }
}

TEST_F(Nccl, ConnectsByAnId) {
    const annulus_nccl_id id = make_nccl_id();
    run_ranks(ranks_, [&](int rank) {
        const auto transport = make_nccl_transport(id, ranks_, rank, rank, long_timeout);
        EXPECT_EQ(transport->size(), ranks_);
        EXPECT_EQ(transport->rank(), rank);
        expect_gather(*transport, 10, 0);
        expect_exchanges(*transport, rank, 5);
    });
}

TEST_F(Nccl, BorrowsACommunicator) {
    std::vector<ncclComm_t> comms(ranks_);
    ncclUniqueId id;
    ASSERT_EQ(nccl().get_unique_id(&id), ncclSuccess);
    run_ranks(ranks_, [&](int rank) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER; // a blocking one
        check_cuda(cudaSetDevice(rank));
        ASSERT_EQ(nccl().comm_init_rank_config(&comms[rank], ranks_, id, rank, &config), ncclSuccess);
        for (int round = 0; round < 2; ++round) { // the communicator outlives each transport
            const auto transport = borrow_nccl_transport(comms[rank], false, round == 1);
            transport->check_device(ANNULUS_DEVICE_CUDA, rank);
            expect_gather(*transport, 10, round);
            expect_exchanges(*transport, rank, 5);
        }
        EXPECT_EQ(nccl().comm_destroy(comms[rank]), ncclSuccess);
    });
}

// The last rank never comes. A borrowed communicator that must not be aborted is broken for annulus alone. The kernel
// waits until the owner stops it, long after the transport is gone.
TEST_F(Nccl, ABorrowedCommunicatorIsAbortedByItsOwner) {
    for (const bool may_abort : {false, true}) {
        std::vector<ncclComm_t> comms(ranks_);
        ncclUniqueId id;
        ASSERT_EQ(nccl().get_unique_id(&id), ncclSuccess);
        run_ranks(ranks_, [&](int rank) {
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            check_cuda(cudaSetDevice(rank));
            ASSERT_EQ(nccl().comm_init_rank_config(&comms[rank], ranks_, id, rank, &config), ncclSuccess);
            auto transport = borrow_nccl_transport(comms[rank], may_abort);
            expect_gather(*transport, 10, 0);
            expect_exchanges(*transport, rank, 5); // connects all ranks
            if (rank == ranks_ - 1)
                return;
            transport->set_timeout(short_timeout);
            const Seat seat(rank);
            const DeviceBytes memory(1000, seat.stream());
            const Batch batch{{}, {{ranks_ - 1, memory.data(), memory.count()}}};
            const auto started = Clock::now();
            EXPECT_FALSE(transport->failure());
            transport->begin(batch, seat.device(), seat.stream());
            transport->finish(batch, seat.device(), seat.stream());
            while (!transport->failure() && Clock::now() - started < patience)
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
            EXPECT_GE(Clock::now() - started, short_timeout);
            expect_broken(*transport, seat, "another rank did not come within 1 s");
            if (may_abort) {
                check_cuda(cudaStreamSynchronize(seat.stream()));
                transport.reset();
                return;
            }
            EXPECT_EQ(cudaStreamQuery(seat.stream()), cudaErrorNotReady);
            transport.reset();
            EXPECT_LT(Clock::now() - started, patience);
            EXPECT_EQ(cudaStreamQuery(seat.stream()), cudaErrorNotReady);
            EXPECT_EQ(nccl().comm_abort(comms[rank]), ncclSuccess);
            check_cuda(cudaStreamSynchronize(seat.stream()));
        });
        check_cuda(cudaSetDevice(ranks_ - 1));
        EXPECT_EQ(nccl().comm_abort(comms[ranks_ - 1]), ncclSuccess);
        check_cuda(cudaSetDevice(0));
    }
}

TEST_F(Nccl, ExchangesInAGraph) {
    const Transports transports = make_connected();
    run_ranks(ranks_, [&](int rank) {
        Transport &transport = *transports[rank];
        const Seat seat(rank);
        Exchange exchange(transport, seat, 0);
        EXPECT_TRUE(transport.can_gather(seat.device(), seat.stream()));
        exchange.fill(0);
        exchange.begin(transport); // connects the ranks that have not met yet
        exchange.finish(transport);
        exchange.expect_arrived(0);

        cudaGraph_t graph = nullptr;
        check_cuda(cudaStreamBeginCapture(seat.stream(), cudaStreamCaptureModeThreadLocal));
        EXPECT_FALSE(transport.can_gather(seat.device(), seat.stream()));
        exchange.begin(transport);
        exchange.finish(transport);
        check_cuda(cudaStreamEndCapture(seat.stream(), &graph));
        cudaGraphExec_t replay = nullptr;
        check_cuda(cudaGraphInstantiate(&replay, graph, 0));
        for (int repetition = 1; repetition < 5; ++repetition) {
            exchange.fill(repetition);
            check_cuda(cudaGraphLaunch(replay, seat.stream()));
            exchange.expect_arrived(repetition);
        }
        check_cuda(cudaGraphExecDestroy(replay));
        check_cuda(cudaGraphDestroy(graph));
        expect_gather(transport, 10, 0);
    });
}

TEST_F(Nccl, IsForItsDevice) {
    const Transports transports = make();
    const auto check_device = [&](annulus_device device, int index) {
        return [&transports, device, index] { transports[1]->check_device(device, index); };
    };
    check_device(ANNULUS_DEVICE_CUDA, 1)();
    const std::string message = expect_refused(ANNULUS_ERROR_ARGUMENT, check_device(ANNULUS_DEVICE_CUDA, 0));
    expect_word(message, "CUDA device 1");
    expect_word(message, "CUDA device 0");
    expect_word(expect_refused(ANNULUS_ERROR_UNSUPPORTED, check_device(ANNULUS_DEVICE_CPU, 0)), "CUDA");
}

TEST(NcclCreation, RefusesDevicesThatAreNotThere) {
    const int count = device_count();
    const auto make = [](std::vector<int> devices) {
        return [devices] { make_nccl_transports(static_cast<int>(devices.size()), devices.data(), long_timeout); };
    };
    for (const int device : {-1, count})
        expect_word(expect_refused(ANNULUS_ERROR_ARGUMENT, make({0, device})),
                    "devices[1] is " + std::to_string(device));
    expect_word(expect_refused(ANNULUS_ERROR_ARGUMENT, make({0, 0})), "devices[1] is 0, as devices[0]");
    expect_word(
        expect_refused(ANNULUS_ERROR_ARGUMENT, [&] { make_nccl_transport(make_nccl_id(), 1, 0, count, long_timeout); }),
        "device is " + std::to_string(count));
}

TEST(NcclCreation, DoesNotWaitForEver) {
    const auto started = Clock::now();
    const std::string message =
        expect_refused(ANNULUS_ERROR_COMM, [] { make_nccl_transport(make_nccl_id(), 2, 0, 0, short_timeout); });
    EXPECT_LT(Clock::now() - started, patience);
    expect_word(message, "did not come within 1 s");
}

TEST(NcclCreation, OneRankIsEnough) {
    const int device = device_count() - 1;
    const Transports transports = make_nccl_transports(1, &device, long_timeout);
    ASSERT_EQ(transports.size(), 1u);
    EXPECT_EQ(transports[0]->size(), 1);
    transports[0]->check_device(ANNULUS_DEVICE_CUDA, device);
    expect_gather(*transports[0], 100, 0);
}

} // namespace
} // namespace annulus::test
