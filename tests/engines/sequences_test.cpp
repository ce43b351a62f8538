// SPDX-License-Identifier: Apache-2.0
// Several sequences in one call. Each result is what the reference gives for the sequence alone. Rows of no sequence
// hold NaN here, attend to nothing, and reach no other row.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/random_problem.hpp"
#include "support/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace annulus::test {

namespace {

void expect_each_as_if_alone(const Problem &problem, const Inputs &inputs, const std::vector<RunOptions> &ways) {
    const EachAlone alone(problem, inputs);
    for (const RunOptions &options : ways)
        alone.expect(run(problem, poisoned(problem, inputs), options));
}

Sequences packed(const std::vector<std::int64_t> &starts) {
    return {starts, {}};
}

Sequences padded(const std::vector<std::int64_t> &lengths) {
    return {{}, lengths};
}

// Segments of 20 and 48 positions; sequences of 0, 37, 20, 1, 48 and 86 rows; rows of no sequence at both ends.
std::vector<NamedProblem> rules() {
    std::vector<NamedProblem> problems = rule_combinations();
    for (auto &[name, problem] : problems) {
        problem.length = 200;
        problem.sequences = packed({3, 3, 40, 60, 61, 109, 195});
    }
    return problems;
}

std::vector<NamedProblem> sequence_layouts() {
    const std::vector<BranchSpec> branches = {{.segment = 64}, {.dilation = 3, .query = ANNULUS_QUERY_EVERY}};
    std::vector<NamedProblem> problems;
    const auto add = [&](const std::string &name, std::int64_t batch, std::int64_t length, const Sequences &sequences) {
        for (const bool causal : {false, true})
            problems.push_back({name + (causal ? "_causal" : ""),
                                {.batch = batch,
                                 .length = length,
                                 .heads = 3,
                                 .dim = 16,
                                 .branches = branches,
                                 .causal = causal,
                                 .zero_keys = !causal,
                                 .sequences = sequences}});
    };
    add("without_gaps", 1, 210, packed({0, 70, 71, 150, 210}));
    add("without_gaps_two_entries", 2, 210, packed({0, 70, 71, 150, 210}));
    add("gaps_at_the_ends", 1, 210, packed({9, 70, 150, 201}));
    add("gaps_everywhere", 2, 210, {{9, 70, 150, 201}, {60, 33, 50}});
    add("lengths_of_nothing_but_gaps", 1, 90, {{0, 30, 90}, {0, 0}});
    add("empty_sequences", 1, 90, packed({0, 0, 0, 30, 30, 90, 90}));
    add("nothing_but_empty_sequences", 2, 90, packed({7, 7, 7}));
    add("one_sequence", 1, 130, packed({0, 130}));
    add("one_sequence_within", 2, 130, packed({1, 129}));
    add("sequences_of_one_row", 1, 70, packed({0, 1, 2, 3, 67, 68, 69, 70}));
    add("about_tiles", 1, 646, packed({0, 63, 127, 192, 319, 447, 576, 577, 646}));
    add("about_large_tiles", 1, 642, packed({0, 127, 255, 384, 641}));
    add("padded", 4, 131, padded({131, 0, 1, 77}));
    add("padded_one_entry", 1, 131, padded({65}));
    add("padded_whole", 2, 129, padded({129, 129}));
    add("padded_empty", 2, 70, padded({0, 0}));
    add("many_of_few_lengths", 1, 600, [] {
        Sequences sequences;
        for (std::int64_t start = 0, i = 0; start <= 600; start += 5 + i++ % 3 * 7)
            sequences.starts.push_back(start);
        return sequences;
    }());
    return problems;
}

std::vector<NamedProblem> patterns() {
    constexpr auto hilbert = ANNULUS_ORDER_HILBERT;
    const Sequences mixed = {{2, 50, 99, 100, 229, 300}, {48, 40, 1, 129, 64}};
    const std::vector<BranchSpec> branches = {{.segment = 48}, {.segment = 129, .dilation = 3}, {.dilation = 2}};
    std::vector<NamedProblem> problems = {
        {"segments_below_equal_and_above",
         {.length = 300,
          .heads = 4,
          .branches = {{.segment = 40}, {.segment = 64, .dilation = 2}, {.segment = 1000, .dilation = 4}, {}}}},
        {"long_dilations",
         {.length = 300,
          .heads = 16,
          .branches = {{.segment = 40, .dilation = 7}, {.dilation = 16}, {.segment = 64, .dilation = 5}},
          .zero_keys = true}},
        {"head_ranges",
         {.length = 300,
          .heads = 5,
          .branches = {{.segment = 32, .first_head = 1, .head_count = 2}, {.dilation = 2, .first_head = 2}}}},
        {"grouped_kv", {.batch = 2, .length = 300, .heads = 8, .kv_heads = 2, .dim = 64, .branches = branches}},
        {"one_kv_head", {.length = 300, .heads = 6, .kv_heads = 1, .dim = 32, .branches = branches, .causal = true}},
        {"curves",
         {.length = 300,
          .heads = 4,
          .branches = {{.segment = 64, .dilation = 2, .order = hilbert},
                       {.dilation = 3, .query = ANNULUS_QUERY_RESIDUE, .order = hilbert}}}},
        {"curves_causal",
         {.length = 300,
          .heads = 4,
          .branches = {{.segment = 20}, {.dilation = 4, .query = ANNULUS_QUERY_RESIDUE, .order = hilbert}},
          .causal = true}},
        {"sharp_softmax", {.length = 300, .dim = 64, .branches = branches, .spread = 6}},
    };
    for (const std::int32_t dim : {8, 24, 64, 72, 128, 256})
        problems.push_back(
            {"dim_" + std::to_string(dim), {.length = 300, .dim = dim, .branches = branches, .causal = dim % 16 == 0}});
    for (const auto layout : {Layout::heads_first, Layout::gaps, Layout::packed})
        problems.push_back(
            {"layout_" + std::to_string(static_cast<int>(layout)),
             {.batch = 2, .length = 300, .heads = 4, .dim = 40, .branches = branches, .layout = layout}});
    for (const auto &[start, length] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {60, 70}, {99, 2}, {150, 150}})
        for (const bool causal : {false, true})
            problems.push_back(
                {"window_of_" + std::to_string(length) + "_at_" + std::to_string(start) + (causal ? "_causal" : ""),
                 {.batch = 2,
                  .length = 300,
                  .heads = 4,
                  .kv_heads = 2,
                  .dim = 16,
                  .branches = branches,
                  .causal = causal,
                  .window = QueryWindow{start, length}}});
    for (NamedProblem &named : problems)
        named.problem.sequences = mixed;
    problems.push_back({"window_beyond_the_sequences",
                        {.length = 100, .window = QueryWindow{80, 20}, .sequences = packed({0, 30, 80})}});
    problems.push_back({"padded_window",
                        {.batch = 3,
                         .length = 150,
                         .branches = branches,
                         .causal = true,
                         .window = QueryWindow{60, 50},
                         .sequences = padded({150, 70, 30})}});
    problems.push_back({"curve_of_given_width",
                        {.length = 300,
                         .heads = 4,
                         .branches = {{.dilation = 4, .order = hilbert, .width = 12}},
                         .sequences = packed({0, 144, 144, 156, 300})}});
    return problems;
}

