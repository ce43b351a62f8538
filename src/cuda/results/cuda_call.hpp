// SPDX-License-Identifier: Apache-2.0
// A call of an engine on a GPU while it runs: its plan, the caller's tensors, its device and stream.
#pragma once

#include "core/workspace.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/results/results.hpp"
#include "engine/engine.hpp"

#include <annulus/attention.h>

#include <cstdint>

namespace annulus {

// PartialResults as kernels take them: of a part of a call, [B, heads, rows, D] of the problem's windows; else null.
struct DevicePartialResults {
    float2 *state = nullptr; // forward
    float *o = nullptr;      // forward
    PartialGradients gradients{};
};

struct CudaCall {
    CudaCall(const Plan &plan, CudaDevice &device, const CallTensors &tensors, const PartialResults &partial,
             void *stream);

    const Plan &plan;
    CudaDevice &device;
    cudaStream_t const stream;
    DeviceRows q, k, v, out, lse;
    DeviceRows d_out, d_lse, d_q, d_k, d_v; // backward
    DevicePartialResults partial;

    const Problem &problem() const { return plan.problem(); }
    std::int32_t head_dim() const { return problem().head_dim; }
    std::int32_t heads_per_kv_head() const { return problem().heads / problem().kv_heads; }
    // All batch entries, heads and positions.
    Block whole() const {
        const Problem &p = problem();
        return {0, p.batch, 0, p.heads, p.queries, p.keys};
    }
    RowContext row_context(const BranchPlan *branches, int *has_nonfinite) const;
    // Zeros in partial results of so many rows, D each.
    void clear_partial(float *target, std::int64_t rows) const;
};

// Room for the branches on the device, which plans need that are causal, for rows that are computed again, or whose
// keys count once; else none, and null.
std::int64_t bytes_of_branches(const Plan &plan);
BranchPlan *book_branches(Workspace &workspace, const Plan &plan);
// Copies them there.
void store_branches(const CudaCall &call, BranchPlan *target);

// Engine::clear() of the engines on a GPU.
void clear_device_rows(const Problem &problem, annulus_pass pass, const CallTensors &tensors, Device &device,
                       const Limits &limits, void *stream);

} // namespace annulus
