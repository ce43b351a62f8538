// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/backward_run.hpp"

#include "cuda/device/cuda_error.hpp"
#include "cuda/fused/fused_call.hpp"
#include "cuda/fused/lse_delta.hpp"
#include "cuda/fused/sm90/launch.hpp"
#include "cuda/results/summed_rows.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace annulus {

namespace {

// The heads of Q that share one of K add up their gradients of it, one after the other.
bool needs_key_sums(const Plan &plan, const BackwardGrids &passes) {
    return needs_sums(passes.keys) || plan.problem().heads != plan.problem().kv_heads;
}

std::int64_t launches_of_keys(const Plan &plan) {
    const Problem &problem = plan.problem();
    return static_cast<std::int64_t>(gradients_of_keys(problem.head_dim).size()) * (problem.heads / problem.kv_heads);
}

// To rows of dK and dV the heads of Q that share one of K would still add.
bool finishes_keys(const CudaCall &call, const BackwardGrids &passes) {
    return call.heads_per_kv_head() == 1 && finishes_rows(call, passes.keys);
}

// How dS is kept, where it is: of so many batch entries, heads of K and segments at a time.
struct KeptParts {
    int batches, heads, segments;
    int all_segments;
    StoredDs scores; // of one head and segment

    std::size_t bytes() const {
        return static_cast<std::size_t>(std::int64_t{batches} * heads * segments * scores.images_of_segment()) *
               StoredDs::image_bytes;
    }
    std::int64_t count(const Problem &problem) const {
        return divide_up(problem.batch, batches) * divide_up(problem.kv_heads, heads) *
               divide_up(all_segments, segments);
    }
};

// Images are whole where there is one branch, whose classes have a multiple of 64 members in each segment; all queries
// and keys of the segments must be there.
bool can_keep_scores(const Problem &problem, const BackwardGrids &passes) {
    if (!keeps_scores(problem.head_dim) || passes.queries.size() != 1 || passes.keys.size() != 1 ||
        passes.keys.front().curve)
        return false;
    const TileGrid &tiles = passes.keys.front().tiles;
    const GridBranch &branch = tiles.branches[0];
    const Window &window = problem.queries;
    const std::int64_t length = branch.length.value, whole = std::int64_t{unit_rows} * branch.dilation.value;
    return tiles.branch_count == 1 && branch.unit_rule != ANNULUS_QUERY_RESIDUE &&
           branch.run_dilation.value == branch.dilation.value && window.start == problem.keys.start &&
           window.length == problem.keys.length && problem.key_stride == 1 && window.start % length == 0 &&
           (window.end() % length == 0 || window.end() == problem.sequence_length) && length % whole == 0 &&
           window.length % whole == 0;
}

// None where dS cannot be kept in so many bytes.
std::optional<KeptParts> plan_kept_scores(const Problem &problem, const BackwardGrids &passes, std::size_t bytes) {
    if (!can_keep_scores(problem, passes))
        return std::nullopt;
    const TileGrid &tiles = passes.keys.front().tiles;
    const GridBranch &branch = tiles.branches[0];
    KeptParts parts{1, 1, 1, tiles.blocks, {}};
    parts.scores.units_of_segment = branch.length.value / branch.dilation.value / unit_rows;
    parts.scores.causal = tiles.causal;
    std::int64_t room = static_cast<std::int64_t>(bytes / parts.bytes());
    if (room == 0)
        return std::nullopt;
    const auto take = [&](std::int64_t all) { // in parts of equal size
        const std::int64_t most = std::clamp<std::int64_t>(room, 1, all);
        room /= all;
        return static_cast<int>(divide_up(all, divide_up(all, most)));
    };
    parts.segments = take(parts.all_segments);
    parts.heads = take(problem.kv_heads);
    parts.batches = take(problem.batch);
    return parts;
}

// Whether tiles that causality makes differ are so few for each multiprocessor that the longest ones must come first.
// Where they are many, those of a segment stay together, whose rows the L2 then keeps.
bool go_by_length(const TileGrid &pass, int multiprocessors) {
    return pass.causal && pass.tiles < 8 * static_cast<unsigned>(multiprocessors);
}

struct BackwardMemory {
    BranchPlan *branches;
    unsigned *control; // a counter of tiles for each launch, and whether there is a NaN
    std::int64_t control_count;
    float *lse_log2, *delta; // [B, H, queries]
    GradientSums sums;       // of the call's own
    CurveMemory query_curve, key_curve;
    std::optional<KeptParts> kept;
    std::uint8_t *images;
    float *part_sums; // of a cut pass, of some heads at a time: dQ; or dK, and dV
};

// All but what is kept of dS.
BackwardMemory book_rest(Workspace &workspace, const Plan &plan, const BackwardGrids &passes, bool is_step) {
    BackwardMemory memory{};
    const Problem &problem = plan.problem();
    // First, where all steps of a call have what the first one finds.
    const std::int64_t rows = problem.batch * problem.heads * problem.queries.length;
    memory.lse_log2 = workspace.take<float>(rows);
    memory.delta = workspace.take<float>(rows);
    memory.branches = book_branches(workspace, plan);
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

BackwardMemory book(Workspace &workspace, const Plan &plan, const BackwardGrids &passes, const Resources &resources,
                    bool is_step) {
    const Problem &problem = plan.problem();
    BackwardMemory memory = book_rest(workspace, plan, passes, is_step);
    const auto counters = [&] {
        const std::int64_t parts = memory.kept ? memory.kept->count(problem) : 1;
        return launches_of(passes.queries, passes.query_parts, problem.batch, problem.heads) +
               launches_of(passes.keys, passes.key_parts, problem.batch, problem.kv_heads) * launches_of_keys(plan) *
                   parts +
               1;
    };
    if (const std::size_t limit = resources.workspace_limit; !is_step) {
        const std::size_t used = workspace.used();
        memory.kept = plan_kept_scores(problem, passes, room_to_keep(resources, used));
        if (memory.kept && limit != 0) { // the counters may be what is too much
            Workspace left;
            left.take<unsigned>(counters());
            left.take<std::uint8_t>(static_cast<std::int64_t>(memory.kept->bytes()));
            if (used + left.used() > limit)
                memory.kept.reset();
        }
    }
    memory.control_count = counters();
    memory.control = workspace.take<unsigned>(memory.control_count);
    if (memory.kept)
        memory.images = workspace.take<std::uint8_t>(static_cast<std::int64_t>(memory.kept->bytes()));
    const std::int64_t of_queries = passes.query_parts ? passes.query_parts->count() * problem.queries.length : 0;
    const std::int64_t of_keys = passes.key_parts ? 2 * passes.key_parts->count() * problem.key_rows() : 0;
    memory.part_sums = workspace.take<float>(std::max(of_queries, of_keys) * problem.head_dim);
    return memory;
}

class BackwardRun {
  public:
    BackwardRun(const CudaCall &call, Workspace &workspace)
        : call_(call), problem_(call.plan.problem()),
          passes_(make_backward_passes(call.plan, call.resources, call.sums.has_value())),
          memory_(book(workspace, call.plan, passes_, call.resources, call.sums.has_value())), stream_(call.stream()),
          sums_(memory_.sums), finishes_queries_(finishes_rows(call, passes_.queries)),
          finishes_keys_(finishes_keys(call, passes_)) {
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
        if (!call_.sums || call_.sums->first)
            find_statistics(problem_.dtype,
                            {call_.out, call_.d_out, call_.lse, call_.d_lse, problem_.batch, problem_.queries.length,
                             problem_.heads, problem_.head_dim, memory_.lse_log2, memory_.delta},
                            stream_);
        if (memory_.kept) {
            find_gradients_keeping_scores();
        } else {
            find_query_gradients();
            find_key_gradients();
        }
        finish();
    }

  private:
    const CudaCall &call_;
    const Problem &problem_;
    const BackwardGrids passes_;
    const BackwardMemory memory_;
    cudaStream_t const stream_;
    GradientSums sums_; // where gradients are added up; null: they are written at once
    const bool finishes_queries_, finishes_keys_;
    int *has_nan_ = nullptr;
    unsigned launches_ = 0;

    static bool leaves_rows_out(const std::vector<PlannedGrid> &passes) {
        return passes.empty() || !(passes.front().is_complete || is_cut(passes));
    }

    BackwardParams common(const PlannedGrid &planned, bool sets) const {
        BackwardParams pass{};
        static_cast<TileGrid &>(pass) = planned.tiles;
        pass.all_heads = problem_.heads;
        pass.heads_of_kv_head = call_.heads_per_kv_head();
        pass.head_dim = problem_.head_dim;
        pass.scale = static_cast<float>(call_.plan.scale());
        pass.scale_log2 = scale_log2(call_.plan);
        pass.lse_log2 = memory_.lse_log2;
        pass.delta = memory_.delta;
        pass.statistic_rows = static_cast<int>(problem_.queries.length);
        pass.sets_sums = sets;
        pass.has_nan = has_nan_;
        return pass;
    }

    void launch(Gradients what, BackwardParams &pass) {
        const float *const sums = what == Gradients::d_v ? pass.sum_d_values : pass.sum_d_scores;
        pass.skips_empty = sums && !pass.sets_sums;
        if (what != Gradients::d_q_of_kept_d_s)
            pass.next_tile = memory_.control + launches_++;
        launch_backward(problem_.dtype, what, pass, call_.device.multiprocessors(), stream_);
    }

    // Whether what comes next sets dQ.
    bool prepare_query_gradients() const {
        const bool sets = !call_.sums || call_.sums->first;
        if (!sets || !leaves_rows_out(passes_.queries))
            return sets;
        if (sums_.d_q && !finishes_queries_)
            call_.clear_sums(sums_.d_q, problem_.batch * problem_.heads * problem_.queries.length);
        else
            clear_outputs(problem_.dtype, {call_.whole(), problem_.head_dim, call_.d_q, {}}, stream_);
        return finishes_queries_;
    }

    // Whether what comes next sets dK and dV.
    bool prepare_key_gradients() const {
        if (!leaves_rows_out(passes_.keys))
            return true;
        if (sums_.d_k && !finishes_keys_) {
            const std::int64_t rows = problem_.batch * problem_.kv_heads * problem_.key_rows();
            call_.clear_sums(sums_.d_k, rows);
            call_.clear_sums(sums_.d_v, rows);
        } else { // as many heads as those of queries
            Block keys = call_.whole();
            keys.queries = keys.keys;
            for (const DeviceRows &gradients : {call_.d_k, call_.d_v})
                clear_outputs(problem_.dtype, {keys, problem_.head_dim, gradients, {}}, stream_);
        }
        return finishes_keys_;
    }

    BackwardParams query_pass(const PlannedGrid &planned, bool sets) const {
        BackwardParams pass = common(planned, sets);
        RunMatrices keys{call_.k, call_.v, problem_.key_rows(), problem_.kv_heads};
        pass.unit_stride = FastDivmod(1);
        if (planned.curve) {
            keys = follow_curve(call_, planned, memory_.query_curve, keys);
            pass.unit_order = memory_.query_curve.order;
            pass.unit_offset = static_cast<int>(planned.window.start - problem_.queries.start);
        }
        const int step = backward_shape(problem_.dtype, problem_.head_dim, Gradients::d_q).step;
        set_run_maps(call_, pass, keys, step, pass.run_scores, pass.run_values);
        pass.unit_scores = pass_rows(call_.q);
        pass.unit_values = pass_rows(call_.d_out);
        pass.d_scores = pass_rows(call_.d_q);
        pass.sum_d_scores = sums_.d_q;
        pass.sum_rows = static_cast<int>(problem_.queries.length);
        if (finishes_queries_)
            finish_rows(pass, GridOf::query_gradients);
        return pass;
    }

    BackwardParams key_pass(const PlannedGrid &planned, bool sets) const {
        BackwardParams pass = common(planned, sets);
        RunMatrices queries{call_.q, call_.d_out, problem_.queries.length, problem_.heads};
        pass.unit_stride = FastDivmod(static_cast<int>(problem_.key_stride));
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
        const Gradients first = gradients_of_keys(problem_.head_dim).front();
        const int step = backward_shape(problem_.dtype, problem_.head_dim, first).step;
        set_run_maps(call_, pass, queries, step, pass.run_scores, pass.run_values);
        pass.unit_scores = pass_rows(call_.k);
        pass.unit_values = pass_rows(call_.v);
        pass.d_scores = pass_rows(call_.d_k);
        pass.d_values = pass_rows(call_.d_v);
        pass.sum_d_scores = sums_.d_k;
        pass.sum_d_values = sums_.d_v;
        pass.sum_rows = static_cast<int>(problem_.key_rows());
        if (finishes_keys_)
            finish_rows(pass, GridOf::key_gradients);
        return pass;
    }

    void find_query_gradients() {
        if (passes_.query_parts) {
            const auto make_pass = [&](const PlannedGrid &planned) {
                BackwardParams pass = query_pass(planned, true);
                pass.sum_d_scores = memory_.part_sums;
                return pass;
            };
            return for_cut(*passes_.query_parts, static_cast<int>(problem_.batch), problem_.heads,
                           make_pass(passes_.queries.front()), make_pass(passes_.queries.back()),
                           [&](BackwardParams &pass) { launch(Gradients::d_q, pass); });
        }
        bool sets = prepare_query_gradients();
        for (const PlannedGrid &planned : passes_.queries) {
            BackwardParams pass = query_pass(planned, sets);
            launch(Gradients::d_q, pass);
            sets = false;
        }
    }

    void find_key_gradients() {
        if (passes_.key_parts) { // no heads share those of K
            const auto make_pass = [&](const PlannedGrid &planned) {
                BackwardParams pass = key_pass(planned, true);
                pass.sum_d_scores = memory_.part_sums;
                pass.sum_d_values =
                    memory_.part_sums + passes_.key_parts->count() * problem_.key_rows() * problem_.head_dim;
                return pass;
            };
            return for_cut(*passes_.key_parts, static_cast<int>(problem_.batch), problem_.heads,
                           make_pass(passes_.keys.front()), make_pass(passes_.keys.back()), [&](BackwardParams &pass) {
                               for (const Gradients what : gradients_of_keys(problem_.head_dim))
                                   launch(what, pass);
                           });
        }
        bool sets = prepare_key_gradients();
        for (const PlannedGrid &planned : passes_.keys) {
            BackwardParams pass = key_pass(planned, sets);
            for (pass.first_head = 0; pass.first_head < pass.head_step; ++pass.first_head) {
                for (const Gradients what : gradients_of_keys(problem_.head_dim))
                    launch(what, pass);
                pass.sets_sums = false;
            }
            sets = false;
        }
    }

    void find_gradients_keeping_scores() {
        const KeptParts &parts = *memory_.kept;
        BackwardParams queries = query_pass(passes_.queries.front(), prepare_query_gradients());
        BackwardParams keys = key_pass(passes_.keys.front(), prepare_key_gradients());
        const bool sets = keys.sets_sums;
        const int first_segment = keys.first_block, heads = keys.heads.value, group = keys.head_step;
        const auto do_part = [&](int first_batch, int batches, int first_head, int part_heads, int segment,
                                 int segments) {
            restrict_pass(keys,
                          {first_batch, batches, first_head * group, part_heads, first_segment + segment, segments});
            keys.by_length = go_by_length(keys, call_.device.multiprocessors());
            for (int member = 0; member < group; ++member, ++keys.first_head) {
                keys.kept = parts.scores;
                keys.kept.images = memory_.images;
                keys.kept.first_batch = first_batch;
                keys.kept.batches = batches;
                keys.kept.first_head = keys.first_head;
                keys.kept.head_step = group;
                keys.kept.heads = part_heads;
                keys.kept.first_segment = keys.first_block;
                keys.kept.segments = segments;
                keys.sets_sums = sets && member == 0;
                launch(Gradients::d_k_and_d_v_keeping_d_s, keys);
                queries.kept = keys.kept;
                queries.tiles =
                    static_cast<unsigned>(divide_up(parts.scores.units_of_segment, StoredDs::units_of_tile) * segments *
                                          part_heads * batches);
                queries.by_length = go_by_length(queries, call_.device.multiprocessors());
                launch(Gradients::d_q_of_kept_d_s, queries);
            }
        };
        for_parts(static_cast<int>(problem_.batch), parts.batches, [&](int first_batch, int batches) {
            for_parts(heads, parts.heads, [&](int first_head, int part_heads) {
                for_parts(parts.all_segments, parts.segments, [&](int segment, int segments) {
                    do_part(first_batch, batches, first_head, part_heads, segment, segments);
                });
            });
        });
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
            // Rows that are not where they are looked for are unset there, and stay unused.
            repair_gradient_sums(problem_.dtype, outputs, stream_);
            repair_gradients(problem_.dtype, outputs, finishes_queries_, finishes_keys_, stream_);
        }
    }
};

} // namespace

