// SPDX-License-Identifier: Apache-2.0
// A warp on the host, for code that communicates only through warp-wide functions and memory. 32 lanes run in one
// thread; each runs until its next warp-wide function. Replaces src/cuda/device/warp.cuh.
#pragma once

#include <csetjmp>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

// The keywords of CUDA's headers mean something only to nvcc.
#undef __device__
#undef __forceinline__
#define __device__
#define __forceinline__ inline

namespace annulus {

using std::max;
using std::min;

constexpr int warp_threads = 32;

class HostWarp {
  public:
    // Runs work() in all lanes.
    static void run(const std::function<void()> &work) {
        HostWarp warp(work);
        current() = &warp;
        if (_setjmp(warp.main_) == 0)
            warp.resume();
        current() = nullptr;
    }
    static HostWarp *&current() {
        static HostWarp *warp = nullptr;
        return warp;
    }

    int lane() const { return lane_; }
    // Returns the values of all lanes. A lane may be one call ahead, so consecutive calls use two different places.
    const std::array<std::int64_t, warp_threads> &exchange(std::int64_t value) {
        Lane &own = lanes_[static_cast<std::size_t>(lane_)];
        auto &values = values_[own.calls++ % 2];
        values[static_cast<std::size_t>(lane_)] = value;
        if (_setjmp(own.place) == 0)
            pass_on();
        return values;
    }

  private:
    // A lane starts on a stack of its own, by its context. After that, jumps switch between lanes: unlike context
    // switches they leave the signal mask alone.
    struct Lane {
        ucontext_t context;
        std::jmp_buf place;
        std::vector<char> stack = std::vector<char>(std::size_t{1} << 16);
        unsigned calls = 0;
        bool is_started = false;
    };

    explicit HostWarp(const std::function<void()> &work) : work_(work) {
        for (Lane &lane : lanes_) {
            getcontext(&lane.context);
            lane.context.uc_stack.ss_sp = lane.stack.data();
            lane.context.uc_stack.ss_size = lane.stack.size();
            makecontext(&lane.context, &HostWarp::start, 0);
        }
    }
    static void start() {
        HostWarp &warp = *current();
        warp.work_();
        if (warp.lane_ + 1 == warp_threads) // all other lanes have ended before
            _longjmp(warp.main_, 1);
        warp.pass_on();
    }
    // Jumps to the next lane, and from the last lane to the first. Does not return.
    void pass_on() {
        lane_ = (lane_ + 1) % warp_threads;
        resume();
    }
    // Runs the current lane until its next exchange(), or its end.
    void resume() {
        Lane &lane = lanes_[static_cast<std::size_t>(lane_)];
        if (lane.is_started)
            _longjmp(lane.place, 1);
        lane.is_started = true;
        setcontext(&lane.context);
    }

    const std::function<void()> &work_;
    std::jmp_buf main_;
    int lane_ = 0;
    std::array<Lane, warp_threads> lanes_;
    std::array<std::array<std::int64_t, warp_threads>, 2> values_{};
};

struct HostThreadIndex {
    struct Number {
        operator unsigned() const { return static_cast<unsigned>(HostWarp::current()->lane()); }
    } x;
};
inline constexpr HostThreadIndex threadIdx{};
// There is one CTA of one warp.
struct HostBlockIndex {
    unsigned x;
};
inline constexpr HostBlockIndex blockIdx{0}, gridDim{1};

inline const auto &lanes_exchange(std::int64_t value) {
    return HostWarp::current()->exchange(value);
}
inline void __syncwarp() {
    lanes_exchange(0);
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
    unsigned bits = 0;
    const auto &values = lanes_exchange(predicate);
    for (std::size_t i = 0; i < values.size(); ++i)
        bits |= static_cast<unsigned>(values[i]) << i;
    return bits;
}
inline bool __any_sync(unsigned mask, bool predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
inline bool __all_sync(unsigned mask, bool predicate) {
    return __ballot_sync(mask, predicate) == ~0U;
}
template <class T> T __shfl_sync(unsigned, T value, int lane) {
    return static_cast<T>(lanes_exchange(static_cast<std::int64_t>(value))[static_cast<std::size_t>(lane % 32)]);
}
template <class T> T __shfl_down_sync(unsigned, T value, int distance) {
    const int lane = HostWarp::current()->lane() + distance;
    const auto &values = lanes_exchange(static_cast<std::int64_t>(value));
    return lane < warp_threads ? static_cast<T>(values[static_cast<std::size_t>(lane)]) : value;
}
inline int max_of_warp(int value) {
    return static_cast<int>(std::ranges::max(lanes_exchange(value)));
}
inline int min_of_warp(int value) {
    return static_cast<int>(std::ranges::min(lanes_exchange(value)));
}
inline int sum_of_warp(int value) {
    std::int64_t sum = 0;
    for (const std::int64_t x : lanes_exchange(value))
        sum += x;
    return static_cast<int>(sum);
}
inline int __ffs(unsigned x) {
    return x == 0 ? 0 : std::countr_zero(x) + 1;
}
inline int __popc(unsigned x) {
    return std::popcount(x);
}
inline int quotient_up(int a, int b) {
    return (a + b - 1) / b;
}

} // namespace annulus
