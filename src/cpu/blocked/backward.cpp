// SPDX-License-Identifier: Apache-2.0
// Backward on the CPU, branch by branch. In a branch only the queries of a class touch the keys of that class of a
// segment. So units (batch entry, key/value head, segment, class) share no row of a gradient. A unit pairs key chunks
// with query chunks in cells. Cells run in steps. Two cells of one step have no key chunk and no query chunk in common.
// A step begins when the step before it has ended. Therefore cells add to dQ, dK and dV without locks. Every sum has
// one order for any number of threads.
//
// With P recomputed from LSE, and delta = O . dO - dLSE: dV = P^T dO, dS = scale P (dO V^T - delta), dQ = dS K,
// dK = dS^T Q. If only dV is wanted, dS is not computed.
#include "core/class_pairs.hpp"
#include "core/softmax_limits.hpp"
#include "core/workspace.hpp"
#include "cpu/blocked/cell_schedule.hpp"
#include "cpu/blocked/passes.hpp"
#include "cpu/blocked/repeated_keys.hpp"
#include "cpu/blocked/tile.hpp"
#include "cpu/parallel.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>

namespace annulus {

namespace {

constexpr std::size_t max_columns = 256; // of a head

// The gradients in the type of accumulation. They are the caller's own tensors if those hold sums, else copies. If only
// dV is wanted, q and k are empty.
struct Gradients {
    annulus_tensor q, k, v;
};

template <class T> constexpr annulus_dtype accumulation_dtype = sizeof(T) == 8 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32;

annulus_tensor packed(void *data, annulus_dtype dtype, std::int64_t b, std::int64_t n, std::int64_t heads,
                      std::int64_t d) {
    return {data, dtype, 4, {b, n, heads, d}, {n * heads * d, heads * d, d, 1}};
}

template <class T> Gradients book_gradients(Workspace &workspace, const Plan &plan, const CallTensors *tensors) {
    const Problem &p = plan.problem();
    const annulus_dtype dtype = accumulation_dtype<T>;
    const auto book = [&](const GradientTarget &target, annulus_tensor CallTensors::*own, std::int64_t n,
                          std::int64_t heads) {
        if (holds_sums(p, target))
            return tensors ? tensors->*own : annulus_tensor{};
        return packed(workspace.take<T>(p.batch, n, heads, p.head_dim), dtype, p.batch, n, heads, p.head_dim);
    };
    Gradients gradients{};
    if (!p.gradients.only_v) {
        gradients.q = book(p.gradients.q, &CallTensors::d_q, p.queries.length, p.heads);
        gradients.k = book(p.gradients.k, &CallTensors::d_k, p.keys.length, p.kv_heads);
    }
    gradients.v = book(p.gradients.v, &CallTensors::d_v, p.keys.length, p.kv_heads);
    return gradients;
}

template <class T> struct CellScratch {
    // A tile of queries.
    T *q, *d_out;                  // [query_tile, D]
    T *q_t, *d_out_t;              // transposed
    T *d_q;                        // [query_tile, D]
    T *lse, *delta;                // [query_tile]
    std::int64_t *query_positions; // [query_tile]
    // A tile of keys.
    T *k, *v, *d_k, *d_v;        // [key_tile, D]
    T *scores, *d_scores;        // [key_tile, group_columns]
    std::int64_t *key_positions; // [key_tile]
    RepeatedKeys::Table *repeated;
};

template <class T> CellScratch<T> book_scratch(Workspace &workspace, const Plan &plan) {
    const std::int64_t d = plan.problem().head_dim, keys = key_tile(plan.problem().head_dim);
    CellScratch<T> s;
    for (T **tile : {&s.q, &s.d_out, &s.q_t, &s.d_out_t, &s.d_q})
        *tile = workspace.take<T>(query_tile * d);
    for (T **row : {&s.lse, &s.delta})
        *row = workspace.take<T>(query_tile);
    s.query_positions = workspace.take<std::int64_t>(query_tile);
    for (T **tile : {&s.k, &s.v, &s.d_k, &s.d_v})
        *tile = workspace.take<T>(keys * d);
    for (T **tile : {&s.scores, &s.d_scores})
        *tile = workspace.take<T>(keys * group_columns);
    s.key_positions = workspace.take<std::int64_t>(keys);
    s.repeated = RepeatedKeys::book(workspace, plan);
    return s;
}

template <class T> class CellBackward {
  public:
    CellBackward(const Plan &plan, const CallTensors &tensors, const Gradients &gradients,
                 const CellScratch<T> &scratch)
        : plan_(plan), tensors_(tensors), gradients_(gradients), s_(scratch), d_(plan.problem().head_dim),
          only_v_(plan.problem().gradients.only_v) {}

    void run(const BranchPlan &branch, const CellSchedule &schedule, const CellSchedule::Cell &cell) const {
        const std::int64_t residue = schedule.residue(cell.kv_head, cell.slot);
        if (residue < 0)
            return;
        const Segment segment = branch.segment(cell.segment);
        const ClassPair pair =
            clip(class_pair(branch, segment, residue), plan_.problem().queries, plan_.problem().keys);
        const Progression chunk = slice(pair.keys, cell.key_chunk * key_chunk, (cell.key_chunk + 1) * key_chunk);
        if (chunk.count == 0 || pair.queries.count == 0)
            return;
        const std::int64_t query_chunk = schedule.query_chunk(cell, pair);
        const int queries = query_chunk < 0 ? 0 : find_queries(pair, query_chunk);
        if (queries == 0)
            return;
        const Span span = span_of(s_.query_positions, queries);
        const Progression keys = clip(segment, chunk, branch.bounds().keys(span.low, span.high));
        if (keys.count == 0)
            return;
        const std::int32_t group = plan_.problem().heads / plan_.problem().kv_heads;
        const Progression heads = branch.users(residue, cell.kv_head * group, (cell.kv_head + 1) * group);
        for (std::int64_t j = 0; j < heads.count; ++j)
            run_head(cell.b, static_cast<std::int32_t>(heads[j]), branch, segment, keys, queries, span);
    }

  private:
    // Fills s_.query_positions with the pair's queries of one chunk that are in the window. Returns their number.
    int find_queries(const ClassPair &pair, std::int64_t index) const {
        const Progression queries = slice(pair.queries, index * query_tile, (index + 1) * query_tile);
        return fill_positions(pair.segment, queries, 0, queries.count, plan_.problem().queries, s_.query_positions);
    }

    void run_head(std::int64_t b, std::int32_t head, const BranchPlan &branch, const Segment &segment,
                  const Progression &keys, int queries, const Span &query_span) const {
        const Problem &problem = plan_.problem();
        const std::int32_t kv_head = problem.kv_head(head);
        const bool q_is_finite = load_queries(b, head, queries);
        const HeadRows k(tensors_.k, b, kv_head, problem.keys.start, problem.key_stride);
        const HeadRows v(tensors_.v, b, kv_head, problem.keys.start, problem.key_stride);
        const HeadRows d_k(gradients_.k, b, kv_head, problem.keys.start, problem.key_stride);
        const HeadRows d_v(gradients_.v, b, kv_head, problem.keys.start, problem.key_stride);
        const int tile = key_tile(problem.head_dim);
        RepeatedKeys repeated(s_.repeated, plan_.earlier_branches(branch), head, s_.query_positions, queries);
        for (std::int64_t from = 0; from < keys.count; from += tile) {
            const int n = fill_positions(segment, keys, from, std::min<std::int64_t>(tile, keys.count - from),
                                         problem.keys, s_.key_positions);
            if (n == 0)
                continue;
            const Span span = span_of(s_.key_positions, n);
            if (!meets(branch.bounds(), query_span, span))
                continue;
            repeated.meet(query_span, s_.key_positions, n, span);
            const bool k_is_finite = load_tile(k, s_.key_positions, n, d_, s_.k);
            std::fill_n(s_.d_v, n * d_, T{0});
            if (!only_v_) {
                load_tile(v, s_.key_positions, n, d_, s_.v);
                std::fill_n(s_.d_k, n * d_, T{0});
            }
            const KeyTile loaded{segment, branch.bounds(), n, span, k_is_finite};
            for (int group = 0; group < queries; group += group_columns)
                run_group(loaded, repeated, group, std::min(group_columns, queries - group), q_is_finite);
            add_tile(s_.d_v, s_.key_positions, n, d_v);
            if (!only_v_)
                add_tile(s_.d_k, s_.key_positions, n, d_k);
        }
        if (!only_v_)
            add_tile(s_.d_q, s_.query_positions, queries, HeadRows(gradients_.q, b, head, problem.queries.start));
    }

    // The loaded tile of keys.
    struct KeyTile {
        const Segment &segment;
        const KeyBounds &bounds;
        int count;
        Span span;
        bool k_is_finite;
    };

    // Adds what the tile of keys and `columns` queries, from number `group` of their tile on, add to the gradients.
    void run_group(const KeyTile &keys, const RepeatedKeys &repeated, int group, int columns, bool q_is_finite) const {
        const VectorKernels<T> &vector = vector_kernels<T>();
        const KeyBounds &bounds = keys.bounds;
        const Span own = span_of(s_.query_positions + group, columns);
        if (!meets(bounds, own, keys.span))
            return;
        const bool is_masked = !covers(bounds, own, keys.span);
        const KeyRange seen =
            is_masked ? visible_keys(keys.segment, s_.key_positions, keys.count, bounds, own) : KeyRange{0, keys.count};
        const int offset = group * d_, key_offset = seen.first * d_;
        score_tile(seen.count, d_, s_.k + key_offset, s_.q_t + offset,
                   static_cast<T>(plan_.scale() * std::numbers::log2e), s_.scores);
        if (!only_v_)
            score_tile(seen.count, d_, s_.v + key_offset, s_.d_out_t + offset, T{1}, s_.d_scores);
        vector.gradient(s_.scores, only_v_ ? nullptr : s_.d_scores, seen.count, s_.lse + group, s_.delta + group,
                        static_cast<T>(plan_.scale()));
        T *const matrices[] = {s_.scores, s_.d_scores};
        const std::span<T *const> found(matrices, only_v_ ? 1 : 2);
        if (is_masked) // after gradient(): NaN in LSE must not reach keys that the query does not see
            for (T *hidden : found)
                for_each_masked(keys.segment, s_.key_positions, seen, bounds, own, [&](const KeyRange &keys_of_some) {
                    vector.mask(hidden + (keys_of_some.first - seen.first) * group_columns, keys_of_some.count,
                                s_.key_positions + keys_of_some.first, s_.query_positions + group, bounds.before,
                                bounds.after, T{0});
                });
        const bool has_repeated = repeated.meets(own);
        if (has_repeated)
            for (T *hidden : found)
                repeated.hide(group, s_.query_positions + group, seen, hidden, T{0});
        const bool skips_zeros_q = (is_masked || has_repeated) && !q_is_finite,
                   skips_zeros_k = (is_masked || has_repeated) && !keys.k_is_finite;
        add_to_keys(skips_zeros_q, seen.count, d_, columns, s_.scores, s_.d_out + offset, s_.d_v + key_offset);
        if (only_v_)
            return;
        add_to_keys(skips_zeros_q, seen.count, d_, columns, s_.d_scores, s_.q + offset, s_.d_k + key_offset);
        add_to_queries(skips_zeros_k, columns, d_, seen.count, s_.d_scores, s_.k + key_offset, s_.d_q + offset);
    }

    // Loads the tile's Q, dO, LSE and delta. Returns true if Q and dO are finite.
    bool load_queries(std::int64_t b, std::int32_t head, int count) const {
        const VectorKernels<T> &vector = vector_kernels<T>();
        const std::int64_t start = plan_.problem().queries.start;
        const HeadRows out(tensors_.out, b, head, start);
        bool is_finite = load_tile(HeadRows(tensors_.q, b, head, start), s_.query_positions, count, d_, s_.q);
        is_finite &= load_tile(HeadRows(tensors_.d_out, b, head, start), s_.query_positions, count, d_, s_.d_out);
        T *o = s_.d_q; // d_q is free until the first product
        if (!only_v_)
            load_tile(out, s_.query_positions, count, d_, o);
        for (int i = 0; i < count; ++i) {
            const std::int64_t row = s_.query_positions[i] - start;
            const T lse = usable_lse(*statistic<T>(*tensors_.lse, b, head, row));
            // A query without keys has no probabilities: 2^(S - infinity) is 0.
            s_.lse[i] = lse == -std::numeric_limits<T>::infinity() ? -lse : lse * static_cast<T>(std::numbers::log2e);
            s_.delta[i] = only_v_ ? 0 : vector.dot(o + i * d_, s_.d_out + i * d_, d_);
            if (tensors_.d_lse)
                s_.delta[i] -= *statistic<T>(*tensors_.d_lse, b, head, row);
        }
        transpose_tile(s_.q, count, d_, s_.q_t);
        transpose_tile(s_.d_out, count, d_, s_.d_out_t);
        std::fill_n(s_.d_q, count * d_, T{0});
        return is_finite;
    }

    void add_tile(const T *tile, const std::int64_t *positions, int count, const HeadRows &rows) const {
        for (int i = 0; i < count; ++i)
            vector_kernels<T>().add(static_cast<T *>(rows[positions[i]]), tile + i * d_, d_);
    }

    const Plan &plan_;
    const CallTensors &tensors_;
    const Gradients &gradients_;
    const CellScratch<T> &s_;
    int d_;
    bool only_v_;
};

// Calls work(b, n, head) for every row of a [B, N, heads, D] tensor. An item has a few thousand rows.
template <class Work> void for_each_row(const annulus_tensor &tensor, int threads, Work work) {
    constexpr std::int64_t rows_per_item = 4096;
    const std::int64_t n = tensor.shape[1], heads = tensor.shape[2], rows = tensor.shape[0] * n * heads;
    parallel_for(threads, divide_up(rows, rows_per_item), [&](std::int64_t item, int) {
        for (std::int64_t i = item * rows_per_item; i < std::min(rows, (item + 1) * rows_per_item); ++i)
            work(i / heads / n, i / heads % n, i % heads);
    });
}

template <class T> void set_to_zero(const annulus_tensor &tensor, int threads) {
    for_each_row(tensor, threads, [&](std::int64_t b, std::int64_t n, std::int64_t head) {
        std::fill_n(row<T>(tensor, b, n, head), tensor.shape[3], T{0});
    });
}

// Rounds a gradient into the caller's tensor, or adds it to what the tensor holds. Does nothing if the two are the
// same. If it adds, `gradient` holds the sums afterwards, and rows whose gradient is zero are not written.
template <class T> void write(const annulus_tensor &gradient, const annulus_tensor &target, bool adds, int threads) {
    if (gradient.data == target.data)
        return;
    const VectorKernels<T> &vector = vector_kernels<T>();
    const auto columns = static_cast<int>(target.shape[3]);
    for_each_row(gradient, threads, [&](std::int64_t b, std::int64_t n, std::int64_t head) {
        T *const from = row<T>(gradient, b, n, head);
        void *const to = HeadRows(target, b, head, 0)[n];
        if (adds) {
            if (std::all_of(from, from + columns, [](T x) { return x == 0; }))
                return;
            std::array<T, max_columns> before;
            vector.load_row(target.dtype, to, columns, before.data());
            vector.add(from, before.data(), columns);
        }
        vector.store_row(target.dtype, from, T{1}, columns, to);
    });
}

template <class T> std::size_t bytes_of_cell_scratch(const Plan &plan) {
    Workspace ledger;
    book_scratch<T>(ledger, plan);
    return ledger.used();
}

} // namespace

namespace {

// Adds the contributions of the plan's keys to the gradients.
template <class T>
void add_gradients(const Plan &plan, const CallTensors &tensors, const Gradients &gradients, const Workspace &workspace,
                   int threads) {
    const std::size_t piece = bytes_of_cell_scratch<T>(plan);
    for (const BranchPlan &branch : plan.branches()) {
        const CellSchedule schedule(plan, branch);
        parallel_phases(
            threads, schedule.steps(), [&](std::int64_t) { return schedule.cells(); },
            [&](std::int64_t step, std::int64_t item, int worker) {
                Workspace mine = workspace;
                mine.skip(piece, worker);
                const CellScratch<T> scratch = book_scratch<T>(mine, plan);
                CellBackward<T>(plan, tensors, gradients, scratch).run(branch, schedule, schedule.cell(step, item));
            });
    }
}

template <class T>
void write_gradients(const Plan &plan, const Gradients &gradients, const CallTensors &tensors, int threads) {
    const GradientTargets &targets = plan.problem().gradients;
    if (!targets.only_v) {
        write<T>(gradients.q, tensors.d_q, targets.q.adds, threads);
        write<T>(gradients.k, tensors.d_k, targets.k.adds, threads);
    }
    write<T>(gradients.v, tensors.d_v, targets.v.adds, threads);
}

// Returns partial results as tensors, whose rows are stored head by head. If there are none of a gradient, returns the
// caller's tensor.
template <class T> Gradients gradients_of(const Plan &plan, const PartialResults &partial, const CallTensors &tensors) {
    const Problem &p = plan.problem();
    const auto tensor = [&](void *data, const annulus_tensor &own, std::int64_t n, std::int64_t heads) {
        const std::int64_t d = p.head_dim;
        if (!data)
            return own;
        return annulus_tensor{data, accumulation_dtype<T>, 4, {p.batch, n, heads, d}, {heads * n * d, d, n * d, 1}};
    };
    return {tensor(partial.d_q, tensors.d_q, p.queries.length, p.heads),
            tensor(partial.d_k, tensors.d_k, p.key_rows(), p.kv_heads),
            tensor(partial.d_v, tensors.d_v, p.key_rows(), p.kv_heads)};
}

} // namespace

template <class T> std::size_t backward_bytes(const Plan &plan, KeyScope scope, int threads) {
    Workspace ledger;
    if (scope == KeyScope::all_keys)
        book_gradients<T>(ledger, plan, nullptr);
    std::int64_t cells = 0; // in one step
    for (const BranchPlan &branch : plan.branches())
        cells = std::max(cells, CellSchedule(plan, branch).cells());
    ledger.skip(bytes_of_cell_scratch<T>(plan), std::min<std::int64_t>(threads, cells));
    return ledger.used();
}

template <class T>
void backward(const Plan &plan, KeyScope scope, const CallTensors &tensors, const PartialResults &partial, void *memory,
              int threads) {
    Workspace workspace(memory);
    const Gradients gradients = scope == KeyScope::all_keys ? book_gradients<T>(workspace, plan, &tensors)
                                                            : gradients_of<T>(plan, partial, tensors);
    if (!plan.problem().gradients.only_v) {
        if (!has_other_keys(scope))
            set_to_zero<T>(gradients.q, threads);
        set_to_zero<T>(gradients.k, threads);
    }
    set_to_zero<T>(gradients.v, threads);
    add_gradients<T>(plan, tensors, gradients, workspace, threads);
    if (scope == KeyScope::all_keys)
        write_gradients<T>(plan, gradients, tensors, threads);
}

template <class T>
void finish_backward(const Plan &plan, const CallTensors &tensors, const PartialResults &partial, int threads) {
    write_gradients<T>(plan, gradients_of<T>(plan, partial, tensors), tensors, threads);
}

template std::size_t backward_bytes<float>(const Plan &, KeyScope, int);
template std::size_t backward_bytes<double>(const Plan &, KeyScope, int);
template void backward<float>(const Plan &, KeyScope, const CallTensors &, const PartialResults &, void *, int);
template void backward<double>(const Plan &, KeyScope, const CallTensors &, const PartialResults &, void *, int);
template void finish_backward<float>(const Plan &, const CallTensors &, const PartialResults &, int);
template void finish_backward<double>(const Plan &, const CallTensors &, const PartialResults &, int);

} // namespace annulus
