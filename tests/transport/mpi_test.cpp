// SPDX-License-Identifier: Apache-2.0
// The MPI transport, under mpirun. Every process runs every test. A failure on any rank fails the first rank's program.
#include "core/error.hpp"
#include "cpu/cpu_device.hpp"
#include "mpi/mpi_transport.hpp"
#include "traffic.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

using namespace annulus;

namespace {

int rank_of(MPI_Comm comm) {
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    return rank;
}

class Mpi : public testing::Test {
  protected:
    // All ranks begin a test at the same time.
    void SetUp() override { MPI_Barrier(MPI_COMM_WORLD); }

    void gather() {
        std::vector<int> all(transport_->size());
        transport_->all_gather(&rank_, all.data(), sizeof rank_);
    }

    const MPI_Comm world_ = MPI_COMM_WORLD;
    const int rank_ = rank_of(MPI_COMM_WORLD);
    std::unique_ptr<Transport> transport_ = make_mpi_transport(&world_);
    const int last_ = transport_->size() - 1;
    CpuDevice device_;
};

TEST_F(Mpi, KnowsItsPlace) {
    EXPECT_GE(transport_->size(), 2);
    EXPECT_EQ(transport_->rank(), rank_);
    EXPECT_TRUE(transport_->can_gather(device_, nullptr));
}

TEST_F(Mpi, Gathers) {
    check_gathers(*transport_, 1);
}

TEST_F(Mpi, Exchanges) {
    for (unsigned seed = 0; seed < 5; ++seed)
        check_exchanges(*transport_, device_, seed);
}

// Messages in several pieces, into which messages of more bytes than an int can count are cut.
TEST_F(Mpi, SendsInPieces) {
    const auto pieces = make_mpi_transport(&world_, 999);
    check_gathers(*pieces, 2);
    check_exchanges(*pieces, device_, 2);
}

TEST_F(Mpi, GathersAndExchangesOfOtherCommunicators) {
    MPI_Comm backwards = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank_, &backwards);
    const auto other = make_mpi_transport(&backwards);
    MPI_Comm_free(&backwards);
    EXPECT_EQ(other->rank(), last_ - rank_);
    for (unsigned seed = 0; seed < 3; ++seed) {
        check_exchanges(*other, device_, seed);
        check_gathers(*transport_, seed);
        check_exchanges(*transport_, device_, seed + 10);
        check_gathers(*other, seed);
    }
}

TEST_F(Mpi, IsForCpus) {
    transport_->check_device(ANNULUS_DEVICE_CPU, 0);
    EXPECT_THROW(transport_->check_device(ANNULUS_DEVICE_CUDA, 0), Error);
    const MPI_Comm none = MPI_COMM_NULL;
    EXPECT_THROW(make_mpi_transport(&none), Error);
}

// The last rank does not call before the calls of the other ranks have failed.
TEST_F(Mpi, ARankThatDoesNotCome) {
    if (rank_ != last_) {
        transport_->set_timeout(Transport::Seconds(0.3));
        const std::string message = "rank " + std::to_string(last_) + " did not come within 0.3 s";
        expect_error(ANNULUS_ERROR_COMM, message, [&] { gather(); });
        transport_->set_timeout(Transport::Seconds(300));
        expect_error(ANNULUS_ERROR_COMM, message, [&] { gather(); });
        expect_error(ANNULUS_ERROR_COMM, message, [&] { transport_->begin({}, device_, nullptr); });
        transport_->abort();
        EXPECT_STREQ(transport_->failure()->what(), message.c_str());
    } else {
        EXPECT_FALSE(transport_->failure());
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

TEST_F(Mpi, AFailedCallReceivesNothingMore) {
    std::uint32_t value = 1 + rank_;
    Batch batch;
    if (rank_ == 0) {
        batch.receives.push_back({1, &value, sizeof value});
        transport_->set_timeout(Transport::Seconds(0.3));
        transport_->begin(batch, device_, nullptr);
        expect_error(ANNULUS_ERROR_COMM, "rank 1 did not come within 0.3 s",
                     [&] { transport_->finish(batch, device_, nullptr); });
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank_ == 1) {
        batch.sends.push_back({0, &value, sizeof value});
        transport_->begin(batch, device_, nullptr);
        transport_->finish(batch, device_, nullptr);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    EXPECT_EQ(value, 1u + rank_);
}

TEST_F(Mpi, SizesThatDiffer) {
    std::uint32_t value = 0;
    Batch batch;
    if (rank_ == 0)
        batch.receives.push_back({1, &value, 4});
    else if (rank_ == 1)
        batch.sends.push_back({0, &value, 3});
    transport_->begin(batch, device_, nullptr);
    if (rank_ == 0)
        expect_error(ANNULUS_ERROR_INTERNAL, "a defect in annulus: rank 1 sends 3 bytes where rank 0 receives 4",
                     [&] { transport_->finish(batch, device_, nullptr); });
    else
        transport_->finish(batch, device_, nullptr);
}

// abort() comes from another thread of the same process. MPI is not told.
TEST_F(Mpi, AbortWakesItsRank) {
    const std::string message = "rank " + std::to_string(rank_) + " aborted the communicator";
    if (rank_ != last_) {
        const std::jthread aborting([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            transport_->abort();
        });
        expect_error(ANNULUS_ERROR_COMM, message, [&] { gather(); });
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

} // namespace
