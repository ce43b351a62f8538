// SPDX-License-Identifier: Apache-2.0
// Kernels that write a block's results to the caller's tensors, four columns a thread; and those that compute rows
// again where a result is NaN (repair.cuh), a warp for each row.
#include "cuda/results/block_rows.cuh"
#include "cuda/results/nonfinite_rows.cuh"

#include <algorithm>

namespace annulus {

namespace {

constexpr int usual_rows_of_warp = 8; // enough warps where there are few rows

template <class T>
__global__ void __launch_bounds__(block_threads)
    output_kernel(const OutputArguments a, const BlockRows rows, bool aligned) {
    const auto is_unfinished = [&](const BlockRow &row) { return !(__ldg(a.state + row.index).y < 0.f); };
    for_four_columns<usual_rows_of_warp>(rows, a.context.head_dim, is_unfinished, [&](const BlockRow &row, int column) {
        const float2 state = __ldg(a.state + row.index);
        float4 four{};
        if (state.y != 0.f || std::signbit(state.y)) {
            const float *const sums = a.o + row.index * a.context.head_dim + column;
            four = scaled(__ldg(reinterpret_cast<const float4 *>(sums)), inverse_sum(state.y));
            note_nan(four, a.context.has_nan);
        }
        write_four(four, row_at<T>(a.out, row.batch, row.head, row.position) + column, aligned);
        if (a.lse.data && column == 0)
            *row_at<float>(a.lse, row.batch, row.head, row.position) = (state.x + log2_of_sum(state.y)) * ln_2;
    });
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    gradient_output_kernel(const float *sums, const DeviceRows target, const BlockRows rows, int columns, int *has_nan,
                           bool aligned) {
    const auto all = [](const BlockRow &) { return true; };
    for_four_columns<usual_rows_of_warp>(rows, columns, all, [&](const BlockRow &row, int column) {
        write_sum<T>(sums, target, row, columns, column, has_nan, aligned);
    });
}

constexpr int cleared_rows = 16; // of a block

// All heads of some rows, which are neighbours in memory, in parts of a row that are written at once.
template <class T, class Part>
__global__ void __launch_bounds__(block_threads)
    clear_outputs_kernel(const ClearArguments a, const BlockRows rows, unsigned parts) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * cleared_rows;
    const std::int64_t last = min(first + cleared_rows, rows.window.length);
    for (std::int64_t batch = blockIdx.y; batch < rows.batches; batch += gridDim.y)
        for (std::int64_t row = first; row < last; ++row)
            for (unsigned i = threadIdx.x; i < std::int64_t{rows.heads} * parts; i += block_threads) {
                const auto head = rows.first_head + static_cast<std::int32_t>(i / parts);
                const std::int64_t position = rows.window.start + row;
                T *const target = row_at<T>(a.rows, rows.first_batch + batch, head, position);
                reinterpret_cast<Part *>(target)[i % parts] = Part{};
                if (a.lse.data && i % parts == 0)
                    *row_at<float>(a.lse, rows.first_batch + batch, head, position) = -INFINITY;
            }
}

// Calls use(row) for the rows that this warp has to look at: none if it is known that no row of the block has a NaN.
template <class Use> __device__ void for_rows_of_warp(const BlockRows &rows, const int *has_nan, Use use) {
    if (has_nan && *has_nan == 0)
        return;
    const std::int64_t warps = gridDim.x * (blockDim.x / 32), count = rows.batches * rows.heads * rows.window.length;
    for (std::int64_t i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < count; i += warps)
        use(BlockRow(rows, i % rows.window.length, i / rows.window.length));
}

// Into the caller's rows, or with `in_sums` into O, which is not normalised.
template <class T, bool in_sums>
__global__ void __launch_bounds__(block_threads) repair_output_kernel(const OutputArguments a, const BlockRows rows) {
    const RowContext &c = a.context;
    for_rows_of_warp(rows, c.has_nan, [&](const BlockRow &row) {
        const float2 state = a.state[row.index];
        if (state.y <= 0.f)
            return;
        float *const sum = a.o + row.index * c.head_dim;
        const NonfiniteColumns lost(LaneRow::load(sum, c.head_dim));
        if (!lost.any())
            return;
        const float log2_sum = in_sums ? state.x : state.x + log2f(state.y);
        const LaneRow o = output_row<T>(c, row.batch, row.head, row.position, log2_sum, lost);
        if constexpr (in_sums)
            o.store(sum, lost);
        else
            o.store(row_at<T>(a.out, row.batch, row.head, row.position), lost);
    });
}

// Of finished rows, or without a state all.
template <class T>
__global__ void __launch_bounds__(block_threads) repair_written_kernel(const OutputArguments a, const BlockRows rows) {
    const RowContext &c = a.context;
    for_rows_of_warp(rows, c.has_nan, [&](const BlockRow &row) {
        if (a.state && !(a.state[row.index].y < 0.f))
            return;
        T *const out = row_at<T>(a.out, row.batch, row.head, row.position);
        const NonfiniteColumns lost(LaneRow::load(out, c.head_dim));
        if (!lost.any())
            return;
        const float log2_sum = log2_sum_of_row<T>(c, row.batch, row.head, row.position);
        output_row<T>(c, row.batch, row.head, row.position, log2_sum, lost).store(out, lost);
    });
}

// Rows of gradients, written or in sums.
template <class T> struct GradientRows {
    DeviceRows written;
    float *sums; // null: look at the written ones

    __device__ LaneRow load(const BlockRow &row, int columns) const {
        return sums ? LaneRow::load(sums + row.index * columns, columns)
                    : LaneRow::load(row_at<T>(written, row.batch, row.head, row.position), columns);
    }
    __device__ void store(const BlockRow &row, int columns, const LaneRow &values, const NonfiniteColumns &lost) const {
        if (sums)
            values.store(sums + row.index * columns, lost);
        else
            values.store(row_at<T>(written, row.batch, row.head, row.position), lost);
    }
};

template <class T>
__global__ void __launch_bounds__(block_threads)
    repair_d_q_kernel(const RowContext c, const GradientRows<T> d_q, const BlockRows rows) {
    for_rows_of_warp(rows, c.has_nan, [&](const BlockRow &row) {
        const NonfiniteColumns lost(d_q.load(row, c.head_dim));
        if (lost.any())
            d_q.store(row, c.head_dim, query_gradient_row<T>(c, row.batch, row.head, row.position, lost), lost);
    });
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    repair_d_kv_kernel(const RowContext c, const GradientRows<T> d_k, const GradientRows<T> d_v, const BlockRows rows) {
    for_rows_of_warp(rows, c.has_nan, [&](const BlockRow &row) {
        const NonfiniteColumns lost_k(d_k.load(row, c.head_dim)), lost_v(d_v.load(row, c.head_dim));
        if (!lost_k.any() && !lost_v.any())
            return;
        LaneRow k, v;
        key_gradient_rows<T>(c, row.batch, row.head, row.position, lost_k, lost_v, k, v);
        d_k.store(row, c.head_dim, k, lost_k);
        d_v.store(row, c.head_dim, v, lost_v);
    });
}

// Enough to fill a GPU; with nothing to repair they are gone at once.
constexpr unsigned repair_blocks = 1024;

} // namespace

void write_outputs(annulus_dtype dtype, const OutputArguments &a, cudaStream_t stream) {
    const BlockRows rows = query_rows(a.block);
    if (rows.count() == 0)
        return;
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        launch("write_outputs", output_kernel<T>, grid_of(rows, usual_rows_of_warp), stream, a, rows,
               fours_are_aligned<T>(a.out));
        if (a.context.has_nan)
            launch("repair_outputs", repair_output_kernel<T, false>, repair_blocks, stream, a, rows);
    });
}

