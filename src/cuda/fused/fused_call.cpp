// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/fused_call.hpp"

#include "core/dtype_number.hpp"
#include "cuda/fused/curve_order.hpp"
#include "cuda/fused/plan/tensor_maps.hpp"

#include <algorithm>
#include <climits>
#include <numbers>

namespace annulus {

PassRows pass_rows(const DeviceRows &rows) {
    return {rows.data, rows.batch, rows.row, rows.head, static_cast<int>(rows.start)};
}

float scale_log2(const Plan &plan) {
    return static_cast<float>(plan.scale() * std::numbers::log2e);
}

BranchPlan *book_branches(Workspace &workspace, const Plan &plan) {
    if (!plan.causal())
        return nullptr;
    return reinterpret_cast<BranchPlan *>(
        workspace.take<std::byte>(static_cast<std::int64_t>(plan.branches().size() * sizeof(BranchPlan))));
}

void store_branches(const CudaCall &call, BranchPlan *target) {
    const std::vector<BranchPlan> &branches = call.plan.branches();
    if (target)
        store_branches(branches.data(), static_cast<std::int32_t>(branches.size()), target, call.stream());
}

void cut_pass(std::vector<PlannedGrid> &passes, const Plan &plan, GridOf what, const KernelShape &shape,
              const Resources &resources) {
    CudaDevice &device = cuda_device(resources);
    device.pass_cuts().cut(passes, plan, what, shape, device.multiprocessors());
}

bool is_cut(const std::vector<PlannedGrid> &passes) {
    return !passes.empty() && passes.front().leaves_sums;
}

bool finishes_rows(const CudaCall &call, const std::vector<PlannedGrid> &passes) {
    return call.sums && call.sums->first && passes.size() == 1 && !passes.front().curve;
}

bool needs_sums(const std::vector<PlannedGrid> &passes) {
    return !is_cut(passes) && (passes.size() > 1 || (!passes.empty() && passes.front().curve));
}

std::size_t room_to_keep(const Resources &resources, std::size_t used) {
    const std::size_t limit = resources.workspace_limit;
    return limit == 0 ? usual_kept_bytes : std::max(limit, used) - used;
}

std::int64_t launches_of(const std::vector<PlannedGrid> &passes, const std::optional<SumParts> &parts,
                         std::int64_t batches, int heads) {
    return static_cast<std::int64_t>(passes.size()) * (parts ? parts->parts(batches, heads) : 1);
}

std::optional<SumParts> plan_sums(std::int64_t batches, int heads, std::size_t bytes_of_head, std::size_t room) {
    const auto most = static_cast<std::int64_t>(room / std::max<std::size_t>(bytes_of_head, 1));
    if (most == 0)
        return std::nullopt;
    if (most < heads)
        return SumParts{1, static_cast<int>(divide_up(heads, divide_up(heads, most)))};
    return SumParts{static_cast<int>(std::min<std::int64_t>({batches, most / heads, INT_MAX})), heads};
}

CurveMemory book_curve(Workspace &workspace, const Plan &plan, const std::vector<PlannedGrid> &passes, bool of_keys) {
    const Problem &problem = plan.problem();
    std::int64_t longest = 0;
    for (const PlannedGrid &planned : passes)
        longest = std::max(longest, planned.window.length);
    const std::int64_t heads = of_keys ? problem.heads : problem.kv_heads;
    const std::int64_t bytes = problem.batch * longest * heads * problem.head_dim * dtype_bytes(problem.dtype);
    const std::int64_t statistics = of_keys ? problem.batch * longest * heads : 0;
    CurveMemory memory{};
    memory.residues = workspace.take<int>(longest);
    memory.order = workspace.take<int>(longest);
    memory.scores = workspace.take<std::byte>(bytes);
    memory.values = workspace.take<std::byte>(bytes);
    memory.lse_log2 = workspace.take<float>(statistics);
    memory.delta = workspace.take<float>(statistics);
    return memory;
}

void set_run_maps(const CudaCall &call, const TileGrid &tiles, const RunMatrices &runs, int step,
                  CUtensorMap *score_maps, CUtensorMap *value_maps) {
    const Problem &problem = call.plan.problem();
    for (int i = 0; i < tiles.stride_count; ++i) {
        const std::int64_t stride = tiles.strides[i].value, more = tiles.longer_residues[i];
        const auto encode = [&](const DeviceRows &matrix, std::int64_t count, std::int64_t residues, CUtensorMap &map) {
            if (count > 0 && residues > 0)
                map = call.device.tensor_maps().get({matrix.data, problem.dtype, problem.head_dim, runs.heads,
                                                     problem.batch, count, residues, matrix.row, matrix.head,
                                                     matrix.batch, stride, step});
        };
        encode(runs.scores, runs.rows / stride + 1, more, score_maps[2 * i]);
        encode(runs.scores, runs.rows / stride, stride, score_maps[2 * i + 1]);
        encode(runs.values, runs.rows / stride + 1, more, value_maps[2 * i]);
        encode(runs.values, runs.rows / stride, stride, value_maps[2 * i + 1]);
    }
}

RunMatrices follow_curve(const CudaCall &call, const PlannedGrid &planned, const CurveMemory &memory,
                         const RunMatrices &runs) {
    const Problem &problem = call.plan.problem();
    const Window &window = planned.window;
    cudaStream_t const stream = call.stream();
    find_curve_order(*planned.curve, window, memory.residues, memory.order, stream);
    const auto pack = [&](const DeviceRows &rows, void *target) {
        pack_in_order(rows, window, memory.order, problem.batch, runs.heads, problem.head_dim, target, stream);
        const std::int64_t row = std::int64_t{runs.heads} * problem.head_dim;
        return DeviceRows{target, window.length * row, row, problem.head_dim, window.start};
    };
    return {pack(runs.scores, memory.scores), pack(runs.values, memory.values), window.length, runs.heads};
}

} // namespace annulus
