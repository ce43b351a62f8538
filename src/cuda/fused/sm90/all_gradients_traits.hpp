// SPDX-License-Identifier: Apache-2.0
// The constants of the kernel of all gradients (all_gradients.cuh) for an element type and a head dimension.
#pragma once

#include "cuda/fused/schedule/query_sums.hpp"
#include "cuda/fused/sm90/warpgroup_registers.hpp"

#ifndef ANNULUS_ROWS
#define ANNULUS_ROWS 80
#endif
namespace annulus {

// Above this head dimension, dK and dV of a row block do not fit into the registers together.
inline constexpr int most_columns_of_all = 128;

template <class Element_, int head_dim_, RowOrder order_> struct AllGradientsTraits {
    static_assert(head_dim_ <= most_columns_of_all);
    using Element = Element_;
    static constexpr int head_dim = head_dim_;
    static constexpr RowOrder order = order_;
    static constexpr bool is_permuted = order == RowOrder::along_curve;
    static constexpr int chunks = (head_dim + 63) / 64; // chunks of 64 columns that a row has in shared memory

    // Two consumer warpgroups, each with 64 keys of a tile, and one producer warpgroup.
    static constexpr int consumers = QuerySums::tile_row_blocks;
    using Registers = WarpgroupRegisters<consumers, (head_dim <= 64 ? 40 : 24)>;
    static constexpr int threads = Registers::threads;
    static constexpr int consumer_warps = consumers * 4;

    static constexpr int range_block_rows = head_dim <= 64 ? 128 : ANNULUS_ROWS; // queries of a Q block
    static constexpr int stages = 2;
    static constexpr int row_block_slots = 1;
    static constexpr bool multiplies_d_q_early = range_block_rows == 64;
    static constexpr int d_q_buffers = 2;           // each has a warp that sends it

    // How consumers share the product for dQ of a Q block: each has 64 queries or, if the Q block has only 64 queries,
    // 64 columns. Then the product is transposed, and its rows are columns of dQ. Either way the result has strips of
    // 16 rows, one for each warp.
    static constexpr bool transposes_d_q = chunks > 1;
    static constexpr int d_q_columns = transposes_d_q ? range_block_rows : head_dim; // of the product
    static constexpr int d_q_strips = (transposes_d_q ? head_dim : range_block_rows) / 16;
    static constexpr int strip_bytes = 16 * d_q_columns * 4;
    static constexpr int sum_bytes = d_q_strips * strip_bytes; // float32, in the order of fragments
    static_assert(sum_bytes == range_block_rows * head_dim * 4);

    // Whether lanes share the statistics of their columns. With fewer queries there are registers for all of them.
    static constexpr bool shares_statistics = range_block_rows > 64;

    // Whether the warp that finds tiles clears rows while it waits (clear_rows.cuh). If it also copies permuted rows,
    // it would spill registers. Consumers clear the rest at the end.
    static constexpr bool finder_clears = !is_permuted;
    static constexpr int clearing_warps = 1;

    static constexpr int row_block_bytes = 64 * chunks * 128;
    static constexpr int stage_bytes = range_block_rows * chunks * 128;
    static constexpr int image_bytes = 64 * 64 * 2;                  // dS of 64 keys and 64 queries
    static constexpr int d_s_bytes = range_block_rows * 64 * 2;      // of a consumer's keys
};

} // namespace annulus
