// SPDX-License-Identifier: Apache-2.0
// What the tests of any engine do not ask of `fused`: sizes around its tiles, repeats, who serves which tensors,
// graphs, patterns that take it several passes, and numbers that are none in rows beside those of a tile; all of it
// forward and backward.
#include "cuda/cuda_place.hpp"
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/mask.hpp"
#include "support/number.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {

void PrintTo(const NamedProblem &named, std::ostream *out) {
    *out << named.problem;
}

namespace {

CudaPlace &place() {
    return static_cast<CudaPlace &>(*subject().place);
}

Context context_for(const Problem &problem, annulus_engine engine) {
    RunOptions options = subject();
    options.engine = engine;
    return make_context(make_config(problem, options).get(), 0, place());
}

annulus_engine last_engine(const Context &context) {
    annulus_engine engine = ANNULUS_ENGINE_REFERENCE;
    check(annulus_context_last_engine(context.get(), &engine));
    return engine;
}

void expect_refused(annulus_status status, annulus_status wanted, const std::string &words) {
    EXPECT_EQ(annulus_status_name(status), std::string(annulus_status_name(wanted)));
    const std::string message = annulus_last_error();
    EXPECT_NE(message.find(words), std::string::npos) << message << " does not say " << words;
}

std::string name_of_problem(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

struct TensorOfCall {
    const char *name;
    annulus_tensor Call::Arguments::*tensor;
};
constexpr TensorOfCall outputs[] = {{"out", &Call::Arguments::out},
                                    {"lse", &Call::Arguments::lse},
                                    {"d_q", &Call::Arguments::d_q},
                                    {"d_k", &Call::Arguments::d_k},
                                    {"d_v", &Call::Arguments::d_v}};

constexpr annulus_pass passes[] = {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD};

annulus_status compute(const Call &call, annulus_pass pass, const Context &context) {
    return pass == ANNULUS_PASS_FORWARD ? call.forward(context.get()) : call.backward(context.get());
}

// ---- Sizes

class Sizes : public testing::TestWithParam<std::tuple<std::int64_t, std::int32_t>> {};

TEST_P(Sizes, AgreeWithReference) {
    const auto [length, dim] = GetParam();
    for (const annulus_dtype dtype : subject_dtypes())
        for (const bool causal : {false, true}) {
            const Problem problem = {.length = length,
                                     .heads = 3,
                                     .dim = dim,
                                     .branches = {{.segment = 150}, {.dilation = 3}},
                                     .causal = causal,
                                     .dtype = dtype};
            SCOPED_TRACE(testing::Message() << problem);
            const Inputs inputs = random_inputs(problem, 1);
            expect_agreement(problem, inputs, run(problem, inputs, subject()), run_exact(problem, inputs));
        }
}

std::string name_of_sizes(const testing::TestParamInfo<Sizes::ParamType> &info) {
    const auto [length, dim] = info.param;
    return "length_" + std::to_string(length) + "_dim_" + std::to_string(dim);
}

INSTANTIATE_TEST_SUITE_P(Fused, Sizes,
                         testing::Combine(testing::Values(1, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193,
                                                          257, 383),
                                          testing::Values(8, 16, 40, 64, 72, 96, 128, 136, 192, 200, 256)),
                         name_of_sizes);

// ---- Patterns

std::vector<NamedProblem> patterns() {
    constexpr auto residue = ANNULUS_QUERY_RESIDUE;
    constexpr auto every = ANNULUS_QUERY_EVERY;
    constexpr auto interleave = ANNULUS_PHASE_INTERLEAVE;
    constexpr auto hilbert = ANNULUS_ORDER_HILBERT;
    std::vector<BranchSpec> twelve;
    for (int i = 0; i < 12; ++i)
        twelve.push_back(
            {.segment = 16 << (i / 2), .dilation = 1 << (i / 2), .phase = i % 2 ? interleave : ANNULUS_PHASE_BLOCK});
    std::vector<BranchSpec> forty; // of one key each, and of many
    for (int i = 0; i < 40; ++i)
        forty.push_back({.segment = 3 + 7 * i, .dilation = 1 + i % 9});
    const std::vector<BranchSpec> primes = {
        {.segment = 100, .dilation = 2}, {.segment = 210, .dilation = 3}, {.dilation = 5}};
    std::vector<BranchSpec> primes_of_residues = primes, primes_of_every = primes;
    for (std::size_t i = 0; i < primes.size(); ++i) {
        primes_of_residues[i].query = residue;
        primes_of_every[i].query = every;
    }
    const std::vector<NamedProblem> problems = {
        {"twelve_branches", {.length = 700, .heads = 6, .dim = 64, .branches = twelve}},
        {"forty_branches", {.length = 300, .heads = 4, .kv_heads = 2, .dim = 16, .branches = forty}},
        {"dilations_2_3_5", {.length = 431, .heads = 5, .dim = 64, .branches = primes}},
        {"dilations_2_3_5_residue", {.length = 431, .heads = 2, .dim = 64, .branches = primes_of_residues}},
        {"dilations_2_3_5_every", {.length = 431, .heads = 5, .dim = 64, .branches = primes_of_every}},
        {"dilations_4_6",
         {.length = 500, .heads = 4, .dim = 128, .branches = {{.segment = 240, .dilation = 4}, {.dilation = 6}}}},
        {"segments_that_do_not_nest",
         {.length = 997,
          .heads = 4,
          .dim = 64,
          .branches = {{.segment = 130}, {.segment = 170, .dilation = 2}, {.segment = 500, .dilation = 4}}}},
        {"nested_with_repeated_keys",
         {.length = 1024,
          .heads = 8,
          .dim = 64,
          .branches = {{.segment = 64},
                       {.segment = 128, .dilation = 2},
                       {.segment = 256, .dilation = 4},
                       {.segment = 512, .dilation = 8},
                       {.dilation = 16}}}},
        {"hilbert_and_linear",
         {.length = 18 * 24,
          .heads = 4,
          .dim = 64,
          .branches = {{.segment = 64},
                       {.dilation = 4, .order = hilbert, .width = 24},
                       {.segment = 216, .dilation = 2}}}},
        {"hilbert_residue_and_linear_every",
         {.length = 18 * 24,
          .heads = 4,
          .kv_heads = 2,
          .dim = 40,
          .branches = {{.dilation = 3, .query = residue, .order = hilbert},
                       {.segment = 144, .dilation = 4, .query = every}}}},
        {"all_query_rules",
         {.length = 389,
          .heads = 6,
          .dim = 64,
          .branches = {{.segment = 128},
                       {.segment = 200, .dilation = 4, .query = residue},
                       {.dilation = 8, .query = every}}}},
        {"head_ranges",
         {.length = 300,
          .heads = 7,
          .dim = 64,
          .branches = {{.segment = 64, .first_head = 2, .head_count = 3},
                       {.segment = 150, .dilation = 4, .head_count = 5},
                       {.dilation = 2, .first_head = 6, .head_count = 1}}}},
        {"window",
         {.batch = 2,
          .length = 700,
          .heads = 4,
          .kv_heads = 1,
          .dim = 64,
          .branches = {{.segment = 300}, {.dilation = 4}},
          .window = QueryWindow{129, 321}}},
        // Nothing is ragged: every tile is full.
        {"whole_units", {.batch = 2, .length = 512, .heads = 3, .dim = 64, .branches = {{.segment = 256}}}},
        {"whole_units_dilated",
         {.batch = 2,
          .length = 512,
          .heads = 4,
          .kv_heads = 2,
          .dim = 128,
          .branches = {{.segment = 256, .dilation = 2, .phase = interleave}}}},
        // Tiles of dQ that have three units, and one; segments that the sequence cuts short.
        {"whole_units_of_three", {.length = 384, .heads = 2, .dim = 88, .branches = {{.segment = 192}}}},
        {"whole_units_of_five", {.length = 704, .heads = 2, .dim = 72, .branches = {{.segment = 320}}}},
        // The heads that share keys attend to different ones of them.
        {"grouped",
         {.batch = 2,
          .length = 500,
          .heads = 8,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 128},
                       {.segment = 250, .dilation = 2, .phase = interleave},
                       {.dilation = 4, .phase = interleave}}}},
        {"grouped_of_one_branch",
         {.length = 403,
          .heads = 6,
          .kv_heads = 1,
          .dim = 128,
          .branches = {{.segment = 200, .dilation = 8, .phase = interleave}}}},
        {"grouped_head_ranges",
         {.length = 300,
          .heads = 6,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 64, .first_head = 1, .head_count = 3}, {.dilation = 3, .head_count = 5}}}},
        {"grouped_dilations_2_3",
         {.length = 431,
          .heads = 6,
          .kv_heads = 2,
          .dim = 80,
          .branches = {{.segment = 100, .dilation = 2, .phase = interleave}, {.dilation = 3, .phase = interleave}}}},
        {"dim_192",
         {.length = 420,
          .heads = 3,
          .dim = 192,
          .branches = {{.segment = 64}, {.segment = 150, .dilation = 2}, {.dilation = 4, .query = residue}}}},
        {"dim_192_grouped",
         {.length = 420,
          .heads = 4,
          .kv_heads = 2,
          .dim = 192,
          .branches = {{.segment = 70}, {.segment = 210, .dilation = 2}, {.dilation = 4, .phase = interleave}}}},
        {"dim_256",
         {.length = 420,
          .heads = 3,
          .dim = 256,
          .branches = {{.segment = 64}, {.segment = 128, .dilation = 2}, {.segment = 256, .dilation = 4}}}},
        {"dim_256_grouped",
         {.length = 420,
          .heads = 4,
          .kv_heads = 1,
          .dim = 256,
          .branches = {{.segment = 100}, {.segment = 300, .dilation = 6, .query = every}, {.dilation = 3}}}},
        {"every_beside_others",
         {.length = 500,
          .heads = 4,
          .dim = 64,
          .branches = {{.segment = 128}, {.segment = 256, .dilation = 4, .query = every}, {.dilation = 8}}}},
        {"every_of_two_dilations",
         {.length = 430,
          .heads = 6,
          .kv_heads = 3,
          .dim = 128,
          .branches = {{.segment = 200, .dilation = 3, .query = every}, {.dilation = 6, .query = every}}}},
        // One pass over queries, two over keys.
        {"every_and_residue",
         {.length = 430,
          .heads = 4,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 210, .dilation = 2, .query = every}, {.dilation = 4, .query = residue}}}},
        {"segments_that_nest_unevenly",
         {.length = 1000,
          .heads = 4,
          .dim = 128,
          .branches = {{.segment = 100}, {.segment = 200, .dilation = 2}, {.segment = 400, .dilation = 4}}}},
        {"segments_that_nest_in_part",
         {.length = 900,
          .heads = 4,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 64},
                       {.segment = 96, .dilation = 2},
                       {.segment = 192, .dilation = 4},
                       {.segment = 288, .dilation = 8}}}},
        {"window_of_one_query",
         {.length = 501,
          .heads = 8,
          .kv_heads = 2,
          .dim = 128,
          .branches = {{.segment = 200}, {.dilation = 4, .phase = interleave, .query = every}},
          .window = QueryWindow{450, 1}}},
        // Most keys are in segments without queries.
        {"window_of_some_segments",
         {.batch = 2,
          .length = 700,
          .heads = 4,
          .kv_heads = 2,
          .dim = 192,
          .branches = {{.segment = 100}, {.segment = 150, .dilation = 2, .query = residue}},
          .window = QueryWindow{130, 200}}},
        {"hilbert_grouped",
         {.length = 18 * 24,
          .heads = 6,
          .kv_heads = 2,
          .dim = 128,
          .branches = {{.segment = 216, .dilation = 3, .phase = interleave, .order = hilbert},
                       {.dilation = 2, .query = residue, .order = hilbert, .width = 24}}}},
        {"hilbert_grouped_every",
         {.length = 18 * 24,
          .heads = 4,
          .kv_heads = 1,
          .dim = 256,
          .branches = {{.segment = 70}, {.dilation = 4, .phase = interleave, .query = every, .order = hilbert}}}},
        {"hilbert_window_of_whole_segments",
         {.batch = 2,
          .length = 432,
          .heads = 4,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 100, .dilation = 2}, {.segment = 144, .dilation = 3, .order = hilbert}},
          .window = QueryWindow{144, 144}}},
    };
    std::vector<NamedProblem> all;
    for (const NamedProblem &named : problems) {
        all.push_back(named);
        all.push_back({named.name + "_causal", named.problem});
        all.back().problem.causal = true;
        all.push_back({named.name + "_zero_keys", named.problem});
        all.back().problem.zero_keys = true;
    }
    std::erase_if(all, [](const NamedProblem &named) { return subject().refusal_of(named.problem); });
    return with_dtypes(all, subject_dtypes());
}

