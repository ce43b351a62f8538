// SPDX-License-Identifier: Apache-2.0
// The plain formula, written down pair by pair over the keys of Mask, with intermediate tensors of a chosen dtype: in
// float64 a second opinion on the reference engine, in a half precision the measure of what that precision costs.
#pragma once

#include "support/run.hpp"

namespace annulus::test {

// Scores, probabilities and their gradients are rounded to `dtype` as if each were a tensor in memory; sums are not.
Results plain(const Problem &problem, const Inputs &inputs, annulus_dtype dtype);

} // namespace annulus::test
