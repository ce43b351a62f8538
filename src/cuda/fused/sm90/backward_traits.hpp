// SPDX-License-Identifier: Apache-2.0
// The constants of the fused backward kernels for an element type, a head dimension and what they compute. Each choice
// was measured; doc/notes/backward.md tells what else was tried.
#pragma once

#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/warpgroup_registers.hpp"

namespace annulus {

template <class Element_, int head_dim_, Gradients what, RowOrder order_> struct BackwardTraits {
    using Element = Element_;
    static constexpr int head_dim = head_dim_;
    static constexpr RowOrder order = order_;
    static constexpr bool is_permuted = order == RowOrder::along_curve;
    static constexpr bool rows_are_keys = what != Gradients::d_q;
    static constexpr bool has_d_q_or_k = what != Gradients::d_v; // then dP is needed, too
    static constexpr bool has_d_v = what != Gradients::d_q && what != Gradients::d_k;
    static constexpr bool stores_d_s = what == Gradients::all_storing_d_s;
    static constexpr int chunks = (head_dim + 63) / 64; // chunks of 64 columns that a row has in shared memory

    // Consumer warpgroups, each with a row block of 64 rows. One producer warpgroup comes in addition. Three consumers
    // that store dS would spill registers.
    static constexpr int consumers = stores_d_s || head_dim > (rows_are_keys ? 64 : 128) ? 2 : 3;
    using Registers = WarpgroupRegisters<consumers>;
    static constexpr int threads = Registers::threads;
    static constexpr int consumer_warps = consumers * 4;
    // Whether the last product of a block is computed beside the exponentials of the next block. Registers are then
    // left for what is the same in every block of a range or tile.
    static constexpr bool overlaps = !rows_are_keys && head_dim <= 64;
    // Whether the rows of a row block stay in registers, as operands of S and dP. With few columns, a kernel that
    // stores dS waits for shared memory more than for the tensor cores, and it has the registers.
    static constexpr bool holds_own_rows = stores_d_s && head_dim <= 64;
    // Whether dS is computed from P in the dtype, for fewer registers.
    static constexpr bool rounds_first = has_d_q_or_k && has_d_v;

    static constexpr int range_block_rows = head_dim <= 192 ? 64 : 32;
    static constexpr int stages = head_dim <= 64 ? 4 : 2;
    static constexpr int row_block_slots = head_dim <= 64 || (consumers == 2 && head_dim <= 128) ? 2 : 1;

    // Which of the producer's warps clear rows while they wait (clear_rows.cuh). The warp that finds tiles clears rows,
    // unless it also copies permuted rows, or tells other CTAs of stored dS, which would spill registers. A warp that
    // copies row blocks clears rows if there are two slots: with one slot, consumers would wait for it.
    static constexpr bool clears_rows = head_dim <= 128;
    static constexpr bool finder_clears = clears_rows && !stores_d_s && !(is_permuted && rows_are_keys);
    static constexpr bool copier_clears = clears_rows && row_block_slots > 1;
    static constexpr int clearing_warps = finder_clears + copier_clears;

    static constexpr int row_block_bytes = 64 * chunks * 128;
    static constexpr int stage_bytes = range_block_rows * chunks * 128;

    // If dS is stored, the kernel multiplies it as well (stored_product.cuh). A tile then has `stored_row_blocks` row
    // blocks of queries for each consumer, and a stage has dS of 32 keys. Stages of dS and blocks of K take the places
    // of a tile's row blocks and of the ranges' stages. With few columns, the row blocks have too little room for dS.
    static constexpr int stored_row_blocks = StoredDs::row_blocks_of_tile / consumers;
    static constexpr int stored_keys = 32, stored_stages = 4;
    static constexpr bool stored_d_s_is_in_ranges = head_dim <= 64;
};

} // namespace annulus