class Patterns : public testing::TestWithParam<NamedProblem> {};

TEST_P(Patterns, AgreeWithReference) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 1);
    const Results results = run(problem, inputs, subject()), exact = run_exact(problem, inputs);
    expect_agreement(problem, inputs, results, exact);
    // What no query attends to has no gradient at all.
    for (std::size_t row = 0; row < exact.d_v.size(); row += problem.dim) {
        const auto is_zero = [&](const std::vector<double> &values) {
            const auto first = values.begin() + static_cast<std::ptrdiff_t>(row);
            return std::all_of(first, first + problem.dim, [](double x) { return x == 0; });
        };
        ASSERT_TRUE(!is_zero(exact.d_v) || (is_zero(results.d_k) && is_zero(results.d_v))) << "element " << row;
    }
}

INSTANTIATE_TEST_SUITE_P(Fused, Patterns, testing::ValuesIn(patterns()), name_of_problem);

// ---- What need not be done for every pattern

// With sums in the workspace, of several passes, of orders along a curve, of heads that share keys; and without.
std::vector<NamedProblem> some_patterns() {
    std::vector<NamedProblem> problems = patterns();
    std::erase_if(problems, [](const NamedProblem &named) {
        const auto is = [&](const char *name) { return named.name.starts_with(name); };
        return named.problem.dtype != ANNULUS_BFLOAT16 ||
               !(is("twelve_branches_") || is("dilations_2_3_5_causal") || is("hilbert_and_linear_") ||
                 is("hilbert_grouped_every_") || is("grouped_dilations_2_3_") || is("dim_192_grouped_") ||
                 is("whole_units_"));
    });
    return problems;
}

