// SPDX-License-Identifier: Apache-2.0
// The dtypes on the device, and the step from a dtype's number to its type.
#pragma once

#include "cuda/kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

__device__ inline std::int64_t row_offset(const DeviceRows &rows, std::int64_t batch, std::int64_t head,
                                          std::int64_t position) {
    return batch * rows.batch + head * rows.head + (position - rows.start) * rows.row;
}

template <class T>
__device__ T *row_at(const DeviceRows &rows, std::int64_t batch, std::int64_t head, std::int64_t position) {
    return static_cast<T *>(rows.data) + row_offset(rows, batch, head, position);
}

constexpr int block_threads = 256;

inline unsigned grid_for(std::int64_t items, std::int64_t per_block) {
    return static_cast<unsigned>(divide_up(items, per_block));
}

} // namespace annulus
