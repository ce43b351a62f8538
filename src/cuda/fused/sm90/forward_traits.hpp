// SPDX-License-Identifier: Apache-2.0
// The constants of the fused forward kernel for an element type and a head dimension. Each choice was measured;
// doc/notes/forward.md tells what else was tried.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"
#include "cuda/fused/sm90/warpgroup_registers.hpp"

namespace annulus {

// The head dimensions that there are kernels for, of which meson.build compiles those that are asked for; another one
// takes the next larger.
inline constexpr int fused_head_dims[] = {32, 48, 64, 80, 96, 128, 192, 256};

template <class Element_, int head_dim_, RowOrder order_> struct ForwardTraits {
    using Element = Element_;
    static constexpr int head_dim = head_dim_;
    static constexpr RowOrder order = order_;
    static constexpr bool in_order = order == RowOrder::along_curve;
    static constexpr int chunks = (head_dim + 63) / 64; // of 64 columns, of a row in shared memory
    // How many of the feeding warps clear rows meanwhile (clear_rows.cuh).
    static constexpr int clearing_warps = head_dim > 128 ? 0 : in_order ? 2 : 3;

    // Warpgroups that compute, a row block of 64 queries each; and one that feeds them.
    static constexpr int consumers = head_dim <= 128 ? 3 : 2;
    using Registers = WarpgroupRegisters<consumers>;
    static constexpr int threads = Registers::threads;
    // Whether Q K^T of a block is computed beside the softmax and P V of the block before.
    static constexpr bool overlaps = head_dim <= 64 || head_dim > 128;
    // Whether multiplicities of keys are read once for a range, which is faster than for each block, but for one of the
    // kernels: there the compiler orders its loop worse without these reads (doc/notes/forward.md).
    static constexpr bool keeps_weights = head_dim != 48;

    // Whether blocks that hide no keys are taken by the maxima of those before. K is held longer for it: along a curve,
    // where it comes late, two stages are too few; and above 128 columns there is less to gain than to lose.
    static constexpr bool trusts_maxima = head_dim <= 64 || (head_dim <= 128 && !in_order);

    static constexpr int range_block_rows = head_dim <= 128 ? 128 : 64; // keys
    static constexpr int stages = head_dim <= 64 ? 4 : 2;               // of K and of V
    static constexpr int query_slots = head_dim <= 192 ? 2 : 1;

    static constexpr int row_block_bytes = 64 * chunks * 128;
    static constexpr int stage_bytes = range_block_rows * chunks * 128;
};

} // namespace annulus
