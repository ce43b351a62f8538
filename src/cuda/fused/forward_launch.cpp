// SPDX-License-Identifier: Apache-2.0
// From a head dimension to the kernels that serve it.
#include "cuda/fused/forward_launch.hpp"

#include "cuda/fused/forward_traits.hpp"

#include <cuda_bf16.h>

#include <cstddef>
#include <iterator>
#include <utility>

namespace annulus {

namespace {

// use(std::integral_constant) with the smallest of the kernels' head dimensions that is large enough.
template <class Use, std::size_t... indices>
void with_head_dim(int head_dim, Use use, std::index_sequence<indices...>) {
    bool done = false;
    const auto try_one = [&](auto candidate) {
        if (!done && head_dim <= candidate.value) {
            done = true;
            use(candidate);
        }
    };
    (try_one(std::integral_constant<int, fused_head_dims[indices]>{}), ...);
}

template <class Use> void with_head_dim(int head_dim, Use use) {
    with_head_dim(head_dim, use, std::make_index_sequence<std::size(fused_head_dims)>{});
}

} // namespace

ForwardShape forward_shape(int head_dim) {
    ForwardShape shape{};
    with_head_dim(head_dim, [&](auto dim) {
        using Traits = ForwardTraits<__nv_bfloat16, dim.value>;
        shape = {Traits::consumers, Traits::step};
    });
    return shape;
}

void launch_forward(annulus_dtype dtype, const ForwardPass &pass, int multiprocessors, cudaStream_t stream) {
    with_head_dim(pass.head_dim, [&](auto dim) { launch_forward_of<dim.value>(dtype, pass, multiprocessors, stream); });
}

} // namespace annulus
