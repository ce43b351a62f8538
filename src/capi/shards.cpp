// SPDX-License-Identifier: Apache-2.0
#include "capi/shards.hpp"

#include "call/context.hpp"
#include "capi/sized_struct.hpp"
#include "core/argument.hpp"

#include <cstdio>
#include <vector>

namespace annulus {

namespace {

constexpr std::int32_t most_shards = 65536;

} // namespace

annulus_shards read_shards(const annulus_shards *shards) {
    return read_sized("shards", shards, &annulus_shards::owners);
}

Shards checked_shards(const annulus_shards &given) {
    const auto &[size, ranks, count, lengths, owners] = given;
    if (owners)
        check_between("count of shards", count, 1, most_shards);
    else
        check_between("count of shards", count, ranks, ranks);
    const std::vector<std::int64_t> copy(&required(lengths, "lengths of shards"), lengths + count);
    check_lengths(copy);
    if (!owners)
        return make_shards(copy);
    const std::vector<int> of_ranks(owners, owners + count);
    for (std::int32_t i = 0; i < count; ++i) {
        char name[32];
        std::snprintf(name, sizeof name, "owners[%d]", i);
        check_between(name, owners[i], 0, ranks - 1);
    }
    return make_shards(copy, of_ranks, ranks);
}

} // namespace annulus
