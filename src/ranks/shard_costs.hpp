// SPDX-License-Identifier: Apache-2.0
// What the rows of a problem cost the ranks that have them.
#pragma once

#include "core/plan.hpp"
#include "core/sequences.hpp"
#include "ranks/shard_layout.hpp"
#include "ranks/steps.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace annulus {

// Costs are in (query, key) pairs of a head. Each question takes steps.
class ShardCosts {
  public:
    ShardCosts(const Pattern &pattern, const CallProblem &problem, Steps &steps);

    Steps &steps() const { return steps_; }
    std::int64_t rows() const { return rows_; }
    // Returns the pairs of all queries.
    double pairs() const { return pairs_; }

    // Rows that should stay together: a sequence; sequences of several batch entries that overlap; or rows of no
    // sequence.
    struct Item {
        Window rows;
        std::size_t first, last; // its sequences
        double pairs = 0;        // of all its queries

        bool is_gap() const { return first == last; }
    };
    // Returns the items in the order of their rows. Together they have all rows.
    const std::vector<Item> &items() const { return items_; }

    // Returns the pairs of the queries in a window, which is in one item.
    double pairs(const Item &item, const Window &window) const;

    // Returns what the busiest rank has to do; infinity if the steps run out.
    double of_busiest_rank(const Shards &shards, int ranks) const;

  private:
    struct SequencePlan {
        Plan plan;
        double pairs; // of the whole sequence
    };

    // What the queries of a window need from other shards, about: rows of key/value heads of other ranks, and messages.
    struct Received {
        double rows = 0;
        std::int64_t messages = 0;
    };
    // Returns what windows[index] needs. `windows` are all windows that the rank has in the item.
    Received received(const Item &item, const std::vector<Window> &windows, std::size_t index,
                      const Shards &shards) const;

    Steps &steps_;
    std::int64_t rows_;
    std::vector<Sequence> sequences_;
    std::map<std::pair<std::int64_t, std::int64_t>, SequencePlan> plans_; // by batch entries and length
    std::vector<const SequencePlan *> sequence_plans_;
    std::vector<Item> items_;
    double pairs_ = 0;
};

} // namespace annulus
