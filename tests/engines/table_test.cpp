// SPDX-License-Identifier: Apache-2.0
// The cpu engine, and the reference engine in its lower precisions, against the reference engine in float64.
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/plain.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace annulus::test {

void PrintTo(const NamedProblem &named, std::ostream *out) {
    *out << named.problem;
}

namespace {

constexpr double small_work = 2e7;

std::vector<NamedProblem> with_every_dtype(const std::vector<NamedProblem> &problems, double most_work) {
    std::vector<NamedProblem> all;
    for (const NamedProblem &named : problems)
        for (const auto dtype : {ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16}) {
            if (named.problem.work() > most_work)
                continue;
            if (named.problem.work() > 5e8 && dtype != ANNULUS_FLOAT32)
                continue; // the largest only in the dtype that most people use
            all.push_back(named);
            all.back().problem.dtype = dtype;
            all.back().name += std::string("_") + annulus_dtype_name(dtype);
        }
    return all;
}

std::vector<NamedProblem> small_problems() {
    std::vector<NamedProblem> all = with_every_dtype(rule_combinations(), small_work);
    for (const NamedProblem &named : with_every_dtype(named_problems(), small_work))
        all.push_back(named);
    return all;
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

class Cpu : public testing::TestWithParam<NamedProblem> {};

TEST_P(Cpu, AgreesWithReference) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 1);
    expect_agreement(problem, inputs, run(problem, inputs), run_exact(problem, inputs));
}

class Small : public testing::TestWithParam<NamedProblem> {};

TEST_P(Small, ReferenceAgreesWithPlainFormula) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 2);
    const Results results = run(problem, inputs, {.engine = ANNULUS_ENGINE_REFERENCE});
    expect_agreement(problem, inputs, results, plain(problem, inputs, ANNULUS_FLOAT64));
}

TEST_P(Small, CpuAgreesWithoutGradientOfLse) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 3, false);
    expect_agreement(problem, inputs, run(problem, inputs), run_exact(problem, inputs));
}

const double most_work = quick() ? small_work : 1e18;
INSTANTIATE_TEST_SUITE_P(Rules, Cpu, testing::ValuesIn(with_every_dtype(rule_combinations(), most_work)), name_of);
INSTANTIATE_TEST_SUITE_P(Named, Cpu, testing::ValuesIn(with_every_dtype(named_problems(), most_work)), name_of);
INSTANTIATE_TEST_SUITE_P(Table, Small, testing::ValuesIn(small_problems()), name_of);

} // namespace
} // namespace annulus::test
