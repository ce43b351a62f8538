// SPDX-License-Identifier: Apache-2.0
// The schedules of random patterns and shards. The messages hold exactly the rows that a query of the receiver attends
// to. No transport is used.
#include "engines/table.hpp"
#include "ranks/schedule_checks.hpp"

#include "core/error.hpp"
#include "support/plan.hpp"
#include "support/random_problem.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

// Makes problems that are hard for arithmetic with strides. Dilations are large and coprime, or exceed the shard, the
// sequence, or half the 64-bit range. Key/value heads have many query heads.
class Generator {
  public:
    explicit Generator(std::uint64_t seed) : engine_(seed) {}

    Problem problem() {
        Problem p;
        p.dim = 8;
        p.length = chance(0.2) ? number(1, 12) : number(13, 260);
        p.kv_heads = static_cast<std::int32_t>(number(1, 3));
        p.heads = p.kv_heads * static_cast<std::int32_t>(chance(0.7) ? number(1, 4) : number(5, 14));
        p.causal = chance(0.5);
        p.dtype = static_cast<annulus_dtype>(number(1, 4));
        p.branches.clear();
        const bool linear = chance(0.8);
        for (std::int64_t count = chance(0.3) ? 1 : number(2, 6); count > 0; --count)
            p.branches.push_back(branch(p, linear));
        return p;
    }

    // Most segments are longer than a shard, and half of the branches follow the Hilbert curve.
    Problem overlapping_problem() {
        Problem p;
        p.dim = 8;
        p.length = number(100, 500);
        p.kv_heads = static_cast<std::int32_t>(number(1, 3));
        p.heads = p.kv_heads * static_cast<std::int32_t>(number(1, 9));
        p.causal = chance(0.3);
        p.branches.clear();
        for (std::int64_t count = number(2, 6); count > 0; --count) {
            BranchSpec b;
            b.segment = chance(0.5) ? 0 : number(p.length / 3, p.length);
            b.dilation = number(2, chance(0.7) ? 9 : 60);
            b.phase = static_cast<annulus_phase_rule>(number(0, 2));
            b.residue = b.phase == ANNULUS_PHASE_FIXED ? number(0, 40) : 0;
            b.query = static_cast<annulus_query_rule>(number(0, 2));
            if (chance(0.5))
                b.order = ANNULUS_ORDER_HILBERT;
            p.branches.push_back(b);
        }
        return p;
    }

    // Windows beside other branches: shorter and longer than shards, with large dilations, without a limit on a side.
    Problem window_problem() {
        Problem p = problem();
        for (BranchSpec &b : p.branches) {
            if (chance(0.4))
                continue;
            const auto steps = [&] {
                return chance(0.15) ? -1 : chance(0.1) ? int64_max : number(0, chance(0.5) ? 6 : p.length);
            };
            b.kind = ANNULUS_BRANCH_WINDOW;
            b.segment = 0;
            b.order = ANNULUS_ORDER_LINEAR;
            b.query = chance(0.5) ? ANNULUS_QUERY_RESIDUE : ANNULUS_QUERY_DILATED;
            b.left = steps();
            b.right = steps();
        }
        return p;
    }

    // Global positions beside windows and segments: a few or many, on several shards, beyond the end of the sequence.
    Problem global_problem() {
        Problem p = chance(0.5) ? window_problem() : problem();
        for (std::int64_t count = number(1, 2); count > 0; --count) {
            BranchSpec b = global_spec(chance(0.5) ? number(0, 5) : number(0, p.length + 1),
                                       number(1, chance(0.7) ? 5 : p.length), chance(0.5));
            if (chance(0.4)) {
                b.first_head = static_cast<std::int32_t>(number(0, p.heads - 1));
                b.head_count = static_cast<std::int32_t>(number(1, p.heads - b.first_head));
            }
            p.branches.insert(p.branches.begin() + number(0, static_cast<std::int64_t>(p.branches.size())), b);
        }
        return p;
    }

    std::vector<std::int64_t> lengths(std::int64_t length) {
        const int ranks = static_cast<int>(number(1, 9));
        if (chance(0.3))
            return even_lengths(length, ranks);
        std::vector<std::int64_t> lengths = random_lengths(length, ranks, engine_());
        if (chance(0.5)) // shards of one row
            for (std::size_t i = 0; i + 1 < lengths.size(); i += 2)
                if (lengths[i] > 1)
                    lengths[i + 1] += std::exchange(lengths[i], 1) - 1;
        return lengths;
    }

