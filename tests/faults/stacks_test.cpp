// SPDX-License-Identifier: Apache-2.0
// Calls on threads with little stack: the caller's thread, and the library's own threads. 64 KiB are enough for any
// call.
#include "support/compare.hpp"
#include "support/ranks.hpp"
#include "support/run.hpp"

#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

constexpr std::size_t stack_bytes = 64 << 10;

// Gives all threads that start from now on such a small stack.
class SmallStacks {
  public:
    SmallStacks() {
        pthread_getattr_default_np(&before_);
        pthread_attr_t small;
        pthread_attr_init(&small);
        if (pthread_attr_setstacksize(&small, stack_bytes) != 0 || pthread_setattr_default_np(&small) != 0)
            throw std::runtime_error("stacks cannot be that small");
        pthread_attr_destroy(&small);
    }
    ~SmallStacks() {
        pthread_setattr_default_np(&before_);
        pthread_attr_destroy(&before_);
    }
    SmallStacks(const SmallStacks &) = delete;
    SmallStacks &operator=(const SmallStacks &) = delete;

  private:
    pthread_attr_t before_;
};

// Returns a problem with the largest dimension, several sequences and a curve.
Problem large_problem(annulus_dtype dtype) {
    return {.length = 331,
            .heads = 2,
            .dim = 256,
            .branches = {{.segment = 150}, {.dilation = 7, .query = ANNULUS_QUERY_RESIDUE}, {.dilation = 3}},
            .causal = true,
            .keys_once = true,
            .dtype = dtype};
}

class EveryEngine : public testing::TestWithParam<std::tuple<annulus_engine, annulus_dtype>> {
  protected:
    const annulus_engine engine_ = std::get<0>(GetParam());
    const Problem problem_ = large_problem(std::get<1>(GetParam()));
};

TEST_P(EveryEngine, ComputesOnSmallStacks) {
    for (const bool has_sequences : {false, true}) {
        Problem problem = problem_;
        if (has_sequences)
            problem.sequences = Sequences{{0, 200, 200, 250, 330}, {}};
        else
            problem.branches[2].order = ANNULUS_ORDER_HILBERT;
        const Inputs inputs = random_inputs(problem, 1);
        const RunOptions options = {.engine = engine_, .threads = 3};
        const Results wanted = run(problem, inputs, options);
        Results results;
        {
            const SmallStacks small;
            for_each_rank(1, [&](int) { results = run(problem, inputs, options); });
        }
        expect_identical(results, wanted);
    }
}

class EveryDtype : public testing::TestWithParam<annulus_dtype> {};

TEST_P(EveryDtype, RanksComputeOnSmallStacks) {
    const Problem problem = large_problem(GetParam());
    RankOptions options;
    options.lengths = even_lengths(problem.length, 3);
    for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
        options.run.exchange = exchange;
        const Inputs inputs = random_inputs(problem, 2);
        const Results wanted = run_ranks(problem, inputs, options);
        const SmallStacks small;
        expect_identical(run_ranks(problem, inputs, options), wanted);
    }
}

constexpr annulus_dtype dtypes[] = {ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16};

INSTANTIATE_TEST_SUITE_P(Stacks, EveryEngine,
                         testing::Combine(testing::Values(ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU),
                                          testing::ValuesIn(dtypes)),
                         [](const testing::TestParamInfo<EveryEngine::ParamType> &parameters) {
                             return std::string(annulus_engine_name(std::get<0>(parameters.param))) + "_" +
                                    annulus_dtype_name(std::get<1>(parameters.param));
                         });
INSTANTIATE_TEST_SUITE_P(Stacks, EveryDtype, testing::ValuesIn(dtypes),
                         [](const testing::TestParamInfo<annulus_dtype> &parameters) {
                             return annulus_dtype_name(parameters.param);
                         });

} // namespace
} // namespace annulus::test
