// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM, and capacity of shared memory,
// ANNULUS_SHARED_CAPACITY.
#include "cuda/fused/mma/forward.cuh"

#include "cuda/fused/mma/kernels.hpp"

namespace annulus::mma {

namespace {

template <class Element> Kernel<ForwardParams> make() {
    using Traits = ForwardTraits<Element, ANNULUS_HEAD_DIM, SharedCapacity::ANNULUS_SHARED_CAPACITY>;
    return make_kernel<Traits, ForwardShared<Traits>>("mma forward", forward_kernel<Traits>);
}

} // namespace

template <>
Kernel<ForwardParams>
forward_kernel_of<SharedCapacity::ANNULUS_SHARED_CAPACITY, ANNULUS_HEAD_DIM>(annulus_dtype dtype) {
    if constexpr (has_bfloat16(SharedCapacity::ANNULUS_SHARED_CAPACITY))
        if (dtype == ANNULUS_BFLOAT16)
            return make<__nv_bfloat16>();
    return make<__half>();
}

} // namespace annulus::mma
