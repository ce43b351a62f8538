// SPDX-License-Identifier: Apache-2.0
// Arrays in the host's memory as tensors, and parts of them.
#pragma once

#include <annulus/tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus::cli {

using Shape = std::vector<std::int64_t>;

// Contiguous bytes.
struct Stretch {
    std::byte *data;
    std::size_t bytes;
};

// Returns a tensor of the given shape over a C-ordered array.
annulus_tensor view(void *data, annulus_dtype dtype, const Shape &shape);

// Returns the entries start ... start + length - 1 of one dimension.
annulus_tensor slice(annulus_tensor tensor, int dimension, std::int64_t start, std::int64_t length);

Shape shape_of(const annulus_tensor &tensor);

std::size_t bytes_of(const annulus_tensor &tensor);

// Returns where the numbers of a tensor lie, in C order and in as few pieces as possible.
std::vector<Stretch> stretches_of(const annulus_tensor &tensor);

} // namespace annulus::cli
