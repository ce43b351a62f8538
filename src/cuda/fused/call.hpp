// SPDX-License-Identifier: Apache-2.0
// The calls of the fused engine, prepared; and what forward and backward have in common.
#pragma once

#include "core/sequences.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/fused/plan/curve_memory.hpp"
#include "cuda/fused/plan/grids.hpp"
#include "cuda/fused/plan/launch.hpp"
#include "cuda/fused/schedule/matrices.hpp"
#include "cuda/fused/schedule/rows_to_clear.hpp"
#include "engine/engine.hpp"

#include <cstdint>
#include <initializer_list>
#include <optional>

namespace annulus {

// Answers of Engine::prepare() for a plan that an architecture's kernels can take.
template <class Architecture>
Preparation prepare_fused_forward(const Plan &plan, KeyScope scope, CudaDevice &device,
                                  const Architecture &architecture, const Limits &limits);
template <class Architecture>
Preparation prepare_fused_backward(const Plan &plan, KeyScope scope, CudaDevice &device,
                                   const Architecture &architecture, const Limits &limits);
// Of whole calls over several sequences, along lines.
template <class Architecture>
Preparation prepare_fused_forward(const SequencePlans &plans, CudaDevice &device, const Architecture &architecture,
                                  const Limits &limits);
template <class Architecture>
Preparation prepare_fused_backward(const SequencePlans &plans, CudaDevice &device, const Architecture &architecture,
                                   const Limits &limits);

// Rows are copied in pieces of so many bytes.
inline constexpr std::int64_t fused_row_alignment = 16;

// Why kernels cannot read and write the tensors; null if they can.
const char *alignment_refusal(std::initializer_list<const annulus_tensor *> tensors);

// scale log2(e), as the kernels have it.
float scale_log2(const Plan &plan);

// Tells a kernel's parameters where the partial results of so many rows of a head lie: one after the other, or as those
// of a split grid do.
template <class Params>
void set_partial_rows(const std::optional<SplitParts> &parts, std::int64_t rows, Params &params) {
    const int stride = parts ? parts->stride : 1;
    params.partial_rows = static_cast<int>(partial_rows_of(rows, stride));
    params.partial_stride = FastDivmod(stride);
}

// Those of a grid's ranges: these or, where it is packed, their copies.
RangeMatrices matrices_of(const PlannedGrid &planned, const RangeMatrices &matrices, const CurveMemory &memory,
                          const Problem &problem);
// What a launch of so many tiles clears of tensors with the rows of a window, each of which may be null, and of LSE,
// whose data may be. At most RowsToClear::most_tensors.
RowsToClear rows_to_clear(std::initializer_list<const TensorRows *> tensors, const TensorRows &lse,
                          const Problem &problem, const Window &window, const ClearedPart &part, unsigned tiles);
// Finds the order of a grid along a curve.
void find_order(const PlannedGrid &planned, const CurveMemory &memory, cudaStream_t stream);
// Copies the rows of ranges in the order of `grid`, the packed one as it is launched.
void pack_ranges(const TileGrid &grid, const RangeMatrices &matrices, const CurveMemory &memory, const Problem &problem,
                 cudaStream_t stream);

} // namespace annulus
