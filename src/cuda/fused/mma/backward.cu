// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM, and capacity of shared memory,
// ANNULUS_SHARED_CAPACITY.
#include "cuda/fused/mma/backward.cuh"

#include "cuda/fused/mma/kernels.hpp"

namespace annulus::mma {

namespace {

constexpr SharedCapacity capacity = SharedCapacity::ANNULUS_SHARED_CAPACITY;

template <class Element, Gradients what> Kernel<BackwardParams> make() {
    using Traits = BackwardTraits<Element, ANNULUS_HEAD_DIM, capacity, what>;
    return make_kernel<Traits, BackwardShared<Traits>>("mma backward", backward_kernel<Traits>);
}

template <class Element> Kernel<BackwardParams> make(Gradients what) {
    if (what == Gradients::d_q)
        return make<Element, Gradients::d_q>();
    if (what == Gradients::d_v)
        return make<Element, Gradients::d_v>();
    if constexpr (ANNULUS_HEAD_DIM <= most_columns_of_both)
        return make<Element, Gradients::d_k_and_d_v>();
    else
        return make<Element, Gradients::d_k>();
}

// Returns the kernel, or none if there is none for the element and head dimension.
template <class Element> Kernel<BackwardParams> make_if_any([[maybe_unused]] Gradients what) {
    if constexpr (has_kernels(ANNULUS_HEAD_DIM, sizeof(Element)))
        if constexpr (backward_shape(ANNULUS_HEAD_DIM, sizeof(Element), true, capacity).warps > 0)
            return make<Element>(what);
    return {};
}

} // namespace

template <>
Kernel<BackwardParams> backward_kernel_of<capacity, ANNULUS_HEAD_DIM>([[maybe_unused]] annulus_dtype dtype,
                                                                      [[maybe_unused]] bool allow_tf32,
                                                                      Gradients what) {
    if constexpr (!has_only_float16(capacity)) {
        if (dtype == ANNULUS_BFLOAT16)
            return make_if_any<__nv_bfloat16>(what);
        if (dtype == ANNULUS_FLOAT32)
            return allow_tf32 ? make_if_any<Tf32>(what) : make_if_any<float>(what);
    }
    return make_if_any<__half>(what);
}

} // namespace annulus::mma
