// SPDX-License-Identifier: Apache-2.0
// Each row has a warp, whose lanes have four columns at a time. All lanes compute the weights of the parts.
#include "cuda/fused/merge_range_parts.hpp"

#include "cuda/device/kernel_common.cuh"
#include "cuda/results/softmax_state.hpp"

#include <algorithm>
#include <cmath>

namespace annulus {

namespace {

struct Parts {
    int count, columns;
    bool adds;
    std::int64_t rows;     // of a part: of all batch entries and heads
    std::int64_t all_rows; // of a head, if all rows have partial results
    DeviceSummedRows summed;
};

// The warp's row: its index among the rows of a part, and among all rows that have partial results.
struct PartRow {
    std::int64_t index, index_of_all;
    bool exists, has_results; // whether the row is in a row block of the grid

    __device__ PartRow(const TileGrid &grid, const Parts &parts)
        : index(static_cast<std::int64_t>(blockIdx.x) * (block_threads / 32) + threadIdx.x / 32),
          exists(index < parts.rows), has_results(false) {
        const SequenceGrid &sequence = grid.sequence;
        const std::int64_t layer = index / sequence.row_count; // a batch entry and head
        const int position = sequence.row_start + static_cast<int>(index % sequence.row_count);
        const int head = grid.first_head + static_cast<int>(layer % grid.heads.value) * grid.head_step;
        if (parts.summed.are_few) {
            const int row = parts.summed.row(head, position);
            index_of_all = layer * parts.summed.count + row;
            exists &= row >= 0;
        } else {
            index_of_all = layer * parts.all_rows + position - grid.first_row;
        }
        for (int i = 0; i < grid.branch_count; ++i) {
            const GridBranch &branch = grid.branches[i];
            has_results |=
                branch.serves(head) && branch.has_row(head, position, position - branch.length.remainder(position));
        }
    }
};

__device__ float4 four_at(const float *row, int column) {
    return *reinterpret_cast<const float4 *>(row + column);
}

__device__ void add(const float4 &x, float factor, float4 &sum) {
    sum.x = fmaf(x.x, factor, sum.x);
    sum.y = fmaf(x.y, factor, sum.y);
    sum.z = fmaf(x.z, factor, sum.z);
    sum.w = fmaf(x.w, factor, sum.w);
}

__global__ void __launch_bounds__(block_threads)
    merge_kernel(const ANNULUS_GRID_CONSTANT TileGrid grid, const Parts parts, const float2 *part_state,
                 const float *part_o, float2 *state, float *o) {
    const PartRow row(grid, parts);
    if (!row.exists || (parts.adds && !row.has_results))
        return;
    const int count = row.has_results ? parts.count : 0;
    const float2 before = parts.adds ? state[row.index_of_all] : empty_state();
    // A part that has met no key, or only NaN scores, has m = -infinity. Factor 0 then leaves NaN as it is.
    float top = before.x;
    for (int p = 0; p < count; ++p)
        top = fmaxf(top, part_state[p * parts.rows + row.index].x);
    const auto factor_of = [&](const float2 &own) { return own.x == -INFINITY ? 0.f : exp2f(own.x - top); };
    const float factor_before = factor_of(before);
    float sum = before.y * factor_before;
    bool has_met_keys = std::signbit(before.y);
    for (int p = 0; p < count; ++p) {
        const float2 own = part_state[p * parts.rows + row.index];
        sum += own.y * factor_of(own);
        has_met_keys |= std::signbit(own.y);
    }
    float *const target = o + row.index_of_all * parts.columns;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int column = 4 * lane; column < parts.columns; column += 4 * 32) {
        float4 all{};
        if (parts.adds)
            add(four_at(target, column), factor_before, all);
        for (int p = 0; p < count; ++p) {
            const std::int64_t index = p * parts.rows + row.index;
            add(four_at(part_o + index * parts.columns, column), factor_of(part_state[index]), all);
        }
        *reinterpret_cast<float4 *>(target + column) = all;
    }
    __syncwarp(); // all lanes have read the state
    if (lane == 0)
        state[row.index_of_all] = {top, sum == 0.f ? sum_of_none(has_met_keys) : sum};
}

__global__ void __launch_bounds__(block_threads)
    add_kernel(const ANNULUS_GRID_CONSTANT TileGrid grid, const Parts parts, const float *part_rows, float *gradients) {
    const PartRow row(grid, parts);
    if (!row.exists || (parts.adds && !row.has_results))
        return;
    const int count = row.has_results ? parts.count : 0;
    float *const target = gradients + row.index_of_all * parts.columns;
    for (int column = 4 * (static_cast<int>(threadIdx.x) % 32); column < parts.columns; column += 4 * 32) {
        float4 all = parts.adds ? four_at(target, column) : float4{};
        for (int p = 0; p < count; ++p)
            add(four_at(part_rows + (p * parts.rows + row.index) * parts.columns, column), 1, all);
        *reinterpret_cast<float4 *>(target + column) = all;
    }
}

Parts parts_of(const RangePartsWork &work) {
    const TileGrid &grid = work.grid;
    return {work.parts,    work.columns,
            work.adds,     std::int64_t{grid.batches} * grid.heads.value * grid.sequence.row_count,
            work.all_rows, work.summed};
}

} // namespace

void merge_range_parts(const RangePartsWork &work, const float2 *part_state, const float *part_o, float2 *state,
                       float *o, cudaStream_t stream) {
    const Parts parts = parts_of(work);
    launch("merge_range_parts", merge_kernel, grid_for(parts.rows, block_threads / 32), stream, work.grid, parts,
           part_state, part_o, state, o);
}

void add_range_parts(const RangePartsWork &work, const float *part_rows, float *gradients, cudaStream_t stream) {
    const Parts parts = parts_of(work);
    launch("add_range_parts", add_kernel, grid_for(parts.rows, block_threads / 32), stream, work.grid, parts, part_rows,
           gradients);
}

} // namespace annulus
