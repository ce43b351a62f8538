// SPDX-License-Identifier: Apache-2.0
// Makes data for benchmarks: numbers of the standard normal distribution.
#pragma once

#include "cli/devices/memory.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus::cli {

class RandomNumbers {
  public:
    explicit RandomNumbers(annulus_dtype dtype);

    // Fills a part of the memory with the next `count` numbers. The numbers repeat with a period of 4,194,301, a prime,
    // so that all rows of a tensor differ.
    void fill(Memory &memory, std::byte *data, std::int64_t count);

  private:
    std::size_t element_;
    std::vector<std::byte> block_;
    std::size_t next_ = 0; // byte of the block
};

} // namespace annulus::cli
