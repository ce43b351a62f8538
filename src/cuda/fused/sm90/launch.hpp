// SPDX-License-Identifier: Apache-2.0
// The kernels as the host sees them: their shapes, and launches of them.
#pragma once

#include "cuda/fused/plan/launch_plan.hpp"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/forward_params.hpp"

#include <annulus/tensor.h>

#include <span>

namespace annulus {

KernelShape forward_shape(int head_dim);
KernelShape backward_shape(annulus_dtype dtype, int head_dim, Gradients what);

// The kernels that compute the gradients of keys between them; their shapes are the same.
std::span<const Gradients> gradients_of_keys(int head_dim);

// Run a kernel on as many CTAs as the device has multiprocessors. `dtype` is bfloat16 or float16.
void launch_forward(annulus_dtype dtype, const ForwardParams &params, int multiprocessors, cudaStream_t stream);
void launch_backward(annulus_dtype dtype, Gradients what, const BackwardParams &params, int multiprocessors,
                     cudaStream_t stream);

// The same for the kernels of one head dimension, compiled for each apart.
template <int head_dim>
void launch_forward_of(annulus_dtype dtype, const ForwardParams &params, int multiprocessors, cudaStream_t stream);
template <int head_dim>
void launch_backward_of(annulus_dtype dtype, Gradients what, const BackwardParams &params, int multiprocessors,
                        cudaStream_t stream);

} // namespace annulus
