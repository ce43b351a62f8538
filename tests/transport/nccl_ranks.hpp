// SPDX-License-Identifier: Apache-2.0
// Ranks as threads with a GPU each over NCCL, and the messages between them.
#pragma once

#include "core/error.hpp"
#include "cuda/cuda_memory.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/nccl/nccl_transport.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace annulus::test {

using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;
using Transports = std::vector<std::unique_ptr<Transport>>;

constexpr Transport::Seconds short_timeout{1}, long_timeout{120};
constexpr std::chrono::seconds patience{30}; // limit for calls that should end after a short timeout

int device_count();

// True if this process has the memory of a board, which ranks of one host share.
bool has_board();

// Runs part(rank) for each rank, each in a thread.
void run_ranks(int ranks, const std::function<void(int)> &part);

// Expects that `part` throws an error of this status. Returns the message.
std::string expect_refused(annulus_status status, const std::function<void()> &part);
void expect_word(const std::string &message, const std::string &word);

// Gathers bytes that are drawn anew in each round, and expects those of all ranks.
void expect_gather(Transport &transport, std::size_t bytes, int round);

// Memory on the current device that holds bytes.
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

// A rank's device, made current in its thread, with a stream.
class Seat {
  public:
    explicit Seat(int index) : device_(make_cuda_device(index)), scope_(*device_) {
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

// One rank's side of messages. Both sides draw their sizes and contents in the same way.
class Exchange {
  public:
    Exchange(const Transport &transport, const Seat &seat, int round);

    void begin(Transport &transport) { transport.begin(batch_, seat_.device(), seat_.stream()); }
    void finish(Transport &transport) { transport.finish(batch_, seat_.device(), seat_.stream()); }

    // Each repetition has contents of its own.
    void fill(int repetition);
    void expect_arrived(int repetition) const;

  private:
    void add(int from, int to, int name, std::size_t bytes);

    const int rank_;
    const Seat &seat_;
    Batch batch_;
    std::vector<DeviceBytes> sent_, received_;
    std::vector<int> sent_names_, received_names_;
};

void expect_exchanges(Transport &transport, int device, int rounds);

class Nccl : public testing::Test {
  protected:
    void SetUp() override {
        if (ranks_ < 2)
            GTEST_SKIP() << "there is one device";
    }

    Transports make(bool only_nccl = false) const {
        Transports transports = make_nccl_transports(ranks_, nullptr, long_timeout, only_nccl);
        for (const auto &transport : transports)
            transport->set_timeout(long_timeout);
        return transports;
    }

    // Returns transports after an exchange between all ranks, in which NCCL connects them.
    Transports make_connected(bool only_nccl = false) const {
        Transports transports = make(only_nccl);
        run_ranks(ranks_, [&](int rank) {
            expect_gather(*transports[rank], 8, 0);
            expect_exchanges(*transports[rank], rank, 3);
        });
        return transports;
    }

    // Expects that all calls of a broken transport fail with the first message.
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
        const std::optional<Error> failure = transport.failure();
        EXPECT_LT(Clock::now() - started, short_timeout);
        ASSERT_TRUE(failure);
        EXPECT_EQ(failure->what(), message);
    }

    const int ranks_ = std::min(device_count(), 4);
};

} // namespace annulus::test
