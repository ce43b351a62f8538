// SPDX-License-Identifier: Apache-2.0
// A call of a GPU engine during its execution: its plan, the caller's tensors, its device and stream.
#pragma once

#include "core/workspace.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/results/results.hpp"
#include "engine/engine.hpp"

#include <annulus/attention.h>

#include <cstdint>

namespace annulus {

// PartialResults in the types of kernels: [B, heads, rows, D] of the problem's windows. All are null if the key scope
// is all_keys.
struct DevicePartialResults {
    float2 *state = nullptr;
    float *o = nullptr; // forward
    PartialGradients gradients{};
    const SummedRows *summed_queries = nullptr, *summed_keys = nullptr; // as in PartialResults
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
    // Returns the block of all batch entries, heads and positions.
    Block whole() const {
        const Problem &p = problem();
        return {0, p.batch, 0, p.heads, p.queries, p.keys};
    }
    RowContext row_context(const BranchPlan *branches, int *has_nonfinite) const;
    // Sets `rows` rows of partial results, with D elements each, to zero.
    void clear_partial(float *target, std::int64_t rows) const;
};

// The copy of the branches on the device. Causal plans need it to recompute rows, plans whose keys count once need it
// to find repeated keys. Other plans have none: 0 bytes, and null.
std::int64_t bytes_of_branches(const Plan &plan);
BranchPlan *book_branches(Workspace &workspace, const Plan &plan);
// Copies the branches of a plan to `target`, if it is not null, with the next launch of `stores`.
void store_branches(const Plan &plan, BranchPlan *target, ArrayStores &stores);

// Engine::clear() of the engines on a GPU.
void clear_device_rows(const Problem &problem, annulus_pass pass, const CallTensors &tensors, Device &device,
                       const Limits &limits, void *stream);

} // namespace annulus
