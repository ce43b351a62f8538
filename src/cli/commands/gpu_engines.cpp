// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/gpu_engines.hpp"

#include "cli/report/failure.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>

namespace annulus::cli {

namespace {

constexpr std::int64_t position_limit = std::int64_t{1} << 30;
constexpr std::size_t branch_limit = 64, launch_branches = 8;
constexpr std::ptrdiff_t tile_ranges = 16; // ranges of keys that a tile of fused and mma may have

// The functions below return why an engine does not compute a pass, or null if it does.

const char *fused_refusal(const GpuModel &model, const annulus_problem &problem) {
    if (model.capability != 90)
        return "it needs compute capability 9.0";
    return problem.dtype == ANNULUS_FLOAT32 ? "it has no float32" : nullptr;
}

const char *mma_refusal(const GpuModel &model, const annulus_problem &problem, annulus_pass pass) {
    if (problem.dtype != ANNULUS_FLOAT32)
        return nullptr;
    const std::int32_t limit = pass == ANNULUS_PASS_BACKWARD ? 128 : model.capability == 89 ? 192 : 256;
    return problem.head_dim > limit ? "the head dimension is too large for float32" : nullptr;
}

const char *scale_refusal(double scale) {
    if (!(scale > 0))
        return "the scale is not above 0";
    const auto scale_log2 = static_cast<float>(scale * std::numbers::log2e);
    return std::isnormal(scale_log2) && std::isnormal(1 / scale_log2)
               ? nullptr
               : "the scale is too small or too large for float32";
}

// True if a shard begins inside a segment of the branch.
bool is_cut(const annulus_branch &branch, const annulus_problem &problem, const Shards &shards) {
    const std::vector<std::int64_t> bounds = sequence_bounds(problem);
    const annulus_shards view = shards.view();
    std::int64_t border = 0;
    for (std::int32_t i = 0; i + 1 < view.count; ++i) {
        border += view.lengths[i];
        const std::int64_t start = *std::prev(std::ranges::upper_bound(bounds, border));
        const std::int64_t position = border - start;
        if (branch.segment_length == 0 ? position > 0 : position % branch.segment_length > 0)
            return true;
    }
    return false;
}

bool has_kind(const std::vector<annulus_branch> &branches, annulus_branch_kind kind) {
    return std::ranges::count(branches, kind, &annulus_branch::kind) > 0;
}

// True if the ranges of a tile are few enough for keys that count once beside windows.
bool has_few_ranges(const std::vector<annulus_branch> &branches, bool causal) {
    const auto windows = std::ranges::count(branches, ANNULUS_BRANCH_WINDOW, &annulus_branch::kind);
    const auto others = std::ssize(branches) - windows;
    return windows == 0 || (causal ? 2 * windows + others : 4 * windows + 3 * others) <= tile_ranges;
}

// True if no branch is global, or if the others can leave out the pairs of the only one.
bool leaves_others_apart(const PlannedJob &job, const std::vector<annulus_branch> &branches) {
    const auto global = std::ranges::find(branches, ANNULUS_BRANCH_GLOBAL, &annulus_branch::kind);
    if (global == branches.end())
        return true;
    const bool has_padding =
        job.pattern.padding == "zero-keys" && !job.pattern.causal && has_kind(branches, ANNULUS_BRANCH_SEGMENTS);
    return std::ranges::count(branches, ANNULUS_BRANCH_GLOBAL, &annulus_branch::kind) == 1 && !has_padding &&
           global->first_head == 0 && (global->head_count == 0 || global->head_count >= job.problem.heads);
}

// The limits that `fused` and `mma` share.
const char *pattern_refusal(const PlannedJob &job, const std::vector<annulus_branch> &branches, const Shards &shards) {
    const annulus_problem &problem = job.problem;
    if (const char *const reason = job.pattern.scale ? scale_refusal(*job.pattern.scale) : nullptr)
        return reason;
    if (problem.sequence_length >= position_limit || problem.batch >= position_limit)
        return "2^30 positions or batch entries are too many for it";
    if (branches.size() > branch_limit)
        return "64 branches are its limit";
    for (const annulus_branch &branch : branches) {
        if (branch.dilation >= position_limit)
            return "a dilation of 2^30 is too much for it";
        if (is_curved(branch) && job.pattern.causal && branch.query_rule == ANNULUS_QUERY_EVERY)
            return "it has no causality in Hilbert order for the query rule every";
        if (is_curved(branch) && is_cut(branch, problem, shards))
            return "a shard cuts a segment in Hilbert order";
    }
    const bool keys_count_once = job.pattern.key_rule == "once" && branches.size() > 1;
    if (keys_count_once && !leaves_others_apart(job, branches))
        return "beside global positions it counts keys once if the global positions are one branch with all heads, and "
               "no segment is padded";
    std::vector<annulus_branch> others = branches;
    std::erase_if(others, [](const annulus_branch &branch) { return branch.kind == ANNULUS_BRANCH_GLOBAL; });
    if (keys_count_once && !is_one_launch(others))
        return "it counts keys once for up to 8 branches in linear order whose dilations divide one another and whose "
               "query rules are alike";
    if (keys_count_once && !has_few_ranges(others, job.pattern.causal))
        return "it counts keys once for up to four windows, or with causality eight, and fewer beside segments";
    return nullptr;
}

} // namespace

std::vector<std::int64_t> sequence_bounds(const annulus_problem &problem) {
    const annulus_call_options *const options = problem.options;
    if (!options || options->sequence_count == 0)
        return {0, problem.sequence_length};
    return {options->sequence_starts, options->sequence_starts + options->sequence_count + 1};
}

bool is_curved(const annulus_branch &branch) {
    return branch.order != ANNULUS_ORDER_LINEAR && branch.dilation > 1;
}

bool is_one_launch(const std::vector<annulus_branch> &branches) {
    if (branches.size() > launch_branches || std::ranges::any_of(branches, is_curved))
        return false;
    for (const annulus_branch &one : branches)
        for (const annulus_branch &other : branches)
            if ((one.dilation <= other.dilation && other.dilation % one.dilation != 0) ||
                (one.dilation > 1 && other.dilation > 1 && one.query_rule != other.query_rule))
                return false;
    return true;
}

annulus_engine engine_on(const GpuModel &model, const PlannedJob &job, annulus_pass pass, const Shards &shards) {
    const annulus_problem &problem = job.problem;
    if (problem.dtype == ANNULUS_FLOAT64)
        throw bad_input("--dtype float64: on GPUs it must be float32, bfloat16 or float16");
    const Config config = job.pattern.config(problem.heads);
    const std::vector<annulus_branch> branches = get_branches(config.get());
    const auto refusal = [&](annulus_engine engine) -> const char * {
        if (engine == ANNULUS_ENGINE_GEMM)
            return nullptr;
        if (engine != ANNULUS_ENGINE_FUSED && engine != ANNULUS_ENGINE_MMA)
            return "it is an engine of CPUs";
        const char *const reason =
            engine == ANNULUS_ENGINE_FUSED ? fused_refusal(model, problem) : mma_refusal(model, problem, pass);
        return reason ? reason : pattern_refusal(job, branches, shards);
    };
    annulus_engine fastest = ANNULUS_ENGINE_FUSED;
    for (const annulus_engine slower : {ANNULUS_ENGINE_MMA, ANNULUS_ENGINE_GEMM})
        fastest = refusal(fastest) ? slower : fastest;
    for (const annulus_engine engine : engines) {
        if (engine == ANNULUS_ENGINE_AUTO || job.execution.engine != annulus_engine_name(engine))
            continue;
        if (const char *const reason = refusal(engine))
            throw bad_input("--engine " + job.execution.engine + ": does not compute this on GPUs of model " +
                            model.name + ": " + reason + "; " + annulus_engine_name(fastest) + " does");
        return engine;
    }
    return fastest;
}

} // namespace annulus::cli
