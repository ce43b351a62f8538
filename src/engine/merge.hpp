// SPDX-License-Identifier: Apache-2.0
// A merge of results over different keys, as devices are asked for it.
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

// A kernel takes it as its argument: no more than 4096 bytes.
struct MergeWork {
    annulus_dtype dtype; // of outs and out; the rest is of its sum_dtype()
    std::int32_t count;  // of parts
    std::int32_t heads, head_dim;
    std::int64_t batches, rows;
    MergeRows out, lse; // lse.data may be null
    MergeRows outs[ANNULUS_MAX_MERGE_PARTS], lses[ANNULUS_MAX_MERGE_PARTS];
};
static_assert(sizeof(MergeWork) <= 4000);

// What a part's element adds to the sum. A weight of 0 is one that the type cannot hold: an infinite element stays.
template <class T> constexpr T weighted(T weight, T element) {
    const bool is_infinite = element - element != 0 && element == element;
    return weight == 0 && is_infinite ? element : weight * element;
}

// `threads` are those of a CPU, `stream` is that of a CUDA device, which has no float64.
void merge(annulus_device device, const MergeWork &work, int threads, void *stream);

// What the kinds of devices do then, defined in their rooms. A row of `out` and `lse` is written when all of the same
// row that stands in `outs` and `lses` has been read.
void merge_on_cpu(const MergeWork &work, int threads);
void merge_on_cuda(const MergeWork &work, void *stream); // only in the CUDA plugin

} // namespace annulus
