// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of this process.
#include "cli/ranks/thread_ranks.hpp"

#include "cli/ranks/outcome.hpp"
#include "cli/report/failure.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

namespace annulus::cli {

namespace {

class ThreadMeeting final : public Meeting {
  public:
    explicit ThreadMeeting(int count) : count_(count) {}

    void all_gather(int rank, const void *mine, void *all, std::size_t bytes) override {
        std::unique_lock lock(mutex_);
        given_.resize(bytes * static_cast<std::size_t>(count_));
        std::memcpy(given_.data() + bytes * static_cast<std::size_t>(rank), mine, bytes);
        const std::uint64_t before = complete_;
        if (++givers_ == count_) {
            givers_ = 0;
            gathered_.swap(given_); // stays valid until all ranks have read it and come to the next meeting
            ++complete_;
            wake_.notify_all();
        } else {
            wake_.wait(lock, [&] { return complete_ != before || abandoned_; });
        }
        if (complete_ == before)
            throw ConnectionFailure("another rank has failed");
        std::copy(gathered_.begin(), gathered_.end(), static_cast<std::byte *>(all));
    }

    // Wakes up all ranks, since one rank will not come any more.
    void abandon() {
        const std::lock_guard lock(mutex_);
        abandoned_ = true;
        wake_.notify_all();
    }

  private:
    const int count_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::byte> given_, gathered_;
    int givers_ = 0;
    std::uint64_t complete_ = 0; // number of complete meetings
    bool abandoned_ = false;
};

// Returns a rank's part of the CPU threads. A negative number stays as it is; the library refuses it.
std::int32_t share_of_threads(const ExecutionOptions &execution, int ranks) {
    return execution.threads < 0 ? execution.threads : std::max(execution.thread_count() / ranks, 1);
}

class ThreadRanks final : public Ranks {
  public:
    ThreadRanks(int count, const RankOptions &options, const ExecutionOptions &execution)
        : options_(options), execution_(execution), count_(count) {
        execution_.threads = share_of_threads(execution, count);
    }

    int count() const override { return count_; }

    void run(const std::function<void(const Rank &)> &work) override {
        const std::vector<Comm> comms = connect();
        ThreadMeeting meeting(count_);
        std::vector<Outcome> outcomes(static_cast<std::size_t>(count_));
        const auto give_up = [&] {
            meeting.abandon();
            for (const Comm &comm : comms)
                annulus_comm_abort(comm.get());
        };
        const auto part = [&](int index) {
            annulus_comm *comm = comms[static_cast<std::size_t>(index)].get();
            Rank rank{index, count_, execution_, comm, false, &meeting, options_.sharding, options_.only_nccl};
            rank.execution.device = device_of(index);
            Outcome &outcome = outcomes[static_cast<std::size_t>(index)];
            outcome = outcome_of([&] { work(rank); });
            if (outcome.kind != Outcome::Kind::fine)
                give_up();
        };
        const Outcome started = outcome_of([&] { run_threads(part, give_up); });
        outcomes.push_back(started);
        if (const Outcome &cause = cause_of(outcomes); cause.kind != Outcome::Kind::fine)
            throw Failure(cause.exit_code, cause.message);
    }

  private:
    DeviceChoice device_of(int index) const {
        DeviceChoice device = execution_.device;
        if (device.kind == ANNULUS_DEVICE_CUDA)
            device.index += index;
        return device;
    }

    std::vector<Comm> connect() const {
        for (int i = 0; i < count_; ++i)
            create_context(device_of(i)); // before the threads start, so that there is one failure to report
        std::vector<annulus_comm *> ends(static_cast<std::size_t>(count_));
        if (options_.only_nccl)
            create_nccl(ends.data());
        else
            check(annulus_comm_create_local(ends.data(), count_, nullptr), "--ranks");
        std::vector<Comm> comms(ends.begin(), ends.end());
        if (options_.timeout)
            for (const Comm &comm : comms)
                check(annulus_comm_set_timeout(comm.get(), *options_.timeout), "--timeout");
        return comms;
    }

    void create_nccl(annulus_comm **ends) const {
        std::vector<std::int32_t> devices;
        for (int i = 0; i < count_; ++i)
            devices.push_back(device_of(i).index);
        annulus_comm_options options = ANNULUS_COMM_OPTIONS_INIT;
        options.creation_timeout = options_.timeout.value_or(0);
        options.flags = ANNULUS_COMM_ONLY_NCCL;
        check(annulus_comm_create_nccl_devices(ends, count_, devices.data(), &options), "--only-nccl");
    }

    template <class Work, class GiveUp> void run_threads(const Work &work, const GiveUp &give_up) const {
        std::vector<std::jthread> threads; // joined when this returns or throws
        try {
            for (int index = 0; index < count_; ++index)
                threads.emplace_back(work, index);
        } catch (const std::system_error &error) {
            give_up();
            throw Failure(exit_failed, "--ranks: cannot start a thread for rank " + std::to_string(threads.size()) +
                                           ": " + error.code().message());
        } catch (...) {
            give_up();
            throw;
        }
    }

    const RankOptions options_;
    ExecutionOptions execution_; // of each rank, except the device's number
    const int count_;
};

} // namespace

std::unique_ptr<Ranks> make_thread_ranks(int count, const RankOptions &options, const ExecutionOptions &execution) {
    return std::make_unique<ThreadRanks>(count, options, execution);
}

} // namespace annulus::cli
