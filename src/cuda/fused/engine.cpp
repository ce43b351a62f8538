// SPDX-License-Identifier: Apache-2.0
// The `fused` engine: kernels for all branches at once (forward.cuh, backward.cuh), on GPUs of compute capability 9.0.
//
// Branches whose dilations do not divide one another, whose query rules do not mix, or that follow a curve take a pass
// each; passes, like the steps of a ring, add to sums in float32, whose form is that of the gemm engine. The two passes
// of branches that one pass could take (pass_cut.hpp) have such sums of a few heads at a time.
#include "engine/engine.hpp"
#include "cuda/fused/backward_run.hpp"
#include "cuda/fused/forward_run.hpp"
#include "cuda/fused/fused_call.hpp"

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace annulus {

namespace {

const char *refusal(const Plan &plan, annulus_pass pass, const Resources &resources) {
    const CudaDevice &device = cuda_device(resources);
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
    if (const char *reason = curve_refusal(plan))
        return reason;
    const char *const too_many_tiles = "there are too many small segments";
    if (pass == ANNULUS_PASS_FORWARD)
        return has_too_many_tiles(make_forward_passes(plan, resources, true).passes) ? too_many_tiles : nullptr;
    const BackwardGrids passes = make_backward_passes(plan, resources, true);
    return has_too_many_tiles(passes.queries) || has_too_many_tiles(passes.keys) ? too_many_tiles : nullptr;
}

using Tensors = std::initializer_list<const annulus_tensor *>;

// Rows are copied in parts of 16 bytes; those of `mapped` by tensor maps, where they are less than 2^40 bytes apart.
const char *refusal_of(const Tensors &tensors, const Tensors &mapped) {
    for (const annulus_tensor *tensor : tensors) {
        if (reinterpret_cast<std::uintptr_t>(tensor->data) % 16 != 0)
            return "a tensor's address is no multiple of 16 bytes";
        for (int i = 0; i < 3; ++i)
            if (tensor->shape[i] > 1 && tensor->stride[i] % 8 != 0)
                return "rows of a tensor do not begin at multiples of 16 bytes";
    }
    for (const annulus_tensor *tensor : mapped)
        for (int i = 0; i < 3 && tensor->shape[1] > 0; ++i)
            if (tensor->shape[i] > 1 && (tensor->stride[i] <= 0 || tensor->stride[i] >= std::int64_t{1} << 39))
                return "a stride of an input is 0, or 2^40 bytes or more";
    return nullptr;
}

const char *tensor_refusal(const CallTensors &tensors) {
    if (const ForwardTensors *t = tensors.forward)
        return refusal_of({&t->q, &t->k, &t->v, &t->out}, {&t->k, &t->v});
    if (const BackwardTensors *t = tensors.backward)
        return refusal_of({&t->q, &t->k, &t->v, &t->out, &t->d_out, &t->d_q, &t->d_k, &t->d_v},
                          {&t->q, &t->k, &t->v, &t->d_out});
    return nullptr;
}

std::size_t bytes_of(const Plan &plan, annulus_pass pass, const Resources &resources, bool is_step) {
    return pass == ANNULUS_PASS_FORWARD ? forward_bytes(plan, resources, is_step)
                                        : backward_bytes(plan, resources, is_step);
}

std::size_t workspace_bytes(const Plan &plan, annulus_pass pass, const Resources &resources) {
    return bytes_of(plan, pass, resources, false);
}

std::size_t step_bytes(const Plan &plan, annulus_pass pass, const Resources &resources) {
    return bytes_of(plan, pass, resources, true);
}

void forward(const Plan &plan, const ForwardTensors &tensors, Workspace &workspace, const Resources &resources) {
    run_forward(CudaCall(plan, tensors, resources), workspace);
}

void backward(const Plan &plan, const BackwardTensors &tensors, Workspace &workspace, const Resources &resources) {
    run_backward(CudaCall(plan, tensors, resources), workspace);
}

void forward_step(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums, bool first,
                  Workspace &workspace, const Resources &resources) {
    run_forward(CudaCall(plan, tensors, resources, sums, first), workspace);
}

void backward_step(const Plan &plan, const BackwardTensors &tensors, const BackwardSums &sums, bool first,
                   Workspace &workspace, const Resources &resources) {
    run_backward(CudaCall(plan, tensors, resources, sums, first), workspace);
}

void finish_forward(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums,
                    const Resources &resources) {
    gemm_engine.finish_forward(plan, tensors, sums, resources);
}

void finish_backward(const Plan &plan, const BackwardTensors &tensors, const BackwardSums &sums,
                     const Resources &resources) {
    write_summed_gradients(CudaCall(plan, tensors, resources, sums, true));
}

} // namespace

const Engine fused_engine = {.id = ANNULUS_ENGINE_FUSED,
                             .device = ANNULUS_DEVICE_CUDA,
                             .refusal = refusal,
                             .tensor_refusal = tensor_refusal,
                             .workspace_bytes = workspace_bytes,
                             .forward = forward,
                             .backward = backward,
                             .step_bytes = step_bytes,
                             .forward_step = forward_step,
                             .backward_step = backward_step,
                             .finish_forward = finish_forward,
                             .finish_backward = finish_backward};

} // namespace annulus
