// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/call.hpp"

#include "core/dtype_number.hpp"
#include "cuda/fused/curve_order.hpp"

#include <cstdint>
#include <numbers>

namespace annulus {

const char *alignment_refusal(std::initializer_list<const annulus_tensor *> tensors) {
    for (const annulus_tensor *tensor : tensors) {
        if (reinterpret_cast<std::uintptr_t>(tensor->data) % fused_row_alignment != 0)
            return "a tensor's address is no multiple of 16 bytes";
        for (int i = 0; i < 3; ++i)
            if (tensor->shape[i] > 1 && tensor->stride[i] * dtype_bytes(tensor->dtype) % fused_row_alignment != 0)
                return "rows of a tensor do not begin at multiples of 16 bytes";
    }
    return nullptr;
}

float scale_log2(const Plan &plan) {
    return static_cast<float>(plan.scale() * std::numbers::log2e);
}

RangeMatrices matrices_of(const PlannedGrid &planned, const RangeMatrices &matrices, const CurveMemory &memory,
                          const Problem &problem) {
    if (!planned.curve)
        return matrices;
    const auto ordered = [&](const RangeMatrix &matrix, void *data) {
        const std::int64_t row = std::int64_t{matrix.heads} * problem.head_dim, length = planned.window.length;
        return RangeMatrix{{data, length * row, row, problem.head_dim, planned.window.start}, length, matrix.heads};
    };
    return {ordered(matrices.scores, memory.scores), ordered(matrices.values, memory.values)};
}

void order_rows(const CudaCall &call, const PlannedGrid &planned, const RangeMatrices &matrices,
                const CurveMemory &memory) {
    const Problem &problem = call.problem();
    find_curve_order(*planned.curve, planned.window, memory.residues, memory.order, call.stream);
    const auto pack = [&](const RangeMatrix &matrix, void *target) {
        pack_in_order(matrix.rows, planned.window, memory.order, problem.batch, matrix.heads, problem.head_dim, target,
                      call.stream);
    };
    pack(matrices.scores, memory.scores);
    pack(matrices.values, memory.values);
}

} // namespace annulus
