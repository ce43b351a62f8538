// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch (compute capability 9.0): a launch begins while the launch before it ends. Its CTAs
// take the multiprocessors that are free already.
#pragma once

namespace annulus {

// Lets the next launch begin, if it is one that may begin early, when all CTAs have said so or have ended.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the launch before has ended and what it wrote can be read; at once where this one did not begin early.
__device__ __forceinline__ void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

} // namespace annulus
