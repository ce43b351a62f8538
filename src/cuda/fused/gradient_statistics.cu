// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/gradient_statistics.hpp"

#include "cuda/device.cuh"

#include <cmath>

namespace annulus {

namespace {

constexpr int row_lanes = 8;   // of a query, 16 bytes each at a time
constexpr int thread_rows = 4; // one after the other, so that there is more to wait for at once

// Of the rows in the order of memory: heads next to one another.
struct StatisticRow {
    std::int64_t batch, position, target;
    std::int32_t head;
    float lse;

    __device__ StatisticRow(const StatisticArguments &a, std::int64_t row) {
        head = static_cast<std::int32_t>(row % a.heads);
        batch = row / a.heads / a.queries;
        const std::int64_t query = row / a.heads % a.queries;
        position = a.out.start + query;
        target = (batch * a.heads + head) * a.queries + query;
        lse = *row_at<float>(a.lse, batch, head, position);
    }
};

template <class T> __device__ float dot(const uint4 &x, const uint4 &y, float sum) {
    const T *const left = reinterpret_cast<const T *>(&x), *const right = reinterpret_cast<const T *>(&y);
#pragma unroll
    for (int e = 0; e < 8; ++e)
        sum = fmaf(to_float(left[e]), to_float(right[e]), sum);
    return sum;
}

template <class T>
__global__ void __launch_bounds__(block_threads) statistic_kernel(const StatisticArguments a, std::int64_t rows) {
    constexpr int block_rows = block_threads / row_lanes;
    const std::int64_t first =
        static_cast<std::int64_t>(blockIdx.x) * block_rows * thread_rows + threadIdx.x / row_lanes;
    const int lane = static_cast<int>(threadIdx.x) % row_lanes;
    const unsigned mates = 0xffu << (threadIdx.x % 32 / row_lanes * row_lanes);
    float sums[thread_rows] = {};
#pragma unroll
    for (int i = 0; i < thread_rows; ++i)
        if (const std::int64_t index = first + i * block_rows; index < rows) {
            const StatisticRow row(a, index);
            const uint4 *const out =
                reinterpret_cast<const uint4 *>(row_at<T>(a.out, row.batch, row.head, row.position));
            const uint4 *const d_out =
                reinterpret_cast<const uint4 *>(row_at<T>(a.d_out, row.batch, row.head, row.position));
            if (row.lse != -INFINITY)
                for (int part = lane; part < a.head_dim / 8; part += row_lanes)
                    sums[i] = dot<T>(out[part], d_out[part], sums[i]);
        }
#pragma unroll
    for (int i = 0; i < thread_rows; ++i)
        if (const std::int64_t index = first + i * block_rows; index < rows) {
            for (int step = row_lanes / 2; step > 0; step /= 2)
                sums[i] += __shfl_xor_sync(mates, sums[i], step);
            if (lane != 0)
                continue;
            const StatisticRow row(a, index);
            const bool has_keys = row.lse != -INFINITY;
            if (has_keys && a.d_lse.data)
                sums[i] -= *row_at<float>(a.d_lse, row.batch, row.head, row.position);
            a.lse_log2[row.target] = has_keys ? row.lse * log2_e : INFINITY;
            a.delta[row.target] = sums[i];
        }
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
    const dim3 grid = grid_for(rows, block_threads / row_lanes * thread_rows);
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
