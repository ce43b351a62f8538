// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/gradient_statistics.hpp"

#include "cuda/device.cuh"

#include <cmath>

namespace annulus {

namespace {

constexpr int row_lanes = 8; // of a query, 16 bytes each at a time

template <class T>
__global__ void __launch_bounds__(block_threads) statistic_kernel(const StatisticArguments a, std::int64_t rows) {
    const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x) / row_lanes;
    if (i >= rows)
        return;
    // Heads next to one another, as in memory.
    const auto head = static_cast<std::int32_t>(i % a.heads);
    const std::int64_t query = i / a.heads % a.queries, batch = i / a.heads / a.queries;
    const std::int64_t position = a.out.start + query, target = (batch * a.heads + head) * a.queries + query;
    const int lane = static_cast<int>(threadIdx.x) % row_lanes;
    const float lse = *row_at<float>(a.lse, batch, head, position);
    float sum = 0;
    if (lse != -INFINITY) {
        const uint4 *const out = reinterpret_cast<const uint4 *>(row_at<T>(a.out, batch, head, position));
        const uint4 *const d_out = reinterpret_cast<const uint4 *>(row_at<T>(a.d_out, batch, head, position));
        for (int part = lane; part < a.head_dim / 8; part += row_lanes) {
            const uint4 x = out[part], y = d_out[part];
            const T *const left = reinterpret_cast<const T *>(&x), *const right = reinterpret_cast<const T *>(&y);
#pragma unroll
            for (int e = 0; e < 8; ++e)
                sum = fmaf(to_float(left[e]), to_float(right[e]), sum);
        }
    }
    const unsigned mates = 0xffu << (threadIdx.x % 32 / row_lanes * row_lanes);
    for (int step = row_lanes / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(mates, sum, step);
    if (lane != 0)
        return;
    if (lse != -INFINITY && a.d_lse.data)
        sum -= *row_at<float>(a.d_lse, batch, head, position);
    a.lse_log2[target] = lse == -INFINITY ? INFINITY : lse * log2_e;
    a.delta[target] = sum;
}

__global__ void __launch_bounds__(block_threads)
    pack_statistics_kernel(const StatisticOrder order, const float *lse_log2, const float *delta,
                           float *packed_lse_log2, float *packed_delta) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
    if (i >= order.rows * order.window)
        return;
    const std::int64_t source = i / order.window * order.queries + order.first + order.order[i % order.window];
    packed_lse_log2[i] = lse_log2[source];
    packed_delta[i] = delta[source];
}

} // namespace

void find_statistics(annulus_dtype dtype, const StatisticArguments &a, cudaStream_t stream) {
    const std::int64_t rows = a.batches * a.queries * a.heads;
    const dim3 grid = grid_for(rows, block_threads / row_lanes);
    if (dtype == ANNULUS_BFLOAT16)
        launch("find_statistics", statistic_kernel<__nv_bfloat16>, grid, stream, a, rows);
    else
        launch("find_statistics", statistic_kernel<__half>, grid, stream, a, rows);
}

void pack_statistics(const StatisticOrder &order, const float *lse_log2, const float *delta, float *packed_lse_log2,
                     float *packed_delta, cudaStream_t stream) {
    launch("pack_statistics", pack_statistics_kernel, grid_for(order.rows * order.window, block_threads), stream, order,
           lse_log2, delta, packed_lse_log2, packed_delta);
}

} // namespace annulus
