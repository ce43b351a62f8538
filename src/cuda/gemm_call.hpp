// SPDX-License-Identifier: Apache-2.0
// What the parts of a call of the gemm engine share: the caller's tensors, the workspace in pieces, a lane's stream.
#pragma once

#include "core/workspace.hpp"
#include "cuda/cuda_device.hpp"
#include "cuda/gemm_layout.hpp"
#include "cuda/gemm_product.hpp"
#include "cuda/kernels.hpp"
#include "engine/engine.hpp"

#include <annulus/attention.h>

#include <array>
#include <optional>

namespace annulus {

// The sums of a call in steps, [B, heads, rows, D] of the problem's windows.
struct StepSums {
    float2 *state = nullptr;              // forward
    float *o = nullptr;                   // O, or dQ
    float *d_k = nullptr, *d_v = nullptr; // backward
    bool first = false;                   // the step sets them
};

struct GemmCall {
    GemmCall(const Plan &plan, const ForwardTensors &tensors, const Resources &resources);
    GemmCall(const Plan &plan, const BackwardTensors &tensors, const Resources &resources);

    const Plan &plan;
    const annulus_pass pass;
    const Resources &resources;
    CudaDevice &device;
    bool input_matrices, output_matrices; // whether all these tensors are matrices to cuBLAS
    DeviceRows q, k, v, out, lse;
    DeviceRows d_out, d_lse, d_q, d_k, d_v; // backward
    std::optional<StepSums> sums;           // of a call in steps

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

// Bytes and pieces of the workspace. All memory of a lane is its own, but for the sums of a call in steps.
struct LaneMemory {
    float2 *state;    // [query_rows], forward
    float *o;         // [query_rows, D]: O, or dQ
    float *d_k, *d_v; // [key_rows, D]
    TileItem *items;  // [tiles]
    void **pointers;  // [operand_count, tiles]
    int *has_nan;     // causal with a state, else null; see RowContext
    std::byte *scores;
    std::byte *blas;
};

struct GemmMemory {
    BranchPlan *branches; // [branches], causal
    std::array<LaneMemory, CudaDevice::lanes> lanes;
};

GemmMemory book(Workspace &workspace, const Plan &plan, annulus_pass pass, const GemmLayout &layout);

// What a lane works with.
struct LaneContext {
    const GemmCall &call;
    const GemmLayout &layout;
    const BranchPlan *branches;
    const LaneMemory &memory;
    cudaStream_t stream;
    ProductType product;
};

} // namespace annulus
