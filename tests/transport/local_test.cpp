// SPDX-License-Identifier: Apache-2.0
// The local transport: what arrives, and how it fails. Ranks are threads.
#include "core/error.hpp"
#include "cpu/cpu_device.hpp"
#include "traffic.hpp"
#include "transport/local_transport.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <latch>
#include <mutex>
#include <set>
#include <string>
#include <thread>

using namespace annulus;
using namespace std::chrono_literals;

namespace {

using Ends = std::vector<std::unique_ptr<Transport>>;

constexpr Transport::Seconds shortly{0.2};

// Runs `body` with each rank's end, each in a thread.
void on_all_ranks(Ends &ends, const std::function<void(std::unique_ptr<Transport> &)> &body) {
    std::vector<std::jthread> threads;
    for (std::unique_ptr<Transport> &end : ends)
        threads.emplace_back([&] { body(end); });
}

void gather(Transport &transport) {
    std::vector<int> all(transport.size());
    const int mine = transport.rank();
    transport.all_gather(&mine, all.data(), sizeof mine);
}

// A message of four bytes from or to another rank.
struct Sample {
    Batch batch;
    std::uint32_t value = 0x01020304;

    static Sample to(int peer) { return Sample(peer, &Batch::sends); }
    static Sample from(int peer) { return Sample(peer, &Batch::receives); }
    Sample(const Sample &) = delete;

    void run(Transport &transport, Device &device) {
        transport.begin(batch, device, nullptr);
        transport.finish(batch, device, nullptr);
    }