class SomePatterns : public testing::TestWithParam<NamedProblem> {
  protected:
    const Problem &problem_ = GetParam().problem;
};

// The order of sums is the same either way.
TEST_P(SomePatterns, AreTheSameBitsWhereDeterminismIsAskedFor) {
    const Inputs inputs = random_inputs(problem_, 1);
    RunOptions options = subject();
    options.deterministic = true;
    expect_identical(run(problem_, inputs, options), run(problem_, inputs, subject()));
}

TEST_P(SomePatterns, AgreeWithReferenceInLittleWorkspace) {
    const Inputs inputs = random_inputs(problem_, 1);
    const Results exact = run_exact(problem_, inputs);
    RunOptions options = subject();
    options.raise_limit = true;
    for (const std::uint64_t limit : {std::uint64_t{1}, std::uint64_t{1} << 20}) {
        SCOPED_TRACE(limit);
        options.workspace_limit = limit;
        expect_agreement(problem_, inputs, run(problem_, inputs, options), exact);
    }
}

TEST_P(SomePatterns, NeedNoGradientOfLse) {
    Inputs inputs = random_inputs(problem_, 2, false);
    const Results results = run(problem_, inputs, subject());
    expect_agreement(problem_, inputs, results, run_exact(problem_, inputs));
    inputs.d_lse.assign(problem_.lse_size(), 0);
    expect_identical(run(problem_, inputs, subject()), results);
}