void repair_outputs(annulus_dtype dtype, const OutputArguments &a, cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) {
        launch("repair_outputs", repair_written_kernel<decltype(type)>, repair_blocks, stream, a, query_rows(a.block));
    });
}

void repair_sums(annulus_dtype dtype, const OutputArguments &a, cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) {
        launch("repair_sums", repair_output_kernel<decltype(type), true>, repair_blocks, stream, a,
               query_rows(a.block));
    });
}

void clear_outputs(annulus_dtype dtype, const ClearArguments &a, cudaStream_t stream) {
    const BlockRows rows = query_rows(a.block);
    if (rows.count() == 0)
        return;
    const dim3 grid(grid_for(rows.window.length, cleared_rows).x,
                    static_cast<unsigned>(std::min(most_layers, rows.batches)));
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const auto clear = [&](auto part) {
            using Part = decltype(part);
            const auto parts = static_cast<unsigned>(a.head_dim * sizeof(T) / sizeof(Part));
            launch("clear_outputs", clear_outputs_kernel<T, Part>, grid, stream, a, rows, parts);
        };
        if (begin_at_multiples<T>(a.rows, sizeof(uint4)))
            clear(uint4{});
        else
            clear(T{});
    });
}

void write_gradients(annulus_dtype dtype, const GradientOutputArguments &a, cudaStream_t stream) {
    const BlockRows queries = query_rows(a.block), keys = key_rows(a.block, a.context.heads_per_kv_head);
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const int columns = a.context.head_dim;
        const auto write = [&](const float *sums, const DeviceRows &target, const BlockRows &rows) {
            launch("write_gradients", gradient_output_kernel<T>, grid_of(rows, usual_rows_of_warp), stream, sums,
                   target, rows, columns, a.context.has_nan, fours_are_aligned<T>(target));
        };
        if (a.sums.d_q && queries.count() > 0)
            write(a.sums.d_q, a.d_q, queries);
        if (a.sums.d_k && keys.count() > 0) {
            write(a.sums.d_k, a.d_k, keys);
            write(a.sums.d_v, a.d_v, keys);
        }
    });
}

namespace {

template <class T>
void repair(const GradientOutputArguments &a, const GradientSums &sums, bool of_queries, bool of_keys,
            cudaStream_t stream) {
    const BlockRows queries = query_rows(a.block), keys = key_rows(a.block, a.context.heads_per_kv_head);
    if (of_queries && queries.count() > 0)
        launch("repair_d_q", repair_d_q_kernel<T>, repair_blocks, stream, a.context, GradientRows<T>{a.d_q, sums.d_q},
               queries);
    if (of_keys && keys.count() > 0)
        launch("repair_d_kv", repair_d_kv_kernel<T>, repair_blocks, stream, a.context, GradientRows<T>{a.d_k, sums.d_k},
               GradientRows<T>{a.d_v, sums.d_v}, keys);
}

} // namespace

void repair_gradients(annulus_dtype dtype, const GradientOutputArguments &a, bool of_queries, bool of_keys,
                      cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) { repair<decltype(type)>(a, {}, of_queries, of_keys, stream); });
}

void repair_gradient_sums(annulus_dtype dtype, const GradientOutputArguments &a, cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) { repair<decltype(type)>(a, a.sums, true, true, stream); });
}

} // namespace annulus
