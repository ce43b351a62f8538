// SPDX-License-Identifier: Apache-2.0
// The engine `cpu` in float64 against the reference, on problems of cuda/fused. Tests on GPUs use its results as the
// exact ones.
#include "cuda/fused/problems.hpp"

#include "support/compare.hpp"
#include "support/run.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace annulus::test {

namespace {

class GpuProblems : public testing::TestWithParam<NamedProblem> {};

TEST_P(GpuProblems, AgreeWithReference) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 1);
    const Results results = run_exact(problem, inputs, true, ANNULUS_ENGINE_CPU);
    expect_agreement(problem, inputs, results, run_exact(problem, inputs, true, ANNULUS_ENGINE_REFERENCE));
}

std::vector<NamedProblem> problems() {
    std::vector<NamedProblem> problems = patterns();
    std::erase_if(problems, [](const NamedProblem &named) { return named.problem.dtype != ANNULUS_FLOAT64; });
    return up_to(quick() ? 1e7 : 1e18, problems);
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Fused, GpuProblems, testing::ValuesIn(problems()), name_of);

} // namespace
} // namespace annulus::test