TEST_P(SomePatterns, MayHaveAGradientOfLseAlone) {
    Inputs inputs = random_inputs(problem_, 3);
    std::fill(inputs.d_out.begin(), inputs.d_out.end(), 0);
    const Results results = run(problem_, inputs, subject());
    expect_agreement(problem_, inputs, results, run_exact(problem_, inputs));
    EXPECT_TRUE(std::all_of(results.d_v.begin(), results.d_v.end(), [](double x) { return x == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Fused, SomePatterns, testing::ValuesIn(some_patterns()), name_of_problem);

// ---- Repeats

class Repeats : public testing::TestWithParam<NamedProblem> {};

// For problems that the reference would take too long for.
void expect_agreement_with_cpu(const Problem &problem, const Inputs &inputs, const Results &results) {
    const auto on_cpu = [&](annulus_dtype dtype) {
        Problem same = problem;
        same.dtype = dtype;
        return run(same, inputs, {.engine = ANNULUS_ENGINE_CPU, .threads = 0, .backward = !results.d_q.empty()});
    };
    expect_agreement(problem, results, on_cpu(ANNULUS_FLOAT64), on_cpu(problem.dtype));
}

std::size_t contiguous_bytes(const annulus_tensor &tensor) {
    std::size_t bytes = bytes_of(tensor.dtype);
    for (int i = 0; i < tensor.rank; ++i)
        bytes *= static_cast<std::size_t>(tensor.shape[i]);
    return bytes;
}

TEST_P(Repeats, AreBitEqual) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 1);
    const Context context = context_for(problem, ANNULUS_ENGINE_FUSED);
    Call call(problem, inputs, place(), true);
    std::vector<std::vector<unsigned char>> first;
    for (int i = 0; i < 100; ++i) {
        for (const auto &[name, tensor] : outputs)
            place().fill((call.arguments.*tensor).data, 0xFF, contiguous_bytes(call.arguments.*tensor));
        for (const annulus_pass pass : passes)
            check(compute(call, pass, context));
        for (std::size_t j = 0; j < std::size(outputs); ++j) {
            const annulus_tensor &output = call.arguments.*outputs[j].tensor;
            std::vector<unsigned char> bytes(contiguous_bytes(output));
            place().download(bytes.data(), output.data, bytes.size());
            if (i == 0)
                first.push_back(bytes);
            ASSERT_TRUE(bytes == first[j]) << outputs[j].name << " of repeat " << i;
        }
    }
    expect_agreement_with_cpu(problem, inputs, call.results());
}

std::vector<NamedProblem> long_problems() {
    const Problem longnet = {.length = 8200,
                             .heads = 4,
                             .dim = 64,
                             .branches = {{.segment = 1024},
                                          {.segment = 2048, .dilation = 2},
                                          {.segment = 4096, .dilation = 4},
                                          {.segment = 8192, .dilation = 8}}};
    Problem grouped = longnet, wide = longnet, of_two_passes = longnet, whole_units = longnet;
    grouped.dim = 128;
    grouped.kv_heads = 2;
    wide.dim = 192;
    of_two_passes.branches = {{.segment = 1024, .dilation = 2}, {.segment = 4096, .dilation = 3}};
    whole_units.length = 8192;
    whole_units.dim = 128;
    whole_units.branches = {{.segment = 1024}};
    std::vector<NamedProblem> problems = {{"dim_64", longnet},
                                          {"dim_128_grouped", grouped},
                                          {"dim_192", wide},
                                          {"dilations_2_3", of_two_passes},
                                          {"whole_units", whole_units}};
    for (std::size_t i = 0, count = problems.size(); i < count; ++i) {
        problems.push_back({problems[i].name + "_causal", problems[i].problem});
        problems.back().problem.causal = true;
    }
    return with_dtypes(problems, subject_dtypes());
}

INSTANTIATE_TEST_SUITE_P(Fused, Repeats, testing::ValuesIn(long_problems()), name_of_problem);

// ---- Kept dS

// More than eight tiles of keys for each multiprocessor: none go by their length.
TEST(StoredDs, OfManySegmentsAgreeWithCpu) {
    for (const bool causal : {false, true}) {
        const Problem problem = {.length = 8192,
                                 .heads = 17,
                                 .dim = 72,
                                 .branches = {{.segment = 128}},
                                 .causal = causal,
                                 .dtype = ANNULUS_BFLOAT16};
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs inputs = random_inputs(problem, 1);
        expect_agreement_with_cpu(problem, inputs, run(problem, inputs, subject()));
    }
}

// ---- Passes that are cut

// Some units of a cell meet far more keys than the others.
std::vector<NamedProblem> cut_problems() {
    const Problem two = {
        .length = 20001, .heads = 8, .dim = 128, .branches = {{.segment = 200}, {.dilation = 8}, {.dilation = 16}}};
    Problem four = two, grouped = two, head_ranges = two;
    four.dim = 48;
    four.branches = {
        {.segment = 100}, {.segment = 400, .dilation = 2}, {.segment = 2000, .dilation = 8}, {.dilation = 32}};
    Problem causal = four, zero_keys = four, window = four, dim_192 = two;
    causal.causal = true;
    window.window = QueryWindow{3001, 12000};
    dim_192.dim = 192;
    zero_keys.zero_keys = true;
    grouped.kv_heads = 2;
    grouped.causal = true;
    // No dimension of a kernel's own.
    Problem batches = four;
    batches.batch = 3;
    batches.length = 8000;
    batches.dim = 40;
    head_ranges.dim = 64;
    head_ranges.branches[1].first_head = 2;
    head_ranges.branches[1].head_count = 5;
    // In the first pass query 1 meets key 1 alone, which it does not meet in the second.
    Problem every = two;
    every.dim = 64;
    every.branches = {
        {.segment = 100, .dilation = 2, .phase = ANNULUS_PHASE_FIXED, .residue = 0, .query = ANNULUS_QUERY_EVERY},
        {.dilation = 8, .phase = ANNULUS_PHASE_FIXED, .residue = 1},
    };
    every.causal = true;
    const std::vector<NamedProblem> named = {{"two", two},
                                             {"four", four},
                                             {"four_causal", causal},
                                             {"four_zero_keys", zero_keys},
                                             {"four_window", window},
                                             {"dim_192", dim_192},
                                             {"grouped", grouped},
                                             {"head_ranges", head_ranges},
                                             {"batches", batches},
                                             {"every", every}};
    std::vector<NamedProblem> problems = with_dtypes(named, {ANNULUS_BFLOAT16});
    for (const NamedProblem &half : with_dtypes({named[0], named[2]}, {ANNULUS_FLOAT16}))
        problems.push_back(half);
    return problems;
}

class Cut : public testing::TestWithParam<NamedProblem> {
  protected:
    const Problem &problem_ = GetParam().problem;
    const Inputs inputs_ = random_inputs(problem_, 1);

    // Of the forward pass: the first of two leaves sums of some heads.
    static std::uint64_t forward_bytes(const Problem &problem, std::uint64_t limit) {
        RunOptions options = subject();
        options.workspace_limit = limit;
        const Context context = make_context(make_config(problem, options).get(), 0, place());
        const annulus_problem sizes = sizes_of(problem);
        std::uint64_t bytes = 0;
        check(annulus_workspace_size(context.get(), &sizes, ANNULUS_PASS_FORWARD, &bytes));
        return bytes;
    }
    static bool is_cut(const Problem &problem, std::uint64_t limit) {
        return forward_bytes(problem, limit) >=
               static_cast<std::uint64_t>(problem.query_length() * problem.dim) * sizeof(float);
    }
};

TEST_P(Cut, AgreesWithCpu) {
    ASSERT_TRUE(is_cut(problem_, 0));
    const Results results = run(problem_, inputs_, subject());
    expect_agreement_with_cpu(problem_, inputs_, results);
    for (int i = 0; i < 3; ++i)
        expect_identical(run(problem_, inputs_, subject()), results);
}

TEST_P(Cut, NeedsNoLse) {
    ASSERT_TRUE(is_cut(problem_, 0));
    Call call(problem_, inputs_, place(), true);
    const Context context = context_for(problem_, ANNULUS_ENGINE_FUSED);
    check(call.forward(context.get()));
    const Results with_lse = call.results(ANNULUS_PASS_FORWARD);
    call.reset(inputs_);
    const Call::Arguments &a = call.arguments;
    check(annulus_forward(context.get(), &a.q, &a.k, &a.v, &a.out, nullptr, call.window_or_null()));
    Results without_lse = call.results(ANNULUS_PASS_FORWARD);
    without_lse.lse = with_lse.lse;
    expect_identical(without_lse, with_lse);
}

// dK and dV of fewer heads at a time than O.
TEST_P(Cut, IsTheSameSomeHeadsAtATime) {
    RunOptions options = subject();
    const std::uint64_t all = forward_bytes(problem_, 0);
    options.workspace_limit = all / 4 * 3;
    ASSERT_TRUE(is_cut(problem_, options.workspace_limit));
    ASSERT_LT(forward_bytes(problem_, options.workspace_limit), all);
    expect_identical(run(problem_, inputs_, options), run(problem_, inputs_, subject()));
}

TEST_P(Cut, IsOnePassWhereTheLimitIsTooSmall) {
    RunOptions options = subject();
    options.backward = false;
    options.workspace_limit = 4096;
    ASSERT_FALSE(is_cut(problem_, options.workspace_limit));
    expect_agreement_with_cpu(problem_, inputs_, run(problem_, inputs_, options));
}

TEST_P(Cut, NonfiniteRowsReachWhatTheyReachOnCpu) {
    Inputs inputs = inputs_;
    const std::int64_t row = problem_.kv() * problem_.dim;
    for (const std::int64_t position : {1, 4096})
        std::fill_n(inputs.k.begin() + position * row, row, std::numeric_limits<double>::quiet_NaN());
    std::fill_n(inputs.v.begin() + 301 * row, row, std::numeric_limits<double>::infinity());
    Problem exact = problem_;
    exact.dtype = ANNULUS_FLOAT64;
    const Results got = run(problem_, inputs, subject());
    const Results wanted = run(exact, inputs, {.engine = ANNULUS_ENGINE_CPU, .threads = 0});
    for (const auto tensor : {&Results::out, &Results::d_q, &Results::d_k, &Results::d_v}) {
        std::int64_t nonfinite = 0;
        for (std::size_t i = 0; i < (got.*tensor).size(); ++i) {
            nonfinite += !std::isfinite((wanted.*tensor)[i]);
            ASSERT_EQ(std::isfinite((got.*tensor)[i]), std::isfinite((wanted.*tensor)[i])) << "element " << i;
        }
        EXPECT_GT(nonfinite, 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Fused, Cut, testing::ValuesIn(cut_problems()), name_of_problem);

// ---- Who serves a call

Problem small_problem() {
    return {.length = 300,
            .heads = 2,
            .dim = 64,
            .branches = {{.segment = 100}, {.dilation = 3}},
            .causal = true,
            .dtype = ANNULUS_BFLOAT16};
}

TEST(Auto, IsFused) {
    for (const annulus_dtype dtype : subject_dtypes()) {
        Problem problem = small_problem();
        problem.dtype = dtype;
        const Inputs inputs = random_inputs(problem, 1);
        const Context context = context_for(problem, ANNULUS_ENGINE_AUTO);
        Call call(problem, inputs, place(), true);
        check(call.forward(context.get()));
        EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_FUSED);
        check(call.backward(context.get()));
        EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_FUSED);
        expect_agreement(problem, inputs, call.results(), run_exact(problem, inputs));
    }
}

// A pass that `fused` refuses, and `auto` has done by `gemm`.
void expect_gemm_instead(const Problem &problem, Call &call, annulus_pass pass, const std::string &reason) {
    const Results before = call.results(pass);
    expect_refused(compute(call, pass, context_for(problem, ANNULUS_ENGINE_FUSED)), ANNULUS_ERROR_UNSUPPORTED, reason);
    expect_identical(call.results(pass), before);
    const Context automatic = context_for(problem, ANNULUS_ENGINE_AUTO);
    check(compute(call, pass, automatic));
    EXPECT_EQ(last_engine(automatic), ANNULUS_ENGINE_GEMM);
}

// Both passes, with rows as the problem's layout has them.
void expect_gemm_instead(const Problem &problem, const std::string &reason) {
    const Inputs inputs = random_inputs(problem, 1);
    Call call(problem, inputs, place(), true);
    for (const annulus_pass pass : passes)
        expect_gemm_instead(problem, call, pass, reason);
    expect_agreement(problem, inputs, call.results(), run_exact(problem, inputs));
}

// Whatever problem of the table the tests skip for the engine's sake.
class Refused : public testing::TestWithParam<NamedProblem> {};

TEST_P(Refused, IsDoneByGemm) {
    expect_gemm_instead(GetParam().problem, "engine fused cannot do this");
}

std::vector<NamedProblem> refused_problems() {
    std::vector<NamedProblem> problems = named_problems();
    for (const NamedProblem &named : rule_combinations())
        problems.push_back(named);
    std::erase_if(problems, [](const NamedProblem &named) { return !subject().refusal_of(named.problem); });
    return with_dtypes(up_to(small_work, problems), {ANNULUS_BFLOAT16});
}

INSTANTIATE_TEST_SUITE_P(Fused, Refused, testing::ValuesIn(refused_problems()), name_of_problem);

TEST(Auto, IsGemmWithoutAPositiveScale) {
    for (const double scale : {0.0, -0.25}) {
        Problem problem = small_problem();
        problem.scale = scale;
        expect_gemm_instead(problem, "scale");
    }
}

TEST(Auto, IsGemmForFloat32) {
    Problem problem = small_problem();
    problem.dtype = ANNULUS_FLOAT32;
    expect_gemm_instead(problem, "bfloat16");
}

TEST(Auto, IsGemmForRowsWithGaps) {
    Problem problem = small_problem();
    problem.layout = Layout::gaps;
    expect_gemm_instead(problem, "16 bytes");
}

// Each of the tensors in its turn.
TEST(Auto, IsGemmForOneTensorThatIsNotAligned) {
    using Arguments = Call::Arguments;
    const std::vector<TensorOfCall> of_forward = {
        {"q", &Arguments::q}, {"k", &Arguments::k}, {"v", &Arguments::v}, {"out", &Arguments::out}};
    std::vector<TensorOfCall> of_backward = of_forward;
    for (const TensorOfCall &more : {TensorOfCall{"d_out", &Arguments::d_out},
                                     {"d_q", &Arguments::d_q},
                                     {"d_k", &Arguments::d_k},
                                     {"d_v", &Arguments::d_v}})
        of_backward.push_back(more);
    const Problem problem = small_problem();
    const Inputs inputs = random_inputs(problem, 1);
    const Context automatic = context_for(problem, ANNULUS_ENGINE_AUTO);
    for (const annulus_pass pass : passes)
        for (const auto &[name, tensor] : pass == ANNULUS_PASS_FORWARD ? of_forward : of_backward) {
            SCOPED_TRACE(testing::Message() << name << " of pass " << pass);
            Call odd(problem, inputs, place(), false), call(problem, inputs, place(), true);
            std::swap(odd.arguments.*tensor, call.arguments.*tensor);
            check(call.forward(automatic.get())); // what backward needs
            expect_gemm_instead(problem, call, pass, "16 bytes");
        }
}

// The rows that a pass has copied by tensor maps. Backward, those are all inputs but O.
TEST(Auto, IsGemmForOneEntryForTheBatch) {
    struct Input {
        const char *name;
        annulus_tensor Call::Arguments::*tensor;
        std::vector<double> Inputs::*values;
        bool of_forward;
    };
    Problem problem = small_problem();
    problem.batch = 3;
    for (const Input &input : {Input{"q", &Call::Arguments::q, &Inputs::q, false},
                               {"k", &Call::Arguments::k, &Inputs::k, true},
                               {"v", &Call::Arguments::v, &Inputs::v, true},
                               {"d_out", &Call::Arguments::d_out, &Inputs::d_out, false}}) {
        SCOPED_TRACE(input.name);
        Inputs inputs = random_inputs(problem, 1);
        std::vector<double> &values = inputs.*input.values;
        const std::size_t entry = values.size() / 3;
        for (std::size_t i = entry; i < values.size(); ++i)
            values[i] = values[i - entry];
        Call call(problem, inputs, place(), true);
        (call.arguments.*input.tensor).stride[0] = 0;
        if (input.of_forward)
            expect_gemm_instead(problem, call, ANNULUS_PASS_FORWARD, "stride");
        else
            check(call.forward(context_for(problem, ANNULUS_ENGINE_FUSED).get()));
        expect_gemm_instead(problem, call, ANNULUS_PASS_BACKWARD, "stride");
        expect_agreement(problem, inputs, call.results(), run_exact(problem, inputs));
    }
}

TEST(Auto, IsFusedWhereverStatisticsLie) {
    const Problem problem = small_problem();
    const Inputs inputs = random_inputs(problem, 1);
    for (const auto tensor : {&Call::Arguments::lse, &Call::Arguments::d_lse}) {
        Call odd(problem, inputs, place(), false), call(problem, inputs, place(), true);
        std::swap(odd.arguments.*tensor, call.arguments.*tensor);
        const Context context = context_for(problem, ANNULUS_ENGINE_AUTO);
        for (const annulus_pass pass : passes) {
            check(compute(call, pass, context));
            EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_FUSED);
        }
        Results results = call.results();
        if (tensor == &Call::Arguments::lse)
            results.lse = odd.results(ANNULUS_PASS_FORWARD).lse;
        expect_agreement(problem, inputs, results, run_exact(problem, inputs));
    }
}

