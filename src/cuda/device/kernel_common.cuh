// SPDX-License-Identifier: Apache-2.0
// What all kernels share: dtypes on the device, rows of tensors, launches.
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

// Four neighbouring elements, written with one instruction.
template <class T> struct alignas(4 * sizeof(T)) Four { T x[4]; };

__device__ inline float4 scaled(float4 four, float factor) {
    four.x *= factor, four.y *= factor, four.z *= factor, four.w *= factor;
    return four;
}

// Calls f(T{}) with the type T of the dtype. float64 does not occur: the engines have refused it.
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

// For keys that may have more than one position to a row. Queries have one; row_offset() is enough for them.
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

// For a kernel argument whose address is taken. Compute capability 6 lacks the attribute and copies the argument.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define ANNULUS_GRID_CONSTANT
#else
#define ANNULUS_GRID_CONSTANT __grid_constant__
#endif

inline dim3 grid_for(std::int64_t items, std::int64_t per_block) {
    return {static_cast<unsigned>(divide_up(items, per_block))};
}

// For a thread of a block: how many threads before it have a property, and how many of all.
struct BlockRank {
    int before, all;
};

// Called by all threads of the block. `counts` is shared memory, a count for each warp, which may be reused at once.
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
    __syncthreads(); // all counts have been read
    return rank;
}

// Launches without <<<>>>: that reports a failure only in the runtime's last error, which may be the caller's.
template <class... Parameters, class... Arguments>
void launch_with(const char *what, void (*kernel)(Parameters...), dim3 grid, int threads, cudaStream_t stream,
                 Arguments &&...arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = static_cast<unsigned>(threads);
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), what);
}

// Launches blocks of block_threads threads.
template <class... Parameters, class... Arguments>
void launch(const char *what, void (*kernel)(Parameters...), dim3 grid, cudaStream_t stream, Arguments &&...arguments) {
    launch_with(what, kernel, grid, block_threads, stream, std::forward<Arguments>(arguments)...);
}

} // namespace annulus
