// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/worker.hpp"

#include "cuda/device/cublas_library.hpp"
#include "cuda/device/cuda_error.hpp"

#include <algorithm>
#include <span>

namespace annulus {

namespace {

WorkerContext make_context(const GemmRun &run, int index) {
    const WorkerMemory &own = run.memory.workers[static_cast<std::size_t>(index)];
    const cublasHandle_t blas = run.call.device.blas(index);
    check(cublas().set_workspace(blas, own.blas, run.layout.blas_bytes), "cublasSetWorkspace");
    return {run, own, run.call.device.stream(index), {blas, run.call.problem().dtype, run.allow_tf32}};
}

} // namespace

Worker::Worker(const GemmRun &run, int index, WorkerLists &lists)
    : index_(index), context_(make_context(run, index)), lists_(lists) {
    lists_.parts.clear();
    lists_.sets.clear();
}

void Worker::start(const BlockGrid &grid) {
    grid_ = &grid;
    next_block_ = index_;
}

bool Worker::step() {
    if (!block_) {
        if (next_block_ >= grid_->count())
            return false;
        begin_block();
        return true;
    }
    while (!launches_ || launches_->is_done()) {
        if (next_set_ < lists_.sets.size()) {
            begin_set();
        } else if (next_part_ < lists_.parts.size()) {
            begin_part();
        } else {
            finish_block();
            return true;
        }
    }
    launches_->launch();
    return true;
}

void Worker::begin_block() {
    const CudaCall &call = context_.run.call;
    const WorkerMemory &memory = context_.memory;
    block_ = grid_->block(call.plan, next_block_);
    next_block_ += context_.run.layout.workers;
    lists_.parts.clear();
    next_part_ = 0;
    // Backward, the heads of a group add to the same rows of dK and dV. Therefore they run one after the other.
    const std::int32_t group = call.heads_per_kv_head();
    const std::int32_t heads = context_.run.is_forward() || group == 1 ? block_->heads : 1;
    for (std::size_t branch = 0; branch < call.plan.branches().size(); ++branch)
        for (std::int32_t h = 0; h < block_->heads; h += heads)
            lists_.parts.push_back({branch, block_->first_head + h, heads});

    partial_is_set_ = false;
    partial_block_ = *block_;
    if (context_.run.layout.results == Results::direct) {
        clear_unreached_rows();
        return;
    }
    if (const KeyScope scope = context_.run.scope; scope != KeyScope::all_keys) {
        partial_block_ = call.whole();
        // Forward, the executable for the own keys has only the state set, which says that O holds nothing yet.
        partial_is_set_ = !context_.run.is_forward() || scope != KeyScope::own_keys;
        return;
    }
    if (memory.has_nonfinite)
        check(cudaMemsetAsync(memory.has_nonfinite, 0, sizeof(int), context_.stream), "cudaMemsetAsync");
    const std::int64_t query_rows = block_->batches * block_->heads * block_->queries.length;
    const std::int64_t key_rows = block_->batches * (block_->heads / group) * block_->keys.length;
    if (context_.run.is_forward()) {
        if (query_rows > 0)
            fill_state(memory.state, query_rows, empty_state(), context_.stream);
        return;
    }
    if (first_branch_reaches_all_rows())
        return;
    partial_is_set_ = true;
    const auto clear = [&](float *target, std::int64_t rows) {
        const auto bytes = static_cast<std::size_t>(rows * call.head_dim()) * sizeof(float);
        check(cudaMemsetAsync(target, 0, bytes, context_.stream), "cudaMemsetAsync");
    };
    if (grid_->query_results)
        clear(memory.o, query_rows);
    if (grid_->key_results) {
        if (!call.problem().gradients.only_v)
            clear(memory.d_k, key_rows);
        clear(memory.d_v, key_rows);
    }
}

// Clears the rows that no tile writes when there is no state, because the only branch does not reach them. Clears all
// rows of the block: to find the unreached rows costs more.
void Worker::clear_unreached_rows() const {
    const CudaCall &call = context_.run.call;
    const BranchPlan &branch = call.plan.branches().front();
    if (branch.dilation() == 1 && branch.serves(0) && branch.serves(call.problem().heads - 1))
        return;
    const auto clear = [&](const DeviceRows &rows, const DeviceRows &lse) {
        clear_outputs(call.problem().dtype, {*block_, call.head_dim(), rows, lse}, context_.stream);
    };
    if (context_.run.is_forward()) {
        clear(call.out, call.lse);
        return;
    }
    if (!call.problem().gradients.only_v) {
        clear(call.d_q, {});
        clear(call.d_k, {});
    }
    clear(call.d_v, {});
}

// True if in backward one tile of the first branch is the first to reach each row of the block's gradients. That tile
// may then overwrite the row.
bool Worker::first_branch_reaches_all_rows() const {
    const BranchPlan &branch = context_.run.call.plan.branches().front();
    return grid_->query_results && grid_->key_results && block_->queries == block_->keys &&
           context_.run.call.heads_per_kv_head() == 1 && branch.segment_length() <= context_.run.layout.tile &&
           branch.dilation() == 1 && branch.kind() == ANNULUS_BRANCH_SEGMENTS && branch.serves(block_->first_head) &&
           branch.serves(block_->first_head + block_->heads - 1);
}

void Worker::begin_part() {
    const TilePart &part = lists_.parts[next_part_++];
    Block block = *block_;
    block.first_head = part.first_head;
    block.heads = part.heads;
    lists_.sets.clear();
    make_tiles(context_.run.call.plan, context_.run.call.plan.branches()[part.branch], block, context_.run.layout.tile,
               lists_.sets);
    next_set_ = 0;
}

void Worker::begin_set() {
    const std::size_t branch = lists_.parts[next_part_ - 1].branch;
    const TileSet &set = lists_.sets[next_set_++];
    const SetRole role{grid_->query_results, grid_->key_results, branch == 0 && !partial_is_set_,
                       earlier_branches(branch, set)};
    launches_.emplace(context_, partial_block_, set, role);
}

// Returns 1 + the index of the last branch before the set's own that may share keys with it, or 0 if there is none.
std::int32_t Worker::earlier_branches(std::size_t branch, const TileSet &set) const {
    const Plan &plan = context_.run.call.plan;
    const std::span<const BranchPlan> earlier = plan.earlier_branches(plan.branches()[branch]);
    const auto last = std::find_if(earlier.rbegin(), earlier.rend(),
                                   [&](const BranchPlan &other) { return may_share_keys(other, set); });
    return static_cast<std::int32_t>(earlier.rend() - last);
}

void Worker::finish_block() {
    const CudaCall &call = context_.run.call;
    const WorkerMemory &memory = context_.memory;
    const Block block = *block_;
    block_.reset();
    launches_.reset();
    if (!context_.run.layout.has_state())
        return;
    const annulus_dtype dtype = call.problem().dtype;
    const RowContext rows = call.row_context(context_.run.memory.branches, memory.has_nonfinite);
    if (context_.run.is_forward()) {
        const OutputArguments outputs{block, memory.state, memory.o, call.out, call.lse, rows};
        write_outputs(dtype, outputs, context_.stream);
        if (memory.has_nonfinite)
            recompute_outputs_of_partial(dtype, outputs, context_.stream);
        return;
    }
    const GradientTargets &targets = call.problem().gradients;
    const PartialGradients gradients{grid_->query_results ? memory.o : nullptr,
                                     grid_->key_results && !targets.only_v ? memory.d_k : nullptr,
                                     grid_->key_results ? memory.d_v : nullptr};
    GradientOutputArguments outputs{block, gradients, call.d_q, call.d_k, call.d_v, targets, rows};
    if (memory.has_nonfinite && !targets.are_plain()) { // no kernel has looked for NaN yet
        outputs.context.has_nonfinite = nullptr;
        recompute_partial_gradients(dtype, outputs, context_.stream);
    }
    write_gradients(dtype, outputs, context_.stream);
    if (memory.has_nonfinite && targets.are_plain())
        recompute_gradients(dtype, outputs, grid_->query_results, grid_->key_results, context_.stream);
}

} // namespace annulus
