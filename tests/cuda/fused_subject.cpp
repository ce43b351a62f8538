// SPDX-License-Identifier: Apache-2.0
#include "engines/subject.hpp"

#include "cuda/cuda_place.hpp"

namespace annulus::test {

namespace {

const char *refusal(const Problem &problem) {
    if (problem.scale_or_default() <= 0)
        return "the engine takes positive scales only";
    if (problem.layout == Layout::gaps)
        return "the engine takes rows at multiples of 16 bytes only";
    for (const BranchSpec &branch : problem.branches) {
        if (branch.order == ANNULUS_ORDER_HILBERT && branch.dilation > 1)
            return "the engine takes the linear order only";
        if (branch.dilation >= std::int64_t{1} << 30)
            return "the engine takes dilations below 2^30 only";
    }
    return nullptr;
}

} // namespace

RunOptions subject() {
    static CudaPlace place;
    return {
        .engine = ANNULUS_ENGINE_FUSED, .has_backward = false, .refusal = refusal, .place = &place, .aligned = true};
}

// Also with memory from the context's own pool.
std::vector<RunOptions> subject_ways() {
    static CudaPlace legacy(CudaPlace::Order::legacy_stream);
    RunOptions pool = subject();
    pool.place = &legacy;
    pool.own_workspace = false;
    pool.deterministic = true;
    return {subject(), pool};
}

std::vector<annulus_dtype> subject_dtypes() {
    return {ANNULUS_BFLOAT16, ANNULUS_FLOAT16};
}

} // namespace annulus::test
