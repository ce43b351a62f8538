// SPDX-License-Identifier: Apache-2.0
// The generalised Hilbert curve: it has an inverse, its steps go to neighbours, and it equals the recursion that
// defines it.
#include "core/hilbert.hpp"
#include "support/curve.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

namespace {

using annulus::Curve;
using annulus::test::hilbert_columns;
using annulus::test::hilbert_positions;

std::vector<std::int64_t> walk(const Curve &curve) {
    std::vector<std::int64_t> positions;
    for (std::int64_t p = 0; p < curve.length(); ++p)
        positions.push_back(curve.position(p));
    return positions;
}

// Expects every position once, and that index() maps each back to its step.
void expect_bijection(const Curve &curve) {
    std::vector<bool> seen(static_cast<std::size_t>(curve.length()));
    for (std::int64_t p = 0; p < curve.length(); ++p) {
        const std::int64_t position = curve.position(p);
        ASSERT_GE(position, 0);
        ASSERT_LT(position, curve.length());
        ASSERT_FALSE(seen[static_cast<std::size_t>(position)]) << "step " << p;
        seen[static_cast<std::size_t>(position)] = true;
        ASSERT_EQ(curve.place(position), p);
    }
}

TEST(Hilbert, BijectionForEveryLengthWithAutomaticWidth) {
    for (std::int64_t length = 1; length <= 4096; ++length) {
        SCOPED_TRACE(length);
        expect_bijection(Curve::hilbert(length, Curve::automatic_width(length)));
        if (HasFatalFailure())
            return;
    }
}

TEST(Hilbert, BijectionForEveryWidth) {
    for (std::int64_t length = 1; length <= 1024; ++length)
        for (std::int64_t width = 1; width <= length; ++width)
            if (length % width == 0) {
                SCOPED_TRACE(testing::Message() << length << " with width " << width);
                expect_bijection(Curve::hilbert(length, width));
                if (HasFatalFailure())
                    return;
            }
}

TEST(Hilbert, EqualsTheDefinition) {
    for (std::int64_t rows = 1; rows <= 48; ++rows)
        for (std::int64_t columns = 1; columns <= 48; ++columns)
            ASSERT_EQ(walk(Curve::hilbert(rows * columns, columns)), hilbert_positions(rows, columns))
                << rows << " x " << columns;
    for (const auto &[rows, columns] : {std::pair{128, 128}, {100, 63}, {331, 97}, {2, 500}, {701, 3}, {255, 257}})
        ASSERT_EQ(walk(Curve::hilbert(rows * columns, columns)), hilbert_positions(rows, columns))
            << rows << " x " << columns;
}

TEST(Hilbert, SmallCurvesByHand) {
    using List = std::vector<std::int64_t>;
    EXPECT_EQ(walk(Curve::hilbert(4, 2)), (List{0, 2, 3, 1}));
    EXPECT_EQ(walk(Curve::hilbert(16, 4)), (List{0, 1, 5, 4, 8, 12, 13, 9, 10, 14, 15, 11, 7, 6, 2, 3}));
    EXPECT_EQ(walk(Curve::hilbert(8, 4)), (List{0, 4, 5, 1, 2, 6, 7, 3}));
    EXPECT_EQ(walk(Curve::hilbert(8, 2)), (List{0, 1, 3, 2, 4, 5, 7, 6}));
}

// The walk starts in the first cell and ends at the other end of the longer side. Colour the cells like a chessboard:
// steps to neighbours change the colour. With an odd longer and an even shorter side they cannot join these two ends.
// Then one step is diagonal, or, if the shorter side is 2, the walk ends one cell early. In every other case all steps
// go to neighbours.
TEST(Hilbert, StepsGoToNeighbours) {
    for (std::int64_t rows = 1; rows <= 72; ++rows)
        for (std::int64_t columns = 1; columns <= 72; ++columns) {
            SCOPED_TRACE(testing::Message() << rows << " x " << columns);
            const std::int64_t longer = std::max(rows, columns), shorter = std::min(rows, columns);
            const bool odd = longer % 2 == 1 && shorter % 2 == 0;
            const std::vector<std::int64_t> positions = walk(Curve::hilbert(rows * columns, columns));
            ASSERT_EQ(positions.front(), 0);
            ASSERT_EQ(positions.back(), (longer - (odd && shorter == 2 ? 2 : 1)) * (columns >= rows ? 1 : columns));
            std::int64_t diagonal = 0;
            for (std::size_t p = 1; p < positions.size(); ++p) {
                const std::int64_t down = std::abs(positions[p] / columns - positions[p - 1] / columns);
                const std::int64_t across = std::abs(positions[p] % columns - positions[p - 1] % columns);
                ASSERT_LE(std::max(down, across), 1) << "step " << p;
                diagonal += down + across - 1;
            }
            ASSERT_EQ(diagonal, odd && shorter > 2 ? 1 : 0);
        }
}

TEST(Hilbert, LargeCurves) {
    std::mt19937_64 random(1);
    const auto check = [&](std::int64_t length, std::int64_t width) {
        SCOPED_TRACE(testing::Message() << length << " with width " << width);
        const Curve curve = Curve::hilbert(length, width);
        std::uniform_int_distribution<std::int64_t> any_step(0, length - 2);
        for (int sample = 0; sample < 200; ++sample) {
            const std::int64_t p = any_step(random);
            const std::int64_t here = curve.position(p), next = curve.position(p + 1);
            ASSERT_GE(here, 0);
            ASSERT_LT(here, length);
            ASSERT_EQ(curve.place(here), p);
            ASSERT_EQ(curve.place(next), p + 1);
            ASSERT_LE(std::abs(here / width - next / width), 1);
            ASSERT_LE(std::abs(here % width - next % width), 1);
        }
    };
    std::uniform_int_distribution<std::int64_t> any_length(1'000'000, 1'000'000'000'000);
    for (int sample = 0; sample < 40; ++sample) {
        const std::int64_t length = any_length(random);
        check(length, Curve::automatic_width(length));
    }
    std::uniform_int_distribution<std::int64_t> any_side(2, 1'000'000);
    for (int sample = 0; sample < 200; ++sample) {
        const std::int64_t rows = any_side(random), columns = any_side(random);
        check(rows * columns, columns);
    }
    // The flattest, tallest and largest grids of int64.
    constexpr std::int64_t largest_even = INT64_MAX - 1;
    check(largest_even, largest_even / 2);
    check(largest_even, 2);
    check(std::int64_t{3037000499} * 3037000499, 3037000499);
}

TEST(Hilbert, OneRowOrColumnIsLinear) {
    for (const std::int64_t length : {1, 2, 3, 17, 1000}) {
        for (const Curve &curve : {Curve::linear(length), Curve::hilbert(length, 1), Curve::hilbert(length, length)}) {
            EXPECT_TRUE(curve.is_linear());
            for (std::int64_t p = 0; p < length; ++p) {
                ASSERT_EQ(curve.position(p), p);
                ASSERT_EQ(curve.place(p), p);
            }
        }
    }
    EXPECT_FALSE(Curve::hilbert(6, 3).is_linear());
}

// Returns the runs of a window, found by following the curve.
std::vector<annulus::Interval> runs_by_walk(const std::vector<std::int64_t> &positions, std::int64_t from,
                                            std::int64_t to) {
    std::vector<annulus::Interval> runs;
    for (std::int64_t p = 0; p < static_cast<std::int64_t>(positions.size()); ++p) {
        if (positions[p] < from || positions[p] >= to)
            continue;
        if (runs.empty() || runs.back().end != p)
            runs.push_back({p, p});
        runs.back().end = p + 1;
    }
    return runs;
}

TEST(Hilbert, RunsOfWindows) {
    std::mt19937_64 random(3);
    const auto check = [&](const Curve &curve, std::int64_t from, std::int64_t to,
                           const std::vector<std::int64_t> &positions) {
        const std::vector<annulus::Interval> runs = curve.runs(from, to);
        ASSERT_EQ(runs, runs_by_walk(positions, from, to)) << "positions " << from << " to " << to;
        ASSERT_LE(static_cast<std::int64_t>(runs.size()), curve.border(from, to));
    };
    for (std::int64_t rows = 1; rows <= 9; ++rows)
        for (std::int64_t columns = 1; columns <= 9; ++columns) {
            SCOPED_TRACE(testing::Message() << rows << " x " << columns);
            const Curve curve = Curve::hilbert(rows * columns, columns);
            const std::vector<std::int64_t> positions = walk(curve);
            for (std::int64_t from = 0; from <= rows * columns; ++from)
                for (std::int64_t to = from; to <= rows * columns; ++to)
                    check(curve, from, to, positions);
            if (HasFatalFailure())
                return;
        }
    std::uniform_int_distribution<std::int64_t> any_side(1, 150);
    for (int sample = 0; sample < 100; ++sample) {
        const std::int64_t rows = any_side(random), columns = any_side(random);
        SCOPED_TRACE(testing::Message() << rows << " x " << columns);
        const Curve curve = Curve::hilbert(rows * columns, columns);
        const std::vector<std::int64_t> positions = walk(curve);
        std::uniform_int_distribution<std::int64_t> any(0, rows * columns);
        for (int window = 0; window < 20; ++window) {
            const auto [from, to] = std::minmax({any(random), any(random)});
            check(curve, from, to, positions);
        }
        if (HasFatalFailure())
            return;
    }
}

// In a square of 2^60 positions, parts far from a short window are skipped.
TEST(Hilbert, RunsOfLargeCurves) {
    constexpr std::int64_t side = std::int64_t{1} << 30, length = side * side;
    const Curve curve = Curve::hilbert(length, side);
    const std::clock_t start = std::clock();
    EXPECT_EQ(curve.runs(0, length), (std::vector<annulus::Interval>{{0, length}}));
    for (const std::int64_t from : {std::int64_t{12345}, length / 3, length - 5000}) {
        std::vector<std::int64_t> steps;
        for (std::int64_t position = from; position < from + 1000; ++position)
            steps.push_back(curve.place(position));
        std::sort(steps.begin(), steps.end());
        std::vector<std::int64_t> steps_of_runs;
        for (const annulus::Interval &run : curve.runs(from, from + 1000))
            for (std::int64_t p = run.begin; p < run.end; ++p)
                steps_of_runs.push_back(p);
        EXPECT_EQ(steps_of_runs, steps);
    }
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 10); // a minute along a row of the grid
}

