// SPDX-License-Identifier: Apache-2.0
// What a warp does while it waits. Other work is a callable that does one piece of the work and returns whether there
// was any. Each tile has a share of all work. If all came first, it would take the memory from the products, and leave
// none for the end.
#pragma once

#include "cuda/fused/sm90/mbarrier.cuh"

namespace annulus {

struct NoOtherWork {
    __device__ __forceinline__ void begin_tile() const {}
    __device__ __forceinline__ void begin_rest() const {}
    __device__ __forceinline__ bool operator()() const { return false; }
};

// Waits for a barrier, and does other work until then. A whole warp calls it.
template <class OtherWork>
__device__ __forceinline__ void work_while_waiting(const Mbarrier &barrier, unsigned parity, OtherWork &do_other_work) {
    while (!__all_sync(~0u, barrier.has_ended(parity)) && do_other_work())
        ;
    barrier.wait(parity);
}

// Does all the remaining work.
template <class OtherWork> __device__ __forceinline__ void do_all(OtherWork do_other_work) {
    do_other_work.begin_rest();
    while (do_other_work())
        ;
}

} // namespace annulus
