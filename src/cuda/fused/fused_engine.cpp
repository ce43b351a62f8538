// SPDX-License-Identifier: Apache-2.0
// The `fused` engine: one kernel for all branches (forward.cuh), on GPUs of compute capability 9.0.
//
// Branches whose dilations do not divide one another, or whose query rules do not mix, take a pass each; passes, like
// the steps of a ring, add to sums in float32, whose form is that of the gemm engine.
#include "core/dtype_number.hpp"
#include "core/error.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/fused/forward_plan.hpp"
#include "cuda/gemm_call.hpp"
#include "engine/engine.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace annulus {

namespace {

struct FusedMemory {
    BranchPlan *branches;    // causal, for rows that are computed again
    unsigned *control;       // a counter of tiles for each pass, and whether there is a NaN
    std::int64_t control_count;
    float2 *state;           // of several passes, [B, H, queries]
    float *o;                // [B, H, queries, D]
};

FusedMemory book(Workspace &workspace, const Plan &plan, std::size_t passes, bool has_sums) {
    FusedMemory memory{};
    const Problem &problem = plan.problem();
    if (plan.causal())
        memory.branches = reinterpret_cast<BranchPlan *>(
            workspace.take<std::byte>(static_cast<std::int64_t>(plan.branches().size() * sizeof(BranchPlan))));
    memory.control_count = static_cast<std::int64_t>(passes) + 1;
    memory.control = workspace.take<unsigned>(memory.control_count);
    if (has_sums) {
        const std::int64_t rows = problem.batch * problem.heads * problem.queries.length;
        memory.state = workspace.take<float2>(rows);
        memory.o = workspace.take<float>(rows * problem.head_dim);
    }
    return memory;
}

const char *refusal(const Plan &plan, annulus_pass pass, const Resources &resources) {
    const auto &device = static_cast<const CudaDevice &>(*resources.device);
    const Problem &problem = plan.problem();
    if (device.compute_capability() != 90)
        return "it needs a GPU of compute capability 9.0";
    if (pass == ANNULUS_PASS_BACKWARD)
        return "it has no backward pass; gemm has";
    if (problem.dtype != ANNULUS_BFLOAT16 && problem.dtype != ANNULUS_FLOAT16)
        return "it computes in bfloat16 and float16 only";
    if (!(plan.scale() > 0))
        return "the scale is not above 0";
    if (problem.sequence_length >= position_limit || problem.key_rows() >= position_limit ||
        problem.batch >= position_limit)
        return "2^30 positions or batch entries are too many for it";
    for (std::size_t i = 0; i < plan.branches().size(); ++i) {
        if (plan.branches()[i].dilation() >= position_limit)
            return "a dilation of 2^30 is too much for it";
        if (plan.pattern().branches[i].order != ANNULUS_ORDER_LINEAR && plan.branches()[i].dilation() > 1)
            return "it has no order along a curve";
    }
    if (has_too_many_tiles(make_forward_passes(plan)))
        return "there are too many small segments";
    return nullptr;
}

// Rows of tensor maps begin at multiples of 16 bytes, less than 2^40 bytes apart; those of O are written in such parts.
const char *tensor_refusal(const Plan &, const ForwardTensors &tensors) {
    for (const annulus_tensor *tensor : {&tensors.q, &tensors.k, &tensors.v, &tensors.out}) {
        if (reinterpret_cast<std::uintptr_t>(tensor->data) % 16 != 0)
            return "a tensor's address is no multiple of 16 bytes";
        for (int i = 0; i < 3; ++i)
            if (tensor->shape[i] > 1 && tensor->stride[i] % 8 != 0)
                return "rows of a tensor do not begin at multiples of 16 bytes";
    }
    for (const annulus_tensor *tensor : {&tensors.k, &tensors.v})
        for (int i = 0; i < 3; ++i)
            if (tensor->shape[i] > 1 && (tensor->stride[i] <= 0 || tensor->stride[i] >= std::int64_t{1} << 39))
                return "a stride of k or v is 0 or 2^40 bytes";
    return nullptr;
}

PassRows pass_rows(const DeviceRows &rows) {
    return {rows.data, rows.batch, rows.row, rows.head, static_cast<int>(rows.start)};
}

void set_maps(ForwardPass &pass, const GemmCall &call, int box_rows) {
    const Problem &problem = call.plan.problem();
    if (problem.key_rows() == 0)
        return;
    for (int i = 0; i < pass.stride_count; ++i) {
        const std::int64_t stride = pass.strides[i], more = problem.key_rows() % stride;
        const auto encode = [&](const DeviceRows &rows, int which, std::int64_t count, std::int64_t residues,
                                CUtensorMap *maps) {
            if (count > 0 && residues > 0)
                maps[2 * i + which] = call.device.tensor_maps().get(
                    {rows.data, problem.dtype, problem.head_dim, problem.kv_heads, problem.batch, count, residues,
                     rows.row, rows.head, rows.batch, stride, box_rows});
        };
        for (const auto &[rows, maps] : {std::pair{&call.k, pass.k}, std::pair{&call.v, pass.v}}) {
            encode(*rows, 0, problem.key_rows() / stride + 1, more, maps);
            encode(*rows, 1, problem.key_rows() / stride, stride, maps);
        }
    }
}

// Runs all passes; with `sums` into these, else into the call's tensors, by way of sums of its own if there are several.
void run(const GemmCall &call, Workspace &workspace) {
    const Plan &plan = call.plan;
    const Problem &problem = plan.problem();
    auto *const stream = static_cast<cudaStream_t>(call.resources.stream);
    std::vector<ForwardPass> passes = make_forward_passes(plan);
    const bool has_own_sums = !call.sums && passes.size() > 1;
    const FusedMemory memory = book(workspace, plan, passes.size(), has_own_sums);
    if (problem.batch * problem.queries.length == 0)
        return;
    if (memory.branches)
        store_branches(plan.branches().data(), static_cast<std::int32_t>(plan.branches().size()), memory.branches,
                       stream);
    check(cudaMemsetAsync(memory.control, 0, static_cast<std::size_t>(memory.control_count) * sizeof(unsigned), stream),
          "cudaMemsetAsync");
    float2 *const state = call.sums ? call.sums->state : memory.state;
    float *const o = call.sums ? call.sums->o : memory.o;
    const bool is_first_step = !call.sums || call.sums->first;
    int *const has_nan = plan.causal() ? reinterpret_cast<int *>(memory.control + passes.size()) : nullptr;
    for (std::size_t i = 0; i < passes.size(); ++i) {
        ForwardPass &pass = passes[i];
        set_maps(pass, call, forward_shape(problem.head_dim).step);
        pass.q = pass_rows(call.q);
        pass.out = pass_rows(call.out);
        pass.lse = pass_rows(call.lse);
        pass.sum_o = o;
        pass.sum_state = state;
        pass.is_first = is_first_step && i == 0;
        pass.may_be_bare = pass.may_be_bare && pass.is_first;
        pass.next_tile = memory.control + i;
        pass.has_nan = o ? nullptr : has_nan;
        launch_forward(problem.dtype, pass, call.device.multiprocessors(), stream);
    }
    // Sums are looked through by the repair itself.
    const RowContext rows = call.row_context(memory.branches, call.sums ? nullptr : has_nan);
    const OutputArguments outputs{call.whole(), state, o, call.out, call.lse, rows};
    if (has_own_sums)
        write_outputs(problem.dtype, outputs, stream);
    else if (call.sums && call.sums->first && plan.causal())
        repair_sums(problem.dtype, outputs, stream);
    else if (!call.sums && plan.causal())
        repair_outputs(problem.dtype, outputs, stream);
}

std::size_t booked_bytes(const Plan &plan, bool is_step) {
    const std::size_t passes = make_forward_passes(plan).size();
    Workspace ledger;
    book(ledger, plan, passes, !is_step && passes > 1);
    return ledger.used();
}

std::size_t workspace_bytes(const Plan &plan, annulus_pass, const Resources &) {
    return booked_bytes(plan, false);
}

std::size_t step_bytes(const Plan &plan, annulus_pass, const Resources &) {
    return booked_bytes(plan, true);
}

void forward(const Plan &plan, const ForwardTensors &tensors, Workspace &workspace, const Resources &resources) {
    run(GemmCall(plan, tensors, resources), workspace);
}

void forward_step(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums, bool first,
                  Workspace &workspace, const Resources &resources) {
    GemmCall call(plan, tensors, resources);
    call.sums = {static_cast<float2 *>(sums.statistics), static_cast<float *>(sums.o), nullptr, nullptr, first};
    run(call, workspace);
}

void finish_forward(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums,
                    const Resources &resources) {
    gemm_engine.finish_forward(plan, tensors, sums, resources);
}

} // namespace

const Engine fused_engine = {.id = ANNULUS_ENGINE_FUSED,
                             .device = ANNULUS_DEVICE_CUDA,
                             .refusal = refusal,
                             .tensor_refusal = tensor_refusal,
                             .workspace_bytes = workspace_bytes,
                             .forward = forward,
                             .backward = nullptr,
                             .step_bytes = step_bytes,
                             .forward_step = forward_step,
                             .backward_step = nullptr,
                             .finish_forward = finish_forward,
                             .finish_backward = nullptr};

} // namespace annulus
