// SPDX-License-Identifier: Apache-2.0
// The kernels for compute capability 9.0 as the calls of the fused engine use them.
#pragma once

#include "cuda/device/cuda_device.hpp"
#include "cuda/fused/sm90/kernels.hpp"
#include "cuda/fused/sm90/tensor_maps.hpp"
#include "engine/engine.hpp"

#include <cstdint>
#include <initializer_list>

namespace annulus {

class Sm90 {
  public:
    using ForwardParams = annulus::ForwardParams;
    using BackwardParams = annulus::BackwardParams;

    // `device` must outlive this object and its copies.
    Sm90(const CudaDevice &device, bool) : device_(device) {}
    static const char *refusal(const Problem &problem, annulus_pass, const CudaDevice &device) {
        if (device.compute_capability() != 90)
            return "it needs a GPU of compute capability 9.0";
        if (problem.dtype != ANNULUS_BFLOAT16 && problem.dtype != ANNULUS_FLOAT16)
            return "it computes in bfloat16 and float16 only";
        return are_compiled(problem.head_dim) ? nullptr : not_compiled;
    }

    KernelShape forward_shape(annulus_dtype, int head_dim) const { return annulus::forward_shape(head_dim); }
    BackwardShapes backward_shapes(annulus_dtype, int head_dim) const {
        BackwardShapes shapes = annulus::backward_shapes(head_dim);
        if (shapes.storing == StoringKernels::one && head_dim <= most_columns_to_weigh_memory)
            shapes.cycles_per_byte = device_.cycles_per_byte();
        return shapes;
    }
    Kernel<ForwardParams> find_forward_kernel(annulus_dtype dtype, int head_dim, bool along_curve) const {
        return annulus::find_forward_kernel(dtype, head_dim, along_curve);
    }
    Kernel<BackwardParams> find_backward_kernel(annulus_dtype dtype, int head_dim, Gradients what,
                                                bool along_curve) const {
        return annulus::find_backward_kernel(dtype, head_dim, what, along_curve);
    }

    // Returns why the rows of ranges cannot be read from `tensors`, or null if they can. Tensor maps copy rows less
    // than 2^40 bytes apart.
    static const char *range_refusal(std::initializer_list<const annulus_tensor *> tensors) {
        for (const annulus_tensor *tensor : tensors)
            for (int i = 0; i < 3 && tensor->shape[1] > 0; ++i)
                if (tensor->shape[i] > 1 && (tensor->stride[i] <= 0 || tensor->stride[i] >= std::int64_t{1} << 39))
                    return "a stride of an input is 0, or 2^40 bytes or more";
        return nullptr;
    }

    // Tells the parameters of a grid's kernel where the rows of its ranges are.
    class Ranges {
      public:
        void bind(const RangeMatrices &matrices, const Problem &problem, int block_rows, ForwardParams &params) {
            q_or_k_.bind(matrices.q_or_k, params, problem, block_rows, params.k);
            v_or_d_o_.bind(matrices.v_or_d_o, params, problem, block_rows, params.v);
            params.k_rows = tensor_rows(matrices.q_or_k.rows);
            params.v_rows = tensor_rows(matrices.v_or_d_o.rows);
        }
        void bind(const RangeMatrices &matrices, const Problem &problem, int block_rows, BackwardParams &params) {
            q_or_k_.bind(matrices.q_or_k, params, problem, block_rows, params.range_q_or_k);
            v_or_d_o_.bind(matrices.v_or_d_o, params, problem, block_rows, params.range_v_or_d_o);
            params.range_q_or_k_rows = tensor_rows(matrices.q_or_k.rows);
            params.range_v_or_d_o_rows = tensor_rows(matrices.v_or_d_o.rows);
        }

      private:
        RangeMaps q_or_k_, v_or_d_o_;
    };

  private:
    const CudaDevice &device_;
};

} // namespace annulus
