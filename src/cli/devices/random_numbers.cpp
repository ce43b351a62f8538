// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/random_numbers.hpp"

#include "cli/arrays/convert.hpp"
#include "cli/arrays/dtype_bytes.hpp"

#include <algorithm>
#include <random>

namespace annulus::cli {

namespace {

const std::vector<float> &normal_numbers() {
    static const std::vector<float> numbers = [] {
        std::vector<float> result(4'194'301);
        std::mt19937_64 generator; // its default seed: every run computes on the same data
        std::normal_distribution<float> normal;
        std::generate(result.begin(), result.end(), [&] { return normal(generator); });
        return result;
    }();
    return numbers;
}

} // namespace

RandomNumbers::RandomNumbers(annulus_dtype dtype) : element_(static_cast<std::size_t>(dtype_bytes(dtype))) {
    const std::vector<float> &numbers = normal_numbers();
    block_.resize(numbers.size() * element_);
    convert(dtype, block_.data(), ANNULUS_FLOAT32, numbers.data(), numbers.size());
}

void RandomNumbers::fill(Memory &memory, std::byte *data, std::int64_t count) {
    for (std::size_t left = static_cast<std::size_t>(count) * element_; left > 0;) {
        const std::size_t bytes = std::min(left, block_.size() - next_);
        memory.copy_in(data, block_.data() + next_, bytes);
        data += bytes;
        left -= bytes;
        next_ = (next_ + bytes) % block_.size();
    }
}

} // namespace annulus::cli
