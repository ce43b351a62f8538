// SPDX-License-Identifier: Apache-2.0
// What the functions of a gemm call share: the pieces of the workspace, and a worker's stream.
#pragma once

#include "core/workspace.hpp"
#include "cuda/gemm/kernels.hpp"
#include "cuda/gemm/layout.hpp"
#include "cuda/gemm/product.hpp"
#include "cuda/results/cuda_call.hpp"
#include "engine/engine.hpp"

#include <annulus/attention.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace annulus {

// A worker's pieces of the workspace, with their shapes. No two workers share memory, except that all add to
// partial results that several key scopes share.
struct WorkerMemory {
    float2 *state;      // [query_rows], forward
    float *o;           // [query_rows, D]: O, or dQ
    float *d_k, *d_v;   // [key_rows, D]
    TileItem *items;    // [tiles]
    void **pointers;    // [operand_count, tiles]
    int *has_nonfinite; // with a state if keys are hidden, else null; see RowContext::has_nonfinite
    std::byte *scores;
    std::byte *blas;
};

struct GemmMemory {
    BranchPlan *branches; // [branches], or null; see book_branches()
    std::array<WorkerMemory, CudaDevice::side_streams> workers;
};

GemmMemory book(Workspace &workspace, const Plan &plan, annulus_pass pass, const GemmLayout &layout);

// Returns a layout that books at most `limit` bytes (0: the engine's default), or else the smallest layout.
GemmLayout layout_within(const Plan &plan, annulus_pass pass, std::uint64_t limit, Results results);
std::size_t booked_bytes(const Plan &plan, annulus_pass pass, const GemmLayout &layout);

// A call during its execution.
struct GemmRun {
    const CudaCall &call;
    annulus_pass pass;
    KeyScope scope;
    bool inputs_are_matrices; // cuBLAS can read the inputs' rows as matrices
    bool allow_tf32;
    const GemmLayout &layout;
    GemmMemory memory;

    bool is_forward() const { return pass == ANNULUS_PASS_FORWARD; }
};

// What a worker needs to launch its work.
struct WorkerContext {
    const GemmRun &run;
    const WorkerMemory &memory;
    cudaStream_t stream;
    ProductType product;
};

} // namespace annulus
