// SPDX-License-Identifier: Apache-2.0
// The `fused` engine: kernels for all branches at once (sm90/), on GPUs of compute capability 9.0.
//
// Branches whose dilations do not divide one another, whose query rules do not mix, or that follow a curve take a grid
// each, which share partial results in float32, as the parts of a rank's call do. Where there are two, one of all rows,
// or the branches of one are split between two (plan/branch_split.hpp), only the rows of the other have some, of a few
// heads at a time. Keys that count once are told apart within a grid, so that there must be but one.
#include "engine/engine.hpp"
#include "cuda/fused/call.hpp"
#include "cuda/fused/plan/sequence_grids.hpp"
#include "engine/sequence_calls.hpp"

#include <algorithm>
#include <cmath>

namespace annulus {

namespace {

const char *refusal(const Plan &plan, const CudaDevice &device) {
    const Problem &problem = plan.problem();
    if (device.compute_capability() != 90)
        return "it needs a GPU of compute capability 9.0";
    if (problem.dtype != ANNULUS_BFLOAT16 && problem.dtype != ANNULUS_FLOAT16)
        return "it computes in bfloat16 and float16 only";
    if (!(plan.scale() > 0))
        return "the scale is not above 0";
    // In float32, as the kernel has it, with its inverse.
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

Preparation prepare(const Plan &plan, annulus_pass pass, CallPart part, Device &of_context, const Limits &limits) {
    CudaDevice &device = cuda_device(of_context);
    if (const char *reason = refusal(plan, device))
        return {nullptr, reason};
    return pass == ANNULUS_PASS_FORWARD ? prepare_fused_forward(plan, part, device, limits)
                                        : prepare_fused_backward(plan, part, device, limits);
}

// Along a curve each sequence has an order of its own: then they go one after the other.
bool has_curves(const Pattern &pattern) {
    return std::ranges::any_of(pattern.branches, [](const Branch &branch) {
        return branch.order != ANNULUS_ORDER_LINEAR && branch.dilation > 1;
    });
}

Preparation prepare_together(const SequencePlans &plans, annulus_pass pass, Device &of_context, const Limits &limits) {
    if (plans.items().empty() || has_curves(plans.plans().front().pattern()))
        return prepare_one_by_one(fused_engine, plans, pass, of_context, limits);
    CudaDevice &device = cuda_device(of_context);
    if (const char *reason = refusal(plan_of_rows(plans), device))
        return {nullptr, reason};
    return pass == ANNULUS_PASS_FORWARD ? prepare_fused_forward(plans, device, limits)
                                        : prepare_fused_backward(plans, device, limits);
}

} // namespace

const Engine fused_engine{ANNULUS_ENGINE_FUSED, ANNULUS_DEVICE_CUDA, true, prepare,
                          clear_device_rows,    prepare_together};

} // namespace annulus
