// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/call.hpp"

#include <algorithm>
#include <cstdint>

namespace annulus {

GemmMemory book(Workspace &workspace, const Plan &plan, annulus_pass pass, const GemmLayout &layout) {
    const std::int64_t d = plan.problem().head_dim;
    const auto take_bytes = [&](std::size_t bytes) {
        return workspace.take<std::byte>(static_cast<std::int64_t>(bytes));
    };
    GemmMemory memory{};
    memory.branches = book_branches(workspace, plan);
    for (std::size_t i = 0; i < static_cast<std::size_t>(layout.lanes); ++i) {
        LaneMemory &lane = memory.lanes[i];
        if (layout.has_state()) {
            if (pass == ANNULUS_PASS_FORWARD)
                lane.state = workspace.take<float2>(layout.query_rows);
            // Blocks of queries and blocks of keys follow one another.
            const std::int64_t o = layout.query_rows * d, d_kv = layout.key_rows * d;
            const bool apart = layout.grids.size() > 1;
            lane.o = workspace.take<float>(apart ? std::max(o, 2 * d_kv) : o + 2 * d_kv);
            lane.d_k = lane.o + (apart ? 0 : o);
            lane.d_v = lane.d_k + d_kv;
        }
        lane.items = workspace.take<TileItem>(layout.tiles);
        lane.pointers = workspace.take<void *>(operand_count * layout.tiles);
        if (plan.causal() && layout.has_state())
            lane.has_nonfinite = workspace.take<int>(1);
        lane.scores = take_bytes(layout.score_bytes);
        lane.blas = take_bytes(layout.blas_bytes);
    }
    return memory;
}

namespace {

constexpr std::uint64_t default_workspace = std::uint64_t{256} << 20;

} // namespace

GemmLayout layout_within(const Plan &plan, annulus_pass pass, std::uint64_t limit, Results results) {
    const std::uint64_t most = limit ? limit : default_workspace;
    GemmLayout layout = make_layout(plan, pass, most, CudaDevice::lanes, results);
    if (booked_bytes(plan, pass, layout) > most)
        return make_layout(plan, pass, 0, CudaDevice::lanes, results);
    return layout;
}

std::size_t booked_bytes(const Plan &plan, annulus_pass pass, const GemmLayout &layout) {
    Workspace ledger;
    book(ledger, plan, pass, layout);
    return ledger.used();
}

} // namespace annulus
