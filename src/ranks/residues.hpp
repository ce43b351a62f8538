// SPDX-License-Identifier: Apache-2.0
// Sets of residues, and the number of places with each residue.
#pragma once

#include "core/hilbert.hpp"
#include "core/plan.hpp"

#include <cstdint>
#include <vector>

namespace annulus {

// Residues as intervals in order, which do not overlap.
using ResidueSet = std::vector<Interval>;

// Writes the residues of a range modulo r to `set`.
void set_range(const ResidueRange &range, std::int64_t r, ResidueSet &set);

// Writes the residues that are in a range modulo r and in a set to `both`.
void intersect(const ResidueRange &range, std::int64_t r, const ResidueSet &set, ResidueSet &both);

bool contains(const ResidueSet &set, std::int64_t residue);

// The number of places with each residue modulo r, over some intervals of places. Every residue has the base count,
// which comes from r consecutive places at a time. Some residues have extra places from the rests of the intervals.
class ResidueCounts {
  public:
    ResidueCounts(std::int64_t r, const std::vector<Interval> &places);

    // Returns the number of places with these residues.
    std::int64_t count(const ResidueSet &set) const;
    // Returns the residues that at least one place has.
    ResidueSet occurring() const;

  private:
    // Each residue from `begin` to the next piece has `extra` places beyond the base count. All residues below `begin`
    // together have `below` such extra places.
    struct Piece {
        std::int64_t begin = 0, extra = 0, below = 0;
    };

    // Returns the number of places with a residue below this one.
    std::int64_t below(std::int64_t residue) const;

    std::int64_t r_, base_count_ = 0;
    std::vector<Piece> pieces_; // from residue 0 on
};

} // namespace annulus
