// SPDX-License-Identifier: Apache-2.0
// Which keys a query attends to, by the definition in doc/semantics.md: two tables and a comparison for each pair of a
// query and a key.
#pragma once

#include "core/pattern.hpp"
#include "core/plan.hpp"

#include <cstddef>
#include <cstdint>

namespace annulus {

class Definition {
  public:
    // `segments` and `residues` have branches x N elements each: for each branch, the segment and the residue of every
    // global position.
    Definition(const Plan &plan, std::int64_t *segments, std::int64_t *residues)
        : pattern_(plan.pattern()), problem_(plan.problem()), segments_(segments), residues_(residues) {}

    // Fills the tables that the functions below read.
    void fill() const;

    // Returns how often m occurs in A(n, h).
    int multiplicity(std::int64_t n, std::int64_t m, std::int32_t h) const;

    // Returns how many keys of score 0 and value 0 query n of head h sees in addition: slots without a real position.
    std::int64_t zero_keys(std::int64_t n, std::int32_t h) const;

  private:
    // True if a position is one of a branch's global positions.
    static bool is_global(const Branch &branch, std::int64_t position);
    // True if key m is in the window of query n.
    static bool is_near(const Branch &branch, std::int64_t n, std::int64_t m);
    std::int64_t segment_length(const Branch &branch) const;
    std::int32_t head_count(const Branch &branch) const;
    // Returns a head of the call relative to the branch's first head.
    std::int64_t counted(const Branch &branch, std::int32_t h) const;
    bool serves(const Branch &branch, std::int32_t h) const;
    std::int64_t phase(const Branch &branch, std::int32_t h) const;
    // The tables of branch i, indexed by global position.
    std::int64_t *segments(std::size_t i) const;
    std::int64_t *residues(std::size_t i) const;
    void fill(const Branch &branch, std::int64_t *segment, std::int64_t *residue) const;

    const Pattern &pattern_;
    const Problem &problem_;
    std::int64_t *segments_;
    std::int64_t *residues_;
};

} // namespace annulus
