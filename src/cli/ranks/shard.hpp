// SPDX-License-Identifier: Apache-2.0
// Which rank holds which part of the sequence.
#pragma once

#include "cli/report/options.hpp"

#include <annulus/annulus.h>

#include <cstdint>
#include <vector>

namespace annulus::cli {

// Positions of the sequence.
struct Range {
    std::int64_t start, length;
};

enum class Sharding {
    even,  // a shard for each rank
    zigzag // two for each of P ranks: of 2P, rank p holds the p-th and the p-th from the end
};

// The sequence as shards, one behind the other and as equal as can be, the first ones longer, each of a rank. A rank
// with several has their rows one behind the other in its tensors.
class Shards {
  public:
    Shards(std::int64_t tokens, int ranks, Sharding sharding);

    // A rank's positions, one range at least; shards that follow one another are one.
    std::vector<Range> of(int rank) const;
    std::int64_t rows(int rank) const;

    std::int32_t count() const { return static_cast<std::int32_t>(lengths_.size()); }
    // The library's struct, which points to these arrays.
    annulus_shards view() const { return {sizeof(annulus_shards), ranks_, count(), lengths_.data(), owners_.data()}; }

  private:
    std::int32_t ranks_;
    std::vector<std::int64_t> lengths_;
    std::vector<std::int32_t> owners_;
};

Option add_shards_option(Command &command, Sharding &sharding);

} // namespace annulus::cli
