// SPDX-License-Identifier: Apache-2.0
// A rank's part of the sequence.
#pragma once

#include <cstdint>

namespace annulus::cli {

// A contiguous part of the sequence.
struct Shard {
    std::int64_t start, length;
};

// The shard of each rank, as equal as can be: the first N mod p ranks have one position more.
Shard shard_of(std::int64_t tokens, std::int64_t rank, std::int64_t ranks);

} // namespace annulus::cli
