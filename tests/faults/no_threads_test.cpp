// SPDX-License-Identifier: Apache-2.0
// No thread can be started, from before the library is loaded (FAIL_THREADS, see failing.h). The library loads, and
// calls compute on the only thread.
#include "support/compare.hpp"
#include "support/run.hpp"

#include "faults/failing.h"

#include <gtest/gtest.h>

#include <system_error>
#include <thread>

namespace annulus::test {
namespace {

class EveryEngine : public testing::TestWithParam<annulus_engine> {};

TEST_P(EveryEngine, ComputesOnTheCallingThread) {
    ASSERT_THROW(std::thread([] {}).join(), std::system_error);
    ASSERT_GT(failed_calls(THREADS), 0);
    const Problem problem = {
        .length = 571, .heads = 4, .dim = 24, .branches = {{.segment = 64}, {}}, .dtype = ANNULUS_FLOAT32};
    const Inputs inputs = random_inputs(problem, 1);
    const Results exact = run_exact(problem, inputs);
    for (const int threads : {1, 4, 300})
        expect_agreement(problem, inputs, run(problem, inputs, {.engine = GetParam(), .threads = threads}), exact);
}

INSTANTIATE_TEST_SUITE_P(NoThreads, EveryEngine, testing::Values(ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU),
                         [](const testing::TestParamInfo<annulus_engine> &parameter) {
                             return annulus_engine_name(parameter.param);
                         });

} // namespace
} // namespace annulus::test
