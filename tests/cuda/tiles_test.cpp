// SPDX-License-Identifier: Apache-2.0
// Sequences of many tiles and key chunks, whose ends are not the ends of tiles: a GPU engine against the cpu engine in
// float64. Small workspace limits cut them into more pieces.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace annulus::test {
namespace {

std::vector<NamedProblem> tiled_problems() {
    constexpr auto residue = ANNULUS_QUERY_RESIDUE;
    constexpr auto every = ANNULUS_QUERY_EVERY;
    constexpr auto hilbert = ANNULUS_ORDER_HILBERT;
    const std::vector<NamedProblem> problems = {
        {"dense", {.length = 5000, .dim = 64}},
        {"dense_causal", {.length = 9001, .heads = 1, .dim = 64, .causal = true}},
        {"dense_wide_causal", {.length = 4099, .dim = 128, .causal = true}},
        {"dense_256", {.length = 2500, .heads = 1, .dim = 256}},
        {"two_segments", {.length = 9001, .heads = 1, .dim = 128, .branches = {{.segment = 4500}}}},
        {"two_segments_causal", {.length = 9001, .dim = 64, .branches = {{.segment = 4500}}, .causal = true}},
        {"dilated", {.batch = 2, .length = 9001, .heads = 2, .dim = 64, .branches = {{.dilation = 2}}}},
        {"dilated_causal",
         {.length = 9001, .heads = 3, .dim = 128, .branches = {{.segment = 4500, .dilation = 2}}, .causal = true}},
        {"residue_causal",
         {.length = 9001, .dim = 64, .branches = {{.dilation = 2, .query = residue}}, .causal = true}},
        {"residue_zero_keys",
         {.length = 9001,
          .dim = 64,
          .branches = {{.segment = 4500, .dilation = 2, .query = residue}},
          .zero_keys = true}},
        {"every", {.length = 4099, .heads = 3, .dim = 128, .branches = {{.dilation = 2, .query = every}}}},
        {"every_causal",
         {.length = 5000,
          .heads = 4,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 4500, .dilation = 2, .query = every}},
          .causal = true}},
        {"branches_causal",
         {.length = 6007,
          .heads = 4,
          .kv_heads = 1,
          .dim = 64,
          .branches = {{.segment = 300}, {.segment = 4500, .dilation = 2}, {.dilation = 5, .query = residue}},
          .causal = true,
          .layout = Layout::packed}},
        {"hilbert_residue",
         {.length = 75 * 80, .dim = 64, .branches = {{.dilation = 2, .query = residue, .order = hilbert}}}},
        {"hilbert_every_causal",
         {.length = 75 * 80,
          .dim = 64,
          .branches = {{.dilation = 2, .query = every, .order = hilbert, .width = 75}},
          .causal = true}},
        {"window_causal",
         {.length = 9001,
          .heads = 2,
          .dim = 64,
          .branches = {{.segment = 4500}, {.dilation = 2, .query = every}},
          .causal = true,
          .window = QueryWindow{3000, 2049},
          .layout = Layout::gaps}},
        {"window_every_causal",
         {.length = 3000,
          .heads = 1,
          .dim = 64,
          .branches = {{.dilation = 2, .phase = ANNULUS_PHASE_FIXED, .query = every}},
          .causal = true,
          .window = QueryWindow{500, 2500}}},
        {"huge_dilations",
         {.length = 2100,
          .heads = 2,
          .dim = 64,
          .branches = {{.dilation = std::int64_t{1} << 40}, {.dilation = std::int64_t{1} << 61}, {.segment = 300}}}},
        {"last_token", {.length = 9001, .heads = 8, .kv_heads = 2, .dim = 128, .window = QueryWindow{9000, 1}}},
    };
    return with_dtypes(problems, quick() ? std::vector{ANNULUS_FLOAT16} : subject_dtypes());
}

class Tiles : public testing::TestWithParam<NamedProblem> {};

Results on_cpu(Problem problem, const Inputs &inputs, annulus_dtype dtype) {
    problem.dtype = dtype;
    problem.layout = Layout::rows;
    return run(problem, inputs, {.engine = ANNULUS_ENGINE_CPU, .threads = 0});
}

TEST_P(Tiles, AgreeWithCpu) {
    const Problem &problem = GetParam().problem;
    if (const char *reason = subject().refusal_of(problem))
        GTEST_SKIP() << reason;
    const Inputs inputs = random_inputs(problem, 1);
    const Results exact = on_cpu(problem, inputs, ANNULUS_FLOAT64);
    const Results low = on_cpu(problem, inputs, problem.dtype);
    for (const std::uint64_t limit : {0, 1 << 16, 5'000'000}) {
        SCOPED_TRACE(testing::Message() << "workspace limit of " << limit << " or a doubling of it");
        RunOptions options = subject();
        options.workspace_limit = limit;
        options.raise_limit = limit != 0;
        expect_agreement(problem, run(problem, inputs, options), exact, low);
    }
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Sequences, Tiles, testing::ValuesIn(tiled_problems()), name_of);

// TF32 rounds the factors of a product to 11 bits. It must not change more than that.
TEST(Tf32, IsRounding) {
    if (!subject_takes(ANNULUS_FLOAT32))
        GTEST_SKIP() << "the engine has no float32";
    Problem problem = mixed_problem(ANNULUS_FLOAT32);
    problem.length = 2500;
    problem.dim = 64;
    const Inputs inputs = random_inputs(problem, 2);
    RunOptions options = subject();
    options.allow_tf32 = true;
    const Results got = run(problem, inputs, options);
    const Results exact = on_cpu(problem, inputs, ANNULUS_FLOAT64);
    constexpr double tolerance = 5e-3;
    expect_near("out", got.out, exact.out, tolerance);
    expect_near("lse", got.lse, exact.lse, tolerance);
    expect_near("d_q", got.d_q, exact.d_q, tolerance, norm(exact.out));
    expect_near("d_k", got.d_k, exact.d_k, tolerance, norm(exact.d_v));
    expect_near("d_v", got.d_v, exact.d_v, tolerance);
}

// This includes NaNs that a GPU makes, whose digits are all set.
TEST(Tf32, LeavesNan) {
    if (!subject_takes(ANNULUS_FLOAT32))
        GTEST_SKIP() << "the engine has no float32";
    const Problem problem = {.length = 300, .dim = 64, .dtype = ANNULUS_FLOAT32};
    RunOptions options = subject();
    options.allow_tf32 = true;
    for (std::vector<double> Inputs::*const tensor : {&Inputs::q, &Inputs::k, &Inputs::v}) {
        Inputs inputs = random_inputs(problem, 3);
        (inputs.*tensor)[0] = std::numeric_limits<double>::quiet_NaN();
        const Results results = run(problem, inputs, options);
        // The first row is among the rows that the NaN reaches.
        EXPECT_TRUE(std::isnan(results.out[0]));
        EXPECT_TRUE(std::isnan(results.d_q[0]));
        EXPECT_TRUE(std::isnan(results.d_k[0]));
        EXPECT_TRUE(std::isnan(results.d_v[0]) || tensor == &Inputs::v); // V does not enter dV
    }
}

} // namespace
} // namespace annulus::test
