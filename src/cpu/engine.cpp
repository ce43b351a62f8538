// SPDX-License-Identifier: Apache-2.0
// The `cpu` engine's entry: float64 tensors accumulate in double, all others in float.
#include "engine/engine.hpp"

#include "cpu/cpu_engine.hpp"

namespace annulus {

namespace {

bool in_double(const Plan &plan) {
    return plan.problem().dtype == ANNULUS_FLOAT64;
}

const char *refusal(const Plan &, annulus_pass, const Resources &) {
    return nullptr;
}

std::size_t workspace_bytes(const Plan &plan, annulus_pass pass, const Resources &resources) {
    const int threads = resources.threads;
    if (pass == ANNULUS_PASS_FORWARD)
        return in_double(plan) ? forward_bytes<double>(plan, threads) : forward_bytes<float>(plan, threads);
    return in_double(plan) ? backward_bytes<double>(plan, threads) : backward_bytes<float>(plan, threads);
}

void run_forward(const Plan &plan, const ForwardTensors &tensors, Workspace &workspace, const Resources &resources) {
    in_double(plan) ? forward<double>(plan, tensors, workspace, resources.threads)
                    : forward<float>(plan, tensors, workspace, resources.threads);
}

void run_backward(const Plan &plan, const BackwardTensors &tensors, Workspace &workspace, const Resources &resources) {
    in_double(plan) ? backward<double>(plan, tensors, workspace, resources.threads)
                    : backward<float>(plan, tensors, workspace, resources.threads);
}

} // namespace

const Engine cpu_engine = {ANNULUS_ENGINE_CPU, ANNULUS_DEVICE_CPU, refusal, workspace_bytes, run_forward, run_backward};

} // namespace annulus
