// SPDX-License-Identifier: Apache-2.0
// Sets of residues, and how many places of a shard's part of a segment have each.
#pragma once

#include "core/hilbert.hpp"
#include "core/plan.hpp"

#include <cstdint>
#include <vector>

namespace annulus {

// Intervals in order that do not overlap.
using ResidueSet = std::vector<Interval>;

// Sets `set` to the residues of a range modulo r.
void set_range(const ResidueRange &range, std::int64_t r, ResidueSet &set);

// Sets `both` to the residues of a range modulo r that are in a set.
void intersect(const ResidueRange &range, std::int64_t r, const ResidueSet &set, ResidueSet &both);

bool contains(const ResidueSet &set, std::int64_t residue);

// How many places of some intervals have each residue modulo r: as many as there are whole rounds of r, and in some
// pieces more.
class ResidueCounts {
  public:
    ResidueCounts(std::int64_t r, const std::vector<Interval> &places);

    // Places with these residues.
    std::int64_t count(const ResidueSet &set) const;
    // Residues that occur.
    ResidueSet occurring() const;

  private:
    // From `begin` to the next piece a residue has `more` places than rounds; all below it together, `below`.
    struct Piece {
        std::int64_t begin = 0, more = 0, below = 0;
    };

    std::int64_t below(std::int64_t residue) const;

    std::int64_t r_, rounds_ = 0;
    std::vector<Piece> pieces_; // from residue 0 on
};

} // namespace annulus
