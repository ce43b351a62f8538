// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM.
#include "cuda/fused/sm90/backward.cuh"

#include "cuda/fused/sm90/dq_from_ds.cuh"
#include "cuda/fused/sm90/kernels.hpp"

namespace annulus {

namespace {

template <class Element, Gradients what> Kernel<BackwardParams> make() {
    using Traits = BackwardTraits<Element, ANNULUS_HEAD_DIM, what>;
    return make_kernel<Traits, BackwardShared<Traits>>("fused backward", backward_kernel<Traits>);
}

template <class Element> Kernel<BackwardParams> make(Gradients what) {
    if (what == Gradients::d_q)
        return make<Element, Gradients::d_q>();
    if constexpr (stores_d_s(ANNULUS_HEAD_DIM)) {
        if (what == Gradients::d_k_and_d_v_storing_d_s)
            return make<Element, Gradients::d_k_and_d_v_storing_d_s>();
        if (what == Gradients::d_q_of_stored_d_s) {
            using Traits = DqFromDsTraits<Element, ANNULUS_HEAD_DIM>;
            return make_kernel<Traits, DqFromDsShared<Traits>>("fused backward", dq_from_ds_kernel<Traits>);
        }
    }
    if (what == Gradients::d_v)
        return make<Element, Gradients::d_v>();
    if constexpr (ANNULUS_HEAD_DIM <= most_columns_of_both)
        return make<Element, Gradients::d_k_and_d_v>();
    else
        return make<Element, Gradients::d_k>();
}

} // namespace

template <> Kernel<BackwardParams> backward_kernel_of<ANNULUS_HEAD_DIM>(annulus_dtype dtype, Gradients what) {
    return dtype == ANNULUS_BFLOAT16 ? make<__nv_bfloat16>(what) : make<__half>(what);
}

} // namespace annulus
