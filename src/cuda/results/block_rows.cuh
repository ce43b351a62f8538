// SPDX-License-Identifier: Apache-2.0
// For kernels that write rows of a block to the caller's tensors. Each thread writes four columns.
#pragma once

#include "cuda/device/kernel_common.cuh"
#include "cuda/results/results.hpp"

#include <algorithm>
#include <cstdint>

namespace annulus {

// The rows of a block, [batches, heads, window], either of the queries or of the keys.
struct BlockRows {
    std::int64_t first_batch, batches;
    std::int32_t first_head, heads;
    Window window;

    std::int64_t count() const { return batches * heads * window.length; }
};

inline BlockRows query_rows(const Block &block) {
    return {block.first_batch, block.batches, block.first_head, block.heads, block.queries};
}

inline BlockRows key_rows(const Block &block, std::int32_t heads_per_kv_head) {
    return {block.first_batch, block.batches, block.first_head / heads_per_kv_head, block.heads / heads_per_kv_head,
            block.keys};
}

// Returns the rows of partial results for the rows of a block: `position` of a BlockRow is then its number in its head,
// and `index` is its index in the partial results.
constexpr BlockRows partial_rows(BlockRows rows, const DeviceSummedRows &summed) {
    if (summed.are_few)
        rows.window = {0, summed.count};
    return rows;
}

// One batch entry and head of a block.
struct BlockLayer {
    std::int64_t index, first_index, batch;
    std::int32_t head;

    __device__ BlockLayer(const BlockRows &rows, std::int64_t layer)
        : index(layer), first_index(layer * rows.window.length), batch(rows.first_batch + layer / rows.heads),
          head(static_cast<std::int32_t>(rows.first_head + layer % rows.heads)) {}
};

// Row `row` of the window in a layer.
struct BlockRow {
    std::int64_t layer, index, batch, position;
    std::int32_t head;

    __device__ BlockRow(const BlockRows &rows, std::int64_t row, const BlockLayer &of_layer)
        : layer(of_layer.index), index(of_layer.first_index + row), batch(of_layer.batch),
          position(rows.window.start + row), head(of_layer.head) {}

    // Returns the index of the row's partial results; below 0 if it has none.
    __device__ std::int64_t partial_index(const DeviceSummedRows &summed) const {
        if (!summed.are_few)
            return index;
        const int row = summed.row(head, static_cast<int>(position));
        return row < 0 ? row : layer * summed.count + row;
    }