BackwardGrids make_backward_passes(const Plan &plan, const Resources &resources, bool is_step) {
    const Problem &problem = plan.problem();
    const auto shape_of = [&](Gradients what) { return backward_shape(problem.dtype, problem.head_dim, what); };
    const KernelShape query_shape = shape_of(Gradients::d_q);
    const KernelShape key_shape = shape_of(gradients_of_keys(problem.head_dim).front());
    const BackwardGrids whole{make_passes(plan, GridOf::query_gradients, query_shape),
                              make_passes(plan, GridOf::key_gradients, key_shape), std::nullopt, std::nullopt};
    if (is_step)
        return whole;
    BackwardGrids cut = whole;
    cut_pass(cut.queries, plan, GridOf::query_gradients, query_shape, resources);
    if (problem.heads == problem.kv_heads) // else the heads that share one of K add to its sums
        cut_pass(cut.keys, plan, GridOf::key_gradients, key_shape, resources);
    const auto bytes_of = [&](const BackwardGrids &passes) {
        Workspace ledger;
        book(ledger, plan, passes, resources, is_step);
        return ledger.used();
    };
    const bool is_any_cut = is_cut(cut.queries) || is_cut(cut.keys);
    const std::size_t room = is_any_cut ? room_to_keep(resources, bytes_of(whole)) : 0;
    const std::size_t row_bytes = static_cast<std::size_t>(problem.head_dim) * sizeof(float);
    const auto plan_parts = [&](std::vector<PlannedGrid> &passes, const std::vector<PlannedGrid> &uncut,
                                std::size_t bytes_of_head) {
        std::optional<SumParts> parts;
        if (is_cut(passes))
            parts = plan_sums(problem.batch, problem.heads, bytes_of_head, room);
        if (!parts)
            passes = uncut;
        return parts;
    };
    cut.query_parts =
        plan_parts(cut.queries, whole.queries, static_cast<std::size_t>(problem.queries.length) * row_bytes);
    cut.key_parts = plan_parts(cut.keys, whole.keys, 2 * static_cast<std::size_t>(problem.key_rows()) * row_bytes);
    const std::size_t limit = resources.workspace_limit; // counters may be what is too much
    return limit != 0 && is_any_cut && bytes_of(cut) > limit ? whole : cut;
}

