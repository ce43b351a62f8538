// SPDX-License-Identifier: Apache-2.0
// Gradients that are added to the tensors' contents, and float32 gradients of 16-bit inputs. What a call adds is found
// by adding to zeros in the widest dtype. It is compared with the reference's plain gradients in float64. Every other
// way of writing gradients must then match it to the bit.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace annulus::test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

using Gradients = std::array<std::vector<double>, 3>; // of Q, K and V
using Specs = std::array<GradientSpec, 3>;

constexpr GradientSpec plain{}, float32{.is_float32 = true}, adds{.adds = true},
    adds_float32{.is_float32 = true, .adds = true};

bool is_half(annulus_dtype dtype) {
    return bytes_of(dtype) == 2;
}

std::vector<Specs> all_specs(annulus_dtype dtype) {
    std::vector<Specs> all = {{adds, adds, adds}, {adds, plain, plain}, {plain, adds, plain}, {adds, plain, adds}};
    if (is_half(dtype))
        for (const Specs &specs : {Specs{float32, float32, float32},
                                   {adds_float32, adds_float32, adds_float32},
                                   {float32, plain, adds},
                                   {plain, adds_float32, float32},
                                   {adds, plain, float32}})
            all.push_back(specs);
    return all;
}

// Starts of the sequences of a call; empty: all rows are one sequence.
using Starts = std::vector<std::int64_t>;

// Returns the contents of the gradients' tensors after a backward call.
Gradients gradients_of(const Problem &problem, Inputs inputs, const Gradients &before, const RunOptions &options,
                       const Starts &starts = {}) {
    inputs.d_q = before[0];
    inputs.d_k = before[1];
    inputs.d_v = before[2];
    Results results;
    if (starts.empty()) {
        results = run(problem, inputs, options);
    } else {
        const Context context = make_context(make_config(problem, options).get(), options.threads, *options.memory);
        Call call(problem, inputs, *options.memory, options.aligned);
        call.options.sequence_starts = starts.data();
        call.options.sequence_count = static_cast<std::int64_t>(starts.size()) - 1;
        check(call.forward(context.get()));
        check(call.backward(context.get()));
        results = call.results();
    }
    return {results.d_q, results.d_k, results.d_v};
}

Gradients like(const Problem &problem, double value) {
    const std::vector<double> keys(problem.kv_size(), value);
    return {std::vector<double>(problem.q_size(), value), keys, keys};
}

// Returns numbers of the gradients' dtypes, some of them NaN and many of them -0.
Gradients random_before(const Problem &problem) {
    std::mt19937_64 generator(11);
    std::normal_distribution<double> normal(0, 0.1);
    Gradients before = like(problem, -0.0);
    for (std::size_t i = 0; i < before.size(); ++i)
        for (double &value : before[i])
            if (const std::uint64_t dice = generator() % 50; dice == 0)
                value = nan;
            else if (dice < 40)
                value = round_to(problem.gradient_dtype(i), normal(generator));
    return before;
}

// Returns what a call adds.
Gradients added(const Problem &problem, const Inputs &inputs, const RunOptions &options, const Starts &starts = {}) {
    Problem wide = problem;
    const GradientSpec spec = is_half(problem.dtype) ? adds_float32 : adds;
    wide.gradients = {spec, spec, spec};
    return gradients_of(wide, inputs, like(problem, 0), options, starts);
}

// True if all D elements of the row that contains this element are 0.
bool is_in_empty_row(const std::vector<double> &values, std::size_t index, std::size_t dim) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(index / dim * dim);
    return std::all_of(begin, begin + static_cast<std::ptrdiff_t>(dim), [](double value) { return value == 0; });
}

std::uint64_t bits(double value) {
    return std::bit_cast<std::uint64_t>(value);
}

// Returns what an element must be, which is `was` if nothing was added to its row.
double wanted_of(const Problem &problem, std::size_t i, double was, double gradient, bool is_untouched) {
    if (!problem.gradients[i].adds)
        return round_to(problem.gradient_dtype(i), gradient);
    const double sum = round_to(statistics_dtype(problem.dtype), was + gradient);
    return is_untouched ? was : round_to(problem.gradient_dtype(i), sum);
}

