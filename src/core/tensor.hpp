// SPDX-License-Identifier: Apache-2.0
// Checks of the caller's tensors, and typed access to their rows.
#pragma once

#include <annulus/tensor.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace annulus {

// A tensor argument with its name in messages. `tensor` may be null if the argument is optional.
struct NamedTensor {
    const char *name;
    const annulus_tensor *tensor;
};

// Throws Error(ANNULUS_ERROR_ARGUMENT) unless the tensor is valid: not null, with the dtype, ndim and shape, with legal
// strides and aligned data, and small enough for the address space. `unit_last` asks for stride 1 in the last
// dimension. With `may_be_empty` sizes may be 0; data and strides are then not checked.
void check_tensor(const NamedTensor &argument, annulus_dtype dtype, std::initializer_list<std::int64_t> shape,
                  bool unit_last, bool may_be_empty = false);

// True if the tensor has no element.
bool is_empty(const annulus_tensor &tensor);

// True if two tensors of one shape reach the same elements by the same indices.
bool same_elements(const annulus_tensor &a, const annulus_tensor &b);

// True if the `bytes` of memory from `memory` on meet the memory of a tensor that is not empty, gaps between its rows
// included.
bool meets(const annulus_tensor &tensor, const void *memory, std::size_t bytes);

// Throws unless the elements of every output are distinct and no output overlaps an input or another output.
void check_overlap(std::initializer_list<NamedTensor> inputs, std::initializer_list<NamedTensor> outputs);

// Returns the address of row [b, n, head] of a [B, N, heads, D] tensor.
template <class T> T *row(const annulus_tensor &t, std::int64_t b, std::int64_t n, std::int64_t head) {
    return static_cast<T *>(t.data) + b * t.stride[0] + n * t.stride[1] + head * t.stride[2];
}

// Returns the address of element [b, head, n] of a [B, H, N] tensor.
template <class T> T *statistic(const annulus_tensor &t, std::int64_t b, std::int64_t head, std::int64_t n) {
    return static_cast<T *>(t.data) + b * t.stride[0] + head * t.stride[1] + n * t.stride[2];
}

} // namespace annulus
