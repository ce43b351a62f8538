// SPDX-License-Identifier: Apache-2.0
// Checks of the caller's tensors, and typed access to their rows.
#pragma once

#include <annulus/tensor.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace annulus {

// A tensor argument with the name that messages call it by. `tensor` may be null where the argument is optional.
struct NamedTensor {
    const char *name;
    const annulus_tensor *tensor;
};

// Throws Error(ANNULUS_ERROR_ARGUMENT) unless the tensor is there, has the dtype, ndim and shape, legal strides,
// aligned data and sizes that fit into the address space. `unit_last` asks for stride 1 in the last dimension.
// `may_be_empty`: sizes may be 0, and data and strides are then not looked at.
void check_tensor(const NamedTensor &argument, annulus_dtype dtype, std::initializer_list<std::int64_t> shape,
                  bool unit_last, bool may_be_empty = false);

// Whether there is no element.
bool is_empty(const annulus_tensor &tensor);

// Whether two tensors of one shape reach the same elements by the same indices.
bool same_elements(const annulus_tensor &a, const annulus_tensor &b);

// Whether `bytes` of memory that begin at `memory` reach into a tensor that is not empty, gaps between its rows
// included.
bool meets(const annulus_tensor &tensor, const void *memory, std::size_t bytes);

// Throws unless the elements of every output are distinct and no output overlaps an input or another output.
void check_overlap(std::initializer_list<NamedTensor> inputs, std::initializer_list<NamedTensor> outputs);

// Address of row [b, n, head] of a [B, N, heads, D] tensor.
template <class T> T *row(const annulus_tensor &t, std::int64_t b, std::int64_t n, std::int64_t head) {
    return static_cast<T *>(t.data) + b * t.stride[0] + n * t.stride[1] + head * t.stride[2];
}

// Address of element [b, head, n] of a [B, H, N] tensor.
template <class T> T *statistic(const annulus_tensor &t, std::int64_t b, std::int64_t head, std::int64_t n) {
    return static_cast<T *>(t.data) + b * t.stride[0] + head * t.stride[1] + n * t.stride[2];
}

} // namespace annulus
