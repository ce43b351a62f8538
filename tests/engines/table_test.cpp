// SPDX-License-Identifier: Apache-2.0
// The engine under test against the reference engine in float64.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace annulus::test {

void PrintTo(const NamedProblem &named, std::ostream *out) {
    *out << named.problem;
}

namespace {

std::vector<NamedProblem> in_its_dtypes(const std::vector<NamedProblem> &problems, double most_work) {
    return with_dtypes(problems, subject_dtypes(), most_work);
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

class Table : public testing::TestWithParam<NamedProblem> {};

TEST_P(Table, AgreesWithReference) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 1);
    const Results exact = run_exact(problem, inputs);
    const Results low = plain_if_half(problem, inputs);
    for (const RunOptions &options : subject_ways())
        expect_agreement(problem, run(problem, inputs, options), exact, low);
}

class Small : public testing::TestWithParam<NamedProblem> {};

TEST_P(Small, AgreesWithoutGradientOfLse) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 3, false);
    expect_agreement(problem, inputs, run(problem, inputs, subject()), run_exact(problem, inputs));
}

const double most_work = quick() ? small_work : 1e18;
INSTANTIATE_TEST_SUITE_P(Rules, Table, testing::ValuesIn(in_its_dtypes(rule_combinations(), most_work)), name_of);
INSTANTIATE_TEST_SUITE_P(Named, Table, testing::ValuesIn(in_its_dtypes(named_problems(), most_work)), name_of);
INSTANTIATE_TEST_SUITE_P(Rules, Small, testing::ValuesIn(in_its_dtypes(rule_combinations(), small_work)), name_of);
INSTANTIATE_TEST_SUITE_P(Named, Small, testing::ValuesIn(in_its_dtypes(named_problems(), small_work)), name_of);

} // namespace
} // namespace annulus::test
