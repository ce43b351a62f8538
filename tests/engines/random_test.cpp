// SPDX-License-Identifier: Apache-2.0
// A sweep of random small problems: the cpu engine against the reference. ANNULUS_TEST_SEED chooses another sweep; a
// failing problem is printed as an entry for the table.
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace annulus::test {
namespace {

std::uint64_t seed() {
    const char *const text = std::getenv("ANNULUS_TEST_SEED");
    return text ? std::strtoull(text, nullptr, 10) : 20260101;
}

class RandomProblem : public testing::TestWithParam<int> {};

TEST_P(RandomProblem, CpuAgreesWithReference) {
    const std::uint64_t own_seed = seed() + static_cast<std::uint64_t>(GetParam());
    const Problem problem = random_problem(own_seed);
    SCOPED_TRACE(testing::Message() << "ANNULUS_TEST_SEED=" << seed() << " problem " << problem);
    const Inputs inputs = random_inputs(problem, own_seed, own_seed % 2 == 0);
    expect_agreement(problem, inputs, run(problem, inputs), run_exact(problem, inputs));
}

INSTANTIATE_TEST_SUITE_P(Sweep, RandomProblem, testing::Range(0, quick() ? 100 : 600));

} // namespace
} // namespace annulus::test
