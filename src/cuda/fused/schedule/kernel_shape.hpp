// SPDX-License-Identifier: Apache-2.0
// What the host must know of an architecture's kernels to plan their launches.
#pragma once

#include <span>

namespace annulus {

struct KernelShape {
    int row_blocks;            // row blocks of a tile
    int range_block_rows;      // rows of a block of a range: of a KV block in forward and dQ, of a Q block in dK and dV
    bool packs_curves = false; // along a curve, range rows must first be copied into the curve's order
    int ctas = 1;              // CTAs that a multiprocessor has room for
    bool clears_rows = false;  // the kernels can write zeros to rows that are in no row block (rows_to_clear.hpp)
    bool operator==(const KernelShape &) const = default;
};

// What a backward kernel computes. The tiles of `d_q` are of queries, the tiles of `d_k_and_d_v`, `d_k` and `d_v` of
// keys. The next two kernels are a pair: the first stores dS, and the second multiplies it with K. The last kernel does
// both.
enum class Gradients { d_q, d_k_and_d_v, d_k, d_v, d_k_and_d_v_storing_d_s, d_q_of_stored_d_s, all_storing_d_s };
inline constexpr int gradients_count = 7;

// How many kernels store and multiply dS.
enum class StoringKernels { none, two, one };

// Up to this head dimension, one kernel stores dS only if memory is fast enough. Above it, plans do not ask for the
// rate of memory, which drivers may take long to tell.
inline constexpr int most_columns_to_weigh_memory = 64;

// Above this head dimension dK and dV of a row block do not fit into the registers together. Each then has a kernel of
// its own.
inline constexpr int most_columns_of_both = 128;

inline constexpr Gradients gradients_of_keys_together_and_apart[] = {Gradients::d_k_and_d_v, Gradients::d_k,
                                                                     Gradients::d_v};
// Returns the kernels that together compute the gradients of keys. Their shapes are equal.
constexpr std::span<const Gradients> gradients_of_keys(int head_dim) {
    const std::span<const Gradients> all(gradients_of_keys_together_and_apart);
    return head_dim <= most_columns_of_both ? all.first(1) : all.last(2);
}

// The shapes of the backward kernels of a dtype and head dimension: tiles of queries for dQ, tiles of keys for dK and
// dV.
struct BackwardShapes {
    KernelShape queries, keys;
    StoringKernels storing;
    // Cycles of all multiprocessors together while memory moves a byte, or 0 if unknown.
    double cycles_per_byte = 0;
    int storing_row_blocks = 0; // row blocks of a tile of keys, if one kernel stores and multiplies
};

// The reason of an engine that was built without the kernels of a head dimension.
inline constexpr char not_compiled[] =
    "the library was built without its kernels of this head dimension (Meson option cuda-head-dims)";

} // namespace annulus
