// SPDX-License-Identifier: Apache-2.0
// Kernels that write a block's results to the caller's tensors, a warp for each row.
#include "cuda/cuda_error.hpp"
#include "cuda/repair.cuh"

namespace annulus {

namespace {

constexpr float ln_2 = 0.6931471805599453f;

// Row i of [batches, heads, window]: of the queries, or of the keys with their own heads.
struct BlockRow {
    std::int64_t index, batch, position;
    std::int32_t head;
    bool exists;

    static __device__ BlockRow at(std::int64_t index, const Block &block, std::int32_t first_head, std::int32_t heads,
                                  const Window &window) {
        const std::int64_t row = index / window.length;
        return {index, block.first_batch + row / heads, window.start + index % window.length,
                static_cast<std::int32_t>(first_head + row % heads), index < block.batches * heads * window.length};
    }
    static __device__ std::int64_t of_thread() {
        return static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    }
};

template <class T> __global__ void __launch_bounds__(block_threads) output_kernel(const OutputArguments a) {
    const Block &block = a.block;
    const BlockRow row = BlockRow::at(BlockRow::of_thread(), block, block.first_head, block.heads, block.queries);
    if (!row.exists)
        return;
    const int columns = a.context.head_dim;
    const float2 state = a.state[row.index];
    const bool empty = state.y == 0.f;
    const float log2_sum = state.x + log2f(state.y);
    LaneRow o;
    if (!empty) {
        o.add(1 / state.y, LaneRow::load(a.o + row.index * columns, columns));
        if (a.context.branches && !o.is_finite(columns))
            o = output_row<T>(a.context, row.batch, row.head, row.position, log2_sum);
    }
    o.store(row_at<T>(a.out, row.batch, row.head, row.position), columns);
    if (a.lse.data && LaneRow::lane() == 0)
        *row_at<float>(a.lse, row.batch, row.head, row.position) = empty ? -INFINITY : log2_sum * ln_2;
}

template <class T> __global__ void __launch_bounds__(block_threads) d_q_kernel(const GradientOutputArguments a) {
    const Block &block = a.block;
    const BlockRow row = BlockRow::at(BlockRow::of_thread(), block, block.first_head, block.heads, block.queries);
    if (!row.exists)
        return;
    const int columns = a.context.head_dim;
    LaneRow d_q = LaneRow::load(a.d_q + row.index * columns, columns);
    if (a.context.branches && !d_q.is_finite(columns))
        d_q = query_gradient_row<T>(a.context, row.batch, row.head, row.position);
    d_q.store(row_at<T>(a.d_q_out, row.batch, row.head, row.position), columns);
}

template <class T> __global__ void __launch_bounds__(block_threads) d_kv_kernel(const GradientOutputArguments a) {
    const Block &block = a.block;
    const std::int32_t group = a.context.heads_per_kv_head;
    const BlockRow row =
        BlockRow::at(BlockRow::of_thread(), block, block.first_head / group, block.heads / group, block.keys);
    if (!row.exists)
        return;
    const int columns = a.context.head_dim;
    LaneRow d_k = LaneRow::load(a.d_k + row.index * columns, columns);
    LaneRow d_v = LaneRow::load(a.d_v + row.index * columns, columns);
    if (a.context.branches && !(d_k.is_finite(columns) && d_v.is_finite(columns)))
        key_gradient_rows<T>(a.context, row.batch, row.head, row.position, d_k, d_v);
    d_k.store(row_at<T>(a.d_k_out, row.batch, row.head, row.position), columns);
    d_v.store(row_at<T>(a.d_v_out, row.batch, row.head, row.position), columns);
}

} // namespace

void write_outputs(annulus_dtype dtype, const OutputArguments &a, cudaStream_t stream) {
    const std::int64_t rows = a.block.batches * a.block.heads * a.block.queries.length;
    with_dtype(dtype, [&](auto type) {
        output_kernel<decltype(type)><<<grid_for(rows, block_threads / 32), block_threads, 0, stream>>>(a);
    });
    check_launch("write_outputs");
}

void write_gradients(annulus_dtype dtype, const GradientOutputArguments &a, cudaStream_t stream) {
    const Block &block = a.block;
    const std::int64_t query_rows = a.d_q ? block.batches * block.heads * block.queries.length : 0;
    const std::int64_t key_rows =
        a.d_k ? block.batches * (block.heads / a.context.heads_per_kv_head) * block.keys.length : 0;
    with_dtype(dtype, [&](auto type) {
        constexpr int rows = block_threads / 32;
        if (query_rows > 0)
            d_q_kernel<decltype(type)><<<grid_for(query_rows, rows), block_threads, 0, stream>>>(a);
        if (key_rows > 0)
            d_kv_kernel<decltype(type)><<<grid_for(key_rows, rows), block_threads, 0, stream>>>(a);
    });
    check_launch("write_gradients");
}

} // namespace annulus
