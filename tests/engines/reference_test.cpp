// SPDX-License-Identifier: Apache-2.0
// The reference engine, which the others are compared with, against the plain formula.
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/plain.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace annulus::test {
namespace {

std::vector<NamedProblem> small_problems() {
    std::vector<NamedProblem> problems = rule_combinations();
    for (const NamedProblem &named : named_problems())
        problems.push_back(named);
    return with_dtypes(up_to(small_work, problems),
                       {ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16});
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

class Reference : public testing::TestWithParam<NamedProblem> {};

TEST_P(Reference, AgreesWithPlainFormula) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 2);
    const Results results = run(problem, inputs, {.engine = ANNULUS_ENGINE_REFERENCE});
    expect_agreement(problem, inputs, results, plain(problem, inputs, ANNULUS_FLOAT64));
}

INSTANTIATE_TEST_SUITE_P(Table, Reference, testing::ValuesIn(small_problems()), name_of);

} // namespace
} // namespace annulus::test
