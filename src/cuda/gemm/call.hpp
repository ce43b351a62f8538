// SPDX-License-Identifier: Apache-2.0
// What the parts of a call of the gemm engine share: the workspace in pieces, a lane's stream.
#pragma once

#include "core/workspace.hpp"
#include "cuda/device/cuda_call.hpp"
#include "cuda/gemm/layout.hpp"
#include "cuda/gemm/product.hpp"

#include <annulus/attention.h>

#include <array>

namespace annulus {

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
    const CudaCall &call;
    const GemmLayout &layout;
    const BranchPlan *branches;
    const LaneMemory &memory;
    cudaStream_t stream;
    ProductType product;
};

} // namespace annulus
