// SPDX-License-Identifier: Apache-2.0
// The key rule `once`: hides the pairs of a tile that an earlier branch has as well, because they count there. Queries
// and keys are compared by their classes in the earlier branch (class_pairs.hpp), which are found once for a tile, and
// in a window also by their distance. An earlier branch is skipped if no query of the tile can have a key of it.
#pragma once

#include "core/class_pairs.hpp"
#include "core/workspace.hpp"
#include "cpu/blocked/tile.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace annulus {

class RepeatedKeys {
  public:
    // What is known of one earlier branch.
    struct Table {
        std::int64_t *query_classes; // [query_tile], -1 for a query without class
        std::int64_t *key_classes;   // [key_tile]
        bool has_queries;            // query_classes has been filled
        bool meets_keys;             // queries of the tile may have keys of the tile in the branch
    };

    // Books a table for each branch that may come before another.
    static Table *book(Workspace &workspace, const Plan &plan) {
        const auto branches = plan.keys_count_once() ? static_cast<std::int64_t>(plan.branches().size()) - 1 : 0;
        Table *const tables = workspace.take<Table>(branches);
        for (std::int64_t i = 0; i < branches; ++i) {
            std::int64_t *const queries = workspace.take<std::int64_t>(query_tile);
            std::int64_t *const keys = workspace.take<std::int64_t>(key_tile(plan.problem().head_dim));
            if (tables)
                tables[i] = {queries, keys, false, false};
        }
        return tables;
    }

    // For a tile of queries of a head. `earlier` are the branches before the branch of the tile.
    RepeatedKeys(Table *tables, std::span<const BranchPlan> earlier, std::int32_t head, const std::int64_t *queries,
                 int count)
        : tables_(tables), earlier_(earlier), head_(head), queries_(queries), count_(count) {
        for (std::size_t i = 0; i < earlier.size(); ++i)
            tables[i].has_queries = false;
    }

    // Prepares for a tile of keys whose positions are in `span`, for queries in `queries`.
    void meet(const Span &queries, const std::int64_t *keys, int count, const Span &span) {
        meets_ = false;
        for (std::size_t i = 0; i < earlier_.size(); ++i) {
            const BranchPlan &branch = earlier_[i];
            Table &table = tables_[i];
            table.meets_keys = branch.serves(head_) && may_attend(branch, window(queries), window(span));
            if (!table.meets_keys)
                continue;
            meets_ = true;
            if (!table.has_queries)
                find_query_classes(branch, table);
            for (int k = 0; k < count; ++k)
                table.key_classes[k] = class_of_key(branch, keys[k]);
        }
        keys_ = keys;
        key_span_ = span;
    }

    // True if some of the keys may be repeated for the queries in a span.
    bool meets(const Span &queries) const {
        if (!meets_)
            return false;
        for (std::size_t i = 0; i < earlier_.size(); ++i)
            if (tables_[i].meets_keys && may_attend(earlier_[i], window(queries), window(key_span_)))
                return true;
        return false;
    }

    // Sets the scores of repeated keys to `value`, for a range of keys and the queries from index `group` on, whose
    // positions are `queries`.
    template <class T>
    void hide(int group, const std::int64_t *queries, const KeyRange &keys, T *scores, T value) const {
        for (std::size_t i = 0; i < earlier_.size(); ++i) {
            if (!tables_[i].meets_keys)
                continue;
            const KeyBounds &bounds = earlier_[i].bounds();
            const std::int64_t *const key_classes = tables_[i].key_classes + keys.first;
            const std::int64_t *const query_classes = tables_[i].query_classes + group;
            if (earlier_[i].kind() == ANNULUS_BRANCH_WINDOW)
                vector_kernels<T>().mask_equal_near(scores, keys.count, key_classes, query_classes, keys_ + keys.first,
                                                    queries, bounds.before, bounds.after, value);
            else
                vector_kernels<T>().mask_equal(scores, keys.count, key_classes, query_classes, value);
        }
    }

  private:
    static Window window(const Span &span) { return {span.low, span.high - span.low + 1}; }

    void find_query_classes(const BranchPlan &branch, Table &table) const {
        for (int i = 0; i < count_; ++i)
            table.query_classes[i] = class_of_query(branch, head_, queries_[i]);
        std::fill(table.query_classes + count_, table.query_classes + query_tile, -1);
        table.has_queries = true;
    }

    Table *tables_;
    std::span<const BranchPlan> earlier_;
    std::int32_t head_;
    const std::int64_t *queries_;
    int count_;
    bool meets_ = false;
    const std::int64_t *keys_ = nullptr; // positions of the tile's keys
    Span key_span_{};
};

} // namespace annulus
