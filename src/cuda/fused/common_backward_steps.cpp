// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/common_backward_steps.hpp"

#include "cuda/fused/call.hpp"
#include "cuda/fused/lse_delta.hpp"
#include "cuda/fused/partial_rows.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

namespace {

void clear_gradients(Side side, const CudaCall &call) {
    const auto clear_rows = [&](const Block &block, const DeviceRows &rows) {
        clear_outputs(call.problem().dtype, {block, call.head_dim(), rows, {}}, call.stream);
    };
    if (side == Side::queries)
        return clear_rows(call.whole(), call.d_q);
    Block keys = call.whole(); // the block has the heads of the queries
    keys.queries = keys.keys;
    if (!call.problem().gradients.only_v)
        clear_rows(keys, call.d_k);
    clear_rows(keys, call.d_v);
}

void clear_partial_gradients(Side side, const BackwardPlan &backward, KeyScope scope, const CudaCall &call,
                             const BackwardMemory &memory) {
    const Problem &problem = call.problem();
    const bool is_query_side = side == Side::queries;
    const PartialGradients partial = partial_gradients(side, backward, scope, call, memory);
    const std::int64_t heads = problem.batch * (is_query_side ? problem.heads : problem.kv_heads);
    const std::optional<SplitParts> &parts = backward.side_grids(side).parts;
    const std::int64_t rows =
        parts ? parts->all_rows() : heads * (is_query_side ? problem.queries.length : problem.key_rows());
    if (is_query_side)
        return call.clear_partial(partial.d_q, rows);
    for (float *const target : {partial.d_k, partial.d_v})
        if (target)
            call.clear_partial(target, rows);
}

// Returns `outputs` without the partial results of the other side.
GradientOutputArguments only_side(Side side, GradientOutputArguments outputs) {
    PartialGradients &partial = outputs.partial;
    if (side == Side::queries)
        partial.d_k = partial.d_v = nullptr;
    else
        partial.d_q = nullptr;
    return outputs;
}

GradientOutputArguments gradient_outputs(const BackwardPlan &backward, KeyScope scope, const CudaCall &call,
                                         const BackwardMemory &memory) {
    RowContext context = call.row_context(memory.branches, memory.has_nonfinite);
    set_sequences(backward.rows, memory.sequences, context);
    return {call.whole(),
            scope == KeyScope::all_keys ? memory.partial : call.partial.gradients,
            call.d_q,
            call.d_k,
            call.d_v,
            call.problem().gradients,
            context,
            DeviceSummedRows(summed_rows(Side::queries, backward, call)),
            DeviceSummedRows(summed_rows(Side::keys, backward, call))};
}

// Writes the rows that the last launch of a side leaves out: those outside its window of rows.
void write_rows_outside(Side side, const BackwardPlan &backward, const CudaCall &call, const BackwardMemory &memory) {
    const PartialRows rows = rows_outside(backward.side_grids(side).grids.back().tiles, call.problem().heads);
    Block block = call.whole();
    block.queries = window_of(call.problem(), side);
    const auto arguments = [&](const float *partial, const DeviceRows &target) {
        return PartialRowsArguments{block, rows, call.head_dim(), partial, DeviceSummedRows(nullptr), target};
    };
    if (side == Side::queries)
        return write_partial_rows(call.problem().dtype, std::array{arguments(memory.partial.d_q, call.d_q)},
                                  call.stream);
    std::vector<PartialRowsArguments> gradients{arguments(memory.partial.d_v, call.d_v)};
    if (!call.problem().gradients.only_v)
        gradients.push_back(arguments(memory.partial.d_k, call.d_k));
    write_partial_rows(call.problem().dtype, gradients, call.stream);
}

} // namespace

const SummedRows *summed_rows(Side side, const BackwardPlan &backward, const CudaCall &call) {
    if (const std::optional<SummedRows> &own = backward.side_grids(side).summed)
        return &*own;
    return side == Side::queries ? call.partial.summed_queries : call.partial.summed_keys;
}

PartialGradients partial_gradients(Side side, const BackwardPlan &backward, KeyScope scope, const CudaCall &call,
                                   const BackwardMemory &memory) {
    if (scope != KeyScope::all_keys)
        return call.partial.gradients;
    const SideGrids &grids = backward.side_grids(side);
    if (!grids.parts)
        return memory.partial;
    float *partial = memory.split_partial;
    if (side == Side::keys && backward.branches_store_ds())
        partial += backward.queries.parts->all_rows() * call.head_dim();
    return {partial, partial, partial + grids.parts->all_rows() * call.head_dim()};
}

void run_common_step(const BackwardStep &step, const BackwardPlan &backward, KeyScope scope, const CudaCall &call,
                     const BackwardMemory &memory) {
    const Problem &problem = call.problem();
    const bool is_query_side = step.side == Side::queries;
    const auto outputs = [&] { return gradient_outputs(backward, scope, call, memory); };
    switch (step.action) {
    case BackwardAction::find_lse_delta:
        return find_lse_delta(problem.dtype,
                              {call.out, call.d_out, call.lse, call.d_lse, problem.batch, problem.queries.length,
                               problem.heads, problem.head_dim, memory.lse_log2, memory.delta, memory.flag_and_counters,
                               static_cast<int>(memory.counter_count + 1)},
                              call.stream);
    case BackwardAction::clear_gradients:
        return clear_gradients(step.side, call);
    case BackwardAction::clear_partial:
        return clear_partial_gradients(step.side, backward, scope, call, memory);
    case BackwardAction::find_order:
        return find_order(backward.side_grids(step.side).grids[step.launch.grid], memory.curves, call.stream);
    case BackwardAction::write_gradients: {
        GradientOutputArguments written = outputs();
        if (!backward.queries.writes_partial())
            written.partial.d_q = nullptr;
        if (!backward.keys.writes_partial())
            written.partial.d_k = written.partial.d_v = nullptr;
        return write_gradients(problem.dtype, written, call.stream);
    }
    case BackwardAction::write_rows_outside:
        return write_rows_outside(step.side, backward, call, memory);
    case BackwardAction::recompute_gradients:
        return recompute_gradients(problem.dtype, outputs(), is_query_side, !is_query_side, call.stream);
    case BackwardAction::recompute_partial:
        return recompute_partial_gradients(problem.dtype, only_side(step.side, outputs()), call.stream);
    case BackwardAction::find_gradients:
    case BackwardAction::add_range_parts:
    case BackwardAction::pack_ranges:
        break;
    }
}

} // namespace annulus
