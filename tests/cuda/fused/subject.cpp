// SPDX-License-Identifier: Apache-2.0
// The engines `fused` and `mma`: ENGINE is one of them.
#include "engines/subject.hpp"

#include "cuda/cuda_memory.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus::test {

namespace {

bool cuts_segment(const Problem &problem, const BranchSpec &branch) {
    const std::int64_t segment = branch.segment ? std::min(branch.segment, problem.length) : problem.length;
    const std::int64_t end = problem.query_start() + problem.query_length();
    return problem.query_start() % segment != 0 || (end % segment != 0 && end != problem.length);
}

// True if no branch is global, or if the others can leave out the pairs of the only one.
bool leaves_others_apart(const Problem &problem) {
    const auto global = std::ranges::find(problem.branches, ANNULUS_BRANCH_GLOBAL, &BranchSpec::kind);
    if (global == problem.branches.end())
        return true;
    const bool has_padding = problem.zero_keys && !problem.causal;
    return std::ranges::count(problem.branches, ANNULUS_BRANCH_GLOBAL, &BranchSpec::kind) == 1 && !has_padding &&
           global->first_head == 0 && global->head_count == 0;
}

// Returns how many ranges of keys a tile may have, if keys count once and there are windows: two sides of each branch
// (one if causal), which windows divide once more.
std::ptrdiff_t ranges_around_windows(const Problem &problem) {
    const auto windows = std::ranges::count(problem.branches, ANNULUS_BRANCH_WINDOW, &BranchSpec::kind);
    const auto others = std::ssize(problem.branches) - windows -
                        std::ranges::count(problem.branches, ANNULUS_BRANCH_GLOBAL, &BranchSpec::kind);
    if (windows == 0)
        return 0;
    return problem.causal ? 2 * windows + others : 4 * windows + 3 * others;
}

// True if the branches certainly fit into one grid: few classes of rows, and dilations that divide one another.
bool shares_a_grid(const Problem &problem) {
    std::vector<std::int64_t> dilations;
    for (const BranchSpec &branch : problem.branches)
        if (branch.dilation > 1)
            dilations.push_back(branch.dilation);
    std::ranges::sort(dilations);
    for (std::size_t i = 1; i < dilations.size(); ++i)
        if (dilations[i] % dilations[i - 1] != 0)
            return false;
    const auto differs = [&](const BranchSpec &a, const BranchSpec &b) {
        return a.dilation > 1 && b.dilation > 1 && a.query != b.query;
    };
    for (const BranchSpec &branch : problem.branches)
        if ((branch.dilation > 1 && branch.order != ANNULUS_ORDER_LINEAR) || branch.dilation > 32 ||
            std::ranges::any_of(problem.branches, [&](const BranchSpec &other) { return differs(branch, other); }))
            return false;
    return problem.branches.size() <= 8 && ranges_around_windows(problem) <= 16;
}

const char *refusal(const Problem &problem) {
    if (problem.dtype == ANNULUS_FLOAT32 && problem.dim > 128)
        return "the engine has no backward in float32 for more than 128 columns";
    if (problem.scale_or_default() <= 0)
        return "the engine takes positive scales only";
    if (problem.layout == Layout::gaps)
        return "the engine takes rows at multiples of 16 bytes only";
    if (problem.keys_once && problem.branches.size() > 1 && !shares_a_grid(problem))
        return "the engine counts keys once in one grid only";
    if (problem.keys_once && problem.branches.size() > 1 && !leaves_others_apart(problem))
        return "the engine counts keys once beside one global branch of all heads, without padding";
    for (const BranchSpec &branch : problem.branches) {
        if (branch.dilation >= std::int64_t{1} << 30)
            return "the engine takes dilations below 2^30 only";
        if (branch.order == ANNULUS_ORDER_LINEAR || branch.dilation == 1)
            continue;
        if (cuts_segment(problem, branch))
            return "the engine takes whole segments along a curve only";
        if (problem.causal && branch.query == ANNULUS_QUERY_EVERY)
            return "the engine has no causality along a curve for the query rule every";
    }
    return nullptr;
}

} // namespace

RunOptions subject() {
    static CudaMemory memory;
    return {.engine = ENGINE,
            .refusal = refusal,
            .memory = &memory,
            .aligned = true,
            .splits_float32 = ENGINE == ANNULUS_ENGINE_MMA};
}

// Returns subject(), and the same with memory from the context's own pool.
std::vector<RunOptions> subject_ways() {
    static CudaMemory legacy(CudaMemory::Order::legacy_stream);
    RunOptions pool = subject();
    pool.memory = &legacy;
    pool.own_workspace = false;
    return {subject(), pool};
}

std::vector<annulus_dtype> subject_dtypes() {
    if (ENGINE == ANNULUS_ENGINE_FUSED)
        return {ANNULUS_BFLOAT16, ANNULUS_FLOAT16};
    int major = 0; // without a device all dtypes are listed, and no test runs
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major < 8)
        return {ANNULUS_FLOAT16};
    return {ANNULUS_BFLOAT16, ANNULUS_FLOAT32, ANNULUS_FLOAT16};
}

} // namespace annulus::test
