// SPDX-License-Identifier: Apache-2.0
// Registers of a warpgroup (setmaxnreg, sm_90a).
#pragma once

namespace annulus {

// Hands registers back to the block, and takes them: of every thread of a warpgroup, within what the block started
// with. More than that hangs.
template <int count> __device__ __forceinline__ void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> __device__ __forceinline__ void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

} // namespace annulus
