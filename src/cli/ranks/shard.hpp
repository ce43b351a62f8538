// SPDX-License-Identifier: Apache-2.0
// Says which rank holds which part of the sequence.
#pragma once

#include "cli/report/options.hpp"

#include <annulus/annulus.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace annulus::cli {

// Consecutive positions of the sequence.
struct Range {
    std::int64_t start, length;
};

enum class Sharding {
    even,    // one shard for each rank
    zigzag,  // two shards for each of P ranks: rank p holds the p-th of 2P shards and the p-th from the end
    balanced // as annulus_balance_shards() finds them
};

// The sequence divided into shards, shard after shard. Each shard belongs to a rank. A rank with several shards has
// their rows one after the other in its tensors.
class Shards {
  public:
    // Makes even or zigzag shards, whose lengths differ by at most 1, longer ones first.
    Shards(std::int64_t tokens, int ranks, Sharding sharding);
    // Makes one shard for each rank. The shard at place i has lengths[i] positions and belongs to rank owners[i].
    Shards(std::vector<std::int64_t> lengths, std::vector<std::int32_t> owners)
        : ranks_(static_cast<std::int32_t>(owners.size())), lengths_(std::move(lengths)), owners_(std::move(owners)) {}
    // Makes shards for a problem; the context has the config.
    Shards(annulus_context *context, const annulus_problem &problem, int ranks, Sharding sharding);

    // Returns the positions of a rank, at least one range. Adjacent shards are one range.
    std::vector<Range> ranges(int rank) const;
    std::int64_t rows(int rank) const;

    // Returns the shards of the hosts: those of all ranks of a host belong to it.
    Shards on_hosts(int hosts) const;

    std::int32_t ranks() const { return ranks_; }
    std::int32_t count() const { return static_cast<std::int32_t>(lengths_.size()); }
    // Returns the library's struct, which points to arrays of this object.
    annulus_shards view() const { return {sizeof(annulus_shards), ranks_, count(), lengths_.data(), owners_.data()}; }

  private:
    std::int32_t ranks_;
    std::vector<std::int64_t> lengths_;
    std::vector<std::int32_t> owners_;
};

// Returns the host of a rank, if the ranks are divided over the hosts in their order, as evenly as can be.
inline int host_of(int rank, int ranks, int hosts) {
    return static_cast<int>(std::int64_t{rank} * hosts / ranks);
}

// Adds --shards. Only a command that knows the problem before it cuts the rows can balance the shards.
Option add_shards_option(Command &command, Sharding &sharding, bool can_balance);

} // namespace annulus::cli
