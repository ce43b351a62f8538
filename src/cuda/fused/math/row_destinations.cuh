// SPDX-License-Identifier: Apache-2.0
// The destinations of a row block's results. A warp finds this out for each of its strips of 16 rows, without other
// warps.
#pragma once

#include "cuda/fused/math/fragment.cuh"
#include "cuda/fused/schedule/destination.hpp"
#include "cuda/fused/schedule/tile.cuh"

namespace annulus {

// The destinations of the results of a strip's rows, and which rows read partial results first. `Thread` is the
// FragmentThread of the strip.
template <class Thread> class RowDestinations {
  public:
    template <class Work, class Rows>
    __device__ __forceinline__ RowDestinations(const Work &work, Destination destination, int head,
                                               const Rows &row_block)
        : rows_(0) {
        switch (destination) {
        case Destination::outputs:
            return;
        case Destination::set_partial:
        case Destination::add_to_partial:
            rows_ = all_stored;
            return;
        case Destination::finish_partial:
            rows_ = all_read;
            return;
        case Destination::outputs_with_partial:
        case Destination::outputs_or_partial:
            break;
        }
        // Each lane asks one question about one row: lanes 0 to 15 whether it reads partial results, lanes 16 to 31
        // whether it is stored as partial results.
        const Thread own;
        const int row = own.strip() * 16 + own.lane() % 16;
        const bool asks_for_left = own.lane() >= 16;
        const PartialRows &asked = asks_for_left ? work.rows_left_partial : work.rows_with_partial;
        const bool asks =
            has_row(row_block, row) && !(asks_for_left && destination == Destination::outputs_with_partial);
        rows_ = __ballot_sync(~0u, asks && asked.has(head, row_block.position(row)));
    }

    // Return whether any row is written to the caller's tensors, is stored as partial results, or reads partial
    // results. All lanes get the same answer.
    __device__ __forceinline__ bool any_writes_output() const { return rows_ < all_stored; }
    __device__ __forceinline__ bool any_stores_partial() const { return rows_ >> 16; }
    __device__ __forceinline__ bool any_reads_partial() const { return rows_ & all_read; }
    // Return the answer for row r of the thread's two rows.
    __device__ __forceinline__ bool reads_partial(int r) const { return rows_ >> Thread().row_of_strip(r) & 1; }
    __device__ __forceinline__ bool stores_partial(int r) const { return row_stores_partial(Thread().row_of_strip(r)); }
    // Returns the answer for a row of the strip's 16.
    __device__ __forceinline__ bool row_stores_partial(int row) const { return rows_ >> (16 + row) & 1; }

  private:
    static constexpr unsigned all_read = 0xffff, all_stored = all_read << 16;
    unsigned
        rows_; // bits 0 to 15: rows that read partial results; bits 16 to 31: rows that are stored as partial results
};

} // namespace annulus
