// SPDX-License-Identifier: Apache-2.0
// Sequences on a CPU. Each has the same bits as alone, with any number of threads and in repeated calls. Also the key
// rule `once`, which the engine cpu leaves to the reference.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/random_problem.hpp"
#include "support/sequences.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace annulus::test {
namespace {

// Long and short sequences, some of the same length.
Problem many_lengths(annulus_dtype dtype) {
    Problem problem = mixed_problem(dtype);
    problem.length = 700;
    problem.sequences = Sequences{{3, 303, 310, 310, 375, 440, 441, 540, 640, 690}, {300, 7, 0, 65, 65, 1, 99, 99, 33}};
    return problem;
}

Results one_by_one(const Problem &problem, const Inputs &inputs, const RunOptions &options) {
    Results results = results_of_no_sequence(problem);
    for (const SequenceRows &sequence : sequences_of(problem))
        sequence.paste(problem, run(sequence.cut(problem), sequence.cut(problem, inputs), options), results);
    return results;
}

class EveryDtype : public testing::TestWithParam<annulus_dtype> {};

TEST_P(EveryDtype, ThreadsDoNotChangeBits) {
    for (const bool causal : {false, true}) {
        Problem problem = many_lengths(GetParam());
        problem.causal = causal;
        const Inputs inputs = random_inputs(problem, 3);
        const Results alone = one_by_one(problem, inputs, {.threads = 1});
        for (const int threads : {1, 2, 7, 64})
            expect_identical(run(problem, poisoned(problem, inputs), {.threads = threads}), alone);
    }
}

TEST_P(EveryDtype, PaddedBatchesAreTheirEntries) {
    Problem problem = mixed_problem(GetParam());
    problem.batch = 4;
    problem.sequences = Sequences{{}, {331, 0, 17, 200}};
    const Inputs inputs = random_inputs(problem, 4);
    const Results alone = one_by_one(problem, inputs, {.threads = 2});
    for (const int threads : {1, 2, 7})
        expect_identical(run(problem, poisoned(problem, inputs), {.threads = threads}), alone);
}

// Calls with other sequences, with the same number of rows, run in between.
TEST_P(EveryDtype, RepeatedCallsGiveTheSameBits) {
    const Problem problem = many_lengths(GetParam());
    Problem other = problem;
    other.sequences = Sequences{{0, 250, 560, 560, 690}, {}};
    const Inputs inputs = random_inputs(problem, 5);
    const RunOptions options = {.threads = 2};
    const Config config = make_config(problem, options);
    const Context context = make_context(config.get(), options.threads);
    const auto call = [&](const Problem &called) {
        const annulus_call_options call_options = options_of(called);
        return run_on(context.get(), sizes_of(called, &call_options), called, poisoned(called, inputs), options);
    };
    const Results first = call(problem), between = call(other);
    expect_identical(call(problem), first);
    expect_identical(call(other), between);
    expect_identical(between, one_by_one(other, inputs, options));
}

INSTANTIATE_TEST_SUITE_P(Sequences, EveryDtype, testing::ValuesIn(dtypes_of_part(subject_dtypes())),
                         [](const auto &dtype) { return std::string(annulus_dtype_name(dtype.param)); });

TEST(RandomSequences, AreTheSameBitsAlone) {
    for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(sweep_size(100)); ++seed) {
        const Problem problem = in_random_sequences(random_problem(seed), seed);
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs inputs = random_inputs(problem, seed);
        expect_identical(run(problem, poisoned(problem, inputs), {.threads = 3}),
                         one_by_one(problem, inputs, {.threads = 1}));
    }
}

TEST(KeysThatCountOnce, AreTheSameBitsAlone) {
    Problem problem = many_lengths(ANNULUS_FLOAT64);
    problem.keys_once = true;
    const Inputs inputs = random_inputs(problem, 6);
    for (const annulus_engine engine : {ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU})
        expect_identical(run(problem, poisoned(problem, inputs), {.engine = engine}),
                         one_by_one(problem, inputs, {.engine = engine}));
}

} // namespace
} // namespace annulus::test
