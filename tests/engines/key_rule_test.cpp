// SPDX-License-Identifier: Apache-2.0
// Keys that several branches give to a query and that count once. The engine under test (on a CPU also the reference)
// is compared with the plain formula over sets of keys, and with one branch that has the same keys.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/plain.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

std::vector<RunOptions> ways() {
    std::vector<RunOptions> all = subject_ways();
    if (subject().engine == ANNULUS_ENGINE_CPU)
        all.push_back({.engine = ANNULUS_ENGINE_REFERENCE});
    return all;
}

std::string name_of_way(std::size_t way) {
    return std::string(annulus_engine_name(ways()[way].engine)) + "_way_" + std::to_string(way);
}

std::vector<NamedProblem> problems() {
    std::vector<NamedProblem> all = with_dtypes(rule_combinations(), subject_dtypes());
    for (const NamedProblem &named : with_dtypes(nested_problems(), {subject_dtypes().front(), ANNULUS_FLOAT16}))
        all.push_back(named);
    std::vector<NamedProblem> others = named_problems();
    for (std::uint64_t seed = 1; seed <= (quick() ? 20 : 100); ++seed)
        others.push_back({"random_" + std::to_string(seed), random_problem(seed)});
    for (NamedProblem &named : up_to(quick() ? 1e6 : small_work, others)) {
        if (!subject_takes(named.problem.dtype))
            named.problem.dtype = subject_dtypes().front();
        all.push_back(named);
    }
    return with_keys_once(all);
}

const auto all_ways = testing::Range(std::size_t{0}, ways().size());

using KeysOnce = testing::TestWithParam<std::tuple<NamedProblem, std::size_t>>;

std::string name_of(const testing::TestParamInfo<KeysOnce::ParamType> &info) {
    return std::get<0>(info.param).name + "_" + name_of_way(std::get<1>(info.param));
}

TEST_P(KeysOnce, AgreesWithPlainFormula) {
    const Problem &problem = std::get<0>(GetParam()).problem;
    const RunOptions options = ways()[std::get<1>(GetParam())];
    if (const char *reason = options.refusal_of(problem))
        GTEST_SKIP() << reason;
    const Inputs inputs = random_inputs(problem, 3);
    const Results results = run(problem, inputs, options);
    expect_agreement(problem, inputs, results, plain(problem, inputs, ANNULUS_FLOAT64));
}

INSTANTIATE_TEST_SUITE_P(Table, KeysOnce, testing::Combine(testing::ValuesIn(problems()), all_ways), name_of);

class EachWay : public testing::TestWithParam<std::size_t> {
  protected:
    const RunOptions options_ = ways()[GetParam()];
};

// Segments inside segments, a repeated branch, and a dilated branch over all: together they have the keys of the
// largest.
TEST_P(EachWay, BranchesWithinABranchChangeNothing) {
    for (const bool causal : {false, true}) {
        Problem problem = {.length = 100,
                           .heads = 2,
                           .branches = {{.segment = 50}},
                           .causal = causal,
                           .dtype = subject_dtypes().front()};
        const Inputs inputs = random_inputs(problem, 4);
        const Results wanted = run(problem, inputs, options_);
        problem.keys_once = true;
        problem.branches = {{.segment = 10}, {.segment = 50}, {.segment = 50}, {.segment = 25, .dilation = 3}};
        expect_agreement(problem, inputs, run(problem, inputs, options_), wanted);
        problem.keys_once = false;
        EXPECT_NE(run(problem, inputs, options_).lse, wanted.lse);
    }
}

// Slots without a position are no keys of the sequence. The slots of two branches count twice.
TEST_P(EachWay, PaddingCountsForEachBranch) {
    Problem problem = {.length = 5,
                       .heads = 1,
                       .branches = {{.segment = 2}, {.segment = 2}},
                       .zero_keys = true,
                       .keys_once = true,
                       .scale = 0,
                       .dtype = subject_dtypes().front()};
    if (options_.refusal_of(problem))
        problem.scale = 1e-30; // practically 0
    const Results results = run(problem, random_inputs(problem, 5), options_);
    const double near = tolerance_of(problem.dtype);
    EXPECT_NEAR(results.lse[4], std::log(3), near); // one key, two slots
    EXPECT_NEAR(results.lse[0], std::log(2), near);
}

// If no key is given to a query by two branches, the rule does not change a bit.
TEST_P(EachWay, BranchesApartAreLeftAlone) {
    Problem problem = {.length = 200,
                       .heads = 4,
                       .dim = 16,
                       .branches = {{.segment = 64, .head_count = 2}, {.dilation = 3, .first_head = 2}},
                       .dtype = subject_dtypes().front()};
    for (const bool causal : {false, true}) {
        problem.causal = causal;
        problem.keys_once = false;
        const Inputs inputs = random_inputs(problem, 6);
        const Results wanted = run(problem, inputs, options_);
        problem.keys_once = true;
        expect_identical(run(problem, inputs, options_), wanted);
    }
}

INSTANTIATE_TEST_SUITE_P(Ways, EachWay, all_ways, [](const auto &way) { return name_of_way(way.param); });

} // namespace
} // namespace annulus::test
