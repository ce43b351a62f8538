// SPDX-License-Identifier: Apache-2.0
// What a context with a communicator knows of the shards before a call.
#pragma once

#include "ranks/shard_layout.hpp"

#include <cstdint>
#include <vector>

namespace annulus {

class KnownShards {
  public:
    // Sets the caller's shards; without pieces the caller sets none.
    void set(Shards shards);
    // Remembers the shards that the ranks agreed on in a call.
    void remember(Shards shards) { agreed_ = std::move(shards); }
    bool are_set() const { return !set_.pieces.empty(); }

    // Throws Error(ANNULUS_ERROR_ARGUMENT) if the caller's shards give the rank a number of rows other than `rows`.
    void check_rows(int rank, std::int64_t rows) const;

    // Returns the shards to prepare a call for, in which the rank has `rows` rows: the caller's, else the last call's.
    // Returns shards without pieces if they are not known.
    Shards before_call(int rank, std::int64_t rows) const;

    // Returns the shards to estimate with: the caller's, else the last call's, else even shards. Throws
    // Error(ANNULUS_ERROR_ARGUMENT) if the caller's have another length.
    Shards for_length(std::int64_t sequence_length, int ranks) const;

  private:
    Shards set_, agreed_;
};

} // namespace annulus
