// SPDX-License-Identifier: Apache-2.0
// How a sequence lies on the ranks, and between which of its shards messages may go. The schedules of all shards use
// this layout. It is the same on all ranks.
#pragma once

#include "core/plan.hpp"

#include <annulus/config.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace annulus {

// The shards of a sequence, in the order of their positions. Shard i has the positions pieces[i] and is on rank
// owners[i]. A rank may own several shards.
struct Shards {
    std::vector<Window> pieces;
    std::vector<int> owners;

    bool operator==(const Shards &) const = default;
    // True if each rank owns one shard, in the order of the ranks. Then the lengths determine the shards.
    bool are_in_order() const { return std::ranges::is_sorted(owners, std::less_equal()); }
    // Returns the length of the whole sequence.
    std::int64_t length() const { return pieces.empty() ? 0 : pieces.back().end(); }
    // Returns the number of rows of a rank. In its tensors the rank's shards follow one another.
    std::int64_t rows_of(int rank) const;
    // Returns the window of a rank's rows. With one shard it is the shard's positions; with several it starts at 0.
    Window window_of(int rank) const;
};

// Returns shards of these lengths and owners. Neighbours of the same owner become one shard. A rank without a shard
// gets an empty one at the end.
Shards make_shards(const std::vector<std::int64_t> &lengths, const std::vector<int> &owners, int ranks);

// Returns shard lengths that differ by at most 1, the longer ones first.
std::vector<std::int64_t> even_lengths(std::int64_t sequence_length, std::int32_t ranks);

// Returns one shard for each rank, of these lengths.
Shards make_shards(const std::vector<std::int64_t> &lengths);

// The shards first … last - 1.
struct ShardRange {
    int first, last;

    int count() const { return last - first; }
    bool operator==(const ShardRange &) const = default;
};

// Returns the shards that have a position in `rows`, and empty shards between them.
ShardRange shards_in(const std::vector<Window> &shards, const Window &rows);

// The shards of a sequence, in its positions, and the number that each has among the shards of all rows.
struct SequenceShards {
    Shards shards;
    std::vector<std::size_t> indices;
};

// Returns the shards that have a row of a sequence. `rows` are the sequence's.
SequenceShards shards_of(const Shards &shards, const Window &rows);

// A function of pattern, problem, shards and exchange. Shards outside one another's
// reach() exchange nothing. Time and memory grow with the number of shards, and with the number of shards in reach of
// each shard.
class ShardLayout {
  public:
    // Ignores the problem's windows. `exchange` is `gather` or `ring`.
    ShardLayout(const Pattern &pattern, const Problem &problem, Shards shards, annulus_exchange exchange);

    // Returns the plan of the whole sequence.
    const Plan &plan() const { return plan_; }
    // Returns the same plan for queries of one shard against keys of another shard. It is not causal, since causality
    // hides all or none of a shard's keys. It has no padding keys, since they count with the queries' own keys.
    const Plan &remote_plan() const { return remote_plan_; }
    const Shards &shards() const { return shards_; }
    const Window &piece(int shard) const { return shards_.pieces[static_cast<std::size_t>(shard)]; }
    // Returns the rank that owns a shard.
    int owner(int shard) const { return shards_.owners[static_cast<std::size_t>(shard)]; }
    // Returns `gather` or `ring`.
    annulus_exchange exchange() const { return exchange_; }
    // Returns the bytes of host memory.
    std::uint64_t bytes() const;

    // Returns an interval of shards, the shard included. It holds every shard that shares a segment of a branch with
    // the shard, and every shard whose global positions attend to the shard's keys or are keys of its queries. The
    // shard exchanges messages with no other shards.
    const ShardRange &reach(int shard) const { return reaches_[static_cast<std::size_t>(shard)]; }
    // True if causality lets one shard send keys to another.
    bool may_send(int from, int to) const { return from < to || (from > to && !plan_.causal()); }
    // Returns the number of (sender, receiver) pairs that include the shard and that reach and causality allow. It is
    // an upper bound for the pairs that exchange a message.
    std::int64_t reachable_pairs(int shard) const {
        return std::int64_t{reach(shard).count() - 1} * (plan_.causal() ? 1 : 2);
    }

    // Returns the number of hops of the exchange `ring`. In a hop of some distance, shard i sends to shard
    // (i + distance) mod count. There are no hops for distances at which no shard has another in reach.
    std::size_t hops() const { return static_cast<std::size_t>(std::int64_t{forward_hops_} + backward_hops_); }
    // Returns the number of the hop in which one shard sends to another.
    std::size_t hop(int from, int to) const {
        const int distance = to - from, around = distance > 0 ? distance : distance + static_cast<int>(reaches_.size());
        return static_cast<std::size_t>(around <= forward_hops_ ? around - 1
                                                                : forward_hops_ + backward_hops_ + distance);
    }

  private:
    void find_reaches();

    Plan plan_, remote_plan_;
    Shards shards_;
    annulus_exchange exchange_;
    std::vector<ShardRange> reaches_;
    int forward_hops_ = 0, backward_hops_ = 0; // hops of the distances 1, 2, …, and of count - 1, count - 2, …
};

} // namespace annulus
