// SPDX-License-Identifier: Apache-2.0
// Which ranks exchange rows while `annulus bench --links` measures a kind of link.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace annulus::cli {

using HostName = std::array<char, 256>;

// The ranks at the places 2 i of `order` send to those at the places 2 i + 1. `counts` tells of each rank whether it is
// such a receiver and its link to the sender is of the kind that is measured.
struct Pairs {
    std::vector<std::int32_t> order;
    std::vector<bool> counts;

    bool are_any() const { return std::ranges::find(counts, true) != counts.end(); }
};

// Pairs ranks of the same host, or else ranks far apart in the order of the hosts. Ranks without a partner come last.
Pairs make_pairs(const std::vector<HostName> &hosts, bool on_same_host);

} // namespace annulus::cli
