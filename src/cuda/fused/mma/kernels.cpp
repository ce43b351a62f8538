// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/mma/kernels.hpp"

#include "cuda/fused/schedule/with_first.hpp"

namespace annulus::mma {

namespace {

// Rooms that kernels were compiled for, ascending.
constexpr SharedCapacity capacities[] = {ANNULUS_SHARED_CAPACITIES};

// use(capacity, head dimension) as constants, of the smallest of the kernels' head dimensions that is large enough.
template <class Use> void with_kernel(SharedCapacity capacity, int head_dim, const Use &use) {
    with_first<capacities>([&](SharedCapacity candidate) { return candidate == capacity; },
                           [&](auto of_capacity) {
                               with_first<head_dims>([&](int candidate) { return head_dim <= candidate; },
                                                     [&](auto dim) { use(of_capacity, dim); });
                           });
}

KernelShape kernel_shape(const Shape &shape) {
    return {shape.row_blocks(), shape.range_block_rows, true};
}

} // namespace

std::optional<SharedCapacity> capacity_of(const CudaDevice &device) {
    std::optional<SharedCapacity> largest;
    for (const SharedCapacity capacity : capacities)
        if (bytes_of(capacity) <= device.most_shared_bytes())
            largest = capacity;
    return largest;
}

KernelShape forward_kernel_shape(SharedCapacity capacity, int head_dim) {
    KernelShape shape{};
    with_kernel(capacity, head_dim,
                [&](auto of_capacity, auto dim) { shape = kernel_shape(forward_shape(dim.value, of_capacity.value)); });
    return shape;
}

BackwardShapes backward_kernel_shapes(SharedCapacity capacity, int head_dim) {
    BackwardShapes shapes{};
    with_kernel(capacity, head_dim, [&](auto of_capacity, auto dim) {
        shapes = {kernel_shape(backward_shape(dim.value, false, of_capacity.value)),
                  kernel_shape(backward_shape(dim.value, true, of_capacity.value)),
                  stores_d_s(head_dim, of_capacity.value)};
    });
    return shapes;
}

Kernel<ForwardParams> find_forward_kernel(SharedCapacity capacity, annulus_dtype dtype, int head_dim) {
    Kernel<ForwardParams> kernel;
    with_kernel(capacity, head_dim,
                [&](auto of_capacity, auto dim) { kernel = forward_kernel_of<of_capacity.value, dim.value>(dtype); });
    return kernel;
}

Kernel<BackwardParams> find_backward_kernel(SharedCapacity capacity, annulus_dtype dtype, int head_dim,
                                            Gradients what) {
    Kernel<BackwardParams> kernel;
    with_kernel(capacity, head_dim, [&](auto of_capacity, auto dim) {
        kernel = backward_kernel_of<of_capacity.value, dim.value>(dtype, what);
    });
    return kernel;
}

} // namespace annulus::mma
