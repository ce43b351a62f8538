// SPDX-License-Identifier: Apache-2.0
// How a sequence lies on the ranks, and between which of its shards messages may go: what the schedules of all shards
// have in common, the same on all ranks.
#pragma once

#include "core/plan.hpp"

#include <annulus/config.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace annulus {

// The parts of a sequence that ranks hold, in the order of their positions: of each the rank whose it is.
struct Shards {
    std::vector<Window> pieces;
    std::vector<int> owners;

    bool operator==(const Shards &) const = default;
    // Whether each rank has one, in the order of the ranks: then their lengths say all.
    bool are_in_order() const { return std::ranges::is_sorted(owners, std::less_equal()); }
    // Of all together.
    std::int64_t length() const { return pieces.empty() ? 0 : pieces.back().end(); }
    // Rows of a rank, which has its pieces one after the other.
    std::int64_t rows_of(int rank) const;
    // A rank's rows: where they are one piece its positions, else from 0 on.
    Window window_of(int rank) const;
};

// Of pieces of these lengths, of these owners: those that follow one another become one, and every rank has one.
Shards make_shards(const std::vector<std::int64_t> &lengths, const std::vector<int> &owners, int ranks);

// Contiguous shards of these lengths, one a rank.
Shards make_shards(const std::vector<std::int64_t> &lengths);

// The shards first … last - 1.
struct ShardRange {
    int first, last;

    int count() const { return last - first; }
    bool operator==(const ShardRange &) const = default;
};

// The shards that have a position in `rows`, and shards without positions between them.
ShardRange shards_in(const std::vector<Window> &shards, const Window &rows);

// A function of pattern, problem, shards and exchange. Shards further apart than the segments are long have nothing to
// do with one another: time and memory grow with the number of shards and with those in reach of each.
class ShardLayout {
  public:
    // The problem's windows are not looked at. The exchange `auto` becomes `ring` where the choice takes more than
    // estimate_steps.
    ShardLayout(const Pattern &pattern, const Problem &problem, Shards shards, annulus_exchange exchange);

    // Of the whole sequence.
    const Plan &plan() const { return plan_; }
    // The same for keys of other shards than the queries': none of them is hidden, and padding keys are with the own
    // keys.
    const Plan &remote_plan() const { return remote_plan_; }
    const Shards &shards() const { return shards_; }
    const Window &piece(int shard) const { return shards_.pieces[static_cast<std::size_t>(shard)]; }
    // The rank that has a shard.
    int owner(int shard) const { return shards_.owners[static_cast<std::size_t>(shard)]; }
    // Not `auto`.
    annulus_exchange exchange() const { return exchange_; }
    // Host memory.
    std::uint64_t bytes() const;

    // Those that share a segment of a branch with the shard, itself among them. No other one sends it anything.
    const ShardRange &reach(int shard) const { return reaches_[static_cast<std::size_t>(shard)]; }
    // Whether causality lets one shard send to another.
    bool may_send(int from, int to) const { return from < to || (from > to && !plan_.causal()); }
    // Of a shard: the pairs of a sender and a receiver in reach of one another that it is in, at most.
    std::int64_t pairs_of(int shard) const { return std::int64_t{reach(shard).count() - 1} * (plan_.causal() ? 1 : 2); }

    // The exchange `ring` has hops: in each, shard i sends to shard (i + distance) mod count. Hops in whose distance
    // nobody has anything to send do not take place.
    std::size_t hops() const { return static_cast<std::size_t>(forward_ + backward_); }
    std::size_t hop(int from, int to) const {
        const int distance = to - from, around = distance > 0 ? distance : distance + static_cast<int>(reaches_.size());
        return static_cast<std::size_t>(around <= forward_ ? around - 1 : forward_ + backward_ + distance);
    }

  private:
    void find_reaches();

    Plan plan_, remote_plan_;
    Shards shards_;
    annulus_exchange exchange_;
    std::vector<ShardRange> reaches_;
    int forward_ = 0, backward_ = 0; // the hops 1, 2, …, and count - 1, count - 2, …
};

} // namespace annulus
