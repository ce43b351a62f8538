// SPDX-License-Identifier: Apache-2.0
// Arrays in the host's memory as tensors, and parts of them.
#pragma once

#include <annulus/tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus::cli {

using Shape = std::vector<std::int64_t>;

// Bytes that lie together.
struct Stretch {
    std::byte *data;
    std::size_t bytes;
};

// A C-ordered array as a tensor of the given shape.
annulus_tensor view(void *data, annulus_dtype dtype, const Shape &shape);

// The entries start ... start + length - 1 of one dimension.
annulus_tensor slice(annulus_tensor tensor, int dimension, std::int64_t start, std::int64_t length);

Shape shape_of(const annulus_tensor &tensor);

std::size_t bytes_of(const annulus_tensor &tensor);

// Where the numbers of a tensor lie, in C order and in as few pieces as can be.
std::vector<Stretch> stretches_of(const annulus_tensor &tensor);

} // namespace annulus::cli
