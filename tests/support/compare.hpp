// SPDX-License-Identifier: Apache-2.0
// How near results must be to the reference, by dtype.
#pragma once

#include "support/run.hpp"

namespace annulus::test {

// Fails the running test where `results`, computed from `inputs`, are further from `exact` than the dtype explains:
//   float64        1e-12 of the tensor
//   float32        1e-5 of the tensor, by the Frobenius norm
//   half precision twice the error of the plain formula in that dtype, plus one rounding unit
// and where a query without keys has not exactly O = 0, LSE = -infinity and dQ = 0.
void expect_agreement(const Problem &problem, const Inputs &inputs, const Results &results, const Results &exact);

// The same with the plain formula's results, or what else shows a half precision's error, at hand in `low`.
void expect_agreement(const Problem &problem, const Results &results, const Results &exact, const Results &low);

// The plain formula's results in the problem's dtype if that is a half precision, else nothing.
Results plain_if_half(const Problem &problem, const Inputs &inputs);

// Fails unless got and wanted agree to `tolerance` of wanted's Frobenius norm, or of `size` where that is larger.
void expect_near(const char *name, const std::vector<double> &got, const std::vector<double> &wanted, double tolerance,
                 double size = 0);

void expect_near(const Results &got, const Results &wanted, double tolerance);

// What rounding explains between two ways to compute the same tensor, as expect_near() takes it.
double tolerance_of(annulus_dtype dtype);

// Fails unless every value is the same to the bit (any NaN equals any other).
void expect_identical(const char *name, const std::vector<double> &got, const std::vector<double> &wanted);
void expect_identical(const Results &got, const Results &wanted);

double norm(const std::vector<double> &values);
double greatest_magnitude(const std::vector<double> &values);

} // namespace annulus::test
