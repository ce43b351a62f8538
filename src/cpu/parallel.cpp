// SPDX-License-Identifier: Apache-2.0
#include "cpu/parallel.hpp"

#include "engine/blocked_signals.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace annulus {

namespace {

class Team {
  public:
    Team(std::int64_t phases, FunctionRef<std::int64_t(std::int64_t)> items,
         FunctionRef<void(std::int64_t, std::int64_t, int)> work)
        : phases_(phases), items_(items), work_(work) {}

    void run(int threads) {
        std::vector<std::thread> others;
        if (threads > 1)
            start(others, threads);
        take_part(0);
        for (std::thread &thread : others)
            thread.join();
    }

  private:
    // Starts threads until there are `threads`, the calling one included, or until the system refuses to start one.
    void start(std::vector<std::thread> &others, int threads) {
        const BlockedSignals in_threads;
        try {
            others.reserve(static_cast<std::size_t>(threads) - 1);
            while (size_ < threads) {
                const int worker =
                    size_++; // counted before it starts: a phase ends only when all counted threads have arrived
                others.emplace_back([this, worker] { take_part(worker); });
            }
        } catch (...) { // out of threads or memory: continue with the threads that exist
            size_ = static_cast<int>(others.size()) + 1;
        }
    }

    void take_part(int worker) {
        for (std::int64_t phase = 0; phase < phases_; ++phase) {
            const std::int64_t count = items_(phase);
            for (std::int64_t item = claim(); item < count; item = claim())
                work_(phase, item, worker);
            if (phase + 1 < phases_)
                wait_for_all();
        }
    }

    // Relaxed, so that it orders no memory accesses. Items of one phase must not share what they write. If two of them
    // do, the thread sanitizer sees it in whatever order they run.
    std::int64_t claim() { return next_.fetch_add(1, std::memory_order_relaxed); }

    void wait_for_all() {
        std::unique_lock lock(mutex_);
        if (++arrived_ == size_) {
            arrived_ = 0;
            next_ = 0;
            ++phases_ended_;
            lock.unlock();
            phase_ended_.notify_all();
        } else {
            phase_ended_.wait(lock, [this, seen = phases_ended_] { return phases_ended_ != seen; });
        }
    }

    std::int64_t phases_;
    FunctionRef<std::int64_t(std::int64_t)> items_;
    FunctionRef<void(std::int64_t, std::int64_t, int)> work_;
    std::atomic<std::int64_t> next_ = 0;
    std::mutex mutex_;
    std::condition_variable phase_ended_;
    std::atomic<int> size_ = 1; // final before worker 0, which starts the other threads, takes part
    int arrived_ = 0;
    std::int64_t phases_ended_ = 0;
};

} // namespace

void parallel_phases(int threads, std::int64_t phases, FunctionRef<std::int64_t(std::int64_t)> items,
                     FunctionRef<void(std::int64_t, std::int64_t, int)> work) {
    std::int64_t max_items = 1; // more threads than a phase has items would only wait
    for (std::int64_t phase = 0; phase < phases && max_items < threads; ++phase)
        max_items = std::max(max_items, items(phase));
    Team(phases, items, work).run(static_cast<int>(std::min<std::int64_t>(threads, max_items)));
}

void parallel_for(int threads, std::int64_t items, FunctionRef<void(std::int64_t, int)> work) {
    parallel_phases(
        threads, 1, [items](std::int64_t) { return items; },
        [work](std::int64_t, std::int64_t item, int worker) { work(item, worker); });
}

} // namespace annulus