std::size_t backward_bytes(const Plan &plan, const Resources &resources, bool is_step) {
    Workspace ledger;
    book(ledger, plan, make_backward_passes(plan, resources, is_step), resources, is_step);
    return ledger.used();
}

void run_backward(const CudaCall &call, Workspace &workspace) {
    BackwardRun(call, workspace).run();
}

void write_summed_gradients(const CudaCall &call) {
    const Problem &problem = call.plan.problem();
    const BackwardGrids passes = make_backward_passes(call.plan, call.resources, true);
    GradientSums whole{call.sums->o, call.sums->d_k, call.sums->d_v};
    const auto write = [&](GridOf what, const PlannedGrid &planned, const float *sums, const DeviceRows &target) {
        const SummedRows summed = rows_with_more_runs(planned.tiles, what);
        write_summed_rows(problem.dtype, {call.whole(), summed, problem.head_dim, sums, target}, call.stream());
    };
    if (finishes_rows(call, passes.queries)) {
        write(GridOf::query_gradients, passes.queries.front(), whole.d_q, call.d_q);
        whole.d_q = nullptr;
    }
    if (finishes_keys(call, passes)) {
        write(GridOf::key_gradients, passes.keys.front(), whole.d_k, call.d_k);
        write(GridOf::key_gradients, passes.keys.front(), whole.d_v, call.d_v);
        whole.d_k = nullptr;
    }
    write_gradients(problem.dtype,
                    {call.whole(), whole, call.d_q, call.d_k, call.d_v, call.row_context(nullptr, nullptr)},
                    call.stream());
}

} // namespace annulus
