// SPDX-License-Identifier: Apache-2.0
#include "engines/subject.hpp"

#include "cuda/cuda_memory.hpp"

namespace annulus::test {

RunOptions subject() {
    static CudaMemory memory;
    return {.engine = ANNULUS_ENGINE_GEMM, .memory = &memory, .aligned = true};
}

// Includes elements that are aligned only to their size, memory from the context's own pool, and a tight limit.
std::vector<RunOptions> subject_ways() {
    static CudaMemory legacy(CudaMemory::Order::legacy_stream);
    RunOptions pool = subject();
    pool.memory = &legacy;
    pool.aligned = false;
    pool.own_workspace = false;
    RunOptions tight = subject();
    tight.workspace_limit = 4096;
    tight.raise_limit = true;
    return {subject(), pool, tight};
}

// Before compute capability 8.0 there is no bfloat16. Without a device any list will do, since no test runs.
std::vector<annulus_dtype> subject_dtypes() {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major < 8)
        return {ANNULUS_FLOAT32, ANNULUS_FLOAT16};
    return {ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16};
}

} // namespace annulus::test
