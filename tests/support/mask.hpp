// SPDX-License-Identifier: Apache-2.0
// Finds the keys of a query, position by position from the definition. Slow, and independent of the library.
#pragma once

#include "support/problem.hpp"

#include <cstdint>
#include <vector>

namespace annulus::test {

class Mask {
  public:
    explicit Mask(const Problem &problem);

    struct Keys {
        std::vector<std::int64_t> positions; // a key of two branches is here twice, unless keys count once
        std::int64_t padding = 0;            // number of further keys with score 0 and value 0
    };
    Keys keys(std::int64_t position, std::int32_t head) const;

    struct Segment {
        std::int64_t start;
        std::int64_t length;
    };
    Segment segment_of(std::size_t branch, std::int64_t position) const;
    // Returns the place of a position in its segment, along the branch's order.
    std::int64_t place(std::size_t branch, std::int64_t position) const { return places_[branch][position]; }
    bool serves(std::size_t branch, std::int32_t head) const;
    std::int64_t phase(std::size_t branch, std::int32_t head) const;
    // Adds one branch's keys.
    void add_keys(std::size_t branch, std::int64_t position, std::int32_t head, Keys &keys) const;

  private:
    // True if key m is in the window of query n, or if one of them makes the other a key of a global branch.
    static bool is_in_window(const BranchSpec &spec, std::int64_t n, std::int64_t m);
    static bool is_global_pair(const BranchSpec &spec, std::int64_t n, std::int64_t m);

    Problem problem_;
    std::vector<std::vector<std::int64_t>> places_;   // [branch][position]
    std::vector<std::vector<std::int64_t>> residues_; // [branch][position]
};

} // namespace annulus::test
