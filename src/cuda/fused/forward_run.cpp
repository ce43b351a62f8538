// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/forward_run.hpp"

#include "cuda/cuda_error.hpp"
#include "cuda/fused/fused_call.hpp"
#include "cuda/fused/fused_launch.hpp"

#include <cstdint>

namespace annulus {

namespace {

struct ForwardMemory {
    BranchPlan *branches;
    unsigned *control; // a counter of tiles for each pass, and whether there is a NaN
    std::int64_t control_count;
    float2 *state; // [B, H, queries], with sums of the call's own
    float *o;      // [B, H, queries, D]
    float *lse;    // [B, H, queries], for a pass that was cut, where the call takes no LSE
    CurveMemory curve;
};

// Whether the passes, of a call and not of a step, add to sums of its own.
bool has_own_sums(const std::vector<PlannedPass> &passes, bool is_step) {
    return !is_step && needs_sums(passes);
}

ForwardMemory book(Workspace &workspace, const Plan &plan, const std::vector<PlannedPass> &passes, bool is_step) {
    ForwardMemory memory{};
    const Problem &problem = plan.problem();
    memory.branches = book_branches(workspace, plan);
    memory.control_count = static_cast<std::int64_t>(passes.size()) + 1;
    memory.control = workspace.take<unsigned>(memory.control_count);
    const std::int64_t rows = problem.batch * problem.heads * problem.queries.length;
    if (has_own_sums(passes, is_step)) {
        memory.state = workspace.take<float2>(rows);
        memory.o = workspace.take<float>(rows * problem.head_dim);
    }
    if (!passes.empty() && passes.back().adds_to_rows)
        memory.lse = workspace.take<float>(rows);
    memory.curve = book_curve(workspace, plan, passes, false);
    return memory;
}

std::size_t bytes_of(const Plan &plan, const std::vector<PlannedPass> &passes, bool is_step) {
    Workspace ledger;
    book(ledger, plan, passes, is_step);
    return ledger.used();
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
        call.clear_sums(o, rows);
}

} // namespace

std::vector<PlannedPass> make_forward_passes(const Plan &plan, const Resources &resources, bool is_step) {
    const PassShape shape = forward_shape(plan.problem().head_dim);
    const std::vector<PlannedPass> passes = make_passes(plan, PassOf::outputs, shape);
    if (is_step)
        return passes;
    std::vector<PlannedPass> cut = passes;
    cut_pass(cut, plan, PassOf::outputs, shape, resources);
    const bool fits = resources.workspace_limit == 0 || bytes_of(plan, cut, is_step) <= resources.workspace_limit;
    return fits ? cut : passes;
}

std::size_t forward_bytes(const Plan &plan, const Resources &resources, bool is_step) {
    return bytes_of(plan, make_forward_passes(plan, resources, is_step), is_step);
}

void run_forward(const CudaCall &call, Workspace &workspace) {
    const Plan &plan = call.plan;
    const Problem &problem = plan.problem();
    cudaStream_t const stream = call.stream();
    const bool is_step = call.sums.has_value();
    const std::vector<PlannedPass> passes = make_forward_passes(plan, call.resources, is_step);
    const int step = forward_shape(problem.head_dim).step;
    const ForwardMemory memory = book(workspace, plan, passes, is_step);
    if (problem.batch * problem.queries.length == 0)
        return;
    store_branches(call, memory.branches);
    check(cudaMemsetAsync(memory.control, 0, static_cast<std::size_t>(memory.control_count) * sizeof(unsigned), stream),
          "cudaMemsetAsync");
    const std::int64_t queries = problem.queries.length;
    const DeviceRows own_lse{memory.lse, problem.heads * queries, 1, queries, problem.queries.start};
    const DeviceRows &lse = memory.lse && !call.lse.data ? own_lse : call.lse;
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
        ForwardPass pass{};
        static_cast<TilePass &>(pass) = passes[i].tiles;
        RunMatrices keys{call.k, call.v, problem.key_rows(), problem.kv_heads};
        if (passes[i].curve) {
            keys = follow_curve(call, passes[i], memory.curve, keys);
            // Rows of Q and of the sums are those of the call's window.
            pass.query_order = memory.curve.order;
            pass.query_offset = static_cast<int>(passes[i].window.start - problem.queries.start);
        }
        set_run_maps(call, pass, keys, step, pass.k, pass.v);
        pass.heads_of_kv_head = call.heads_per_kv_head();
        pass.head_dim = problem.head_dim;
        pass.scale_log2 = scale_log2(plan);
        pass.inverse_scale_log2 = 1 / pass.scale_log2;
        pass.q = pass_rows(call.q);
        pass.out = pass_rows(call.out);
        pass.lse = pass_rows(lse);
        pass.adds_to_rows = passes[i].adds_to_rows;
        pass.sum_o = o;
        pass.sum_state = state;
        pass.sum_rows = static_cast<int>(problem.queries.length);
        pass.sets_sums = sets;
        pass.skips_empty = (pass.adds_to_rows || (o && !sets)) && !pass.zero_keys;
        pass.finishes_rows = finishes_rows;
        pass.next_tile = memory.control + i;
        pass.has_nan = o && !finishes_rows ? nullptr : has_nan;
        launch_forward(problem.dtype, pass, call.device.multiprocessors(), stream);
        sets = false;
    }
    OutputArguments outputs{call.whole(), state, o, call.out, call.lse, call.row_context(memory.branches, has_nan)};
    if (has_own_sums(passes, is_step))
        write_outputs(problem.dtype, outputs, stream);
    else if (plan.causal() && (!o || finishes_rows))
        repair_outputs(problem.dtype, outputs, stream);
    if (plan.causal() && call.sums && call.sums->first) {
        outputs.context.has_nan = nullptr; // it looks at all sums itself
        repair_sums(problem.dtype, outputs, stream);
    }
}

} // namespace annulus
