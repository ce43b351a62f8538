// SPDX-License-Identifier: Apache-2.0
// How the cpu engine splits its work does not change a bit of the result.
#include "engines/table.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <string>

namespace annulus::test {
namespace {

class EveryDtype : public testing::TestWithParam<annulus_dtype> {};

TEST_P(EveryDtype, ThreadsDoNotChangeBits) {
    Problem problem = mixed_problem(GetParam());
    for (const bool causal : {false, true})
        for (const bool keys_once : {false, true}) {
            problem.causal = causal;
            problem.keys_once = keys_once;
            const Inputs inputs = random_inputs(problem, 3);
            const Results alone = run(problem, inputs, {.threads = 1});
            for (const int threads : {2, 3, 7, 64})
                expect_identical(run(problem, inputs, {.threads = threads}), alone);
        }
}

TEST_P(EveryDtype, BatchEntriesAreIndependent) {
    const Problem both = mixed_problem(GetParam());
    Problem one = both;
    one.batch = 1;
    const Inputs inputs = random_inputs(both, 4);
    const auto second_half = [](const std::vector<double> &values) {
        return std::vector<double>(values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    };
    const Inputs second = {second_half(inputs.q), second_half(inputs.k), second_half(inputs.v),
                           second_half(inputs.d_out), second_half(inputs.d_lse)};
    const Results all = run(both, inputs);
    const Results wanted = {second_half(all.out), second_half(all.lse), second_half(all.d_q), second_half(all.d_k),
                            second_half(all.d_v)};
    expect_identical(run(one, second), wanted);
}

std::string name_of(const testing::TestParamInfo<annulus_dtype> &info) {
    return annulus_dtype_name(info.param);
}

INSTANTIATE_TEST_SUITE_P(Threads, EveryDtype,
                         testing::Values(ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16), name_of);

} // namespace
} // namespace annulus::test
