// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/backward_run.hpp"

#include "cuda/cuda_error.hpp"
#include "cuda/fused/fused_call.hpp"
#include "cuda/fused/fused_launch.hpp"
#include "cuda/fused/gradient_statistics.hpp"

#include <cstdint>
#include <numbers>

namespace annulus {

namespace {

// The heads of Q that share one of K add up their gradients of it, one after the other.
bool needs_key_sums(const Plan &plan, const BackwardPasses &passes) {
    return needs_sums(passes.keys) || plan.problem().heads != plan.problem().kv_heads;
}

std::int64_t launches_of_keys(const Plan &plan) {
    const Problem &problem = plan.problem();
    return static_cast<std::int64_t>(gradients_of_keys(problem.head_dim).size()) * (problem.heads / problem.kv_heads);
}

struct BackwardMemory {
    BranchPlan *branches;
    unsigned *control; // a counter of tiles for each launch, and whether there is a NaN
    std::int64_t control_count;
    float *lse_log2, *delta; // [B, H, queries]
    GradientSums sums;       // of the call's own
    CurveMemory query_curve, key_curve;
};

BackwardMemory book(Workspace &workspace, const Plan &plan, const BackwardPasses &passes, bool is_step) {
    BackwardMemory memory{};
    const Problem &problem = plan.problem();
    memory.branches = book_branches(workspace, plan);
    memory.control_count = static_cast<std::int64_t>(passes.queries.size()) +
                           static_cast<std::int64_t>(passes.keys.size()) * launches_of_keys(plan) + 1;
    memory.control = workspace.take<unsigned>(memory.control_count);
    const std::int64_t rows = problem.batch * problem.heads * problem.queries.length;
    memory.lse_log2 = workspace.take<float>(rows);
    memory.delta = workspace.take<float>(rows);
    if (!is_step && needs_sums(passes.queries))
        memory.sums.d_q = workspace.take<float>(rows * problem.head_dim);
    if (!is_step && needs_key_sums(plan, passes)) {
        const std::int64_t elements = problem.batch * problem.kv_heads * problem.key_rows() * problem.head_dim;
        memory.sums.d_k = workspace.take<float>(elements);
        memory.sums.d_v = workspace.take<float>(elements);
    }
    memory.query_curve = book_curve(workspace, plan, passes.queries, false);
    memory.key_curve = book_curve(workspace, plan, passes.keys, true);
    return memory;
}

class BackwardRun {
  public:
    BackwardRun(const CudaCall &call, Workspace &workspace)
        : call_(call), problem_(call.plan.problem()), passes_(make_backward_passes(call.plan)),
          memory_(book(workspace, call.plan, passes_, call.sums.has_value())),
          stream_(static_cast<cudaStream_t>(call.resources.stream)), sums_(memory_.sums) {
        if (call.sums)
            sums_ = {call.sums->o, call.sums->d_k, call.sums->d_v};
        if (call.plan.causal())
            has_nan_ = reinterpret_cast<int *>(memory_.control + memory_.control_count - 1);
    }

    void run() {
        store_branches(call_, memory_.branches);
        check(cudaMemsetAsync(memory_.control, 0, static_cast<std::size_t>(memory_.control_count) * sizeof(unsigned),
                              stream_),
              "cudaMemsetAsync");
        find_statistics(problem_.dtype,
                        {call_.out, call_.d_out, call_.lse, call_.d_lse, problem_.batch, problem_.queries.length,
                         problem_.heads, problem_.head_dim, memory_.lse_log2, memory_.delta},
                        stream_);
        find_query_gradients();
        find_key_gradients();
        finish();
    }

  private:
    const CudaCall &call_;
    const Problem &problem_;
    const BackwardPasses passes_;
    const BackwardMemory memory_;
    cudaStream_t const stream_;
    GradientSums sums_; // where gradients are added up; null: they are written at once
    int *has_nan_ = nullptr;
    unsigned launches_ = 0;

    void clear(float *sums, std::int64_t rows) const {
        check(cudaMemsetAsync(sums, 0, static_cast<std::size_t>(rows * problem_.head_dim) * sizeof(float), stream_),
              "cudaMemsetAsync");
    }

    static bool leaves_rows_out(const std::vector<PlannedPass> &passes) {
        return passes.empty() || !passes.front().is_complete;
    }

    BackwardPass common(const PlannedPass &planned, bool sets) {
        BackwardPass pass{};
        static_cast<TilePass &>(pass) = planned.tiles;
        pass.all_heads = problem_.heads;
        pass.heads_of_kv_head = call_.heads_per_kv_head();
        pass.head_dim = problem_.head_dim;
        pass.scale = static_cast<float>(call_.plan.scale());
        pass.scale_log2 = static_cast<float>(call_.plan.scale() * std::numbers::log2e);
        pass.lse_log2 = memory_.lse_log2;
        pass.delta = memory_.delta;
        pass.statistic_rows = static_cast<int>(problem_.queries.length);
        pass.sets_sums = sets;
        return pass;
    }

    void launch(Gradients what, BackwardPass &pass) {
        const float *const sums = what == Gradients::d_v ? pass.sum_d_values : pass.sum_d_scores;
        pass.skips_empty = sums && !pass.sets_sums;
        pass.has_nan = sums ? nullptr : has_nan_;
        pass.next_tile = memory_.control + launches_++;
        launch_backward(problem_.dtype, what, pass, call_.device.multiprocessors(), stream_);
    }

