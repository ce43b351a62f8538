// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/cuda_call.hpp"

#include "core/dtype_number.hpp"
#include "cuda/device/cuda_error.hpp"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace annulus {

namespace {

DeviceRows rows_of(const annulus_tensor &tensor, const Window &window, std::int64_t stride = 1) {
    // The stride of a single row may be anything.
    return {tensor.data,      tensor.stride[0], tensor.shape[1] == 1 ? 0 : tensor.stride[1],
            tensor.stride[2], window.start,     stride};
}

DeviceRows statistic_of(const annulus_tensor *tensor, const Window &window) {
    if (!tensor)
        return {};
    return {tensor->data, tensor->stride[0], tensor->stride[2], tensor->stride[1], window.start};
}

// Whether each progression of a tensor's rows is a matrix to cuBLAS: rows begin at multiples of 16 bytes and do not
// overlap.
bool are_matrices(std::initializer_list<const annulus_tensor *> tensors) {
    return std::all_of(tensors.begin(), tensors.end(), [](const annulus_tensor *tensor) {
        const std::int64_t unit = 16 / dtype_bytes(tensor->dtype);
        const auto is_aligned = [&](int i) { return tensor->shape[i] == 1 || tensor->stride[i] % unit == 0; };
        return reinterpret_cast<std::uintptr_t>(tensor->data) % 16 == 0 && is_aligned(0) && is_aligned(1) &&
               is_aligned(2) && (tensor->shape[1] == 1 || tensor->stride[1] >= tensor->shape[3]);
    });
}

} // namespace

CudaDevice &cuda_device(const Resources &resources) {
    return static_cast<CudaDevice &>(*resources.device);
}

CudaCall::CudaCall(const Plan &of_plan, const ForwardTensors &t, const Resources &given)
    : plan(of_plan), pass(ANNULUS_PASS_FORWARD), resources(given), device(cuda_device(given)),
      input_matrices(are_matrices({&t.q, &t.k, &t.v})), output_matrices(are_matrices({&t.out})),
      q(rows_of(t.q, plan.problem().queries)), k(rows_of(t.k, plan.problem().keys, plan.problem().key_stride)),
      v(rows_of(t.v, plan.problem().keys, plan.problem().key_stride)), out(rows_of(t.out, plan.problem().queries)),
      lse(statistic_of(t.lse, plan.problem().queries)) {}

CudaCall::CudaCall(const Plan &of_plan, const BackwardTensors &t, const Resources &given)
    : plan(of_plan), pass(ANNULUS_PASS_BACKWARD), resources(given), device(cuda_device(given)),
      input_matrices(are_matrices({&t.q, &t.k, &t.v, &t.d_out})),
      output_matrices(are_matrices({&t.d_q, &t.d_k, &t.d_v})), q(rows_of(t.q, plan.problem().queries)),
      k(rows_of(t.k, plan.problem().keys, plan.problem().key_stride)),
      v(rows_of(t.v, plan.problem().keys, plan.problem().key_stride)), out(rows_of(t.out, plan.problem().queries)),
      lse(statistic_of(&t.lse, plan.problem().queries)), d_out(rows_of(t.d_out, plan.problem().queries)),
      d_lse(statistic_of(t.d_lse, plan.problem().queries)), d_q(rows_of(t.d_q, plan.problem().queries)),
      d_k(rows_of(t.d_k, plan.problem().keys)), d_v(rows_of(t.d_v, plan.problem().keys)) {}

CudaCall::CudaCall(const Plan &of_plan, const ForwardTensors &t, const Resources &given, const ForwardSums &of_steps,
                   bool first)
    : CudaCall(of_plan, t, given) {
    sums = {static_cast<float2 *>(of_steps.statistics), static_cast<float *>(of_steps.o), nullptr, nullptr, first};
}

CudaCall::CudaCall(const Plan &of_plan, const BackwardTensors &t, const Resources &given, const BackwardSums &of_steps,
                   bool first)
    : CudaCall(of_plan, t, given) {
    sums = {nullptr, static_cast<float *>(of_steps.d_q), static_cast<float *>(of_steps.d_k),
            static_cast<float *>(of_steps.d_v), first};
}

void CudaCall::clear_sums(float *target, std::int64_t rows) const {
    const auto bytes = static_cast<std::size_t>(rows * head_dim()) * sizeof(float);
    check(cudaMemsetAsync(target, 0, bytes, stream()), "cudaMemsetAsync");
}

RowContext CudaCall::row_context(const BranchPlan *branches, int *has_nan) const {
    return {branches,
            static_cast<std::int32_t>(plan.branches().size()),
            has_nan,
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

} // namespace annulus
