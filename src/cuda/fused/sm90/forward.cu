// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM.
#include "cuda/fused/sm90/forward.cuh"

#include "cuda/fused/sm90/kernel_launch.hpp"
#include "cuda/fused/sm90/launch.hpp"

namespace annulus {

namespace {

template <class Element> void launch(const ForwardParams &params, int multiprocessors, cudaStream_t stream) {
    using Traits = ForwardTraits<Element, ANNULUS_HEAD_DIM>;
    launch_kernel<Traits, ForwardShared<Traits>>("fused forward", forward_kernel<Traits>, params, multiprocessors,
                                                 stream);
}

} // namespace

template <>
void launch_forward_of<ANNULUS_HEAD_DIM>(annulus_dtype dtype, const ForwardParams &params, int multiprocessors,
                                         cudaStream_t stream) {
    if (dtype == ANNULUS_BFLOAT16)
        launch<__nv_bfloat16>(params, multiprocessors, stream);
    else
        launch<__half>(params, multiprocessors, stream);
}

} // namespace annulus
