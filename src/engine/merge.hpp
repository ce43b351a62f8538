// SPDX-License-Identifier: Apache-2.0
// The arguments of a merge: results over different keys become one.
#pragma once

#include <annulus/attention.h>
#include <annulus/context.h>
#include <annulus/tensor.h>

#include <cstdint>

namespace annulus {

// The rows of a [B, N, H, D] tensor, or the elements of [B, H, N].
struct MergeRows {
    void *data;
    std::int64_t batch, head, row; // strides

    template <class T> constexpr T *at(std::int64_t b, std::int64_t h, std::int64_t n) const {
        return static_cast<T *>(data) + (b * batch + h * head + n * row);
    }
};

// A merge writes a row of `out` and `lse` once it has read this row of all `outs` and `lses`. A kernel takes the struct
// as its argument, which may have 4096 bytes.
struct MergeWork {
    annulus_dtype dtype; // of outs and out; lse and lses have its sum_dtype()
    std::int32_t count;  // of parts
    std::int32_t heads, head_dim;
    std::int64_t batches, rows;
    MergeRows out, lse; // lse.data may be null
    MergeRows outs[ANNULUS_MAX_MERGE_PARTS], lses[ANNULUS_MAX_MERGE_PARTS];
};
static_assert(sizeof(MergeWork) <= 4000);

// Returns weight * element. A weight of 0 stands for one that T cannot hold, so an infinite element stays infinite.
template <class T> constexpr T weighted(T weight, T element) {
    const bool is_infinite = element - element != 0 && element == element;
    return weight == 0 && is_infinite ? element : weight * element;
}

} // namespace annulus
