// SPDX-License-Identifier: Apache-2.0
// The NCCL transport between threads with a GPU each: what arrives, and that nothing waits for a rank that is not there
// for longer than it was told to.
#include "core/error.hpp"
#include "cuda/cuda_place.hpp"
#include "engine/device.hpp"
#include "transport/nccl_library.hpp"
#include "transport/nccl_transport.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;
using Transports = std::vector<std::unique_ptr<Transport>>;

constexpr Transport::Seconds short_timeout{1}, long_timeout{120};
constexpr auto patience = 30s; // for what should take a short timeout

int device_count() {
    int count = 0;
    check_cuda(cudaGetDeviceCount(&count));
    return count;
}

template <class... Parts> Bytes random_bytes(std::size_t count, Parts... of) {
    std::seed_seq seed{of...};
    std::mt19937 random(seed);
    Bytes bytes(count);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::uint8_t>(random()); });
    return bytes;
}

// Runs part(rank) for each rank in a thread of its own.
void run_ranks(int ranks, const std::function<void(int)> &part) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&part, rank] {
            try {
                part(rank);
            } catch (const std::exception &error) {
                ADD_FAILURE() << "rank " << rank << ": " << error.what();
            }
        });
    for (std::thread &thread : threads)
        thread.join();
}

// Returns the message.
std::string expect_refused(annulus_status status, const std::function<void()> &part) {
    try {
        part();
    } catch (const Error &error) {
        EXPECT_STREQ(annulus_status_name(error.status()), annulus_status_name(status)) << error.what();
        return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
}

void expect_word(const std::string &message, const std::string &word) {
    EXPECT_NE(message.find(word), std::string::npos) << message << " does not say " << word;
}

void expect_gather(Transport &transport, std::size_t bytes, int round) {
    Bytes wanted;
    for (int rank = 0; rank < transport.size(); ++rank) {
        const Bytes part = random_bytes(bytes, round, rank);
        wanted.insert(wanted.end(), part.begin(), part.end());
    }
    Bytes got(wanted.size());
    transport.all_gather(random_bytes(bytes, round, transport.rank()).data(), got.data(), bytes);
    EXPECT_TRUE(got == wanted) << bytes << " bytes in round " << round << " at rank " << transport.rank();
}

// Device memory with bytes in it, of the current device.
class DeviceBytes {
  public:
    DeviceBytes(const Bytes &bytes, cudaStream_t stream) : count_(bytes.size()), stream_(stream) {
        check_cuda(cudaMalloc(&data_, count_));
        set(bytes);
    }
    DeviceBytes(std::size_t count, cudaStream_t stream) : DeviceBytes(Bytes(count, 0xa5), stream) {}
    DeviceBytes(DeviceBytes &&other) noexcept
        : count_(other.count_), stream_(other.stream_), data_(std::exchange(other.data_, nullptr)) {}
    ~DeviceBytes() { cudaFree(data_); }

    void *data() const { return data_; }
    std::size_t count() const { return count_; }
    void set(const Bytes &bytes) {
        check_cuda(cudaMemcpyAsync(data_, bytes.data(), count_, cudaMemcpyHostToDevice, stream_));
    }
    Bytes get() const {
        Bytes bytes(count_);
        check_cuda(cudaMemcpyAsync(bytes.data(), data_, count_, cudaMemcpyDeviceToHost, stream_));
        check_cuda(cudaStreamSynchronize(stream_));
        return bytes;
    }

  private:
    std::size_t count_;
    cudaStream_t stream_;
    void *data_ = nullptr;
};

// A rank's device, current in its thread, with a stream.
class Seat {
  public:
    explicit Seat(int index) : device_(make_device(ANNULUS_DEVICE_CUDA, index)), scope_(*device_) {
        check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    ~Seat() { cudaStreamDestroy(stream_); }
    Seat(const Seat &) = delete;
    Seat &operator=(const Seat &) = delete;

    Device &device() const { return *device_; }
    cudaStream_t stream() const { return stream_; }

  private:
    std::unique_ptr<Device> device_;
    DeviceScope scope_;
    cudaStream_t stream_ = nullptr;
};

// One rank's side of messages whose sizes and contents both sides draw alike.
class Exchange {
  public:
    Exchange(const Transport &transport, const Seat &seat, int round) : rank_(transport.rank()), seat_(seat) {
        std::mt19937 random(static_cast<unsigned>(round));
        for (int from = 0; from < transport.size(); ++from)
            for (int to = 0; to < transport.size(); ++to)
                for (int i = static_cast<int>(random() % 4); i > 0 && from != to; --i)
                    add(from, to, i, 1 + random() % (std::size_t{1} << (random() % 20)));
        for (std::size_t i = 0; i < sent_.size(); ++i)
            batch_.sends[i].data = sent_[i].data();
        for (std::size_t i = 0; i < received_.size(); ++i)
            batch_.receives[i].data = received_[i].data();
    }

    void begin(Transport &transport) { transport.begin(batch_, seat_.device(), seat_.stream()); }
    void finish(Transport &transport) { transport.finish(batch_, seat_.device(), seat_.stream()); }

    // Contents of their own for each repetition.
    void fill(int repetition) {
        for (std::size_t i = 0; i < sent_.size(); ++i)
            sent_[i].set(contents(rank_, batch_.sends[i].peer, sent_names_[i], sent_[i].count(), repetition));
        check_cuda(cudaStreamSynchronize(seat_.stream()));
    }
    void expect_arrived(int repetition) const {
        check_cuda(cudaStreamSynchronize(seat_.stream()));
        for (std::size_t i = 0; i < received_.size(); ++i) {
            const int from = batch_.receives[i].peer;
            EXPECT_TRUE(received_[i].get() ==
                        contents(from, rank_, received_names_[i], received_[i].count(), repetition))
                << "message " << received_names_[i] << " from rank " << from << " to rank " << rank_;
        }
    }

  private:
    static Bytes contents(int from, int to, int name, std::size_t bytes, int repetition) {
        return random_bytes(bytes, from, to, name, repetition);
    }
    void add(int from, int to, int name, std::size_t bytes) {
        if (from == rank_) {
            sent_.emplace_back(bytes, seat_.stream());
            sent_names_.push_back(name);
            batch_.sends.push_back({to, nullptr, bytes});
        }
        if (to == rank_) {
            received_.emplace_back(bytes, seat_.stream());
            received_names_.push_back(name);
            batch_.receives.push_back({from, nullptr, bytes});
        }
    }

    const int rank_;
    const Seat &seat_;
    Batch batch_;
    std::vector<DeviceBytes> sent_, received_;
    std::vector<int> sent_names_, received_names_;
};

void expect_exchanges(Transport &transport, int device, int rounds) {
    const Seat seat(device);
    for (int round = 0; round < rounds; ++round) {
        Exchange first(transport, seat, 2 * round), second(transport, seat, 2 * round + 1);
        first.fill(1);
        second.fill(2);
        first.begin(transport);
        second.begin(transport);
        first.finish(transport);
        second.finish(transport);
        first.expect_arrived(1);
        second.expect_arrived(2);
    }
}

class Nccl : public testing::Test {
  protected:
    void SetUp() override {
        if (ranks_ < 2)
            GTEST_SKIP() << "there is one device";
    }

    Transports make() const {
        Transports transports = make_nccl_transports(ranks_, nullptr);
        for (const auto &transport : transports)
            transport->set_timeout(long_timeout);
        return transports;
    }

    // After something between all ranks, which is when NCCL connects them.
    Transports make_connected() const {
        Transports transports = make();
        run_ranks(ranks_, [&](int rank) {
            expect_gather(*transports[rank], 8, 0);
            expect_exchanges(*transports[rank], rank, 3);
        });
        return transports;
    }

    // All calls of a broken transport fail with the first message.
    static void expect_broken(Transport &transport, const Seat &seat, const std::string &message) {
        const Batch none;
        char byte = 0;
        std::vector<char> all(transport.size());
        const auto started = Clock::now();
        const auto expect_message = [&](const std::function<void()> &part) {
            EXPECT_EQ(expect_refused(ANNULUS_ERROR_COMM, part), message);
        };
        expect_message([&] { transport.all_gather(&byte, all.data(), 1); });
        expect_message([&] { transport.begin(none, seat.device(), seat.stream()); });
        expect_message([&] { transport.finish(none, seat.device(), seat.stream()); });
        EXPECT_LT(Clock::now() - started, short_timeout);
    }

    const int ranks_ = std::min(device_count(), 4);
};

TEST_F(Nccl, RanksAreInTheOrderOfDevices) {
    std::vector<int> devices(ranks_);
    std::iota(devices.rbegin(), devices.rend(), 0);
    const Transports transports = make_nccl_transports(ranks_, devices.data());
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
        for (int round = 0; round < 2; ++round) { // it outlives each transport
            const auto transport = borrow_nccl_transport(comms[rank]);
            transport->check_device(ANNULUS_DEVICE_CUDA, rank);
            expect_gather(*transport, 10, round);
            expect_exchanges(*transport, rank, 5);
        }
        EXPECT_EQ(nccl().comm_destroy(comms[rank]), ncclSuccess);
    });
}

TEST_F(Nccl, ExchangesInAGraph) {
    const Transports transports = make_connected();
    run_ranks(ranks_, [&](int rank) {
        Transport &transport = *transports[rank];
        const Seat seat(rank);
        Exchange exchange(transport, seat, 0);
        EXPECT_TRUE(transport.can_gather(seat.device(), seat.stream()));
        exchange.fill(0);
        exchange.begin(transport); // connects those that have not met yet
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

// begin() gives the GPU a receive that nothing is sent to.
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
        } catch (const Error &error) { // where these two were not connected yet
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

// What the rank itself computes before an exchange may take longer than the timeout.
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
    const Transports transports = make_connected();
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
        return [devices] { make_nccl_transports(static_cast<int>(devices.size()), devices.data()); };
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
    const Transports transports = make_nccl_transports(1, &device);
    ASSERT_EQ(transports.size(), 1u);
    EXPECT_EQ(transports[0]->size(), 1);
    transports[0]->check_device(ANNULUS_DEVICE_CUDA, device);
    expect_gather(*transports[0], 100, 0);
}

} // namespace
} // namespace annulus::test
