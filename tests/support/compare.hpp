// SPDX-License-Identifier: Apache-2.0
// Compares results with the reference, with a tolerance for each dtype.
#pragma once

#include "support/run.hpp"

namespace annulus::test {

// Fails the running test if `results`, computed from `inputs`, differ from `exact` by more than the dtype explains:
//   float64        1e-12 of the tensor
//   float32        1e-5 of the tensor, by the Frobenius norm
//   half precision twice the error of the plain formula in that dtype, plus one rounding unit; dQ and dK also by what
//                  the rounding of O does to O . dO
// or if a query without keys does not have exactly O = 0, LSE = -infinity and dQ = 0.
void expect_agreement(const Problem &problem, const Inputs &inputs, const Results &results, const Results &exact);

// Does the same if `low` already holds the plain formula's results, or other results that show the error of a half
// precision.
void expect_agreement(const Problem &problem, const Results &results, const Results &exact, const Results &low);

// Returns the plain formula's results in the problem's dtype if it is a half precision, otherwise nothing.
Results plain_if_half(const Problem &problem, const Inputs &inputs);

// Fails unless got and wanted agree to `tolerance` times the larger of wanted's Frobenius norm and `size`.
void expect_near(const char *name, const std::vector<double> &got, const std::vector<double> &wanted, double tolerance,
                 double size = 0);

void expect_near(const Results &got, const Results &wanted, double tolerance);

// Returns the tolerance for expect_near() between two ways to compute the same tensor.
double tolerance_of(annulus_dtype dtype);

// Fails unless every value is the same to the bit (any NaN equals any other).
void expect_identical(const char *name, const std::vector<double> &got, const std::vector<double> &wanted);
void expect_identical(const Results &got, const Results &wanted);

double norm(const std::vector<double> &values);
double greatest_magnitude(const std::vector<double> &values);

} // namespace annulus::test
