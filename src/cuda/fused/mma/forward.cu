// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM, and capacity of shared memory,
// ANNULUS_SHARED_CAPACITY.
#include "cuda/fused/mma/forward.cuh"

#include "cuda/fused/mma/kernels.hpp"

namespace annulus::mma {

namespace {

constexpr SharedCapacity capacity = SharedCapacity::ANNULUS_SHARED_CAPACITY;

template <class Element> Kernel<ForwardParams> make() {
    if constexpr (has_kernels(ANNULUS_HEAD_DIM, sizeof(Element))) {
        if constexpr (forward_shape(ANNULUS_HEAD_DIM, sizeof(Element), capacity).warps > 0) {
            using Traits = ForwardTraits<Element, ANNULUS_HEAD_DIM, capacity>;
            return make_kernel<Traits, ForwardShared<Traits>>("mma forward", forward_kernel<Traits>);
        }
    }
    return {};
}

} // namespace

template <>
Kernel<ForwardParams> forward_kernel_of<capacity, ANNULUS_HEAD_DIM>([[maybe_unused]] annulus_dtype dtype,
                                                                    [[maybe_unused]] bool allow_tf32) {
    if constexpr (!has_only_float16(capacity)) {
        if (dtype == ANNULUS_BFLOAT16)
            return make<__nv_bfloat16>();
        if (dtype == ANNULUS_FLOAT32)
            return allow_tf32 ? make<Tf32>() : make<float>();
    }
    return make<__half>();
}

} // namespace annulus::mma
