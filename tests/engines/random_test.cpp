// SPDX-License-Identifier: Apache-2.0
// A sweep of random small problems with random workspace limits: the engine under test against the reference.
// ANNULUS_TEST_SEED and ANNULUS_TEST_PROBLEMS choose another sweep. A problem that fails is printed as an entry for the
// table.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <random>

namespace annulus::test {
namespace {

constexpr std::uint64_t usual_seed = 20260101;

// Returns no limit, or 4 KiB to 4 MiB, which may be less than the problem needs.
std::uint64_t random_limit(std::uint64_t own_seed) {
    std::mt19937_64 generator(own_seed);
    if (std::bernoulli_distribution(0.3)(generator))
        return 0;
    return std::uint64_t{1} << std::uniform_int_distribution<int>(12, 22)(generator);
}

class RandomProblem : public testing::TestWithParam<int> {};

TEST_P(RandomProblem, AgreesWithReference) {
    const std::uint64_t own_seed = sweep_seed(usual_seed) + static_cast<std::uint64_t>(GetParam());
    Problem problem = random_problem(own_seed);
    if (!subject_takes(problem.dtype))
        problem.dtype = subject_dtypes()[own_seed % subject_dtypes().size()];
    problem = taken(problem, subject());
    const std::vector<RunOptions> ways = subject_ways();
    RunOptions options = ways[own_seed % ways.size()];
    options.workspace_limit = random_limit(own_seed);
    options.raise_limit = options.workspace_limit != 0;
    SCOPED_TRACE(testing::Message() << "ANNULUS_TEST_SEED=" << own_seed << " workspace limit "
                                    << options.workspace_limit << " problem " << problem);
    const Inputs inputs = random_inputs(problem, own_seed, own_seed % 2 == 0);
    expect_agreement(problem, inputs, run(problem, inputs, options), run_exact(problem, inputs));
}

INSTANTIATE_TEST_SUITE_P(Sweep, RandomProblem, testing::Range(0, sweep_size(quick() ? 100 : 600)));

} // namespace
} // namespace annulus::test