  private:
    std::int64_t number(std::int64_t least, std::int64_t greatest) {
        return std::uniform_int_distribution<std::int64_t>(least, greatest)(engine_);
    }
    bool chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }

    std::int64_t dilation(std::int64_t length) {
        static constexpr std::int64_t primes[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 53, 71, 97, 113};
        const double kind = std::uniform_real_distribution<double>()(engine_);
        if (kind < 0.3)
            return number(1, 6);
        if (kind < 0.8)
            return primes[number(0, std::size(primes) - 1)];
        if (kind < 0.9)
            return number(std::max<std::int64_t>(1, length - 2), length + 2);
        return chance(0.5) ? int64_max - number(0, 2) : number(1, int64_max);
    }

    BranchSpec branch(const Problem &p, bool linear) {
        BranchSpec b;
        b.segment = chance(0.4) ? 0 : number(1, p.length + 9);
        b.dilation = dilation(p.length);
        b.phase = static_cast<annulus_phase_rule>(number(0, 2));
        b.residue = b.phase == ANNULUS_PHASE_FIXED ? number(0, chance(0.8) ? 40 : int64_max) : 0;
        b.query = static_cast<annulus_query_rule>(number(0, 2));
        if (!linear && chance(0.5))
            b.order = ANNULUS_ORDER_HILBERT;
        if (chance(0.4)) {
            b.first_head = static_cast<std::int32_t>(number(0, p.heads - 1));
            b.head_count = static_cast<std::int32_t>(number(1, p.heads - b.first_head));
        }
        return b;
    }

    std::mt19937_64 engine_;
};

class Random : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Random, TheTestsProblems) {
    for (std::uint64_t i = 0; i < 20; ++i) {
        const std::uint64_t seed = 20 * GetParam() + i;
        Problem problem = random_problem(seed);
        problem.window.reset();
        problem.zero_keys = false; // padding keys are in no message
        const int ranks = 1 + static_cast<int>(seed % 9);
        expect_schedules(problem, random_lengths(problem.length, ranks, seed));
        if (HasFailure())
            return;
    }
}

TEST_P(Random, HostileProblems) {
    for (std::uint64_t i = 0; i < 40; ++i) {
        Generator generator(40 * GetParam() + i);
        const Problem problem = generator.problem();
        expect_schedules(problem, generator.lengths(problem.length));
        if (HasFailure())
            return;
    }
}

TEST_P(Random, Windows) {
    for (std::uint64_t i = 0; i < 40; ++i) {
        Generator generator(5000 + 40 * GetParam() + i);
        const Problem problem = generator.window_problem();
        expect_schedules(problem, generator.lengths(problem.length));
        if (HasFailure())
            return;
    }
}

TEST_P(Random, GlobalPositions) {
    for (std::uint64_t i = 0; i < 20; ++i) {
        Generator generator(7000 + 20 * GetParam() + i);
        const Problem problem = generator.global_problem();
        expect_schedules(problem, generator.lengths(problem.length));
        if (HasFailure())
            return;
    }
}

// Several branches want some of the same rows, along curves and lines, with large groups of heads.
TEST_P(Random, BranchesOnTopOfOneAnother) {
    for (std::uint64_t i = 0; i < 20; ++i) {
        Generator generator(1000 + 20 * GetParam() + i);
        Problem problem = generator.overlapping_problem();
        expect_schedules(problem, generator.lengths(problem.length));
        if (HasFailure())
            return;
    }
}

// Many ranks with equal shards, the usual case. Some shards are empty.
TEST_P(Random, ManyRanks) {
    Generator generator(2000 + GetParam());
    const Problem problem = generator.problem();
    expect_schedules(problem, even_lengths(problem.length, 10 + 5 * static_cast<int>(GetParam())));
}

// With few steps a plan is the same as with enough steps, or it is refused.
TEST_P(Random, PlansWithinSteps) {
    int refused = 0, made = 0;
    for (std::uint64_t i = 0; i < 20; ++i) {
        Generator generator(3000 + 20 * GetParam() + i);
        const Problem problem = generator.overlapping_problem();
        SCOPED_TRACE(testing::Message() << problem);
        const Shards shards = make_shards(generator.lengths(problem.length));
        const ShardLayout layout(pattern_of(problem), plan_problem_of(problem), shards, ANNULUS_EXCHANGE_RING);
        const int rank = static_cast<int>(shards.pieces.size()) / 2;
        Steps enough(call_planning_steps);
        const Schedule whole(layout, rank, enough);
        for (std::int64_t steps = 8; steps < 1 << 17; steps *= 4) {
            try {
                Steps few(steps);
                const Schedule limited(layout, rank, few);
                ASSERT_EQ(limited.rounds().size(), whole.rounds().size());
                for (std::size_t t = 0; t < whole.rounds().size(); ++t)
                    for (auto messages : {&Round::sends, &Round::receives}) {
                        const auto &got = limited.rounds()[t].*messages, &wanted = whole.rounds()[t].*messages;
                        ASSERT_EQ(got.size(), wanted.size());
                        for (std::size_t j = 0; j < got.size(); ++j)
                            ASSERT_EQ(fields(*got[j]), fields(*wanted[j]));
                    }
                ++made;
            } catch (const Error &error) {
                ASSERT_EQ(error.status(), ANNULUS_ERROR_UNSUPPORTED);
                ASSERT_NE(std::string(error.what()).find("more than " + std::to_string(steps) + " steps"),
                          std::string::npos)
                    << error.what();
                ++refused;
            }
        }
    }
    EXPECT_GT(refused, 0);
    EXPECT_GT(made, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Random, testing::Range<std::uint64_t>(0, quick() ? 3 : 10));

} // namespace
} // namespace annulus::test
