// SPDX-License-Identifier: Apache-2.0
#include "capi/shards.hpp"

#include "capi/sized_struct.hpp"
#include "core/argument.hpp"
#include "core/error.hpp"

#include <cstdio>
#include <vector>

namespace annulus {

namespace {

// Throws Error(ANNULUS_ERROR_ARGUMENT) if `lengths` cannot be the lengths of shards.
void check_lengths(const std::vector<std::int64_t> &lengths) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const auto length = static_cast<long long>(lengths[i]);
        if (length < 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "lengths[%zu] is %lld; it must be at least 0", i, length);
        if (__builtin_add_overflow(sum, lengths[i], &sum))
            throw Error(ANNULUS_ERROR_ARGUMENT, "lengths[%zu] is %lld; the sum of all does not fit 64 bits", i, length);
    }
    if (sum == 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "all lengths are 0; at least one rank must hold a row");
}

} // namespace

annulus_shards read_shards(const annulus_shards *shards) {
    return read_sized("shards", shards, &annulus_shards::owners);
}

Shards checked_shards(const annulus_shards &given) {
    const auto &[size, ranks, count, lengths, owners] = given;
    if (owners)
        check_between("count of shards", count, 1, ANNULUS_MAX_SHARDS);
    else
        check_between("count of shards", count, ranks, ranks);
    const std::vector<std::int64_t> copy(&required(lengths, "lengths of shards"), lengths + count);
    check_lengths(copy);
    if (!owners)
        return make_shards(copy);
    const std::vector<int> ranks_of_shards(owners, owners + count);
    for (std::int32_t i = 0; i < count; ++i) {
        char name[32];
        std::snprintf(name, sizeof name, "owners[%d]", i);
        check_between(name, owners[i], 0, ranks - 1);
    }
    return make_shards(copy, ranks_of_shards, ranks);
}

} // namespace annulus
