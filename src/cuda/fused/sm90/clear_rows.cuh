// SPDX-License-Identifier: Apache-2.0
// Zeros for rows that no row block has. Warps of the fused kernels write them while they would wait.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/schedule/rows_to_clear.hpp"

#include <climits>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace annulus {

// Clears rows, by one of a CTA's `Traits::clearing_warps` or by a warp that has nothing else to do any more.
// Neighbouring pieces go to different CTAs, so that what is written at a time lies together.
template <class Traits> class RowClearer {
  public:
    // `params`: a grid with its head_dim, and what is `cleared`. `pieces_begun`: the CTA's count, in shared memory.
    template <class Params>
    __device__ __forceinline__ RowClearer(const Params &params, int &pieces_begun)
        : grid_(params), cleared_(params.cleared), head_dim_(params.head_dim), pieces_begun_(pieces_begun),
          has_more_(Traits::clearing_warps > 0 && cleared_.first_piece < cleared_.end_piece) {}

    // Allow the warp to clear its share of a tile's pieces, too, and to clear all pieces.
    __device__ __forceinline__ void begin_tile() {
        if (has_more_)
            remaining_ += quotient_up(cleared_.pieces_of_tile, Traits::clearing_warps);
    }
    __device__ __forceinline__ void begin_rest() { remaining_ = INT_MAX; }

    // Clears the CTA's next piece, if the warp may. Returns false if there is no piece, or the warp may not.
    __device__ __forceinline__ bool operator()() {
        if (!has_more_ || remaining_ == 0)
            return false;
        int number = 0;
        if (threadIdx.x % warp_threads == 0)
            number = atomicAdd(&pieces_begun_, 1);
        const int piece = cleared_.first_piece + static_cast<int>(blockIdx.x) +
                          __shfl_sync(~0u, number, 0) * static_cast<int>(gridDim.x);
        has_more_ = piece < cleared_.end_piece;
        if (!has_more_)
            return false;
        --remaining_;
        clear(piece);
        return true;
    }

  private:
    using Element = typename Traits::Element;
    static constexpr int lanes = RowLanes<Traits::head_dim>::lanes;
    static constexpr int heads_at_once = warp_threads / lanes, stores = 4; // stores: each for this many heads

    __device__ __forceinline__ void clear(int piece) const {
        const int lane = static_cast<int>(threadIdx.x) % warp_threads;
        const int first_row = cleared_.row_pieces.remainder(piece) * RowsToClear::piece_rows;
        piece = cleared_.row_pieces.quotient(piece);
        const int first_head = cleared_.head_pieces.remainder(piece) * RowsToClear::piece_heads;
        piece = cleared_.head_pieces.quotient(piece);
        const int batch = cleared_.batches.remainder(piece);
        const TensorRows &tensor = cleared_.tensors[cleared_.batches.quotient(piece)];
        const int rows = min(RowsToClear::piece_rows, cleared_.rows - first_row);
        const int heads = min(RowsToClear::piece_heads, cleared_.heads - first_head);
        // The lane's row. If rows are permuted, the piece's rows are numbers, as the rows of row blocks are.
        const int own_row =
            grid_.template position_of<Traits::order>(tensor.start + first_row + min(lane, rows - 1)) - tensor.start;
        // The rows of the lane's head that are to be cleared, one bit each.
        std::uint32_t wanted = 0;
        if (lane < heads)
            wanted = ~rows_in_row_blocks(grid_, first_head + lane, tensor.start + first_row);
        auto *const row_0 = tensor.first_row<Element>(batch, first_head + lane / lanes) + lane % lanes * 8;
        // If heads lie next to one another, addresses are constants apart.
        if (tensor.head == Traits::head_dim)
            clear_rows(row_0, tensor.row, own_row, wanted, rows, std::integral_constant<int, Traits::head_dim>());
        else
            clear_rows(row_0, tensor.row, own_row, wanted, rows, tensor.head);
        if (cleared_.lse.data)
            clear_lse(batch, own_row, first_head, rows, heads, wanted);
    }

    template <class Distance>
    __device__ __forceinline__ void clear_rows(Element *row_0, std::int64_t row_distance, int own_row,
                                               std::uint32_t wanted, int rows, Distance head_distance) const {
        const int lane = static_cast<int>(threadIdx.x) % warp_threads;
        const bool has_part = lane % lanes * 8 < head_dim_;
        Element *first = row_0 + __shfl_sync(~0u, own_row, 0) * row_distance;
#pragma unroll 1
        for (int row = 0; row < rows; ++row, first += row_distance) {
            Element *next = Traits::is_permuted ? row_0 + __shfl_sync(~0u, own_row, row) * row_distance : first;
            // Heads to clear in this row, from the lane's head on: one bit each.
            std::uint32_t left = __ballot_sync(~0u, wanted >> row & 1) >> lane / lanes;
            if (!has_part)
                continue;
#pragma unroll 1
            while (left != 0) {
#pragma unroll
                for (int i = 0; i < stores; ++i)
                    if (left >> i * heads_at_once & 1)
                        __stcs(reinterpret_cast<uint4 *>(next + i * heads_at_once * head_distance), uint4{});
                left = stores * heads_at_once < warp_threads ? left >> stores * heads_at_once : 0;
                next += stores * heads_at_once * head_distance;
            }
        }
    }

    // Sets LSE of cleared rows to -infinity, one row per lane.
    __device__ __forceinline__ void clear_lse(int batch, int own_row, int first_head, int rows, int heads,
                                              std::uint32_t wanted) const {
        const int lane = static_cast<int>(threadIdx.x) % warp_threads;
        const TensorRows &lse = cleared_.lse;
        float *own = static_cast<float *>(lse.data) + batch * lse.batch + own_row * lse.row + first_head * lse.head;
        for (int head = 0; head < heads; ++head, own += lse.head)
            if (__shfl_sync(~0u, wanted, head) >> lane & 1 && lane < rows)
                *own = -INFINITY;
    }

    const TileGrid &grid_;
    const RowsToClear &cleared_;
    const int head_dim_;
    int &pieces_begun_;
    bool has_more_;
    int remaining_ = 0;
};

} // namespace annulus