// Returns the number of rows that are added to and get nothing.
int expect_written(const Problem &problem, const Gradients &got, const Gradients &before, const Gradients &gradients) {
    int untouched = 0;
    const auto dim = static_cast<std::size_t>(problem.dim);
    for (std::size_t i = 0; i < got.size(); ++i)
        for (std::size_t j = 0; j < got[i].size(); ++j) {
            const double value = got[i][j], was = before[i][j];
            const bool is_untouched = problem.gradients[i].adds && is_in_empty_row(gradients[i], j, dim);
            untouched += is_untouched && j % dim == 0;
            const double wanted = wanted_of(problem, i, was, gradients[i][j], is_untouched);
            const bool is_same = is_untouched ? bits(value) == bits(wanted) : value == wanted;
            if (is_same || (std::isnan(value) && std::isnan(wanted)))
                continue;
            ADD_FAILURE() << "gradient " << i << " at " << j << " was " << was << " and is " << value << ", not "
                          << wanted;
            return untouched; // one is enough
        }
    return untouched;
}

std::vector<NamedProblem> problems() {
    std::vector<NamedProblem> all;
    for (const bool causal : {false, true}) {
        const auto add = [&](const char *name, Problem problem) {
            problem.causal = causal;
            all.push_back({name + std::string(causal ? "_causal" : ""), problem});
        };
        add("one_branch", {.length = 130, .heads = 2, .dim = 40});
        add("rows_without_keys", {.batch = 2,
                                  .length = 150,
                                  .heads = 6,
                                  .kv_heads = 2,
                                  .dim = 24,
                                  .branches = {{.segment = 50, .dilation = 3, .head_count = 4}},
                                  .layout = Layout::gaps});
        add("several_grids", {.batch = 2,
                              .length = 201,
                              .heads = 2,
                              .dim = 64,
                              .branches = {{.dilation = 2}, {.dilation = 3, .query = ANNULUS_QUERY_EVERY}},
                              .layout = Layout::heads_first});
        add("window", {.length = 190,
                       .heads = 4,
                       .kv_heads = 2,
                       .dim = 16,
                       .branches = {{.segment = 40}, {.segment = 120, .dilation = 4}},
                       .window = QueryWindow{35, 90},
                       .layout = Layout::packed});
        add("curve", {.length = 200,
                      .heads = 2,
                      .dim = 40,
                      .branches = {{.segment = 100, .dilation = 2, .order = ANNULUS_ORDER_HILBERT}}});
    }
    std::vector<NamedProblem> problems = with_dtypes(all, subject_dtypes());
    for (NamedProblem &named : problems)
        named.problem = taken(named.problem, subject());
    return problems;
}

class AddedGradients : public testing::TestWithParam<NamedProblem> {
  protected:
    const RunOptions options_ = subject();
    const Problem problem_ = GetParam().problem;
    const Inputs inputs_ = random_inputs(problem_, 5);
};

// All specs write what the widest one gives. The announced workspace is exact to the byte.
TEST_P(AddedGradients, AreSumsRoundedOnce) {
    const Gradients gradients = added(problem_, inputs_, options_);
    const Results exact = run_exact(problem_, inputs_);
    Results wide = run(problem_, inputs_, options_);
    wide.d_q = gradients[0], wide.d_k = gradients[1], wide.d_v = gradients[2];
    expect_agreement(problem_, inputs_, wide, exact);
    for (const Specs &specs : all_specs(problem_.dtype)) {
        Problem problem = problem_;
        problem.gradients = specs;
        SCOPED_TRACE(testing::Message() << problem);
        const Gradients before = random_before(problem);
        const int untouched =
            expect_written(problem, gradients_of(problem, inputs_, before, options_), before, gradients);
        const bool has_untouched = GetParam().name.starts_with("rows_without_keys") && specs[0].adds;
        EXPECT_GE(untouched, has_untouched ? 100 : 0);
    }
}

