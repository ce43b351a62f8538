// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/forward_run.hpp"

#include "cuda/device/cuda_error.hpp"
#include "cuda/fused/fused_call.hpp"
#include "cuda/fused/sm90/launch.hpp"

#include <cstdint>

namespace annulus {

namespace {

struct ForwardMemory {
    BranchPlan *branches;
    unsigned *control; // a counter of tiles for each launch, and whether there is a NaN
    std::int64_t control_count;
    float2 *state; // [B, H, queries], with sums of the call's own; those of a cut pass of some heads at a time
    float *o;      // [B, H, queries, D]
    CurveMemory curve;
};

// Whether the passes, of a call and not of a step, add to sums of its own.
bool has_own_sums(const std::vector<PlannedGrid> &passes, bool is_step) {
    return !is_step && needs_sums(passes);
}

ForwardMemory book(Workspace &workspace, const Plan &plan, const ForwardGrids &passes, bool is_step) {
    ForwardMemory memory{};
    const Problem &problem = plan.problem();
    memory.branches = book_branches(workspace, plan);
    memory.control_count = launches_of(passes.passes, passes.parts, problem.batch, problem.heads) + 1;
    memory.control = workspace.take<unsigned>(memory.control_count);
    if (passes.parts || has_own_sums(passes.passes, is_step)) {
        const std::int64_t heads = passes.parts ? passes.parts->count() : problem.batch * problem.heads;
        memory.state = workspace.take<float2>(heads * problem.queries.length);
        memory.o = workspace.take<float>(heads * problem.queries.length * problem.head_dim);
    }
    memory.curve = book_curve(workspace, plan, passes.passes, false);
    return memory;
}

std::size_t bytes_of(const Plan &plan, const ForwardGrids &passes, bool is_step) {
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

ForwardGrids make_forward_passes(const Plan &plan, const Resources &resources, bool is_step) {
    const Problem &problem = plan.problem();
    const KernelShape shape = forward_shape(problem.head_dim);
    const ForwardGrids whole{make_passes(plan, GridOf::outputs, shape), std::nullopt};
    if (is_step)
        return whole;
    ForwardGrids cut = whole;
    cut_pass(cut.passes, plan, GridOf::outputs, shape, resources);
    if (!is_cut(cut.passes))
        return whole;
    const auto bytes_of_head = static_cast<std::size_t>(problem.queries.length) *
                               (sizeof(float2) + static_cast<std::size_t>(problem.head_dim) * sizeof(float));
    cut.parts =
        plan_sums(problem.batch, problem.heads, bytes_of_head, room_to_keep(resources, bytes_of(plan, whole, is_step)));
    const std::size_t limit = resources.workspace_limit; // counters may be what is too much
    if (!cut.parts || (limit != 0 && bytes_of(plan, cut, is_step) > limit))
        return whole;
    return cut;
}

std::size_t forward_bytes(const Plan &plan, const Resources &resources, bool is_step) {
    return bytes_of(plan, make_forward_passes(plan, resources, is_step), is_step);
}

void run_forward(const CudaCall &call, Workspace &workspace) {
    const Plan &plan = call.plan;
    const Problem &problem = plan.problem();
    cudaStream_t const stream = call.stream();
    const bool is_step = call.sums.has_value();
    const ForwardGrids planned = make_forward_passes(plan, call.resources, is_step);
    const std::vector<PlannedGrid> &passes = planned.passes;
    const int step = forward_shape(problem.head_dim).step;
    const ForwardMemory memory = book(workspace, plan, planned, is_step);
    if (problem.batch * problem.queries.length == 0)
        return;
    store_branches(call, memory.branches);
    check(cudaMemsetAsync(memory.control, 0, static_cast<std::size_t>(memory.control_count) * sizeof(unsigned), stream),
          "cudaMemsetAsync");
    float2 *const state = call.sums ? call.sums->state : memory.state;
    float *const o = call.sums ? call.sums->o : memory.o;
    bool sets = !call.sums || call.sums->first; // what comes next sets its rows
    const bool finishes = finishes_rows(call, passes);
    if (sets && !planned.parts && (passes.empty() || !passes.front().is_complete)) {
        clear(call, finishes, state, o, stream);
        sets = finishes;
    }
    int *const has_nan = plan.causal() ? reinterpret_cast<int *>(memory.control + memory.control_count - 1) : nullptr;
    unsigned launches = 0;
    const auto make_pass = [&](const PlannedGrid &of_branches) {
        ForwardParams pass{};
        static_cast<TileGrid &>(pass) = of_branches.tiles;
        RunMatrices keys{call.k, call.v, problem.key_rows(), problem.kv_heads};
        if (of_branches.curve) {
            keys = follow_curve(call, of_branches, memory.curve, keys);
            // Rows of Q and of the sums are those of the call's window.
            pass.query_order = memory.curve.order;
            pass.query_offset = static_cast<int>(of_branches.window.start - problem.queries.start);
        }
        set_run_maps(call, pass, keys, step, pass.k, pass.v);
        pass.heads_of_kv_head = call.heads_per_kv_head();
        pass.head_dim = problem.head_dim;
        pass.scale_log2 = scale_log2(plan);
        pass.inverse_scale_log2 = 1 / pass.scale_log2;
        pass.q = pass_rows(call.q);
        pass.out = pass_rows(call.out);
        pass.lse = pass_rows(call.lse);
        pass.sum_o = o;
        pass.sum_state = state;
        pass.all_heads = problem.heads;
        pass.sum_rows = static_cast<int>(problem.queries.length);
        pass.has_nan = has_nan;
        return pass;
    };
    const auto launch = [&](ForwardParams &pass) {
        pass.next_tile = memory.control + launches++;
        launch_forward(problem.dtype, pass, call.device.multiprocessors(), stream);
    };
    if (planned.parts) {
        for_cut(*planned.parts, static_cast<int>(problem.batch), problem.heads, make_pass(passes.front()),
                make_pass(passes.back()), launch);
    } else {
        for (const PlannedGrid &of_branches : passes) {
            ForwardParams pass = make_pass(of_branches);
            pass.sets_sums = sets;
            pass.skips_empty = o && !sets && !pass.zero_keys;
            if (finishes)
                finish_rows(pass, GridOf::outputs);
            launch(pass);
            sets = false;
        }
    }
    OutputArguments outputs{call.whole(), state, o, call.out, call.lse, call.row_context(memory.branches, has_nan)};
    if (planned.parts)
        outputs.state = nullptr; // all rows have O and LSE
    if (has_own_sums(passes, is_step))
        write_outputs(problem.dtype, outputs, stream);
    else if (plan.causal() && (!o || planned.parts || finishes))
        repair_outputs(problem.dtype, outputs, stream);
    if (plan.causal() && call.sums && call.sums->first)
        repair_sums(problem.dtype, outputs, stream);
}

} // namespace annulus
