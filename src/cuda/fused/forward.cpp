// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/cuda_error.hpp"
#include "cuda/fused/call.hpp"
#include "cuda/fused/merge_range_parts.hpp"
#include "cuda/fused/plan/forward_plan.hpp"
#include "cuda/fused/plan/shard_sums.hpp"
#include "cuda/results/cuda_call.hpp"
#ifdef ANNULUS_HAVE_MMA
#include "cuda/fused/mma/architecture.hpp"
#endif
#ifdef ANNULUS_HAVE_SM90
#include "cuda/fused/sm90/architecture.hpp"
#endif

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace annulus {

namespace {

template <class Architecture> class FusedForward final : public Executable {
  public:
    FusedForward(const Plan &plan, KeyScope scope, CudaDevice &device, const Architecture &architecture,
                 ForwardPlan forward)
        : architecture_(architecture), plan_(plan), scope_(scope), device_(device), forward_(std::move(forward)),
          bytes_(forward_bytes(plan_, forward_)), ranges_(forward_.grids.size()), kernels_(forward_.grids.size()) {
        for (const PlannedGrid &planned : forward_.grids)
            params_.push_back(params_of(planned));
    }

    std::size_t workspace_bytes() const override { return bytes_; }

    std::int64_t row_alignment() const override { return fused_row_alignment; }

    const char *tensor_refusal(const CallTensors &tensors) const override {
        const char *const reason = alignment_refusal({&tensors.q, &tensors.k, &tensors.v, &tensors.out});
        return reason ? reason : Architecture::range_refusal({&tensors.k, &tensors.v});
    }

    void run(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *stream) override {
        const Problem &problem = plan_.problem();
        if (problem.batch * problem.queries.length == 0)
            return;
        const CudaCall call(plan_, device_, tensors, partial, stream);
        Workspace ledger(workspace);
        const ForwardMemory memory = book_forward(ledger, plan_, forward_);
        ArrayStores stores(call.stream);
        stores.add_zeros(memory.counter_count, memory.counters);
        store_branches(plan_, memory.branches, stores);
        bind(call, memory, stores);
        stores.add(forward_.rows.data(), forward_.rows.size(), memory.sequences.rows);
        stores.launch();
        for (std::size_t i = 0; i < kernels_.size(); ++i)
            if (!kernels_[i].function) // only now the device is current
                kernels_[i] = architecture_.find_forward_kernel(problem.dtype, problem.head_dim,
                                                                forward_.grids[i].curve != nullptr);
        unsigned *next_counter = memory.counters;
        for (const ForwardStep &step : forward_.steps) {
            if (step.action == ForwardAction::attend)
                attend(step.launch, next_counter++, call.stream);
            else
                run_step(step, call, memory);
        }
    }

    void write_unfinished(const CallTensors &tensors, const PartialResults &partial, void *stream) override {
        const CudaCall call(plan_, device_, tensors, partial, stream);
        write_unfinished_outputs(call.problem().dtype, outputs(call, call.partial.state, call.partial.o, {}),
                                 call.stream);
    }

  private:
    using Params = typename Architecture::ForwardParams;

    // Returns the parameters that do not depend on a call's addresses.
    Params params_of(const PlannedGrid &planned) const {
        const Problem &problem = plan_.problem();
        Params params{};
        static_cast<TileGrid &>(params) = planned.tiles;
        if (planned.is_packed)
            params.first_range_row = params.sequence.range_start;
        params.heads_of_kv_head = problem.heads / problem.kv_heads;
        params.head_dim = problem.head_dim;
        params.scale_log2 = scale_log2(plan_);
        params.inverse_scale_log2 = 1 / params.scale_log2;
        params.all_heads = problem.heads;
        set_partial_rows(forward_.parts, planned, problem.queries.length, params);
        return params;
    }

    // Returns the rows that have partial results, of the call's own or of its ranks'. Null: all rows.
    const SummedRows *summed_rows(const CudaCall &call) const {
        return forward_.summed ? &*forward_.summed : call.partial.summed_queries;
    }

    static RangeMatrices keys(const CudaCall &call) {
        const Problem &problem = call.problem();
        return {{call.k, problem.key_rows(), problem.kv_heads}, {call.v, problem.key_rows(), problem.kv_heads}};
    }

    // Sets the addresses of this call. What they point to is stored by the next launch of `stores`.
    void bind(const CudaCall &call, const ForwardMemory &memory, ArrayStores &stores) {
        const Problem &problem = call.problem();
        const int block_rows = architecture_.forward_shape(problem.dtype, problem.head_dim).range_block_rows;
        const bool is_whole = scope_ == KeyScope::all_keys;
        Workspace grid_tables(memory.sequences.grid_tables);
        for (std::size_t i = 0; i < params_.size(); ++i) {
            Params &params = params_[i];
            const PlannedGrid &planned = forward_.grids[i];
            ranges_[i].bind(matrices_of(planned, keys(call), memory.curves, problem), problem, block_rows, params);
            store_sequences(planned, grid_tables, params, stores);
            params.order = memory.curves.order_of(planned);
            params.q = tensor_rows(call.q);
            params.out = tensor_rows(call.out);
            params.lse = tensor_rows(call.lse);
            params.partial_o = is_whole ? memory.o : call.partial.o;
            params.partial_state = is_whole ? memory.state : call.partial.state;
            if (planned.range_parts > 1) {
                params.partial_o = memory.part_o;
                params.partial_state = memory.part_state;
            } else {
                set_summed_rows(summed_rows(call), params);
            }
            params.has_nonfinite = memory.has_nonfinite;
        }
    }

    void attend(const Launch &launch, unsigned *counter, cudaStream_t stream) const {
        Params params = params_[launch.grid];
        if (launch.part)
            restrict_grid(forward_.grids[launch.grid], *launch.part, params);
        params.by_length = go_by_length(params, device_.multiprocessors());
        params.destination = launch.destination;
        params.first_partial_row = launch.first_partial_row;
        if (launch.clears.parts > 0)
            params.cleared = rows_to_clear({&params.out}, params.lse, plan_.problem(), plan_.problem().queries,
                                           launch.clears, params.tiles);
        // Row blocks that meet no key are left out if another step writes their rows. If only some rows have partial
        // results, no step comes after the launch that finishes them.
        const bool others_write = launch.destination == Destination::add_to_partial ||
                                  (launch.destination == Destination::finish_partial && !forward_.summed);
        params.skips_empty = !params.zero_keys && others_write;
        params.next_tile = counter;
        kernels_[launch.grid].launch(params, device_.multiprocessors(), launch.begins_early, stream);
    }

    // Runs any step but attend.
    void run_step(const ForwardStep &step, const CudaCall &call, const ForwardMemory &memory) const {
        const Problem &problem = call.problem();
        const bool is_whole = scope_ == KeyScope::all_keys;
        float2 *const state = is_whole ? memory.state : call.partial.state;
        float *const o = is_whole ? memory.o : call.partial.o;
        const SummedRows *const summed = summed_rows(call);
        const std::int64_t rows =
            forward_.parts ? forward_.parts->all_rows()
                           : problem.batch * problem.heads * (summed ? summed->count() : problem.queries.length);
        switch (step.action) {
        case ForwardAction::clear_outputs:
            return clear_outputs(problem.dtype, {call.whole(), problem.head_dim, call.out, call.lse}, call.stream);
        case ForwardAction::clear_partial:
            fill_state(state, rows, empty_state(), call.stream);
            return call.clear_partial(o, rows);
        case ForwardAction::mark_finished:
            return fill_state(state, rows, finished_state(), call.stream);
        case ForwardAction::find_order:
            return find_order(forward_.grids[step.launch.grid], memory.curves, call.stream);
        case ForwardAction::pack_ranges:
            return pack_ranges(params_[step.launch.grid], keys(call), memory.curves, problem, call.stream);
        case ForwardAction::merge_range_parts:
            return merge_range_parts({params_[step.launch.grid], forward_.grids[step.launch.grid].range_parts,
                                      problem.head_dim, step.launch.destination == Destination::add_to_partial,
                                      problem.queries.length, DeviceSummedRows(summed)},
                                     memory.part_state, memory.part_o, state, o, call.stream);
        case ForwardAction::write_outputs:
            return write_outputs(problem.dtype, outputs(call, state, o, memory), call.stream);
        case ForwardAction::write_unfinished:
            return write_unfinished_outputs(problem.dtype, outputs(call, state, o, memory), call.stream);
        case ForwardAction::recompute_outputs_of_partial:
            return recompute_outputs_of_partial(problem.dtype, outputs(call, state, o, memory), call.stream);
        case ForwardAction::recompute_outputs: // all rows; on a rank the rows that the launch over its own keys
                                               // finished
            return recompute_outputs(problem.dtype, outputs(call, is_whole ? nullptr : state, o, memory), call.stream);
        case ForwardAction::recompute_partial_outputs:
            return recompute_partial_outputs(problem.dtype, outputs(call, state, o, memory), call.stream);
        case ForwardAction::attend:
            break;
        }
    }

    OutputArguments outputs(const CudaCall &call, const float2 *state, float *o, const ForwardMemory &memory) const {
        RowContext context = call.row_context(memory.branches, memory.has_nonfinite);
        set_sequences(forward_.rows, memory.sequences, context);
        return {call.whole(), state, o, call.out, call.lse, context, DeviceSummedRows(summed_rows(call))};
    }

    const Architecture architecture_;
    const Plan plan_;
    const KeyScope scope_;
    CudaDevice &device_;
    const ForwardPlan forward_;
    const std::size_t bytes_;
    std::vector<Params> params_; // for each grid
    std::vector<typename Architecture::Ranges> ranges_;
    std::vector<Kernel<Params>> kernels_; // for each grid
};

} // namespace

template <class Architecture>
Preparation prepare_fused_forward(const SequencePlans &plans, CudaDevice &device, const Architecture &architecture,
                                  const Limits &limits) {
    const Plan rows = plan_of_rows(plans), longest = plan_of_longest(plans);
    const KernelShape shape = architecture.forward_shape(rows.problem().dtype, rows.problem().head_dim);
    std::vector<PlannedGrid> grids = make_grids(longest, GridResult::outputs, shape);
    lay_out_sequences(plans, GridResult::outputs, shape, grids);
    if (const char *reason = grids_refusal(rows, grids))
        return {nullptr, reason};
    ForwardPlan forward = plan_forward(rows, KeyScope::all_keys, std::move(grids), shape, device.multiprocessors(),
                                       limits.workspace_limit);
    if (rows.hides_keys())
        forward.rows = row_sequences(plans);
    return {std::make_unique<FusedForward<Architecture>>(rows, KeyScope::all_keys, device, architecture,
                                                         std::move(forward))};
}

template <class Architecture>
ShardSums summed_rows_of_forward(const Plan &shard, const CudaDevice &device, const Architecture &architecture,
                                 const Limits &limits) {
    const KernelShape shape = architecture.forward_shape(shard.problem().dtype, shard.problem().head_dim);
    std::vector<PlannedGrid> grids = make_grids(shard, GridResult::outputs, shape);
    if (grids_refusal(shard, grids))
        return {};
    return summed_rows(shard, plan_forward(shard, KeyScope::own_keys, std::move(grids), shape, device.multiprocessors(),
                                           limits.workspace_limit));
}

template <class Architecture>
Preparation prepare_fused_forward(const Plan &plan, KeyScope scope, CudaDevice &device,
                                  const Architecture &architecture, const Limits &limits) {
    const KernelShape shape = architecture.forward_shape(plan.problem().dtype, plan.problem().head_dim);
    std::vector<PlannedGrid> grids = make_grids(plan, GridResult::outputs, shape);
    if (const char *reason = grids_refusal(plan, grids))
        return {nullptr, reason};
    ForwardPlan forward =
        plan_forward(plan, scope, std::move(grids), shape, device.multiprocessors(), limits.workspace_limit);
    return {std::make_unique<FusedForward<Architecture>>(plan, scope, device, architecture, std::move(forward))};
}

#ifdef ANNULUS_HAVE_SM90
template Preparation prepare_fused_forward(const SequencePlans &, CudaDevice &, const Sm90 &, const Limits &);
template Preparation prepare_fused_forward(const Plan &, KeyScope, CudaDevice &, const Sm90 &, const Limits &);
template ShardSums summed_rows_of_forward(const Plan &, const CudaDevice &, const Sm90 &, const Limits &);
#endif
#ifdef ANNULUS_HAVE_MMA
template Preparation prepare_fused_forward(const SequencePlans &, CudaDevice &, const mma::Mma &, const Limits &);
template Preparation prepare_fused_forward(const Plan &, KeyScope, CudaDevice &, const mma::Mma &, const Limits &);
template ShardSums summed_rows_of_forward(const Plan &, const CudaDevice &, const mma::Mma &, const Limits &);
#endif

} // namespace annulus
