// SPDX-License-Identifier: Apache-2.0
#include "support/compare.hpp"

#include "support/plain.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace annulus::test {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

double greatest_difference(const std::vector<double> &a, const std::vector<double> &b) {
    double greatest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double difference = std::fabs(a[i] - b[i]);
        if (std::isnan(difference))
            return difference;
        greatest = std::max(greatest, difference);
    }
    return greatest;
}

// LSE is float32 or float64 for every dtype; its error is that of the scores.
void expect_lse(const Problem &problem, const std::vector<double> &got, const std::vector<double> &wanted) {
    const double tolerance = problem.dtype == ANNULUS_FLOAT64 ? 1e-12 : 1e-5;
    ASSERT_EQ(got.size(), wanted.size());
    double greatest = 1;
    for (const double value : wanted)
        greatest = std::isfinite(value) ? std::max(greatest, std::fabs(value)) : greatest;
    for (std::size_t i = 0; i < got.size(); ++i) {
        if (wanted[i] == minus_infinity)
            ASSERT_EQ(got[i], minus_infinity) << "lse of a query without keys, element " << i;
        else
            ASSERT_NEAR(got[i], wanted[i], tolerance * greatest) << "lse, element " << i;
    }
}

// Fails unless rows of queries without keys are exactly zero.
void expect_zero_rows(const char *name, const Problem &problem, const std::vector<double> &lse,
                      const std::vector<double> &rows) {
    for (std::int64_t b = 0; b < problem.batch; ++b)
        for (std::int64_t j = 0; j < problem.query_length(); ++j)
            for (std::int32_t h = 0; h < problem.heads; ++h) {
                if (lse[(b * problem.heads + h) * problem.query_length() + j] != minus_infinity)
                    continue;
                const auto row = rows.begin() + ((b * problem.query_length() + j) * problem.heads + h) * problem.dim;
                ASSERT_TRUE(std::all_of(row, row + problem.dim, [](double x) { return x == 0; }))
                    << name << " of a query without keys, [" << b << ", " << j << ", " << h << "]";
            }
}

// Returns the relative error that a probability has because its score is rounded: the score times the rounding unit of
// accumulation. Scores of random inputs have the standard deviation below; few are five times as large.
double score_rounding(const Problem &problem) {
    const double deviation = std::fabs(problem.scale_or_default()) * problem.spread * std::sqrt(problem.dim);
    return 5 * deviation * std::ldexp(1., problem.dtype == ANNULUS_FLOAT64 ? -53 : -24);
}

// Returns the standard deviation of the error of delta = O . dO, times the scale, for the query with the largest one.
// It comes from O, which backward reads in a half precision; the numbers of dO have size 1. The plain formula has this
// error, too, but in a few rows its other roundings may happen to make up for it.
double delta_rounding(const Problem &problem, const std::vector<double> &out) {
    double greatest = 0;
    for (auto row = out.begin(); row != out.end(); row += problem.dim)
        greatest = std::max(greatest, std::accumulate(row, row + problem.dim, 0.0, [&](double sum, double value) {
                                const double error = round_to(problem.dtype, value) - value;
                                return sum + error * error;
                            }));
    return std::fabs(problem.scale_or_default()) * std::sqrt(greatest);
}

// `terms` are as large as the terms that cancel in the sums of this tensor, up to a factor. They bound the accuracy
// from below: in a half precision, `terms_error` is the error of a sum relative to the greatest term.
void expect_tensor(const char *name, const Problem &problem, const std::vector<double> &got,
                   const std::vector<double> &wanted, const std::vector<double> &low, const std::vector<double> &terms,
                   double terms_error = 1e-5) {
    if (problem.dtype == ANNULUS_FLOAT64 || problem.dtype == ANNULUS_FLOAT32)
        return expect_near(name, got, wanted, tolerance_of(problem.dtype) + score_rounding(problem), norm(terms));
    ASSERT_EQ(got.size(), wanted.size());
    const double allowed = 2 * greatest_difference(low, wanted) +
                           rounding_unit(problem.dtype) * greatest_magnitude(wanted) +
                           terms_error * greatest_magnitude(terms);
    const double difference = greatest_difference(got, wanted);
    EXPECT_TRUE(difference <= allowed) << name << " is off by " << difference << ", allowed " << allowed;
}

} // namespace

