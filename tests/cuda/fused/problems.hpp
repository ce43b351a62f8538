// SPDX-License-Identifier: Apache-2.0
// The problems that several programs of the engine `fused` compute, in its dtypes.
#pragma once

#include "engines/table.hpp"

#include <vector>

namespace annulus::test {

// Of all of the engine's dtypes, those that it takes.
std::vector<NamedProblem> of_subject(const std::vector<NamedProblem> &problems);

// Rules, dilations, head ranges and windows that the kernels treat apart; each of them also causal and with zero keys.
std::vector<NamedProblem> patterns();

// With sums in the workspace, of several passes, of orders along a curve, of heads that share keys; and without.
std::vector<NamedProblem> some_patterns();

// Some units of a cell meet far more keys than the others.
std::vector<NamedProblem> split_problems();

// Dilations do not divide one another.
std::vector<NamedProblem> problems_of_several_grids();

} // namespace annulus::test
