// SPDX-License-Identifier: Apache-2.0
// From a dtype and head dimension to the kernels that serve them, and their shapes.
#pragma once

#include "cuda/fused/schedule/kernel.hpp"
#include "cuda/fused/schedule/kernel_shape.hpp"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/forward_params.hpp"

#include <annulus/tensor.h>

namespace annulus {

// Whether the kernels that serve a head dimension were compiled. Shapes are what they would be.
bool are_compiled(int head_dim);
KernelShape forward_shape(int head_dim);
BackwardShapes backward_shapes(int head_dim);

// The kernel that serves a head dimension, for launches on the current device over grids along a curve, or those in
// linear order. `dtype` is bfloat16 or float16.
Kernel<ForwardParams> find_forward_kernel(annulus_dtype dtype, int head_dim, bool along_curve);
Kernel<BackwardParams> find_backward_kernel(annulus_dtype dtype, int head_dim, Gradients what, bool along_curve);

// The same of the kernels of one head dimension, compiled for each apart.
template <int head_dim> Kernel<ForwardParams> forward_kernel_of(annulus_dtype dtype, bool along_curve);
template <int head_dim>
Kernel<BackwardParams> backward_kernel_of(annulus_dtype dtype, Gradients what, bool along_curve);

} // namespace annulus
