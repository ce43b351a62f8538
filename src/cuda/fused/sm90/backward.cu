// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM.
#include "cuda/fused/sm90/backward.cuh"

#include "cuda/fused/sm90/dq_from_ds.cuh"
#include "cuda/fused/sm90/kernel_launch.hpp"
#include "cuda/fused/sm90/launch.hpp"

namespace annulus {

namespace {

template <class Element, Gradients what>
void launch(const BackwardParams &params, int multiprocessors, cudaStream_t stream) {
    using Traits = BackwardTraits<Element, ANNULUS_HEAD_DIM, what>;
    launch_kernel<Traits, BackwardShared<Traits>>("fused backward", backward_kernel<Traits>, params, multiprocessors,
                                                  stream);
}

template <class Element>
void launch(Gradients what, const BackwardParams &params, int multiprocessors, cudaStream_t stream) {
    if (what == Gradients::d_q)
        return launch<Element, Gradients::d_q>(params, multiprocessors, stream);
    if constexpr (stores_d_s(ANNULUS_HEAD_DIM))
        switch (what) {
        case Gradients::d_k_and_d_v_storing_d_s:
            return launch<Element, Gradients::d_k_and_d_v_storing_d_s>(params, multiprocessors, stream);
        case Gradients::d_q_of_stored_d_s: {
            using Traits = DqFromDsTraits<Element, ANNULUS_HEAD_DIM>;
            return launch_kernel<Traits, DqFromDsShared<Traits>>("fused backward", dq_from_ds_kernel<Traits>, params,
                                                                 multiprocessors, stream);
        }
        default:
            break;
        }
    if constexpr (ANNULUS_HEAD_DIM <= most_columns_of_both)
        launch<Element, Gradients::d_k_and_d_v>(params, multiprocessors, stream);
    else if (what == Gradients::d_k)
        launch<Element, Gradients::d_k>(params, multiprocessors, stream);
    else
        launch<Element, Gradients::d_v>(params, multiprocessors, stream);
}

} // namespace

template <>
void launch_backward_of<ANNULUS_HEAD_DIM>(annulus_dtype dtype, Gradients what, const BackwardParams &params,
                                          int multiprocessors, cudaStream_t stream) {
    if (dtype == ANNULUS_BFLOAT16)
        launch<__nv_bfloat16>(what, params, multiprocessors, stream);
    else
        launch<__half>(what, params, multiprocessors, stream);
}

} // namespace annulus