// What was announced for the problem is fused's; the message says what gemm needs.
TEST(Auto, SaysWhatWorkspaceOtherTensorsNeed) {
    const Problem problem = small_problem();
    const annulus_problem sizes = sizes_of(problem);
    for (const annulus_pass pass : passes) {
        SCOPED_TRACE(testing::Message() << "pass " << pass);
        const auto workspace_size = [&](annulus_engine engine) {
            std::uint64_t bytes = 0;
            check(annulus_workspace_size(context_for(problem, engine).get(), &sizes, pass, &bytes));
            return bytes;
        };
        const std::uint64_t announced = workspace_size(ANNULUS_ENGINE_AUTO);
        const std::uint64_t of_gemm = workspace_size(ANNULUS_ENGINE_GEMM);
        EXPECT_EQ(announced, workspace_size(ANNULUS_ENGINE_FUSED));
        ASSERT_LT(announced, of_gemm);
        const Context context = context_for(problem, ANNULUS_ENGINE_AUTO);
        const PlaceMemory workspace = allocate(place(), of_gemm);
        check(annulus_context_set_workspace(context.get(), workspace.get(), std::max<std::uint64_t>(announced, 1)));
        const Call odd(problem, random_inputs(problem, 1), place(), false);
        expect_refused(compute(odd, pass, context), ANNULUS_ERROR_MEMORY, std::to_string(of_gemm));
        check(annulus_context_set_workspace(context.get(), workspace.get(), of_gemm));
        check(compute(odd, pass, context));
        EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_GEMM);
    }
}

