// SPDX-License-Identifier: Apache-2.0
// What the parts of a call of the gemm engine share: the workspace in pieces, a worker's stream.
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

// Bytes and pieces of the workspace. All memory of a worker is its own, but for the partial results of a part of a
// call.
struct WorkerMemory {
    float2 *state;      // [query_rows], forward
    float *o;           // [query_rows, D]: O, or dQ
    float *d_k, *d_v;   // [key_rows, D]
    TileItem *items;    // [tiles]
    void **pointers;    // [operand_count, tiles]
    int *has_nonfinite; // causal with a state, else null; see RowContext
    std::byte *scores;
    std::byte *blas;
};

struct GemmMemory {
    BranchPlan *branches; // [branches], or null; see book_branches()
    std::array<WorkerMemory, CudaDevice::side_streams> workers;
};

GemmMemory book(Workspace &workspace, const Plan &plan, annulus_pass pass, const GemmLayout &layout);

// A layout of at most the limit in bytes, 0 being the engine's own, or else the smallest; and what it books.
GemmLayout layout_within(const Plan &plan, annulus_pass pass, std::uint64_t limit, Results results);
std::size_t booked_bytes(const Plan &plan, annulus_pass pass, const GemmLayout &layout);

// A call while it runs.
struct GemmRun {
    const CudaCall &call;
    annulus_pass pass;
    KeyScope scope;
    bool inputs_are_matrices; // to cuBLAS
    bool allow_tf32;
    const GemmLayout &layout;
    GemmMemory memory;

    bool is_forward() const { return pass == ANNULUS_PASS_FORWARD; }
};

// What a worker works with.
struct WorkerContext {
    const GemmRun &run;
    const WorkerMemory &memory;
    cudaStream_t stream;
    ProductType product;
};

} // namespace annulus
