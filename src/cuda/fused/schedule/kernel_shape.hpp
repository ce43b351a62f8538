// SPDX-License-Identifier: Apache-2.0
// What the host must know of an architecture's kernels to plan their launches.
#pragma once

#include <span>

namespace annulus {

struct KernelShape {
    int row_blocks;            // of a tile
    int range_block_rows;      // rows of a block of a range
    bool packs_curves = false; // rows of ranges along a curve must lie in its order
    bool clears_rows = false;  // kernels can write zeros to rows that no row block has (rows_to_clear.hpp)
    bool operator==(const KernelShape &) const = default;
};

// What a backward kernel computes. Row blocks of the first are of queries, of the next ones of keys. The two behind
// them are a pair: one stores dS, which the other only has to multiply. The last one does both.
enum class Gradients { d_q, d_k_and_d_v, d_k, d_v, d_k_and_d_v_storing_d_s, d_q_of_stored_d_s, all_storing_d_s };
inline constexpr int gradients_count = 7;

// By which kernels dS is stored.
enum class StoringKernels { none, two, one };

// Above this, the gradients of a row block's K and V together are too many registers: a kernel for each.
inline constexpr int most_columns_of_both = 128;

inline constexpr Gradients gradients_of_keys_together_and_apart[] = {Gradients::d_k_and_d_v, Gradients::d_k,
                                                                     Gradients::d_v};
// The kernels that compute the gradients of keys between them; their shapes are the same.
constexpr std::span<const Gradients> gradients_of_keys(int head_dim) {
    const std::span<const Gradients> all(gradients_of_keys_together_and_apart);
    return head_dim <= most_columns_of_both ? all.first(1) : all.last(2);
}

// The backward kernels of a dtype and head dimension.
struct BackwardShapes {
    KernelShape of_queries, of_keys;
    StoringKernels storing;
};

// Why an engine has no kernels of a head dimension that it knows.
inline constexpr char not_compiled[] =
    "the library was built without its kernels of this head dimension (Meson option cuda-head-dims)";

} // namespace annulus
