// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/curve_memory.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>
#include <cstddef>

namespace annulus {

CurveMemory book_curves(Workspace &workspace, const Problem &problem, const std::vector<PlannedGrid> &over_keys,
                        const std::vector<PlannedGrid> &over_queries) {
    std::int64_t residues = 0, orders = 0, packed = 0, statistics = 0;
    const auto book = [&](const std::vector<PlannedGrid> &grids, std::int64_t heads, bool has_statistics) {
        for (const PlannedGrid &planned : grids) {
            if (!planned.curve)
                continue;
            const std::int64_t length = curve_order_length(*planned.curve);
            if (planned.curve->causal())
                residues = std::max(residues, length);
            orders = std::max(orders, planned.order_start + length);
            if (planned.is_packed) {
                const std::int64_t rows = problem.batch * planned.tiles.sequence.range_count * heads;
                packed = std::max(packed, rows);
                statistics = std::max(statistics, has_statistics ? rows : 0);
            }
        }
    };
    book(over_keys, problem.kv_heads, false);
    book(over_queries, problem.heads, true);
    CurveMemory memory{};
    memory.residues = workspace.take<int>(residues);
    memory.orders = workspace.take<int>(orders);
    const std::int64_t row_bytes = problem.head_dim * dtype_bytes(problem.dtype);
    memory.q_or_k = workspace.take<std::byte>(packed, row_bytes);
    memory.v_or_d_o = workspace.take<std::byte>(packed, row_bytes);
    memory.lse_log2 = workspace.take<float>(statistics);
    memory.delta = workspace.take<float>(statistics);
    return memory;
}

} // namespace annulus
