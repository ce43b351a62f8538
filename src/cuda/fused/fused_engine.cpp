// SPDX-License-Identifier: Apache-2.0
// The `fused` engine: one kernel for all branches (forward.cuh), on GPUs of compute capability 9.0.
//
// Branches whose dilations do not divide one another, whose query rules do not mix, or that follow a curve take a pass
// each; passes, like the steps of a ring, add to sums in float32, whose form is that of the gemm engine.
#include "core/dtype_number.hpp"
#include "core/error.hpp"
#include "cuda/cuda_call.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/fused/curve_order.hpp"
#include "cuda/fused/forward_plan.hpp"
#include "engine/engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace annulus {

namespace {

struct CurveMemory {
    int *residues, *order; // [window]
    void *k, *v;           // [B, window, G, D]
};

struct FusedMemory {
    BranchPlan *branches; // causal, for rows that are computed again
    unsigned *control;    // a counter of tiles for each pass, and whether there is a NaN
    std::int64_t control_count;
    float2 *state;     // [B, H, queries], with sums of the call's own
    float *o;          // [B, H, queries, D]
    CurveMemory curve; // of the passes that follow an order along a curve, one after the other
};

// Several passes, and those along a curve, add to sums.
bool needs_sums(const std::vector<PlannedPass> &passes) {
    return passes.size() > 1 || (!passes.empty() && passes.front().curve);
}

FusedMemory book(Workspace &workspace, const Plan &plan, const std::vector<PlannedPass> &passes, bool has_sums) {
    FusedMemory memory{};
    const Problem &problem = plan.problem();
    if (plan.causal())
        memory.branches = reinterpret_cast<BranchPlan *>(
            workspace.take<std::byte>(static_cast<std::int64_t>(plan.branches().size() * sizeof(BranchPlan))));
    memory.control_count = static_cast<std::int64_t>(passes.size()) + 1;
    memory.control = workspace.take<unsigned>(memory.control_count);
    if (has_sums) {
        const std::int64_t rows = problem.batch * problem.heads * problem.queries.length;
        memory.state = workspace.take<float2>(rows);
        memory.o = workspace.take<float>(rows * problem.head_dim);
    }
    std::int64_t longest = 0;
    for (const PlannedPass &planned : passes)
        longest = std::max(longest, planned.window.length);
    const std::int64_t row_bytes = std::int64_t{problem.kv_heads} * problem.head_dim * dtype_bytes(problem.dtype);
    memory.curve.residues = workspace.take<int>(longest);
    memory.curve.order = workspace.take<int>(longest);
    memory.curve.k = workspace.take<std::byte>(problem.batch * longest * row_bytes);
    memory.curve.v = workspace.take<std::byte>(problem.batch * longest * row_bytes);
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
    // In float32, as the kernel has it, with its inverse.
    const auto scale_log2 = static_cast<float>(plan.scale() * std::numbers::log2e);
    if (!std::isnormal(scale_log2) || !std::isnormal(1 / scale_log2))
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
                return "a stride of k or v is 0, or 2^40 bytes or more";
    return nullptr;
}

PassRows pass_rows(const DeviceRows &rows) {
    return {rows.data, rows.batch, rows.row, rows.head, static_cast<int>(rows.start)};
}

void set_maps(ForwardPass &pass, const CudaCall &call, const DeviceRows &k, const DeviceRows &v, std::int64_t rows) {
    const Problem &problem = call.plan.problem();
    const std::int64_t box_rows = forward_shape(problem.head_dim).step;
    for (int i = 0; i < pass.stride_count; ++i) {
        const std::int64_t stride = pass.strides[i].value, more = pass.longer_residues[i];
        const auto encode = [&](const DeviceRows &tensor, std::int64_t count, std::int64_t residues, CUtensorMap &map) {
            if (count > 0 && residues > 0)
                map = call.device.tensor_maps().get({tensor.data, problem.dtype, problem.head_dim, problem.kv_heads,
                                                     problem.batch, count, residues, tensor.row, tensor.head,
                                                     tensor.batch, stride, box_rows});
        };
        encode(k, rows / stride + 1, more, pass.k[2 * i]);
        encode(k, rows / stride, stride, pass.k[2 * i + 1]);
        encode(v, rows / stride + 1, more, pass.v[2 * i]);
        encode(v, rows / stride, stride, pass.v[2 * i + 1]);
    }
}

// K and V in the order of a curve; the maps of those.
void follow_curve(const CudaCall &call, PlannedPass &planned, const CurveMemory &memory, cudaStream_t stream) {
    const Problem &problem = call.plan.problem();
    const Window &window = planned.window;
    find_curve_order(*planned.curve, window, memory.residues, memory.order, stream);
    const auto pack = [&](const DeviceRows &rows, void *target) {
        pack_in_order(rows, window, memory.order, problem.batch, problem.kv_heads, problem.head_dim, target, stream);
        const std::int64_t row = std::int64_t{problem.kv_heads} * problem.head_dim;
        return DeviceRows{target, window.length * row, row, problem.head_dim, window.start};
    };
    const DeviceRows k = pack(call.k, memory.k), v = pack(call.v, memory.v);
    set_maps(planned.pass, call, k, v, window.length);
    // Rows of Q and of the sums are those of the call's window.
    planned.pass.query_order = memory.order;
    planned.pass.query_offset = static_cast<int>(window.start - problem.queries.start);
}

// What queries without keys get: in the call's tensors, of which the state is to tell if there is one; or in the sums.
void clear(const CudaCall &call, bool finishes_rows, float2 *state, float *o, cudaStream_t stream) {
    const Problem &problem = call.plan.problem();
    const std::int64_t rows = problem.batch * problem.heads * problem.queries.length;
    if (!o || finishes_rows)
        clear_outputs(problem.dtype, {call.whole(), problem.head_dim, call.out, call.lse}, stream);
    if (o)
        fill_state(state, rows, finishes_rows ? finished_state() : empty_state(), stream);
    if (o && !finishes_rows)
        check(cudaMemsetAsync(o, 0, static_cast<std::size_t>(rows * problem.head_dim) * sizeof(float), stream),
              "cudaMemsetAsync");
}

// Runs all passes; with `sums` into these, else into the call's tensors, by way of sums of its own where it needs any.
void run(const CudaCall &call, Workspace &workspace) {
    const Plan &plan = call.plan;
    const Problem &problem = plan.problem();
    auto *const stream = static_cast<cudaStream_t>(call.resources.stream);
    std::vector<PlannedPass> passes = make_forward_passes(plan);
    const bool has_own_sums = !call.sums && needs_sums(passes);
    const FusedMemory memory = book(workspace, plan, passes, has_own_sums);
    if (problem.batch * problem.queries.length == 0)
        return;
    if (memory.branches)
        store_branches(plan.branches().data(), static_cast<std::int32_t>(plan.branches().size()), memory.branches,
                       stream);
    check(cudaMemsetAsync(memory.control, 0, static_cast<std::size_t>(memory.control_count) * sizeof(unsigned), stream),
          "cudaMemsetAsync");
    float2 *const state = call.sums ? call.sums->state : memory.state;
    float *const o = call.sums ? call.sums->o : memory.o;
    bool sets = !call.sums || call.sums->first; // what comes next sets its rows
    // One pass over all keys that a rank has itself: only queries with keys of other ranks need sums.
    const bool finishes_rows = call.sums && call.sums->first && passes.size() == 1 && !passes.front().curve;
    if (sets && (passes.empty() || !passes.front().is_complete)) {
        clear(call, finishes_rows, state, o, stream);
        sets = finishes_rows;
    }
    int *const has_nan = plan.causal() ? reinterpret_cast<int *>(memory.control + passes.size()) : nullptr;
    for (std::size_t i = 0; i < passes.size(); ++i) {
        ForwardPass &pass = passes[i].pass;
        if (passes[i].curve)
            follow_curve(call, passes[i], memory.curve, stream);
        else
            set_maps(pass, call, call.k, call.v, problem.key_rows());
        pass.q = pass_rows(call.q);
        pass.out = pass_rows(call.out);
        pass.lse = pass_rows(call.lse);
        pass.sum_o = o;
        pass.sum_state = state;
        pass.sum_rows = static_cast<int>(problem.queries.length);
        pass.sets_sums = sets;
        pass.finishes_rows = finishes_rows;
        pass.next_tile = memory.control + i;
        pass.has_nan = o && !finishes_rows ? nullptr : has_nan;
        launch_forward(problem.dtype, pass, call.device.multiprocessors(), stream);
        sets = false;
    }
    OutputArguments outputs{call.whole(), state, o, call.out, call.lse, call.row_context(memory.branches, has_nan)};
    if (has_own_sums)
        write_outputs(problem.dtype, outputs, stream);
    else if (plan.causal() && (!o || finishes_rows))
        repair_outputs(problem.dtype, outputs, stream);
    if (plan.causal() && call.sums && call.sums->first) {
        outputs.context.has_nan = nullptr; // it looks at all sums itself
        repair_sums(problem.dtype, outputs, stream);
    }
}

std::size_t booked_bytes(const Plan &plan, bool is_step) {
    const std::vector<PlannedPass> passes = make_forward_passes(plan);
    Workspace ledger;
    book(ledger, plan, passes, !is_step && needs_sums(passes));
    return ledger.used();
}

std::size_t workspace_bytes(const Plan &plan, annulus_pass, const Resources &) {
    return booked_bytes(plan, false);
}

std::size_t step_bytes(const Plan &plan, annulus_pass, const Resources &) {
    return booked_bytes(plan, true);
}

void forward(const Plan &plan, const ForwardTensors &tensors, Workspace &workspace, const Resources &resources) {
    run(CudaCall(plan, tensors, resources), workspace);
}

void forward_step(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums, bool first,
                  Workspace &workspace, const Resources &resources) {
    CudaCall call(plan, tensors, resources);
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
