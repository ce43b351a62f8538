// SPDX-License-Identifier: Apache-2.0
// Forward on the CPU. The queries of one batch entry and head are cut into blocks of consecutive positions. A block
// goes through all branches with one running softmax (m, l, unnormalised O) and writes O and LSE once. So the memory is
// that of a few blocks, whatever N is. Blocks may run on any thread and give the same bits.
//
// With S in units of log2 the running softmax over key tiles is: m' = max(m, S), P = 2^(S - m'), l' = l 2^(m - m') +
// sum P, O' = O 2^(m - m') + P V; at the end O / l and LSE = (m + log2 l) ln 2 (Milakov and Gimelshein 2018,
// arXiv:1805.02867).
#include "core/class_pairs.hpp"
#include "core/workspace.hpp"
#include "cpu/blocked/forward_scratch.hpp"
#include "cpu/blocked/passes.hpp"
#include "cpu/blocked/repeated_keys.hpp"
#include "cpu/blocked/tile.hpp"
#include "cpu/parallel.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

namespace annulus {

namespace {

template <class T> class BlockForward {
  public:
    BlockForward(const Plan &plan, const CallTensors &tensors, const ForwardScratch<T> &scratch)
        : plan_(plan), tensors_(tensors), s_(scratch), d_(plan.problem().head_dim) {}

    // A block of a batch entry and head.
    struct Head {
        std::int64_t b;
        std::int32_t head;
        Window block;
    };

    void clear(const Head &at) const {
        // O needs no value where l is 0.
        std::fill_n(s_.m, at.block.length, -std::numeric_limits<T>::infinity());
        std::fill_n(s_.l, at.block.length, T{0});
    }

    void run(const Head &at) const {
        for (const BranchPlan &branch : plan_.branches())
            if (branch.serves(at.head))
                for (std::int64_t i = branch.segment_of(at.block.start); i <= branch.segment_of(at.block.end() - 1);
                     ++i)
                    run_segment(at, branch, branch.segment(i));
    }

    // Writes the outputs from the state, except of rows that store_sums() has stored. `keys` is the window of the keys
    // that the state has met.
    void write(const Head &at, const Window &keys) const {
        for (std::int64_t i = 0; i < at.block.length; ++i)
            if (s_.l[i] != stored)
                write_row(at, at.block.start + i, state_of(i), keys);
    }

    // ---- Sums over several key scopes, of the block's rows that have some.

    void load_sums(const Head &at, const PartialResults &partial) const {
        for_each_sum(at, partial,
                     [&](std::int64_t position, const State &sum) { copy(sum, state_of(position - at.block.start)); });
    }

    void store_sums(const Head &at, const PartialResults &partial) const {
        for_each_sum(at, partial, [&](std::int64_t position, const State &sum) {
            const State state = state_of(position - at.block.start);
            copy(state, sum);
            *state.l = stored;
        });
    }

    // Writes the outputs from the sums. `keys` is as in write().
    void write_sums(const Head &at, const PartialResults &partial, const Window &keys) const {
        for_each_sum(at, partial, [&](std::int64_t position, const State &sum) { write_row(at, position, sum, keys); });
    }

  private:
    static constexpr T stored = -1; // as l of a row whose state is among the sums; no sum of exponentials is below 0

    // The running softmax of a row.
    struct State {
        T *o, *m, *l;
    };

    State state_of(std::int64_t row) const { return {s_.o + row * d_, s_.m + row, s_.l + row}; }

    void copy(const State &from, const State &to) const {
        *to.m = *from.m;
        *to.l = *from.l;
        if (*from.l != T{0}) // otherwise O has no value
            std::copy_n(from.o, d_, to.o);
    }

    // Calls use(position, state) for the block's rows with sums.
    template <class Use> void for_each_sum(const Head &at, const PartialResults &partial, Use use) const {
        const Problem &problem = plan_.problem();
        const std::int64_t count = partial.summed_queries->count();
        const std::int64_t first = (at.b * problem.heads + at.head) * count;
        T *const o = static_cast<T *>(partial.o), *const m = static_cast<T *>(partial.softmax_state),
                 *const l = m + problem.batch * problem.heads * count;
        partial.summed_queries->for_each(at.head, at.block, [&](std::int64_t position, std::int64_t row) {
            use(position, State{o + (first + row) * d_, m + first + row, l + first + row});
        });
    }

    void write_row(const Head &at, std::int64_t position, const State &state, const Window &keys) const {
        const HeadRows out(tensors_.out, at.b, at.head, plan_.problem().queries.start);
        const bool no_sum = *state.l == T{0};
        const bool empty = no_sum && !has_keys(plan_, at.head, position, keys);
        // A row with keys, but only keys with the score -infinity, is NaN. It differs from a row without keys.
        const T sum = no_sum ? std::numeric_limits<T>::quiet_NaN() : *state.l;
        if (empty) // 0 in every dtype
            std::memset(out[position], 0, static_cast<std::size_t>(std::int64_t{d_} * dtype_bytes(out.dtype())));
        else
            vector_kernels<T>().store_row(out.dtype(), state.o, T{1} / sum, d_, out[position]);
        if (tensors_.lse)
            *statistic<T>(*tensors_.lse, at.b, at.head, position - plan_.problem().queries.start) =
                empty ? -std::numeric_limits<T>::infinity()
                      : (*state.m + std::log2(sum)) * static_cast<T>(std::numbers::ln2);
    }

    void run_segment(const Head &at, const BranchPlan &branch, const Segment &segment) const {
        const Window part = intersect(segment.range, at.block);
        if (!segment.curve.is_linear())
            for (std::int64_t i = 0; i < part.length; ++i)
                s_.places[i] = segment.place(part.start + i);
        for_each_class_pair(branch, at.head, segment, part, plan_.problem().keys,
                            [&](const ClassPair &pair) { run_pair(at, branch, part, pair); });
    }

    // Processes the queries of a pair inside `part` against its keys.
    void run_pair(const Head &at, const BranchPlan &branch, const Window &part, const ClassPair &pair) const {
        std::int64_t count = 0;
        if (pair.segment.curve.is_linear()) {
            for (; count < pair.queries.count; ++count)
                s_.query_positions[count] = pair.segment.range.start + pair.queries[count];
        } else {
            for (std::int64_t i = 0; i < part.length; ++i)
                if (contains(pair.queries, s_.places[i]))
                    s_.query_positions[count++] = part.start + i;
        }
        for (std::int64_t i = 0; i < count; i += query_tile)
            run_tile(at, branch, pair, s_.query_positions + i,
                     static_cast<int>(std::min<std::int64_t>(query_tile, count - i)));
    }

    void run_tile(const Head &at, const BranchPlan &branch, const ClassPair &pair, const std::int64_t *query_positions,
                  int count) const {
        const Segment &segment = pair.segment;
        load_tile(HeadRows(tensors_.q, at.b, at.head, plan_.problem().queries.start), query_positions, count, d_, s_.q);
        transpose_tile(s_.q, count, d_, s_.q_t);
        load_state(at, query_positions, count);
        if (pair.padding_keys)
            add_zero_keys(pair.padding_keys, count);

        const std::int32_t kv_head = plan_.problem().kv_head(at.head);
        const Problem &problem = plan_.problem();
        const HeadRows k(tensors_.k, at.b, kv_head, problem.keys.start, problem.key_stride);
        const HeadRows v(tensors_.v, at.b, kv_head, problem.keys.start, problem.key_stride);
        const KeyBounds &bounds = branch.bounds();
        const Span queries{query_positions[0], query_positions[count - 1]}; // they ascend
        const Progression keys =
            clip(segment, pair.keys, intersect(problem.keys, bounds.keys(queries.low, queries.high)));
        const int tile = key_tile(plan_.problem().head_dim);
        RepeatedKeys repeated(s_.repeated, plan_.earlier_branches(branch), at.head, query_positions, count);
        for (std::int64_t from = 0; from < keys.count; from += tile) {
            const int n = fill_positions(segment, keys, from, std::min<std::int64_t>(tile, keys.count - from),
                                         problem.keys, s_.key_positions);
            if (n == 0)
                continue;
            const Span span = span_of(s_.key_positions, n);
            if (!meets(bounds, queries, span))
                continue;
            repeated.meet(queries, s_.key_positions, n, span);
            load_tile(k, s_.key_positions, n, d_, s_.k);
            const bool v_is_finite = load_tile(v, s_.key_positions, n, d_, s_.v);
            const KeyTile loaded{segment, bounds, n, span, v_is_finite};
            for (int group = 0; group < count; group += group_columns)
                run_group(loaded, repeated, query_positions, group, std::min(group_columns, count - group));
        }
        store_state(at, query_positions, count);
    }

    // The loaded tile of keys.
    struct KeyTile {
        const Segment &segment;
        const KeyBounds &bounds;
        int count;
        Span span;
        bool v_is_finite;
    };

    // Adds the tile of keys to the running softmax of `columns` queries, from number `group` of their tile on.
    void run_group(const KeyTile &keys, const RepeatedKeys &repeated, const std::int64_t *query_positions, int group,
                   int columns) const {
        const VectorKernels<T> &vector = vector_kernels<T>();
        const KeyBounds &bounds = keys.bounds;
        const Span own{query_positions[group], query_positions[group + columns - 1]};
        if (!meets(bounds, own, keys.span))
            return;
        const bool is_masked = !covers(bounds, own, keys.span);
        const KeyRange seen =
            is_masked ? visible_keys(keys.segment, s_.key_positions, keys.count, bounds, own) : KeyRange{0, keys.count};
        score_tile(seen.count, d_, s_.k + seen.first * d_, s_.q_t + group * d_,
                   static_cast<T>(plan_.scale() * std::numbers::log2e), s_.scores);
        const bool has_repeated = repeated.meets(own);
        if (is_masked || has_repeated)
            std::copy_n(query_positions + group, columns, s_.masking_positions);
        if (is_masked)
            for_each_masked(keys.segment, s_.key_positions, seen, bounds, own, [&](const KeyRange &keys_of_some) {
                vector.mask(s_.scores + (keys_of_some.first - seen.first) * group_columns, keys_of_some.count,
                            s_.key_positions + keys_of_some.first, s_.masking_positions, bounds.before, bounds.after,
                            -std::numeric_limits<T>::infinity());
            });
        if (has_repeated)
            repeated.hide(group, s_.masking_positions, seen, s_.scores, -std::numeric_limits<T>::infinity());
        T *o = s_.tile_o + group * d_;
        if (vector.softmax(s_.scores, seen.count, s_.tile_m + group, s_.tile_l + group, s_.correction))
            for (int c = 0; c < columns; ++c)
                if (s_.correction[c] != T{1})
                    vector.scale(o + c * d_, s_.correction[c], d_);
        add_to_queries((is_masked || has_repeated) && !keys.v_is_finite, columns, d_, seen.count, s_.scores,
                       s_.v + seen.first * d_, o);
    }

    // Copies the tile's rows of the running state together; store_state() copies them back after the tile's keys.
    void load_state(const Head &at, const std::int64_t *query_positions, int count) const {
        for (int i = 0; i < count; ++i) {
            const std::int64_t row = query_positions[i] - at.block.start;
            if (s_.l[row] == T{0})
                std::fill_n(s_.tile_o + i * d_, d_, T{0});
            else
                std::copy_n(s_.o + row * d_, d_, s_.tile_o + i * d_);
            s_.tile_m[i] = s_.m[row];
            s_.tile_l[i] = s_.l[row];
        }
    }

    void store_state(const Head &at, const std::int64_t *query_positions, int count) const {
        for (int i = 0; i < count; ++i) {
            const std::int64_t row = query_positions[i] - at.block.start;
            std::copy_n(s_.tile_o + i * d_, d_, s_.o + row * d_);
            s_.m[row] = s_.tile_m[i];
            s_.l[row] = s_.tile_l[i];
        }
    }

    // Adds `padding` keys of score 0 and value 0 to the state.
    void add_zero_keys(std::int64_t padding, int count) const {
        for (int i = 0; i < count; ++i) {
            const T m = std::max(s_.tile_m[i], T{0});
            const T correction = std::exp2(s_.tile_m[i] - m);
            s_.tile_l[i] = s_.tile_l[i] * correction + static_cast<T>(padding) * std::exp2(-m);
            s_.tile_m[i] = m;
            vector_kernels<T>().scale(s_.tile_o + i * d_, correction, d_);
        }
    }

    const Plan &plan_;
    const CallTensors &tensors_;
    ForwardScratch<T> s_;
    int d_;
};

std::int64_t blocks_of_head(const Plan &plan) {
    return divide_up(plan.problem().queries.length, block_length(plan));
}
std::int64_t block_count(const Plan &plan) {
    return blocks_of_head(plan) * plan.problem().batch * plan.problem().heads;
}

} // namespace

template <class T> std::size_t forward_bytes(const Plan &plan, int threads) {
    Workspace ledger;
    ledger.skip(forward_scratch_bytes<T>(plan), std::min<std::int64_t>(threads, block_count(plan)));
    return ledger.used();
}

namespace {

// Calls work(BlockForward, Head) for every block. Without a workspace the blocks have no scratch memory.
template <class T, class Work>
void for_each_block(const Plan &plan, const CallTensors &tensors, void *workspace, int threads, Work work) {
    const Problem &problem = plan.problem();
    const std::int64_t length = block_length(plan);
    const std::int64_t blocks = blocks_of_head(plan);
    const std::size_t piece = forward_scratch_bytes<T>(plan);
    // Last blocks first: under causality they take longest.
    parallel_for(threads, block_count(plan), [&](std::int64_t item, int worker) {
        const auto head = static_cast<std::int32_t>(item % problem.heads);
        const std::int64_t b = item / problem.heads % problem.batch;
        const std::int64_t block = blocks - 1 - item / problem.heads / problem.batch;
        ForwardScratch<T> scratch{};
        if (workspace) {
            Workspace mine(workspace);
            mine.skip(piece, worker);
            scratch = book_forward_scratch<T>(mine, plan);
        }
        const Window rows = intersect({problem.queries.start + block * length, length}, problem.queries);
        work(BlockForward<T>(plan, tensors, scratch), typename BlockForward<T>::Head{b, head, rows});
    });
}

} // namespace

template <class T>
void forward(const Plan &plan, KeyScope scope, const CallTensors &tensors, const PartialResults &partial,
             void *workspace, int threads) {
    for_each_block<T>(plan, tensors, workspace, threads, [&](const BlockForward<T> &block, const auto &at) {
        block.clear(at);
        if (has_other_keys(scope))
            block.load_sums(at, partial);
        block.run(at);
        if (scope != KeyScope::all_keys)
            block.store_sums(at, partial);
        if (!has_other_keys(scope))
            block.write(at, plan.problem().keys);
    });
}

template <class T>
void finish_forward(const Plan &plan, const CallTensors &tensors, const PartialResults &partial, int threads) {
    for_each_block<T>(plan, tensors, nullptr, threads, [&](const BlockForward<T> &block, const auto &at) {
        block.write_sums(at, partial, {0, plan.problem().sequence_length}); // the scopes have the keys of all ranks
    });
}

template std::size_t forward_bytes<float>(const Plan &, int);
template std::size_t forward_bytes<double>(const Plan &, int);
template void forward<float>(const Plan &, KeyScope, const CallTensors &, const PartialResults &, void *, int);
template void forward<double>(const Plan &, KeyScope, const CallTensors &, const PartialResults &, void *, int);
template void finish_forward<float>(const Plan &, const CallTensors &, const PartialResults &, int);
template void finish_forward<double>(const Plan &, const CallTensors &, const PartialResults &, int);

} // namespace annulus
