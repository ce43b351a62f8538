// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/fused/forward_pass.hpp"

#include <annulus/tensor.h>

namespace annulus {

// What the host must know of the kernel for a head dimension.
struct ForwardShape {
    int units; // of a tile
    int step;  // keys
};
ForwardShape forward_shape(int head_dim);

// Runs a pass on as many blocks as the device has multiprocessors. `dtype` is bfloat16 or float16.
void launch_forward(annulus_dtype dtype, const ForwardPass &pass, int multiprocessors, cudaStream_t stream);

// The same for the kernels of one head dimension, compiled for each apart.
template <int head_dim>
void launch_forward_of(annulus_dtype dtype, const ForwardPass &pass, int multiprocessors, cudaStream_t stream);

} // namespace annulus
