// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/link_pairs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace annulus::cli {
namespace {

std::vector<HostName> hosts_of(const std::string &letters) {
    std::vector<HostName> hosts(letters.size());
    for (std::size_t i = 0; i < letters.size(); ++i)
        hosts[i][0] = letters[i];
    return hosts;
}

// All placements of up to seven ranks on three hosts, named by letters.
TEST(LinkPairs, FindEachKindOfLinkThatThereIs) {
    for (std::size_t ranks = 2; ranks <= 7; ++ranks) {
        for (int code = 0; code < 2187; ++code) { // 3^7
            std::string letters;
            for (int rest = code; letters.size() < ranks; rest /= 3)
                letters += static_cast<char>('a' + rest % 3);
            const std::set<char> names(letters.begin(), letters.end());
            for (const bool on_same_host : {true, false}) {
                const Pairs pairs = make_pairs(hosts_of(letters), on_same_host);
                EXPECT_EQ(pairs.are_any(), on_same_host ? names.size() < ranks : names.size() > 1) << letters;
                EXPECT_EQ(std::set<std::int32_t>(pairs.order.begin(), pairs.order.end()).size(), ranks) << letters;
                ASSERT_EQ(pairs.order.size(), ranks) << letters;
                for (std::size_t i = 0; i < ranks; ++i) {
                    const auto rank = static_cast<std::size_t>(pairs.order[i]);
                    const bool counts = i % 2 == 1 && (letters[static_cast<std::size_t>(pairs.order[i - 1])] ==
                                                       letters[rank]) == on_same_host;
                    EXPECT_EQ(pairs.counts[rank], counts) << letters;
                }
            }
        }
    }
}

} // namespace
} // namespace annulus::cli
