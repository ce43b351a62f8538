// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/mma/kernels.hpp"

#include "core/dtype_number.hpp"
#include "cuda/fused/schedule/with_first.hpp"

namespace annulus::mma {

namespace {

// The capacities that kernels were compiled for, ascending.
constexpr SharedCapacity capacities[] = {ANNULUS_SHARED_CAPACITIES};

// Calls use(capacity, head dimension) with constants. The head dimension is the smallest of the kernels' that is large
// enough.
template <class Use> void with_kernel(SharedCapacity capacity, annulus_dtype dtype, int head_dim, const Use &use) {
    const int element_bytes = dtype_bytes(dtype);
    with_first<capacities>(
        [&](SharedCapacity candidate) { return candidate == capacity; },
        [&](auto shared_capacity) {
            with_first<head_dims>(
                [&](int candidate) { return head_dim <= candidate && has_kernels(candidate, element_bytes); },
                [&](auto dim) { use(shared_capacity, dim); });
        });
}

// Returns whether the kernels of a head dimension were compiled.
constexpr bool is_compiled(int head_dim) {
    return is_among<ANNULUS_MMA_HEAD_DIMS>(head_dim);
}

KernelShape kernel_shape(const Shape &shape) {
    return {shape.row_blocks(), shape.range_block_rows, true, shape.ctas};
}

} // namespace

std::optional<SharedCapacity> capacity_of(const CudaDevice &device) {
    std::optional<SharedCapacity> largest;
    for (const SharedCapacity capacity : capacities)
        if (capacity_bytes(capacity) <= device.most_shared_bytes())
            largest = capacity;
    return largest;
}

bool are_compiled(SharedCapacity capacity, annulus_dtype dtype, int head_dim) {
    bool compiled = false;
    with_kernel(capacity, dtype, head_dim, [&](auto, auto dim) { compiled = is_compiled(dim.value); });
    return compiled;
}

KernelShape forward_kernel_shape(SharedCapacity capacity, annulus_dtype dtype, int head_dim) {
    KernelShape shape{};
    with_kernel(capacity, dtype, head_dim, [&](auto shared_capacity, auto dim) {
        shape = kernel_shape(forward_shape(dim.value, dtype_bytes(dtype), shared_capacity.value));
    });
    return shape;
}

BackwardShapes backward_kernel_shapes(SharedCapacity capacity, annulus_dtype dtype, int head_dim) {
    BackwardShapes shapes{};
    with_kernel(capacity, dtype, head_dim, [&](auto shared_capacity, auto dim) {
        const auto shape_of = [&](bool rows_are_keys) {
            return kernel_shape(backward_shape(dim.value, dtype_bytes(dtype), rows_are_keys, shared_capacity.value));
        };
        shapes = {shape_of(false), shape_of(true),
                  has_storing_kernels(head_dim, dtype_bytes(dtype), shared_capacity.value) ? StoringKernels::two
                                                                                           : StoringKernels::none};
    });
    return shapes;
}

Kernel<ForwardParams> find_forward_kernel(SharedCapacity capacity, annulus_dtype dtype, bool allow_tf32, int head_dim) {
    Kernel<ForwardParams> kernel;
    with_kernel(capacity, dtype, head_dim, [&](auto shared_capacity, auto dim) {
        if constexpr (is_compiled(dim.value))
            kernel = forward_kernel_of<shared_capacity.value, dim.value>(dtype, allow_tf32);
    });
    return kernel;
}

Kernel<BackwardParams> find_backward_kernel(SharedCapacity capacity, annulus_dtype dtype, bool allow_tf32, int head_dim,
                                            Gradients what) {
    Kernel<BackwardParams> kernel;
    with_kernel(capacity, dtype, head_dim, [&](auto shared_capacity, auto dim) {
        if constexpr (is_compiled(dim.value))
            kernel = backward_kernel_of<shared_capacity.value, dim.value>(dtype, allow_tf32, what);
    });
    return kernel;
}

} // namespace annulus::mma
