// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/curve_memory.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace annulus {

CurveMemory book_curve(Workspace &workspace, const Plan &plan, const std::vector<PlannedGrid> &grids,
                       bool ranges_are_queries) {
    const Problem &problem = plan.problem();
    std::int64_t longest = 0;
    for (const PlannedGrid &planned : grids)
        longest = std::max(longest, planned.window.length);
    const std::int64_t heads = ranges_are_queries ? problem.heads : problem.kv_heads;
    const std::int64_t bytes = problem.batch * longest * heads * problem.head_dim * dtype_bytes(problem.dtype);
    const std::int64_t lse_delta_rows = ranges_are_queries ? problem.batch * longest * heads : 0;
    CurveMemory memory{};
    memory.residues = workspace.take<int>(longest);
    memory.order = workspace.take<int>(longest);
    memory.scores = workspace.take<std::byte>(bytes);
    memory.values = workspace.take<std::byte>(bytes);
    memory.lse_log2 = workspace.take<float>(lse_delta_rows);
    memory.delta = workspace.take<float>(lse_delta_rows);
    return memory;
}

} // namespace annulus
