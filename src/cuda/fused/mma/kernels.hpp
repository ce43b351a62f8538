// SPDX-License-Identifier: Apache-2.0
// Finds the kernels for a GPU's shared memory, a dtype and a head dimension, and their shapes.
#pragma once

#include "cuda/device/cuda_device.hpp"
#include "cuda/fused/mma/params.hpp"
#include "cuda/fused/mma/traits.hpp"
#include "cuda/fused/schedule/kernel.hpp"

#include <annulus/tensor.h>

#include <optional>

namespace annulus::mma {

// Returns the largest capacity of shared memory that kernels were compiled for and that the GPU has, or none.
std::optional<SharedCapacity> capacity_of(const CudaDevice &device);

// Return whether the kernels for a head dimension were compiled, and the shapes that they have or would have. Shapes
// have no row blocks if there are no kernels.
bool are_compiled(SharedCapacity capacity, annulus_dtype dtype, int head_dim);
KernelShape forward_kernel_shape(SharedCapacity capacity, annulus_dtype dtype, int head_dim);
BackwardShapes backward_kernel_shapes(SharedCapacity capacity, annulus_dtype dtype, int head_dim);

// Return the kernel for a head dimension, for launches on the current device. `dtype` is float32, bfloat16 or float16;
// with a capacity of 64 KiB it is float16. The shape must have row blocks. `allow_tf32` concerns float32 alone.
Kernel<ForwardParams> find_forward_kernel(SharedCapacity capacity, annulus_dtype dtype, bool allow_tf32, int head_dim);
Kernel<BackwardParams> find_backward_kernel(SharedCapacity capacity, annulus_dtype dtype, bool allow_tf32, int head_dim,
                                            Gradients what);

// Return the kernel of exactly one capacity and head dimension. Each pair is compiled by itself.
template <SharedCapacity capacity, int head_dim>
Kernel<ForwardParams> forward_kernel_of(annulus_dtype dtype, bool allow_tf32);
template <SharedCapacity capacity, int head_dim>
Kernel<BackwardParams> backward_kernel_of(annulus_dtype dtype, bool allow_tf32, Gradients what);

} // namespace annulus::mma
