// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/sm90/kernels.hpp"

#include "cuda/fused/schedule/with_first.hpp"
#include "cuda/fused/sm90/backward_traits.hpp"
#include "cuda/fused/sm90/forward_traits.hpp"

#include <cuda_bf16.h>

namespace annulus {

namespace {

// Calls use(std::integral_constant) with the smallest of the kernels' head dimensions that is large enough.
template <class Use> void with_head_dim(int head_dim, const Use &use) {
    with_first<fused_head_dims>([&](int candidate) { return head_dim <= candidate; }, use);
}

// Returns whether the kernels of a head dimension were compiled.
constexpr bool is_compiled(int head_dim) {
    return is_among<ANNULUS_SM90_HEAD_DIMS>(head_dim);
}

} // namespace

bool are_compiled(int head_dim) {
    bool compiled = false;
    with_head_dim(head_dim, [&](auto dim) { compiled = is_compiled(dim.value); });
    return compiled;
}

KernelShape forward_shape(int head_dim) {
    KernelShape shape{};
    with_head_dim(head_dim, [&](auto dim) {
        // Kernels for permuted rows or float16 have the same shape.
        using Traits = ForwardTraits<__nv_bfloat16, dim.value, RowOrder::linear>;
        shape = {.row_blocks = Traits::consumers,
                 .range_block_rows = Traits::range_block_rows,
                 .clears_rows = Traits::clearing_warps > 0};
    });
    return shape;
}

BackwardShapes backward_shapes(int head_dim) {
    BackwardShapes shapes{};
    with_head_dim(head_dim, [&](auto dim) {
        const auto shape_of = [](auto traits) {
            using Traits = decltype(traits);
            return KernelShape{.row_blocks = Traits::consumers,
                               .range_block_rows = Traits::range_block_rows,
                               .clears_rows = Traits::clearing_warps > 0};
        };
        shapes = {shape_of(BackwardTraits<__nv_bfloat16, dim.value, Gradients::d_q, RowOrder::linear>()),
                  shape_of(BackwardTraits<__nv_bfloat16, dim.value, Gradients::d_k, RowOrder::linear>()),
                  has_storing_kernels(head_dim) ? StoringKernels::one : StoringKernels::none};
        shapes.storing_row_blocks =
            BackwardTraits<__nv_bfloat16, dim.value, Gradients::all_storing_d_s, RowOrder::linear>::consumers;
    });
    return shapes;
}

Kernel<ForwardParams> find_forward_kernel(annulus_dtype dtype, int head_dim, bool along_curve) {
    Kernel<ForwardParams> kernel;
    with_head_dim(head_dim, [&](auto dim) {
        if constexpr (is_compiled(dim.value))
            kernel = forward_kernel_of<dim.value>(dtype, along_curve);
    });
    return kernel;
}

Kernel<BackwardParams> find_backward_kernel(annulus_dtype dtype, int head_dim, Gradients what, bool along_curve) {
    Kernel<BackwardParams> kernel;
    with_head_dim(head_dim, [&](auto dim) {
        if constexpr (is_compiled(dim.value))
            kernel = backward_kernel_of<dim.value>(dtype, what, along_curve);
    });
    return kernel;
}

} // namespace annulus
