// SPDX-License-Identifier: Apache-2.0
// Progressions and residues against a count element by element.
#include "core/progression.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace annulus::test {
namespace {

constexpr std::int64_t int64_max = std::numeric_limits<std::int64_t>::max();

std::vector<std::int64_t> elements(const Progression &p) {
    std::vector<std::int64_t> list;
    for (std::int64_t j = 0; j < p.count; ++j)
        list.push_back(p[j]);
    return list;
}

TEST(Progression, ClippedToARange) {
    for (std::int64_t first = 0; first < 4; ++first)
        for (std::int64_t stride = 1; stride < 4; ++stride)
            for (std::int64_t count = 0; count < 5; ++count)
                for (std::int64_t begin = 0; begin < 14; ++begin)
                    for (std::int64_t end = begin; end < 16; ++end) {
                        const Progression all = {first, stride, count};
                        std::vector<std::int64_t> wanted;
                        for (const std::int64_t x : elements(all))
                            if (x >= begin && x < end)
                                wanted.push_back(x);
                        ASSERT_EQ(elements(clip(all, begin, end)), wanted);
                    }
}

// Makes progressions that are small, or whose strides or starts are near the limit of 64 bits.
class Generator {
  public:
    explicit Generator(std::uint64_t seed) : engine_(seed) {}

    std::int64_t number(std::int64_t least, std::int64_t greatest) {
        return std::uniform_int_distribution<std::int64_t>(least, greatest)(engine_);
    }

    Progression progression() {
        const std::int64_t kind = number(0, 9);
        if (kind < 7)
            return {number(0, 30), number(1, kind < 4 ? 12 : 40), number(0, 40)};
        const std::int64_t stride = number(1, kind == 7 ? std::int64_t{1} << 32 : int64_max / 4);
        const std::int64_t count = std::min<std::int64_t>(number(1, 4), (int64_max / 2) / stride);
        return {number(0, 3) * stride % (int64_max / 4), stride, count};
    }

  private:
    std::mt19937_64 engine_;
};

TEST(Progression, CommonElements) {
    Generator generator(1);
    for (int sample = 0; sample < 20000; ++sample) {
        const Progression a = generator.progression(), b = generator.progression();
        const std::vector<std::int64_t> elements_a = elements(a), elements_b = elements(b);
        std::vector<std::int64_t> wanted;
        std::set_intersection(elements_a.begin(), elements_a.end(), elements_b.begin(), elements_b.end(),
                              std::back_inserter(wanted));
        ASSERT_EQ(elements(intersect(a, b)), wanted) << a.first << " + " << a.stride << " j, " << a.count << "; "
                                                     << b.first << " + " << b.stride << " j, " << b.count;
    }
    // Strides whose product needs more than 64 bits: 3 * 2^61 + 1 and 2^62 - 1 meet in 0 alone.
    const std::int64_t large = 3 * (std::int64_t{1} << 61) + 1, other = (std::int64_t{1} << 62) - 1;
    EXPECT_EQ(elements(intersect({0, large, 2}, {0, other, 3})), (std::vector<std::int64_t>{0}));
}

TEST(Progression, Unions) {
    Generator generator(2);
    for (int sample = 0; sample < 4000; ++sample) {
        std::vector<Progression> sets;
        std::set<std::int64_t> wanted;
        for (std::int64_t n = generator.number(0, 9); n > 0; --n) {
            sets.push_back(generator.progression());
            for (const std::int64_t x : elements(sets.back()))
                wanted.insert(x);
        }
        std::set<std::int64_t> kept_elements;
        for (const Progression &set : without_contained(sets))
            for (const std::int64_t x : elements(set))
                kept_elements.insert(x);
        ASSERT_EQ(kept_elements, wanted);
        std::int64_t terms = 1 << 20;
        ASSERT_EQ(count_union(sets, terms), wanted.size());
        // With exactly the terms that it took it gives the same result; with one term less it gives nothing.
        const std::int64_t taken = (1 << 20) - terms;
        terms = taken;
        ASSERT_EQ(count_union(sets, terms), wanted.size());
        ASSERT_EQ(terms, 0);
        if (taken > 0) {
            terms = taken - 1;
            ASSERT_EQ(count_union(sets, terms), std::nullopt);
        }
    }
}

// The union of the multiples of 40 primes below 2^60 takes too many terms.
TEST(Progression, UnionsOfTooManyTerms) {
    std::vector<Progression> sets;
    for (std::int64_t p = 2; sets.size() < 40; ++p)
        if (std::all_of(sets.begin(), sets.end(), [&](const Progression &set) { return p % set.stride != 0; }))
            sets.push_back({0, p, (std::int64_t{1} << 60) / p});
    std::int64_t terms = 10000;
    EXPECT_EQ(count_union(sets, terms), std::nullopt);
}

} // namespace
} // namespace annulus::test
