// SPDX-License-Identifier: Apache-2.0
// Rows that no tensor map has: those along a curve (TileGrid::order). The threads of a warp copy them one by one.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/schedule/tile.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <cstdint>

namespace annulus {

// Which rows of a matrix the rows of a block are: lane i knows row i of every so many as a warp has lanes.
template <int rows> struct RowsOfLanes {
    int row[rows / warp_threads];

    RowsOfLanes() = default;
    // Row i of the block is row row_of(i). Nothing waits for the order here, if that is where it comes from.
    template <class RowOf> __device__ __forceinline__ explicit RowsOfLanes(const RowOf &row_of) {
        static_assert(rows % warp_threads == 0);
        const int lane = thread_of_block() & (warp_threads - 1);
#pragma unroll
        for (int i = 0; i < rows / warp_threads; ++i)
            row[i] = row_of(i * warp_threads + lane);
    }
};

// The rows of ranges, so many at a time, as position_of() has them: a range is within one segment. Those of the next
// block are asked for before those of the one at hand are copied.
template <int rows> class RowsOfRange {
  public:
    template <int row_blocks>
    __device__ __forceinline__ void begin(const TileGrid &grid, const Range<row_blocks> &range, int first) {
        const auto [start, order] = grid.order_of_segment(range.first);
        order_ = order + (range.first - start);
        row_0_ = start - grid.first_range_row;
        next_ = find(range, first);
    }
    // Those that were asked for last; the ones from the range's row `next` on are next. Behind either end it is the row
    // at that end: consumers hide or clear what comes of these.
    template <int row_blocks>
    __device__ __forceinline__ RowsOfLanes<rows> take(const Range<row_blocks> &range, int next) {
        RowsOfLanes<rows> own;
#pragma unroll
        for (int i = 0; i < rows / warp_threads; ++i)
            own.row[i] = next_.row[i] + row_0_;
        next_ = find(range, next);
        return own;
    }

  private:
    // From the segment's start.
    template <int row_blocks>
    __device__ __forceinline__ RowsOfLanes<rows> find(const Range<row_blocks> &range, int first) const {
        const int last = range.count - 1;
        const auto stride = static_cast<unsigned>(range.stride);
        return RowsOfLanes<rows>(
            [&](int i) { return order_[static_cast<unsigned>(min(max(first + i, 0), last)) * stride]; });
    }

    const int *order_;
    int row_0_;
    RowsOfLanes<rows> next_;
};

// Copies rows of a block of so many to shared memory from a matrix, of whose batch entry and head `row_0` is row 0.
// Columns behind `head_dim` are zeros. beside_row(row, row of the matrix) is called for each.
template <int columns, int block_rows, int rows, class Element, class BesideRow>
__device__ __forceinline__ void copy_permuted_rows(std::uint32_t target, const Element *row_0, std::int64_t distance,
                                                   int head_dim, RowsOfLanes<rows> own, const BesideRow &beside_row) {
    // A lane has a part of each 64 bytes of a row, or 128 of a long one, at distances that are constants: the fewer
    // lanes a row has, the fewer addresses are exchanged, but the more rows an instruction reads.
    constexpr int parts = RowLanes<columns>::parts, lanes = columns <= 64 ? 4 : 8;
    const int lane = thread_of_block() & (warp_threads - 1), part = lane & (lanes - 1);
    target += swizzled_offset(block_rows, lane - part, part); // they copy rows that they know
#pragma unroll 1
    for (int first = 0; first < rows; first += warp_threads, target += warp_threads * swizzled_row_bytes) {
        const auto own_row =
            reinterpret_cast<unsigned long long>(row_0 + static_cast<std::uint32_t>(own.row[0]) * distance);
#pragma unroll
        for (int i = 0; i < lanes; ++i) {
            const auto *const source =
                reinterpret_cast<const Element *>(__shfl_sync(~0u, own_row, i, lanes)) + part * 8;
#pragma unroll
            for (int more = 0; more < parts; more += lanes) // nothing is read where there is nothing
                if (more + part < parts)
                    cp_async_16((swizzled_rows_further(target, i) ^ more % 8 * 16) +
                                    more / 8 * block_rows * swizzled_row_bytes,
                                source + more * 8, (more + part) * 8 < head_dim);
        }
        beside_row(first + lane, own.row[0]);
#pragma unroll
        for (int i = 1; i < rows / warp_threads; ++i)
            own.row[i - 1] = own.row[i];
    }
}

// Copies that a warp has begun, and how it waits for barriers in between: they are announced when the next ones are
// under way, or where there is no room for these yet.
class CopiesInFlight {
  public:
    __device__ __forceinline__ void wait(const Mbarrier &barrier, unsigned parity) {
        if (__all_sync(~0u, barrier.has_ended(parity)))
            return;
        finish();
        barrier.wait(parity);
    }
    // All copies since the last call, of which `full` gets one arrival.
    __device__ __forceinline__ void add(Mbarrier &full) {
        cp_async_commit();
        if (full_)
            announce<1>();
        full_ = &full;
    }
    __device__ __forceinline__ void finish() {
        if (full_)
            announce<0>();
        full_ = nullptr;
    }

  private:
    template <int later_groups> __device__ __forceinline__ void announce() const {
        cp_async_wait_but<later_groups>();
        fence_async_proxy();
        __syncwarp();
        if (thread_of_block() % warp_threads == 0)
            full_->arrive();
    }

    Mbarrier *full_ = nullptr; // of copies that are not announced yet
};

} // namespace annulus
