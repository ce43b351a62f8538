// SPDX-License-Identifier: Apache-2.0
// The calls of the fused engine, prepared; and what forward and backward have in common.
#pragma once

#include "core/sequences.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/fused/plan/curve_memory.hpp"
#include "cuda/fused/plan/grids.hpp"
#include "cuda/fused/plan/tensor_maps.hpp"
#include "cuda/results/cuda_call.hpp"
#include "engine/engine.hpp"

#include <cstdint>
#include <initializer_list>

namespace annulus {

// Answers of Engine::prepare() for a plan that the kernels can take.
Preparation prepare_fused_forward(const Plan &plan, CallPart part, CudaDevice &device, const Limits &limits);
Preparation prepare_fused_backward(const Plan &plan, CallPart part, CudaDevice &device, const Limits &limits);
// Of whole calls over several sequences, along lines.
Preparation prepare_fused_forward(const SequencePlans &plans, CudaDevice &device, const Limits &limits);
Preparation prepare_fused_backward(const SequencePlans &plans, CudaDevice &device, const Limits &limits);

// Rows are copied in pieces of so many bytes.
inline constexpr std::int64_t fused_row_alignment = 16;

// Whether kernels can read and write the tensors: of `mapped`, inputs, rows are copied by tensor maps.
const char *fused_tensor_refusal(std::initializer_list<const annulus_tensor *> tensors,
                                 std::initializer_list<const annulus_tensor *> mapped);

// scale log2(e), as the kernels have it.
float scale_log2(const Plan &plan);

TensorRows tensor_rows(const DeviceRows &rows);

// Two matrices with the rows of a grid's ranges: K and V, or Q and dO.
struct RangeMatrices {
    RangeMatrix scores, values;
};
// Those of a grid: these, or along a curve their copies in its order.
RangeMatrices matrices_of(const PlannedGrid &planned, const RangeMatrices &matrices, const CurveMemory &memory,
                          const Problem &problem);
// Finds the order of a grid along a curve, and copies the rows of its ranges in that order.
void order_rows(const CudaCall &call, const PlannedGrid &planned, const RangeMatrices &matrices,
                const CurveMemory &memory);

} // namespace annulus