TEST(Hilbert, AutomaticWidth) {
    for (std::int64_t length = 1; length <= 20000; ++length)
        ASSERT_EQ(Curve::automatic_width(length), hilbert_columns(length)) << length;
    // Squares and their neighbours, for which a rounded square root would be wrong; primes have one row.
    for (const std::int64_t root : {94906267L, 999999937L, 3037000499L}) {
        EXPECT_EQ(Curve::automatic_width(root * root), root);
        EXPECT_EQ(Curve::automatic_width(root * root - 1), root + 1);
    }
    for (const std::int64_t prime : {2, 3, 4093, 1000003, 2147483647}) {
        EXPECT_EQ(Curve::automatic_width(prime), prime);
        EXPECT_TRUE(Curve::hilbert(prime, Curve::automatic_width(prime)).is_linear());
    }
    EXPECT_EQ(Curve::automatic_width(1'000'000'000'000), 1'000'000);
    EXPECT_EQ(Curve::automatic_width(999'999'999'989), 999'999'999'989);
}

// Products of known primes: all of their divisors are products of these primes.
TEST(Hilbert, AutomaticWidthOfProductsOfPrimes) {
    std::vector<std::int64_t> primes;
    for (std::int64_t n = 2; n < 1 << 16; ++n)
        if (std::all_of(primes.begin(), primes.end(), [&](std::int64_t p) { return p * p > n || n % p != 0; }))
            primes.push_back(n);
    std::mt19937_64 random(7);
    for (int sample = 0; sample < 3000; ++sample) {
        // Few large primes or many small ones, some of them several times.
        const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(2ULL << random() % 13, primes.size()));
        std::int64_t length = 1;
        std::vector<std::int64_t> divisors = {1};
        while (true) {
            const std::int64_t p = primes[random() % 4 == 0 ? most - 1 : random() % most];
            if (length > INT64_MAX / p || divisors.size() > 4000)
                break;
            length *= p;
            const std::size_t before = divisors.size();
            for (std::size_t i = 0; i < before; ++i)
                divisors.push_back(divisors[i] * p);
        }
        std::int64_t width = length;
        for (const std::int64_t divisor : divisors)
            if (divisor >= length / divisor + (length % divisor != 0))
                width = std::min(width, divisor);
        ASSERT_EQ(Curve::automatic_width(length), width) << length;
    }
}

// Numbers that no short search divides: primes, products of two large ones, squares, pseudoprimes of one base.
TEST(Hilbert, AutomaticWidthOfHardNumbers) {
    const std::clock_t start = std::clock();
    const std::int64_t p = 2147483647, q = 2147483629, large = 9223372036854775783;
    for (int i = 0; i < 64; ++i) {
        ASSERT_EQ(Curve::automatic_width(large), large);
        ASSERT_EQ(Curve::automatic_width(18014398509481951), 18014398509481951); // 2^54 - 33
        ASSERT_EQ(Curve::automatic_width(p * q), p);
        ASSERT_EQ(Curve::automatic_width(p * p), p);
        ASSERT_EQ(Curve::automatic_width(2 * p * q), 2 * q);
        ASSERT_EQ(Curve::automatic_width(3825123056546413051), 111737197441); // 149491 * 747451 * 34233211
    }
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 10); // minutes by division
}

} // namespace