// Too small for sums in float32: of O where there are two passes, of dK and dV where heads share keys.
TEST(Auto, IsGemmWhereTheLimitIsTooSmall) {
    constexpr std::uint64_t limit = std::uint64_t{64} << 20;
    const Problem two_passes = {.length = 100'000,
                                .heads = 8,
                                .dim = 64,
                                .branches = {{.segment = 1024, .dilation = 2}, {.segment = 4096, .dilation = 3}},
                                .dtype = ANNULUS_BFLOAT16};
    Problem grouped = two_passes;
    grouped.kv_heads = 2;
    grouped.branches = {{.segment = 1024}, {.segment = 4096, .dilation = 2}};
    const auto expect_gemm = [&](const Problem &problem, annulus_pass pass) {
        const annulus_problem sizes = sizes_of(problem);
        RunOptions options = subject();
        std::uint64_t bytes = 0;
        const auto workspace_size = [&] {
            const Context context = make_context(make_config(problem, options).get(), 0, place());
            return annulus_workspace_size(context.get(), &sizes, pass, &bytes);
        };
        check(workspace_size());
        EXPECT_GT(bytes, limit);
        options.workspace_limit = limit;
        expect_refused(workspace_size(), ANNULUS_ERROR_MEMORY, std::to_string(bytes));
        options.engine = ANNULUS_ENGINE_AUTO;
        check(workspace_size());
        EXPECT_LE(bytes, limit);
    };
    expect_gemm(two_passes, ANNULUS_PASS_FORWARD);
    expect_gemm(grouped, ANNULUS_PASS_BACKWARD);
}

TEST(Forced, HasALongestSequence) {
    Problem problem = small_problem();
    problem.length = std::int64_t{1} << 31;
    const annulus_problem sizes = sizes_of(problem);
    for (const annulus_pass pass : passes) {
        std::uint64_t bytes = 0;
        expect_refused(annulus_workspace_size(context_for(problem, ANNULUS_ENGINE_FUSED).get(), &sizes, pass, &bytes),
                       ANNULUS_ERROR_UNSUPPORTED, "fused");
        check(annulus_workspace_size(context_for(problem, ANNULUS_ENGINE_AUTO).get(), &sizes, pass, &bytes));
    }
}

// ---- Graphs

class Graph : public testing::TestWithParam<std::tuple<NamedProblem, bool>> {};

TEST_P(Graph, CapturedOnceReplaysOnNewData) {
    const auto &[named, own_workspace] = GetParam();
    const Problem &problem = named.problem;
    CudaPlace own_place;
    RunOptions options = subject();
    options.place = &own_place;
    std::vector<Inputs> inputs;
    std::vector<Results> wanted;
    for (const std::uint64_t seed : {1, 2, 3}) {
        inputs.push_back(random_inputs(problem, seed));
        wanted.push_back(run(problem, inputs.back(), options));
    }

    const Context context = make_context(make_config(problem, options).get(), 0, own_place);
    PlaceMemory workspace;
    if (own_workspace) {
        const annulus_problem sizes = sizes_of(problem);
        std::uint64_t bytes = 0;
        for (const annulus_pass pass : passes) {
            std::uint64_t of_pass = 0;
            check(annulus_workspace_size(context.get(), &sizes, pass, &of_pass));
            bytes = std::max(bytes, of_pass);
        }
        workspace = allocate(own_place, bytes + 1);
        own_place.fill(workspace.get(), 0xFF, bytes + 1);
        check(annulus_context_set_workspace(context.get(), workspace.get(), bytes + 1));
    }
    Call call(problem, inputs[0], own_place, true);

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    check_cuda(cudaStreamBeginCapture(own_place.cuda_stream(), cudaStreamCaptureModeGlobal));
    const annulus_status forward = call.forward(context.get());
    const annulus_status backward = call.backward(context.get());
    const cudaError_t captured = cudaStreamEndCapture(own_place.cuda_stream(), &graph);
    check(forward);
    check(backward);
    check_cuda(captured);
    check_cuda(cudaGraphInstantiate(&replay, graph, 0));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "replay " << i);
        call.reset(inputs[i]);
        check_cuda(cudaGraphLaunch(replay, own_place.cuda_stream()));
        expect_identical(call.results(), wanted[i]);
    }
    check_cuda(cudaGraphExecDestroy(replay));
    check_cuda(cudaGraphDestroy(graph));
}

