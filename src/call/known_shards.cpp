// SPDX-License-Identifier: Apache-2.0
#include "call/known_shards.hpp"

#include "core/error.hpp"

#include <utility>

namespace annulus {

void KnownShards::set(Shards shards) {
    set_ = std::move(shards);
    if (!agreed_.are_in_order()) // a rank had several shards, which holds only as long as they are set
        agreed_ = {};
}

void KnownShards::check_rows(int rank, std::int64_t rows) const {
    if (!are_set())
        return;
    const std::int64_t length = set_.rows_of(rank);
    if (rows != length)
        throw Error(ANNULUS_ERROR_ARGUMENT, "shape[1] of q is %lld; the shard of rank %d has %lld rows",
                    static_cast<long long>(rows), rank, static_cast<long long>(length));
}

Shards KnownShards::before_call(int rank, std::int64_t rows) const {
    const Shards &known = are_set() ? set_ : agreed_;
    return known.rows_of(rank) == rows ? known : Shards();
}

Shards KnownShards::for_length(std::int64_t sequence_length, int ranks) const {
    if (are_set()) {
        if (set_.length() != sequence_length)
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "sequence_length of problem is %lld; the shards of all ranks have %lld rows, as "
                        "annulus_context_set_shards() was told",
                        static_cast<long long>(sequence_length), static_cast<long long>(set_.length()));
        return set_;
    }
    if (agreed_.length() == sequence_length)
        return agreed_;
    return make_shards(even_lengths(sequence_length, ranks));
}

} // namespace annulus
