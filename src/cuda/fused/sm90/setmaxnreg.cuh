// SPDX-License-Identifier: Apache-2.0
// Registers of a warpgroup (setmaxnreg, sm_90a).
#pragma once

namespace annulus {

// Give registers of every thread of a warpgroup back to the CTA, and take registers for every thread. The CTA has the
// registers that it started with: taking more hangs.
template <int count> __device__ __forceinline__ void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> __device__ __forceinline__ void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

} // namespace annulus
