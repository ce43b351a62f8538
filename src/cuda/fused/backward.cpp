// SPDX-License-Identifier: Apache-2.0
// The executable of a backward pass, for each architecture: binds the parameters of its kernels to a call's addresses
// and runs the steps of the plan.
#include "cuda/device/cuda_error.hpp"
#include "cuda/fused/call.hpp"
#include "cuda/fused/common_backward_steps.hpp"
#include "cuda/fused/lse_delta.hpp"
#include "cuda/fused/merge_range_parts.hpp"
#include "cuda/fused/partial_rows.hpp"
#include "cuda/fused/plan/backward_plan.hpp"
#include "cuda/fused/plan/range_parts.hpp"
#include "cuda/fused/plan/shard_sums.hpp"
#include "cuda/results/cuda_call.hpp"
#ifdef ANNULUS_HAVE_MMA
#include "cuda/fused/mma/architecture.hpp"
#endif
#ifdef ANNULUS_HAVE_SM90
#include "cuda/fused/sm90/architecture.hpp"
#endif

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace annulus {

namespace {

template <class Architecture> class FusedBackward final : public Executable {
  public:
    FusedBackward(const Plan &plan, KeyScope scope, CudaDevice &device, const Architecture &architecture,
                  BackwardPlan backward)
        : architecture_(architecture), plan_(plan), scope_(scope), device_(device), backward_(std::move(backward)),
          bytes_(backward_bytes(plan_, backward_)) {
        for (const Side side : {Side::queries, Side::keys})
            for (const PlannedGrid &planned : backward_.side_grids(side).grids)
                grids_of(side).push_back({side == Side::queries ? query_params(planned) : key_params(planned), {}});
    }

    std::size_t workspace_bytes() const override { return bytes_; }

    std::int64_t row_alignment() const override { return fused_row_alignment; }

    const char *tensor_refusal(const CallTensors &tensors) const override {
        const char *const reason = alignment_refusal({&tensors.q, &tensors.k, &tensors.v, &tensors.out, &tensors.d_out,
                                                      &tensors.d_q, &tensors.d_k, &tensors.d_v});
        return reason ? reason : Architecture::range_refusal({&tensors.q, &tensors.k, &tensors.v, &tensors.d_out});
    }

    void run(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *stream) override {
        run_steps({backward_.steps.data(), backward_.first_of_rest}, false, tensors, partial, workspace, stream);
    }

    void run_rest(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *stream) override {
        run_steps(std::span(backward_.steps).subspan(backward_.first_of_rest), true, tensors, partial, workspace,
                  stream);
    }

    // Writes the partial results to the caller's tensors, except for the rows that run() has finished.
    void write_unfinished(const CallTensors &tensors, const PartialResults &partial, void *stream) override {
        const CudaCall call(plan_, device_, tensors, partial, stream);
        const Problem &problem = call.problem();
        PartialGradients all = call.partial.gradients;
        std::array<PartialRowsArguments, 3> unfinished;
        std::size_t count = 0;
        const auto add = [&](Side side, const float *partial_rows, const DeviceRows &target) {
            const PartialRows &rows = backward_.side_grids(side).grids.back().tiles.rows_left_partial;
            unfinished[count++] = {call.whole(),
                                   rows,
                                   problem.head_dim,
                                   partial_rows,
                                   DeviceSummedRows(summed_rows(side, backward_, call)),
                                   target};
        };
        if (backward_.queries.finishes)
            add(Side::queries, std::exchange(all.d_q, nullptr), call.d_q);
        if (backward_.keys.finishes) {
            if (all.d_k)
                add(Side::keys, std::exchange(all.d_k, nullptr), call.d_k);
            add(Side::keys, std::exchange(all.d_v, nullptr), call.d_v);
        }
        write_partial_rows(problem.dtype, std::span(unfinished).first(count), call.stream);
        write_gradients(
            problem.dtype,
            {call.whole(), all, call.d_q, call.d_k, call.d_v, problem.gradients, call.row_context(nullptr, nullptr)},
            call.stream);
    }

  private:
    using Params = typename Architecture::BackwardParams;

    // Other executables may have used the workspace between run() and run_rest(). But if run_rest() multiplies stored
    // dS, none has, and the tiles of queries go on with the turns of their sums.
    void run_steps(std::span<const BackwardStep> steps, bool is_rest, const CallTensors &tensors,
                   const PartialResults &partial, void *workspace, void *stream) {
        if (steps.empty())
            return;
        const CudaCall call(plan_, device_, tensors, partial, stream);
        Workspace ledger(workspace);
        BackwardMemory memory = book_backward(ledger, plan_, backward_);
        if (!backward_.has_own_statistics) { // the executable for the own keys computes them for all
            const Problem &problem = plan_.problem();
            memory.lse_log2 = static_cast<float *>(partial.softmax_state);
            memory.delta = memory.lse_log2 + problem.batch * problem.heads * problem.queries.length;
        }
        unsigned *next_counters = memory.flag_and_counters + 1;
        if (is_rest || has_other_keys(scope_)) // with the own keys, find_lse_delta clears the counters
            check(
                cudaMemsetAsync(memory.flag_and_counters, 0,
                                ((is_rest ? memory.launch_counter_count : memory.counter_count) + 1) * sizeof(unsigned),
                                call.stream),
                "cudaMemsetAsync");
        ArrayStores stores(call.stream);
        store_branches(plan_, memory.branches, stores);
        bind(call, memory, stores);
        stores.add(backward_.rows.data(), backward_.rows.size(), memory.sequences.rows);
        stores.launch();
        find_kernels();
        for (const BackwardStep &step : steps) {
            if (step.action == BackwardAction::find_gradients) {
                find_gradients(step, memory, next_counters, call.stream);
                next_counters += backward_.counters_of(step);
            } else if (step.action == BackwardAction::add_range_parts) {
                add_parts(step, call, memory);
            } else if (step.action == BackwardAction::pack_ranges) {
                pack(step, call, memory);
            } else {
                run_common_step(step, backward_, scope_, call, memory);
            }
        }
    }

    struct BoundGrid {
        Params params;
        typename Architecture::Ranges ranges;
    };
    std::vector<BoundGrid> &grids_of(Side side) { return side == Side::queries ? queries_ : keys_; }
    const std::vector<BoundGrid> &grids_of(Side side) const { return side == Side::queries ? queries_ : keys_; }

    // ---- Parameters that do not depend on a call's addresses.

    Params common_params(const PlannedGrid &planned) const {
        const Problem &problem = plan_.problem();
        Params params{};
        static_cast<TileGrid &>(params) = planned.tiles;
        params.all_heads = problem.heads;
        params.heads_of_kv_head = problem.heads / problem.kv_heads;
        params.head_dim = problem.head_dim;
        params.scale = static_cast<float>(plan_.scale());
        params.scale_log2 = scale_log2(plan_);
        params.statistic_rows = static_cast<int>(problem.queries.length);
        if (planned.is_packed)
            params.first_range_row = params.sequence.range_start;
        return params;
    }

    Params query_params(const PlannedGrid &planned) const {
        const Problem &problem = plan_.problem();
        Params params = common_params(planned);
        params.row_stride = FastDivmod(1);
        set_partial_rows(backward_.queries.parts, planned, problem.queries.length, params);
        return params;
    }

    Params key_params(const PlannedGrid &planned) const {
        const Problem &problem = plan_.problem();
        Params params = common_params(planned);
        params.row_stride = FastDivmod(static_cast<int>(problem.key_stride));
        set_partial_rows(backward_.keys.parts, planned, problem.key_rows(), params);
        if (planned.is_packed)
            params.statistic_rows = params.sequence.range_count;
        return params;
    }

    // ---- Addresses of a call.

    static RangeMatrices ranges_of(Side side, const CudaCall &call) {
        const Problem &p = call.problem();
        if (side == Side::queries)
            return {{call.k, p.key_rows(), p.kv_heads}, {call.v, p.key_rows(), p.kv_heads}};
        return {{call.q, p.queries.length, p.heads}, {call.d_out, p.queries.length, p.heads}};
    }

    void bind(const CudaCall &call, const BackwardMemory &memory, ArrayStores &stores) {
        const Problem &problem = call.problem();
        Workspace grid_tables(memory.sequences.grid_tables);
        for (const Side side : {Side::queries, Side::keys}) {
            const bool is_query_side = side == Side::queries;
            const BackwardShapes shapes = architecture_.backward_shapes(problem.dtype, problem.head_dim);
            const int block_rows = (is_query_side ? shapes.queries : shapes.keys).range_block_rows;
            const PartialGradients all_partial = partial_gradients(side, backward_, scope_, call, memory);
            std::vector<BoundGrid> &grids = grids_of(side);
            for (std::size_t i = 0; i < grids.size(); ++i) {
                auto &[params, ranges] = grids[i];
                const PlannedGrid &planned = backward_.side_grids(side).grids[i];
                const PartialGradients partial =
                    planned.range_parts > 1 ? gradients_of_parts(planned, problem, memory) : all_partial;
                ranges.bind(matrices_of(planned, ranges_of(side, call), memory.curves, problem), problem, block_rows,
                            params);
                store_sequences(planned, grid_tables, params, stores);
                params.order = memory.curves.order_of(planned);
                const bool packs_statistics = planned.is_packed && !is_query_side;
                params.lse_log2 = packs_statistics ? memory.curves.lse_log2 : memory.lse_log2;
                params.delta = packs_statistics ? memory.curves.delta : memory.delta;
                params.row_q_or_k = tensor_rows(is_query_side ? call.q : call.k);
                params.row_v_or_d_o = tensor_rows(is_query_side ? call.d_out : call.v);
                params.d_q_or_k = tensor_rows(is_query_side ? call.d_q : call.d_k);
                params.d_v = tensor_rows(is_query_side ? DeviceRows{} : call.d_v);
                params.partial_d_q_or_k = is_query_side ? partial.d_q : partial.d_k;
                params.partial_d_v = is_query_side ? nullptr : partial.d_v;
                if (planned.range_parts == 1)
                    set_summed_rows(summed_rows(side, backward_, call), params);
                params.has_nonfinite = memory.has_nonfinite;
            }
        }
    }

    // Returns where the range parts of a grid have their gradients.
    static PartialGradients gradients_of_parts(const PlannedGrid &planned, const Problem &problem,
                                               const BackwardMemory &memory) {
        float *const first = memory.range_parts;
        if (problem.gradients.only_v)
            return {nullptr, nullptr, first};
        return {first, first, first + rows_of_range_parts({&planned, 1}) * problem.head_dim};
    }

    // ---- Steps.

    const PlannedGrid &grid_of(const BackwardStep &step) const {
        return backward_.side_grids(step.side).grids[step.launch.grid];
    }
    Kernel<Params> &kernel_of(const BackwardStep &step) {
        return (grid_of(step).curve ? curve_kernels_ : linear_kernels_)[static_cast<std::size_t>(step.what)];
    }

    // Finds the kernels when the first call runs: only then the device is current.
    void find_kernels() {
        for (const BackwardStep &step : backward_.steps)
            if (step.action == BackwardAction::find_gradients && !kernel_of(step).function)
                kernel_of(step) = architecture_.find_backward_kernel(plan_.problem().dtype, plan_.problem().head_dim,
                                                                     step.what, grid_of(step).curve != nullptr);
    }

    void find_gradients(const BackwardStep &step, const BackwardMemory &memory, unsigned *counters,
                        cudaStream_t stream) {
        const Launch &launch = step.launch;
        Params params = grids_of(step.side)[launch.grid].params;
        const bool multiplies_ds = step.what == Gradients::d_q_of_stored_d_s;
        const bool finds_all = step.what == Gradients::all_storing_d_s;
        if (launch.part && !multiplies_ds)
            restrict_grid(grid_of(step), *launch.part, params);
        if (finds_all || multiplies_ds || step.what == Gradients::d_k_and_d_v_storing_d_s)
            use_stored_ds(step, memory, counters + 1, params);
        if (finds_all)
            params.stored_d_s.turns.launch_turns = step.turns;
        params.by_length = go_by_length(params, device_.multiprocessors());
        params.destination = launch.destination;
        params.first_partial_row = launch.first_partial_row;
        if (launch.clears.parts > 0)
            params.cleared = rows_to_clear(
                {step.what == Gradients::d_v ? nullptr : &params.d_q_or_k,
                 step.side == Side::keys ? &params.d_v : nullptr,
                 finds_all ? &queries_[launch.grid].params.d_q_or_k : nullptr},
                {}, plan_.problem(), window_of(plan_.problem(), step.side), launch.clears,
                finds_all ? params.tiles * static_cast<unsigned>(params.stored_d_s.turns.passes) : params.tiles);
        params.skips_empty = launch.destination == Destination::add_to_partial;
        params.next_tile = counters;
        if constexpr (requires { params.query_work; })
            if (finds_all) {
                Params queries = queries_[launch.grid].params;
                queries.first_partial_row = launch.first_partial_row;
                queries.stored_d_s = params.stored_d_s;
                queries.destination = step.query_destination;
                params.set_queries(queries);
            }
        kernel_of(step).launch(params, device_.multiprocessors(), launch.begins_early, stream);
    }

    void use_stored_ds(const BackwardStep &step, const BackwardMemory &memory, unsigned *done, Params &params) const {
        const GridPart &part = *step.launch.part;
        StoredDs &stored = params.stored_d_s;
        stored = backward_.stored[step.launch.grid].layout;
        stored.images = memory.stored_ds;
        stored.first_batch = part.first_batch;
        stored.batches = part.batches;
        stored.first_head = part.first_head;
        stored.head_step = params.heads_of_kv_head;
        stored.heads = part.heads;
        stored.first_segment = part.first_segment;
        stored.segments = part.segments;
        stored.launch_pass = step.pass;
        stored.done = done;
        stored.sums = memory.sums;
        stored.sum_counters = memory.flag_and_counters + 1 + memory.launch_counter_count;
        if (step.what == Gradients::d_q_of_stored_d_s)
            params.tiles =
                static_cast<unsigned>(stored.query_tiles() * stored.splits * part.segments * part.heads * part.batches);
    }

    // Adds the range parts of a grid to the gradients of its side, or sets these.
    void add_parts(const BackwardStep &step, const CudaCall &call, const BackwardMemory &memory) const {
        const Problem &problem = call.problem();
        const PlannedGrid &planned = grid_of(step);
        TileGrid grid = planned.tiles;
        if (step.launch.part)
            restrict_grid(planned, *step.launch.part, grid);
        const bool is_query_side = step.side == Side::queries;
        const RangePartsWork work{grid,
                                  planned.range_parts,
                                  problem.head_dim,
                                  step.launch.destination == Destination::add_to_partial,
                                  is_query_side ? problem.queries.length : problem.key_rows(),
                                  DeviceSummedRows(summed_rows(step.side, backward_, call))};
        const PartialGradients parts = gradients_of_parts(planned, problem, memory),
                               all = partial_gradients(step.side, backward_, scope_, call, memory);
        const auto add = [&](const float *from, float *to) {
            if (from && to)
                add_range_parts(work, from, to, call.stream);
        };
        if (is_query_side)
            return add(parts.d_q, all.d_q);
        add(parts.d_k, all.d_k);
        add(parts.d_v, all.d_v);
    }

    // Copies the range rows of a packed grid, and the statistics of its queries if they are the ranges.
    void pack(const BackwardStep &step, const CudaCall &call, const BackwardMemory &memory) const {
        const Problem &problem = call.problem();
        const TileGrid &grid = grids_of(step.side)[step.launch.grid].params;
        pack_ranges(grid, ranges_of(step.side, call), memory.curves, problem, call.stream);
        if (step.side == Side::keys)
            pack_lse_delta(grid, {problem.batch * problem.heads, problem.queries.length, problem.queries.start},
                           memory.lse_log2, memory.delta, memory.curves.lse_log2, memory.curves.delta, call.stream);
    }

    const Architecture architecture_;
    const Plan plan_;
    const KeyScope scope_;
    CudaDevice &device_;
    const BackwardPlan backward_;
    const std::size_t bytes_;
    std::vector<BoundGrid> queries_, keys_;
    std::array<Kernel<Params>, gradients_count> linear_kernels_, curve_kernels_; // indexed by Gradients
};

const char *refusal_of(const Plan &plan, const BackwardGrids &grids) {
    const char *const reason = grids_refusal(plan, grids.queries);
    return reason ? reason : grids_refusal(plan, grids.keys);
}

} // namespace

template <class Architecture>
Preparation prepare_fused_backward(const SequencePlans &plans, CudaDevice &device, const Architecture &architecture,
                                   const Limits &limits) {
    const Plan rows = plan_of_rows(plans);
    const BackwardShapes shapes = architecture.backward_shapes(rows.problem().dtype, rows.problem().head_dim);
    BackwardGrids grids = make_backward_grids(plans, shapes);
    if (const char *reason = refusal_of(rows, grids))
        return {nullptr, reason};
    BackwardPlan backward = plan_backward(rows, KeyScope::all_keys, std::move(grids), shapes, device.multiprocessors(),
                                          limits.workspace_limit);
    if (rows.hides_keys())
        backward.rows = row_sequences(plans);
    return {std::make_unique<FusedBackward<Architecture>>(rows, KeyScope::all_keys, device, architecture,
                                                          std::move(backward))};
}

template <class Architecture>
ShardSums summed_rows_of_backward(const Plan &shard, const CudaDevice &device, const Architecture &architecture,
                                  const Limits &limits) {
    const BackwardShapes shapes = architecture.backward_shapes(shard.problem().dtype, shard.problem().head_dim);
    BackwardGrids grids = make_backward_grids(shard, shapes);
    if (refusal_of(shard, grids))
        return {};
    return summed_rows(shard, plan_backward(shard, KeyScope::own_keys, std::move(grids), shapes,
                                            device.multiprocessors(), limits.workspace_limit));
}

template <class Architecture>
Preparation prepare_fused_backward(const Plan &plan, KeyScope scope, CudaDevice &device,
                                   const Architecture &architecture, const Limits &limits) {
    const BackwardShapes shapes = architecture.backward_shapes(plan.problem().dtype, plan.problem().head_dim);
    BackwardGrids grids = make_backward_grids(plan, shapes);
    if (const char *reason = refusal_of(plan, grids))
        return {nullptr, reason};
    BackwardPlan backward =
        plan_backward(plan, scope, std::move(grids), shapes, device.multiprocessors(), limits.workspace_limit);
    return {std::make_unique<FusedBackward<Architecture>>(plan, scope, device, architecture, std::move(backward))};
}

#ifdef ANNULUS_HAVE_SM90
template Preparation prepare_fused_backward(const SequencePlans &, CudaDevice &, const Sm90 &, const Limits &);
template Preparation prepare_fused_backward(const Plan &, KeyScope, CudaDevice &, const Sm90 &, const Limits &);
template ShardSums summed_rows_of_backward(const Plan &, const CudaDevice &, const Sm90 &, const Limits &);
#endif
#ifdef ANNULUS_HAVE_MMA
template Preparation prepare_fused_backward(const SequencePlans &, CudaDevice &, const mma::Mma &, const Limits &);
template Preparation prepare_fused_backward(const Plan &, KeyScope, CudaDevice &, const mma::Mma &, const Limits &);
template ShardSums summed_rows_of_backward(const Plan &, const CudaDevice &, const mma::Mma &, const Limits &);
#endif

} // namespace annulus
