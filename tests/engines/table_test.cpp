// SPDX-License-Identifier: Apache-2.0
// The engine under test against the reference engine in float64.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace annulus::test {

namespace {

// Takes the largest problems only in the dtype that most people use.
std::vector<NamedProblem> in_its_dtypes(const std::vector<NamedProblem> &problems) {
    std::vector<NamedProblem> all = with_dtypes(problems, subject_dtypes());
    std::erase_if(all, [](const NamedProblem &named) {
        return named.problem.work() > 5e8 && named.problem.dtype != subject_usual_dtype();
    });
    return all;
}

std::vector<NamedProblem> rules(double most_work) {
    return in_its_dtypes(up_to(most_work, rule_combinations()));
}

std::vector<NamedProblem> named(double most_work) {
    return in_its_dtypes(up_to(most_work, named_problems()));
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

class Table : public testing::TestWithParam<NamedProblem> {};

TEST_P(Table, AgreesWithReference) {
    const Problem &problem = GetParam().problem;
    if (const char *reason = subject().refusal_of(problem))
        GTEST_SKIP() << reason;
    const Inputs inputs = random_inputs(problem, 1);
    const Results exact = run_exact(problem, inputs);
    const Results low = plain_if_half(problem, inputs);
    for (const RunOptions &options : subject_ways())
        expect_agreement(problem, run(problem, inputs, options), exact, low);
}

class Small : public testing::TestWithParam<NamedProblem> {};

TEST_P(Small, AgreesWithoutGradientOfLse) {
    const Problem &problem = GetParam().problem;
    if (const char *reason = subject().refusal_of(problem))
        GTEST_SKIP() << reason;
    const Inputs inputs = random_inputs(problem, 3, false);
    expect_agreement(problem, inputs, run(problem, inputs, subject()), run_exact(problem, inputs));
}

const double most_work = quick() ? small_work : 1e18;
INSTANTIATE_TEST_SUITE_P(Rules, Table, testing::ValuesIn(rules(most_work)), name_of);
INSTANTIATE_TEST_SUITE_P(Named, Table, testing::ValuesIn(named(most_work)), name_of);
INSTANTIATE_TEST_SUITE_P(Rules, Small, testing::ValuesIn(rules(small_work)), name_of);
INSTANTIATE_TEST_SUITE_P(Named, Small, testing::ValuesIn(named(small_work)), name_of);

} // namespace
} // namespace annulus::test
