// SPDX-License-Identifier: Apache-2.0
// The constants of the fused forward kernel for an element type and a head dimension. Each choice was measured;
// doc/notes/forward.md tells what else was tried.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"
#include "cuda/fused/sm90/warpgroup_registers.hpp"

namespace annulus {

// The head dimensions of the kernels. meson.build compiles the head dimensions that are asked for. Any other head
// dimension uses the kernel of the next larger one.
inline constexpr int fused_head_dims[] = {32, 48, 64, 80, 96, 128, 192, 256};

template <class Element_, int head_dim_, RowOrder order_> struct ForwardTraits {
    using Element = Element_;
    static constexpr int head_dim = head_dim_;
    static constexpr RowOrder order = order_;
    static constexpr bool is_permuted = order == RowOrder::along_curve;
    static constexpr int chunks = (head_dim + 63) / 64; // chunks of 64 columns that a row has in shared memory
    // How many of the producer's warps clear rows while they wait (clear_rows.cuh).
    static constexpr int clearing_warps = head_dim > 128 ? 0 : is_permuted ? 2 : 3;

    // Consumer warpgroups, each with a row block of 64 queries. One producer warpgroup comes in addition.
    static constexpr int consumers = head_dim <= 128 ? 3 : 2;
    using Registers = WarpgroupRegisters<consumers>;
    static constexpr int threads = Registers::threads;
    // Whether Q K^T of a KV block is computed beside the softmax and P V of the block before.
    static constexpr bool overlaps = head_dim <= 64 || head_dim > 128;
    // Whether multiplicities of keys are read once for a range, which is faster than for each KV block. One kernel is
    // the exception: there the compiler orders the loop worse without these reads (doc/notes/forward.md).
    static constexpr bool loads_weights_once = head_dim != 48;

    // Whether KV blocks that hide no keys are processed with the maxima of the blocks before. K is held longer for it.
    // For permuted rows, where K comes late, two stages are too few. Above 128 columns there is less to gain than to
    // lose.
    static constexpr bool reuses_maxima = head_dim <= 64 || (head_dim <= 128 && !is_permuted);

    static constexpr int range_block_rows = head_dim <= 128 ? 128 : 64; // keys of a KV block
    static_assert(!reuses_maxima || range_block_rows > row_block_rows); // as find_blocks() assumes
    static constexpr int stages = head_dim <= 64 ? 4 : 2;               // for K, and for V
    static constexpr int q_slots = head_dim <= 192 ? 2 : 1;

    static constexpr int row_block_bytes = 64 * chunks * 128;
    static constexpr int stage_bytes = range_block_rows * chunks * 128;
};

} // namespace annulus
