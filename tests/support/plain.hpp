// SPDX-License-Identifier: Apache-2.0
// The plain formula, pair by pair over the keys of Mask, with intermediate tensors of a chosen dtype. In float64 it
// checks the reference engine independently. In a half precision it measures the error of that precision.
#pragma once

#include "support/run.hpp"

namespace annulus::test {

// Computes the formula. Scores, probabilities and their gradients are rounded to `dtype` as if each were a tensor in
// memory; sums are not.
Results plain(const Problem &problem, const Inputs &inputs, annulus_dtype dtype);

} // namespace annulus::test
