// SPDX-License-Identifier: Apache-2.0
// Zeros for rows that no row block has, written by a warp of the fused kernels that would wait.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/schedule/rows_to_clear.hpp"

#include <bit>
#include <cmath>
#include <cstdint>

namespace annulus {

// One warp. Neighbouring pieces go to different CTAs, so that what is written at a time lies together.
template <class Traits> class RowClearer {
  public:
    // `params`: a grid, with its head_dim and what is `cleared`.
    template <class Params>
    __device__ __forceinline__ explicit RowClearer(const Params &params)
        : grid_(params), cleared_(params.cleared), head_dim_(params.head_dim),
          piece_(params.cleared.first_piece + static_cast<int>(blockIdx.x)) {}

    // Clears the CTA's next piece; false where there is none.
    __device__ __forceinline__ bool operator()() {
        if (!Traits::clears_rows || piece_ >= cleared_.end_piece)
            return false;
        clear(piece_);
        piece_ += static_cast<int>(gridDim.x);
        return true;
    }

  private:
    using Element = typename Traits::Element;
    static constexpr int parts = Traits::head_dim / 8;                                          // of 16 bytes, of a row
    static constexpr int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(parts))); // of a row
    static constexpr int heads_at_once = warp_threads / lanes;

    __device__ __forceinline__ void clear(int piece) const {
        const int lane = static_cast<int>(threadIdx.x) % warp_threads;
        const int first_row = cleared_.pieces_of_heads.remainder(piece) * RowsToClear::piece_rows;
        piece = cleared_.pieces_of_heads.quotient(piece);
        const int first_head = cleared_.heads_pieces.remainder(piece) * RowsToClear::piece_heads;
        piece = cleared_.heads_pieces.quotient(piece);
        const int batch = cleared_.batches.remainder(piece);
        const TensorRows &tensor = cleared_.tensors[cleared_.batches.quotient(piece)];
        const int rows = min(RowsToClear::piece_rows, cleared_.rows - first_row);
        const int own_head = first_head + lane, column = lane % lanes * 8;
        const std::uint32_t present =
            own_head < cleared_.heads ? rows_in_row_blocks(grid_, own_head, tensor.start + first_row) : ~0u;
        auto *first = static_cast<Element *>(tensor.data) + batch * tensor.batch + first_row * tensor.row +
                      (first_head + lane / lanes) * tensor.head + column;
        const std::int64_t distance = heads_at_once * tensor.head;
        for (int row = 0; row < rows; ++row, first += tensor.row) {
            std::uint32_t left = __ballot_sync(~0u, !(present >> row & 1)) >> lane / lanes; // its heads, then the next
            if (column < head_dim_)
#pragma unroll 4
                for (auto *next = first; left != 0; left >>= heads_at_once, next += distance)
                    if (left & 1)
                        __stcs(reinterpret_cast<uint4 *>(next), uint4{});
        }
        if (cleared_.lse.data && own_head < cleared_.heads) {
            const TensorRows &lse = cleared_.lse;
            float *own = static_cast<float *>(lse.data) + batch * lse.batch + first_row * lse.row + own_head * lse.head;
            for (int row = 0; row < rows; ++row, own += lse.row)
                if (!(present >> row & 1))
                    *own = -INFINITY;
        }
    }

    const TileGrid &grid_;
    const RowsToClear &cleared_;
    const int head_dim_;
    int piece_;
};

} // namespace annulus
