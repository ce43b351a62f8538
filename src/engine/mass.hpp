// SPDX-License-Identifier: Apache-2.0
// The attention mass of keys, as a backward call finds it. dV[m] = sum_n P[n,m] dO[n]: where dO is 1 in one column and
// else 0, this column of dV is the sum of the probabilities that m is given. The heads that share a key/value head each
// have a column of their own.
#pragma once

#include <annulus/context.h>
#include <annulus/tensor.h>

#include <cstdint>

namespace annulus {

struct MassWork {
    annulus_dtype dtype; // of dO; dV and the masses are of its sum_dtype()
    std::uint64_t one;   // 1 in this dtype: its bits
    std::int32_t heads, heads_of_kv_head, head_dim;
    std::int64_t batches, queries, keys;
    std::int32_t first_member; // of the heads of a group, those from here on have columns 0, 1, …
    void *d_out;               // [B, queries, H, D]
    const void *d_v;           // [B, keys, H / heads_of_kv_head, D]
    void *mass;                // [B, H, keys], by these strides
    std::int64_t mass_batch, mass_head, mass_row;

    // The column of a head; one that is below 0 or has no place in D is another round's.
    constexpr int column(std::int32_t head) const { return head % heads_of_kv_head - first_member; }
    constexpr bool has_column(std::int32_t head) const { return column(head) >= 0 && column(head) < head_dim; }
    constexpr std::int64_t query_rows() const { return batches * queries * heads; }
    constexpr std::int64_t masses() const { return batches * keys * heads; }

    // Sets the one in row `index` of [B, queries, H] in dO, which is 0 and has elements as wide as Bits.
    template <class Bits> constexpr void mark(std::int64_t index) const {
        const auto head = static_cast<std::int32_t>(index % heads);
        if (has_column(head))
            static_cast<Bits *>(d_out)[index * head_dim + column(head)] = static_cast<Bits>(one);
    }
    // Sets the mass of number `index` of [B, keys, H] from dV, of elements T.
    template <class T> constexpr void take(std::int64_t index) const {
        const auto head = static_cast<std::int32_t>(index % heads);
        const std::int64_t row = index / heads % keys, batch = index / heads / keys;
        const std::int64_t of_d_v = (batch * keys + row) * (heads / heads_of_kv_head) + head / heads_of_kv_head;
        if (has_column(head))
            static_cast<T *>(mass)[batch * mass_batch + head * mass_head + row * mass_row] =
                static_cast<const T *>(d_v)[of_d_v * head_dim + column(head)];
    }
};

// Writes dO; and takes the masses from dV. `threads` are those of a CPU, `stream` is that of a CUDA device.
void mark_heads(annulus_device device, const MassWork &work, int threads, void *stream);
void take_mass(annulus_device device, const MassWork &work, int threads, void *stream);

// What the kinds of devices do then, defined in their rooms.
void mark_heads_on_cpu(const MassWork &work, int threads);
void take_mass_on_cpu(const MassWork &work, int threads);
void mark_heads_on_cuda(const MassWork &work, void *stream); // only in the CUDA plugin
void take_mass_on_cuda(const MassWork &work, void *stream);  // the same

} // namespace annulus
