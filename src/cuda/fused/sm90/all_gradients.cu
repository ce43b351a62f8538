// SPDX-License-Identifier: Apache-2.0
// The kernels of all gradients of one head dimension, ANNULUS_HEAD_DIM.
#include "cuda/fused/sm90/all_gradients.cuh"

#include "cuda/fused/sm90/kernels.hpp"
#include "cuda/fused/sm90/write_query_sums.cuh"

namespace annulus {

namespace {

template <class Element, RowOrder order> Kernel<BackwardParams> make(Gradients what) {
    using Traits = AllGradientsTraits<Element, ANNULUS_HEAD_DIM, order>;
    if (what == Gradients::all)
        return make_kernel<Traits, AllGradientsShared<Traits>>("fused backward", all_gradients_kernel<Traits>);
    using WritingTraits = WriteQuerySumsTraits<Traits>;
    return make_kernel<WritingTraits, WriteQuerySumsShared<WritingTraits>>("fused backward",
                                                                           write_query_sums_kernel<WritingTraits>);
}

template <class Element> Kernel<BackwardParams> make(Gradients what, bool along_curve) {
    return along_curve ? make<Element, RowOrder::along_curve>(what) : make<Element, RowOrder::linear>(what);
}

} // namespace

template <>
Kernel<BackwardParams> all_gradients_kernel_of<ANNULUS_HEAD_DIM>(annulus_dtype dtype, Gradients what,
                                                                 bool along_curve) {
    return dtype == ANNULUS_BFLOAT16 ? make<__nv_bfloat16>(what, along_curve) : make<__half>(what, along_curve);
}

} // namespace annulus
