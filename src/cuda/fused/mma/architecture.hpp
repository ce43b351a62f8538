// SPDX-License-Identifier: Apache-2.0
// The kernels on mma.sync as the calls of the engine `mma` use them.
#pragma once

#include "cuda/fused/mma/kernels.hpp"
#include "cuda/fused/schedule/matrices.hpp"
#include "engine/engine.hpp"

#include <initializer_list>

namespace annulus::mma {

class Mma {
  public:
    using ForwardParams = mma::ForwardParams;
    using BackwardParams = mma::BackwardParams;

    // `device` must be one for which refusal() is null.
    Mma(const CudaDevice &device, bool allow_tf32)
        : capacity_(*capacity_of(device)), cycles_per_byte_(device.cycles_per_byte()), allow_tf32_(allow_tf32) {}

    // Returns why there are no kernels for a problem, or null if there are.
    static const char *refusal(const Problem &problem, annulus_pass pass, const CudaDevice &device) {
        const std::optional<SharedCapacity> capacity = capacity_of(device);
        if (device.compute_capability() < 75 || !capacity)
            return "it needs a GPU of compute capability 7.5 or newer that the library was built for";
        if (problem.dtype == ANNULUS_FLOAT64)
            return "it computes in float32, bfloat16 and float16 only";
        if (has_only_float16(*capacity) && problem.dtype != ANNULUS_FLOAT16)
            return "its kernels for compute capability 7.5 compute in float16 only";
        const KernelShape shape = pass == ANNULUS_PASS_FORWARD
                                      ? forward_kernel_shape(*capacity, problem.dtype, problem.head_dim)
                                      : backward_kernel_shapes(*capacity, problem.dtype, problem.head_dim).keys;
        if (shape.row_blocks == 0)
            return problem.dtype == ANNULUS_FLOAT32 && pass == ANNULUS_PASS_BACKWARD
                       ? "its kernels for backward in float32 have at most 128 columns"
                       : "the GPU's shared memory is too small for this dtype and head dimension";
        return are_compiled(*capacity, problem.dtype, problem.head_dim) ? nullptr : not_compiled;
    }
    static const char *range_refusal(std::initializer_list<const annulus_tensor *>) { return nullptr; }

    KernelShape forward_shape(annulus_dtype dtype, int head_dim) const {
        return forward_kernel_shape(capacity_, dtype, head_dim);
    }
    BackwardShapes backward_shapes(annulus_dtype dtype, int head_dim) const {
        BackwardShapes shapes = backward_kernel_shapes(capacity_, dtype, head_dim);
        shapes.cycles_per_byte = cycles_per_byte_;
        return shapes;
    }
    Kernel<ForwardParams> find_forward_kernel(annulus_dtype dtype, int head_dim, bool) const {
        return mma::find_forward_kernel(capacity_, dtype, allow_tf32_, head_dim);
    }
    Kernel<BackwardParams> find_backward_kernel(annulus_dtype dtype, int head_dim, Gradients what, bool) const {
        return mma::find_backward_kernel(capacity_, dtype, allow_tf32_, head_dim, what);
    }

    // Tells the parameters of a grid's kernel where the rows of its ranges are.
    struct Ranges {
        static void bind(const RangeMatrices &matrices, const Problem &, int, ForwardParams &params) {
            params.k = tensor_rows(matrices.q_or_k.rows);
            params.v = tensor_rows(matrices.v_or_d_o.rows);
        }
        static void bind(const RangeMatrices &matrices, const Problem &, int, BackwardParams &params) {
            params.range_q_or_k = tensor_rows(matrices.q_or_k.rows);
            params.range_v_or_d_o = tensor_rows(matrices.v_or_d_o.rows);
        }
    };

  private:
    SharedCapacity capacity_;
    double cycles_per_byte_;
    bool allow_tf32_;
};

} // namespace annulus::mma
