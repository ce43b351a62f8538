// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/mma/kernels.hpp"

#include "cuda/fused/schedule/with_first.hpp"

namespace annulus::mma {

namespace {

// Rooms that kernels were compiled for, ascending.
constexpr Room rooms[] = {ANNULUS_MMA_ROOMS};

// use(room, head dimension) as constants, of the smallest of the kernels' head dimensions that is large enough.
template <class Use> void with_kernel(Room room, int head_dim, const Use &use) {
    with_first<rooms>([&](Room candidate) { return candidate == room; },
                      [&](auto of_room) {
                          with_first<head_dims>([&](int candidate) { return head_dim <= candidate; },
                                                [&](auto dim) { use(of_room, dim); });
                      });
}

KernelShape kernel_shape(const Shape &shape) {
    return {shape.row_blocks(), shape.range_block_rows};
}

} // namespace

std::optional<Room> room_of(const CudaDevice &device) {
    std::optional<Room> largest;
    for (const Room room : rooms)
        if (bytes_of(room) <= device.most_shared_bytes())
            largest = room;
    return largest;
}

KernelShape forward_kernel_shape(Room room, int head_dim) {
    KernelShape shape{};
    with_kernel(room, head_dim,
                [&](auto of_room, auto dim) { shape = kernel_shape(forward_shape(dim.value, of_room.value)); });
    return shape;
}

BackwardShapes backward_kernel_shapes(Room room, int head_dim) {
    BackwardShapes shapes{};
    with_kernel(room, head_dim, [&](auto of_room, auto dim) {
        shapes = {kernel_shape(backward_shape(dim.value, false, of_room.value)),
                  kernel_shape(backward_shape(dim.value, true, of_room.value)), false};
    });
    return shapes;
}

Kernel<ForwardParams> find_forward_kernel(Room room, annulus_dtype dtype, int head_dim) {
    Kernel<ForwardParams> kernel;
    with_kernel(room, head_dim,
                [&](auto of_room, auto dim) { kernel = forward_kernel_of<of_room.value, dim.value>(dtype); });
    return kernel;
}

Kernel<BackwardParams> find_backward_kernel(Room room, annulus_dtype dtype, int head_dim, Gradients what) {
    Kernel<BackwardParams> kernel;
    with_kernel(room, head_dim,
                [&](auto of_room, auto dim) { kernel = backward_kernel_of<of_room.value, dim.value>(dtype, what); });
    return kernel;
}

} // namespace annulus::mma
