// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM.
#include "cuda/fused/forward.cuh"

#include "cuda/cuda_error.hpp"
#include "cuda/fused/fused_launch.hpp"

namespace annulus {

namespace {

template <class Element> void launch(const ForwardPass &pass, int multiprocessors, cudaStream_t stream) {
    using Traits = ForwardTraits<Element, ANNULUS_HEAD_DIM>;
    constexpr int bytes = static_cast<int>(sizeof(ForwardShared<Traits>));
    static_assert(bytes <= 227 * 1024);
    void (*const kernel)(ForwardPass) = forward_kernel<Traits>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(multiprocessors);
    config.blockDim = Traits::threads;
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, kernel, pass), "fused forward");
}

} // namespace

template <>
void launch_forward_of<ANNULUS_HEAD_DIM>(annulus_dtype dtype, const ForwardPass &pass, int multiprocessors,
                                         cudaStream_t stream) {
    if (dtype == ANNULUS_BFLOAT16)
        launch<__nv_bfloat16>(pass, multiprocessors, stream);
    else
        launch<__half>(pass, multiprocessors, stream);
}

} // namespace annulus
