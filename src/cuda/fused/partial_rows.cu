// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/partial_rows.hpp"

#include "cuda/results/block_rows.cuh"

#include <algorithm>

namespace annulus {

namespace {

struct PartialRowsOfGradients {
    PartialRowsArguments gradients[3];
    bool aligned[3];
};

// Grid: one layer (z) for each gradient.
template <class T>
__global__ void __launch_bounds__(block_threads)
    partial_rows_kernel(const __grid_constant__ PartialRowsOfGradients all, const BlockRows all_rows) {
    const PartialRowsArguments &a = all.gradients[blockIdx.z];
    const BlockRows rows = partial_rows(all_rows, a.summed);
    const bool aligned = all.aligned[blockIdx.z];
    const auto find_written = [&](const BlockRow &row) -> std::int64_t {
        const std::int64_t position = row.position_of_partial(a.summed);
        return position >= 0 && a.rows.has(row.head, static_cast<int>(position)) ? position : -1;
    };
    const auto write = [&](const BlockRow &row, std::int64_t position, int column) {
        write_partial<T>(a.partial, a.target, row, position, a.head_dim, column, nullptr, aligned);
    };
    for_four_columns<max_rows_of_warp>(rows, a.head_dim, find_written, write);
}

} // namespace

void write_partial_rows(annulus_dtype dtype, std::span<const PartialRowsArguments> gradients, cudaStream_t stream) {
    if (gradients.empty())
        return;
    const BlockRows rows = query_rows(gradients.front().block);
    BlockRows most = rows;
    most.window.length = 0;
    for (const PartialRowsArguments &a : gradients)
        most.window.length = std::max(most.window.length, partial_rows(rows, a.summed).window.length);
    if (most.count() == 0)
        return;
    dim3 grid = grid_of_few(most);
    grid.z = static_cast<unsigned>(gradients.size());
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        PartialRowsOfGradients all{};
        for (std::size_t i = 0; i < gradients.size(); ++i) {
            all.gradients[i] = gradients[i];
            all.aligned[i] = fours_are_aligned<T>(gradients[i].target);
        }
        launch("write_partial_rows", partial_rows_kernel<T>, grid, stream, all, rows);
    });
}

} // namespace annulus