// Plain 16-bit gradients are less exact by one more rounding.
TEST_P(AddedGradients, OfFloat32AreMoreExact) {
    if (!is_half(problem_.dtype))
        GTEST_SKIP() << "the gradients are wider than 16 bits";
    Problem problem = problem_;
    problem.gradients = {float32, float32, float32};
    const Gradients wide = gradients_of(problem, inputs_, like(problem, nan), options_);
    const Gradients narrow = gradients_of(problem_, inputs_, like(problem_, nan), options_);
    const Results exact = run_exact(problem_, inputs_);
    const std::array<const std::vector<double> *, 3> truth = {&exact.d_q, &exact.d_k, &exact.d_v};
    for (std::size_t i = 0; i < truth.size(); ++i) {
        const auto error = [&](const std::vector<double> &values) {
            double sum = 0;
            for (std::size_t j = 0; j < values.size(); ++j)
                sum += std::pow(values[j] - (*truth[i])[j], 2);
            return sum;
        };
        EXPECT_LT(error(wide[i]), 0.8 * error(narrow[i])) << "gradient " << i;
    }
}

// A NaN of K and dO reaches the same rows as in plain gradients, whatever the gradients are added to.
TEST_P(AddedGradients, NanReachesTheSameRows) {
    Inputs inputs = inputs_;
    for (int d = 0; d < problem_.dim; ++d) {
        inputs.k[(problem_.length / 2 * problem_.kv()) * problem_.dim + d] = nan;
        inputs.d_out[(problem_.query_length() / 3 * problem_.heads) * problem_.dim + d] = nan;
    }
    const Gradients gradients = added(problem_, inputs, options_);
    const Gradients without = gradients_of(problem_, inputs, like(problem_, nan), options_);
    int clean = 0;
    for (std::size_t i = 0; i < gradients.size(); ++i)
        for (std::size_t j = 0; j < gradients[i].size(); ++j) {
            ASSERT_EQ(std::isnan(gradients[i][j]), std::isnan(without[i][j])) << "gradient " << i << " at " << j;
            clean += !std::isnan(without[i][j]);
        }
    EXPECT_GT(clean, 0);
    for (const Specs &specs : all_specs(problem_.dtype)) {
        Problem problem = problem_;
        problem.gradients = specs;
        SCOPED_TRACE(testing::Message() << problem);
        const Gradients before = random_before(problem);
        expect_written(problem, gradients_of(problem, inputs, before, options_), before, gradients);
    }
}

// Rows of no sequence become zero where gradients are overwritten, and stay as they are where gradients are added.
TEST_P(AddedGradients, OfSequencesWithGaps) {
    const Starts starts = {3, 40, 40, problem_.length / 2, problem_.length - 9};
    const Gradients gradients = added(problem_, inputs_, options_, starts);
    Problem exact = problem_;
    exact.dtype = ANNULUS_FLOAT64;
    exact.layout = Layout::rows;
    const Gradients truth = gradients_of(exact, inputs_, like(exact, nan), {.engine = exact_engine}, starts);
    const double tolerance = is_half(problem_.dtype) ? 10 * tolerance_of(problem_.dtype) : 1e-5;
    for (std::size_t i = 0; i < truth.size(); ++i)
        expect_near("a gradient", gradients[i], truth[i], tolerance);
    for (const Specs &specs : all_specs(problem_.dtype)) {
        Problem problem = problem_;
        problem.gradients = specs;
        SCOPED_TRACE(testing::Message() << problem);
        const Gradients before = random_before(problem);
        const int untouched =
            expect_written(problem, gradients_of(problem, inputs_, before, options_, starts), before, gradients);
        // At least 3 rows before the sequences and 9 behind them, if they are in the window.
        const bool has_untouched = !problem.window && specs != Specs{float32, float32, float32};
        EXPECT_GE(untouched, has_untouched ? 12 : 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Problems, AddedGradients, testing::ValuesIn(problems()),
                         [](const auto &named) { return named.param.name; });

} // namespace
} // namespace annulus::test
