// SPDX-License-Identifier: Apache-2.0
// A call of an engine on a GPU: its plan, the caller's tensors, its device.
#pragma once

#include "cuda/device/cuda_device.hpp"
#include "cuda/gemm/kernels.hpp"
#include "engine/engine.hpp"

#include <annulus/attention.h>

#include <optional>

namespace annulus {

// The sums of a call in steps, [B, heads, rows, D] of the problem's windows.
struct StepSums {
    float2 *state = nullptr;              // forward
    float *o = nullptr;                   // O, or dQ
    float *d_k = nullptr, *d_v = nullptr; // backward
    bool first = false;                   // the step sets them
};

// The device of a context on CUDA.
CudaDevice &cuda_device(const Resources &resources);

struct CudaCall {
    CudaCall(const Plan &plan, const ForwardTensors &tensors, const Resources &resources);
    CudaCall(const Plan &plan, const BackwardTensors &tensors, const Resources &resources);
    // A step of a call.
    CudaCall(const Plan &plan, const ForwardTensors &tensors, const Resources &resources, const ForwardSums &sums,
             bool first);
    CudaCall(const Plan &plan, const BackwardTensors &tensors, const Resources &resources, const BackwardSums &sums,
             bool first);

    const Plan &plan;
    const annulus_pass pass;
    const Resources &resources;
    CudaDevice &device;
    bool input_matrices, output_matrices; // whether all these tensors are matrices to cuBLAS
    DeviceRows q, k, v, out, lse;
    DeviceRows d_out, d_lse, d_q, d_k, d_v; // backward
    std::optional<StepSums> sums;           // of a call in steps

    cudaStream_t stream() const { return static_cast<cudaStream_t>(resources.stream); }
    // Zeros in sums of so many rows, D each.
    void clear_sums(float *target, std::int64_t rows) const;
    bool is_forward() const { return pass == ANNULUS_PASS_FORWARD; }
    std::int32_t head_dim() const { return plan.problem().head_dim; }
    std::int32_t heads_per_kv_head() const { return plan.problem().heads / plan.problem().kv_heads; }
    // All batch entries, heads and positions.
    Block whole() const {
        const Problem &p = plan.problem();
        return {0, p.batch, 0, p.heads, p.queries, p.keys};
    }
    RowContext row_context(const BranchPlan *branches, int *has_nan) const;
};

} // namespace annulus
