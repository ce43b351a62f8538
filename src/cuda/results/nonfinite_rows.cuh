// SPDX-License-Identifier: Apache-2.0
// Recomputes single rows from the definition, each by one warp.
//
// Causality or a window hides a key by a probability of 0. But 0 times an infinity or NaN in the hidden row is NaN in a
// matrix product, which would reach queries that do not attend to that key. Therefore the columns of a result that are
// NaN are recomputed here over the visible rows alone. That takes as long as a plain loop over the row's pairs. It
// takes less if the row attends to a NaN: the loop ends as soon as all these columns are NaN again.

#pragma once

#include "core/class_pairs.hpp"
#include "core/softmax_limits.hpp"
#include "cuda/device/kernel_common.cuh"
#include "cuda/results/results.hpp"

namespace annulus {

constexpr int max_columns = 256 / 32; // of a lane

// The columns of a row that a lane holds: lane, lane + 32, …
struct LaneRow {
    float x[max_columns] = {};

    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

    template <class T> static __device__ LaneRow load(const T *row, int columns) {
        LaneRow values;
        for (int i = 0; i < max_columns; ++i)
            if (lane() + 32 * i < columns)
                values.x[i] = to_float(row[lane() + 32 * i]);
        return values;
    }
    __device__ void add(float factor, const LaneRow &row) {
        for (int i = 0; i < max_columns; ++i)
            x[i] += factor * row.x[i];
    }
    __device__ float dot(const LaneRow &row) const {
        float sum = 0;
        for (int i = 0; i < max_columns; ++i)
            sum += x[i] * row.x[i];
        for (int step = 16; step > 0; step /= 2)
            sum += __shfl_xor_sync(~0u, sum, step);
        return sum;
    }
    // Writes the columns that `columns` has.
    template <class T, class Columns> __device__ void store(T *row, const Columns &columns) const {
        for (int i = 0; i < max_columns; ++i)
            if (columns.has(i))
                row[lane() + 32 * i] = from_float<T>(x[i]);
    }
};

// The columns of a row that are NaN. Each lane knows its own columns.
class NonfiniteColumns {
  public:
    explicit __device__ NonfiniteColumns(const LaneRow &row) {
        for (int i = 0; i < max_columns; ++i)
            own_ |= static_cast<unsigned>(isnan(row.x[i])) << i;
    }
    __device__ bool has(int i) const { return (own_ >> i & 1) != 0; }
    // True if any lane of the warp has a NaN.
    __device__ bool any() const { return __any_sync(~0u, own_ != 0); }
    // True if all of these columns are NaN in another row, too.
    __device__ bool are_nan_in(const LaneRow &row) const {
        return __all_sync(~0u, (own_ & ~NonfiniteColumns(row).own_) == 0);
    }

