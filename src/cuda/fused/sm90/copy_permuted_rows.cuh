// SPDX-License-Identifier: Apache-2.0
// Copies of permuted rows: rows along a curve (TileGrid::order), for which there is no tensor map. The threads of a
// warp copy them one by one.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/schedule/tile.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <cstdint>

namespace annulus {

// Which rows of a matrix the rows of a block are. Lane i knows rows i, i + 32, ….
template <int rows> struct RowsOfLanes {
    static constexpr int count = (rows + warp_threads - 1) / warp_threads; // some of the last ones may be behind the block
    int row[count];

    RowsOfLanes() = default;
    // row_of(i) returns the matrix row of row i of the block. If it loads the permutation, nothing here waits for that.
    template <class RowOf> __device__ __forceinline__ explicit RowsOfLanes(const RowOf &row_of) {
        const int lane = thread_of_block() & (warp_threads - 1);
#pragma unroll
        for (int i = 0; i < count; ++i)
            row[i] = row_of(i * warp_threads + lane);
    }
};

// The matrix rows of ranges, `rows` at a time, as position_of() finds them; a range is within one segment. The rows of
// the next block are requested before the rows of the current block are copied.
template <int rows> class RowsOfRange {
  public:
    template <int row_blocks>
    __device__ __forceinline__ void begin(const TileGrid &grid, const Range<row_blocks> &range, int first) {
        const auto [start, order] = grid.order_of_segment(range.first);
        order_ = order + (range.first - start);
        row_0_ = start - grid.first_range_row;
        next_ = find(range, first);
    }
    // Returns the rows that were requested last, and requests the rows from the range's row `next` on. Beyond either
    // end of the range it is the row at that end: consumers hide or clear what comes of it.
    template <int row_blocks>
    __device__ __forceinline__ RowsOfLanes<rows> take(const Range<row_blocks> &range, int next) {
        RowsOfLanes<rows> own;
#pragma unroll
        for (int i = 0; i < RowsOfLanes<rows>::count; ++i)
            own.row[i] = next_.row[i] + row_0_;
        next_ = find(range, next);
        return own;
    }

  private:
    // Requests rows, counted from the segment's start.
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

// Copies `rows` rows of a matrix into a block of `block_rows` rows in shared memory. `row_0` is row 0 of the matrix in
// a batch entry and head. Columns from `head_dim` on become zeros. Calls beside_row(row of the block, row of the
// matrix) for each row.
template <int columns, int block_rows, int rows, class Element, class BesideRow>
__device__ __forceinline__ void copy_permuted_rows(std::uint32_t target, const Element *row_0, std::int64_t distance,
                                                   int head_dim, RowsOfLanes<rows> own, const BesideRow &beside_row) {
    // A lane copies a part of each 64 bytes of a row, or of each 128 bytes of a long row, at constant distances. With
    // fewer lanes for a row, fewer addresses are exchanged, but an instruction reads more rows.
    constexpr int parts = RowLanes<columns>::parts, lanes = columns <= 64 ? 4 : 8;
    const int lane = thread_of_block() & (warp_threads - 1), part = lane & (lanes - 1);
    target += swizzled_offset(block_rows, lane - part, part); // lanes copy the rows that they know
#pragma unroll 1
    for (int first = 0; first < rows; first += warp_threads, target += warp_threads * swizzled_row_bytes) {
        const auto own_row =
            reinterpret_cast<unsigned long long>(row_0 + static_cast<std::uint32_t>(own.row[0]) * distance);
#pragma unroll
        for (int i = 0; i < lanes; ++i) {
            const auto *const source =
                reinterpret_cast<const Element *>(__shfl_sync(~0u, own_row, i, lanes)) + part * 8;
#pragma unroll
            for (int more = 0; more < parts; more += lanes) // nothing is read behind the row
                if (more + part < parts && (rows % warp_threads == 0 || first + lane - part < rows))
                    cp_async_16((swizzled_rows_further(target, i) ^ more % 8 * 16) +
                                    more / 8 * block_rows * swizzled_row_bytes,
                                source + more * 8, (more + part) * 8 < head_dim);
        }
        if (rows % warp_threads == 0 || first + lane < rows)
            beside_row(first + lane, own.row[0]);
#pragma unroll
        for (int i = 1; i < RowsOfLanes<rows>::count; ++i)
            own.row[i - 1] = own.row[i];
    }
}

// Copies that a warp has in flight, and how it waits for barriers in between. The warp arrives at the `full` barrier of
// its copies when the next copies are in flight, or when there is no room for them yet.
class CopiesInFlight {
  public:
    __device__ __forceinline__ void wait(const Mbarrier &barrier, unsigned parity) {
        if (__all_sync(~0u, barrier.has_ended(parity)))
            return;
        finish();
        barrier.wait(parity);
    }
    // Adds all copies since the last call. `full` gets one arrival for them.
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

    Mbarrier *full_ = nullptr; // barrier of copies that have not arrived yet
};

} // namespace annulus
