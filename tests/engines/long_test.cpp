// SPDX-License-Identifier: Apache-2.0
// Sequences longer than any block of the engine under test. The reference would take N * N time for all queries. It
// computes windows of a few queries instead, in which the results of the whole job must be the same. The gradients of
// keys and values are sums over all queries. The test checks their totals, which follow because rows of P sum to 1.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/window.hpp"

#include <gtest/gtest.h>

#include <string>

namespace annulus::test {
namespace {

std::vector<NamedProblem> long_problems() {
    const std::vector<NamedProblem> problems = {
        {"linear",
         {.length = 40001,
          .heads = 2,
          .kv_heads = 1,
          .branches = {{.segment = 512}, {.segment = 18000, .dilation = 9}, {.dilation = 64}}}},
        {"causal_every_query",
         {.length = 33000,
          .heads = 1,
          .branches = {{.segment = 700, .dilation = 2, .query = ANNULUS_QUERY_EVERY},
                       {.dilation = 97, .query = ANNULUS_QUERY_RESIDUE}},
          .causal = true}},
        {"hilbert_image",
         {.length = 180 * 200,
          .heads = 1,
          .branches = {{.dilation = 120, .query = ANNULUS_QUERY_RESIDUE, .order = ANNULUS_ORDER_HILBERT, .width = 200}},
          .causal = true}},
        {"zero_keys",
         {.length = 40001,
          .heads = 3,
          .branches = {{.segment = 1024}, {.segment = 36000, .dilation = 50, .query = ANNULUS_QUERY_RESIDUE}},
          .zero_keys = true}},
    };
    std::vector<annulus_dtype> dtypes = {subject_usual_dtype()};
    if (subject_takes(ANNULUS_FLOAT64) && !quick())
        dtypes.push_back(ANNULUS_FLOAT64);
    std::vector<NamedProblem> all = with_dtypes(problems, dtypes);
    if (!quick()) {
        all.push_back({"gigapath_6000_tiles", gigapath(6000)});
        all.back().problem.dtype = subject_usual_dtype();
    }
    return all;
}

class Long : public testing::TestWithParam<NamedProblem> {};

TEST_P(Long, WindowsAgreeWithReference) {
    const Problem problem = taken(GetParam().problem, subject());
    const Inputs inputs = random_inputs(problem, 1);
    const Results whole = run(problem, inputs, subject());
    for (const std::int64_t start : {std::int64_t{0}, std::int64_t{511}, std::int64_t{5790}, std::int64_t{16380},
                                     std::int64_t{17995}, std::int64_t{32764}, problem.length - 9}) {
        if (start > problem.length - 9)
            continue;
        SCOPED_TRACE(testing::Message() << "queries from " << start);
        constexpr std::int64_t count = 9;
        const Windowed part(problem, inputs, start, count);
        const Results exact = run_exact(part.problem, part.inputs);
        const Results got = part.rows_of(whole);
        const double tolerance = tolerance_of(problem.dtype);
        expect_near("out", got.out, exact.out, tolerance);
        expect_near("lse", got.lse, exact.lse, tolerance);
        expect_near("d_q", got.d_q, exact.d_q, tolerance, norm(exact.out));
    }
}

// Returns the sum of weight[head, position] * values[position, head, dim], over positions and over the heads that share
// a key/value head.
std::vector<double> total(const Problem &problem, std::int32_t heads, const std::vector<double> &values,
                          const std::vector<double> *weights = nullptr) {
    std::vector<double> sums(problem.kv() * problem.dim);
    for (std::int64_t n = 0; n < problem.length; ++n)
        for (std::int32_t h = 0; h < heads; ++h)
            for (std::int32_t d = 0; d < problem.dim; ++d)
                sums[h / (heads / problem.kv()) * problem.dim + d] +=
                    values[(n * heads + h) * problem.dim + d] * (weights ? (*weights)[h * problem.length + n] : 1);
    return sums;
}

// Every row of P sums to 1 and every row of dS to scale * dLSE, so sum dV = sum dO and sum dK = scale * sum dLSE Q.
TEST_P(Long, TotalsOfKeyAndValueGradients) {
    Problem problem = taken(GetParam().problem, subject());
    problem.zero_keys = false;
    const Inputs inputs = random_inputs(problem, 2);
    const Results results = run(problem, inputs, subject());
    std::vector<double> wanted_d_k = total(problem, problem.heads, inputs.q, &inputs.d_lse);
    for (double &value : wanted_d_k)
        value *= problem.scale_or_default();
    const double tolerance = 10 * tolerance_of(problem.dtype);
    expect_near("sum of d_v", total(problem, problem.kv(), results.d_v), total(problem, problem.heads, inputs.d_out),
                tolerance);
    expect_near("sum of d_k", total(problem, problem.kv(), results.d_k), wanted_d_k, tolerance);
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Sequences, Long, testing::ValuesIn(long_problems()), name_of);

} // namespace
} // namespace annulus::test
