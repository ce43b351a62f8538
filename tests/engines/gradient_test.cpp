// SPDX-License-Identifier: Apache-2.0
// The gradients of both engines against central differences of their own forward pass, in float64. The loss is
// sum(dO * O) + sum(dLSE * LSE), and each element is checked.
#include "engines/table.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace annulus::test {
namespace {

constexpr auto hilbert = ANNULUS_ORDER_HILBERT;

std::vector<NamedProblem> differentiated_problems() {
    return {
        {"dense", {.length = 7}},
        {"causal", {.length = 9, .branches = {{.segment = 4}, {.dilation = 2}}, .causal = true}},
        {"zero_keys", {.length = 11, .heads = 3, .branches = {{.segment = 4, .dilation = 3}}, .zero_keys = true}},
        {"hilbert",
         {.length = 12,
          .branches = {{.dilation = 2, .query = ANNULUS_QUERY_RESIDUE, .order = hilbert, .width = 4}},
          .causal = true}},
        {"every_query",
         {.length = 10, .heads = 3, .branches = {{.segment = 6, .dilation = 3, .query = ANNULUS_QUERY_EVERY}}}},
        {"grouped_kv", {.length = 8, .heads = 4, .kv_heads = 2, .branches = {{.segment = 5}, {.dilation = 2}}}},
        {"head_ranges",
         {.batch = 2, .length = 6, .heads = 3, .branches = {{.segment = 4, .first_head = 1, .head_count = 2}}}},
        {"window",
         {.length = 12, .branches = {{.segment = 5}, {.dilation = 3}}, .causal = true, .window = QueryWindow{4, 5}}},
        {"packed_sequences",
         {.length = 13,
          .branches = {{.segment = 3}, {.dilation = 2}},
          .causal = true,
          .sequences = Sequences{{1, 6, 6, 12}, {4, 0, 6}}}},
        {"padded_batch",
         {.batch = 2,
          .length = 6,
          .branches = {{.dilation = 2}},
          .zero_keys = true,
          .sequences = Sequences{{}, {5, 3}}}},
        {"own_scale", {.length = 7, .branches = {{.segment = 4}}, .scale = -0.7}},
    };
}

double loss(const Problem &problem, const Inputs &inputs, annulus_engine engine) {
    const Results results = run(problem, inputs, {.engine = engine, .threads = 1, .backward = false});
    double sum = 0;
    for (std::size_t i = 0; i < results.out.size(); ++i)
        sum += inputs.d_out[i] * results.out[i];
    for (std::size_t i = 0; i < results.lse.size(); ++i)
        sum += std::isinf(results.lse[i]) ? 0 : inputs.d_lse[i] * results.lse[i];
    return sum;
}

std::vector<double> central_differences(const Problem &problem, const Inputs &inputs,
                                        std::vector<double> Inputs::*which, annulus_engine engine) {
    constexpr double step = 1e-5;
    Inputs moved = inputs;
    std::vector<double> &values = moved.*which;
    std::vector<double> differences(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double value = values[i];
        values[i] = value + step;
        const double above = loss(problem, moved, engine);
        values[i] = value - step;
        const double below = loss(problem, moved, engine);
        values[i] = value;
        differences[i] = (above - below) / (2 * step);
    }
    return differences;
}

class Gradients : public testing::TestWithParam<std::tuple<NamedProblem, annulus_engine>> {};

TEST_P(Gradients, AreTheDerivativesOfForward) {
    const auto &[named, engine] = GetParam();
    const Problem &problem = named.problem;
    const Inputs inputs = random_inputs(problem, 11);
    const Results results = run(problem, inputs, {.engine = engine});
    // Truncation and rounding leave about 1e-9.
    expect_near("d_q", results.d_q, central_differences(problem, inputs, &Inputs::q, engine), 1e-7);
    expect_near("d_k", results.d_k, central_differences(problem, inputs, &Inputs::k, engine), 1e-7);
    expect_near("d_v", results.d_v, central_differences(problem, inputs, &Inputs::v, engine), 1e-7);
}

std::string name_of(const testing::TestParamInfo<Gradients::ParamType> &info) {
    return std::get<0>(info.param).name + "_" + annulus_engine_name(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(FiniteDifferences, Gradients,
                         testing::Combine(testing::ValuesIn(differentiated_problems()),
                                          testing::Values(ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU)),
                         name_of);

} // namespace
} // namespace annulus::test
