// SPDX-License-Identifier: Apache-2.0
// Finds the kernels for a dtype and head dimension, and their shapes.
#pragma once

#include "cuda/fused/schedule/kernel.hpp"
#include "cuda/fused/schedule/kernel_shape.hpp"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/forward_params.hpp"

#include <annulus/tensor.h>

namespace annulus {

// Return whether the kernels for a head dimension were compiled, and the shapes that they have or would have.
bool are_compiled(int head_dim);
KernelShape forward_shape(int head_dim);
BackwardShapes backward_shapes(int head_dim);

// Return the kernel for a head dimension, for launches on the current device. Its grids have permuted rows, if
// `along_curve`, or rows in linear order. `dtype` is bfloat16 or float16.
Kernel<ForwardParams> find_forward_kernel(annulus_dtype dtype, int head_dim, bool along_curve);
Kernel<BackwardParams> find_backward_kernel(annulus_dtype dtype, int head_dim, Gradients what, bool along_curve);

// Return the kernel of exactly one head dimension. Each head dimension is compiled by itself.
template <int head_dim> Kernel<ForwardParams> forward_kernel_of(annulus_dtype dtype, bool along_curve);
template <int head_dim>
Kernel<BackwardParams> backward_kernel_of(annulus_dtype dtype, Gradients what, bool along_curve);
template <int head_dim>
Kernel<BackwardParams> all_gradients_kernel_of(annulus_dtype dtype, Gradients what, bool along_curve);

} // namespace annulus