std::vector<NamedProblem> in_dtypes(const std::vector<NamedProblem> &problems) {
    return with_dtypes(problems, subject_dtypes());
}

class Sequenced : public testing::TestWithParam<NamedProblem> {};

TEST_P(Sequenced, AreWhatEachIsAlone) {
    const Problem &problem = GetParam().problem;
    if (const char *reason = subject().refusal_of(problem))
        GTEST_SKIP() << reason;
    expect_each_as_if_alone(problem, random_inputs(problem, 1), subject_ways());
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Rules, Sequenced, testing::ValuesIn(in_dtypes(rules())), name_of);
INSTANTIATE_TEST_SUITE_P(RulesOnce, Sequenced,
                         testing::ValuesIn(with_dtypes(with_keys_once(rules()), {subject_usual_dtype()})), name_of);
INSTANTIATE_TEST_SUITE_P(Layouts, Sequenced, testing::ValuesIn(in_dtypes(sequence_layouts())), name_of);
INSTANTIATE_TEST_SUITE_P(Patterns, Sequenced, testing::ValuesIn(in_dtypes(patterns())), name_of);

constexpr std::uint64_t usual_seed = 20260301;

class RandomSequences : public testing::TestWithParam<int> {};

TEST_P(RandomSequences, AreWhatEachIsAlone) {
    const std::uint64_t own_seed = sweep_seed(usual_seed) + static_cast<std::uint64_t>(GetParam());
    Problem problem = in_random_sequences(random_problem(own_seed), own_seed);
    if (!subject_takes(problem.dtype))
        problem.dtype = subject_dtypes()[own_seed % subject_dtypes().size()];
    problem.keys_once = own_seed % 2 == 1;
    problem = taken(problem, subject());
    SCOPED_TRACE(testing::Message() << "ANNULUS_TEST_SEED=" << own_seed << " problem " << problem);
    const std::vector<RunOptions> ways = subject_ways();
    expect_each_as_if_alone(problem, random_inputs(problem, own_seed, own_seed % 2 == 0),
                            {ways[own_seed % ways.size()]});
}