double norm(const std::vector<double> &values) {
    double sum = 0;
    for (const double value : values)
        sum += value * value;
    return std::sqrt(sum);
}

double greatest_magnitude(const std::vector<double> &values) {
    double greatest = 0;
    for (const double value : values)
        greatest = std::max(greatest, std::fabs(value));
    return greatest;
}

void expect_near(const char *name, const std::vector<double> &got, const std::vector<double> &wanted, double tolerance,
                 double size) {
    ASSERT_EQ(got.size(), wanted.size()) << name;
    std::vector<double> difference(got.size());
    std::transform(got.begin(), got.end(), wanted.begin(), difference.begin(), std::minus<>());
    const double allowed = tolerance * std::max(norm(wanted), size);
    EXPECT_TRUE(norm(difference) <= allowed) << name << " is off by " << norm(difference) << ", allowed " << allowed;
}

void expect_near(const Results &got, const Results &wanted, double tolerance) {
    expect_near("out", got.out, wanted.out, tolerance);
    expect_near("lse", got.lse, wanted.lse, tolerance);
    expect_near("d_q", got.d_q, wanted.d_q, tolerance);
    expect_near("d_k", got.d_k, wanted.d_k, tolerance);
    expect_near("d_v", got.d_v, wanted.d_v, tolerance);
}

double tolerance_of(annulus_dtype dtype) {
    return dtype == ANNULUS_FLOAT64 ? 1e-12 : dtype == ANNULUS_FLOAT32 ? 1e-5 : 2 * rounding_unit(dtype);
}

void expect_identical(const char *name, const std::vector<double> &got, const std::vector<double> &wanted) {
    ASSERT_EQ(got.size(), wanted.size()) << name;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const bool same = std::bit_cast<std::uint64_t>(got[i]) == std::bit_cast<std::uint64_t>(wanted[i]);
        ASSERT_TRUE(same || (std::isnan(got[i]) && std::isnan(wanted[i])))
            << name << ", element " << i << ": " << got[i] << " and " << wanted[i];
    }
}

void expect_identical(const Results &got, const Results &wanted) {
    expect_identical("out", got.out, wanted.out);
    expect_identical("lse", got.lse, wanted.lse);
    expect_identical("d_q", got.d_q, wanted.d_q);
    expect_identical("d_k", got.d_k, wanted.d_k);
    expect_identical("d_v", got.d_v, wanted.d_v);
}

Results plain_if_half(const Problem &problem, const Inputs &inputs) {
    const bool half = problem.dtype == ANNULUS_BFLOAT16 || problem.dtype == ANNULUS_FLOAT16;
    return half ? plain(problem, inputs, problem.dtype) : Results{};
}

void expect_agreement(const Problem &problem, const Inputs &inputs, const Results &results, const Results &exact) {
    expect_agreement(problem, results, exact, plain_if_half(problem, inputs));
}

void expect_agreement(const Problem &problem, const Results &results, const Results &exact, const Results &low) {
    expect_lse(problem, results.lse, exact.lse);
    expect_tensor("out", problem, results.out, exact.out, low.out, exact.out);
    expect_zero_rows("out", problem, exact.lse, results.out);
    if (results.d_q.empty())
        return;
    // dQ and dK are differences of terms: the columns' sums of O and dV, times scale K and scale Q. K has numbers of
    // size 1, Q of its spread, and the default scale makes up for the number of columns. Delta is multiplied by sums
    // over the keys, sum P K, which are as large as O, and over the queries, sum P Q, which are as large as dV.
    const double factor = std::max(1.0, std::fabs(problem.scale_or_default()) * std::sqrt(problem.dim));
    const double error = 1e-5 * factor + delta_rounding(problem, exact.out);
    expect_tensor("d_q", problem, results.d_q, exact.d_q, low.d_q, exact.out, error);
    expect_tensor("d_k", problem, results.d_k, exact.d_k, low.d_k, exact.d_v, error * problem.spread);
    expect_tensor("d_v", problem, results.d_v, exact.d_v, low.d_v, exact.d_v);
    expect_zero_rows("d_q", problem, exact.lse, results.d_q);
}

} // namespace annulus::test
