// SPDX-License-Identifier: Apache-2.0
// Kernels for attention mass that run before and after the engine: they write rows of dO and masses, one for each
// thread.
#include "core/dtype_number.hpp"
#include "cuda/device/kernel_common.cuh"
#include "cuda/results/device_functions.hpp"

#include <algorithm>

namespace annulus {

namespace {

constexpr std::int64_t max_blocks = 1 << 16;

template <class Use> __device__ void for_each_item(std::int64_t count, Use use) {
    const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * block_threads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x; i < count; i += threads)
        use(i);
}

template <class Bits> __global__ void __launch_bounds__(block_threads) mark_kernel(const MassWork work) {
    for_each_item(work.query_rows(), [&](std::int64_t i) { work.mark<Bits>(i); });
}

__global__ void __launch_bounds__(block_threads) take_kernel(const MassWork work) {
    for_each_item(work.masses(), [&](std::int64_t i) { work.take<float>(i); });
}

void launch_over(const char *what, void (*kernel)(MassWork), std::int64_t count, const MassWork &work, void *stream) {
    if (count > 0)
        launch(what, kernel, grid_for(std::min(count, max_blocks * block_threads), block_threads),
               static_cast<cudaStream_t>(stream), work);
}

} // namespace

void mark_heads_on_cuda(const MassWork &work, void *stream) {
    const int element = dtype_bytes(work.dtype);
    const auto bytes = static_cast<std::size_t>(work.query_rows() * work.head_dim * element);
    check(cudaMemsetAsync(work.d_out, 0, bytes, static_cast<cudaStream_t>(stream)), "cudaMemsetAsync");
    launch_over("mark_heads", element == 2 ? mark_kernel<std::uint16_t> : mark_kernel<std::uint32_t>, work.query_rows(),
                work, stream);
}

void take_mass_on_cuda(const MassWork &work, void *stream) {
    launch_over("take_mass", take_kernel, work.masses(), work, stream);
}

} // namespace annulus
