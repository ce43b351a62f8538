// SPDX-License-Identifier: Apache-2.0
// What a warp does while it waits: a callable that does a piece of its work and says whether there was any. Of all work
// a tile has a share, or else what comes first would take the memory from the products and leave none for the end.
#pragma once

#include "cuda/fused/sm90/mbarrier.cuh"

namespace annulus {

struct NoOtherWork {
    __device__ __forceinline__ void begin_tile() const {}
    __device__ __forceinline__ void begin_rest() const {}
    __device__ __forceinline__ bool operator()() const { return false; }
};

// By a whole warp.
template <class OtherWork>
__device__ __forceinline__ void wait_working(const Mbarrier &barrier, unsigned parity, OtherWork &do_other_work) {
    while (!__all_sync(~0u, barrier.has_ended(parity)) && do_other_work())
        ;
    barrier.wait(parity);
}

// All that is left.
template <class OtherWork> __device__ __forceinline__ void do_all(OtherWork do_other_work) {
    do_other_work.begin_rest();
    while (do_other_work())
        ;
}

} // namespace annulus
