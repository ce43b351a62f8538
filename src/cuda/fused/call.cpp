// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/call.hpp"

#include "core/dtype_number.hpp"
#include "cuda/fused/curve_order.hpp"

#include <algorithm>
#include <cstdint>
#include <numbers>
#include <utility>

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
    if (!planned.is_packed)
        return matrices;
    const SequenceGrid &sequence = planned.tiles.sequence;
    const auto packed = [&](const RangeMatrix &matrix, void *data) {
        const std::int64_t row = std::int64_t{matrix.heads} * problem.head_dim, count = sequence.range_count;
        return RangeMatrix{{data, count * row, row, problem.head_dim, sequence.range_start}, count, matrix.heads};
    };
    return {packed(matrices.q_or_k, memory.q_or_k), packed(matrices.v_or_d_o, memory.v_or_d_o)};
}

RowsToClear rows_to_clear(std::initializer_list<const TensorRows *> tensors, const TensorRows &lse,
                          const Problem &problem, const Window &window, const ClearedPart &part, unsigned tiles) {
    const auto pieces = [](std::int64_t all, int piece_size) {
        return FastDivmod(static_cast<int>(divide_up(all, piece_size)));
    };
    RowsToClear result{};
    int count = 0;
    for (const TensorRows *const tensor : tensors)
        if (tensor)
            result.tensors[count++] = *tensor;
    result.lse = lse;
    result.rows = static_cast<int>(window.length);
    result.heads = problem.heads;
    result.row_pieces = pieces(window.length, RowsToClear::piece_rows);
    result.head_pieces = pieces(problem.heads, RowsToClear::piece_heads);
    result.batches = FastDivmod(static_cast<int>(problem.batch));
    const std::int64_t all =
        std::int64_t{count} * result.batches.value * result.head_pieces.value * result.row_pieces.value;
    result.first_piece = static_cast<int>(all * part.index / part.parts);
    result.end_piece = static_cast<int>(all * (part.index + 1) / part.parts);
    result.pieces_of_tile =
        static_cast<int>(divide_up(result.end_piece - result.first_piece, std::max<std::int64_t>(tiles, 1)));
    return result;
}

void find_order(const PlannedGrid &planned, const CurveMemory &memory, cudaStream_t stream) {
    find_curve_order(*planned.curve, memory.residues, memory.order_of(planned), stream);
}

void pack_ranges(const TileGrid &grid, const RangeMatrices &matrices, const CurveMemory &memory, const Problem &problem,
                 cudaStream_t stream) {
    for (const auto &[matrix, target] :
         {std::pair(&matrices.q_or_k, memory.q_or_k), std::pair(&matrices.v_or_d_o, memory.v_or_d_o)})
        pack_in_order(problem.dtype, grid, matrix->rows, problem.batch, matrix->heads, problem.head_dim, target,
                      stream);
}

} // namespace annulus