  private:
    unsigned own_ = 0;
};

// Calls visit(index of a branch, the branch, row of its position 0) for the branches in the sequence of a row, until it
// returns false.
template <class Visit>
__device__ void for_each_branch(const RowContext &c, std::int64_t batch, std::int64_t row, Visit visit) {
    if (!c.sequences) {
        for (int i = 0; i < c.branch_count; ++i)
            if (!visit(i, c.branches[i], std::int64_t{0}))
                return;
        return;
    }
    for (int j = 0; j < c.sequence_count; ++j) {
        const RowSequence &own = c.sequences[j];
        if (own.batch != batch || row < own.start || row >= own.start + own.length)
            continue;
        for (int i = 0; i < c.branch_count; ++i)
            if (!visit(i, BranchPlan(c.branches[i], own.length), std::int64_t{own.start}))
                return;
        return;
    }
}

// Returns a window of rows in positions of a sequence whose position 0 is row `start`.
__device__ inline Window window_from(const Window &rows, std::int64_t start) {
    return {rows.start - start, rows.length};
}

// True if the pair counts in an earlier branch, so that it must not count in `branch` again.
__device__ inline bool is_repeated(const RowContext &c, int branch, std::int32_t head, std::int64_t query,
                                   std::int64_t key) {
    return c.keys_count_once && attends(c.branches, branch, head, query, key);
}

// Calls use(row of a key) for the keys that a query sees, until it returns false.
template <class Use>
__device__ void for_each_key(const RowContext &c, std::int64_t batch, std::int32_t head, std::int64_t query, Use use) {
    for_each_branch(c, batch, query, [&](int i, const BranchPlan &branch, std::int64_t start) {
        const ClassPair pair = pair_of_query(branch, head, query - start);
        return for_each_position(
            pair.segment, pair.keys, seen_keys(branch, query - start, window_from(c.keys, start)),
            [&](std::int64_t key) { return is_repeated(c, i, head, query - start, key) || use(start + key); });
    });
}

// Calls use(row of a query) for the queries of a head that see a key, until it returns false.
template <class Use>
__device__ void for_each_query(const RowContext &c, std::int64_t batch, std::int32_t head, std::int64_t key, Use use) {
    for_each_branch(c, batch, key, [&](int i, const BranchPlan &branch, std::int64_t start) {
        const ClassPair pair = pair_of_key(branch, branch.segment_at(key - start), head, head + 1, key - start);
        return for_each_position(
            pair.segment, pair.queries, seeing_queries(branch, key - start, window_from(c.queries, start)),
            [&](std::int64_t query) { return is_repeated(c, i, head, query, key - start) || use(start + query); });
    });
}

// Returns log2 of the sum of 2^score over a row, or NaN if a score is infinite.
template <class T>
__device__ float log2_sum_of_row(const RowContext &c, std::int64_t batch, std::int32_t head, std::int64_t query) {
    const std::int32_t kv_head = head / c.heads_per_kv_head;
    const LaneRow q = LaneRow::load(row_at<T>(c.q, batch, head, query), c.head_dim);
    float largest = -INFINITY, sum = 0;
    for_each_key(c, batch, head, query, [&](std::int64_t key) {
        const LaneRow k = LaneRow::load(row_at<T>(c.k, batch, kv_head, key), c.head_dim);
        const float score = q.dot(k) * c.scale * log2_e, before = largest;
        largest = fmaxf(largest, score);
        sum = sum * exp2f(before - largest) + exp2f(score - largest) + 0.f * score;
        return true;
    });
    return largest + log2f(sum);
}

// Returns columns of a row of O, from log2 of the row's sum of 2^score.
template <class T>
__device__ LaneRow output_row(const RowContext &c, std::int64_t batch, std::int32_t head, std::int64_t query,
                              float log2_sum, const NonfiniteColumns &wanted) {
    const std::int32_t kv_head = head / c.heads_per_kv_head;
    const LaneRow q = LaneRow::load(row_at<T>(c.q, batch, head, query), c.head_dim);
    LaneRow o;
    for_each_key(c, batch, head, query, [&](std::int64_t key) {
        const LaneRow k = LaneRow::load(row_at<T>(c.k, batch, kv_head, key), c.head_dim);
        const LaneRow v = LaneRow::load(row_at<T>(c.v, batch, kv_head, key), c.head_dim);
        o.add(exp2f(q.dot(k) * c.scale * log2_e - log2_sum), v);
        return !wanted.are_nan_in(o);
    });
    return o;
}

// What backward needs to know of a query.
template <class T> struct QueryRow {
    LaneRow q, d_out;
    float log2_sum, delta;

    __device__ QueryRow(const RowContext &c, std::int64_t batch, std::int32_t head, std::int64_t query)
        : q(LaneRow::load(row_at<T>(c.q, batch, head, query), c.head_dim)),
          d_out(LaneRow::load(row_at<T>(c.d_out, batch, head, query), c.head_dim)),
          log2_sum(usable_lse(*row_at<float>(c.lse, batch, head, query)) * log2_e),
          delta(d_out.dot(LaneRow::load(row_at<T>(c.out, batch, head, query), c.head_dim))) {
        if (c.d_lse.data)
            delta -= *row_at<float>(c.d_lse, batch, head, query);
    }
    // Returns P and dS of a key.
    __device__ float2 gradients(const RowContext &c, const LaneRow &k, const LaneRow &v) const {
        const float p = exp2f(q.dot(k) * c.scale * log2_e - log2_sum);
        return {p, p * (d_out.dot(v) - delta) * c.scale};
    }
};

template <class T>
__device__ LaneRow query_gradient_row(const RowContext &c, std::int64_t batch, std::int32_t head, std::int64_t query,
                                      const NonfiniteColumns &wanted) {
    const std::int32_t kv_head = head / c.heads_per_kv_head;
    const QueryRow<T> row(c, batch, head, query);
    LaneRow d_q;
    if (row.log2_sum == -INFINITY)
        return d_q;
    for_each_key(c, batch, head, query, [&](std::int64_t key) {
        const LaneRow k = LaneRow::load(row_at<T>(c.k, batch, kv_head, key), c.head_dim);
        const LaneRow v = LaneRow::load(row_at<T>(c.v, batch, kv_head, key), c.head_dim);
        d_q.add(row.gradients(c, k, v).y, k);
        return !wanted.are_nan_in(d_q);
    });
    return d_q;
}

template <class T>
__device__ void key_gradient_rows(const RowContext &c, std::int64_t batch, std::int32_t kv_head, std::int64_t key,
                                  const NonfiniteColumns &wanted_k, const NonfiniteColumns &wanted_v, LaneRow &d_k,
                                  LaneRow &d_v) {
    const LaneRow k = LaneRow::load(row_at<T>(c.k, batch, kv_head, key), c.head_dim);
    const LaneRow v = LaneRow::load(row_at<T>(c.v, batch, kv_head, key), c.head_dim);
    d_k = d_v = {};
    for (int i = 0; i < c.heads_per_kv_head; ++i) {
        const std::int32_t head = kv_head * c.heads_per_kv_head + i;
        for_each_query(c, batch, head, key, [&](std::int64_t query) {
            const QueryRow<T> row(c, batch, head, query);
            if (row.log2_sum == -INFINITY)
                return true;
            const float2 gradients = row.gradients(c, k, v);
            d_v.add(gradients.x, row.d_out);
            d_k.add(gradients.y, row.q);
            return !(wanted_k.are_nan_in(d_k) && wanted_v.are_nan_in(d_v));
        });
    }
}

} // namespace annulus
