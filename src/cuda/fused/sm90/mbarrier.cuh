// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that count arrivals and bytes (mbarrier), and the rings that they guard.
#pragma once

#include "cuda/fused/math/shared_rows.cuh"

#include <cstdint>

namespace annulus {

// Phases alternate between parity 0 and 1. One thread sets the barrier up; publish_barriers() and __syncthreads() come
// before its first use.
struct alignas(8) Mbarrier {
    std::uint64_t state;

    __device__ __forceinline__ void init(unsigned arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals));
    }
    __device__ __forceinline__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
    }
    // Arrives once for the whole warp.
    __device__ __forceinline__ void arrive_as_warp() {
        asm volatile("{\n.reg .pred elected;\n"
                     "elect.sync _|elected, 0xffffffff;\n"
                     "@elected mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(shared_address(this))
                     : "memory");
    }
    // Arrives. The phase ends when all arrivals have come and `bytes` bytes have been copied.
    __device__ __forceinline__ void arrive_expecting(unsigned bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                     : "memory");
    }
    // Arrives as soon as this thread's cp.async copies are done.
    __device__ __forceinline__ void arrive_after_cp_async() {
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(this)) : "memory");
    }
    // Returns whether the phase of this parity has ended.
    __device__ __forceinline__ bool has_ended(unsigned parity) const {
        std::uint32_t done;
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, p;\n}\n"
                     : "=r"(done)
                     : "r"(shared_address(this)), "r"(parity)
                     : "memory");
        return done;
    }
    // Waits until the phase of this parity has ended.
    __device__ __forceinline__ void wait(unsigned parity) const {
        const std::uint32_t address = shared_address(this);
        std::uint32_t done;
        do {
            asm volatile("{\n.reg .pred p;\n"
                         "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                         "selp.b32 %0, 1, 0, p;\n}\n"
                         : "=r"(done)
                         : "r"(address), "r"(parity)
                         : "memory");
        } while (!done);
    }
};

__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// A place in a ring of `slots` slots: the slot that is filled, and emptied, after `count` others.
template <int slots> struct PipelineState {
    static_assert((slots & (slots - 1)) == 0);
    unsigned count = 0;

    __device__ __forceinline__ int slot() const { return static_cast<int>(count % slots); }
    // Return the parity that a producer waits for on an `empty` barrier, and a consumer on a `full` barrier.
    __device__ __forceinline__ unsigned parity_to_fill() const { return ~(count / slots) & 1; }
    __device__ __forceinline__ unsigned parity_to_empty() const { return count / slots & 1; }
};

} // namespace annulus
