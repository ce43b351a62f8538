// SPDX-License-Identifier: Apache-2.0
// The engines `fused` and `mma`. One kernel computes all branches: sm90/ uses Hopper's own instructions on GPUs of
// compute capability 9.0, mma/ uses mma.sync on GPUs of 7.5 and newer.
//
// Some branches need a grid each: branches whose dilations do not divide one another, whose query rules do not mix, or
// that follow a curve. The few global positions are one more range in a grid of all rows. If they are the rows, or if
// keys count once, a global branch has a grid for each of its parts, a range of queries against a range of keys.
// Several grids share partial results in float32, as the executables of a rank do. So does a single grid of `mma`
// along a curve. Fewer partial results are needed if the first grid has all rows, or if the branches of one grid are
// split in two (plan/branch_split.hpp). Then only rows of the other grids have partial results, for a few heads or some
// rows of a head at a time. Keys that count once are told apart within a grid, so there must be only one grid, or grids
// of different areas (plan/grids.hpp).
#include "cuda/fused/engine.hpp"

#include "cuda/fused/call.hpp"
#include "cuda/fused/plan/sequence_grids.hpp"
#include "cuda/results/cuda_call.hpp"
#ifdef ANNULUS_HAVE_MMA
#include "cuda/fused/mma/architecture.hpp"
#endif
#ifdef ANNULUS_HAVE_SM90
#include "cuda/fused/sm90/architecture.hpp"
#endif
#include "engine/sequence_executables.hpp"

#include <algorithm>
#include <cmath>

namespace annulus {

namespace {

const char *refusal(const Plan &plan) {
    const Problem &problem = plan.problem();
    if (!(plan.scale() > 0))
        return "the scale is not above 0";
    // In float32, as the kernel has the scale and its inverse.
    if (const float scale = scale_log2(plan); !std::isnormal(scale) || !std::isnormal(1 / scale))
        return "the scale is too small or too large for float32";
    if (problem.sequence_length >= position_limit || problem.key_rows() >= position_limit ||
        problem.batch >= position_limit)
        return "2^30 positions or batch entries are too many for it";
    if (plan.branches().size() > 64)
        return "64 branches are its limit";
    for (const BranchPlan &branch : plan.branches())
        if (branch.dilation() >= position_limit)
            return "a dilation of 2^30 is too much for it";
    return curve_refusal(plan);
}

template <class Architecture>
Preparation prepare(const Plan &plan, annulus_pass pass, KeyScope scope, Device &context_device, const Limits &limits) {
    CudaDevice &device = cuda_device(context_device);
    if (const char *reason = Architecture::refusal(plan.problem(), pass, device))
        return {nullptr, reason};
    if (const char *reason = refusal(plan))
        return {nullptr, reason};
    const Architecture architecture(device, limits.allow_tf32);
    return pass == ANNULUS_PASS_FORWARD ? prepare_fused_forward(plan, scope, device, architecture, limits)
                                        : prepare_fused_backward(plan, scope, device, architecture, limits);
}

template <class Architecture>
ShardSums summed_rows(const Plan &shard, annulus_pass pass, Device &context_device, const Limits &limits) {
    const CudaDevice &device = cuda_device(context_device);
    if (Architecture::refusal(shard.problem(), pass, device) || refusal(shard)) // prepare() tells
        return {};
    const Architecture architecture(device, limits.allow_tf32);
    return pass == ANNULUS_PASS_FORWARD ? summed_rows_of_forward(shard, device, architecture, limits)
                                        : summed_rows_of_backward(shard, device, architecture, limits);
}

// True if sequences are computed one after the other. A branch that may follow a curve has a permutation for each
// sequence. Global positions confine the grids of each sequence to areas of its own.
bool needs_one_by_one(const Pattern &pattern) {
    return std::ranges::any_of(pattern.branches, [](const Branch &branch) {
        return branch.kind == ANNULUS_BRANCH_GLOBAL || (branch.order != ANNULUS_ORDER_LINEAR && branch.dilation > 1);
    });
}

template <class Architecture, const Engine &engine>
Preparation prepare_together(const SequencePlans &plans, annulus_pass pass, Device &context_device,
                             const Limits &limits) {
    if (plans.items().empty() || needs_one_by_one(plans.plans().front().pattern()))
        return prepare_one_by_one(engine, plans, pass, context_device, limits);
    CudaDevice &device = cuda_device(context_device);
    const Plan rows = plan_of_rows(plans);
    if (const char *reason = Architecture::refusal(rows.problem(), pass, device))
        return {nullptr, reason};
    if (const char *reason = refusal(rows))
        return {nullptr, reason};
    const Architecture architecture(device, limits.allow_tf32);
    return pass == ANNULUS_PASS_FORWARD ? prepare_fused_forward(plans, device, architecture, limits)
                                        : prepare_fused_backward(plans, device, architecture, limits);
}

} // namespace

#ifdef ANNULUS_HAVE_SM90
const Engine fused_engine{
    .id = ANNULUS_ENGINE_FUSED,
    .device = ANNULUS_DEVICE_CUDA,
    .has_key_scopes = true,
    .prepare = prepare<Sm90>,
    .clear = clear_device_rows,
    .prepare_sequences = prepare_together<Sm90, fused_engine>,
    .summed_rows = summed_rows<Sm90>,
};
#endif
#ifdef ANNULUS_HAVE_MMA
const Engine mma_engine{
    .id = ANNULUS_ENGINE_MMA,
    .device = ANNULUS_DEVICE_CUDA,
    .has_key_scopes = true,
    .prepare = prepare<mma::Mma>,
    .clear = clear_device_rows,
    .prepare_sequences = prepare_together<mma::Mma, mma_engine>,
    .summed_rows = summed_rows<mma::Mma>,
};
#endif

} // namespace annulus
