// SPDX-License-Identifier: Apache-2.0
// Attention mass by backward: dV[m] = sum_n P[n,m] dO[n]. If dO is 1 in one column and 0 elsewhere, that column of dV
// is the mass of key m: the sum of the probabilities that the queries give it. Each head of a GQA group has a column of
// its own. A group of more than D heads takes several rounds, D heads in each.
#pragma once

#include "core/plan.hpp"

#include <annulus/tensor.h>

#include <cstdint>

namespace annulus {

// Returns how many backward runs an attention mass takes.
constexpr std::int64_t mass_rounds(const Problem &problem) {
    return divide_up(problem.heads / problem.kv_heads, problem.head_dim);
}

struct MassWork {
    annulus_dtype dtype; // dO's; dV and mass have its sum_dtype()
    std::uint64_t one;   // the bits of 1 in this dtype
    std::int32_t heads, heads_of_kv_head, head_dim;
    std::int64_t batches, queries, keys;
    std::int32_t first_member; // the head of each GQA group that has column 0; the heads after it have columns 1, 2, …
    void *d_out;               // [B, queries, H, D]
    const void *d_v;           // [B, keys, H / heads_of_kv_head, D]
    void *mass;                // [B, H, keys], with the strides below
    std::int64_t mass_batch, mass_head, mass_row;

    // Returns the column of a head. If it is below 0 or not below D, another round computes the head.
    constexpr int column(std::int32_t head) const { return head % heads_of_kv_head - first_member; }
    constexpr bool has_column(std::int32_t head) const { return column(head) >= 0 && column(head) < head_dim; }
    constexpr std::int64_t query_rows() const { return batches * queries * heads; }
    constexpr std::int64_t masses() const { return batches * keys * heads; }

    // Writes the one into row `index` of dO as [B, queries, H, D], whose elements are 0 and as wide as Bits.
    template <class Bits> constexpr void mark(std::int64_t index) const {
        const auto head = static_cast<std::int32_t>(index % heads);
        if (has_column(head))
            static_cast<Bits *>(d_out)[index * head_dim + column(head)] = static_cast<Bits>(one);
    }
    // Writes element `index` of the masses as [B, keys, H], from dV, whose elements are T.
    template <class T> constexpr void take(std::int64_t index) const {
        const auto head = static_cast<std::int32_t>(index % heads);
        const std::int64_t row = index / heads % keys, batch = index / heads / keys;
        const std::int64_t d_v_row = (batch * keys + row) * (heads / heads_of_kv_head) + head / heads_of_kv_head;
        if (has_column(head))
            static_cast<T *>(mass)[batch * mass_batch + head * mass_head + row * mass_row] =
                static_cast<const T *>(d_v)[d_v_row * head_dim + column(head)];
    }
};

} // namespace annulus
