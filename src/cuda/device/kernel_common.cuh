// SPDX-License-Identifier: Apache-2.0
// What the kernels share: the dtypes on the device, rows of tensors, launches.
#pragma once

#include "core/progression.hpp"
#include "cuda/device/cuda_error.hpp"
#include "cuda/device/device_rows.hpp"

#include <annulus/tensor.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <numbers>
#include <type_traits>
#include <utility>

namespace annulus {

__device__ inline float to_float(float x) {
    return x;
}
__device__ inline float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
__device__ inline float to_float(__half x) {
    return __half2float(x);
}

template <class T> __device__ T from_float(float x) {
    if constexpr (std::is_same_v<T, float>)
        return x;
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __float2bfloat16_rn(x);
    else
        return __float2half_rn(x);
}

// Four neighbours, written at once.
template <class T> struct alignas(4 * sizeof(T)) Four { T x[4]; };

__device__ inline float4 scaled(float4 four, float factor) {
    four.x *= factor, four.y *= factor, four.z *= factor, four.w *= factor;
    return four;
}

// f(T{}) with the type of the dtype; the engine has refused float64.
template <class F> void with_dtype(annulus_dtype dtype, F f) {
    switch (dtype) {
    case ANNULUS_BFLOAT16:
        return f(__nv_bfloat16{});
    case ANNULUS_FLOAT16:
        return f(__half{});
    default:
        return f(float{});
    }
}

// Of keys with more than one position to a row; those of queries have one.
__device__ inline std::int64_t strided_row_offset(const DeviceRows &rows, std::int64_t batch, std::int64_t head,
                                                  std::int64_t position) {
    return batch * rows.batch + head * rows.head + (position - rows.start) / rows.stride * rows.row;
}

__device__ inline std::int64_t row_offset(const DeviceRows &rows, std::int64_t batch, std::int64_t head,
                                          std::int64_t position) {
    return batch * rows.batch + head * rows.head + (position - rows.start) * rows.row;
}

template <class T>
__device__ T *row_at(const DeviceRows &rows, std::int64_t batch, std::int64_t head, std::int64_t position) {
    return static_cast<T *>(rows.data) + row_offset(rows, batch, head, position);
}

constexpr float log2_e = std::numbers::log2e_v<float>, ln_2 = std::numbers::ln2_v<float>;

constexpr int block_threads = 256;

// Of a kernel's argument whose address is taken; what has no such thing (compute capability 6) copies the argument.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define ANNULUS_GRID_CONSTANT
#else
#define ANNULUS_GRID_CONSTANT __grid_constant__
#endif

inline dim3 grid_for(std::int64_t items, std::int64_t per_block) {
    return {static_cast<unsigned>(divide_up(items, per_block))};
}

// Among the threads of a block those for which something holds: how many there are before the thread, and in all.
struct BlockRank {
    int before, all;
};

// By all threads of the block, with a shared count for each warp; `counts` may be used again at once.
template <int warps> __device__ BlockRank rank_in_block(bool holds, int (&counts)[warps]) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned votes = __ballot_sync(~0u, holds);
    if (lane == 0)
        counts[warp] = __popc(votes);
    __syncthreads();
    BlockRank rank{__popc(votes & ((1u << lane) - 1)), 0};
    for (unsigned i = 0; i < warps; ++i) {
        rank.before += i < warp ? counts[i] : 0;
        rank.all += counts[i];
    }
    __syncthreads(); // the counts have been read
    return rank;
}

// Not by <<<>>>, whose failure is told only by the runtime's last error, which may be an older one of the caller's.
template <class... Parameters, class... Arguments>
void launch_with(const char *what, void (*kernel)(Parameters...), dim3 grid, int threads, cudaStream_t stream,
                 Arguments &&...arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = static_cast<unsigned>(threads);
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), what);
}

// Blocks of block_threads.
template <class... Parameters, class... Arguments>
void launch(const char *what, void (*kernel)(Parameters...), dim3 grid, cudaStream_t stream, Arguments &&...arguments) {
    launch_with(what, kernel, grid, block_threads, stream, std::forward<Arguments>(arguments)...);
}

} // namespace annulus
