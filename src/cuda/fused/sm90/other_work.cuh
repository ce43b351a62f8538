// SPDX-License-Identifier: Apache-2.0
// What a warp does while it waits: a callable that does a piece of its work and says whether there was any left.
#pragma once

#include "cuda/fused/sm90/mbarrier.cuh"

namespace annulus {

struct NoOtherWork {
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
    while (do_other_work())
        ;
}

} // namespace annulus
