// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM.
#include "cuda/fused/backward.cuh"

#include "cuda/cuda_error.hpp"
#include "cuda/fused/fused_launch.hpp"

namespace annulus {

namespace {

template <class Element, Gradients what>
void launch(const BackwardPass &pass, int multiprocessors, cudaStream_t stream) {
    using Traits = BackwardTraits<Element, ANNULUS_HEAD_DIM, what>;
    constexpr int bytes = static_cast<int>(sizeof(BackwardShared<Traits>));
    static_assert(bytes <= 227 * 1024);
    void (*const kernel)(BackwardPass) = backward_kernel<Traits>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(multiprocessors);
    config.blockDim = Traits::threads;
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, kernel, pass), "fused backward");
}

template <class Element>
void launch(Gradients what, const BackwardPass &pass, int multiprocessors, cudaStream_t stream) {
    if (what == Gradients::d_q)
        return launch<Element, Gradients::d_q>(pass, multiprocessors, stream);
    if constexpr (ANNULUS_HEAD_DIM <= most_columns_of_both)
        launch<Element, Gradients::d_k_and_d_v>(pass, multiprocessors, stream);
    else if (what == Gradients::d_k)
        launch<Element, Gradients::d_k>(pass, multiprocessors, stream);
    else
        launch<Element, Gradients::d_v>(pass, multiprocessors, stream);
}

} // namespace

template <>
void launch_backward_of<ANNULUS_HEAD_DIM>(annulus_dtype dtype, Gradients what, const BackwardPass &pass,
                                          int multiprocessors, cudaStream_t stream) {
    if (dtype == ANNULUS_BFLOAT16)
        launch<__nv_bfloat16>(what, pass, multiprocessors, stream);
    else
        launch<__half>(what, pass, multiprocessors, stream);
}

} // namespace annulus
