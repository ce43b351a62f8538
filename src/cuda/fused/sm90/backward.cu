// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM.
#include "cuda/fused/sm90/backward.cuh"

#include "cuda/fused/sm90/kernels.hpp"

namespace annulus {

namespace {

template <class Element, RowOrder order, Gradients what> Kernel<BackwardParams> make() {
    using Traits = BackwardTraits<Element, ANNULUS_HEAD_DIM, what, order>;
    Kernel<BackwardParams> kernel =
        make_kernel<Traits, BackwardShared<Traits>>("fused backward", backward_kernel<Traits>);
    kernel.may_begin_early = has_early_launches();
    return kernel;
}

template <class Element, RowOrder order> Kernel<BackwardParams> make(Gradients what) {
    if (what == Gradients::d_q)
        return make<Element, order, Gradients::d_q>();
    if (what == Gradients::d_v)
        return make<Element, order, Gradients::d_v>();
    if constexpr (ANNULUS_HEAD_DIM <= most_columns_of_both)
        return make<Element, order, Gradients::d_k_and_d_v>();
    else
        return make<Element, order, Gradients::d_k>();
}

template <class Element> Kernel<BackwardParams> make(Gradients what, bool along_curve) {
    return along_curve ? make<Element, RowOrder::along_curve>(what) : make<Element, RowOrder::linear>(what);
}

} // namespace

template <>
Kernel<BackwardParams> backward_kernel_of<ANNULUS_HEAD_DIM>(annulus_dtype dtype, Gradients what, bool along_curve) {
    return dtype == ANNULUS_BFLOAT16 ? make<__nv_bfloat16>(what, along_curve) : make<__half>(what, along_curve);
}

} // namespace annulus
