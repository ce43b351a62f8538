// SPDX-License-Identifier: Apache-2.0
// Kernels that recompute rows whose result is NaN or infinite (nonfinite_rows.cuh). Each row has a warp.
#include "cuda/results/block_rows.cuh"
#include "cuda/results/nonfinite_rows.cuh"
#include "cuda/results/results.hpp"

namespace annulus {

namespace {

// Calls use(row) for the rows of this warp. Calls it for none if it is known that no row of the block has a NaN.
template <class Use> __device__ void for_rows_of_warp(const BlockRows &rows, const int *has_nonfinite, Use use) {
    if (has_nonfinite && *has_nonfinite == 0)
        return;
    const std::int64_t warps = gridDim.x * (blockDim.x / 32), count = rows.batches * rows.heads * rows.window.length;
    for (std::int64_t i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < count; i += warps)
        use(BlockRow(rows, i % rows.window.length, BlockLayer(rows, i / rows.window.length)));
}

// Recomputes columns in the caller's rows, or with `in_partial` in O, which is not normalised.
template <class T, bool in_partial>
__global__ void __launch_bounds__(block_threads)
    summed_output_kernel(const ANNULUS_GRID_CONSTANT OutputArguments a, const BlockRows rows) {
    const RowContext &c = a.context;
    for_rows_of_warp(rows, c.has_nonfinite, [&](const BlockRow &row) {
        const std::int64_t index = row.partial_index(a.summed);
        if (index < 0)
            return;
        const float2 state = a.state[index];
        if (state.y <= 0.f)
            return;
        float *const partial = a.o + index * c.head_dim;
        const NonfiniteColumns lost(LaneRow::load(partial, c.head_dim));
        if (!lost.any())
            return;
        const float log2_sum = in_partial ? state.x : state.x + log2f(state.y);
        const LaneRow o = output_row<T>(c, row.batch, row.head, row.position, log2_sum, lost);
        if constexpr (in_partial)
            o.store(partial, lost);
        else
            o.store(row_at<T>(a.out, row.batch, row.head, row.position), lost);
    });
}

// Recomputes columns of finished rows, which are all rows if there is no state.
template <class T>
__global__ void __launch_bounds__(block_threads)
    written_output_kernel(const ANNULUS_GRID_CONSTANT OutputArguments a, const BlockRows rows) {
    const RowContext &c = a.context;
    for_rows_of_warp(rows, c.has_nonfinite, [&](const BlockRow &row) {
        const std::int64_t index = a.state ? row.partial_index(a.summed) : -1;
        if (index >= 0 && !(a.state[index].y < 0.f))
            return;
        T *const out = row_at<T>(a.out, row.batch, row.head, row.position);
        const NonfiniteColumns lost(LaneRow::load(out, c.head_dim));
        if (!lost.any())
            return;
        const float log2_sum = log2_sum_of_row<T>(c, row.batch, row.head, row.position);
        output_row<T>(c, row.batch, row.head, row.position, log2_sum, lost).store(out, lost);
    });
}

// Rows of gradients: partial results, or the caller's rows, or none.
template <class T> struct GradientRows {
    DeviceRows written;
    float *partial; // null: the caller's rows
    DeviceSummedRows summed;

    __device__ LaneRow load(const BlockRow &row, int columns) const {
        const std::int64_t index = row.partial_index(summed);
        if (partial ? index < 0 : !written.data)
            return {};
        return partial ? LaneRow::load(partial + index * columns, columns)
                       : LaneRow::load(row_at<T>(written, row.batch, row.head, row.position), columns);
    }
    __device__ void store(const BlockRow &row, int columns, const LaneRow &values, const NonfiniteColumns &lost) const {
        if (partial)
            values.store(partial + row.partial_index(summed) * columns, lost);
        else
            values.store(row_at<T>(written, row.batch, row.head, row.position), lost);
    }
};

template <class T>
__global__ void __launch_bounds__(block_threads)
    d_q_kernel(const RowContext c, const ANNULUS_GRID_CONSTANT GradientRows<T> d_q, const BlockRows rows) {
    for_rows_of_warp(rows, c.has_nonfinite, [&](const BlockRow &row) {
        const NonfiniteColumns lost(d_q.load(row, c.head_dim));
        if (lost.any())
            d_q.store(row, c.head_dim, query_gradient_row<T>(c, row.batch, row.head, row.position, lost), lost);
    });
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    d_kv_kernel(const RowContext c, const ANNULUS_GRID_CONSTANT GradientRows<T> d_k,
                const ANNULUS_GRID_CONSTANT GradientRows<T> d_v, const BlockRows rows) {
    for_rows_of_warp(rows, c.has_nonfinite, [&](const BlockRow &row) {
        const NonfiniteColumns lost_k(d_k.load(row, c.head_dim)), lost_v(d_v.load(row, c.head_dim));
        if (!lost_k.any() && !lost_v.any())
            return;
        LaneRow k, v;
        key_gradient_rows<T>(c, row.batch, row.head, row.position, lost_k, lost_v, k, v);
        d_k.store(row, c.head_dim, k, lost_k);
        d_v.store(row, c.head_dim, v, lost_v);
    });
}

// Enough blocks to fill a GPU. If there is nothing to recompute they end at once.
constexpr unsigned blocks = 1024;

} // namespace

void recompute_outputs_of_partial(annulus_dtype dtype, const OutputArguments &a, cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) {
        launch("recompute_outputs", summed_output_kernel<decltype(type), false>, blocks, stream, a,
               query_rows(a.block));
    });
}

void recompute_outputs(annulus_dtype dtype, const OutputArguments &a, cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) {
        launch("recompute_outputs", written_output_kernel<decltype(type)>, blocks, stream, a, query_rows(a.block));
    });
}

void recompute_partial_outputs(annulus_dtype dtype, const OutputArguments &a, cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) {
        launch("recompute_outputs", summed_output_kernel<decltype(type), true>, blocks, stream, a, query_rows(a.block));
    });
}

namespace {

template <class T>
void recompute(const GradientOutputArguments &a, const PartialGradients &partial, bool recomputes_d_q,
               bool recomputes_d_kv, cudaStream_t stream) {
    const BlockRows queries = query_rows(a.block), keys = key_rows(a.block, a.context.heads_per_kv_head);
    if (recomputes_d_q && queries.count() > 0)
        launch("recompute_d_q", d_q_kernel<T>, blocks, stream, a.context,
               GradientRows<T>{a.d_q, partial.d_q, a.summed_queries}, queries);
    if (recomputes_d_kv && keys.count() > 0)
        launch("recompute_d_kv", d_kv_kernel<T>, blocks, stream, a.context,
               GradientRows<T>{a.d_k, partial.d_k, a.summed_keys}, GradientRows<T>{a.d_v, partial.d_v, a.summed_keys},
               keys);
}

} // namespace

void recompute_gradients(annulus_dtype dtype, const GradientOutputArguments &a, bool recomputes_d_q,
                         bool recomputes_d_kv, cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) { recompute<decltype(type)>(a, {}, recomputes_d_q, recomputes_d_kv, stream); });
}

void recompute_partial_gradients(annulus_dtype dtype, const GradientOutputArguments &a, cudaStream_t stream) {
    with_dtype(dtype,
               [&](auto type) { recompute<decltype(type)>(a, a.partial, a.partial.d_q, a.partial.d_v, stream); });
}

} // namespace annulus
