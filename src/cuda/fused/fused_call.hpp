// SPDX-License-Identifier: Apache-2.0
// What the forward and the backward pass of the fused engine have in common.
#pragma once

#include "core/workspace.hpp"
#include "cuda/device/cuda_call.hpp"
#include "cuda/fused/plan/launch_plan.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

PassRows pass_rows(const DeviceRows &rows);

// scale log2(e), as the kernels have it.
float scale_log2(const Plan &plan);

// For causal plans: the branches, for rows that are computed again. Else null.
BranchPlan *book_branches(Workspace &workspace, const Plan &plan);
void store_branches(const CudaCall &call, BranchPlan *target);

// As PassCuts::cut().
void cut_pass(std::vector<PlannedGrid> &passes, const Plan &plan, GridOf what, const KernelShape &shape,
              const Resources &resources);
bool is_cut(const std::vector<PlannedGrid> &passes);

// Passes along a curve, and several ones that are not cut, add to sums of all rows.
bool needs_sums(const std::vector<PlannedGrid> &passes);

// Whether `call` is the first of several steps and finishes rows that meet nothing but its own keys or queries, as one
// pass in linear order can.
bool finishes_rows(const CudaCall &call, const std::vector<PlannedGrid> &passes);

// What is kept in memory between two kernels, if the workspace limit leaves that much: enough for tiles to fill a GPU.
constexpr std::size_t usual_kept_bytes = std::size_t{5} << 28;
// What a limit leaves for it, where so many bytes are used.
std::size_t room_to_keep(const Resources &resources, std::size_t used);

// The sums of a cut pass: of so many batch entries and heads at a time, all heads or one batch entry.
struct SumParts {
    int batches = 0, heads = 0;
    std::int64_t count() const { return std::int64_t{batches} * heads; } // of heads
    // How many such parts `all_batches` entries of `all_heads` heads are.
    std::int64_t parts(std::int64_t all_batches, int all_heads) const {
        return divide_up(all_batches, batches) * divide_up(all_heads, heads);
    }
};
// How often `passes` over so many batch entries and heads are launched; in parts, if they are cut.
std::int64_t launches_of(const std::vector<PlannedGrid> &passes, const std::optional<SumParts> &parts,
                         std::int64_t batches, int heads);
// None where there is no room for one head.
std::optional<SumParts> plan_sums(std::int64_t batches, int heads, std::size_t bytes_of_head, std::size_t room);

// use(first, count) for parts of `all`.
template <class Use> void for_parts(int all, int part, const Use &use) {
    for (int first = 0; first < all; first += part)
        use(first, std::min(part, all - first));
}

// use(pass) for both of a cut pass, part after part: the first sets sums, the second takes them.
template <class Pass, class Use>
void for_cut(const SumParts &parts, int batches, int heads, const Pass &others, Pass last, const Use &use) {
    last.takes_sums = true;
    for_parts(batches, parts.batches, [&](int first_batch, int part_batches) {
        for_parts(heads, parts.heads, [&](int first_head, int part_heads) {
            for (Pass pass : {others, last}) {
                restrict_heads(pass, first_batch, part_batches, first_head, part_heads);
                pass.first_sum = (std::int64_t{first_batch} * heads + first_head) * pass.sum_rows;
                pass.sets_sums = true;
                use(pass);
            }
        });
    });
}

// Has a pass, all that the first step has of its results, finish rows.
template <class Pass> void finish_rows(Pass &pass, GridOf what) {
    pass.finishes_rows = true;
    pass.summed = rows_with_more_runs(pass, what);
}

// What passes that follow an order along a curve need, one after the other: the order, and what they read in it.
struct CurveMemory {
    int *residues, *order;   // [window]
    void *scores, *values;   // [B, window, heads, D] of the runs
    float *lse_log2, *delta; // [B, H, window], where runs are of queries
};
CurveMemory book_curve(Workspace &workspace, const Plan &plan, const std::vector<PlannedGrid> &passes, bool of_keys);

// The tensor maps of runs, two matrices with `heads` heads of `rows` rows each, for boxes of `step` rows.
struct RunMatrices {
    DeviceRows scores, values;
    std::int64_t rows;
    std::int32_t heads;
};
void set_run_maps(const CudaCall &call, const TileGrid &tiles, const RunMatrices &runs, int step,
                  CUtensorMap *score_maps, CUtensorMap *value_maps);

// Finds the order of a pass along a curve, and copies the rows of its runs in that order.
RunMatrices follow_curve(const CudaCall &call, const PlannedGrid &planned, const CurveMemory &memory,
                         const RunMatrices &runs);

} // namespace annulus
