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
    for (std::size_t i = 0; i < static_cast<std::size_t>(layout.workers); ++i) {
        WorkerMemory &worker = memory.workers[i];
        if (layout.has_state()) {
            if (pass == ANNULUS_PASS_FORWARD)
                worker.state = workspace.take<float2>(layout.query_rows);
            // The grid of query blocks and the grid of key blocks run one after the other and share the memory.
            const std::int64_t o = layout.query_rows * d, d_kv = layout.key_rows * d;
            const bool apart = layout.grids.size() > 1;
            worker.o = workspace.take<float>(apart ? std::max(o, 2 * d_kv) : o + 2 * d_kv);
            worker.d_k = worker.o + (apart ? 0 : o);
            worker.d_v = worker.d_k + d_kv;
        }
        worker.items = workspace.take<TileItem>(layout.tiles);
        worker.pointers = workspace.take<void *>(operand_count * layout.tiles);
        if (plan.hides_keys() && layout.has_state())
            worker.has_nonfinite = workspace.take<int>(1);
        worker.scores = take_bytes(layout.score_bytes);
        worker.blas = take_bytes(layout.blas_bytes);
    }
    return memory;
}

namespace {

constexpr std::uint64_t default_workspace = std::uint64_t{256} << 20;

} // namespace

GemmLayout layout_within(const Plan &plan, annulus_pass pass, std::uint64_t limit, Results results) {
    const std::uint64_t max_bytes = limit ? limit : default_workspace;
    GemmLayout layout = make_layout(plan, pass, max_bytes, CudaDevice::side_streams, results);
    if (booked_bytes(plan, pass, layout) > max_bytes)
        return make_layout(plan, pass, 0, CudaDevice::side_streams, results);
    return layout;
}

std::size_t booked_bytes(const Plan &plan, annulus_pass pass, const GemmLayout &layout) {
    Workspace ledger;
    book(ledger, plan, pass, layout);
    return ledger.used();
}

} // namespace annulus