  private:
    Sample(int peer, std::vector<Transfer> Batch::*way) { (batch.*way).push_back({peer, &value, sizeof value}); }
};

class LocalTransport : public testing::TestWithParam<int> {
  protected:
    Ends ends_ = make_local_transports(GetParam());
    CpuDevice device_;
};

TEST_P(LocalTransport, KnowsItsPlace) {
    ASSERT_EQ(ends_.size(), GetParam());
    for (int rank = 0; rank < GetParam(); ++rank) {
        EXPECT_EQ(ends_[rank]->size(), GetParam());
        EXPECT_EQ(ends_[rank]->rank(), rank);
        EXPECT_TRUE(ends_[rank]->can_gather(device_, nullptr));
    }
}

TEST_P(LocalTransport, Gathers) {
    on_all_ranks(ends_, [](auto &end) { check_gathers(*end, 1); });
}

TEST_P(LocalTransport, Exchanges) {
    on_all_ranks(ends_, [&](auto &end) {
        for (unsigned seed = 0; seed < 5; ++seed)
            check_exchanges(*end, device_, seed);
    });
}

// A rank that has done its part may be destroyed while other ranks still do theirs.
TEST_P(LocalTransport, EndsMayGoWhenTheyAreDone) {
    on_all_ranks(ends_, [&](auto &end) {
        check_gathers(*end, 2);
        check_exchanges(*end, device_, 2);
        check_gathers(*end, 3);
        end.reset();
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalTransport, testing::Values(1, 2, 3, 8), testing::PrintToStringParamName());

// Events belong to their device. Counts the mistakes that would be worst on CUDA: waiting for an event of a device that
// is gone, and reading data before waiting for its writer.
class EventDevice : public CpuDevice, public DeviceStreams {
  public:
    explicit EventDevice(std::atomic<int> &mistakes) : mistakes_(mistakes) {}

    ~EventDevice() override {
        const std::lock_guard lock(mutex);
        for (int &event : events_)
            living.erase(&event);
    }

    DeviceStreams *streams() override { return this; }
    void *comm_stream() override { return nullptr; }
    void admit_peers() override {}
    bool is_capturing(void *) const override { return false; }

    void *record(void *) override {
        const std::lock_guard lock(mutex);
        living.insert(&events_.emplace_back());
        return &events_.back();
    }

    void wait(void *, void *event) override {
        const std::lock_guard lock(mutex);
        mistakes_ += !living.contains(static_cast<int *>(event));
        ++waits_;
    }

    void copy(void *to, const void *from, std::size_t bytes, void *stream) override {
        mistakes_ += waits_ == waits_at_copy_;
        waits_at_copy_ = waits_;
        CpuDevice::copy(to, from, bytes, stream);
    }

    int waits() const { return waits_; }

  private:
    static inline std::mutex mutex;
    static inline std::set<int *> living;

    std::atomic<int> &mistakes_;
    std::deque<int> events_;
    int waits_ = 0, waits_at_copy_ = 0;
};

TEST(LocalTransportEvents, LiveUntilTheyWereWaitedFor) {
    std::atomic<int> mistakes = 0;
    for (unsigned seed = 0; seed < 20; ++seed) {
        Ends ends = make_local_transports(4);
        on_all_ranks(ends, [&](auto &end) {
            EventDevice device(mistakes);
            check_exchanges(*end, device, seed);
        });
    }
    EXPECT_EQ(mistakes, 0);
}

TEST(LocalTransportEvents, SendersWaitForTheCopy) {
    std::atomic<int> mistakes = 0;
    Ends ends = make_local_transports(2);
    on_all_ranks(ends, [&](auto &end) {
        EventDevice device(mistakes);
        (end->rank() == 0 ? Sample::to(1) : Sample::from(0)).run(*end, device);
        EXPECT_EQ(device.waits(), 1);
    });
    EXPECT_EQ(mistakes, 0);
}

TEST(LocalTransportFailure, ARankThatDoesNotGather) {
    Ends ends = make_local_transports(4);
    CpuDevice device;
    const std::string message = "rank 2 did not come within 0.2 s";
    on_all_ranks(ends, [&](auto &end) {
        if (end->rank() == 2)
            return;
        end->set_timeout(shortly);
        expect_error(ANNULUS_ERROR_COMM, message, [&] { gather(*end); });
    });
    on_all_ranks(ends, [&](auto &end) { // returns at once, although the timeout of rank 2 is minutes
        expect_error(ANNULUS_ERROR_COMM, message, [&] { gather(*end); });
        expect_error(ANNULUS_ERROR_COMM, message, [&] { Sample::from(0).run(*end, device); });
        end->abort();
        expect_error(ANNULUS_ERROR_COMM, message, [&] { Sample::to(0).run(*end, device); });
    });
}

TEST(LocalTransportFailure, OnesTimeoutFailsAll) {
    Ends ends = make_local_transports(3);
    on_all_ranks(ends, [&](auto &end) {
        if (end->rank() == 1)
            return;
        end->set_timeout(end->rank() == 0 ? shortly : Transport::Seconds(1e300));
        expect_error(ANNULUS_ERROR_COMM, "rank 1 did not come within 0.2 s", [&] { gather(*end); });
    });
}

TEST(LocalTransportFailure, ASenderThatDoesNotCome) {
    Ends ends = make_local_transports(2);
    CpuDevice device;
    ends[0]->set_timeout(shortly);
    expect_error(ANNULUS_ERROR_COMM, "rank 1 did not come within 0.2 s",
                 [&] { Sample::from(1).run(*ends[0], device); });
}

TEST(LocalTransportFailure, AReceiverThatDoesNotCome) {
    Ends ends = make_local_transports(2);
    CpuDevice device;
    ends[0]->set_timeout(shortly);
    expect_error(ANNULUS_ERROR_COMM, "rank 1 did not come within 0.2 s", [&] { Sample::to(1).run(*ends[0], device); });
    // The memory of what was sent may be changed again.
    expect_error(ANNULUS_ERROR_COMM, "rank 1 did not come within 0.2 s",
                 [&] { Sample::from(0).run(*ends[1], device); });
}

// failure() as another thread sees it while a call waits, and after that call has failed.
TEST(LocalTransportFailure, IsToldToAnyThread) {
    Ends ends = make_local_transports(2);
    ends[0]->set_timeout(std::chrono::seconds(1));
    std::thread waiting(
        [&] { expect_error(ANNULUS_ERROR_COMM, "rank 1 did not come within 1 s", [&] { gather(*ends[0]); }); });
    EXPECT_FALSE(ends[0]->failure());
    EXPECT_FALSE(ends[1]->failure());
    waiting.join();
    for (const auto &end : ends) {
        const std::optional<Error> failure = end->failure();
        ASSERT_TRUE(failure);
        EXPECT_EQ(failure->status(), ANNULUS_ERROR_COMM);
        EXPECT_STREQ(failure->what(), "rank 1 did not come within 1 s");
    }
    ends[1]->abort(); // the first failure stays
    EXPECT_STREQ(ends[1]->failure()->what(), "rank 1 did not come within 1 s");
}

// Waits in one of the three ways in which ranks wait.
void wait_in_some_way(Transport &transport, Device &device) {
    if (transport.rank() == 0)
        gather(transport);
    else if (transport.rank() == 1)
        Sample::from(3).run(transport, device);
    else
        Sample::to(3).run(transport, device);
}

TEST(LocalTransportFailure, AbortWakesAll) {
    Ends ends = make_local_transports(4);
    CpuDevice device;
    on_all_ranks(ends, [&](auto &end) {
        if (end->rank() == 3) {
            std::this_thread::sleep_for(50ms);
            end->abort();
        } else
            expect_error(ANNULUS_ERROR_COMM, "rank 3 aborted the communicator",
                         [&] { wait_in_some_way(*end, device); });
    });
}

TEST(LocalTransportFailure, ADestroyedEndWakesAll) {
    Ends ends = make_local_transports(4);
    CpuDevice device;
    on_all_ranks(ends, [&](auto &end) {
        if (end->rank() == 3) {
            std::this_thread::sleep_for(50ms);
            end.reset();
        } else
            expect_error(ANNULUS_ERROR_COMM, "rank 3 destroyed its end of the communicator",
                         [&] { wait_in_some_way(*end, device); });
    });
}

TEST(LocalTransportFailure, ADestroyedEndBreaksNothingByItself) {
    Ends ends = make_local_transports(3);
    CpuDevice device;
    ends[2].reset();
    on_all_ranks(ends, [&](auto &end) {
        if (end)
            (end->rank() == 0 ? Sample::to(1) : Sample::from(0)).run(*end, device);
    });
    expect_error(ANNULUS_ERROR_COMM, "rank 2 destroyed its end of the communicator", [&] { gather(*ends[0]); });
    expect_error(ANNULUS_ERROR_COMM, "rank 2 destroyed its end of the communicator", [&] { gather(*ends[1]); });
}

TEST(LocalTransportFailure, ADestroyedEndTakesItsMessagesAlong) {
    Ends ends = make_local_transports(2);
    CpuDevice device;
    {
        Sample sample = Sample::to(1);
        ends[0]->begin(sample.batch, device, nullptr);
        ends[0].reset();
    }
    expect_error(ANNULUS_ERROR_COMM, "rank 0 destroyed its end of the communicator",
                 [&] { Sample::from(0).run(*ends[1], device); });
}

TEST(LocalTransportFailure, SizesThatDiffer) {
    Ends ends = make_local_transports(2);
    CpuDevice device;
    on_all_ranks(ends, [&](auto &end) {
        Sample sample = end->rank() == 0 ? Sample::to(1) : Sample::from(0);
        for (Transfer &receive : sample.batch.receives)
            receive.bytes = 3;
        expect_error(ANNULUS_ERROR_INTERNAL, "a defect in annulus: rank 0 sends 4 bytes where rank 1 receives 3",
                     [&] { sample.run(*end, device); });
    });
    ends = make_local_transports(2);
    on_all_ranks(ends, [&](auto &end) {
        const char mine[2] = {};
        char all[4];
        EXPECT_THROW(end->all_gather(mine, all, end->rank() + 1), Error);
        EXPECT_THROW(gather(*end), Error);
    });
}

class BadDevice : public CpuDevice {
    void copy(void *, const void *, std::size_t, void *) override { throw Error(ANNULUS_ERROR_DEVICE, "no copy"); }
};

TEST(LocalTransportFailure, ADevicesErrorIsToldToAll) {
    Ends ends = make_local_transports(2);
    on_all_ranks(ends, [&](auto &end) {
        BadDevice device;
        if (end->rank() == 0)
            expect_error(ANNULUS_ERROR_COMM, "rank 1 failed: no copy", [&] { Sample::to(1).run(*end, device); });
        else
            expect_error(ANNULUS_ERROR_DEVICE, "no copy", [&] { Sample::from(0).run(*end, device); });
        expect_error(ANNULUS_ERROR_COMM, "rank 1 failed: no copy", [&] { gather(*end); });
    });
}

class SlowDevice : public CpuDevice {
  public:
    std::latch begun{1};
    std::atomic<bool> done = false;

  private:
    void copy(void *to, const void *from, std::size_t bytes, void *stream) override {
        begun.count_down();
        std::this_thread::sleep_for(500ms);
        CpuDevice::copy(to, from, bytes, stream);
        done = true;
    }
};

TEST(LocalTransportFailure, AFailedSenderStaysUntilItsMemoryWasRead) {
    Ends ends = make_local_transports(2);
    SlowDevice device;
    on_all_ranks(ends, [&](auto &end) {
        if (end->rank() == 1) {
            Sample sample = Sample::from(0);
            sample.value = 0;
            sample.run(*end, device); // a message that had arrived stays
            EXPECT_EQ(sample.value, 0x01020304u);
            return;
        }
        Sample sample = Sample::to(1);
        end->begin(sample.batch, device, nullptr);
        device.begun.wait();
        end->set_timeout(shortly);
        expect_error(ANNULUS_ERROR_COMM, "rank 1 did not come within 0.2 s",
                     [&] { end->finish(sample.batch, device, nullptr); });
        EXPECT_TRUE(device.done);
        sample.value = 0;
    });
}

TEST(LocalTransportFailure, AbortAndDestructionStayUntilMemoryWasRead) {
    for (const bool abort : {false, true}) {
        Ends ends = make_local_transports(2);
        SlowDevice device;
        on_all_ranks(ends, [&](auto &end) {
            if (end->rank() == 1) {
                Sample::from(0).run(*end, device);
                return;
            }
            Sample sample = Sample::to(1);
            end->begin(sample.batch, device, nullptr);
            device.begun.wait();
            if (abort)
                end->abort();
            else
                end.reset();
            EXPECT_TRUE(device.done);
            sample.value = 0;
        });
    }
}

TEST(LocalTransportFailure, NothingIsReadAfterAnAbort) {
    Ends ends = make_local_transports(3);
    SlowDevice device;
    const std::string message = "rank 0 aborted the communicator";
    on_all_ranks(ends, [&](auto &end) {
        if (end->rank() == 1) {
            Sample slow = Sample::from(2);
            std::uint32_t untouched = 0;
            slow.batch.receives.push_back({0, &untouched, sizeof untouched});
            expect_error(ANNULUS_ERROR_COMM, message, [&] { slow.run(*end, device); });
            EXPECT_EQ(untouched, 0u);
            return;
        }
        Sample sample = Sample::to(1);
        end->begin(sample.batch, device, nullptr);
        device.begun.wait();
        if (end->rank() == 0)
            end->abort();
        expect_error(ANNULUS_ERROR_COMM, message, [&] {
            end->finish(sample.batch, device, nullptr);
            gather(*end);
        });
    });
}

class CapturingDevice : public CpuDevice, public DeviceStreams {
    DeviceStreams *streams() override { return this; }
    void *comm_stream() override { return nullptr; }
    void *record(void *) override { return nullptr; }
    void wait(void *, void *) override {}
    void admit_peers() override {}
    bool is_capturing(void *) const override { return true; }
};

TEST(LocalTransportDevices, StandsAsideDuringCapture) {
    Ends ends = make_local_transports(1);
    CapturingDevice capturing;
    CpuDevice device;
    EXPECT_FALSE(ends[0]->can_gather(capturing, nullptr));
    expect_error(ANNULUS_ERROR_UNSUPPORTED,
                 "stream is being captured; a local communicator cannot be used then, one of NCCL can",
                 [&] { ends[0]->check_stream(capturing, nullptr); });
    ends[0]->check_stream(device, nullptr);
    check_exchanges(*ends[0], device, 1);
}

TEST(LocalTransportDevices, IsForOneKindOfDevices) {
    Ends ends = make_local_transports(2);
    ends[0]->check_device(ANNULUS_DEVICE_CPU, 0);
    ends[1]->check_device(ANNULUS_DEVICE_CPU, 0);
    expect_error(ANNULUS_ERROR_ARGUMENT,
                 "comm is used with the CPU by another context; it cannot be used with a CUDA device",
                 [&] { ends[1]->check_device(ANNULUS_DEVICE_CUDA, 0); });
}

} // namespace