INSTANTIATE_TEST_SUITE_P(Sweep, RandomSequences, testing::Range(0, sweep_size(100)));

class Reaching : public testing::TestWithParam<annulus_dtype> {};

// A NaN in the keys of one sequence shows in its results. The results of the other sequences are the same bits.
TEST_P(Reaching, NanStaysInItsSequence) {
    for (const bool causal : {false, true}) {
        const Problem problem = {.batch = 2,
                                 .length = 260,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .dim = 16,
                                 .branches = {{.segment = 64}, {.dilation = 2, .query = ANNULUS_QUERY_EVERY}},
                                 .causal = causal,
                                 .sequences = packed({0, 63, 128, 129, 260}),
                                 .dtype = GetParam()};
        const Inputs inputs = random_inputs(problem, 3);
        const Results clean = run(problem, inputs, subject());
        const std::vector<SequenceRows> sequences = sequences_of(problem);
        for (const SequenceRows &sick : sequences) {
            SCOPED_TRACE(testing::Message() << "NaN in the keys from row " << sick.start << " on");
            Inputs changed = inputs;
            const std::int64_t row = problem.kv() * problem.dim;
            for (std::vector<double> *values : {&changed.k, &changed.v})
                for (std::int64_t b = 0; b < problem.batch; ++b)
                    std::fill_n(values->begin() + (b * problem.length + sick.start) * row, sick.length * row,
                                std::numeric_limits<double>::quiet_NaN());
            const Results results = run(problem, changed, subject());
            for (const SequenceRows &sequence : sequences) {
                const Results part = sequence.cut(problem, results);
                if (sequence.start != sick.start)
                    expect_identical(part, sequence.cut(problem, clean));
                else
                    EXPECT_TRUE(std::all_of(part.out.begin(), part.out.end(), [](double x) { return std::isnan(x); }));
            }
        }
    }
}

// Outputs and statistics in rows of no sequence do not enter backward.
TEST_P(Reaching, BackwardReadsNoRowOfNoSequence) {
    const Problem problem = {.batch = 2,
                             .length = 150,
                             .branches = {{.segment = 64}, {.dilation = 3}},
                             .sequences = Sequences{{5, 70, 140}, {60, 70}},
                             .dtype = GetParam()};
    const Inputs inputs = random_inputs(problem, 5);
    const RunOptions options = subject();
    const Results wanted = run(problem, inputs, options);
    Call call(problem, poisoned(problem, inputs), *options.memory, options.aligned);
    const Context context = make_context(make_config(problem, options).get(), options.threads, *options.memory);
    check(call.forward(context.get()));
    const auto poison = [&](const annulus_tensor &tensor, int row_dimension) {
        const std::size_t element = bytes_of(tensor.dtype), heads = 3 - row_dimension;
        for (const std::int64_t row : {0, 4, 65, 69, 140, 149})
            for (std::int64_t b = 0; b < problem.batch; ++b)
                for (std::int64_t h = 0; h < problem.heads; ++h) {
                    const std::int64_t offset =
                        b * tensor.stride[0] + row * tensor.stride[row_dimension] + h * tensor.stride[heads];
                    options.memory->fill(static_cast<unsigned char *>(tensor.data) + offset * element, 0xFF,
                                         element * (tensor.ndim == 4 ? problem.dim : 1));
                }
    };
    poison(call.arguments.out, 1);
    poison(call.arguments.lse, 2);
    check(call.backward(context.get()));
    const Results results = call.results();
    expect_identical("d_q", results.d_q, wanted.d_q);
    expect_identical("d_k", results.d_k, wanted.d_k);
    expect_identical("d_v", results.d_v, wanted.d_v);
}

INSTANTIATE_TEST_SUITE_P(Sequences, Reaching, testing::ValuesIn(subject_dtypes()),
                         [](const auto &dtype) { return std::string(annulus_dtype_name(dtype.param)); });

} // namespace
} // namespace annulus::test
