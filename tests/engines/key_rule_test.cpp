// SPDX-License-Identifier: Apache-2.0
// Keys that several branches give to a query and that count once: the engines that can do it against the plain formula
// over sets of keys, against one branch that reaches the same, and the refusals of the others.
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/plain.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

// The engines that compute it. One more here is tested like these.
constexpr annulus_engine able[] = {ANNULUS_ENGINE_REFERENCE};

std::vector<NamedProblem> problems() {
    std::vector<NamedProblem> all = rule_combinations();
    for (const NamedProblem &named : named_problems())
        all.push_back(named);
    for (std::uint64_t seed = 1; seed <= 60; ++seed)
        all.push_back({"random_" + std::to_string(seed), random_problem(seed)});
    all = up_to(small_work, all);
    for (NamedProblem &named : all)
        named.problem.keys_once = true;
    return all;
}

using KeysOnce = testing::TestWithParam<std::tuple<NamedProblem, annulus_engine>>;

std::string name_of(const testing::TestParamInfo<KeysOnce::ParamType> &info) {
    return std::get<0>(info.param).name + "_" + annulus_engine_name(std::get<1>(info.param));
}

TEST_P(KeysOnce, AgreesWithPlainFormula) {
    const auto &[named, engine] = GetParam();
    const Inputs inputs = random_inputs(named.problem, 3);
    const Results results = run(named.problem, inputs, {.engine = engine});
    expect_agreement(named.problem, inputs, results, plain(named.problem, inputs, ANNULUS_FLOAT64));
}

INSTANTIATE_TEST_SUITE_P(Table, KeysOnce, testing::Combine(testing::ValuesIn(problems()), testing::ValuesIn(able)),
                         name_of);

class AbleEngine : public testing::TestWithParam<annulus_engine> {};

// Segments within segments, the same branch twice, a dilated one over all of them: together no more than the largest.
TEST_P(AbleEngine, BranchesWithinABranchChangeNothing) {
    for (const bool causal : {false, true}) {
        Problem problem = {.length = 100, .heads = 2, .branches = {{.segment = 50}}, .causal = causal};
        const Inputs inputs = random_inputs(problem, 4);
        const Results wanted = run(problem, inputs, {.engine = GetParam()});
        problem.keys_once = true;
        problem.branches = {{.segment = 10}, {.segment = 50}, {.segment = 50}, {.segment = 25, .dilation = 3}};
        expect_agreement(problem, inputs, run(problem, inputs, {.engine = GetParam()}), wanted);
        problem.keys_once = false;
        EXPECT_NE(run(problem, inputs, {.engine = GetParam()}).lse, wanted.lse);
    }
}

// Slots without a position are no keys of the sequence: those of two branches count twice.
TEST_P(AbleEngine, PaddingCountsForEachBranch) {
    const Problem problem = {.length = 5,
                             .heads = 1,
                             .branches = {{.segment = 2}, {.segment = 2}},
                             .zero_keys = true,
                             .keys_once = true,
                             .scale = 0};
    const Results results = run(problem, random_inputs(problem, 5), {.engine = GetParam()});
    EXPECT_NEAR(results.lse[4], std::log(3), 1e-12); // one key, two slots
    EXPECT_NEAR(results.lse[0], std::log(2), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Engines, AbleEngine, testing::ValuesIn(able),
                         [](const auto &of_test) { return std::string(annulus_engine_name(of_test.param)); });

TEST(KeyRule, IsRefusedByEnginesThatGoBranchByBranch) {
    Problem problem = {.length = 20, .branches = {{.segment = 10}, {}}, .keys_once = true};
    const Inputs inputs = random_inputs(problem, 6);
    for (const annulus_engine engine : {ANNULUS_ENGINE_CPU}) {
        if (std::ranges::find(able, engine) != std::end(able))
            continue;
        const Context context = make_context(make_config(problem, engine).get(), 1);
        const annulus_problem sizes = sizes_of(problem);
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        EXPECT_EQ(annulus_estimate_problem(context.get(), &sizes, ANNULUS_ALL_BRANCHES, &estimate),
                  ANNULUS_ERROR_UNSUPPORTED);
        EXPECT_NE(std::string(annulus_last_error()).find("once for each branch"), std::string::npos)
            << annulus_last_error();
    }
    // Where there is one branch no key is reached twice.
    problem.branches.pop_back();
    const Results results = run(problem, inputs, {.engine = ANNULUS_ENGINE_CPU});
    expect_agreement(problem, inputs, results, plain(problem, inputs, ANNULUS_FLOAT64));
}

} // namespace
} // namespace annulus::test