    // Returns, for a row of partial_rows(), its position, or a number below 0 if it has none.
    __device__ std::int64_t position_of_partial(const DeviceSummedRows &summed) const {
        if (!summed.are_few)
            return position;
        const auto number = static_cast<int>(position);
        const int found = summed.position(head, number);
        return found >= 0 && summed.row(head, found) == number ? found : -1;
    }
};

constexpr std::int64_t max_layers = 65535; // limit of CUDA for the second dimension of a grid

inline dim3 grid_of(const BlockRows &rows, int rows_of_warp, std::int64_t max_blocks_of_layer) {
    return {static_cast<unsigned>(
                std::min(max_blocks_of_layer, divide_up(rows.window.length, block_threads / 32 * rows_of_warp))),
            static_cast<unsigned>(std::min(max_layers, rows.batches * rows.heads))};
}

constexpr int usual_rows_of_warp = 8; // small, so that there are enough warps if there are few rows
inline dim3 grid_of(const BlockRows &rows) {
    return grid_of(rows, usual_rows_of_warp, 4096); // 4096 blocks of a layer keep a GPU busy
}

// For kernels that may write few of the rows: then a further block costs more than the rows that it has.
constexpr int max_rows_of_warp = 32;
inline dim3 grid_of_few(const BlockRows &rows) {
    constexpr std::int64_t blocks = 1024; // number of blocks that a GPU runs at the same time
    return grid_of(rows, max_rows_of_warp, divide_up(blocks, rows.batches * rows.heads));
}

// Calls use(row, position, first of four columns) for the thread's part of the rows that have a position. Each warp has
// `rows_of_warp` rows, at most 32. For each row one lane calls find(row), which returns the position, or a number below
// 0. The other lanes read it from that lane, since finding it takes longer than writing four columns.
template <int rows_of_warp, class Find, class Use>
__device__ void for_four_columns(const BlockRows &rows, int columns, Find find, Use use) {
    const int lane = static_cast<int>(threadIdx.x) % 32, parts = columns / 4; // parts of a row
    const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * (block_threads / 32) + threadIdx.x / 32;
    const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (block_threads / 32);
    for (std::int64_t i = blockIdx.y; i < rows.batches * rows.heads; i += gridDim.y) {
        const BlockLayer layer(rows, i);
        for (std::int64_t first = warp * rows_of_warp; first < rows.window.length; first += warps * rows_of_warp) {
            const bool is_row = lane < rows_of_warp && first + lane < rows.window.length;
            const std::int64_t found = is_row ? find(BlockRow(rows, first + lane, layer)) : -1;
            const unsigned wanted = __ballot_sync(~0u, found >= 0);
            if (__popc(wanted) <= rows_of_warp / 4) {
                for (unsigned left = wanted; left != 0; left &= left - 1) {
                    const int row = __ffs(static_cast<int>(left)) - 1;
                    const std::int64_t position = __shfl_sync(~0u, found, row);
                    for (int part = lane; part < parts; part += 32)
                        use(BlockRow(rows, first + row, layer), position, 4 * part);
                }
                continue;
            }
            int row = lane / parts, part = lane % parts;
#pragma unroll 4
            for (int begin = 0; begin < rows_of_warp * parts; begin += 32) {
                const std::int64_t position = __shfl_sync(~0u, found, row % 32);
                if (row < rows_of_warp && position >= 0)
                    use(BlockRow(rows, first + row, layer), position, 4 * part);
                row += 32 / parts;
                part += 32 % parts;
                if (part >= parts) {
                    part -= parts;
                    ++row;
                }
            }
        }
    }
}

// True if every row begins at a multiple of `bytes`, a power of two.
template <class T> bool begin_at_multiples(const DeviceRows &rows, std::size_t bytes) {
    const auto strides = static_cast<std::uintptr_t>(rows.batch | rows.row | rows.head) * sizeof(T);
    return (strides | reinterpret_cast<std::uintptr_t>(rows.data)) % bytes == 0;
}

// True if four neighbouring elements can be written with one instruction in every row.
template <class T> bool fours_are_aligned(const DeviceRows &rows) {
    return begin_at_multiples<T>(rows, 4 * sizeof(T));
}

template <class T> __device__ void write_four(const float4 &values, T *target, bool aligned) {
    const Four<T> four{
        {from_float<T>(values.x), from_float<T>(values.y), from_float<T>(values.z), from_float<T>(values.w)}};
    if (aligned)
        *reinterpret_cast<Four<T> *>(target) = four;
    else
        for (int i = 0; i < 4; ++i)
            target[i] = four.x[i];
}

// Notes infinities of opposite signs, too. Their row is then checked without need.
__device__ inline void note_nan(const float4 &four, int *has_nonfinite) {
    if (has_nonfinite && isnan(four.x + four.y + four.z + four.w))
        *has_nonfinite = 1;
}

// Adds four values to the caller's. If all four are 0, it does not write.
template <class T> __device__ void add_four(float4 values, T *target, bool aligned) {
    if (values.x == 0.f && values.y == 0.f && values.z == 0.f && values.w == 0.f)
        return;
    Four<T> before;
    if (aligned)
        before = *reinterpret_cast<const Four<T> *>(target);
    else
        for (int i = 0; i < 4; ++i)
            before.x[i] = target[i];
    values.x += to_float(before.x[0]);
    values.y += to_float(before.x[1]);
    values.z += to_float(before.x[2]);
    values.w += to_float(before.x[3]);
    write_four(values, target, aligned);
}

// Writes or adds four columns of a row of partial results, [B, heads, rows, D], to a position of the caller's tensor.
template <class T, bool adds = false>
__device__ void write_partial(const float *partial, const DeviceRows &target, const BlockRow &row,
                              std::int64_t position, int columns, int column, int *has_nonfinite, bool aligned) {
    const float4 four = __ldg(reinterpret_cast<const float4 *>(partial + row.index * columns + column));
    note_nan(four, has_nonfinite);
    T *const caller_columns = row_at<T>(target, row.batch, row.head, position) + column;
    if constexpr (adds)
        add_four(four, caller_columns, aligned);
    else
        write_four(four, caller_columns, aligned);
}

} // namespace annulus
