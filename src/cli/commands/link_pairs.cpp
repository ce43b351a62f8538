// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/link_pairs.hpp"

#include <cstddef>
#include <numeric>

namespace annulus::cli {

Pairs make_pairs(const std::vector<HostName> &hosts, bool on_same_host) {
    const auto host = [&](std::int32_t rank) { return hosts[static_cast<std::size_t>(rank)]; };
    const std::size_t ranks = hosts.size(), half = ranks / 2;
    std::vector<std::int32_t> by_host(ranks), alone;
    std::iota(by_host.begin(), by_host.end(), 0);
    std::ranges::stable_sort(by_host, {}, host);
    Pairs pairs{{}, std::vector<bool>(ranks, false)};
    const auto pair = [&](std::int32_t sender, std::int32_t receiver) {
        pairs.order.insert(pairs.order.end(), {sender, receiver});
        pairs.counts[static_cast<std::size_t>(receiver)] = (host(sender) == host(receiver)) == on_same_host;
    };
    if (on_same_host)
        for (std::size_t i = 0; i < ranks; ++i)
            if (i + 1 < ranks && host(by_host[i]) == host(by_host[i + 1])) {
                pair(by_host[i], by_host[i + 1]);
                ++i;
            } else {
                alone.push_back(by_host[i]);
            }
    else {
        // If there are two hosts, at least one pair is of both: no host has the first pair and the last one.
        for (std::size_t i = 0; i < half; ++i)
            pair(by_host[i], by_host[ranks - half + i]);
        if (ranks % 2)
            alone.push_back(by_host[half]);
    }
    pairs.order.insert(pairs.order.end(), alone.begin(), alone.end());
    return pairs;
}

} // namespace annulus::cli
