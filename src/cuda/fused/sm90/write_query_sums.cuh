// SPDX-License-Identifier: Apache-2.0
// The kernel that makes dQ of the sums that the kernel of all gradients leaves in memory (query_sums.hpp). CTAs of one
// warpgroup take row blocks of 64 queries.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/backward_epilogue.cuh"
#include "cuda/fused/sm90/all_gradients_traits.hpp"
#include "cuda/fused/sm90/backward_params.hpp"

#include <cstdint>

namespace annulus {

template <class AllTraits> struct WriteQuerySumsTraits : AllTraits {
    static constexpr int threads = warpgroup_threads;
};

template <class Traits> struct WriteQuerySumsShared {
    std::uint8_t staging[Traits::row_block_bytes];
    // If the sums are transposed: the row block, by queries. With these distances, lanes write to different banks.
    static constexpr int row_floats = Traits::head_dim + 4;
    float rows[Traits::transposes_d_q ? row_block_rows * row_floats : 1];
};

template <class Traits> class QuerySumWriter {
  public:
    __device__ __forceinline__ QuerySumWriter(const BackwardParams &params, WriteQuerySumsShared<Traits> &shared)
        : params_(params), shared_(shared) {}

    __device__ __forceinline__ void run() const {
        const QuerySums &sums = params_.query_sums;
        const int row_blocks = sums.blocks * row_blocks_of_block;
        for (int i = static_cast<int>(blockIdx.x); i < sums.cells * row_blocks; i += static_cast<int>(gridDim.x))
            write(i / row_blocks, i % row_blocks);
    }

  private:
    using Element = typename Traits::Element;
    static constexpr int columns = Traits::head_dim;
    static constexpr int row_blocks_of_block = Traits::range_block_rows / row_block_rows;

    // Writes a row block of a cell. Like Q blocks, row blocks count from the last queries.
    __device__ __forceinline__ void write(int cell_index, int index) const {
        const QuerySums::Cell cell = params_.query_sums.cell(cell_index);
        const SequenceGrid &sequence = params_.sequence;
        const GridBranch &grid_branch = params_.branches[0];
        const int head = params_.first_head + cell.head * params_.head_step, batch = params_.first_batch + cell.batch;
        const CellBranch branch(grid_branch, grid_branch.length, sequence.sequence_length, head,
                                (sequence.first_segment + cell.segment) * sequence.segment_length);
        if (!branch.serves)
            return;
        const Members queries =
            rows_of_segment(grid_branch, branch, sequence.row_start, sequence.row_start + sequence.row_count);
        const Members keys =
            ranges_of_segment(grid_branch, branch, sequence.range_start, sequence.range_start + sequence.range_count);
        const int first = queries.count - (index + 1) * row_block_rows; // index of the row block's first query
        if (first + row_block_rows <= 0)
            return;
        const int block = index / row_blocks_of_block;
        const bool has_sum =
            QuerySums::has_sum(params_.causal, queries, branch.row_dilation, block * Traits::range_block_rows, keys);
        if (!has_sum && params_.skips_empty)
            return;
        float x[columns / 2];
        if (has_sum)
            load(params_.query_sums.sum(params_.query_sums.block(cell_index, block)), index % row_blocks_of_block, x);
        else
            clear(x);
        const RowBlockFromLast row_block{queries.first + first * branch.row_dilation, branch.row_dilation,
                                         max(-first, 0)};
        BackwardEpilogue<Element, columns, false, Traits::order, FragmentThread<>, RowBlockFromLast>(
            params_, params_.destination, batch, head, row_block)
            .write(x, params_.scale, shared_address(shared_.staging), params_.d_q_or_k, params_.partial_d_q_or_k);
        __syncwarp(); // the staged rows have been read
    }

    // Loads a row block of a sum. It is the last one of its Q block, or `before_last` before it.
    __device__ __forceinline__ void load(const float *sum, int before_last, float (&x)[columns / 2]) const {
        const int warp = thread_of_warpgroup() / warp_threads, lane = thread_of_warpgroup() % warp_threads;
        const auto *const own = reinterpret_cast<const float4 *>(sum) + lane;
        if constexpr (Traits::transposes_d_q) {
            __syncthreads(); // the rows before have been read
#pragma unroll
            for (int strip = 0; strip < Traits::d_q_strips; strip += 4)
                if (strip + warp < Traits::d_q_strips)
                    store_transposed(own + (strip + warp) * strip_parts, (strip + warp) * 16);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < columns / 4; ++i) {
                const FragmentThread<> at;
                const float *const two =
                    shared_.rows + at.row(i % 2) * WriteQuerySumsShared<Traits>::row_floats + i / 2 * 8 + at.column();
                x[2 * i] = two[0];
                x[2 * i + 1] = two[1];
            }
        } else {
            const int strip = (row_blocks_of_block - 1 - before_last) * 4 + warp;
#pragma unroll
            for (int i = 0; i < columns / 8; ++i) {
                const float4 four = __ldcs(own + strip * strip_parts + i * warp_threads);
                x[4 * i] = four.x;
                x[4 * i + 1] = four.y;
                x[4 * i + 2] = four.z;
                x[4 * i + 3] = four.w;
            }
        }
    }
    static constexpr int strip_parts = Traits::strip_bytes / 16;

    // Copies a strip, whose rows are columns of dQ from `column` on, into shared memory.
    __device__ __forceinline__ void store_transposed(const float4 *strip, int column) const {
        const FragmentThread<> at;
        float *const target =
            shared_.rows + at.column() * WriteQuerySumsShared<Traits>::row_floats + column + at.row_of_strip(0);
#pragma unroll
        for (int i = 0; i < Traits::d_q_columns / 8; ++i) {
            const float4 four = __ldcs(strip + i * warp_threads);
            float *const row = target + 8 * i * WriteQuerySumsShared<Traits>::row_floats;
            row[0] = four.x;
            row[WriteQuerySumsShared<Traits>::row_floats] = four.y;
            row[8] = four.z;
            row[WriteQuerySumsShared<Traits>::row_floats + 8] = four.w;
        }
    }

    const BackwardParams &params_;
    WriteQuerySumsShared<Traits> &shared_;
};

template <class Traits>
__global__ void __launch_bounds__(Traits::threads)
    write_query_sums_kernel(const __grid_constant__ BackwardParams params) {
    extern __shared__ __align__(1024) std::uint8_t memory[];
    QuerySumWriter<Traits>(params, *reinterpret_cast<WriteQuerySumsShared<Traits> *>(memory)).run();
}

} // namespace annulus
