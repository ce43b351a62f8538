// SPDX-License-Identifier: Apache-2.0
// How the cpu engine divides its work, and what runs at the same time, does not change a bit of the result.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

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

// Gradients that are read and written, with another dtype than the inputs if possible.
TEST_P(EveryDtype, ThreadsDoNotChangeBitsOfWhatIsAdded) {
    Problem problem = mixed_problem(GetParam());
    problem.gradients.fill({.is_float32 = bytes_of(problem.dtype) == 2, .adds = true});
    Inputs inputs = random_inputs(problem, 5);
    inputs.d_q = inputs.d_out;
    inputs.d_k = inputs.k;
    inputs.d_v = inputs.v;
    const Results alone = run(problem, inputs, {.threads = 1});
    for (const int threads : {2, 7})
        expect_identical(run(problem, inputs, {.threads = threads}), alone);
}

TEST_P(EveryDtype, ThreadsDoNotChangeBitsOfMerges) {
    const Problem problem = mixed_problem(GetParam());
    const Config config = make_config(problem, ANNULUS_ENGINE_CPU);
    Results alone;
    for (const int threads : {1, 2, 7}) {
        const Context context = make_context(config.get(), threads);
        Call one(problem, random_inputs(problem, 7), host_memory()),
            other(problem, random_inputs(problem, 8), host_memory());
        check(one.forward(context.get()));
        check(other.forward(context.get()));
        const std::array outs = {one.arguments.out, other.arguments.out};
        const std::array lses = {one.arguments.lse, other.arguments.lse};
        check(annulus_merge(context.get(), 2, outs.data(), lses.data(), &outs[0], &lses[0], nullptr));
        const Results merged = one.results(ANNULUS_PASS_FORWARD);
        if (threads == 1)
            alone = merged;
        expect_identical(merged, alone);
    }
}

// In a long class backward splits the keys. Threads then share queries, one after the other.
TEST(Threads, DoNotChangeBitsOfLongClasses) {
    const Problem problem = {
        .length = 2100, .heads = 1, .dim = 8, .branches = {{}}, .causal = true, .dtype = ANNULUS_FLOAT32};
    const Inputs inputs = random_inputs(problem, 9);
    const Results alone = run(problem, inputs, {.threads = 1});
    for (const int threads : {2, 4})
        expect_identical(run(problem, inputs, {.threads = threads}), alone);
}

// In a long window backward visits the chunks of queries near each chunk of keys.
TEST(Threads, DoNotChangeBitsOfLongWindows) {
    const Problem problem = {.length = 4600,
                             .heads = 1,
                             .dim = 8,
                             .branches = {window_spec(300, 40), global_spec(0, 3, true)},
                             .keys_once = true,
                             .dtype = ANNULUS_FLOAT32};
    const Inputs inputs = random_inputs(problem, 9);
    const Results alone = run(problem, inputs, {.threads = 1});
    for (const int threads : {2, 4})
        expect_identical(run(problem, inputs, {.threads = threads}), alone);
}

// Contexts in several threads, each with threads of its own, repeatedly.
TEST_P(EveryDtype, ContextsSideBySideGiveTheSameBits) {
    constexpr int users = 3, calls = 3;
    Problem problem = mixed_problem(GetParam());
    problem.batch = 1;
    const Inputs inputs = random_inputs(problem, 6);
    const Results alone = run(problem, inputs, {.threads = 1});
    std::array<std::vector<Results>, users> results;
    for_each_rank(users, [&](int user) {
        const RunOptions options = {.threads = 2 + user};
        const Config config = make_config(problem, options);
        const Context context = make_context(config.get(), options.threads);
        for (int i = 0; i < calls; ++i)
            results[static_cast<std::size_t>(user)].push_back(
                run_on(context.get(), sizes_of(problem), problem, inputs, options));
    });
    for (const std::vector<Results> &user_results : results)
        for (const Results &found : user_results)
            expect_identical(found, alone);
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

INSTANTIATE_TEST_SUITE_P(Threads, EveryDtype, testing::ValuesIn(dtypes_of_part(subject_dtypes())), name_of);

} // namespace
} // namespace annulus::test
