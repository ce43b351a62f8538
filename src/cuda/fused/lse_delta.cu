// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/lse_delta.hpp"

#include "core/softmax_limits.hpp"
#include "cuda/device/early_launch.cuh"
#include "cuda/device/kernel_common.cuh"

#include <cmath>

namespace annulus {

namespace {

constexpr int row_lanes = 8; // lanes for each row; a lane reads 16 bytes at a time
// Queries and heads of a block. In the rows that are read, heads are adjacent. In LSE and delta, queries are adjacent.
constexpr int block_queries = block_threads / row_lanes, block_heads = 4;

template <class T> constexpr int columns_of_part = static_cast<int>(sizeof(uint4) / sizeof(T));

template <class T> __device__ float dot(const uint4 &x, const uint4 &y, float sum) {
    const T *const left = reinterpret_cast<const T *>(&x), *const right = reinterpret_cast<const T *>(&y);
#pragma unroll
    for (int e = 0; e < columns_of_part<T>; ++e)
        sum = fmaf(to_float(left[e]), to_float(right[e]), sum);
    return sum;
}

template <class T> __global__ void __launch_bounds__(block_threads) lse_delta_kernel(const LseDeltaArguments a) {
    __shared__ float lse[block_heads][block_queries], sums[block_heads][block_queries];
    for (auto i = std::int64_t{blockIdx.x} * block_threads + threadIdx.x; i < a.counter_count;
         i += std::int64_t{gridDim.x} * block_threads)
        a.counters[i] = 0;
    launch_dependents();
    const auto head_groups = static_cast<unsigned>(divide_up(a.heads, block_heads));
    const auto query_groups = static_cast<unsigned>(divide_up(a.queries, block_queries));
    const int first_head = static_cast<int>(blockIdx.x % head_groups) * block_heads;
    const std::int64_t first_query = std::int64_t{blockIdx.x / head_groups % query_groups} * block_queries;
    const std::int64_t batch = blockIdx.x / head_groups / query_groups;

    // Each result has one thread. Other threads, and threads beyond the last result, read nothing here.
    const int own_head = static_cast<int>(threadIdx.x) / block_queries;
    const int own_query = static_cast<int>(threadIdx.x) % block_queries;
    const bool writes =
        own_head < block_heads && first_head + own_head < a.heads && first_query + own_query < a.queries;
    const std::int64_t own_position = a.out.start + first_query + own_query;
    if (own_head < block_heads)
        lse[own_head][own_query] =
            writes ? *row_at<float>(a.lse, batch, first_head + own_head, own_position) : -INFINITY;
    __syncthreads();

    const int query = static_cast<int>(threadIdx.x) / row_lanes, lane = static_cast<int>(threadIdx.x) % row_lanes;
    const std::int64_t position = a.out.start + first_query + query;
    float own_sums[block_heads] = {};
    for (int part = lane; part < a.head_dim / columns_of_part<T>; part += row_lanes) {
        uint4 out[block_heads] = {}, d_out[block_heads] = {};
#pragma unroll
        for (int i = 0; i < block_heads; ++i)
            if (lse[i][query] != -INFINITY) {
                out[i] = reinterpret_cast<const uint4 *>(row_at<T>(a.out, batch, first_head + i, position))[part];
                d_out[i] = reinterpret_cast<const uint4 *>(row_at<T>(a.d_out, batch, first_head + i, position))[part];
            }
#pragma unroll
        for (int i = 0; i < block_heads; ++i)
            own_sums[i] = dot<T>(out[i], d_out[i], own_sums[i]);
    }
#pragma unroll
    for (int i = 0; i < block_heads; ++i) {
        for (int step = row_lanes / 2; step > 0; step /= 2)
            own_sums[i] += __shfl_xor_sync(~0u, own_sums[i], step);
        if (lane == 0)
            sums[i][query] = own_sums[i];
    }
    __syncthreads();
    if (!writes)
        return;
    const bool has_keys = lse[own_head][own_query] != -INFINITY;
    float delta = sums[own_head][own_query];
    if (has_keys && a.d_lse.data)
        delta -= *row_at<float>(a.d_lse, batch, first_head + own_head, own_position);
    const std::int64_t target = (batch * a.heads + first_head + own_head) * a.queries + first_query + own_query;
    a.lse_log2[target] = has_keys ? usable_lse(lse[own_head][own_query]) * log2_e : INFINITY;
    a.delta[target] = delta;
}

__global__ void __launch_bounds__(block_threads)
    pack_lse_delta_kernel(const __grid_constant__ TileGrid grid, const LseDeltaOrder order, const float *lse_log2,
                          const float *delta, float *packed_lse_log2, float *packed_delta) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
    const int count = grid.sequence.range_count;
    if (i >= order.rows * count)
        return;
    const int position = grid.position_of(grid.sequence.range_start + static_cast<int>(i % count));
    const std::int64_t source = i / count * order.queries + position - order.start;
    packed_lse_log2[i] = lse_log2[source];
    packed_delta[i] = delta[source];
}

} // namespace

void find_lse_delta(annulus_dtype dtype, const LseDeltaArguments &a, cudaStream_t stream) {
    const std::int64_t blocks = a.batches * divide_up(a.queries, block_queries) * divide_up(a.heads, block_heads);
    const dim3 grid = grid_for(blocks, 1);
    with_dtype(dtype, [&](auto type) { launch("find_lse_delta", lse_delta_kernel<decltype(type)>, grid, stream, a); });
}

void pack_lse_delta(const TileGrid &grid, const LseDeltaOrder &order, const float *lse_log2, const float *delta,
                    float *packed_lse_log2, float *packed_delta, cudaStream_t stream) {
    launch("pack_lse_delta", pack_lse_delta_kernel, grid_for(order.rows * grid.sequence.range_count, block_threads),
           stream, grid, order, lse_log2, delta, packed_lse_log2, packed_delta);
}

} // namespace annulus
