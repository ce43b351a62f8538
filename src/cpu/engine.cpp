// SPDX-License-Identifier: Apache-2.0
// The `cpu` engine's entry: float64 tensors accumulate in double, all others in float.
#include "engine/engine.hpp"

#include "cpu/cpu_engine.hpp"

namespace annulus {

namespace {

bool in_double(const Plan &plan) {
    return plan.problem().dtype == ANNULUS_FLOAT64;
}

const char *refusal(const Plan &, annulus_pass) {
    return nullptr;
}

std::size_t workspace_bytes(const Plan &plan, annulus_pass pass, int threads) {
    if (pass == ANNULUS_PASS_FORWARD)
        return in_double(plan) ? forward_bytes<double>(plan, threads) : forward_bytes<float>(plan, threads);
    return in_double(plan) ? backward_bytes<double>(plan, threads) : backward_bytes<float>(plan, threads);
}

void run_forward(const Plan &plan, const ForwardTensors &tensors, Workspace &workspace, int threads) {
    in_double(plan) ? forward<double>(plan, tensors, workspace, threads)
                    : forward<float>(plan, tensors, workspace, threads);
}

void run_backward(const Plan &plan, const BackwardTensors &tensors, Workspace &workspace, int threads) {
    in_double(plan) ? backward<double>(plan, tensors, workspace, threads)
                    : backward<float>(plan, tensors, workspace, threads);
}

} // namespace

const Engine cpu_engine = {ANNULUS_ENGINE_CPU, ANNULUS_DEVICE_CPU, refusal, workspace_bytes, run_forward, run_backward};

} // namespace annulus
