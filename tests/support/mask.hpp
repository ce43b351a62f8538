// SPDX-License-Identifier: Apache-2.0
// Which keys a query attends to, position by position from the definition: slow, and independent of the library.
#pragma once

#include "support/problem.hpp"

#include <cstdint>
#include <vector>

namespace annulus::test {

class Mask {
  public:
    explicit Mask(const Problem &problem);

    struct Keys {
        std::vector<std::int64_t> positions; // one reached by two branches stands here twice, unless it counts once
        std::int64_t padding = 0;            // keys of score 0 and value 0 besides
    };
    Keys keys(std::int64_t position, std::int32_t head) const;

    struct Segment {
        std::int64_t start;
        std::int64_t length;
    };
    Segment segment_of(std::size_t branch, std::int64_t position) const;
    // The place of a position in its segment, along the branch's order.
    std::int64_t place(std::size_t branch, std::int64_t position) const { return places_[branch][position]; }
    bool serves(std::size_t branch, std::int32_t head) const;
    std::int64_t phase(std::size_t branch, std::int32_t head) const;
    // Adds one branch's keys.
    void add_keys(std::size_t branch, std::int64_t position, std::int32_t head, Keys &keys) const;

  private:
    Problem problem_;
    std::vector<std::vector<std::int64_t>> places_;   // [branch][position]
    std::vector<std::vector<std::int64_t>> residues_; // [branch][position]
};

} // namespace annulus::test
