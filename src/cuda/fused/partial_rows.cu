// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/partial_rows.hpp"

#include "cuda/results/block_rows.cuh"

namespace annulus {

namespace {

constexpr int rows_of_warp = 32;

template <class T>
__global__ void __launch_bounds__(block_threads)
    partial_rows_kernel(const __grid_constant__ PartialRowsArguments a, const BlockRows rows, bool aligned) {
    const auto has_partial = [&](const BlockRow &row) { return a.rows.has(row.head, static_cast<int>(row.position)); };
    for_four_columns<rows_of_warp>(rows, a.head_dim, has_partial, [&](const BlockRow &row, int column) {
        write_partial<T>(a.partial, a.target, row, a.head_dim, column, nullptr, aligned);
    });
}

} // namespace

void write_partial_rows(annulus_dtype dtype, const PartialRowsArguments &a, cudaStream_t stream) {
    const BlockRows rows = query_rows(a.block);
    if (rows.count() == 0)
        return;
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        launch("write_partial_rows", partial_rows_kernel<T>, grid_of(rows, rows_of_warp), stream, a, rows,
               fours_are_aligned<T>(a.target));
    });
}

} // namespace annulus