std::vector<NamedProblem> graph_problems() {
    std::vector<NamedProblem> problems = some_patterns();
    problems.push_back(cut_problems().front());
    return problems;
}

std::string name_of_graph(const testing::TestParamInfo<Graph::ParamType> &info) {
    const auto &[named, own_workspace] = info.param;
    return named.name + (own_workspace ? "_workspace" : "_pool");
}

INSTANTIATE_TEST_SUITE_P(Fused, Graph, testing::Combine(testing::ValuesIn(graph_problems()), testing::Bool()),
                         name_of_graph);

// ---- NaN and infinities

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

std::vector<NamedProblem> ragged_problems() {
    constexpr auto residue = ANNULUS_QUERY_RESIDUE;
    constexpr auto every = ANNULUS_QUERY_EVERY;
    const std::vector<NamedProblem> problems = {
        {"segments", {.length = 391, .dim = 64, .branches = {{.segment = 150}}}},
        {"dilated", {.length = 391, .heads = 3, .dim = 64, .branches = {{.segment = 260, .dilation = 3}}}},
        {"every",
         {.length = 391, .heads = 3, .dim = 40, .branches = {{.segment = 270, .dilation = 3, .query = every}}}},
        {"residue", {.length = 391, .dim = 128, .branches = {{.segment = 300, .dilation = 2, .query = residue}}}},
        {"branches",
         {.length = 391,
          .heads = 4,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 70}, {.segment = 280, .dilation = 4}}}},
        {"grouped_every",
         {.length = 391,
          .heads = 4,
          .kv_heads = 1,
          .dim = 128,
          .branches = {{.segment = 90},
                       {.segment = 270, .dilation = 2, .phase = ANNULUS_PHASE_INTERLEAVE, .query = every}}}},
        {"dim_192", {.length = 391, .dim = 192, .branches = {{.segment = 150}, {.segment = 300, .dilation = 2}}}},
        {"hilbert",
         {.length = 384, .dim = 64, .branches = {{.segment = 160, .dilation = 2, .order = ANNULUS_ORDER_HILBERT}}}},
    };
    std::vector<NamedProblem> all;
    for (const NamedProblem &named : problems)
        for (const bool causal : {false, true})
            for (const bool window : {false, true}) {
                all.push_back(named);
                all.back().problem.causal = causal;
                if (window)
                    all.back().problem.window = QueryWindow{77, 165};
                all.back().name += causal ? "_causal" : "";
                all.back().name += window ? "_window" : "";
            }
    std::erase_if(all, [](const NamedProblem &named) { return subject().refusal_of(named.problem); });
    return with_dtypes(all, {ANNULUS_BFLOAT16});
}

// An input of which rows are spoilt. dQ and dK depend on all of them.
struct Spoilt {
    const char *name;
    std::vector<double> Inputs::*rows;
    bool of_queries;
    bool out, lse, d_v; // whether these depend on it
};
constexpr Spoilt spoilt_q = {"Q", &Inputs::q, true, true, true, true};
constexpr Spoilt spoilt_k = {"K", &Inputs::k, false, true, true, true};
constexpr Spoilt spoilt_v = {"V", &Inputs::v, false, true, false, false};
constexpr Spoilt spoilt_d_out = {"dO", &Inputs::d_out, true, false, false, true};

// Computed by one rank or by three on one GPU.
class Nonfinite : public testing::TestWithParam<std::tuple<NamedProblem, int>> {
  protected:
    const Problem &problem_ = std::get<0>(GetParam()).problem;
    const int ranks_ = std::get<1>(GetParam());
    const std::vector<std::vector<std::int64_t>> keys_ = keys_of_queries(); // [query, head]
    const Inputs clean_inputs_ = random_inputs(problem_, 1);
    const Results clean_ = results_of(clean_inputs_);

    std::vector<std::vector<std::int64_t>> keys_of_queries() const {
        const Mask mask(problem_);
        std::vector<std::vector<std::int64_t>> keys;
        for (std::int64_t i = 0; i < problem_.query_length(); ++i)
            for (std::int32_t h = 0; h < problem_.heads; ++h)
                keys.push_back(mask.keys(problem_.query_start() + i, h).positions);
        return keys;
    }

    Results results_of(const Inputs &inputs) const {
        if (ranks_ == 1)
            return run(problem_, inputs, subject());
        static CudaPlace places[3] = {CudaPlace(CudaPlace::Order::own_stream), CudaPlace(CudaPlace::Order::own_stream),
                                      CudaPlace(CudaPlace::Order::own_stream)};
        return run_ranks(problem_, inputs,
                         {.lengths = even_lengths(problem_.length, ranks_),
                          .run = subject(),
                          .places = {&places[0], &places[1], &places[2]}});
    }

    using Rows = std::vector<bool>; // [position, head]

    // Rows that are not reached have the clean results, but for some roundings; the others NaN where that went in. Row
    // row_of(i) has element i.
    template <class RowOf>
    void expect_clean_but(const char *name, std::vector<double> Results::*tensor, const Results &results,
                          const Rows &reached, double value, double roundings, const RowOf &row_of) const {
        const std::vector<double> &got = results.*tensor, &clean = clean_.*tensor;
        const double tolerance = roundings * rounding_unit(problem_.dtype);
        for (std::size_t i = 0; i < got.size(); ++i) {
            const std::size_t row = row_of(i);
            const bool is_clean =
                got[i] == clean[i] || std::fabs(got[i] - clean[i]) <= tolerance * (1 + std::fabs(clean[i]));
            ASSERT_TRUE(reached[row] ? std::isnan(got[i]) || !std::isnan(value) : is_clean)
                << name << ", row " << row << ", " << (reached[row] ? "reached" : "not reached") << ": " << got[i];
        }
    }

