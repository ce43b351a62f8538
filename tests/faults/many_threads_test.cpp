// SPDX-License-Identifier: Apache-2.0
// Hundreds of threads compute at the same moment, in one call and in many. Any number of threads works, and the results
// are the same to the bit.
#include "support/compare.hpp"
#include "support/run.hpp"

#include <gtest/gtest.h>

#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace annulus::test {
namespace {

constexpr int many = 300;

class EveryDtype : public testing::TestWithParam<annulus_dtype> {
  protected:
    const annulus_dtype dtype_ = GetParam();
};

TEST_P(EveryDtype, ManyThreadsInOneCall) {
    // Each thread has work for longer than its time slice, so that hundreds of threads compute products at a time.
    const bool long_one = dtype_ == ANNULUS_FLOAT32;
    const Problem problem = {
        .length = long_one ? 8209 : 2053, .heads = 8, .kv_heads = 2, .dim = 32, .branches = {{}}, .dtype = dtype_};
    const Inputs inputs = random_inputs(problem, 1);
    const Results alone = run(problem, inputs, {.threads = 1, .backward = !long_one});
    for (const int threads : {many, 1024})
        expect_identical(run(problem, inputs, {.threads = threads, .backward = !long_one}), alone);
}

TEST_P(EveryDtype, ManyContextsAtOnce) {
    const Problem problem = {
        .length = 331, .heads = 3, .dim = 24, .branches = {{.dilation = 2}}, .causal = true, .dtype = dtype_};
    const Inputs inputs = random_inputs(problem, 2);
    const Results alone = run(problem, inputs, {.threads = 1});
    std::vector<Results> results(many);
    std::vector<std::string> failures(many);
    std::latch all_there(many);
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < many; ++i)
            threads.emplace_back([&, i] {
                all_there.arrive_and_wait();
                try {
                    results[i] = run(problem, inputs, {.threads = 1 + i % 3});
                } catch (const std::exception &error) {
                    failures[i] = error.what();
                }
            });
    }
    for (int i = 0; i < many; ++i) {
        ASSERT_EQ(failures[i], "");
        expect_identical(results[i], alone);
    }
}

std::string name_of(const testing::TestParamInfo<annulus_dtype> &info) {
    return annulus_dtype_name(info.param);
}

INSTANTIATE_TEST_SUITE_P(ManyThreads, EveryDtype, testing::Values(ANNULUS_FLOAT32, ANNULUS_BFLOAT16), name_of);

} // namespace
} // namespace annulus::test
