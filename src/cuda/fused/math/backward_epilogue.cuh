// SPDX-License-Identifier: Apache-2.0
// What a row block does with its gradients after it has met all rows of a tile: it writes them, or stores them as
// partial results.
#pragma once

#include "cuda/fused/math/backward_work.hpp"
#include "cuda/fused/math/row_destinations.cuh"
#include "cuda/fused/math/rows_of_strip.cuh"
#include "cuda/fused/math/store_rows.cuh"
#include "cuda/fused/schedule/tile.cuh"

#include <cstdint>

namespace annulus {

// Stores row r of the thread's two rows as a partial result or, with `adds`, reads the partial result and adds the row
// to it.
struct StorePartialRows {
    template <int count>
    __device__ __forceinline__ static void store(const float (&x)[count], int r, bool adds, float *partial,
                                                 int columns) {
        store_partial_row<count>(x, r, true, 1, adds, 1, partial, columns);
    }
};

// The epilogue of one strip, whose FragmentThread is `Thread`, of a row block of queries or, with `rows_are_keys`, of
// keys. In kernels for either row order, gradients of permuted rows are always partial.
template <class Element, int columns, bool rows_are_keys, RowOrder order, class Thread, class Rows = RowBlock,
          class PartialStore = StorePartialRows>
class BackwardEpilogue {
  public:
    // `batch` and `head`: a batch entry and a head of queries. `partial_batch`: the batch entry of partial results.
    __device__ __forceinline__ BackwardEpilogue(const BackwardWork &work, Destination destination, int batch,
                                                int partial_batch, int head, const Rows &row_block)
        : work_(work), destination_(destination), batch_(batch), partial_batch_(partial_batch), head_(head),
          row_block_(row_block), destinations_(work, destination, head, row_block), partial_rows_([&](int i) {
              return destination == Destination::outputs || !has_row(row_block, i)
                         ? no_row
                         : work.template partial_row<order>(head, row_block.position(i));
          }) {}

    // Writes `factor` times x to `rows`, by way of `staging` in shared memory, or to `partial`.
    __device__ __forceinline__ void write(float (&x)[columns / 2], float factor, std::uint32_t staging,
                                          const TensorRows &rows, float *partial) const {
#pragma unroll
        for (int i = 0; i < count; ++i)
            x[i] *= factor;
        const int head = rows_are_keys ? head_ / work_.heads_of_kv_head : head_;
        if (work_.has_nonfinite)
            note_nonfinite(x, work_.has_nonfinite);
        if (destinations_.any_reads_partial())
            add_partial(x, partial + first_partial_row(head) * work_.head_dim);
        if (destinations_.any_stores_partial())
            add_to_partial(head, x, partial);
        if (destinations_.any_writes_output())
            write_rows(head, x, staging, rows);
    }

  private:
    static constexpr int count = columns / 2;
    static constexpr int no_row = -1;

    __device__ __forceinline__ void write_rows(int head, const float (&x)[count], std::uint32_t staging,
                                               const TensorRows &rows) const {
        auto *const row_0 = rows.template first_row<Element>(batch_, head);
        constexpr RowOrder written = order == RowOrder::along_curve ? order : RowOrder::linear;
        const auto row_of = [&](int i) { return work_.row_of<written>(row_block_.position(i)); };
        const auto store = [&](const auto &stored_rows) {
            stage_rows<Element, Thread>(staging, x, 1.f, 1.f);
            store_rows<Element, columns, Thread>(staging, row_block_, work_.head_dim, stored_rows);
        };
        if constexpr (order == RowOrder::along_curve) {
            const RowsOfStrip<Thread> found(row_of);
            store([&](int i) { return row_0 + found.row(i) * rows.row; });
        } else {
            const int first = row_of(row_block_.skipped) - row_block_.skipped * row_block_.stride;
            store(EvenRows<Element>{row_0 + first * rows.row, row_block_.stride * rows.row});
        }
    }

    // Returns the first row of a head in partial results.
    __device__ __forceinline__ std::int64_t first_partial_row(int head) const {
        const int heads = rows_are_keys ? work_.all_heads / work_.heads_of_kv_head : work_.all_heads;
        return (std::int64_t{partial_batch_} * heads + head) * work_.partial_rows - work_.first_partial_row;
    }

    // Adds the partial results of the rows that have them.
    __device__ __forceinline__ void add_partial(float (&x)[count], const float *partial) const {
        const int2 both = partial_rows_.both();
        const auto row_of = [&](int r, std::int64_t row) {
            return destinations_.reads_partial(r) && row != no_row ? partial + row * work_.head_dim : nullptr;
        };
        add_partial_rows<count>(x, {row_of(0, both.x), row_of(1, both.y)}, work_.head_dim);
    }

    __device__ __forceinline__ void add_to_partial(int head, const float (&x)[count], float *partial) const {
        const std::int64_t first = first_partial_row(head);
        const int2 both = partial_rows_.both();
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int partial_row = r == 0 ? both.x : both.y;
            if (partial_row == no_row || !destinations_.stores_partial(r))
                continue;
            float *const target = partial + (first + partial_row) * work_.head_dim;
            PartialStore::store(x, r, destination_ == Destination::add_to_partial, target, work_.head_dim);
        }
    }

    const BackwardWork &work_;
    const Destination destination_;
    const int batch_, partial_batch_, head_;
    const Rows &row_block_;
    const RowDestinations<Thread> destinations_;
    const RowsOfStrip<Thread> partial_rows_; // of the row block's rows, counted from the head's first
};

} // namespace annulus
