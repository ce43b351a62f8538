// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/kernel_time.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace annulus::cli {

namespace {

double of_pass(const tuning::Passes &passes, annulus_pass pass) {
    return pass == ANNULUS_PASS_BACKWARD ? passes.backward : passes.forward;
}

std::int32_t head_end(const annulus_branch &branch, std::int32_t heads) {
    return branch.head_count == 0 ? heads : branch.first_head + branch.head_count;
}

std::int64_t segment_length(const annulus_branch &branch, std::int64_t length) {
    return branch.segment_length == 0 ? length : std::min(branch.segment_length, length);
}

// True if the keys that `fine` gives a query include all keys of `coarse` in the segment of `fine`.
bool covers(const annulus_branch &fine, const annulus_branch &coarse, std::int64_t length, std::int32_t heads) {
    return fine.order == ANNULUS_ORDER_LINEAR && coarse.order == ANNULUS_ORDER_LINEAR &&
           fine.dilation < coarse.dilation && coarse.dilation % fine.dilation == 0 &&
           segment_length(fine, length) < segment_length(coarse, length) && fine.first_head <= coarse.first_head &&
           head_end(fine, heads) >= head_end(coarse, heads);
}

// Returns the kernels' constants, and how much faster the GPU is than an H100 in what they do.
struct Scaled {
    const tuning::Kernels *kernels;
    double factor;
};
std::optional<Scaled> kernels_of(const GpuModel &model, annulus_engine engine, annulus_dtype dtype, bool allow_tf32) {
    const GpuModel &measured = gpu_model("H100");
    if (engine == ANNULUS_ENGINE_FUSED)
        return Scaled{&tuning::fused, model.tensor_flops / measured.tensor_flops};
    if (engine == ANNULUS_ENGINE_MMA && dtype == ANNULUS_FLOAT32 && allow_tf32)
        return Scaled{&tuning::mma_tf32, model.mma_flops / measured.mma_flops};
    if (engine == ANNULUS_ENGINE_MMA && dtype == ANNULUS_FLOAT32)
        return Scaled{&tuning::mma_float32, model.float32_flops / measured.float32_flops};
    if (engine == ANNULUS_ENGINE_MMA)
        return Scaled{&tuning::mma, model.mma_flops / measured.mma_flops};
    return std::nullopt;
}

// Returns the seconds of one pair. Between two head dimensions that were measured a pair takes as long as at the larger
// one, since the kernels pad rows. Above the largest one the rate is that of the largest.
double pair_seconds(const tuning::Kernels &kernels, std::int32_t head_dim, annulus_pass pass) {
    const auto *const rate =
        std::ranges::find_if(kernels.rates, [&](const tuning::Rate &known) { return head_dim <= known.head_dim; });
    const tuning::Rate &known = rate == std::end(kernels.rates) ? *std::prev(rate) : *rate;
    const bool is_backward = pass == ANNULUS_PASS_BACKWARD;
    return (is_backward ? 10.0 : 4.0) * std::max(head_dim, known.head_dim) /
           (is_backward ? known.backward : known.forward);
}

} // namespace

std::vector<double> covered_shares(const std::vector<annulus_branch> &branches, std::int64_t length,
                                   std::int32_t heads) {
    std::vector<double> shares;
    for (const annulus_branch &coarse : branches) {
        double &share = shares.emplace_back(0);
        for (const annulus_branch &fine : branches)
            if (covers(fine, coarse, length, heads))
                share = std::max(share, static_cast<double>(segment_length(fine, length)) /
                                            static_cast<double>(segment_length(coarse, length)));
    }
    return shares;
}

int bounds_of(const annulus_branch &branch, bool causal) {
    if (branch.kind == ANNULUS_BRANCH_WINDOW)
        return (branch.left >= 0 ? 1 : 0) + (causal || branch.right >= 0 ? 1 : 0);
    return causal ? 1 : 0;
}

double query_share(const annulus_branch &branch, std::int32_t heads) {
    const double served = static_cast<double>(head_end(branch, heads) - branch.first_head) / heads;
    return branch.query_rule == ANNULUS_QUERY_DILATED ? served / static_cast<double>(branch.dilation) : served;
}

std::optional<double> kernel_seconds(const GpuModel &model, annulus_engine engine, bool allow_tf32,
                                     const annulus_problem &problem, annulus_pass pass,
                                     const std::vector<BranchWork> &branches, double tensor_bytes, double read_share) {
    const std::optional<Scaled> scaled = kernels_of(model, engine, problem.dtype, allow_tf32);
    if (!scaled)
        return std::nullopt;
    const tuning::Kernels &kernels = *scaled->kernels;
    double pairs = 0;
    std::size_t first = 0; // the branch with the most queries
    for (std::size_t i = 0; i < branches.size(); ++i) {
        pairs += branches[i].pairs * (1 - branches[i].covered);
        first = branches[i].queries > branches[first].queries ? i : first;
    }
    for (std::size_t i = 0; i < branches.size(); ++i)
        pairs += branches[i].queries * (of_pass(i == first ? kernels.first_pairs : kernels.further_pairs, pass) +
                                        branches[i].bounds * of_pass(tuning::bound_pairs, pass));
    // Outputs are written for every row: one of four tensors forward, three of eight backward.
    const double written = pass == ANNULUS_PASS_BACKWARD ? 3.0 / 8 : 1.0 / 4;
    return of_pass(kernels.launch_seconds, pass) +
           pairs * pair_seconds(kernels, problem.head_dim, pass) / scaled->factor +
           tensor_bytes * (written + (1 - written) * read_share) / model.memory_rate;
}

} // namespace annulus::cli
