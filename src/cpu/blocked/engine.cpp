// SPDX-License-Identifier: Apache-2.0
// The `cpu` engine's entry: float64 tensors accumulate in double, all others in float.
#include "engine/engine.hpp"

#include "cpu/blocked/passes.hpp"

namespace annulus {

namespace {

const char *refusal(const Plan &, annulus_pass, const Resources &) {
    return nullptr;
}

// Calls run(T{}) with the type of accumulation.
template <class Run> auto with_accumulation(const Plan &plan, Run run) {
    return plan.problem().dtype == ANNULUS_FLOAT64 ? run(double{}) : run(float{});
}

std::size_t workspace_bytes(const Plan &plan, annulus_pass pass, const Resources &resources) {
    return with_accumulation(plan, [&](auto zero) {
        using T = decltype(zero);
        return pass == ANNULUS_PASS_FORWARD ? forward_bytes<T>(plan, resources.threads)
                                            : backward_bytes<T>(plan, resources.threads);
    });
}

void run_forward(const Plan &plan, const ForwardTensors &tensors, Workspace &workspace, const Resources &resources) {
    with_accumulation(plan, [&](auto zero) { forward<decltype(zero)>(plan, tensors, workspace, resources.threads); });
}

void run_backward(const Plan &plan, const BackwardTensors &tensors, Workspace &workspace, const Resources &resources) {
    with_accumulation(plan, [&](auto zero) { backward<decltype(zero)>(plan, tensors, workspace, resources.threads); });
}

std::size_t step_bytes(const Plan &plan, annulus_pass pass, const Resources &resources) {
    return with_accumulation(plan, [&](auto zero) {
        using T = decltype(zero);
        return pass == ANNULUS_PASS_FORWARD ? forward_bytes<T>(plan, resources.threads)
                                            : backward_step_bytes<T>(plan, resources.threads);
    });
}

void run_forward_step(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums, bool first,
                      Workspace &workspace, const Resources &resources) {
    with_accumulation(plan, [&](auto zero) {
        forward_step<decltype(zero)>(plan, tensors, sums, first, workspace, resources.threads);
    });
}

void run_backward_step(const Plan &plan, const BackwardTensors &tensors, const BackwardSums &sums, bool first,
                       Workspace &workspace, const Resources &resources) {
    with_accumulation(plan, [&](auto zero) {
        backward_step<decltype(zero)>(plan, tensors, sums, first, workspace, resources.threads);
    });
}

void run_finish_forward(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums,
                        const Resources &resources) {
    with_accumulation(plan, [&](auto zero) { finish_forward<decltype(zero)>(plan, tensors, sums, resources.threads); });
}

void run_finish_backward(const Plan &plan, const BackwardTensors &tensors, const BackwardSums &sums,
                         const Resources &resources) {
    with_accumulation(plan,
                      [&](auto zero) { finish_backward<decltype(zero)>(plan, tensors, sums, resources.threads); });
}

} // namespace

const Engine cpu_engine = {ANNULUS_ENGINE_CPU, ANNULUS_DEVICE_CPU, refusal,    nullptr,          workspace_bytes,
                           run_forward,        run_backward,       step_bytes, run_forward_step, run_backward_step,
                           run_finish_forward, run_finish_backward};

} // namespace annulus
