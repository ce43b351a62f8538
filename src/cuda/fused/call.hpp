// SPDX-License-Identifier: Apache-2.0
// Executables of the engines `fused` and `mma`, and what forward and backward have in common.
#pragma once

#include "core/sequences.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/fused/plan/curve_memory.hpp"
#include "cuda/fused/plan/grids.hpp"
#include "cuda/fused/plan/launch.hpp"
#include "cuda/fused/schedule/matrices.hpp"
#include "cuda/fused/schedule/rows_to_clear.hpp"
#include "cuda/results/device_summed_rows.hpp"
#include "engine/engine.hpp"

#include <cstdint>
#include <initializer_list>
#include <optional>

namespace annulus {

// Answers Engine::prepare() for a plan that an architecture's kernels can take.
template <class Architecture>
Preparation prepare_fused_forward(const Plan &plan, KeyScope scope, CudaDevice &device,
                                  const Architecture &architecture, const Limits &limits);
template <class Architecture>
Preparation prepare_fused_backward(const Plan &plan, KeyScope scope, CudaDevice &device,
                                   const Architecture &architecture, const Limits &limits);
// Does the same for whole calls over several sequences, in linear order.
template <class Architecture>
Preparation prepare_fused_forward(const SequencePlans &plans, CudaDevice &device, const Architecture &architecture,
                                  const Limits &limits);
template <class Architecture>
Preparation prepare_fused_backward(const SequencePlans &plans, CudaDevice &device, const Architecture &architecture,
                                   const Limits &limits);

// Answers Engine::summed_rows() for a plan that an architecture's kernels can take.
template <class Architecture>
ShardSums summed_rows_of_forward(const Plan &shard, const CudaDevice &device, const Architecture &architecture,
                                 const Limits &limits);
template <class Architecture>
ShardSums summed_rows_of_backward(const Plan &shard, const CudaDevice &device, const Architecture &architecture,
                                  const Limits &limits);

// Rows are copied in pieces of this many bytes.
inline constexpr std::int64_t fused_row_alignment = 16;

// Returns why kernels cannot read and write the tensors, or null if they can.
const char *alignment_refusal(std::initializer_list<const annulus_tensor *> tensors);

// Returns scale · log2(e) in float32, as the kernels use it.
float scale_log2(const Plan &plan);

// Sets in the parameters of a grid's kernel where the partial results of `rows` rows of a head lie: one after the
// other, or with the stride of a split grid. Range parts have partial results only of the grid's rows.
template <class Params>
void set_partial_rows(const std::optional<SplitParts> &parts, const PlannedGrid &planned, std::int64_t rows,
                      Params &params) {
    const int stride = parts ? parts->stride : 1;
    const std::int64_t own_rows = planned.range_parts > 1 ? planned.tiles.sequence.row_count : rows;
    params.partial_rows = static_cast<int>(partial_rows_of(own_rows, stride));
    params.partial_stride = FastDivmod(stride);
}

// Does the same if only some rows have partial results: of a rank's shard, or beside global positions. Null: all rows.
template <class Params> void set_summed_rows(const SummedRows *rows, Params &params) {
    if (!rows)
        return;
    params.summed = DeviceSummedRows(rows);
    params.partial_rows = params.summed.count;
}

// Returns the matrices of a grid's ranges: the given ones or, if the grid is packed, their copies.
RangeMatrices matrices_of(const PlannedGrid &planned, const RangeMatrices &matrices, const CurveMemory &memory,
                          const Problem &problem);
// Returns what a launch of `tiles` tiles clears: the rows of a window in the given tensors and in LSE. A tensor may be
// null, and lse.data may be null. There are at most RowsToClear::max_tensors tensors.
RowsToClear rows_to_clear(std::initializer_list<const TensorRows *> tensors, const TensorRows &lse,
                          const Problem &problem, const Window &window, const ClearedPart &part, unsigned tiles);
// Finds the permutation of a grid along a curve.
void find_order(const PlannedGrid &planned, const CurveMemory &memory, cudaStream_t stream);
// Copies range rows into the order of `grid`. `grid` must be the packed grid as it is launched.
void pack_ranges(const TileGrid &grid, const RangeMatrices &matrices, const CurveMemory &memory, const Problem &problem,
                 cudaStream_t stream);

} // namespace annulus
