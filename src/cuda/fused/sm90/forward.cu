// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM.
#include "cuda/fused/sm90/forward.cuh"

#include "cuda/fused/sm90/kernels.hpp"

namespace annulus {

namespace {

template <class Element, RowOrder order> Kernel<ForwardParams> make() {
    using Traits = ForwardTraits<Element, ANNULUS_HEAD_DIM, order>;
    Kernel<ForwardParams> kernel = make_kernel<Traits, ForwardShared<Traits>>("fused forward", forward_kernel<Traits>);
    kernel.may_begin_early = has_early_launches();
    return kernel;
}

template <class Element> Kernel<ForwardParams> make(bool along_curve) {
    return along_curve ? make<Element, RowOrder::along_curve>() : make<Element, RowOrder::linear>();
}

} // namespace

template <> Kernel<ForwardParams> forward_kernel_of<ANNULUS_HEAD_DIM>(annulus_dtype dtype, bool along_curve) {
    return dtype == ANNULUS_BFLOAT16 ? make<__nv_bfloat16>(along_curve) : make<__half>(along_curve);
}

} // namespace annulus
