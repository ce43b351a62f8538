// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM.
#include "cuda/fused/sm90/backward.cuh"

#include "cuda/fused/sm90/dq_from_ds.cuh"
#include "cuda/fused/sm90/kernel_launch.hpp"
#include "cuda/fused/sm90/launch.hpp"

namespace annulus {

namespace {

template <class Element, Gradients what>
void launch(const BackwardParams &pass, int multiprocessors, cudaStream_t stream) {
    using Traits = BackwardTraits<Element, ANNULUS_HEAD_DIM, what>;
    launch_pass<Traits, BackwardShared<Traits>>("fused backward", backward_kernel<Traits>, pass, multiprocessors,
                                                stream);
}

template <class Element>
void launch(Gradients what, const BackwardParams &pass, int multiprocessors, cudaStream_t stream) {
    if (what == Gradients::d_q)
        return launch<Element, Gradients::d_q>(pass, multiprocessors, stream);
    if constexpr (keeps_scores(ANNULUS_HEAD_DIM))
        switch (what) {
        case Gradients::d_k_and_d_v_keeping_d_s:
            return launch<Element, Gradients::d_k_and_d_v_keeping_d_s>(pass, multiprocessors, stream);
        case Gradients::d_q_of_kept_d_s: {
            using Traits = KeptScoreTraits<Element, ANNULUS_HEAD_DIM>;
            return launch_pass<Traits, KeptScoreShared<Traits>>("fused backward", kept_score_kernel<Traits>, pass,
                                                                multiprocessors, stream);
        }
        default:
            break;
        }
    if constexpr (ANNULUS_HEAD_DIM <= most_columns_of_both)
        launch<Element, Gradients::d_k_and_d_v>(pass, multiprocessors, stream);
    else if (what == Gradients::d_k)
        launch<Element, Gradients::d_k>(pass, multiprocessors, stream);
    else
        launch<Element, Gradients::d_v>(pass, multiprocessors, stream);
}

} // namespace

template <>
void launch_backward_of<ANNULUS_HEAD_DIM>(annulus_dtype dtype, Gradients what, const BackwardParams &pass,
                                          int multiprocessors, cudaStream_t stream) {
    if (dtype == ANNULUS_BFLOAT16)
        launch<__nv_bfloat16>(what, pass, multiprocessors, stream);
    else
        launch<__half>(what, pass, multiprocessors, stream);
}

} // namespace annulus
