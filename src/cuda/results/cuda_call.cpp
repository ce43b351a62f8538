// SPDX-License-Identifier: Apache-2.0
#include "cuda/results/cuda_call.hpp"

#include "core/workspace.hpp"
#include "cuda/device/cuda_error.hpp"

#include <cstddef>

namespace annulus {

namespace {

DeviceRows rows_of(const annulus_tensor &tensor, const Window &window, std::int64_t stride = 1) {
    // A tensor with one row may have any row stride.
    return {tensor.data,      tensor.stride[0], tensor.shape[1] == 1 ? 0 : tensor.stride[1],
            tensor.stride[2], window.start,     stride};
}

DeviceRows statistic_of(const annulus_tensor *tensor, const Window &window) {
    if (!tensor)
        return {};
    return {tensor->data, tensor->stride[0], tensor->stride[2], tensor->stride[1], window.start};
}

} // namespace

CudaCall::CudaCall(const Plan &call_plan, CudaDevice &call_device, const CallTensors &tensors,
                   const PartialResults &results, void *call_stream)
    : plan(call_plan), device(call_device), stream(static_cast<cudaStream_t>(call_stream)),
      q(rows_of(tensors.q, plan.problem().queries)),
      k(rows_of(tensors.k, plan.problem().keys, plan.problem().key_stride)),
      v(rows_of(tensors.v, plan.problem().keys, plan.problem().key_stride)),
      out(rows_of(tensors.out, plan.problem().queries)), lse(statistic_of(tensors.lse, plan.problem().queries)),
      d_out(rows_of(tensors.d_out, plan.problem().queries)), d_lse(statistic_of(tensors.d_lse, plan.problem().queries)),
      d_q(rows_of(tensors.d_q, plan.problem().queries)), d_k(rows_of(tensors.d_k, plan.problem().keys)),
      d_v(rows_of(tensors.d_v, plan.problem().keys)), partial{static_cast<float2 *>(results.softmax_state),
                                                              static_cast<float *>(results.o),
                                                              {static_cast<float *>(results.d_q),
                                                               static_cast<float *>(results.d_k),
                                                               static_cast<float *>(results.d_v)},
                                                              results.summed_queries,
                                                              results.summed_keys} {}

RowContext CudaCall::row_context(const BranchPlan *branches, int *has_nonfinite) const {
    return {branches,
            static_cast<std::int32_t>(plan.branches().size()),
            plan.keys_count_once(),
            nullptr,
            0,
            has_nonfinite,
            heads_per_kv_head(),
            head_dim(),
            static_cast<float>(plan.scale()),
            plan.problem().queries,
            plan.problem().keys,
            q,
            k,
            v,
            out,
            d_out,
            lse,
            d_lse};
}

void CudaCall::clear_partial(float *target, std::int64_t rows) const {
    const auto bytes = static_cast<std::size_t>(rows * head_dim()) * sizeof(float);
    check(cudaMemsetAsync(target, 0, bytes, stream), "cudaMemsetAsync");
}

std::int64_t bytes_of_branches(const Plan &plan) {
    const bool needed = plan.hides_keys() || plan.keys_count_once();
    return needed ? static_cast<std::int64_t>(plan.branches().size() * sizeof(BranchPlan)) : 0;
}

BranchPlan *book_branches(Workspace &workspace, const Plan &plan) {
    const std::int64_t bytes = bytes_of_branches(plan);
    return bytes == 0 ? nullptr : reinterpret_cast<BranchPlan *>(workspace.take<std::byte>(bytes));
}

void store_branches(const Plan &plan, BranchPlan *target, ArrayStores &stores) {
    if (target)
        stores.add(plan.branches().data(), plan.branches().size(), target);
}

void clear_device_rows(const Problem &problem, annulus_pass pass, const CallTensors &tensors, Device &, const Limits &,
                       void *stream) {
    const auto clear = [&](annulus_dtype dtype, std::int32_t heads, const Window &window, const annulus_tensor &rows,
                           const annulus_tensor *lse) {
        const Block block{0, problem.batch, 0, heads, window, window};
        clear_outputs(dtype, {block, problem.head_dim, rows_of(rows, window), statistic_of(lse, window)},
                      static_cast<cudaStream_t>(stream));
    };
    if (pass == ANNULUS_PASS_FORWARD)
        return clear(problem.dtype, problem.heads, problem.queries, tensors.out, tensors.lse);
    const auto clear_gradient = [&](const GradientTarget &target, std::int32_t heads, const Window &window,
                                    const annulus_tensor &rows) {
        if (!target.adds)
            clear(target.dtype(problem.dtype), heads, window, rows, nullptr);
    };
    if (!problem.gradients.only_v) {
        clear_gradient(problem.gradients.q, problem.heads, problem.queries, tensors.d_q);
        clear_gradient(problem.gradients.k, problem.kv_heads, problem.keys, tensors.d_k);
    }
    clear_gradient(problem.gradients.v, problem.kv_heads, problem.keys, tensors.d_v);
}

} // namespace annulus