    void find_query_gradients() {
        const std::int64_t rows = problem_.batch * problem_.heads * problem_.queries.length;
        bool sets = !call_.sums || call_.sums->first; // what comes next sets its rows
        if (sets && leaves_rows_out(passes_.queries)) {
            if (sums_.d_q)
                clear(sums_.d_q, rows);
            else
                clear_outputs(problem_.dtype, {call_.whole(), problem_.head_dim, call_.d_q, {}}, stream_);
            sets = false;
        }
        const int step = backward_shape(problem_.head_dim, Gradients::d_q).step;
        for (const PlannedPass &planned : passes_.queries) {
            BackwardPass pass = common(planned, sets);
            RunMatrices keys{call_.k, call_.v, problem_.key_rows(), problem_.kv_heads};
            pass.unit_stride = Divisor(1);
            if (planned.curve) {
                keys = follow_curve(call_, planned, memory_.query_curve, keys);
                pass.unit_order = memory_.query_curve.order;
                pass.unit_offset = static_cast<int>(planned.window.start - problem_.queries.start);
            }
            set_run_maps(call_, pass, keys, step, pass.run_scores, pass.run_values);
            pass.unit_scores = pass_rows(call_.q);
            pass.unit_values = pass_rows(call_.d_out);
            pass.d_scores = pass_rows(call_.d_q);
            pass.sum_d_scores = sums_.d_q;
            pass.sum_rows = static_cast<int>(problem_.queries.length);
            launch(Gradients::d_q, pass);
            sets = false;
        }
    }

    void find_key_gradients() {
        const std::int64_t rows = problem_.batch * problem_.kv_heads * problem_.key_rows();
        bool sets = true;
        if (leaves_rows_out(passes_.keys)) {
            if (sums_.d_k) {
                clear(sums_.d_k, rows);
                clear(sums_.d_v, rows);
            } else { // as many heads as those of queries
                Block keys = call_.whole();
                keys.queries = keys.keys;
                for (const DeviceRows &gradients : {call_.d_k, call_.d_v})
                    clear_outputs(problem_.dtype, {keys, problem_.head_dim, gradients, {}}, stream_);
            }
            sets = false;
        }
        const Gradients first = gradients_of_keys(problem_.head_dim).front();
        const int step = backward_shape(problem_.head_dim, first).step;
        for (const PlannedPass &planned : passes_.keys) {
            BackwardPass pass = common(planned, sets);
            RunMatrices queries{call_.q, call_.d_out, problem_.queries.length, problem_.heads};
            pass.unit_stride = Divisor(static_cast<int>(problem_.key_stride));
            if (planned.curve) {
                queries = follow_curve(call_, planned, memory_.key_curve, queries);
                pass.unit_order = memory_.key_curve.order;
                pass.unit_offset = static_cast<int>(planned.window.start - problem_.keys.start);
                pack_statistics({memory_.key_curve.order, planned.window.start - problem_.queries.start,
                                 planned.window.length, problem_.batch * problem_.heads, problem_.queries.length},
                                memory_.lse_log2, memory_.delta, memory_.key_curve.lse_log2, memory_.key_curve.delta,
                                stream_);
                pass.lse_log2 = memory_.key_curve.lse_log2;
                pass.delta = memory_.key_curve.delta;
                pass.statistic_rows = static_cast<int>(planned.window.length);
            }
            set_run_maps(call_, pass, queries, step, pass.run_scores, pass.run_values);
            pass.unit_scores = pass_rows(call_.k);
            pass.unit_values = pass_rows(call_.v);
            pass.d_scores = pass_rows(call_.d_k);
            pass.d_values = pass_rows(call_.d_v);
            pass.sum_d_scores = sums_.d_k;
            pass.sum_d_values = sums_.d_v;
            pass.sum_rows = static_cast<int>(problem_.key_rows());
            for (pass.first_head = 0; pass.first_head < pass.head_step; ++pass.first_head) {
                for (const Gradients what : gradients_of_keys(problem_.head_dim))
                    launch(what, pass);
                pass.sets_sums = false;
            }
            sets = false;
        }
    }

    // From sums of its own to the call's tensors, and rows that a hidden NaN or infinity has reached once more.
    void finish() const {
        GradientOutputArguments outputs{call_.whole(), sums_,     call_.d_q,
                                        call_.d_k,     call_.d_v, call_.row_context(memory_.branches, has_nan_)};
        if (!call_.sums) {
            if (sums_.d_q || sums_.d_k)
                write_gradients(problem_.dtype, outputs, stream_);
            if (has_nan_)
                repair_gradients(problem_.dtype, outputs, true, true, stream_);
        } else if (call_.sums->first && has_nan_) {
            outputs.context.has_nan = nullptr; // it looks at all sums itself
            repair_gradient_sums(problem_.dtype, outputs, stream_);
        }
    }
};

} // namespace

BackwardPasses make_backward_passes(const Plan &plan) {
    const int head_dim = plan.problem().head_dim;
    return {make_passes(plan, PassOf::query_gradients, backward_shape(head_dim, Gradients::d_q)),
            make_passes(plan, PassOf::key_gradients, backward_shape(head_dim, gradients_of_keys(head_dim).front()))};
}

std::size_t backward_bytes(const Plan &plan, bool is_step) {
    Workspace ledger;
    book(ledger, plan, make_backward_passes(plan), is_step);
    return ledger.used();
}

void run_backward(const CudaCall &call, Workspace &workspace) {
    BackwardRun(call, workspace).run();
}

} // namespace annulus