    // Spoils the rows of all positions for which is_spoilt holds, in all heads and in all of `tensors`, which are of
    // queries or of keys. They reach the queries that have or attend to them, and the gradients of these queries' keys.
    template <class IsSpoilt>
    void expect_to_reach_what_depends_on_it(const std::vector<Spoilt> &tensors, double value,
                                            const IsSpoilt &is_spoilt) const {
        const bool of_queries = tensors.front().of_queries;
        const std::int64_t first = of_queries ? problem_.query_start() : 0;
        const std::int64_t count = of_queries ? problem_.query_length() : problem_.length;
        const std::int64_t row = (of_queries ? problem_.heads : problem_.kv()) * problem_.dim;
        Inputs inputs = clean_inputs_;
        bool out = false, lse = false, d_v = false;
        for (const Spoilt &tensor : tensors) {
            for (std::int64_t i = 0; i < count; ++i)
                if (is_spoilt(first + i))
                    std::fill_n((inputs.*tensor.rows).begin() + i * row, row, value);
            out |= tensor.out;
            lse |= tensor.lse;
            d_v |= tensor.d_v;
        }

        const auto heads = static_cast<std::size_t>(problem_.heads), dim = static_cast<std::size_t>(problem_.dim);
        const std::size_t queries = keys_.size() / heads;
        const Rows no_queries(keys_.size()), no_keys(problem_.kv_size() / dim);
        Rows reached = no_queries, reached_keys = no_keys;
        for (std::size_t i = 0; i < keys_.size(); ++i) {
            const std::vector<std::int64_t> &keys = keys_[i];
            const auto query = problem_.query_start() + static_cast<std::int64_t>(i / heads);
            reached[i] =
                of_queries ? !keys.empty() && is_spoilt(query) : std::any_of(keys.begin(), keys.end(), is_spoilt);
            if (reached[i])
                for (const std::int64_t key : keys)
                    reached_keys[key * problem_.kv() + problem_.kv_head(static_cast<std::int32_t>(i % heads))] = true;
        }

        const Results got = results_of(inputs);
        const auto row_of = [&](std::size_t i) { return i / dim; };
        const auto row_of_lse = [&](std::size_t i) { return i % queries * heads + i / queries; };
        expect_clean_but("O", &Results::out, got, out ? reached : no_queries, value, 1, row_of);
        expect_clean_but("LSE", &Results::lse, got, lse ? reached : no_queries, value, 1, row_of_lse);
        // Rows that are computed again are sums of unrounded terms, from a query's O of which the same may be true.
        expect_clean_but("dQ", &Results::d_q, got, reached, value, 4, row_of);
        expect_clean_but("dK", &Results::d_k, got, reached_keys, value, 4, row_of);
        expect_clean_but("dV", &Results::d_v, got, d_v ? reached_keys : no_keys, value, 4, row_of);
    }
};

TEST_P(Nonfinite, RowsReachWhatDependsOnThemAndNothingElse) {
    for (const std::int64_t position : {0, 63, 64, 76, 77, 130, 131, 149, 150, 241, 259, 300})
        for (const double value : {nan, position % 2 ? infinity : -infinity})
            for (const Spoilt &tensor : {spoilt_q, spoilt_k, spoilt_v, spoilt_d_out}) {
                SCOPED_TRACE(testing::Message()
                             << value << " in the rows of position " << position << " of " << tensor.name);
                ASSERT_NO_FATAL_FAILURE(
                    expect_to_reach_what_depends_on_it({tensor}, value, [&](std::int64_t n) { return n == position; }));
            }
}

// All that two queries do not attend to.
TEST_P(Nonfinite, RowsThatAreNoKeysReachNothing) {
    std::vector<bool> is_key(static_cast<std::size_t>(problem_.length));
    const std::int64_t heads = problem_.heads, first = problem_.query_length() / 3 * heads;
    for (std::int64_t i = first; i < first + 2 * heads; ++i)
        for (const std::int64_t key : keys_[static_cast<std::size_t>(i)])
            is_key[static_cast<std::size_t>(key)] = true;
    for (const double value : {nan, infinity, -infinity}) {
        SCOPED_TRACE(value);
        ASSERT_NO_FATAL_FAILURE(expect_to_reach_what_depends_on_it({spoilt_k, spoilt_v}, value,
                                                                   [&](std::int64_t m) { return !is_key[m]; }));
    }
}

// All that do not attend to two keys.
TEST_P(Nonfinite, RowsThatAreNoQueriesReachNothing) {
    std::vector<bool> attends(static_cast<std::size_t>(problem_.length));
    const std::int64_t heads = problem_.heads;
    const std::int64_t first = problem_.query_start() + problem_.query_length() / 3;
    for (std::size_t i = 0; i < keys_.size(); ++i)
        for (const std::int64_t key : keys_[i])
            if (key == first || key == first + 1)
                attends[problem_.query_start() + static_cast<std::int64_t>(i) / heads] = true;
    for (const double value : {nan, infinity, -infinity}) {
        SCOPED_TRACE(value);
        ASSERT_NO_FATAL_FAILURE(expect_to_reach_what_depends_on_it({spoilt_q, spoilt_d_out}, value,
                                                                   [&](std::int64_t n) { return !attends[n]; }));
    }
}

// Shards cut segments, which the engine does not take along a curve, and have no windows.
std::vector<NamedProblem> ragged_problems_for_ranks() {
    std::vector<NamedProblem> problems = ragged_problems();
    std::erase_if(problems, [](const NamedProblem &named) {
        return named.problem.window || named.problem.branches[0].order == ANNULUS_ORDER_HILBERT;
    });
    return problems;
}

std::string name_of_nonfinite(const testing::TestParamInfo<Nonfinite::ParamType> &info) {
    return std::get<0>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(Fused, Nonfinite, testing::Combine(testing::ValuesIn(ragged_problems()), testing::Values(1)),
                         name_of_nonfinite);
INSTANTIATE_TEST_SUITE_P(Ranks, Nonfinite,
                         testing::Combine(testing::ValuesIn(ragged_problems_for_ranks()), testing::Values(3)),
                         name_of_nonfinite);

// ---- Ranks

// Of the first branch rank 1 has a single key to ask for, of the second every fourth: the rows that it gets stand for
// four positions each, and of the first branch's other segment no row is wanted.
TEST(Ranks, ShareRowsOfSeveralPositions) {
    for (const bool causal : {false, true}) {
        const Problem problem = {
            .length = 2049,
            .heads = 2,
            .dim = 64,
            .branches = {{.segment = 1024}, {.dilation = 4, .phase = ANNULUS_PHASE_FIXED, .residue = 0}},
            .causal = causal,
            .dtype = ANNULUS_BFLOAT16};
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs inputs = random_inputs(problem, 1);
        static CudaPlace places[2] = {CudaPlace(CudaPlace::Order::own_stream), CudaPlace(CudaPlace::Order::own_stream)};
        const RankOptions options = {.lengths = {1025, 1024}, .run = subject(), .places = {&places[0], &places[1]}};
        expect_agreement(problem, inputs, run_ranks(problem, inputs, options), run_exact(problem, inputs));
    }
}

} // namespace
} // namespace annulus::test
