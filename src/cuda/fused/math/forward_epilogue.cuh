// SPDX-License-Identifier: Apache-2.0
// What a row block of queries does with O and its softmax after it has met all keys of a tile: it writes O and LSE, or
// stores O and the softmax state as partial results.
#pragma once

#include "cuda/fused/math/forward_work.hpp"
#include "cuda/fused/math/row_destinations.cuh"
#include "cuda/fused/math/rows_of_strip.cuh"
#include "cuda/fused/math/softmax.cuh"
#include "cuda/fused/math/store_rows.cuh"
#include "cuda/fused/schedule/tile.cuh"

#include <cmath>
#include <cstdint>
#include <numbers>

namespace annulus {

// The epilogue of one strip, whose FragmentThread is `Thread`, of row block `index` of a tile. Rows are staged at the
// address `staging` in shared memory, which no other warp's products read any more. In kernels for either row order, O
// of permuted rows is always partial.
template <class Element, int head_dim, int row_blocks, RowOrder order, class Thread> class ForwardEpilogue {
  public:
    __device__ __forceinline__ ForwardEpilogue(const ForwardWork &work, const Tile<row_blocks> &tile, int index,
                                               std::uint32_t staging)
        : work_(work), tile_(tile), row_block_(tile.row_block[index]), batch_(tile.batch), head_(tile.head),
          index_(index), staging_(staging) {}

    __device__ __forceinline__ void write(float (&o)[head_dim / 2], const RunningSoftmax &softmax) {
        float sum[2];
        find_sums(softmax, sum);
        if (work_.has_nonfinite)
            note_nonfinite(o, work_.has_nonfinite);
        const RowDestinations<Thread> rows(work_, work_.destination, head_, row_block_);
        const RowsOfStrip<Thread> partial_rows([&](int i) {
            return work_.destination == Destination::outputs || i >= row_block_.rows
                       ? no_row
                       : work_.template partial_row<order>(head_, row_block_.position(i));
        });
        float top[2] = {softmax.m[0] * work_.scale_log2, softmax.m[1] * work_.scale_log2};
        if (rows.any_reads_partial())
            add_partial(rows, partial_rows, o, top, sum);
        if (rows.any_stores_partial())
            add_to_partial(rows, partial_rows, o, top, sum);
        __syncwarp(); // and no product of this warp reads `staging` any more
        if (rows.any_writes_output())
            write_outputs(rows, partial_rows, o, top, sum);
    }

  private:
    static constexpr int count = head_dim / 2;
    static constexpr int no_row = -1;

    // Finds l of the thread's rows. A row that has met no key that counts gets sum_of_none(). A row gets NaN if one of
    // its scores is too large for its differences to other scores to be right. Both are rare, so the warp first asks
    // for both together.
    __device__ __forceinline__ void find_sums(const RunningSoftmax &softmax, float (&sum)[2]) const {
        bool plain = true;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            sum[r] = sum_of_row(softmax.l[r]);
            plain = plain && sum[r] > 0.f && fabsf(softmax.m[r] * work_.scale_log2) < largest_maximum;
        }
        if (__all_sync(~0u, plain))
            return;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = at_.row(r);
            // This holds for a sum of 0, too: rounding may leave nothing of the largest score's own probability.
            if (softmax.m[r] > -INFINITY && fabsf(softmax.m[r] * work_.scale_log2) >= largest_maximum)
                sum[r] = NAN;
            else if (sum[r] == 0.f && row < row_block_.rows)
                sum[r] = sum_of_none(tile_.sees_keys(work_, index_, row_block_.position(row)));
        }
    }

    __device__ __forceinline__ void write_outputs(const RowDestinations<Thread> &rows,
                                                  const RowsOfStrip<Thread> &partial_rows, float (&o)[count],
                                                  const float (&top)[2], const float (&sum)[2]) {
        Element *const out = static_cast<Element *>(work_.out.data);
        float *const lse = static_cast<float *>(work_.lse.data);
        if constexpr (order == RowOrder::along_curve) {
            const RowsOfStrip<Thread> positions(
                [&](int i) { return work_.position_of<order>(row_block_.position(i)); });
            write_rows(
                o, top, sum, [&](int i) { return lse + work_.lse.offset(batch_, head_, positions.row(i)); },
                [&](int i) { return out + work_.out.offset(batch_, head_, positions.row(i)); });
        } else {
            const auto even_rows = [&](auto *data, const TensorRows &tensor) {
                return EvenRows{data + tensor.offset(batch_, head_, row_block_.first), row_block_.stride * tensor.row};
            };
            write_rows(o, top, sum, even_rows(lse, work_.lse), even_rows(out, work_.out));
        }
        const bool notes_finished =
            work_.destination == Destination::outputs_or_partial || work_.destination == Destination::finish_partial;
        if (!notes_finished)
            return;
        const int partial_row = partial_rows.row(at_.lane());
        if (partial_row != no_row && at_.lane() < 16 && !rows.row_stores_partial(at_.lane()))
            work_.partial_state[first_partial_row() + partial_row] = finished_state();
    }

    // Writes LSE of row i of the row block to lse_at(i), and O to `out_rows`, which store_rows() takes.
    template <class LseAt, class OutRows>
    __device__ __forceinline__ void write_rows(float (&o)[count], const float (&top)[2], const float (&sum)[2],
                                               const LseAt &lse_at, const OutRows &out_rows) {
        float inverse[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            inverse[r] = sum[r] == 0.f ? inverse_sum(sum[r]) : reciprocal_fast(sum[r]);
            const int row = at_.row(r);
            float *const lse = lse_at(row);
            if (work_.lse.data && at_.lane() % 4 == 0 && row < row_block_.rows)
                *lse =
                    sum[r] == 0.f ? inverse[r] - INFINITY : (top[r] + log2_fast(sum[r])) * std::numbers::ln2_v<float>;
        }
        stage_rows<Element, Thread>(staging_, o, inverse[0], inverse[1]);
        store_rows<Element, head_dim, Thread>(staging_, row_block_, work_.head_dim, out_rows);
    }

    // Merges the partial results of other keys into O, its maximum and its sum.
    __device__ __forceinline__ void add_partial(const RowDestinations<Thread> &rows,
                                                const RowsOfStrip<Thread> &partial_rows, float (&o)[count],
                                                float (&top)[2], float (&sum)[2]) const {
        const int2 both = partial_rows.both();
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int partial_row = r == 0 ? both.x : both.y;
            if (!rows.reads_partial(r) || partial_row == no_row)
                continue;
            const std::int64_t index = first_partial_row() + partial_row;
            const float2 before = work_.partial_state[index];
            const float own = sum[r] == 0.f ? -INFINITY : top[r];
            if (before.y == 0.f) { // no key that counts; before.x does not tell: NaN scores, too, leave it -infinity
                if (sum[r] == 0.f)
                    sum[r] = sum_of_none(std::signbit(sum[r]) || std::signbit(before.y));
                continue;
            }
            top[r] = fmaxf(before.x, own);
            const float factor = exp2f(own - top[r]), factor_before = exp2f(before.x - top[r]);
            sum[r] = sum[r] * factor + before.y * factor_before;
            add_partial_row<count>(o, r, factor, factor_before, work_.partial_o + index * work_.head_dim,
                                   work_.head_dim);
        }
    }

    // Stores O and (m, l), or adds them to the partial results of other keys: with M the larger m, 2^(m - M) O + 2^(m'
    // - M) O'.
    __device__ __forceinline__ void add_to_partial(const RowDestinations<Thread> &rows,
                                                   const RowsOfStrip<Thread> &partial_rows, const float (&o)[count],
                                                   const float (&top)[2], const float (&sum)[2]) {
        const bool adds = work_.destination == Destination::add_to_partial;
        const int2 both = partial_rows.both();
        const int partial_row[2] = {both.x, both.y};
        float2 before[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            before[r] = adds && partial_row[r] != no_row ? work_.partial_state[first_partial_row() + partial_row[r]]
                                                         : float2{-INFINITY, 0};
        }
        __syncwarp(); // all four lanes of a row have read what one of them overwrites
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            // O of a row that sees no key may be NaN all the same: 0 times infinities of hidden rows.
            const bool has_keys = sum[r] != 0.f;
            if (partial_row[r] == no_row || !rows.stores_partial(r) || !(has_keys || std::signbit(sum[r]) || !adds))
                continue;
            const std::int64_t index = first_partial_row() + partial_row[r];
            const float own_m = has_keys ? top[r] : -INFINITY;
            const float m = fmaxf(before[r].x, own_m);
            const float own_factor = own_m == -INFINITY ? 0.f : exp2f(own_m - m);
            const float factor = before[r].x == -INFINITY ? 0.f : exp2f(before[r].x - m);
            store_partial_row<count>(o, r, has_keys, own_factor, adds, factor, work_.partial_o + index * work_.head_dim,
                                     work_.head_dim);
            if (at_.lane() % 4 == 0) {
                const float all = before[r].y * factor + sum[r] * own_factor;
                work_.partial_state[index] = {
                    m, all == 0.f ? sum_of_none(std::signbit(before[r].y) || std::signbit(sum[r])) : all};
            }
        }
    }

    // Returns where the partial results of the head begin.
    __device__ __forceinline__ std::int64_t first_partial_row() const {
        return (std::int64_t{tile_.partial_batch} * work_.all_heads + head_) * work_.partial_rows -
               work_.first_partial_row;
    }

    const ForwardWork &work_;
    const Tile<row_blocks> &tile_;
    const RowBlock &row_block_;
    const int batch_, head_;
    const int index_;
    const std::uint32_t staging_;
    const Thread at_;
};

} // namespace annulus
