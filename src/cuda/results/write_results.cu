// SPDX-License-Identifier: Apache-2.0
// Kernels that write a block's float32 results to the caller's tensors. Each thread writes four columns.
#include "cuda/results/block_rows.cuh"
#include "cuda/results/results.hpp"

namespace annulus {

namespace {

// `rows` are those of the state (partial_rows()).
template <class T, int rows_of_warp>
__global__ void __launch_bounds__(block_threads)
    output_kernel(const ANNULUS_GRID_CONSTANT OutputArguments a, const BlockRows rows, bool is_aligned) {
    const auto find_unfinished = [&](const BlockRow &row) -> std::int64_t {
        const std::int64_t position = row.position_of_partial(a.summed);
        return position < 0 || __ldg(a.state + row.index).y < 0.f ? -1 : position;
    };
    const auto write = [&](const BlockRow &row, std::int64_t position, int column) {
        const float2 state = __ldg(a.state + row.index);
        float4 four{};
        if (state.y != 0.f || std::signbit(state.y)) {
            const float *const partial = a.o + row.index * a.context.head_dim + column;
            four = scaled(__ldg(reinterpret_cast<const float4 *>(partial)), inverse_sum(state.y));
            note_nan(four, a.context.has_nonfinite);
        }
        write_four(four, row_at<T>(a.out, row.batch, row.head, position) + column, is_aligned);
        if (a.lse.data && column == 0)
            *row_at<float>(a.lse, row.batch, row.head, position) = (state.x + log2_of_sum(state.y)) * ln_2;
    };
    for_four_columns<rows_of_warp>(rows, a.context.head_dim, find_unfinished, write);
}

template <class T, bool adds>
__global__ void __launch_bounds__(block_threads)
    gradient_output_kernel(const float *partial, const DeviceRows target, const BlockRows rows, int columns,
                           int *has_nonfinite, bool is_aligned) {
    const auto find = [](const BlockRow &row) { return row.position; };
    const auto write = [&](const BlockRow &row, std::int64_t position, int column) {
        write_partial<T, adds>(partial, target, row, position, columns, column, has_nonfinite, is_aligned);
    };
    for_four_columns<usual_rows_of_warp>(rows, columns, find, write);
}

} // namespace

namespace {

template <int rows_of_warp>
void write_outputs(annulus_dtype dtype, const OutputArguments &a, const BlockRows &rows, const dim3 &grid,
                   cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        launch("write_outputs", output_kernel<T, rows_of_warp>, grid, stream, a, rows, fours_are_aligned<T>(a.out));
    });
}

} // namespace

void write_outputs(annulus_dtype dtype, const OutputArguments &a, cudaStream_t stream) {
    if (const BlockRows rows = query_rows(a.block); rows.count() > 0)
        write_outputs<usual_rows_of_warp>(dtype, a, rows, grid_of(rows), stream);
}

void write_unfinished_outputs(annulus_dtype dtype, const OutputArguments &a, cudaStream_t stream) {
    if (const BlockRows rows = partial_rows(query_rows(a.block), a.summed); rows.count() > 0)
        write_outputs<max_rows_of_warp>(dtype, a, rows, grid_of_few(rows), stream);
}

void write_gradients(annulus_dtype dtype, const GradientOutputArguments &a, cudaStream_t stream) {
    const BlockRows queries = query_rows(a.block), keys = key_rows(a.block, a.context.heads_per_kv_head);
    const auto write = [&](const float *partial, const DeviceRows &rows, const GradientTarget &target,
                           const BlockRows &block_rows) {
        with_dtype(target.dtype(dtype), [&](auto type) {
            using T = decltype(type);
            launch("write_gradients", target.adds ? gradient_output_kernel<T, true> : gradient_output_kernel<T, false>,
                   grid_of(block_rows), stream, partial, rows, block_rows, a.context.head_dim, a.context.has_nonfinite,
                   fours_are_aligned<T>(rows));
        });
    };
    if (a.partial.d_q && queries.count() > 0)
        write(a.partial.d_q, a.d_q, a.targets.q, queries);
    if (a.partial.d_k && keys.count() > 0)
        write(a.partial.d_k, a.d_k, a.targets.k, keys);
    if (a.partial.d_v && keys.count() > 0)
        write(a.partial.d_v, a.d_v, a.targets.v, keys);
}

} // namespace annulus
