// SPDX-License-Identifier: Apache-2.0
// From a GPU's room, a dtype and a head dimension to the kernels that serve them, and their shapes.
#pragma once

#include "cuda/device/cuda_device.hpp"
#include "cuda/fused/mma/params.hpp"
#include "cuda/fused/mma/traits.hpp"
#include "cuda/fused/schedule/kernel.hpp"

#include <annulus/tensor.h>

#include <optional>

namespace annulus::mma {

// The largest room that kernels were compiled for and a GPU has; none if there is none.
std::optional<Room> room_of(const CudaDevice &device);

KernelShape forward_kernel_shape(Room room, int head_dim);
BackwardShapes backward_kernel_shapes(Room room, int head_dim);

// The kernel that serves a head dimension, for launches on the current device. `dtype` is bfloat16 or, with a room of
// 64 KiB the only one, float16; the shape has warps.
Kernel<ForwardParams> find_forward_kernel(Room room, annulus_dtype dtype, int head_dim);
Kernel<BackwardParams> find_backward_kernel(Room room, annulus_dtype dtype, int head_dim, Gradients what);

// The same of the kernels of one room and head dimension, compiled for each apart.
template <Room room, int head_dim> Kernel<ForwardParams> forward_kernel_of(annulus_dtype dtype);
template <Room room, int head_dim> Kernel<BackwardParams> backward_kernel_of(annulus_dtype dtype, Gradients what);

} // namespace annulus::mma
