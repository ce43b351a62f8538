// SPDX-License-Identifier: Apache-2.0
// A sweep of random small problems with extreme patterns, factors and numbers. Each result of the engine under test,
// and of the reference on tensors of the same dtype, is what annulus/attention.h promises for it.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/bounds.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

namespace annulus::test {
namespace {

constexpr std::uint64_t usual_seed = 20260760;

class Extremes {
  public:
    explicit Extremes(std::uint64_t seed) : engine_(seed) {}

    // Sets the pattern and the factor to extreme values.
    void change(Problem &problem) {
        constexpr double scales[] = {0, -0.5, 1, -3, 1e-36, 1e-20, 1e20, 1e36, -1e36};
        if (chance(0.4))
            problem.scale = scales[number(0, std::size(scales) - 1)];
        problem.keys_once = chance(0.2);
        for (BranchSpec &branch : problem.branches) {
            const std::int64_t w = branch.segment ? branch.segment : problem.length;
            constexpr std::int64_t primes[] = {331, 1000003, 2147483647, 2305843009213693951};
            switch (number(0, 9)) {
            case 0:
                branch.segment = 1;
                branch.width = 0;
                break;
            case 1: // longer than the sequence
                branch.segment = problem.length + number(1, 1000);
                branch.width = 0;
                break;
            case 2: // a class for each place, and empty classes
                branch.dilation = w + number(0, 5);
                break;
            case 3:
                branch.dilation = primes[number(0, std::size(primes) - 1)];
                break;
            default:
                break;
            }
        }
    }

    Inputs inputs(const Problem &problem, std::uint64_t seed) {
        Inputs inputs = random_inputs(problem, seed, chance(0.5));
        for (std::vector<double> *values : {&inputs.q, &inputs.k, &inputs.v, &inputs.d_out})
            change(*values, problem.dtype, problem.dim);
        if (!inputs.d_lse.empty() && chance(0.3))
            change(inputs.d_lse, statistics_dtype(problem.dtype), 1);
        return inputs;
    }

  private:
    std::int64_t number(std::int64_t least, std::int64_t greatest) {
        return std::uniform_int_distribution<std::int64_t>(least, greatest)(engine_);
    }
    bool chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }
    double power(double least, double greatest) {
        return std::pow(10, std::uniform_real_distribution(least, greatest)(engine_));
    }

    void change(std::vector<double> &values, annulus_dtype dtype, std::int64_t row) {
        const bool is_wide = dtype == ANNULUS_FLOAT64, is_narrow = dtype == ANNULUS_FLOAT16;
        const double digits = is_wide ? 150 : is_narrow ? 4 : 30;
        if (chance(0.3)) { // all numbers
            const double factor = chance(0.5) ? power(-digits, digits) : power(-2, 4);
            for (double &value : values)
                value *= factor;
        }
        constexpr double inf = std::numeric_limits<double>::infinity();
        const double largest = is_wide     ? std::numeric_limits<double>::max()
                               : is_narrow ? 65504
                                           : 0x1.fep127,
                     least = is_wide     ? std::numeric_limits<double>::denorm_min()
                             : is_narrow ? 0x1p-24
                                         : 0x1p-133, // of bfloat16
            large = is_narrow ? 1e4 : 1e30;
        const double finite[] = {0, -0.0, least, -3 * least, 40 * least, large, -large, 1 / large, largest, -largest};
        const double others[] = {inf, -inf, std::numeric_limits<double>::quiet_NaN()};
        if (chance(0.5)) { // some numbers
            const double rate = power(-3, -0.7);
            const std::int64_t kinds = chance(0.5) ? 5 : std::size(finite);
            for (double &value : values)
                if (chance(rate))
                    value = finite[number(0, kinds - 1)];
        }
        if (chance(0.25)) // few numbers
            for (std::int64_t count = number(1, 3); count > 0; --count)
                values[static_cast<std::size_t>(number(0, std::ssize(values) - 1))] = others[number(0, 2)];
        if (chance(0.2)) { // one row
            const std::int64_t first = number(0, std::ssize(values) / row - 1) * row;
            const double value = chance(0.5) ? others[number(0, 2)] : finite[number(0, std::size(finite) - 1)];
            std::fill_n(values.begin() + first, row, value);
        }
        for (double &value : values)
            value = round_to(dtype, value);
    }

    std::mt19937_64 engine_;
};

void expect_within(const char *name, const std::vector<double> &got, const std::vector<Bound> &bounds) {
    ASSERT_EQ(got.size(), bounds.size()) << name;
    for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_TRUE(bounds[i].holds(got[i]))
            << name << "[" << i << "] is " << got[i] << " and should be " << bounds[i].exact << " to "
            << bounds[i].error << (bounds[i].is_number ? "" : ", or no number");
}

class ExtremeProblem : public testing::TestWithParam<int> {};

TEST_P(ExtremeProblem, IsRightOrNoNumber) {
    const std::uint64_t seed = sweep_seed(usual_seed) + static_cast<std::uint64_t>(GetParam());
    Problem problem = random_problem(seed);
    if (!subject_takes(problem.dtype))
        problem.dtype = subject_dtypes()[seed % subject_dtypes().size()];
    Extremes extremes(seed);
    extremes.change(problem);
    problem = taken(problem, subject());
    const Inputs inputs = extremes.inputs(problem, seed);
    const bool is_fused = subject().engine == ANNULUS_ENGINE_FUSED; // which attention.h names
    const Bounds bounds = bounds_of(problem, inputs, is_fused);
    const std::vector<RunOptions> ways = subject_ways();
    for (const RunOptions &options : {ways[seed % ways.size()], RunOptions{.engine = ANNULUS_ENGINE_REFERENCE}}) {
        SCOPED_TRACE(testing::Message() << "ANNULUS_TEST_SEED=" << seed << " engine "
                                        << annulus_engine_name(options.engine) << " problem " << problem);
        const Results results = run(problem, inputs, options);
        expect_within("out", results.out, bounds.out);
        expect_within("lse", results.lse, bounds.lse);
        expect_within("d_q", results.d_q, bounds.d_q);
        expect_within("d_k", results.d_k, bounds.d_k);
        expect_within("d_v", results.d_v, bounds.d_v);
    }
}

INSTANTIATE_TEST_SUITE_P(Sweep, ExtremeProblem, testing::Range(0, sweep_size(quick() ? 100 : 200)));

} // namespace
} // namespace annulus::test
