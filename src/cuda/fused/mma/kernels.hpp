// SPDX-License-Identifier: Apache-2.0
// From a GPU's shared memory, a dtype and a head dimension to the kernels that serve them, and their shapes.
#pragma once

#include "cuda/device/cuda_device.hpp"
#include "cuda/fused/mma/params.hpp"
#include "cuda/fused/mma/traits.hpp"
#include "cuda/fused/schedule/kernel.hpp"

#include <annulus/tensor.h>

#include <optional>

namespace annulus::mma {

// The largest capacity of shared memory that kernels were compiled for and a GPU has; none if there is none.
std::optional<SharedCapacity> capacity_of(const CudaDevice &device);

// Whether the kernels that serve a head dimension were compiled. Shapes are what they would be, without row blocks if
// there are no kernels.
bool are_compiled(SharedCapacity capacity, annulus_dtype dtype, int head_dim);
KernelShape forward_kernel_shape(SharedCapacity capacity, annulus_dtype dtype, int head_dim);
BackwardShapes backward_kernel_shapes(SharedCapacity capacity, annulus_dtype dtype, int head_dim);

// The kernel that serves a head dimension, for launches on the current device. `dtype` is float32, bfloat16 or, with a
// capacity of 64 KiB the only one, float16; the shape has row blocks. `allow_tf32` concerns float32 alone.
Kernel<ForwardParams> find_forward_kernel(SharedCapacity capacity, annulus_dtype dtype, bool allow_tf32, int head_dim);
Kernel<BackwardParams> find_backward_kernel(SharedCapacity capacity, annulus_dtype dtype, bool allow_tf32, int head_dim,
                                            Gradients what);

// The same of the kernels of one capacity and head dimension, compiled for each apart.
template <SharedCapacity capacity, int head_dim>
Kernel<ForwardParams> forward_kernel_of(annulus_dtype dtype, bool allow_tf32);
template <SharedCapacity capacity, int head_dim>
Kernel<BackwardParams> backward_kernel_of(annulus_dtype dtype, bool allow_tf32, Gradients what);

} // namespace annulus::mma
