// SPDX-License-Identifier: Apache-2.0
#include "cli/arrays/host_tensor.hpp"

#include "cli/arrays/dtype_bytes.hpp"

namespace annulus::cli {

annulus_tensor view(void *data, annulus_dtype dtype, const Shape &shape) {
    annulus_tensor tensor{};
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.ndim = static_cast<std::int32_t>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
        tensor.shape[i] = shape[i];
        tensor.stride[i] = stride;
        stride *= shape[i];
    }
    return tensor;
}

annulus_tensor slice(annulus_tensor tensor, int dimension, std::int64_t start, std::int64_t length) {
    tensor.data = static_cast<std::byte *>(tensor.data) + start * tensor.stride[dimension] * dtype_bytes(tensor.dtype);
    tensor.shape[dimension] = length;
    return tensor;
}

Shape shape_of(const annulus_tensor &tensor) {
    return Shape(tensor.shape, tensor.shape + tensor.ndim);
}

std::size_t bytes_of(const annulus_tensor &tensor) {
    auto bytes = static_cast<std::size_t>(dtype_bytes(tensor.dtype));
    for (std::int32_t i = 0; i < tensor.ndim; ++i)
        bytes *= static_cast<std::size_t>(tensor.shape[i]);
    return bytes;
}

std::vector<Stretch> stretches_of(const annulus_tensor &tensor) {
    if (bytes_of(tensor) == 0)
        return {};
    std::int64_t together = 1; // contiguous numbers
    std::int32_t outer = tensor.ndim;
    while (outer > 0 && tensor.stride[outer - 1] == together)
        together *= tensor.shape[--outer];
    const auto bytes = static_cast<std::size_t>(together * dtype_bytes(tensor.dtype));
    std::vector<annulus_tensor> parts{tensor};
    for (std::int32_t dimension = 0; dimension < outer; ++dimension) {
        std::vector<annulus_tensor> smaller;
        for (const annulus_tensor &part : parts)
            for (std::int64_t i = 0; i < part.shape[dimension]; ++i)
                smaller.push_back(slice(part, dimension, i, 1));
        parts.swap(smaller);
    }
    std::vector<Stretch> stretches;
    for (const annulus_tensor &part : parts)
        stretches.push_back({static_cast<std::byte *>(part.data), bytes});
    return stretches;
}

} // namespace annulus::cli
